//! The library itself: found, opened, asked for its providers, told to load models.

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

use super::loaded::{LoadedModel, OpenSession};
use super::provider::{self, Provider};
use super::refusal::{self, Placements, Refusal};
use super::rules;

/// The environment variable that names the library.
pub const LIBRARY_VARIABLE: &str = "SOUK_ONNXRUNTIME";

/// Where Linux and macOS keep libraries, besides what the variable names.
const FOLDERS: &[&str] = &[
    "/usr/local/lib",
    "/usr/lib",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/opt/onnxruntime/lib",
    "/opt/homebrew/lib",
];

/// Beginnings of the library's name on the systems there are.
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
    /// Found when they are first asked for: a driver may take its time.
    providers: OnceLock<Vec<Provider>>,
}

/// Why a library was not opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LoadError {
    /// There is none.
    #[error("no ONNX Runtime library was found; {LIBRARY_VARIABLE} can name one")]
    NotFound,
    /// Nothing is where it should lie.
    #[error("{} does not exist", path.display())]
    Missing {
        /// Where it should lie.
        path: PathBuf,
    },
    /// This system cannot load it.
    #[error("{} is no library that this system loads: {reason}", path.display())]
    NoLibrary {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// It is a library of something else.
    #[error("{} is a library, but not ONNX Runtime's: it has no OrtGetApiBase", path.display())]
    Stranger {
        /// The library.
        path: PathBuf,
    },
    /// It is too old, or does not start.
    #[error("{} is no usable ONNX Runtime library: {reason}", path.display())]
    Refused {
        /// The library.
        path: PathBuf,
        /// What it or the system said.
        reason: String,
    },
    /// Another one is open already.
    #[error("{} is open already, and a process has room for one", open.display())]
    Another {
        /// The one that is open.
        open: PathBuf,
    },
}

/// What this process has of the one library it has room for.
#[derive(Debug, Default)]
enum LibraryState {
    /// Nobody asked yet: it is looked for.
    #[default]
    Unsought,
    /// Whoever looks for it gets this one, or none.
    Chosen(Option<PathBuf>),
    /// It is open.
    Open(Arc<Library>),
}

fn held() -> MutexGuard<'static, LibraryState> {
    static HELD: OnceLock<Mutex<LibraryState>> = OnceLock::new();
    let held = HELD.get_or_init(Mutex::default);
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The library to use: what the variable names, else the first of the usual places.
#[must_use]
pub fn library_path() -> Option<PathBuf> {
    match env::var_os(LIBRARY_VARIABLE) {
        Some(named) if !named.is_empty() => Some(named.into()),
        _ => FOLDERS
            .iter()
            .find_map(|folder| library_in(Path::new(folder))),
    }
}

/// The library in a folder, by its plain name or with a version behind it.
fn library_in(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let fits = |name: &String| NAMES.iter().any(|it| name.starts_with(it));
    let first = names.filter(fits).min()?;
    Some(folder.join(first))
}

/// A small model with its weights within it.
fn warm_model() -> LoadedModel {
    LoadedModel {
        model: sample::subgraph().model.clone(),
        beside: Vec::new(),
    }
}

