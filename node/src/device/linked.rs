//! The library of ONNX Runtime that a provider uses: the one its file names, else the one that is
//! found. It is opened in a process of its own first, so that one that crashes takes no node down.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::device::probe::{self, ProbeError};
use crate::device::{LibraryReport, has_cpu, has_runtime, library_path};
use crate::folder::config::{Isolation, ProviderFile};

/// What was found when the provider started.
const FILE: &str = "onnxruntime.json";

/// A library of ONNX Runtime as it was when it was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryRecord {
    /// Where it lies, or should.
    pub path: PathBuf,
    /// Whether the provider's file names it.
    pub named: bool,
    /// The providers it has.
    pub providers: Vec<String>,
    /// Why it is not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// What is to be sold needs a library that is not usable.
#[derive(Debug, thiserror::Error)]
#[error("the library of ONNX Runtime is not usable: {cause}")]
pub struct Unusable {
    /// What is wrong with it.
    pub cause: String,
}

impl LibraryRecord {
    /// What the provider of this folder uses, by asking `program`, which is souk; none if its
    /// devices need no library and it names none, or if there is none.
    fn find(home: &Path, file: &ProviderFile, program: &Path) -> Option<LibraryRecord> {
        let named = file.library(home);
        let path = match &named {
            Some(path) => path.clone(),
            None if has_cpu(&file.device) || has_runtime(&file.device) => found()?,
            None => return None,
        };
        let (providers, refused) = match try_out(program, &path).and_then(|it| fit(file, it)) {
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

    /// What the provider of a folder found when it last started.
    #[must_use]
    pub fn read(home: &Path) -> Option<LibraryRecord> {
        let text = fs::read_to_string(home.join(FILE)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// The library to use.
    fn usable(self) -> Result<PathBuf, Unusable> {
        match self.refused {
            None => Ok(self.path),
            Some(cause) => Err(Unusable { cause }),
        }
    }
}

/// The library that is found, as other processes find it: they may be in another folder.
fn found() -> Option<PathBuf> {
    let path = library_path()?;
    // A name that is no file is one that the system looks for.
    let whole = std::path::absolute(&path).ok();
    Some(whole.filter(|it| it.exists()).unwrap_or(path))
}

/// Has a process of its own open the library at `path` and say what it has.
///
/// # Errors
/// What is wrong with it, in words for whoever named it.
pub fn try_out(program: &Path, path: &Path) -> Result<LibraryReport, String> {
    let reached: Result<LibraryReport, ProbeError> =
        probe::ask(program, &["onnxruntime"], Some(path));
    let path = path.display();
    reached.map_err(|error| match error {
        ProbeError::Refused(cause) => cause,
        ProbeError::Crashed(ended) => format!("{path} crashed when it was opened ({ended})"),
        ProbeError::Silent => format!("{path} hung when it was opened"),
        error @ (ProbeError::Start(_) | ProbeError::Garbled(_)) => error.to_string(),
    })
}

/// The same, if a sandbox can use it: one of a CPU opens it before its rules.
fn fit(file: &ProviderFile, reached: LibraryReport) -> Result<Vec<String>, String> {
    let before_walls = file.isolation != Isolation::None && has_cpu(&file.device);
    match reached.threads {
        threads @ 1.. if before_walls => Err(format!(
            "{} starts {threads} threads of its own, which no sandbox would hold",
            reached.path.display()
        )),
        _ => Ok(reached.providers),
    }
}

/// Finds the library that a provider uses, and keeps what was found for its status. A CPU does
/// without one that is not usable; what is reached through it alone is not sold then.
pub(crate) async fn settle(
    home: &Path,
    file: &ProviderFile,
    program: &Path,
) -> Result<Option<PathBuf>, Unusable> {
    let (at, named, souk) = (home.to_owned(), file.clone(), program.to_owned());
    let finding = move || LibraryRecord::find(&at, &named, &souk);
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
    match linked.map(LibraryRecord::usable) {
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
        assert!(fit(&file, reached(0)).is_ok());
        let refused = fit(&file, reached(1)).unwrap_err();
        assert!(
            refused.contains("libonnxruntime.so starts 1 threads"),
            "{refused}"
        );
        file.isolation = Isolation::None;
        assert!(fit(&file, reached(1)).is_ok());
    }
}
