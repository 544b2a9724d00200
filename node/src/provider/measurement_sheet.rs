//! Measures a device for `souk device` and stores the results as a *sheet*, which the owner's key
//! signs. souk uses a stored sheet again until the device, its driver or the key changes, or until
//! the caller requests a more thorough one.

use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{fs, io};

use ed25519_dalek::{Signature, Signer, VerifyingKey};
use serde::{Deserialize, Serialize};
use souk_folder::config::{self, ConfigError, DeviceChoice, FORMAT};
use souk_folder::key::NodeKey;
use souk_memory::ContentId;
use souk_registry::sheet::Sheet;
use souk_sandbox::device::{self, DeviceError};
use souk_vocabulary::processor::{Processor, WorkError};

/// The prefix of the signed bytes, so that no other signature can be valid for a sheet.
const DOMAIN: &[u8] = b"souk device sheet 1\n";

/// The folder of sheets within a node's folder.
const FOLDER: &str = "devices";

/// The results of measuring a device, signed by its owner.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SignedSheet {
    /// [`FORMAT`] of the souk that wrote it.
    pub format: u32,
    /// The sheet as JSON: the bytes that were signed.
    pub sheet: String,
    /// The owner's account, in hexadecimal digits.
    pub account: String,
    /// The owner's signature, in hexadecimal digits.
    pub signature: String,
}

/// Why a device has no measurement sheet.
#[derive(Debug, thiserror::Error)]
pub enum SheetError {
    /// The device could not be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device failed an operator that it claims to run.
    #[error("the device failed while it was measured: {0}")]
    Work(#[from] WorkError),
    /// The folder for sheets could not be created.
    #[error("cannot make the folder {path}: {source}")]
    Folder {
        /// The folder for sheets.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The sheet could not be stored.
    #[error(transparent)]
    Kept(#[from] ConfigError),
}

impl SignedSheet {
    /// Signs a sheet with the owner's key.
    #[must_use]
    pub fn new(sheet: &Sheet, key: &NodeKey) -> Self {
        let sheet = serde_json::to_string(sheet).expect("a sheet has only named fields");
        let signature = key.signing_key().sign(&signed_message(&sheet));
        Self {
            format: FORMAT,
            account: hex::encode(key.public_key()),
            signature: hex::encode(signature.to_bytes()),
            sheet,
        }
    }

    /// Returns the sheet, if the signature of the account it names is valid. Any key can sign a
    /// sheet, so you should also check whose account it is.
    #[must_use]
    pub fn verify_sheet(&self) -> Option<Sheet> {
        let mut account = [0; 32];
        hex::decode_to_slice(&self.account, &mut account).ok()?;
        let mut signature = [0; 64];
        hex::decode_to_slice(&self.signature, &mut signature).ok()?;
        let key = VerifyingKey::from_bytes(&account).ok()?;
        let signature = Signature::from_bytes(&signature);
        key.verify_strict(&signed_message(&self.sheet), &signature)
            .ok()?;
        serde_json::from_str(&self.sheet).ok()
    }
}

fn signed_message(sheet: &str) -> Vec<u8> {
    [DOMAIN, sheet.as_bytes()].concat()
}

/// Returns the sheet of a device: the one in `folder` if it is of this device and driver, of this
/// key and at least as thorough; otherwise measures the device now and stores the sheet.
pub fn read_or_measure(
    folder: &Path,
    key: &NodeKey,
    choice: &DeviceChoice,
    quick: bool,
    now_seconds: u64,
) -> Result<(Sheet, SignedSheet), SheetError> {
    let name = device::identify_device(choice)?;
    if let Some((sheet, signed)) = read_stored(folder, &name)
        && signed.account == hex::encode(key.public_key())
        && (quick || !sheet.quick)
    {
        return Ok((sheet, signed));
    }
    let (folder, path) = (folder.join(FOLDER), path(folder, &name));
    let begun = Instant::now();
    let devices = device::open_devices(choice, None)?;
    let (device, others) = devices.split_first().ok_or(DeviceError::Nobody)?;
    let others: Vec<&dyn Processor> = others.iter().map(|other| &**other).collect();
    let sheet = Sheet::measure_device(&**device, &others, name, quick, now_seconds, begun)?;
    let signed = SignedSheet::new(&sheet, key);
    let unmade = |source| SheetError::Folder {
        path: folder.clone(),
        source,
    };
    fs::create_dir_all(&folder).map_err(unmade)?;
    config::write(&path, &signed)?;
    Ok((sheet, signed))
}

/// Returns the sheet in `folder` of the device and driver with this name, whatever its signer.
#[must_use]
pub fn read_stored(folder: &Path, name: &str) -> Option<(Sheet, SignedSheet)> {
    let signed: SignedSheet = config::read(&path(folder, name)).ok()?;
    let sheet = signed.verify_sheet().filter(|sheet| sheet.key == name)?;
    Some((sheet, signed))
}

fn path(folder: &Path, name: &str) -> PathBuf {
    let file = format!(
        "{}.json",
        ContentId::for_content(name.as_bytes()).short_hex()
    );
    folder.join(FOLDER).join(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sheet_is_kept_until_its_bytes_change() {
        let folder = tempfile::tempdir().unwrap();
        let key = NodeKey::from_secret([7; 32]);
        let choice = DeviceChoice::new_emulated("nvidia-h100-sxm");
        let sheet = |now| read_or_measure(folder.path(), &key, &choice, true, now).unwrap();
        let (first, mut signed) = sheet(1);
        assert!(!first.rows.is_empty());
        assert!(first.seconds.is_some_and(|seconds| seconds > 0.0));
        assert_eq!(sheet(2).0, first, "kept");
        let found = read_stored(folder.path(), &first.key).unwrap();
        assert_eq!(found.0, first);
        assert!(read_stored(folder.path(), "another device").is_none());
        signed.sheet = signed.sheet.replace("MatMul", "MatMud");
        assert!(signed.verify_sheet().is_none());
        let other = NodeKey::from_secret([8; 32]);
        let again = read_or_measure(folder.path(), &other, &choice, true, 3).unwrap();
        assert_eq!(again.0.measured_at, 3, "another key signs its own");
    }
}
