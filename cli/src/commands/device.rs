//! `souk device …`: lists, shows and measures the processors of this machine, shows those that
//! souk knows by name, and shows or limits the power of this machine's units.

mod probe;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use souk_folder::config::{DeviceChoice, KEY_FILE, ProviderFile};
use souk_folder::key::NodeKey;
use souk_host::{discover, power};
use souk_node::provider;
use souk_sandbox::device;
use souk_sandbox::device::{DeviceError, LibraryReport};
use souk_vocabulary::catalogue;
use souk_vocabulary::processor::Processor;
use souk_vocabulary::profile::Profile;

use super::node::LIBRARY_HINT;
use crate::args::{Backend, Device, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::show;
use probe::{Adapter, ProbedDevice};
pub use probe::{check_device_driver as check_driver, check_library};

/// Runs a subcommand of `souk device`.
pub fn run(folder: &Path, output: Output, command: &Device) -> Outcome {
    match command {
        Device::List => list_devices(output, library_path(folder).as_deref()),
        Device::Show { name } => show_one(folder, output, name)?,
        Device::Probe(probe) => probe::run(probe)?,
        Device::Power { domain, watts } => show_power(output, domain.as_deref(), *watts)?,
        Device::Bench {
            backend,
            device,
            threads,
            quick,
        } => bench_device(
            folder,
            output,
            &device_choice(*backend, device, *threads)?,
            *quick,
        )?,
    }
    Ok(())
}

/// Returns the ONNX Runtime library that the folder's provider names.
fn library_path(folder: &Path) -> Option<PathBuf> {
    let file = ProviderFile::read_folder(folder).ok()?;
    file.library_path(folder)
}

/// Returns the names of this machine's processors that can be sold.
pub fn sellable_devices() -> Vec<String> {
    let gpus = probe::run_probe::<Vec<Adapter>>(&["gpus"], None).unwrap_or_default();
    let gpus = gpus.into_iter().filter(|gpu| !gpu.is_software);
    let gpus = gpus.map(|gpu| format!("gpu:{}", gpu.profile.model));
    let cards = probe::run_probe::<Vec<Profile>>(&["cuda"], None).unwrap_or_default();
    let cards = (0..cards.len()).map(|ordinal| format!("cuda:{ordinal}"));
    let runtime = probe::run_probe::<LibraryReport>(&["onnxruntime"], None);
    let providers = runtime.map(|it| it.providers).unwrap_or_default();
    let providers = providers.into_iter().map(|it| format!("onnxruntime:{it}"));
    let all = std::iter::once("cpu".to_owned()).chain(gpus).chain(cards);
    all.chain(providers).collect()
}

fn list_devices(output: Output, library: Option<&Path>) {
    let cpu = discover::describe_cpu();
    let gpus = probe::run_probe::<Vec<Adapter>>(&["gpus"], None);
    let cuda = probe::run_probe::<Vec<Profile>>(&["cuda"], None);
    let runtime = match library {
        None => probe::run_probe::<LibraryReport>(&["onnxruntime"], None),
        Some(library) => {
            probe::try_library(library).map_err(|cause| format!("{cause}; {LIBRARY_HINT}"))
        }
    };
    let providers = runtime.as_ref().map(|it| it.providers.as_slice());
    if output == Output::Json {
        let profiles = |seen: &Vec<Adapter>| -> Vec<Profile> {
            seen.iter().map(|seen| seen.profile.clone()).collect()
        };
        return show::print_json(&serde_json::json!({
            "cpu": cpu,
            "gpus": gpus.as_ref().map(profiles).unwrap_or_default(), "gpus_absent": gpus.err(),
            "cuda": cuda.as_deref().unwrap_or_default(), "cuda_absent": cuda.as_ref().err(),
            "onnxruntime": providers.unwrap_or_default(),
            "onnxruntime_library": runtime.as_ref().ok().map(|it| &it.path),
            "onnxruntime_absent": runtime.as_ref().err(), "catalogue": catalogue::all_processors(),
        }));
    }
    show::print_line(&format!(
        "this machine: cpu, {}, {} threads",
        cpu.model, cpu.threads
    ));
    let gpu = |Adapter {
                   profile,
                   is_software,
               }: Adapter| {
        let kind = if is_software {
            "a program on the CPU, for tests"
        } else {
            "gpu"
        };
        format!("gpu:{}, {kind}; {}", profile.model, profile.source)
    };
    print_devices("gpu", gpus.map(|gpus| gpus.into_iter().map(gpu).collect()));
    let numbered = |(ordinal, gpu): (usize, Profile)| format!("cuda:{ordinal}, {}", gpu.model);
    let cuda = cuda.map(|cards| cards.into_iter().enumerate().map(numbered).collect());
    print_devices("cuda", cuda);
    let runtime = runtime.map(|it| {
        let from = it.path.display();
        let named = |provider: &String| format!("onnxruntime:{provider}, by {from}");
        it.providers.iter().map(named).collect()
    });
    print_devices("onnxruntime", runtime);
    show::print_line("known by name, and emulated when a provider sells them:");
    show::device::print_list(catalogue::all_processors());
}

/// Prints the devices of a kind, or why there are none.
fn print_devices(kind: &str, found: Result<Vec<String>, String>) {
    match found {
        Ok(found) => found
            .iter()
            .for_each(|it| show::print_line(&format!("this machine: {it}"))),
        Err(reason) => show::print_line(&format!("no {kind}: {reason}")),
    }
}

fn show_one(folder: &Path, output: Output, name: &str) -> Outcome {
    if let Some(profile) = catalogue::find_processor(name) {
        match output {
            Output::Json => show::print_json(profile),
            Output::Text => show::device::print_profile(profile),
        }
        return Ok(());
    }
    let hint = "`souk device list` shows the names";
    let choice = parse_device(name)?;
    let choice = serde_json::to_string(&choice).expect("a choice always encodes");
    let standing =
        probe::run_probe::<ProbedDevice>(&["show", &choice], library_path(folder).as_deref());
    let standing = standing.map_err(|cause| Failure::new(Kind::Input, cause, hint))?;
    let kept = provider::sheet_kept(folder, &standing.key);
    match output {
        Output::Json => show::print_json(&serde_json::json!({
            "profile": standing.profile, "live": standing.live,
            "sheet": kept.map(|(sheet, _)| sheet),
        })),
        Output::Text => {
            match kept {
                Some((sheet, signed)) => show::device::print_sheet(&sheet, &signed.account),
                None => {
                    show::device::print_profile(&standing.profile);
                    show::print_line("  no measurements are stored: `souk device bench` makes one");
                }
            }
            show::device::print_live(&standing.live);
        }
    }
    Ok(())
}

/// Shows power domains, and changes the limit of one if the arguments ask for that.
fn show_power(output: Output, name: Option<&str>, watts: Option<f64>) -> Outcome {
    let refused = |error| {
        let hint = "`souk device power` shows the domains and their limits";
        Failure::new(Kind::Input, error, hint)
    };
    let domains = match name {
        Some(name) => vec![power::find_domain(name).map_err(refused)?],
        None => power::list_domains(),
    };
    let before = match (&domains[..], watts) {
        ([domain], Some(watts)) => {
            let before = domain.power_limit().map_err(refused)?;
            domain.set_limit(watts).map_err(refused)?;
            Some(before.watts)
        }
        _ => None,
    };
    show::power::print_domains(output, &domains, before);
    Ok(())
}

fn device_choice(backend: Backend, name: &str, threads: u32) -> Result<DeviceChoice, Failure> {
    Ok(match backend {
        Backend::Cpu => DeviceChoice::Cpu { threads },
        Backend::Wgpu => DeviceChoice::Gpu {
            name: name.to_owned(),
            memory_mib: None,
        },
        Backend::Cuda => DeviceChoice::Cuda {
            ordinal: cuda_ordinal(if name.is_empty() { "0" } else { name })?,
            memory_mib: None,
        },
        Backend::Onnxruntime => DeviceChoice::Onnxruntime {
            provider: name.to_owned(),
        },
    })
}

/// Opens the device of a backend whose name contains this text.
pub fn open_device(
    backend: Backend,
    name: &str,
    threads: u32,
) -> Result<Arc<dyn Processor>, Failure> {
    let choice = device_choice(backend, name, threads)?;
    probe::check_device_driver(&choice, None)?;
    let opened = device::open_devices(&choice, None);
    let mut devices = opened.map_err(|error| device_failure(&error))?;
    devices
        .pop()
        .ok_or_else(|| device_failure(&DeviceError::Nobody))
}

fn device_failure(error: &DeviceError) -> Failure {
    let hint = "`souk device list` shows what there is; name a software GPU to use it";
    Failure::new(Kind::Input, error, hint)
}

fn bench_device(folder: &Path, output: Output, choice: &DeviceChoice, quick: bool) -> Outcome {
    let library = library_path(folder);
    check_library(library.as_deref())?;
    probe::check_device_driver(choice, library.as_deref())?;
    let key = NodeKey::load_or_create(&folder.join(KEY_FILE));
    let key = key.map_err(|error| Failure::new(Kind::State, error, "check --dir"))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    let made = provider::sheet_of(folder, &key, choice, quick, now);
    let (sheet, signed) = made.map_err(|error| match error {
        provider::SheetError::Device(error) => device_failure(&error),
        error => Failure::new(Kind::State, error, "try again, or another --dir"),
    })?;
    match output {
        Output::Json => show::print_json(&signed),
        Output::Text => show::device::print_sheet(&sheet, &signed.account),
    }
    Ok(())
}

/// Parses the name of a device.
pub fn parse_device(text: &str) -> Result<DeviceChoice, Failure> {
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    let rest = rest.to_owned();
    Ok(match kind {
        "cpu" => DeviceChoice::Cpu { threads: 0 },
        "exact" => DeviceChoice::Exact { threads: 0 },
        "gpu" => DeviceChoice::Gpu {
            name: rest,
            memory_mib: None,
        },
        "cuda" => DeviceChoice::Cuda {
            memory_mib: None,
            ordinal: cuda_ordinal(if rest.is_empty() { "0" } else { &rest })?,
        },
        "onnxruntime" => DeviceChoice::Onnxruntime { provider: rest },
        _ if catalogue::find_processor(text).is_some() => DeviceChoice::new_emulated(text),
        _ => {
            let cause = format!("there is no device \"{text}\"");
            let hint = "cpu, gpu, cuda and onnxruntime are this machine's; `souk device list` \
                        shows the names of the catalogue";
            return Err(Failure::new(Kind::Input, cause, hint));
        }
    })
}

/// Parses the number of an NVIDIA GPU.
pub fn cuda_ordinal(text: &str) -> Result<u32, Failure> {
    text.parse().map_err(|_| {
        let cause = format!("\"{text}\" is not the number of a CUDA device");
        Failure::new(Kind::Input, cause, "the first is 0, as in cuda:0")
    })
}
