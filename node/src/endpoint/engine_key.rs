//! The key by which an inference engine admits its owner's requests. It is sent in one header, and
//! shown nowhere: an engine that repeats it in an error is no exception.

use std::fmt;
use std::path::{Path, PathBuf};

use hyper::header::HeaderValue;

/// The variable that names the folder in which systemd passes credentials to a service.
const CREDENTIALS_VARIABLE: &str = "CREDENTIALS_DIRECTORY";

/// The words in place of a key that an engine repeats.
const HIDDEN: &str = "(the key)";

/// A key of an engine.
#[derive(Clone)]
pub struct EngineKey {
    text: String,
    header: HeaderValue,
}

impl fmt::Debug for EngineKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl EngineKey {
    /// Reads a key, one line of visible characters, from a file that others cannot read.
    ///
    /// # Errors
    /// Why the file cannot be used.
    pub(super) fn load(path: &Path) -> Result<EngineKey, String> {
        check_private(path)?;
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
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

    /// Returns the value of the header that shows it.
    pub(super) fn header(&self) -> &HeaderValue {
        &self.header
    }

    /// Returns a message of the engine without the key.
    pub(super) fn hide_in(&self, message: &str) -> String {
        message.replace(&self.text, HIDDEN)
    }
}

/// Refuses a file that other users of the machine can read, unless systemd made it.
#[cfg(unix)]
fn check_private(path: &Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;

    let found = std::fs::metadata(path).map_err(|error| error.to_string())?;
    let mode = found.permissions().mode() & 0o777;
    let credentials = std::env::var_os(CREDENTIALS_VARIABLE).map(PathBuf::from);
    let is_credential = credentials.is_some_and(|folder| path.starts_with(folder));
    match mode & 0o077 {
        0 => Ok(()),
        _ if is_credential => Ok(()),
        _ => Err(format!(
            "other users can read it (mode {mode:o}); close it with `chmod 600 {}`",
            path.display()
        )),
    }
}

#[cfg(not(unix))]
fn check_private(_: &Path) -> Result<(), String> {
    Ok(())
}
