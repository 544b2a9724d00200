//! Writes and reads the file with the address of a folder's gateway, by which other programs open
//! its page. The gateway locks the file for its lifetime. Readers must ignore an address whose file
//! is not locked.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::access::{Scope, TokenError, TokenFile};

/// The address file, relative to the folder of the market.
const FILE: &str = "buyer/http-address";

/// Attempts to lock the file, and the pause between them: a reader holds the lock for a moment,
/// another gateway holds it for its lifetime.
const TRIES: usize = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// The published address of a gateway; dropping this releases the lock.
#[derive(Debug)]
pub struct PublishedAddress {
    _locked: File,
}

impl PublishedAddress {
    /// Publishes the gateway's address until you drop the result. Returns `None` if another gateway
    /// of the folder holds the lock.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub async fn publish_address(
        folder: &Path,
        address: SocketAddr,
    ) -> io::Result<Option<PublishedAddress>> {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false);
        let mut file = options.open(folder.join(FILE))?;
        for _ in 0..TRIES {
            match file.try_lock() {
                Ok(()) => {
                    file.set_len(0)?;
                    file.write_all(address.to_string().as_bytes())?;
                    return Ok(Some(PublishedAddress { _locked: file }));
                }
                Err(TryLockError::WouldBlock) => tokio::time::sleep(PAUSE).await,
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// Returns the address of the folder's gateway if one is running.
fn read_address(folder: &Path) -> Option<SocketAddr> {
    let mut file = File::open(folder.join(FILE)).ok()?;
    if !matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)) {
        return None;
    }
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.parse().ok()
}

/// Returns the URL that opens the page of a folder's gateway, or `None` if no gateway runs. The
/// token stands behind the `#`, which browsers do not send.
///
/// # Errors
/// [`TokenError`]
pub fn page_of(folder: &Path, scope: Scope) -> Result<Option<String>, TokenError> {
    match read_address(folder) {
        Some(address) => page_at(folder, address, scope).map(Some),
        None => Ok(None),
    }
}

/// Returns the URL that opens the page of a folder's gateway at this address.
///
/// # Errors
/// [`TokenError`]
pub fn page_at(folder: &Path, address: SocketAddr, scope: Scope) -> Result<String, TokenError> {
    let tokens = TokenFile::load_or_create(folder)?;
    let token = tokens.token_for(scope);
    Ok(format!("http://{address}/#token={token}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_is_told_while_its_gateway_lives() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("buyer")).unwrap();
        let page = || page_of(folder.path(), Scope::Read).unwrap();
        assert_eq!(page(), None);
        let address = "127.0.0.1:7800".parse().unwrap();
        let first = PublishedAddress::publish_address(folder.path(), address)
            .await
            .unwrap()
            .unwrap();
        let other = "127.0.0.1:7801".parse().unwrap();
        assert!(
            PublishedAddress::publish_address(folder.path(), other)
                .await
                .unwrap()
                .is_none()
        );
        let tokens = TokenFile::load_or_create(folder.path()).unwrap();
        let wanted = format!("http://127.0.0.1:7800/#token={}", tokens.read);
        assert_eq!(page(), Some(wanted));
        drop(first);
        assert_eq!(page(), None);
    }
}
