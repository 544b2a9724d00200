//! Locks a node's key file with a passphrase and unlocks it: Argon2id derives a key, with which
//! ChaCha20-Poly1305 encrypts.
//!
//! ```text
//! souk-key 1
//! argon2id 65536 3 1 SALT
//! chacha20poly1305 NONCE SECRET
//! ```
//!
//! The third line authenticates the first two, so an attacker cannot lower the cost of guessing in
//! a file that still opens.

use std::env;
use std::fs;
use std::io;
use std::path::PathBuf;

use argon2::{Algorithm, Argon2, Params, Version};
use chacha20poly1305::aead::rand_core::RngCore;
use chacha20poly1305::aead::{Aead, KeyInit, OsRng, Payload};
use chacha20poly1305::{ChaCha20Poly1305, Key, Nonce};

/// The beginning of a locked key file.
const MAGIC: &str = "souk-key 1";

/// Memory that one guess costs, in KiB.
const MEMORY_KIB: u32 = 64 * 1024;
/// Passes over that memory.
const PASSES: u32 = 3;
/// The most that a file may request: a person who can change it must not exhaust memory.
const MEMORY_KIB_MAX: u32 = 1024 * 1024;
const PASSES_MAX: u32 = 16;

/// The variable that names a file with the passphrase.
pub const FILE_VARIABLE: &str = "SOUK_PASSPHRASE_FILE";
/// The variable that holds the passphrase.
pub const VARIABLE: &str = "SOUK_PASSPHRASE";

const SALT_BYTES: usize = 16;
const NONCE_BYTES: usize = 12;

/// The passphrase of a key. It is never shown.
pub struct Passphrase(String);

/// Why a key could not be locked or opened.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// No passphrase is available.
    #[error(
        "it is locked: name a file with the passphrase in {FILE_VARIABLE}, set {VARIABLE}, or run \
         souk at a terminal to type it"
    )]
    NoPassphrase,
    /// The terminal could not be read.
    #[error("the passphrase was not read from the terminal: {0}")]
    Terminal(io::Error),
    /// The two entries differ.
    #[error("the two passphrases differ")]
    Unlike,
    /// The passphrase file could not be read.
    #[error("the passphrase file {path} cannot be read: {source}")]
    File {
        /// The passphrase file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The passphrase is empty.
    #[error("the passphrase is empty")]
    Empty,
    /// The passphrase is wrong, or the file was changed.
    #[error("the passphrase does not open it, or the file was changed")]
    Wrong,
    /// The file does not have the form that `souk key lock` writes.
    #[error("it is damaged")]
    Damaged,
    /// The memory to derive a key could not be allocated, or its parameters are invalid.
    #[error("the passphrase cannot be used: {0}")]
    Derive(argon2::Error),
}

impl Passphrase {
    /// Returns a passphrase unless it is empty. It ignores space around the text, and the end of
    /// the line.
    pub fn new(text: &str) -> Result<Passphrase, LockError> {
        match text.trim() {
            "" => Err(LockError::Empty),
            text => Ok(Passphrase(text.to_owned())),
        }
    }

    /// Returns the passphrase that the environment names or holds, or that the user types.
    pub fn find_passphrase() -> Result<Passphrase, LockError> {
        match Passphrase::from_environment()? {
            Some(told) => Ok(told),
            None => prompt_passphrase("passphrase"),
        }
    }

    /// Returns a passphrase to lock a key with: as [`Passphrase::find_passphrase`], but the user
    /// types it twice.
    pub fn choose_new() -> Result<Passphrase, LockError> {
        if let Some(told) = Passphrase::from_environment()? {
            return Ok(told);
        }
        let (first, again) = (
            prompt_passphrase("new passphrase")?,
            prompt_passphrase("the same again")?,
        );
        match first.0 == again.0 {
            true => Ok(first),
            false => Err(LockError::Unlike),
        }
    }

    fn from_environment() -> Result<Option<Passphrase>, LockError> {
        if let Some(path) = env::var_os(FILE_VARIABLE) {
            let path = PathBuf::from(path);
            let read = fs::read_to_string(&path);
            let text = read.map_err(|source| LockError::File { path, source })?;
            return Passphrase::new(&text).map(Some);
        }
        let text = env::var(VARIABLE).ok();
        text.map(|text| Passphrase::new(&text)).transpose()
    }
}

#[cfg(target_os = "linux")]
fn prompt_passphrase(question: &str) -> Result<Passphrase, LockError> {
    let typed = super::asking::prompt_line(question).map_err(LockError::Terminal)?;
    Passphrase::new(&typed.ok_or(LockError::NoPassphrase)?)
}

#[cfg(not(target_os = "linux"))]
fn prompt_passphrase(_question: &str) -> Result<Passphrase, LockError> {
    Err(LockError::NoPassphrase)
}

/// Returns whether a key file's text is a locked key.
#[must_use]
pub fn is_locked(text: &str) -> bool {
    text.starts_with(MAGIC)
}

