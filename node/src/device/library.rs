//! Processors that a library of ONNX Runtime reaches, and the CPU with one beside its own engines.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use souk_cpu::Cpu;
#[cfg(feature = "onnxruntime")]
use souk_registry::contest::EngineContest;
use souk_vocabulary::processor::Processor;
use souk_vocabulary::profile::Profile;

use super::{DeviceError, flatten};
use crate::folder::config::DeviceChoice;

/// What a library says of itself in the process in which it is tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryReport {
    /// Where it lies.
    pub path: PathBuf,
    /// The providers it has.
    pub providers: Vec<String>,
    /// Threads that run since it is open.
    pub threads: usize,
}

/// Opens the first processor of ONNX Runtime whose provider has `name` in its name, and measures it
/// unless it is known.
#[cfg(feature = "onnxruntime")]
pub(super) fn runtime(
    name: &str,
    threads: NonZeroUsize,
    known: Option<&Profile>,
) -> Result<Arc<dyn Processor>, DeviceError> {
    use souk_onnxruntime::{Library, OnnxRuntime};
    let library = Library::find()?;
    let provider = provider_called(&library, name)?.clone();
    Ok(Arc::new(match known {
        Some(known) => OnnxRuntime::new(library, provider, known.clone(), threads),
        None => souk_registry::runtimes::measured(library, provider, threads),
    }))
}

/// What the processor of a provider is and which library reaches it.
#[cfg(feature = "onnxruntime")]
pub(super) fn runtime_key(name: &str) -> Result<String, DeviceError> {
    let library = souk_onnxruntime::Library::find()?;
    let profile = provider_called(&library, name)?.profile(library.build());
    Ok(format!("{}, {}", profile.model, profile.source))
}

#[cfg(feature = "onnxruntime")]
fn provider_called<'a>(
    library: &'a souk_onnxruntime::Library,
    name: &str,
) -> Result<&'a souk_onnxruntime::Provider, DeviceError> {
    library
        .provider(name)
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
pub(super) fn runtime(
    _name: &str,
    _threads: NonZeroUsize,
    _known: Option<&Profile>,
) -> Result<Arc<dyn Processor>, DeviceError> {
    Err(DeviceError::NoRuntime)
}

/// The CPU with a library of ONNX Runtime beside its own engines, if one is found.
#[cfg(feature = "onnxruntime")]
pub(super) fn beside(cpu: Cpu, threads: NonZeroUsize) -> Arc<dyn Processor> {
    match souk_onnxruntime::Library::find() {
        Ok(library) => Arc::new(EngineContest::new(cpu, library, threads)),
        Err(souk_onnxruntime::LoadError::NotFound) => Arc::new(cpu),
        Err(error) => {
            tracing::warn!("{error}; the CPU runs without it");
            Arc::new(cpu)
        }
    }
}

/// The CPU alone: this build knows no other engine.
#[cfg(not(feature = "onnxruntime"))]
pub(super) fn beside(cpu: Cpu, _threads: NonZeroUsize) -> Arc<dyn Processor> {
    Arc::new(cpu)
}

/// The CPU with the library that this process opened while it had files.
#[cfg(all(feature = "onnxruntime", target_os = "linux"))]
pub(super) fn opened_beside(cpu: Cpu, threads: NonZeroUsize) -> Arc<dyn Processor> {
    match souk_onnxruntime::Library::opened() {
        Some(library) => Arc::new(EngineContest::new(cpu, library, threads)),
        None => Arc::new(cpu),
    }
}

#[cfg(all(not(feature = "onnxruntime"), target_os = "linux"))]
pub(super) fn opened_beside(cpu: Cpu, _threads: NonZeroUsize) -> Arc<dyn Processor> {
    Arc::new(cpu)
}

/// Whether a device of these is reached by a library of ONNX Runtime alone.
pub fn has_runtime(choice: &DeviceChoice) -> bool {
    any(choice, |it| matches!(it, DeviceChoice::Onnxruntime { .. }))
}

/// Whether a CPU is among these devices, which runs on a library where there is one.
pub fn has_cpu(choice: &DeviceChoice) -> bool {
    any(choice, |it| matches!(it, DeviceChoice::Cpu { .. }))
}

fn any(choice: &DeviceChoice, is: impl Fn(&DeviceChoice) -> bool) -> bool {
    let mut each = Vec::new();
    flatten(choice, &mut each);
    each.into_iter().any(is)
}

/// The library that the environment names, else the one that lies where libraries do.
pub fn library_path() -> Option<PathBuf> {
    #[cfg(feature = "onnxruntime")]
    return souk_onnxruntime::library_path();
    #[cfg(not(feature = "onnxruntime"))]
    None
}

/// Has this process use the library at `path` or none, whatever is found.
#[cfg(feature = "onnxruntime")]
pub fn choose_library(path: Option<&Path>) -> Result<(), DeviceError> {
    Ok(souk_onnxruntime::Library::choose(path)?)
}

/// This build uses none.
#[cfg(not(feature = "onnxruntime"))]
pub fn choose_library(path: Option<&Path>) -> Result<(), DeviceError> {
    path.map_or(Ok(()), |_| Err(DeviceError::NoRuntime))
}

/// Opens the library this process uses, has it run something once, and says what it has.
#[cfg(feature = "onnxruntime")]
pub fn reach_library() -> Result<LibraryReport, DeviceError> {
    let before = threads_here();
    let library = souk_onnxruntime::Library::find()?;
    library.warm();
    let threads = threads_here().saturating_sub(before);
    Ok(LibraryReport {
        path: library.path().to_owned(),
        providers: library.providers().iter().map(|it| it.title()).collect(),
        threads,
    })
}

/// This build opens none.
#[cfg(not(feature = "onnxruntime"))]
pub fn reach_library() -> Result<LibraryReport, DeviceError> {
    Err(DeviceError::NoRuntime)
}

/// Threads of this process, where the system tells.
#[cfg(feature = "onnxruntime")]
fn threads_here() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Opens the library that a CPU among these devices may run on, and has it run something once: all
/// that it wants of the file system it wants now. What does not open is left out.
#[cfg(all(feature = "onnxruntime", target_os = "linux"))]
pub fn open_libraries(choice: &DeviceChoice) {
    if !has_cpu(choice) {
        return;
    }
    match souk_onnxruntime::Library::find() {
        Ok(library) => library.warm(),
        Err(souk_onnxruntime::LoadError::NotFound) => {}
        Err(error) => eprintln!("{error}; the CPU runs without it"),
    }
}

/// This build has none to open.
#[cfg(all(not(feature = "onnxruntime"), target_os = "linux"))]
pub fn open_libraries(_choice: &DeviceChoice) {}
