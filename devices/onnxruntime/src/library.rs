//! Finds and opens the ONNX Runtime library, lists its providers, and loads models into it.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::{env, fs};

use ort::LoadDynamicError;
use ort::environment::Environment;
use ort::logging::LogLevel;
use ort::session::Session;
use ort::session::builder::SessionBuilder;
use souk_host::discover;
use souk_onnx::sample;
use thiserror::Error;

use super::loaded_model::{LoadedModel, OpenSession};
use super::provider::{self, Provider};
use super::refusal::{self, PlacementLog, Refusal};
use super::rules;

/// You can set this environment variable to the library's path.
pub const LIBRARY_VARIABLE: &str = "SOUK_ONNXRUNTIME";

/// Folders of libraries on Linux and macOS, searched if the variable is not set.
const FOLDERS: &[&str] = &[
    "/usr/local/lib",
    "/usr/lib",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/opt/onnxruntime/lib",
    "/opt/homebrew/lib",
];

/// Beginnings of the library's file name on each system.
const NAMES: &[&str] = &[
    "libonnxruntime.so",
    "libonnxruntime.dylib",
    "onnxruntime.dll",
];

/// An opened library.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    environment: Environment,
    host: Provider,
    /// Listed at the first request, because a driver can be slow.
    providers: OnceLock<Vec<Provider>>,
}

/// Reasons why a library was not opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LoadError {
    /// The system has no library.
    #[error("no ONNX Runtime library was found; {LIBRARY_VARIABLE} can name one")]
    NotFound,
    /// The file does not exist.
    #[error("{} does not exist", path.display())]
    Missing {
        /// Path of the file.
        path: PathBuf,
    },
    /// The system cannot load the file.
    #[error("{} is not a library that this system can load: {reason}", path.display())]
    NotLoadable {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        reason: String,
    },
    /// The file is a library other than ONNX Runtime's.
    #[error("{} is a library, but not ONNX Runtime's: it has no OrtGetApiBase", path.display())]
    NotOnnxRuntime {
        /// Path of the library.
        path: PathBuf,
    },
    /// The library is too old or does not start.
    #[error("{} is not a usable ONNX Runtime library: {reason}", path.display())]
    Refused {
        /// Path of the library.
        path: PathBuf,
        /// The error of the library or the system.
        reason: String,
    },
    /// The process has already opened another library.
    #[error("{} is already open, and a process can open only one", open.display())]
    OtherOpen {
        /// Path of the open library.
        open: PathBuf,
    },
}

/// The state of this process's library.
#[derive(Debug, Default)]
enum LibraryState {
    /// No request so far; the first one searches for a library.
    #[default]
    Unset,
    /// [`Library::find_or_open`] opens the library at this path, or fails if there is none.
    Chosen(Option<PathBuf>),
    /// The library is open.
    Open(Arc<Library>),
}

fn lock_state() -> MutexGuard<'static, LibraryState> {
    static HELD: OnceLock<Mutex<LibraryState>> = OnceLock::new();
    let held = HELD.get_or_init(Mutex::default);
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the library's path: the variable's value, otherwise the first match in the usual
/// folders.
#[must_use]
pub fn library_path() -> Option<PathBuf> {
    match env::var_os(LIBRARY_VARIABLE) {
        Some(named) if !named.is_empty() => Some(named.into()),
        _ => FOLDERS
            .iter()
            .find_map(|folder| library_in(Path::new(folder))),
    }
}

/// Returns the library in a folder, with or without a version in its name.
fn library_in(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let fits = |name: &String| NAMES.iter().any(|it| name.starts_with(it));
    let first = names.filter(fits).min()?;
    Some(folder.join(first))
}

/// Returns a small model with its weights inside.
fn warm_model() -> LoadedModel {
    LoadedModel {
        model: sample::model_subgraph().model.clone(),
        beside: Vec::new(),
    }
}

