//! Creates, reads and writes the key of a node: one ed25519 secret, which is its peer identity and
//! its account in the market.
//!
//! With one key for both, a peer id *is* an account: the peer that answers on a connection is the
//! one that signed the ask, and no directory in between could lie about it.

#[cfg(target_os = "linux")]
mod asking;
pub mod encrypted_key;

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use ed25519_dalek::SigningKey;
use libp2p_identity::{self as identity, PeerId};

pub use encrypted_key::{LockError, Passphrase};

/// A node's secret key.
#[derive(Clone)]
pub struct NodeKey {
    signing: SigningKey,
}

/// Why a key file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file system refused.
    #[error("cannot read or write the key file {path}: {source}")]
    File {
        /// The key file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users can read the file.
    #[error(
        "the key file {path} is open to others (mode {mode:o}): whoever reads it can trade as this \
         node; close it with `chmod 600 {path}`"
    )]
    Open {
        /// The key file.
        path: PathBuf,
        /// The file's permissions.
        mode: u32,
    },
    /// The key is locked and could not be unlocked.
    #[error("cannot open the key file {path}: {cause}")]
    Locked {
        /// The key file.
        path: PathBuf,
        /// Why it could not be unlocked.
        cause: LockError,
    },
    /// The file is neither 64 hexadecimal digits nor a locked key.
    #[error(
        "the key file {path} is damaged: it must hold 64 hexadecimal digits, or their form after \
         `souk key lock`"
    )]
    Damaged {
        /// The key file.
        path: PathBuf,
    },
}

/// A public key that is not a peer's.
#[derive(Debug, thiserror::Error)]
#[error("{0} is not an ed25519 public key")]
pub struct NotAKey(pub String);

impl NodeKey {
    /// Generates a new key from the system's randomness.
    pub fn generate() -> NodeKey {
        let pair = identity::ed25519::Keypair::generate();
        let mut secret = [0; 32];
        secret.copy_from_slice(pair.secret().as_ref());
        NodeKey::from_secret(secret)
    }

    /// Returns the key with this secret.
    pub fn from_secret(secret: [u8; 32]) -> NodeKey {
        NodeKey {
            signing: SigningKey::from_bytes(&secret),
        }
    }

    /// Reads the key at `path`, or writes a new one there that only its owner can read.
    pub fn load_or_create(path: &Path) -> Result<NodeKey, KeyError> {
        match NodeKey::load(path) {
            Err(KeyError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let key = NodeKey::generate();
                key.store(path)?;
                Ok(key)
            }
            other => other,
        }
    }

    /// Reads the key at `path`, which only its owner must be able to read.
    pub fn load(path: &Path) -> Result<NodeKey, KeyError> {
        let file = |source| KeyError::File {
            path: path.to_owned(),
            source,
        };
        let mut opened = fs::File::open(path).map_err(file)?;
        #[cfg(unix)]
        check_closed(path, &opened.metadata().map_err(file)?)?;
        let mut text = String::new();
        opened.read_to_string(&mut text).map_err(file)?;
        let damaged = || KeyError::Damaged {
            path: path.to_owned(),
        };
        if !encrypted_key::is_locked(&text) {
            let mut secret = [0; 32];
            hex::decode_to_slice(text.trim(), &mut secret).map_err(|_| damaged())?;
            return Ok(NodeKey::from_secret(secret));
        }
        let opened = Passphrase::find_passphrase()
            .and_then(|passphrase| encrypted_key::unlock_secret(&text, &passphrase));
        match opened {
            Ok(secret) => Ok(NodeKey::from_secret(secret)),
            Err(LockError::Damaged) => Err(damaged()),
            Err(cause) => Err(KeyError::Locked {
                path: path.to_owned(),
                cause,
            }),
        }
    }

    /// Returns whether the key at `path` is under a passphrase, which [`NodeKey::load`] can ask
    /// for.
    #[must_use]
    pub fn is_locked(path: &Path) -> bool {
        fs::read_to_string(path).is_ok_and(|text| encrypted_key::is_locked(&text))
    }