/// Why the file at `path` was not loaded.
fn unloaded(path: &Path, error: LoadDynamicError) -> LoadError {
    let path = path.to_owned();
    match error {
        LoadDynamicError::Dlopen { error, .. } => LoadError::NoLibrary {
            reason: error.to_string(),
            path,
        },
        LoadDynamicError::MissingApi { .. } => LoadError::Stranger { path },
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
    /// Opens the library at `path`; opening the same one again gives the one that is open.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn open(path: &Path) -> Result<Arc<Self>, LoadError> {
        let mut held = held();
        if let LibraryState::Open(library) = &*held {
            if library.path == path {
                return Ok(library.clone());
            }
            return Err(LoadError::Another {
                open: library.path.clone(),
            });
        }
        // A name without a folder is looked for by the system.
        if path.is_absolute() && !path.exists() {
            let path = path.to_owned();
            return Err(LoadError::Missing { path });
        }
        let refused = |reason: String| LoadError::Refused {
            path: path.to_owned(),
            reason,
        };
        let builder = ort::init_from(path).map_err(|error| unloaded(path, error))?;
        let builder = builder.with_name("souk").with_telemetry(false);
        let environment = builder
            .build()
            .map_err(|error| refused(error.to_string()))?;
        environment.set_log_level(LogLevel::Fatal);
        let library = Arc::new(Self {
            path: path.to_owned(),
            environment,
            host: Provider::host(discover::cpu().isa),
            providers: OnceLock::new(),
        });
        *held = LibraryState::Open(library.clone());
        Ok(library)
    }

    /// Has [`Library::find`] give the library at `path` or none, whatever the environment says and
    /// wherever another lies. Nothing is opened yet.
    ///
    /// # Errors
    /// [`LoadError::Another`].
    pub fn choose(path: Option<&Path>) -> Result<(), LoadError> {
        let mut held = held();
        match &*held {
            LibraryState::Open(library) if Some(library.path()) == path => {}
            LibraryState::Open(library) => {
                let open = library.path.clone();
                return Err(LoadError::Another { open });
            }
            _ => *held = LibraryState::Chosen(path.map(Path::to_owned)),
        }
        Ok(())
    }

    /// The library that is open, else the one that was chosen, else the one that is found. So a
    /// process that shuts itself off from the file system keeps the one it opened before.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn find() -> Result<Arc<Self>, LoadError> {
        let path = match &*held() {
            LibraryState::Open(library) => return Ok(library.clone()),
            LibraryState::Chosen(path) => path.clone(),
            LibraryState::Unsought => library_path(),
        };
        Self::open(&path.ok_or(LoadError::NotFound)?)
    }

    /// The library that this process has open.
    #[must_use]
    pub fn opened() -> Option<Arc<Self>> {
        match &*held() {
            LibraryState::Open(library) => Some(library.clone()),
            LibraryState::Unsought | LibraryState::Chosen(_) => None,
        }
    }

    /// Loads and drops a small model: what the library reads of the machine once is read then.
    pub fn warm(&self) {
        // What does not run here does not run later either, and is told then.
        let _ = self.open_model(warm_model(), &self.host, NonZeroUsize::MIN);
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it was built from.
    #[must_use]
    pub fn build(&self) -> &'static str {
        ort::info()
    }

    /// The provider of the host's CPU.
    #[must_use]
    pub fn host(&self) -> &Provider {
        &self.host
    }

    /// The providers it was built with, that of the host's CPU last. Of those that reach several
    /// processors only what opens is listed: each is tried once.
    #[must_use]
    pub fn providers(&self) -> &[Provider] {
        self.providers.get_or_init(|| {
            let built_in = provider::built_in(discover::cpu().isa);
            let opens = |provider: &Provider| {
                let opened = || self.open_model(warm_model(), provider, NonZeroUsize::MIN);
                !provider.is_one_of_several() || opened().is_ok()
            };
            built_in.into_iter().filter(opens).collect()
        })
    }

    /// A provider by the beginning of its title, else by a part of it, whatever the case and with
    /// or without the words "execution provider"; the first there is for none.
    #[must_use]
    pub fn provider(&self, name: &str) -> Option<&Provider> {
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

    /// A model made ready on a provider. One that reaches another processor than the host's CPU
    /// computes all of it there, or refuses it.
    pub(super) fn open_model(
        &self,
        loaded: LoadedModel,
        provider: &Provider,
        threads: NonZeroUsize,
    ) -> Result<OpenSession, Refusal> {
        let builder = |log: Option<&Placements>| self.builder(provider, threads, log);
        let opened = OpenSession::new(loaded, || builder(None));
        opened.map_err(|(loaded, said)| {
            if !refusal::is_left(&said) {
                return Refusal::Said(said);
            }
            let placements = Placements::default();
            // Only a session that may leave nodes to the CPU says which; it is for its log alone.
            let _ = OpenSession::new(loaded, || builder(Some(&placements)));
            Refusal::Left(placements.left())
        })
    }

    /// What a session on a provider begins with. One whose log is read may leave nodes to the CPU.
    fn builder(
        &self,
        provider: &Provider,
        threads: NonZeroUsize,
        log: Option<&Placements>,
    ) -> Result<SessionBuilder, String> {
        let text = |error: ort::Error<SessionBuilder>| error.to_string();
        let builder = Session::builder(&self.environment).map_err(|error| error.to_string())?;
        let mut builder = builder.with_intra_threads(threads.get()).map_err(text)?;
        if let Some(placements) = log {
            builder = builder.with_logger(placements.logger()).map_err(text)?;
        }
        let level = log.map_or(LogLevel::Fatal, |_| LogLevel::Verbose);
        builder = builder.with_log_level(level).map_err(text)?;
        if !provider.is_cpu() && log.is_none() {
            builder = builder.with_disable_cpu_fallback().map_err(text)?;
        }
        if provider.is_host() && !rules::bytes_are_exact() {
            // Else products of what was dequantised become products of bytes.
            builder = builder.with_quant_qdq(false).map_err(text)?;
        }
        match provider.dispatch(threads) {
            Some(dispatch) => builder
                .with_execution_providers([dispatch.error_on_failure()])
                .map_err(text),
            None => Ok(builder),
        }
    }
}
