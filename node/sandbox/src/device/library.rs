//! Opens processors that run through an ONNX Runtime library, and adds such a library to the CPU's
//! own engines. Without the feature `onnxruntime`, the same functions refuse, or use the CPU alone.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use souk_cpu::Cpu;
use souk_folder::config::DeviceChoice;
#[cfg(feature = "onnxruntime")]
use souk_registry::contest::EngineContest;
use souk_vocabulary::processor::Processor;
use souk_vocabulary::profile::Profile;

use super::{DeviceError, flatten_choice};

/// A library's description, from the process that tries it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryReport {
    /// The path of the library.
    pub path: PathBuf,
    /// The execution providers of the library.
    pub providers: Vec<String>,
    /// How many threads opening the library started.
    pub threads: usize,
}

/// Opens the first processor of ONNX Runtime whose provider's name contains `name`, and measures it
/// unless it is known.
#[cfg(feature = "onnxruntime")]
pub(super) fn open_runtime(
    name: &str,
    threads: NonZeroUsize,
    known: Option<&Profile>,
) -> Result<Arc<dyn Processor>, DeviceError> {
    use souk_onnxruntime::{Library, OnnxRuntime};
    let library = Library::find_or_open()?;
    let provider = provider_called(&library, name)?.clone();
    Ok(Arc::new(match known {
        Some(known) => OnnxRuntime::new(library, provider, known.clone(), threads),
        None => souk_registry::runtimes::open_measured(library, provider, threads),
    }))
}

/// Returns the identity of a provider's processor and of the library behind it.
#[cfg(feature = "onnxruntime")]
pub(super) fn runtime_key(name: &str) -> Result<String, DeviceError> {
    let library = souk_onnxruntime::Library::find_or_open()?;
    let profile = provider_called(&library, name)?.unmeasured_profile(library.build_info());
    Ok(format!("{}, {}", profile.model, profile.source))
}

#[cfg(feature = "onnxruntime")]
fn provider_called<'a>(
    library: &'a souk_onnxruntime::Library,
    name: &str,
) -> Result<&'a souk_onnxruntime::Provider, DeviceError> {
    library
        .find_provider(name)
        .ok_or_else(|| DeviceError::NoProvider {
            name: name.to_owned(),
            known: library.providers().iter().map(|it| it.title()).collect(),
        })
}

#[cfg(not(feature = "onnxruntime"))]
pub(super) fn runtime_key(_name: &str) -> Result<String, DeviceError> {
    Err(DeviceError::NoRuntime)
}

#[cfg(not(feature = "onnxruntime"))]
pub(super) fn open_runtime(
    _name: &str,
    _threads: NonZeroUsize,
    _known: Option<&Profile>,
) -> Result<Arc<dyn Processor>, DeviceError> {
    Err(DeviceError::NoRuntime)
}

/// Returns the CPU, with an ONNX Runtime library if souk finds one.
#[cfg(feature = "onnxruntime")]
pub(super) fn cpu_with_library(cpu: Cpu, threads: NonZeroUsize) -> Arc<dyn Processor> {
    match souk_onnxruntime::Library::find_or_open() {
        Ok(library) => Arc::new(EngineContest::new(cpu, library, threads)),
        Err(souk_onnxruntime::LoadError::NotFound) => Arc::new(cpu),
        Err(error) => {
            tracing::warn!("{error}; the CPU runs without it");
            Arc::new(cpu)
        }
    }
}

/// Returns the CPU alone, because this build has no other engine.
#[cfg(not(feature = "onnxruntime"))]
pub(super) fn cpu_with_library(cpu: Cpu, _threads: NonZeroUsize) -> Arc<dyn Processor> {
    Arc::new(cpu)
}

/// Returns the CPU with the library that this process opened while it had access to files.
#[cfg(all(feature = "onnxruntime", target_os = "linux"))]
pub(super) fn opened_beside(cpu: Cpu, threads: NonZeroUsize) -> Arc<dyn Processor> {
    match souk_onnxruntime::Library::already_open() {
        Some(library) => Arc::new(EngineContest::new(cpu, library, threads)),
        None => Arc::new(cpu),
    }
}

#[cfg(all(not(feature = "onnxruntime"), target_os = "linux"))]
pub(super) fn opened_beside(cpu: Cpu, _threads: NonZeroUsize) -> Arc<dyn Processor> {
    Arc::new(cpu)
}

/// Returns whether one of these devices is available through ONNX Runtime only.
pub fn has_runtime(choice: &DeviceChoice) -> bool {
    any_device(choice, |it| matches!(it, DeviceChoice::Onnxruntime { .. }))
}

/// Returns whether a CPU is among these devices, which can use a library if there is one.
pub fn has_cpu(choice: &DeviceChoice) -> bool {
    any_device(choice, |it| matches!(it, DeviceChoice::Cpu { .. }))
}

fn any_device(choice: &DeviceChoice, is: impl Fn(&DeviceChoice) -> bool) -> bool {
    let mut each = Vec::new();
    flatten_choice(choice, &mut each);
    each.into_iter().any(is)
}

/// Returns the library that the environment names, or else the one in the usual places.
pub fn library_path() -> Option<PathBuf> {
    #[cfg(feature = "onnxruntime")]
    return souk_onnxruntime::library_path();
    #[cfg(not(feature = "onnxruntime"))]
    None
}

/// Makes this process use the library at `path`, or none. You must call it before another one
/// opens.
#[cfg(feature = "onnxruntime")]
pub fn choose_library(path: Option<&Path>) -> Result<(), DeviceError> {
    Ok(souk_onnxruntime::Library::set_path(path)?)
}

/// Fails for any path, because this build uses no library.
#[cfg(not(feature = "onnxruntime"))]
pub fn choose_library(path: Option<&Path>) -> Result<(), DeviceError> {
    path.map_or(Ok(()), |_| Err(DeviceError::NoRuntime))
}

/// Opens the library that this process uses, runs a model once, and returns what the library has.
#[cfg(feature = "onnxruntime")]
pub fn reach_library() -> Result<LibraryReport, DeviceError> {
    let before = threads_here();
    let library = souk_onnxruntime::Library::find_or_open()?;
    library.warm_up();
    let threads = threads_here().saturating_sub(before);
    Ok(LibraryReport {
        path: library.path().to_owned(),
        providers: library.providers().iter().map(|it| it.title()).collect(),
        threads,
    })
}

/// Fails, because this build opens no library.
#[cfg(not(feature = "onnxruntime"))]
pub fn reach_library() -> Result<LibraryReport, DeviceError> {
    Err(DeviceError::NoRuntime)
}

/// Returns how many threads this process has, on systems that show it.
#[cfg(feature = "onnxruntime")]
fn threads_here() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Opens the library that a CPU among these devices can use, and runs a model once, so that it
/// needs no files later. Continues without a library that does not open. A sandbox must call this
/// before its walls stand.
#[cfg(all(feature = "onnxruntime", target_os = "linux"))]
pub fn open_libraries(choice: &DeviceChoice) {
    if !has_cpu(choice) {
        return;
    }
    match souk_onnxruntime::Library::find_or_open() {
        Ok(library) => library.warm_up(),
        Err(souk_onnxruntime::LoadError::NotFound) => {}
        Err(error) => eprintln!("{error}; the CPU runs without it"),
    }
}

/// Does nothing, because this build has no library to open.
#[cfg(all(not(feature = "onnxruntime"), target_os = "linux"))]
pub fn open_libraries(_choice: &DeviceChoice) {}
