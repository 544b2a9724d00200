//! The library itself: found, opened, asked for its providers, told to load models.

use std::env;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ort::environment::Environment;
use ort::ep::{ExecutionProvider, ExecutionProviderDispatch};
use ort::logging::LogLevel;
use ort::session::Session;
use ort::session::builder::SessionBuilder;
use thiserror::Error;

use super::ENGINE;
use crate::processor::CompileError;
use crate::taxonomy::{FpgaFamily, GpuApi, Kind, NpuFamily};
use crate::{discover, warm};

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

/// A part of the library that reaches one kind of processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// What ONNX Runtime calls it.
    pub name: String,
    /// The kind of processor behind it.
    pub kind: Kind,
}

impl Provider {
    /// Whether it is OpenVINO's, which has rules of its own.
    pub(super) fn is_openvino(&self) -> bool {
        self.name == ort::ep::OpenVINO::NAME
    }
}

/// An opened library.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    environment: Environment,
    providers: Vec<Provider>,
}

/// Why a library was not opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LoadError {
    /// There is none.
    #[error("no ONNX Runtime library was found; {LIBRARY_VARIABLE} can name one")]
    NotFound,
    /// It is none, or of a version too old.
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

/// The one library this process has open.
fn held() -> MutexGuard<'static, Option<Arc<Library>>> {
    static OPEN: OnceLock<Mutex<Option<Arc<Library>>>> = OnceLock::new();
    let open = OPEN.get_or_init(Mutex::default);
    open.lock().unwrap_or_else(PoisonError::into_inner)
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

impl Library {
    /// Opens the library at `path`; opening the same one again gives the one that is open.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn open(path: &Path) -> Result<Arc<Self>, LoadError> {
        let mut open = held();
        if let Some(library) = &*open {
            if library.path == path {
                return Ok(library.clone());
            }
            return Err(LoadError::Another {
                open: library.path.clone(),
            });
        }
        let refused = |reason: String| LoadError::Refused {
            path: path.to_owned(),
            reason,
        };
        let builder = ort::init_from(path).map_err(|error| refused(error.to_string()))?;
        let builder = builder.with_name("souk").with_telemetry(false);
        let environment = builder
            .build()
            .map_err(|error| refused(error.to_string()))?;
        environment.set_log_level(LogLevel::Fatal);
        let library = Arc::new(Self {
            path: path.to_owned(),
            environment,
            providers: providers(),
        });
        *open = Some(library.clone());
        Ok(library)
    }

    /// The library that is open, else the one that is found. So a process that shuts itself off
    /// from the file system keeps the one it opened before.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn find() -> Result<Arc<Self>, LoadError> {
        if let Some(open) = Self::opened() {
            return Ok(open);
        }
        Self::open(&library_path().ok_or(LoadError::NotFound)?)
    }

    /// The library that this process has open.
    #[must_use]
    pub fn opened() -> Option<Arc<Self>> {
        held().clone()
    }

    /// Loads and drops a small model: what the library reads of the machine once is read then.
    pub fn warm(&self) {
        let Some(provider) = self.providers.last() else {
            return;
        };
        // What does not run here does not run later either, and is told then.
        let _ = self.session(&warm::subgraph().model, provider, NonZeroUsize::MIN);
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

    /// The providers it was built with, that of the CPU last.
    #[must_use]
    pub fn providers(&self) -> &[Provider] {
        &self.providers
    }

    /// A provider by a part of its name, whatever the case; the first there is for none.
    #[must_use]
    pub fn provider(&self, name: &str) -> Option<&Provider> {
        let name = name.to_lowercase();
        let mut providers = self.providers.iter();
        providers.find(|it| it.name.to_lowercase().contains(&name))
    }

    /// A model made ready on a provider.
    pub(super) fn session(
        &self,
        model: &[u8],
        provider: &Provider,
        threads: NonZeroUsize,
    ) -> Result<Session, CompileError> {
        let refused = |reason: String| CompileError::Engine {
            engine: ENGINE,
            reason,
        };
        let builder = || -> Result<SessionBuilder, String> {
            let text = |error: ort::Error<SessionBuilder>| error.to_string();
            let builder = Session::builder(&self.environment).map_err(|error| error.to_string())?;
            let builder = builder.with_intra_threads(threads.get()).map_err(text)?;
            let builder = builder.with_log_level(LogLevel::Fatal).map_err(text)?;
            match dispatch(&provider.name, threads) {
                Some(dispatch) => builder
                    .with_execution_providers([dispatch.error_on_failure()])
                    .map_err(text),
                None => Ok(builder),
            }
        };
        let mut builder = builder().map_err(refused)?;
        let session = builder.commit_from_memory(model);
        session.map_err(|error| refused(error.to_string()))
    }
}

/// How a provider is asked for; `None` for that of the CPU, which is always there.
fn dispatch(name: &str, threads: NonZeroUsize) -> Option<ExecutionProviderDispatch> {
    use ort::ep::{CANN, CUDA, CoreML, MIGraphX, OpenVINO, QNN, TensorRT, Vitis};
    Some(match name {
        OpenVINO::NAME => OpenVINO::default()
            .with_device_type("CPU")
            .with_num_threads(threads.get())
            .build(),
        QNN::NAME => QNN::default().build(),
        CoreML::NAME => CoreML::default().build(),
        CANN::NAME => CANN::default().build(),
        Vitis::NAME => Vitis::default().build(),
        MIGraphX::NAME => MIGraphX::default().build(),
        TensorRT::NAME => TensorRT::default().build(),
        CUDA::NAME => CUDA::default().build(),
        _ => return None,
    })
}

/// The providers of the open library, with the kinds of processor behind them.
fn providers() -> Vec<Provider> {
    use ort::ep::{CANN, CUDA, CoreML, MIGraphX, OpenVINO, QNN, TensorRT, Vitis};
    let here = Kind::Cpu {
        isa: discover::cpu().isa,
    };
    let npu = |family| Kind::Npu { family };
    let gpu = |api| Kind::Gpu { api };
    // The compute capability and the architecture show only when a model is loaded.
    let cuda = || gpu(GpuApi::Cuda { capability: (0, 0) });
    let rocm = gpu(GpuApi::Rocm { gfx: String::new() });
    let known = [
        (
            QNN::is_available(),
            QNN::NAME,
            npu(NpuFamily::QualcommHexagon),
        ),
        (
            CoreML::is_available(),
            CoreML::NAME,
            npu(NpuFamily::AppleNeuralEngine),
        ),
        (
            CANN::is_available(),
            CANN::NAME,
            npu(NpuFamily::HuaweiAscend),
        ),
        (
            Vitis::is_available(),
            Vitis::NAME,
            Kind::Fpga {
                family: FpgaFamily::AmdXilinx,
            },
        ),
        (MIGraphX::is_available(), MIGraphX::NAME, rocm),
        (TensorRT::is_available(), TensorRT::NAME, cuda()),
        (CUDA::is_available(), CUDA::NAME, cuda()),
        // It is told to use the CPU: an Intel NPU is reached by the same provider, on a machine
        // that has one.
        (OpenVINO::is_available(), OpenVINO::NAME, here.clone()),
        (Ok(true), "CPUExecutionProvider", here),
    ];
    let found = known
        .into_iter()
        .filter(|(there, _, _)| matches!(there, Ok(true)));
    found
        .map(|(_, name, kind)| Provider {
            name: name.to_owned(),
            kind,
        })
        .collect()
}