/// Returns the text of a locked key file with this secret.
///
/// # Errors
/// [`LockError::Derive`].
pub fn lock(secret: &[u8; 32], passphrase: &Passphrase) -> Result<String, LockError> {
    let (mut salt, mut nonce) = ([0; SALT_BYTES], [0; NONCE_BYTES]);
    OsRng.fill_bytes(&mut salt);
    OsRng.fill_bytes(&mut nonce);
    let head = format_head(MEMORY_KIB, PASSES, &salt);
    let cipher = derive_cipher(passphrase, MEMORY_KIB, PASSES, &salt)?;
    let payload = Payload {
        msg: secret,
        aad: head.as_bytes(),
    };
    let sealed = cipher.encrypt(Nonce::from_slice(&nonce), payload);
    let sealed = sealed.map_err(|_| LockError::Damaged)?;
    let (nonce, sealed) = (hex::encode(nonce), hex::encode(sealed));
    Ok(format!("{head}chacha20poly1305 {nonce} {sealed}"))
}

/// Returns the secret in the text of a locked key file.
///
/// # Errors
/// [`LockError::Wrong`] or [`LockError::Damaged`].
pub fn unlock_secret(text: &str, passphrase: &Passphrase) -> Result<[u8; 32], LockError> {
    let parsed = parse_locked(text).ok_or(LockError::Damaged)?;
    let head = format_head(parsed.memory_kib, parsed.passes, &parsed.salt);
    let cipher = derive_cipher(passphrase, parsed.memory_kib, parsed.passes, &parsed.salt)?;
    let payload = Payload {
        msg: &parsed.sealed,
        aad: head.as_bytes(),
    };
    let secret = cipher.decrypt(Nonce::from_slice(&parsed.nonce), payload);
    let secret = secret.map_err(|_| LockError::Wrong)?;
    secret.try_into().map_err(|_| LockError::Damaged)
}

/// The parts of a locked key file.
struct LockedKey {
    memory_kib: u32,
    passes: u32,
    salt: [u8; SALT_BYTES],
    nonce: [u8; NONCE_BYTES],
    sealed: Vec<u8>,
}

fn parse_locked(text: &str) -> Option<LockedKey> {
    let mut lines = text.lines();
    if lines.next()? != MAGIC {
        return None;
    }
    let words: Vec<&str> = lines.next()?.split(' ').collect();
    let ["argon2id", memory_kib, passes, "1", salt] = words[..] else {
        return None;
    };
    let words: Vec<&str> = lines.next()?.split(' ').collect();
    let ["chacha20poly1305", nonce, sealed] = words[..] else {
        return None;
    };
    let at_most = |text: &str, most: u32| text.parse().ok().filter(|number| *number <= most);
    Some(LockedKey {
        memory_kib: at_most(memory_kib, MEMORY_KIB_MAX)?,
        passes: at_most(passes, PASSES_MAX)?,
        salt: hex::decode(salt).ok()?.try_into().ok()?,
        nonce: hex::decode(nonce).ok()?.try_into().ok()?,
        sealed: hex::decode(sealed).ok()?,
    })
}

fn format_head(memory_kib: u32, passes: u32, salt: &[u8]) -> String {
    format!(
        "{MAGIC}\nargon2id {memory_kib} {passes} 1 {}\n",
        hex::encode(salt)
    )
}

fn derive_cipher(
    passphrase: &Passphrase,
    memory_kib: u32,
    passes: u32,
    salt: &[u8],
) -> Result<ChaCha20Poly1305, LockError> {
    let mut key = [0; 32];
    let params = Params::new(memory_kib, passes, 1, Some(key.len())).map_err(LockError::Derive)?;
    let argon = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    let derived = argon.hash_password_into(passphrase.0.as_bytes(), salt, &mut key);
    derived.map_err(LockError::Derive)?;
    Ok(ChaCha20Poly1305::new(Key::from_slice(&key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locked_key_opens_with_its_passphrase_and_no_other() {
        let passphrase = Passphrase::new("correct horse\n").unwrap();
        let text = lock(&[7; 32], &passphrase).unwrap();
        assert!(is_locked(&text) && !text.contains(&hex::encode([7; 32])));
        let same = Passphrase::new(" correct horse").unwrap();
        assert_eq!(unlock_secret(&text, &same).unwrap(), [7; 32]);
        let other = Passphrase::new("battery staple").unwrap();
        assert!(matches!(
            unlock_secret(&text, &other),
            Err(LockError::Wrong)
        ));
        assert!(matches!(Passphrase::new(" \n"), Err(LockError::Empty)));
    }

    #[test]
    fn a_file_that_was_changed_does_not_open() {
        let passphrase = Passphrase::new("x").unwrap();
        let text = lock(&[7; 32], &passphrase).unwrap();
        let cheaper = text.replace("argon2id 65536 3", "argon2id 65536 2");
        assert!(matches!(
            unlock_secret(&cheaper, &passphrase),
            Err(LockError::Wrong)
        ));
        let greedy = text.replace("argon2id 65536", "argon2id 4000000");
        for damaged in [
            &greedy,
            &text[..text.len() - 1],
            "souk-key 1",
            "souk-key 1\nx\ny",
        ] {
            assert!(matches!(
                unlock_secret(damaged, &passphrase),
                Err(LockError::Damaged)
            ));
        }
    }
}
