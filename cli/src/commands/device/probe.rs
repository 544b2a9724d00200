//! Asks drivers for their devices in a separate process, which a faulty driver can crash without
//! harm to the command. Commands call it before they open a device.

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use souk_folder::config::DeviceChoice;
use souk_sandbox::device::LibraryReport;
use souk_sandbox::device::probe as node;
use souk_vocabulary::profile::Profile;

use super::super::node::LIBRARY_HINT;
use crate::args::Probe;
use crate::failure::{Failure, Kind, Outcome};
use crate::program::souk_path;
use crate::show;
use crate::show::device::DeviceFigures;

/// Time over which a probe measures a device.
const WATCHED: Duration = Duration::from_millis(500);

/// A GPU, and whether it is software on the CPU.
#[derive(Serialize, Deserialize)]
pub struct Adapter {
    pub profile: Profile,
    pub is_software: bool,
}

/// The state of an opened device.
#[derive(Serialize, Deserialize)]
pub struct ProbedDevice {
    /// The device's name with its driver.
    pub key: String,
    pub profile: Profile,
    pub live: DeviceFigures,
}

/// The output of a probe: its result, or why there is none.
type OpenDevice<T> = Result<T, String>;

/// Runs a probe in the process that was started for it.
pub fn run(probe: &Probe) -> Outcome {
    match probe {
        Probe::Gpus => show::print_json(&list_gpus()),
        Probe::Cuda => show::print_json(&list_cuda_devices()),
        Probe::Onnxruntime => show::print_json(&describe_runtime()),
        Probe::Show { choice } => show::print_json(&probe_device(&read(choice)?)),
        Probe::Open { choice } => {
            let choice = read(choice)?;
            // The process that opens the device next reports its errors; here the driver may only
            // crash.
            let opened = souk_sandbox::device::identify_device(&choice);
            show::print_json(&opened.map_err(|error| error.to_string()));
        }
    }
    Ok(())
}

fn read(choice: &str) -> Result<DeviceChoice, Failure> {
    serde_json::from_str(choice)
        .map_err(|error| Failure::new(Kind::Input, error, "souk calls this by itself"))
}

/// Describes a device and its state over [`WATCHED`].
fn probe_device(choice: &DeviceChoice) -> OpenDevice<ProbedDevice> {
    let device = souk_sandbox::device::open_to_look(choice).map_err(|error| error.to_string())?;
    let key = souk_sandbox::device::identify_device(choice).map_err(|error| error.to_string())?;
    device.utilisation();
    let (begun, before) = (Instant::now(), device.meter_joules());
    thread::sleep(WATCHED);
    let joules = before.zip(device.meter_joules());
    let seconds = begun.elapsed().as_secs_f64();
    let profile = device.profile().clone();
    let is_known = profile.memory.bytes > 0;
    Ok(ProbedDevice {
        key,
        live: DeviceFigures {
            utilisation: device.utilisation(),
            memory_free_bytes: is_known.then(|| device.memory_free_bytes()),
            watts: joules.map(|(before, after)| (after - before) / seconds),
        },
        profile,
    })
}

/// Runs a probe in a separate process with this library of ONNX Runtime, or the default one.
pub fn run_probe<T: DeserializeOwned>(words: &[&str], library: Option<&Path>) -> OpenDevice<T> {
    let program = souk_path().map_err(|failure| failure.cause)?;
    node::run_probe(&program, words, library).map_err(|error| error.to_string())
}

/// Fails if opening a device would crash the process, so you should call it before you open one;
/// `library` names a library of ONNX Runtime.
pub fn check_device_driver(choice: &DeviceChoice, library: Option<&Path>) -> Result<(), Failure> {
    if !souk_sandbox::device::has_driver(choice) {
        return Ok(());
    }
    let choice = serde_json::to_string(choice).expect("a choice always encodes");
    let program =
        souk_path().map_err(|failure| node::ProbeError::Start(io::Error::other(failure.cause)));
    match program.and_then(|program| node::run_probe_raw(&program, &["open", &choice], library)) {
        Ok(_) => Ok(()),
        Err(cause) => {
            let hint = "update or remove that driver, or sell another device";
            Err(Failure::new(Kind::State, cause, hint))
        }
    }
}

/// Asks a separate process for the contents of a library.
pub fn try_library(library: &Path) -> OpenDevice<LibraryReport> {
    let program = souk_path().map_err(|failure| failure.cause)?;
    souk_sandbox::device::onnxruntime_library::try_out(&program, library)
}

/// Makes this process use the named library of ONNX Runtime, if any; fails if it is not usable.
pub fn check_library(library: Option<&Path>) -> Result<(), Failure> {
    let Some(library) = library else {
        return Ok(());
    };
    let chosen = try_library(library).and_then(|_| {
        let chosen = souk_sandbox::device::choose_library(Some(library));
        chosen.map_err(|error| error.to_string())
    });
    chosen.map_err(|cause| Failure::new(Kind::Input, cause, LIBRARY_HINT))
}

/// Returns the GPUs of all drivers.
#[cfg(feature = "wgpu")]
fn list_gpus() -> OpenDevice<Vec<Adapter>> {
    let adapters = souk_gpu::list_adapters();
    let seen = adapters.iter().map(|adapter| Adapter {
        profile: adapter.profile(),
        is_software: adapter.is_software(),
    });
    Ok(seen.collect())
}

/// Returns an error, because this build has no backend for GPUs.
#[cfg(not(feature = "wgpu"))]
fn list_gpus() -> OpenDevice<Vec<Adapter>> {
    Err("this build is without the feature `wgpu`".to_owned())
}

/// Describes the library of ONNX Runtime.
fn describe_runtime() -> OpenDevice<LibraryReport> {
    souk_sandbox::device::reach_library().map_err(|error| error.to_string())
}

/// Returns the CUDA devices.
#[cfg(feature = "cuda")]
fn list_cuda_devices() -> OpenDevice<Vec<Profile>> {
    use souk_cuda::{CudaDevice, list_devices};
    let devices = list_devices().map_err(|error| error.to_string())?;
    Ok(devices.iter().map(CudaDevice::profile).collect())
}

/// Returns an error, because this build has no backend for CUDA.
#[cfg(not(feature = "cuda"))]
fn list_cuda_devices() -> OpenDevice<Vec<Profile>> {
    Err("this build is without the feature `cuda`".to_owned())
}
