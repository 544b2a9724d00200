//! `souk device …`: this machine's processors, and those souk knows by name.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use souk_node::config::{DeviceChoice, KEY_FILE};
use souk_node::devices::processor::Processor;
use souk_node::devices::profile::Profile;
use souk_node::devices::{catalogue, discover};
use souk_node::key::NodeKey;
use souk_node::provider::{self, DeviceError};

use super::provider::cuda_ordinal;
use crate::args::{Backend, Device, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::show;

/// Runs a command on processors.
pub fn run(folder: &Path, output: Output, command: &Device) -> Outcome {
    match command {
        Device::List => list(output),
        Device::Show { name } => show_one(output, name)?,
        Device::Bench {
            backend,
            device,
            threads,
            quick,
        } => bench(folder, output, &choice(*backend, device, *threads)?, *quick)?,
    }
    Ok(())
}

fn list(output: Output) {
    let cpu = discover::cpu();
    match output {
        Output::Json => {
            let gpus: Vec<Profile> = gpus().into_iter().map(|(profile, _)| profile).collect();
            let all = catalogue::all();
            let (cuda, absent) = match cuda() {
                Ok(devices) => (devices, None),
                Err(reason) => (Vec::new(), Some(reason)),
            };
            let (providers, no_runtime) = match runtime() {
                Ok(providers) => (providers, None),
                Err(reason) => (Vec::new(), Some(reason)),
            };
            show::json(&serde_json::json!({
                "cpu": cpu, "gpus": gpus, "cuda": cuda, "cuda_absent": absent,
                "onnxruntime": providers, "onnxruntime_absent": no_runtime, "catalogue": all,
            }));
        }
        Output::Text => {
            show::say(&format!(
                "this machine: cpu, {}, {} threads",
                cpu.model, cpu.threads
            ));
            for (gpu, is_software) in gpus() {
                let kind = if is_software {
                    "a program on the CPU, for tests"
                } else {
                    "gpu"
                };
                show::say(&format!(
                    "this machine: {}, {kind}; {}",
                    gpu.model, gpu.source
                ));
            }
            match cuda() {
                Ok(devices) => {
                    for (ordinal, gpu) in devices.iter().enumerate() {
                        let said = format!("this machine: {}, cuda:{ordinal}", gpu.model);
                        show::say(&said);
                    }
                }
                Err(reason) => show::say(&format!("no cuda: {reason}")),
            }
            match runtime() {
                Ok(providers) => {
                    for provider in providers {
                        show::say(&format!("this machine: onnxruntime:{provider}"));
                    }
                }
                Err(reason) => show::say(&format!("no onnxruntime: {reason}")),
            }
            show::say("known by name, and emulated when a provider sells them:");
            show::device::print_list(catalogue::all());
        }
    }
}

fn show_one(output: Output, name: &str) -> Outcome {
    if name == "cpu" {
        let cpu = discover::cpu();
        show::json(&cpu);
        return Ok(());
    }
    let found: Option<&Profile> = catalogue::find(name);
    let profile = found.ok_or_else(|| {
        let cause = format!("no processor is called \"{name}\"");
        Failure::new(Kind::Input, cause, "`souk device list` shows the names")
    })?;
    match output {
        Output::Json => show::json(profile),
        Output::Text => show::device::print(profile),
    }
    Ok(())
}

/// The GPUs that drivers offer, and whether each is only a program on the CPU.
#[cfg(feature = "wgpu")]
fn gpus() -> Vec<(Profile, bool)> {
    let adapters = souk_node::devices::gpu::adapters();
    let described = adapters.iter().map(|it| (it.profile(), it.is_software()));
    described.collect()
}

/// None: this build has no backend for them.
#[cfg(not(feature = "wgpu"))]
fn gpus() -> Vec<(Profile, bool)> {
    Vec::new()
}

fn choice(backend: Backend, name: &str, threads: u32) -> Result<DeviceChoice, Failure> {
    Ok(match backend {
        Backend::Cpu => DeviceChoice::Cpu { threads },
        Backend::Wgpu => DeviceChoice::Gpu {
            name: name.to_owned(),
        },
        Backend::Cuda => DeviceChoice::Cuda {
            ordinal: cuda_ordinal(if name.is_empty() { "0" } else { name })?,
        },
        Backend::Onnxruntime => DeviceChoice::Onnxruntime {
            provider: name.to_owned(),
        },
    })
}

/// What is said of ONNX Runtime: its providers, or why there are none.
#[cfg(feature = "onnxruntime")]
fn runtime() -> Result<Vec<String>, String> {
    let library = souk_node::devices::onnxruntime::Library::find();
    let library = library.map_err(|error| error.to_string())?;
    let providers = library.providers().iter().map(|it| it.name.clone());
    Ok(providers.collect())
}

/// None: this build does not look for it.
#[cfg(not(feature = "onnxruntime"))]
fn runtime() -> Result<Vec<String>, String> {
    Err("this build is without the feature `onnxruntime`".to_owned())
}

/// What is said of CUDA: its devices, or why there are none.
#[cfg(feature = "cuda")]
fn cuda() -> Result<Vec<Profile>, String> {
    use souk_node::devices::cuda::{CudaDevice, devices};
    let devices = devices().map_err(|error| error.to_string())?;
    Ok(devices.iter().map(CudaDevice::profile).collect())
}

/// None: this build does not look for them.
#[cfg(not(feature = "cuda"))]
fn cuda() -> Result<Vec<Profile>, String> {
    Err("this build is without the feature `cuda`".to_owned())
}

/// Opens the device that a backend and a part of a name stand for.
pub fn open(backend: Backend, name: &str, threads: u32) -> Result<Arc<dyn Processor>, Failure> {
    let opened = provider::open_device(&choice(backend, name, threads)?, None);
    let mut devices = opened.map_err(|error| unopened(&error))?;
    devices.pop().ok_or_else(|| unopened(&DeviceError::Nobody))
}

fn unopened(error: &DeviceError) -> Failure {
    let hint = "`souk device list` shows what there is; name a software GPU to use it";
    Failure::new(Kind::Input, error, hint)
}

fn bench(folder: &Path, output: Output, choice: &DeviceChoice, quick: bool) -> Outcome {
    let key = NodeKey::load_or_create(&folder.join(KEY_FILE));
    let key = key.map_err(|error| Failure::new(Kind::State, error, "check --dir"))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    let made = provider::sheet_of(folder, &key, choice, quick, now);
    let (sheet, signed) = made.map_err(|error| match error {
        provider::SheetError::Device(error) => unopened(&error),
        error => Failure::new(Kind::State, error, "try again, or another --dir"),
    })?;
    match output {
        Output::Json => show::json(&signed),
        Output::Text => show::device::print_sheet(&sheet, &signed.account),
    }
    Ok(())
}