    /// Atomically replaces the key at `path`: under a passphrase, or bare.
    pub fn replace(&self, path: &Path, passphrase: Option<&Passphrase>) -> Result<(), KeyError> {
        let secret = self.signing.to_bytes();
        let text = match passphrase {
            None => hex::encode(secret),
            Some(passphrase) => {
                encrypted_key::lock(&secret, passphrase).map_err(|cause| KeyError::Locked {
                    path: path.to_owned(),
                    cause,
                })?
            }
        };
        let draft = path.with_extension("new");
        let file = |source| KeyError::File {
            path: path.to_owned(),
            source,
        };
        // A crash can have left an earlier draft, which no one needs.
        match fs::remove_file(&draft) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(file(source)),
            _ => write_private(&draft, &text).map_err(file)?,
        }
        fs::rename(&draft, path).map_err(file)
    }

    /// Writes the key to a new file that only its owner can read.
    pub fn store(&self, path: &Path) -> Result<(), KeyError> {
        let file = |source| KeyError::File {
            path: path.to_owned(),
            source,
        };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(file)?;
        }
        write_private(path, &hex::encode(self.signing.to_bytes())).map_err(file)
    }

    /// Returns the key that signs this node's commands, notes and receipts.
    pub fn signing_key(&self) -> &SigningKey {
        &self.signing
    }

    /// Returns the public key, which is the account's name in the market.
    pub fn public_key(&self) -> [u8; 32] {
        self.signing.verifying_key().to_bytes()
    }

    /// Returns the peer id that belongs to this key.
    pub fn peer_id(&self) -> PeerId {
        self.to_libp2p().public().to_peer_id()
    }

    /// Returns the same key in libp2p's type.
    pub fn to_libp2p(&self) -> identity::Keypair {
        identity::Keypair::ed25519_from_bytes(self.signing.to_bytes())
            .expect("any 32 bytes are an ed25519 secret")
    }
}

/// Writes a new file that only its owner can read.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut out = options.open(path)?;
    writeln!(out, "{text}")?;
    out.sync_all()
}

/// Refuses a file that its group or others can read or write.
#[cfg(unix)]
fn check_closed(path: &Path, found: &fs::Metadata) -> Result<(), KeyError> {
    let mode = std::os::unix::fs::PermissionsExt::mode(&found.permissions()) & 0o777;
    match mode & 0o077 {
        0 => Ok(()),
        _ => Err(KeyError::Open {
            path: path.to_owned(),
            mode,
        }),
    }
}

/// Returns the peer id of the account with this public key.
pub fn peer_of(account: &[u8; 32]) -> Result<PeerId, NotAKey> {
    let key = identity::ed25519::PublicKey::try_from_bytes(account)
        .map_err(|_| NotAKey(hex::encode(account)))?;
    Ok(identity::PublicKey::from(key).to_peer_id())
}

/// Returns the account of the peer with this id; none for peers whose key is not ed25519.
pub fn account_of(peer: &PeerId) -> Option<[u8; 32]> {
    // An ed25519 peer id is the identity multihash of the protobuf-encoded key.
    let key = identity::PublicKey::try_decode_protobuf(peer.as_ref().digest()).ok()?;
    Some(key.try_into_ed25519().ok()?.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_id_and_account_name_each_other() {
        let key = NodeKey::generate();
        assert_eq!(peer_of(&key.public_key()).unwrap(), key.peer_id());
        assert_eq!(account_of(&key.peer_id()), Some(key.public_key()));
    }

    #[test]
    fn a_stored_key_is_read_back_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node/key");
        let key = NodeKey::load_or_create(&path).unwrap();
        let again = NodeKey::load_or_create(&path).unwrap();
        assert_eq!(key.public_key(), again.public_key());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(
                fs::metadata(&path).unwrap().permissions().mode() & 0o777,
                0o600
            );
        }
    }

    #[test]
    fn a_key_that_is_open_or_damaged_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        fs::write(&path, "not a key").unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let open = NodeKey::load(&path);
            assert!(matches!(open, Err(KeyError::Open { .. })));
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        assert!(matches!(
            NodeKey::load(&path),
            Err(KeyError::Damaged { .. })
        ));
    }
}
