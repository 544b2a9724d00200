//! Chooses the ONNX Runtime library of a provider: the one that the provider's file names, or else
//! the one that souk finds. A separate process must open it first, so that a crash does not stop
//! the node.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use souk_folder::config::{Isolation, ProviderFile};

use crate::device::probe::{self, ProbeError};
use crate::device::{LibraryReport, has_cpu, has_runtime, library_path};

/// The file that keeps the result of the last start.
const FILE: &str = "onnxruntime.json";

/// An ONNX Runtime library, as the last try found it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryRecord {
    /// The path of the library.
    pub path: PathBuf,
    /// Whether the provider's file names it.
    pub named: bool,
    /// The execution providers of the library.
    pub providers: Vec<String>,
    /// Why the provider does not use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// A device on sale needs a library that is not usable.
#[derive(Debug, thiserror::Error)]
#[error("the library of ONNX Runtime is not usable: {cause}")]
pub struct Unusable {
    /// Why it is not usable.
    pub cause: String,
}

impl LibraryRecord {
    /// Finds and tries the library of a provider, with `program` as the souk that tries it. Returns
    /// none if its devices need no library and its file names none, or if there is none.
    fn find_library(home: &Path, file: &ProviderFile, program: &Path) -> Option<LibraryRecord> {
        let named = file.library_path(home);
        let path = match &named {
            Some(path) => path.clone(),
            None if has_cpu(&file.device) || has_runtime(&file.device) => find_library_path()?,
            None => return None,
        };
        let (providers, refused) =
            match try_out(program, &path).and_then(|it| usable_providers(file, it)) {
                Ok(providers) => (providers, None),
                Err(cause) => (Vec::new(), Some(cause)),
            };
        Some(LibraryRecord {
            path,
            named: named.is_some(),
            providers,
            refused,
        })
    }

    /// Reads the record of the provider's last start from its folder.
    #[must_use]
    pub fn read(home: &Path) -> Option<LibraryRecord> {
        let text = fs::read_to_string(home.join(FILE)).ok()?;
        serde_json::from_str(&text).ok()
    }

    fn into_path(self) -> Result<PathBuf, Unusable> {
        match self.refused {
            None => Ok(self.path),
            Some(cause) => Err(Unusable { cause }),
        }
    }
}

/// Returns the path of the library that souk finds; absolute, because other processes can run in
/// another folder.
fn find_library_path() -> Option<PathBuf> {
    let path = library_path()?;
    // If the path is no file, the system's loader searches for the name.
    let whole = std::path::absolute(&path).ok();
    Some(whole.filter(|it| it.exists()).unwrap_or(path))
}

/// Opens the library at `path` in a separate process, which reports its providers.
///
/// # Errors
/// The fault of the library, as a sentence.
pub fn try_out(program: &Path, path: &Path) -> Result<LibraryReport, String> {
    let reached: Result<LibraryReport, ProbeError> =
        probe::run_probe(program, &["onnxruntime"], Some(path));
    let path = path.display();
    reached.map_err(|error| match error {
        ProbeError::Refused(cause) => cause,
        ProbeError::Crashed(ended) => format!("{path} crashed when it was opened ({ended})"),
        ProbeError::Silent => format!("{path} hung when it was opened"),
        error @ (ProbeError::Start(_) | ProbeError::Garbled(_)) => error.to_string(),
    })
}

/// Returns the library's providers if a sandbox can use it: a sandbox of a CPU opens it before its
/// rules apply.
fn usable_providers(file: &ProviderFile, reached: LibraryReport) -> Result<Vec<String>, String> {
    let before_walls = file.isolation != Isolation::None && has_cpu(&file.device);
    match reached.threads {
        threads @ 1.. if before_walls => Err(format!(
            "{} starts {threads} threads of its own, which no sandbox would hold",
            reached.path.display()
        )),
        _ => Ok(reached.providers),
    }
}

/// Finds the library that a provider uses, and stores the result for `souk provider status`. A CPU
/// runs without an unusable library; a device that needs the library is not sold then.
pub(crate) async fn settle_library(
    home: &Path,
    file: &ProviderFile,
    program: &Path,
) -> Result<Option<PathBuf>, Unusable> {
    let (at, named, souk) = (home.to_owned(), file.clone(), program.to_owned());
    let finding = move || LibraryRecord::find_library(&at, &named, &souk);
    let linked = tokio::task::spawn_blocking(finding).await;
    let linked = linked.expect("trying a library does not panic");
    let path = home.join(FILE);
    let kept = match &linked {
        None if path.exists() => fs::remove_file(&path),
        None => Ok(()),
        Some(linked) => {
            let text = serde_json::to_string_pretty(linked).expect("it has only named fields");
            fs::write(&path, text + "\n")
        }
    };
    if let Err(error) = kept {
        tracing::warn!(%error, "`souk provider status` cannot tell which library is used");
    }
    match linked.map(LibraryRecord::into_path) {
        None => Ok(None),
        Some(Ok(path)) => Ok(Some(path)),
        Some(Err(unusable)) if has_runtime(&file.device) => Err(unusable),
        Some(Err(unusable)) => {
            tracing::error!(
                "{unusable}; the CPU runs without it: correct `onnxruntime` in provider.toml"
            );
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_with_threads_of_its_own_is_kept_from_before_the_walls() {
        let text = r#"{"format": 1, "name": "p", "listen": "/ip4/127.0.0.1/tcp/0", "price": 1,
            "device": {"group": [{"cpu": {"threads": 1}}]}}"#;
        let mut file: ProviderFile = serde_json::from_str(text).unwrap();
        let reached = |threads| LibraryReport {
            path: "/lib/libonnxruntime.so".into(),
            providers: vec!["CPUExecutionProvider".to_owned()],
            threads,
        };
        assert!(usable_providers(&file, reached(0)).is_ok());
        let refused = usable_providers(&file, reached(1)).unwrap_err();
        assert!(
            refused.contains("libonnxruntime.so starts 1 threads"),
            "{refused}"
        );
        file.isolation = Isolation::None;
        assert!(usable_providers(&file, reached(1)).is_ok());
    }
}