/// Returns why the file at `path` was not loaded.
fn load_error(path: &Path, error: LoadDynamicError) -> LoadError {
    let path = path.to_owned();
    match error {
        LoadDynamicError::Dlopen { error, .. } => LoadError::NotLoadable {
            reason: error.to_string(),
            path,
        },
        LoadDynamicError::MissingApi { .. } => LoadError::NotOnnxRuntime { path },
        LoadDynamicError::BadVersion { version_str, .. } => LoadError::Refused {
            reason: format!(
                "it is {version_str}, and 1.{} is needed",
                ort::MINOR_VERSION
            ),
            path,
        },
        error @ LoadDynamicError::InvalidVersionString => LoadError::Refused {
            reason: error.to_string(),
            path,
        },
    }
}

impl Library {
    /// Opens the library at `path`, or returns it if it is already open.
    ///
    /// # Errors
    /// [`LoadError`] if it cannot be opened, or another one is open.
    pub fn open(path: &Path) -> Result<Arc<Self>, LoadError> {
        let mut held = lock_state();
        if let LibraryState::Open(library) = &*held {
            if library.path == path {
                return Ok(library.clone());
            }
            return Err(LoadError::OtherOpen {
                open: library.path.clone(),
            });
        }
        // The system searches its folders for a name without a folder.
        if path.is_absolute() && !path.exists() {
            let path = path.to_owned();
            return Err(LoadError::Missing { path });
        }
        let refused = |reason: String| LoadError::Refused {
            path: path.to_owned(),
            reason,
        };
        let builder = ort::init_from(path).map_err(|error| load_error(path, error))?;
        let builder = builder.with_name("souk").with_telemetry(false);
        let environment = builder
            .build()
            .map_err(|error| refused(error.to_string()))?;
        environment.set_log_level(LogLevel::Fatal);
        let library = Arc::new(Self {
            path: path.to_owned(),
            environment,
            host: Provider::for_host(discover::describe_cpu().isa),
            providers: OnceLock::new(),
        });
        *held = LibraryState::Open(library.clone());
        Ok(library)
    }

    /// Makes [`Library::find_or_open`] use the library at `path`, or none, in place of the
    /// environment variable and the usual folders. Does not open it yet. You must call this before
    /// a library is open, unless it is the one at `path`.
    ///
    /// # Errors
    /// [`LoadError::OtherOpen`] if another library is open.
    pub fn set_path(path: Option<&Path>) -> Result<(), LoadError> {
        let mut held = lock_state();
        match &*held {
            LibraryState::Open(library) if Some(library.path()) == path => {}
            LibraryState::Open(library) => {
                let open = library.path.clone();
                return Err(LoadError::OtherOpen { open });
            }
            _ => *held = LibraryState::Chosen(path.map(Path::to_owned)),
        }
        Ok(())
    }

    /// Returns the open library, otherwise opens the chosen one, otherwise the first that it finds.
    /// Call this before the process gives up its access to the file system; the library stays
    /// open.
    ///
    /// # Errors
    /// [`LoadError`] if there is none, or it cannot be opened.
    pub fn find_or_open() -> Result<Arc<Self>, LoadError> {
        let path = match &*lock_state() {
            LibraryState::Open(library) => return Ok(library.clone()),
            LibraryState::Chosen(path) => path.clone(),
            LibraryState::Unset => library_path(),
        };
        Self::open(&path.ok_or(LoadError::NotFound)?)
    }

    /// Returns the library that this process has opened.
    #[must_use]
    pub fn already_open() -> Option<Arc<Self>> {
        match &*lock_state() {
            LibraryState::Open(library) => Some(library.clone()),
            LibraryState::Unset | LibraryState::Chosen(_) => None,
        }
    }

    /// Loads and drops a small model, so that the library reads the machine's properties now.
    pub fn warm_up(&self) {
        // If this fails, later models will fail too, and report it.
        let _ = self.open_model(warm_model(), &self.host, NonZeroUsize::MIN);
    }

