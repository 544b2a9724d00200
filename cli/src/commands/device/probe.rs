//! Drivers are asked what they have in a process of their own: what that process finds out.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use souk_node::device::LibraryReport;
use souk_node::device::probe as node;
use souk_node::folder::config::DeviceChoice;
use souk_vocabulary::profile::Profile;

use super::super::node::LIBRARY_HINT;
use crate::args::Probe;
use crate::failure::{Failure, Kind, Outcome};
use crate::show;
use crate::show::device::Live;

/// How long a device is watched to say how it stands.
const WATCHED: Duration = Duration::from_millis(500);

/// A GPU, and whether it is only a program on the CPU.
#[derive(Serialize, Deserialize)]
pub struct Adapter {
    pub profile: Profile,
    pub is_software: bool,
}

/// A device of this machine, opened.
#[derive(Serialize, Deserialize)]
pub struct Standing {
    /// What it is called with its driver.
    pub key: String,
    pub profile: Profile,
    pub live: Live,
}

/// What a probe prints: what it found, or why there is nothing.
type OpenDevice<T> = Result<T, String>;

/// Carries out a probe, in the process that was begun for it.
pub fn run(probe: &Probe) -> Outcome {
    match probe {
        Probe::Gpus => show::json(&gpus()),
        Probe::Cuda => show::json(&cuda()),
        Probe::Onnxruntime => show::json(&runtime()),
        Probe::Show { choice } => show::json(&standing(&read(choice)?)),
        Probe::Open { choice } => {
            let choice = read(choice)?;
            // What it says is told by whoever opens it next; here it may only end this process.
            let opened = souk_node::device::identify(&choice);
            show::json(&opened.map_err(|error| error.to_string()));
        }
    }
    Ok(())
}

fn read(choice: &str) -> Result<DeviceChoice, Failure> {
    serde_json::from_str(choice)
        .map_err(|error| Failure::new(Kind::Input, error, "souk calls this by itself"))
}

/// What a device is, and how it stands over [`WATCHED`].
fn standing(choice: &DeviceChoice) -> OpenDevice<Standing> {
    let device = souk_node::device::open_to_look(choice).map_err(|error| error.to_string())?;
    let key = souk_node::device::identify(choice).map_err(|error| error.to_string())?;
    device.utilisation();
    let (begun, before) = (Instant::now(), device.meter_joules());
    thread::sleep(WATCHED);
    let joules = before.zip(device.meter_joules());
    let seconds = begun.elapsed().as_secs_f64();
    let profile = device.profile().clone();
    let is_known = profile.memory.bytes > 0;
    Ok(Standing {
        key,
        live: Live {
            utilisation: device.utilisation(),
            memory_free_bytes: is_known.then(|| device.memory_free_bytes()),
            watts: joules.map(|(before, after)| (after - before) / seconds),
        },
        profile,
    })
}

/// Asks a process of its own, which uses this library of ONNX Runtime or the one that is found.
pub fn ask<T: DeserializeOwned>(words: &[&str], library: Option<&Path>) -> OpenDevice<T> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    node::ask(&program, words, library).map_err(|error| error.to_string())
}

/// Ends with a failure if opening a device would end this process; a library of ONNX Runtime may be
/// named.
pub fn check(choice: &DeviceChoice, library: Option<&Path>) -> Result<(), Failure> {
    if !souk_node::device::has_driver(choice) {
        return Ok(());
    }
    let choice = serde_json::to_string(choice).expect("a choice always encodes");
    let program = std::env::current_exe().map_err(node::ProbeError::Start);
    match program.and_then(|program| node::answer(&program, &["open", &choice], library)) {
        Ok(_) => Ok(()),
        Err(cause) => {
            let hint = "update or remove that driver, or sell another device";
            Err(Failure::new(Kind::State, cause, hint))
        }
    }
}

/// Asks a process of its own what a library has.
pub fn try_library(library: &Path) -> OpenDevice<LibraryReport> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    souk_node::device::linked::try_out(&program, library)
}

/// Has this process use the library of ONNX Runtime that is named, if one is; ends with a failure
/// if it is not usable.
pub fn check_library(library: Option<&Path>) -> Result<(), Failure> {
    let Some(library) = library else {
        return Ok(());
    };
    let chosen = try_library(library).and_then(|_| {
        let chosen = souk_node::device::choose_library(Some(library));
        chosen.map_err(|error| error.to_string())
    });
    chosen.map_err(|cause| Failure::new(Kind::Input, cause, LIBRARY_HINT))
}

/// The GPUs that drivers offer.
#[cfg(feature = "wgpu")]
fn gpus() -> OpenDevice<Vec<Adapter>> {
    let adapters = souk_gpu::adapters();
    let seen = adapters.iter().map(|adapter| Adapter {
        profile: adapter.profile(),
        is_software: adapter.is_software(),
    });
    Ok(seen.collect())
}

/// None: this build has no backend for them.
#[cfg(not(feature = "wgpu"))]
fn gpus() -> OpenDevice<Vec<Adapter>> {
    Err("this build is without the feature `wgpu`".to_owned())
}

/// The library of ONNX Runtime.
fn runtime() -> OpenDevice<LibraryReport> {
    souk_node::device::reach_library().map_err(|error| error.to_string())
}

/// The devices of CUDA.
#[cfg(feature = "cuda")]
fn cuda() -> OpenDevice<Vec<Profile>> {
    use souk_cuda::{CudaDevice, devices};
    let devices = devices().map_err(|error| error.to_string())?;
    Ok(devices.iter().map(CudaDevice::profile).collect())
}

/// None: this build does not look for them.
#[cfg(not(feature = "cuda"))]
fn cuda() -> OpenDevice<Vec<Profile>> {
    Err("this build is without the feature `cuda`".to_owned())
}
