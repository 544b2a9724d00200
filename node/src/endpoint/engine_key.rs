//! Reads and protects the API key by which an inference engine admits its owner's requests. souk
//! sends the key in one header and prints it nowhere; if an engine repeats it in an error, souk
//! removes it from the message.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use hyper::header::HeaderValue;

/// The variable that names the folder in which systemd passes credentials to a service.
const CREDENTIALS_VARIABLE: &str = "CREDENTIALS_DIRECTORY";

/// The most bytes of a key's file.
const KEY_BYTES_MAX: u64 = 8 << 10;

/// The text that stands in place of a key.
const KEY_PLACEHOLDER: &str = "(the key)";

/// The API key of an inference engine.
#[derive(Clone)]
pub struct EngineKey {
    text: String,
    header: HeaderValue,
}

impl fmt::Debug for EngineKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(KEY_PLACEHOLDER)
    }
}

impl EngineKey {
    /// Reads a key, one line of visible characters, from a file that others cannot read.
    ///
    /// # Errors
    /// Why the file cannot be used.
    pub(super) fn load(path: &Path) -> Result<EngineKey, String> {
        let text = read_private_file(path)?;
        let text = text.trim();
        if text.is_empty() {
            return Err("the file is empty".to_owned());
        }
        let header = HeaderValue::from_str(&format!("Bearer {text}"));
        let mut header = header.map_err(|_| "it is not one line of text".to_owned())?;
        // So that no log shows it.
        header.set_sensitive(true);
        Ok(EngineKey {
            text: text.to_owned(),
            header,
        })
    }

    /// Returns the value of the `Authorization` header.
    pub(super) fn header(&self) -> &HeaderValue {
        &self.header
    }

    /// Returns a message of the engine without the key.
    pub(super) fn redact_key(&self, message: &str) -> String {
        message.replace(&self.text, KEY_PLACEHOLDER)
    }
}

/// Reads a small file, and refuses it if other users of the machine can read it, unless systemd
/// made it. The mode is read from the open file, so a file that takes its name meanwhile changes
/// nothing; systemd's folder is recognised by its name.
fn read_private_file(path: &Path) -> Result<String, String> {
    let describe = |error: std::io::Error| error.to_string();
    // Opening a pipe would wait for its other end.
    let named = std::fs::metadata(path).map_err(describe)?;
    if !named.is_file() {
        return Err("it is not a file".to_owned());
    }
    let file = std::fs::File::open(path).map_err(describe)?;
    check_file_is_private(path, &file.metadata().map_err(describe)?)?;
    let mut text = String::new();
    file.take(KEY_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(describe)?;
    match text.len() as u64 > KEY_BYTES_MAX {
        true => Err(format!("it has more than {KEY_BYTES_MAX} bytes")),
        false => Ok(text),
    }
}

#[cfg(unix)]
fn check_file_is_private(path: &Path, file: &std::fs::Metadata) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;

    let mode = file.permissions().mode() & 0o777;
    let folder = std::env::var_os(CREDENTIALS_VARIABLE).map(PathBuf::from);
    let folder = folder.filter(|folder| folder.is_absolute());
    let folder = folder.and_then(|folder| folder.canonicalize().ok());
    let is_credential = || {
        let path = path.canonicalize().ok();
        path.zip(folder)
            .is_some_and(|(path, folder)| path.starts_with(folder))
    };
    if mode & 0o077 == 0 || is_credential() {
        return Ok(());
    }
    Err(format!(
        "other users can read it (mode {mode:o}); close it with `chmod 600 {}`",
        path.display()
    ))
}

#[cfg(not(unix))]
fn check_file_is_private(_: &Path, _: &std::fs::Metadata) -> Result<(), String> {
    Ok(())
}