    /// Returns the library's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the library's build description.
    #[must_use]
    pub fn build_info(&self) -> &'static str {
        ort::info()
    }

    /// Returns the provider of the host's CPU.
    #[must_use]
    pub fn host_provider(&self) -> &Provider {
        &self.host
    }

    /// Returns the execution providers that are compiled into the library, the CPU's last. Opens
    /// each provider that reaches several processors once per processor, and lists only those that
    /// succeed.
    #[must_use]
    pub fn providers(&self) -> &[Provider] {
        self.providers.get_or_init(|| {
            let built_in = provider::built_in(discover::describe_cpu().isa);
            let opens = |provider: &Provider| {
                let opened = || self.open_model(warm_model(), provider, NonZeroUsize::MIN);
                !provider.is_one_of_several() || opened().is_ok()
            };
            built_in.into_iter().filter(opens).collect()
        })
    }

    /// Finds a provider by the beginning of its title, otherwise by a part of it, in any case and
    /// with or without "execution provider". An empty name matches the first.
    #[must_use]
    pub fn find_provider(&self, name: &str) -> Option<&Provider> {
        let name = name.to_lowercase();
        let find = |fits: fn(&str, &str) -> bool| {
            self.providers().iter().find(|provider| {
                let title = provider.title().to_lowercase();
                let short = title.replace("executionprovider", "");
                fits(&title, &name) || fits(&short, &name)
            })
        };
        let begins = find(|title, name| title.starts_with(name));
        begins.or_else(|| find(|title, name| title.contains(name)))
    }

    /// Opens a session for a model on a provider. A provider for another processor than the host's
    /// CPU must run the whole model there, or refuses it.
    pub(super) fn open_model(
        &self,
        loaded: LoadedModel,
        provider: &Provider,
        threads: NonZeroUsize,
    ) -> Result<OpenSession, Refusal> {
        let builder = |log: Option<&PlacementLog>| self.session_builder(provider, threads, log);
        let opened = OpenSession::new(loaded, || builder(None));
        opened.map_err(|(loaded, said)| {
            if !refusal::is_cpu_fallback(&said) {
                return Refusal::Library(said);
            }
            let placements = PlacementLog::default();
            // Only a session that may leave nodes to the CPU reports which; this one exists for its
            // log.
            let _ = OpenSession::new(loaded, || builder(Some(&placements)));
            Refusal::FallsBackToCpu(placements.fallback_nodes())
        })
    }

    /// Returns the builder of a session on a provider. A session with a log may leave nodes to the
    /// CPU.
    fn session_builder(
        &self,
        provider: &Provider,
        threads: NonZeroUsize,
        log: Option<&PlacementLog>,
    ) -> Result<SessionBuilder, String> {
        let text = |error: ort::Error<SessionBuilder>| error.to_string();
        let builder = Session::builder(&self.environment).map_err(|error| error.to_string())?;
        let mut builder = builder.with_intra_threads(threads.get()).map_err(text)?;
        if let Some(placements) = log {
            builder = builder.with_logger(placements.new_logger()).map_err(text)?;
        }
        let level = log.map_or(LogLevel::Fatal, |_| LogLevel::Verbose);
        builder = builder.with_log_level(level).map_err(text)?;
        if !provider.is_cpu() && log.is_none() {
            builder = builder.with_disable_cpu_fallback().map_err(text)?;
        }
        if provider.is_host() && !rules::multiplies_bytes_exactly() {
            // Otherwise the library would turn products of dequantised values into products of
            // bytes.
            builder = builder.with_quant_qdq(false).map_err(text)?;
        }
        match provider.build_dispatch(threads) {
            Some(dispatch) => builder
                .with_execution_providers([dispatch.error_on_failure()])
                .map_err(text),
            None => Ok(builder),
        }
    }
}
