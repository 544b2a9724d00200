//! Drivers are asked what they have in a process of their own: one that crashes or hangs ends that
//! process, and this one says so.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use souk_node::config::DeviceChoice;
use souk_node::devices::profile::Profile;
use souk_node::provider;

use crate::args::Probe;
use crate::failure::{Failure, Kind, Outcome};
use crate::show;
use crate::show::device::Live;

/// How long a driver may take to say what it has.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a device is watched to say how it stands.
const WATCHED: Duration = Duration::from_millis(500);

/// How often the process is looked at.
const PERIOD: Duration = Duration::from_millis(5);

/// A GPU, and whether it is only a program on the CPU.
#[derive(Serialize, Deserialize)]
pub struct Seen {
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
type Found<T> = Result<T, String>;

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
            let opened = provider::identify(&choice);
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
fn standing(choice: &DeviceChoice) -> Found<Standing> {
    let device = provider::open_to_look(choice).map_err(|error| error.to_string())?;
    let key = provider::identify(choice).map_err(|error| error.to_string())?;
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

/// Asks a process of its own.
pub fn ask<T: DeserializeOwned>(words: &[&str]) -> Found<T> {
    let answer = answer(words)?;
    serde_json::from_slice(&answer).map_err(|error| format!("the driver was not asked: {error}"))?
}

/// Ends with a failure if opening a device would end this process.
pub fn check(choice: &DeviceChoice) -> Result<(), Failure> {
    if !provider::has_driver(choice) {
        return Ok(());
    }
    let choice = serde_json::to_string(choice).expect("a choice always encodes");
    match answer(&["open", &choice]) {
        Ok(_) => Ok(()),
        Err(cause) => {
            let hint = "update or remove that driver, or sell another device";
            Err(Failure::new(Kind::State, cause, hint))
        }
    }
}

fn answer(words: &[&str]) -> Found<Vec<u8>> {
    let failed = |error: std::io::Error| format!("the driver was not asked: {error}");
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(["--output", "json", "device", "probe"]);
    // Drivers have much to say there, of which nothing is an error.
    command
        .args(words)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(failed)?;
    let stdout = child.stdout.take();
    let reader = thread::spawn(move || {
        let mut read = Vec::new();
        // What was not read is missing in the JSON, which is found below.
        let _ = stdout.map(|mut stdout| stdout.read_to_end(&mut read));
        read
    });
    let deadline = Instant::now() + PATIENCE;
    let ended = loop {
        match child.try_wait().map_err(failed)? {
            Some(ended) => break ended,
            None if Instant::now() < deadline => thread::sleep(PERIOD),
            None => {
                child.kill().and_then(|()| child.wait()).map_err(failed)?;
                return Err(format!("the driver did not answer within {PATIENCE:?}"));
            }
        }
    };
    let read = reader.join().unwrap_or_default();
    if ended.success() {
        return Ok(read);
    }
    Err(crashed(ended))
}

fn crashed(ended: ExitStatus) -> String {
    format!("the driver crashed when it was asked what it has ({ended})")
}

/// The GPUs that drivers offer.
#[cfg(feature = "wgpu")]
fn gpus() -> Found<Vec<Seen>> {
    let adapters = souk_node::devices::gpu::adapters();
    let seen = adapters.iter().map(|adapter| Seen {
        profile: adapter.profile(),
        is_software: adapter.is_software(),
    });
    Ok(seen.collect())
}

/// None: this build has no backend for them.
#[cfg(not(feature = "wgpu"))]
fn gpus() -> Found<Vec<Seen>> {
    Err("this build is without the feature `wgpu`".to_owned())
}

/// The providers of ONNX Runtime.
#[cfg(feature = "onnxruntime")]
fn runtime() -> Found<Vec<String>> {
    let library = souk_node::devices::onnxruntime::Library::find();
    let library = library.map_err(|error| error.to_string())?;
    let providers = library.providers().iter().map(|it| it.title());
    Ok(providers.collect())
}

/// None: this build does not look for it.
#[cfg(not(feature = "onnxruntime"))]
fn runtime() -> Found<Vec<String>> {
    Err("this build is without the feature `onnxruntime`".to_owned())
}

/// The devices of CUDA.
#[cfg(feature = "cuda")]
fn cuda() -> Found<Vec<Profile>> {
    use souk_node::devices::cuda::{CudaDevice, devices};
    let devices = devices().map_err(|error| error.to_string())?;
    Ok(devices.iter().map(CudaDevice::profile).collect())
}

/// None: this build does not look for them.
#[cfg(not(feature = "cuda"))]
fn cuda() -> Found<Vec<Profile>> {
    Err("this build is without the feature `cuda`".to_owned())
}
