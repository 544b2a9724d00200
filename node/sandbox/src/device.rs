//! Opens the devices that a provider sells, and computes what its ask states about them.

pub mod ask_resources;
pub mod backends;
pub mod costs;
mod emulation;
pub mod graph_operators;
pub mod graph_work;
pub mod group;
pub mod kernels;
mod library;
pub mod measurement;
pub mod onnxruntime_library;
pub mod operators;
pub mod probe;
pub(crate) mod refused_node;

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use souk_api::class_name;
use souk_cpu::Cpu;
use souk_emulated::{EmulatedConfigError, EmulatedDevice};
use souk_folder::config::{DeviceChoice, ProviderFile};
use souk_folder::limits::ProviderLimits;
use souk_host::discover;
use souk_market::{Dtype, Features, KindCode, Name, Region, Resources, Slowness, Throughput};
use souk_memory::{DType, Tensor};
use souk_onnx::subgraph::Subgraph;
use souk_registry::check::{CheckError, check_device};
use souk_registry::measure;
use souk_scheduler::graph::value_extents;
use souk_vocabulary::catalogue;
use souk_vocabulary::processor::Processor;
use souk_vocabulary::profile::Profile;
use souk_vocabulary::taxonomy::ProcessorKind;

use emulation::{emulation_config, open_computing_cpu};
#[cfg(target_os = "linux")]
pub use library::open_libraries;
#[cfg(target_os = "linux")]
use library::opened_beside;
pub use library::{
    LibraryReport, choose_library, has_cpu, has_runtime, library_path, reach_library,
};
use library::{cpu_with_library, open_runtime, runtime_key};

/// The figures of a link that a provider states until it has measured one: a gigabit, half a
/// millisecond.
const LINK_BYTES_PER_SECOND: u64 = 125_000_000;
const LINK_LATENCY: Duration = Duration::from_micros(500);

/// The least part of a GPU's memory that can be sold, in MiB: the measurement needs it.
const GPU_MEMORY_MIB_MIN: u32 = 64;

/// The element types of devices, each with the market's.
const DTYPES: [(DType, Dtype); 6] = [
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::Bf16, Dtype::Bf16),
    (DType::I8, Dtype::Int8),
    (DType::I4, Dtype::Int4),
];

/// Why a device did not open.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The catalogue has no processor of that name.
    #[error("the catalogue has no processor \"{name}\"; it has {}", known.join(", "))]
    Unknown {
        /// The requested name.
        name: String,
        /// The names in the catalogue.
        known: Vec<String>,
    },
    /// A model that is sold by the token is not a device, and cannot be one of a group.
    #[error("a model is sold by the token, and is no device that souk opens")]
    Endpoint,
    /// The group has no devices.
    #[error("a group needs at least one device: list them in the provider's file")]
    Nobody,
    /// No GPU has that name.
    #[error("{}", no_gpu(name, known))]
    NoGpu {
        /// The requested name.
        name: String,
        /// The names of the GPUs.
        known: Vec<String>,
    },
    /// The offered part of a GPU's memory is too small for a measurement.
    #[error("memory_mib is {mib}, but measuring a GPU takes {GPU_MEMORY_MIB_MIN}: sell more of it")]
    TooLittle {
        /// The offered memory, in MiB.
        mib: NonZeroU32,
    },
    /// The GPU's driver reports an error.
    #[cfg(feature = "wgpu")]
    #[error(transparent)]
    Gpu(#[from] souk_gpu::OpenError),
    /// The GPU does not open through CUDA.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] souk_cuda::CudaError),
    /// This build does not contain CUDA.
    #[cfg(not(feature = "cuda"))]
    #[error("this build is without the feature `cuda`")]
    NoCuda,
    /// The ONNX Runtime library is missing or reports an error.
    #[cfg(feature = "onnxruntime")]
    #[error(transparent)]
    Runtime(#[from] souk_onnxruntime::LoadError),
    /// The library has no such provider, or none that gives correct results.
    #[error("{}", no_provider(name, known))]
    NoProvider {
        /// The requested name.
        name: String,
        /// The names of the providers.
        known: Vec<String>,
    },
    /// This build does not contain ONNX Runtime.
    #[cfg(not(feature = "onnxruntime"))]
    #[error("this build is without the feature `onnxruntime`")]
    NoRuntime,
    /// The settings of an emulated device are wrong.
    #[error(transparent)]
    Emulated(#[from] EmulatedConfigError),
    /// A device with a driver gives wrong results.
    #[error(transparent)]
    Check(#[from] CheckError),
}

/// Opens the devices of a choice, one or those of a group, each with at most `cores` threads.
/// Measures real devices, which takes up to two seconds each, and checks the results of those with
/// a driver.
///
/// # Errors
/// When a device does not open, or gives wrong results.
pub fn open_devices(
    choice: &DeviceChoice,
    cores: Option<u32>,
) -> Result<Vec<Arc<dyn Processor>>, DeviceError> {
    match choice {
        DeviceChoice::Group(choices) => {
            let devices = choices
                .iter()
                .map(|choice| open_devices(choice, cores))
                .collect::<Result<Vec<_>, _>>()?
                .concat();
            match devices.len() {
                0 => Err(DeviceError::Nobody),
                _ => Ok(devices),
            }
        }
        one => {
            let device = open_one(one, cores, None)?;
            if has_driver(one) {
                check_device(&*device)?;
            }
            Ok(vec![device])
        }
    }
}

/// Opens devices without a driver in this process, with the profiles of an earlier measurement,
/// which must be in the order of the devices.
pub fn open_measured(
    choice: &DeviceChoice,
    cores: Option<u32>,
    known: &[Profile],
) -> Result<Vec<Arc<dyn Processor>>, DeviceError> {
    let mut each = Vec::new();
    flatten_choice(choice, &mut each);
    let opened = |(choice, known): (&DeviceChoice, &Profile)| open_one(choice, cores, Some(known));
    each.into_iter().zip(known).map(opened).collect()
}

fn open_one(
    choice: &DeviceChoice,
    cores: Option<u32>,
    known: Option<&Profile>,
) -> Result<Arc<dyn Processor>, DeviceError> {
    match choice {
        DeviceChoice::Group(_) => unreachable!("a group is opened one by one"),
        DeviceChoice::Endpoint(_) | DeviceChoice::Serve(_) => Err(DeviceError::Endpoint),
        DeviceChoice::Cpu { threads } | DeviceChoice::Exact { threads } => {
            let threads = threads_of(*threads, cores);
            let profile = known.cloned();
            let profile = profile.unwrap_or_else(|| measurement::measure_threads(threads));
            Ok(match choice.is_exact() {
                true => Arc::new(Cpu::new_exact(profile, threads)),
                false => cpu_with_library(Cpu::new(profile, threads), threads),
            })
        }
        DeviceChoice::Gpu { name, memory_mib } => open_gpu(name, *memory_mib, None),
        DeviceChoice::Cuda {
            ordinal,
            memory_mib,
        } => open_cuda(*ordinal, *memory_mib, None),
        DeviceChoice::Onnxruntime { provider } => {
            open_runtime(provider, threads_of(0, cores), None)
        }
        DeviceChoice::Emulated { profile, manner } => {
            let found = catalogue::find_processor(profile).ok_or_else(|| DeviceError::Unknown {
                name: profile.clone(),
                known: catalogue::all_processors()
                    .iter()
                    .map(|known| known.name.clone())
                    .collect(),
            })?;
            // The CPU gives the results and the profile the time, so the CPU needs no measurement.
            let cpu = Arc::new(open_computing_cpu(manner, found, threads_of(0, cores)));
            let emulated = EmulatedDevice::new(found.clone(), cpu, emulation_config(manner))?;
            // A sandbox runs most models once: finding their sizes must not cost a second run.
            let infer = |subgraph: &Subgraph, inputs: &BTreeMap<String, Tensor>| {
                value_extents(subgraph.model.clone(), inputs)
            };
            Ok(Arc::new(emulated.with_infer(Arc::new(infer))))
        }
    }
}

/// Opens devices with the profiles of an earlier measurement, which must be in the same order;
/// measures them only if `known` is none.
#[cfg(target_os = "linux")]
pub fn open_known(
    choice: &DeviceChoice,
    cores: Option<u32>,
    known: Option<&[Profile]>,
) -> Result<Vec<Arc<dyn Processor>>, DeviceError> {
    let Some(known) = known else {
        return open_devices(choice, cores);
    };
    let opened = |(choice, known): (&DeviceChoice, &Profile)| match choice {
        DeviceChoice::Cpu { threads } => {
            let threads = threads_of(*threads, cores);
            Ok(opened_beside(Cpu::new(known.clone(), threads), threads))
        }
        DeviceChoice::Gpu { name, memory_mib } => open_gpu(name, *memory_mib, Some(known)),
        DeviceChoice::Cuda {
            ordinal,
            memory_mib,
        } => open_cuda(*ordinal, *memory_mib, Some(known)),
        DeviceChoice::Onnxruntime { provider } => {
            open_runtime(provider, threads_of(0, cores), Some(known))
        }
        other => open_one(other, cores, Some(known)),
    };
    let mut each = Vec::new();
    flatten_choice(choice, &mut each);
    each.into_iter().zip(known).map(opened).collect()
}

fn flatten_choice<'a>(choice: &'a DeviceChoice, each: &mut Vec<&'a DeviceChoice>) {
    match choice {
        DeviceChoice::Group(choices) => choices
            .iter()
            .for_each(|choice| flatten_choice(choice, each)),
        one => each.push(one),
    }
}

/// Returns the profiles of devices, in their order.
pub fn device_profiles(devices: &[Arc<dyn Processor>]) -> Vec<Profile> {
    let profiles = devices.iter().map(|device| device.profile().clone());
    profiles.collect()
}

/// Returns the share of the measured peak that mixed work gets: the lowest of the CPUs, or 1.
pub fn peak_share(choice: &DeviceChoice, cores: Option<u32>, known: &[Profile]) -> f64 {
    let mut each = Vec::new();
    flatten_choice(choice, &mut each);
    let of = |(choice, known): (&DeviceChoice, &Profile)| match choice {
        DeviceChoice::Cpu { threads } => {
            let cpu = Cpu::new(known.clone(), threads_of(*threads, cores));
            // If the CPU cannot run the test, a purchase will find out.
            measure::measure_mixed_share(&cpu).unwrap_or(1.0)
        }
        _ => 1.0,
    };
    each.into_iter().zip(known).map(of).fold(1.0, f64::min)
}

/// Returns whether one of these devices needs a driver. If leases are isolated, only their
/// sandboxes open such a device.
pub fn has_driver(choice: &DeviceChoice) -> bool {
    match choice {
        DeviceChoice::Gpu { .. } | DeviceChoice::Cuda { .. } | DeviceChoice::Onnxruntime { .. } => {
            true
        }
        DeviceChoice::Group(choices) => choices.iter().any(has_driver),
        _ => false,
    }
}

/// Combines devices, of which there must be at least one, into the one that is sold: adds up what
/// they compute, hold and transfer. The result is emulated if one of them is, and has the kind of
/// the fastest.
pub fn combine_profiles(all: &[Profile]) -> Profile {
    let speed = |profile: &Profile| {
        let rate = profile.operations_per_second(DType::F32);
        rate.unwrap_or(0.0)
    };
    let fastest = all
        .iter()
        .max_by(|one, other| speed(one).total_cmp(&speed(other)));
    let mut sum = fastest.expect("a provider has a device").clone();
    if all.len() == 1 {
        return sum;
    }
    let profiles = || all.iter();
    sum.name = profiles()
        .map(|profile| profile.name.as_str())
        .collect::<Vec<_>>()
        .join("+");
    sum.model = profiles()
        .map(|profile| profile.model.as_str())
        .collect::<Vec<_>>()
        .join(" + ");
    sum.emulated = profiles().any(|profile| profile.emulated);
    sum.memory.bytes = profiles().map(|profile| profile.memory.bytes).sum();
    sum.memory.bytes_per_second = profiles()
        .map(|profile| profile.memory.bytes_per_second)
        .sum();
    for (&dtype, throughput) in &mut sum.throughput {
        let rates = profiles().filter_map(|profile| profile.throughput.get(&dtype));
        throughput.operations_per_second = rates.map(|rate| rate.dense_rate()).sum();
        throughput.sparse = false;
    }
    sum.launch = profiles()
        .map(|profile| profile.launch)
        .max()
        .unwrap_or_default();
    sum
}

/// Opens the first GPU whose name contains `name`, and measures it unless it is known. Uses a
/// software GPU only if it is named.
#[cfg(feature = "wgpu")]
fn open_gpu(
    name: &str,
    memory_mib: Option<NonZeroU32>,
    known: Option<&Profile>,
) -> Result<Arc<dyn Processor>, DeviceError> {
    use souk_gpu::Gpu;
    check_measurable(memory_mib, known)?;
    let adapter = find_adapter(name)?;
    let config = part_of(memory_mib);
    Ok(Arc::new(match known {
        Some(known) => Gpu::open_unmeasured(&adapter, config)?.with_profile(known.clone()),
        None => souk_registry::gpus::open_gpu(&adapter, config)?,
    }))
}

/// Checks that a GPU is known, or has enough memory for a measurement.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn check_measurable(
    memory_mib: Option<NonZeroU32>,
    known: Option<&Profile>,
) -> Result<(), DeviceError> {
    match memory_mib.filter(|mib| mib.get() < GPU_MEMORY_MIB_MIN) {
        Some(mib) if known.is_none() => Err(DeviceError::TooLittle { mib }),
        _ => Ok(()),
    }
}

/// Returns the configuration of a GPU with a limit of its memory.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn part_of(memory_mib: Option<NonZeroU32>) -> souk_gpu::GpuConfig {
    souk_gpu::GpuConfig {
        memory_bytes_max: memory_mib.map(|mib| u64::from(mib.get()) << 20),
        ..Default::default()
    }
}

/// Returns the key of a device, extended if only a part of its memory is used.
fn part_key(key: &str, memory_mib: Option<NonZeroU32>) -> String {
    match memory_mib {
        Some(mib) => format!("{key}, {mib} MiB of it"),
        None => key.to_owned(),
    }
}

#[cfg(feature = "wgpu")]
fn gpu_key(name: &str) -> Result<String, DeviceError> {
    Ok(find_adapter(name)?.key())
}

#[cfg(not(feature = "wgpu"))]
fn gpu_key(name: &str) -> Result<String, DeviceError> {
    open_gpu(name, None, None).map(|device| device.profile().model.clone())
}

#[cfg(feature = "wgpu")]
fn find_adapter(name: &str) -> Result<souk_gpu::Adapter, DeviceError> {
    let mut adapters = souk_gpu::list_adapters();
    let fits = |adapter: &souk_gpu::Adapter| {
        adapter.name().contains(name) && (!name.is_empty() || !adapter.is_software())
    };
    match adapters.iter().position(fits) {
        Some(found) => Ok(adapters.swap_remove(found)),
        None => Err(DeviceError::NoGpu {
            name: name.to_owned(),
            known: adapters.iter().map(|it| it.name().to_owned()).collect(),
        }),
    }
}

/// Opens an NVIDIA GPU, and measures it unless it is known.
#[cfg(feature = "cuda")]
fn open_cuda(
    ordinal: u32,
    memory_mib: Option<NonZeroU32>,
    known: Option<&Profile>,
) -> Result<Arc<dyn Processor>, DeviceError> {
    check_measurable(memory_mib, known)?;
    let (ordinal, config) = (ordinal as usize, part_of(memory_mib));
    Ok(Arc::new(match known {
        Some(known) => souk_gpu::card::open_card(ordinal, config)?.with_profile(known.clone()),
        None => souk_registry::gpus::open_card(ordinal, config)?,
    }))
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(
    _ordinal: u32,
    _memory_mib: Option<NonZeroU32>,
    _known: Option<&Profile>,
) -> Result<Arc<dyn Processor>, DeviceError> {
    Err(DeviceError::NoCuda)
}

/// Fails, because this build has no backend for GPUs.
#[cfg(not(feature = "wgpu"))]
fn open_gpu(
    name: &str,
    _memory_mib: Option<NonZeroU32>,
    _known: Option<&Profile>,
) -> Result<Arc<dyn Processor>, DeviceError> {
    Err(DeviceError::NoGpu {
        name: name.to_owned(),
        known: Vec::new(),
    })
}

fn no_provider(name: &str, known: &[String]) -> String {
    let known = known.join(", ");
    format!("this ONNX Runtime has no provider called \"{name}\"; there are: {known}")
}

fn no_gpu(name: &str, known: &[String]) -> String {
    let known = match known {
        [] => return "there is no GPU, or this build is without the feature `wgpu`".to_owned(),
        known => known.join(", "),
    };
    match name {
        "" => format!("the only GPUs are software, used only if named with --device: {known}"),
        name => format!("no GPU is called \"{name}\"; there are: {known}"),
    }
}

/// Opens one device to inspect it, without the slow measurement of a GPU.
pub fn open_to_look(choice: &DeviceChoice) -> Result<Arc<dyn Processor>, DeviceError> {
    match choice {
        #[cfg(feature = "wgpu")]
        DeviceChoice::Gpu { name, memory_mib } => {
            let config = part_of(*memory_mib);
            let gpu = souk_gpu::Gpu::open_unmeasured(&find_adapter(name)?, config)?;
            Ok(Arc::new(gpu))
        }
        #[cfg(feature = "cuda")]
        DeviceChoice::Cuda {
            ordinal,
            memory_mib,
        } => {
            let (ordinal, config) = (*ordinal as usize, part_of(*memory_mib));
            let card = souk_gpu::card::open_card(ordinal, config)?;
            Ok(Arc::new(card))
        }
        one => Ok(open_devices(one, None)?.remove(0)),
    }
}

/// Returns the identity of a device and its driver; a change of it makes a measurement stale.
pub fn identify_device(choice: &DeviceChoice) -> Result<String, DeviceError> {
    match choice {
        DeviceChoice::Cpu { threads } | DeviceChoice::Exact { threads } => Ok(format!(
            "{}, {} used",
            discover::describe_cpu().key(),
            threads_of(*threads, None)
        )),
        DeviceChoice::Gpu { name, memory_mib } => Ok(part_key(&gpu_key(name)?, *memory_mib)),
        DeviceChoice::Cuda {
            ordinal,
            memory_mib,
        } => open_cuda(*ordinal, *memory_mib, None).map(|device| {
            let key = format!("cuda:{ordinal} {}", device.profile().model);
            part_key(&key, *memory_mib)
        }),
        DeviceChoice::Onnxruntime { provider } => runtime_key(provider),
        DeviceChoice::Endpoint(_) | DeviceChoice::Serve(_) => Ok(format!("{choice:?}")),
        DeviceChoice::Emulated { profile, manner } => {
            let told = manner.stated_entries().into_iter();
            let told = told.map(|(name, value)| format!(", {name} {value}"));
            Ok(format!("{profile} (emulated){}", told.collect::<String>()))
        }
        DeviceChoice::Group(choices) => {
            let each: Result<Vec<String>, DeviceError> =
                choices.iter().map(identify_device).collect();
            Ok(each?.join(" + "))
        }
    }
}

/// Returns what an ask states about the devices of a choice, combined into one, within the
/// provider's limits: the resources that each lease has while all leases run.
pub fn stated_resources(
    choice: &DeviceChoice,
    profile: &Profile,
    limits: &ProviderLimits,
) -> Resources {
    let each = |figure: u64| limits.lease_share(figure);
    let leases = u64::from(limits.leases.max(1));
    let mut throughput = Throughput::default();
    for (dtype, stated) in DTYPES {
        let rate = profile.operations_per_second(dtype).unwrap_or(0.0);
        throughput = throughput.with(stated, each(round_down(rate / 1e6)));
    }
    Resources {
        kind: kind_code(&profile.kind),
        kind_name: name(profile.kind.name()),
        model: name(&profile.model),
        // A device whose memory is unknown is refused before it is sold.
        memory_bytes: each(limits.memory_sold(profile).unwrap_or(0)),
        memory_bandwidth: each(round_down(profile.memory.bytes_per_second)),
        throughput,
        launch_overhead_ns: round_down(profile.launch.as_secs_f64() * 1e9).saturating_mul(leases),
        slowness: Slowness::default(),
        link_latency_us: u64::try_from(LINK_LATENCY.as_micros()).unwrap_or(u64::MAX),
        link_bandwidth: each(LINK_BYTES_PER_SECOND),
        power_mw: profile
            .power
            .map_or(0, |power| each(round_down(power.busy_watts * 1e3))),
        region: Region(0),
        features: Features(
            kernels::offered_features(choice, limits).0 | backends::stated_features(choice).0,
        ),
        operators: operators::offered_operators(choice, limits),
        emulated: profile.emulated,
        ..Resources::default()
    }
}

/// Returns what an ask of this provider states: its devices combined into one, their region, and
/// whether they run sessions.
pub fn provider_resources(file: &ProviderFile, whole: &Profile) -> Resources {
    let stated = stated_resources(&file.device, whole, &file.limits);
    let sessions = backends::session_features(&file.device, file.isolation);
    Resources {
        region: file.region.0,
        features: Features(stated.features.0 | sessions.0),
        ..stated
    }
}

/// Returns the market's number of a kind.
fn kind_code(kind: &ProcessorKind) -> KindCode {
    let mut kinds = class_name::KINDS.iter();
    let known = kinds.find(|(name, _)| *name == kind.name());
    known
        .map(|(_, code)| *code)
        .expect("each kind has a number")
}

/// Rounds a figure down to a whole number; clamps negative and huge ones, and maps NaN to 0.
fn round_down(figure: f64) -> u64 {
    figure as u64
}

/// Returns as much of a name as the market can store.
fn name(text: &str) -> Name {
    let plain: String = text.chars().filter(|c| !c.is_control()).collect();
    let mut end = plain.len().min(Name::BYTES_MAX);
    while !plain.is_char_boundary(end) {
        end -= 1;
    }
    Name::try_from(&plain[..end]).expect("it is short and has no control characters")
}

pub(crate) fn threads_of(wanted: u32, cores: Option<u32>) -> NonZeroUsize {
    let all = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let limits = [Some(wanted), cores].into_iter().flatten();
    let limits = limits.filter_map(|limit| NonZeroUsize::new(limit as usize));
    limits.fold(all, NonZeroUsize::min)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use souk_memory::npy;

    use super::*;

    #[test]
    fn each_kind_of_the_catalogue_has_a_number() {
        for profile in catalogue::all_processors() {
            let name = profile.kind.name();
            let mut kinds = class_name::KINDS.iter();
            assert!(kinds.any(|(known, _)| *known == name), "{name}");
        }
    }

    #[test]
    fn a_catalogued_device_is_stated_as_emulated() {
        let choice = DeviceChoice::new_emulated("nvidia-h100-sxm");
        let devices = open_devices(&choice, None).unwrap();
        let stated = stated_resources(
            &choice,
            &combine_profiles(&device_profiles(&devices)),
            &ProviderLimits::default(),
        );
        assert!(stated.emulated && stated.class().emulated);
        assert_eq!(stated.throughput.for_dtype(Dtype::F32), 67_000_000);
        assert_eq!(stated.kind_name.as_str(), "gpu");
    }

    #[cfg(feature = "wgpu")]
    #[test]
    fn a_part_of_a_gpu_that_is_too_small_to_be_measured_is_refused() {
        let part = DeviceChoice::Gpu {
            name: "any".to_owned(),
            memory_mib: NonZeroU32::new(24),
        };
        let refused = open_devices(&part, None).err().expect("it is refused");
        assert!(
            matches!(refused, DeviceError::TooLittle { .. }),
            "{refused}"
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn of_a_gpu_no_more_memory_is_stated_than_may_be_used() {
        const BYTES: u64 = 8 << 20;
        let known = [catalogue::find_processor("apple-m1-gpu").unwrap().clone()];
        let part = DeviceChoice::Gpu {
            name: "llvmpipe".to_owned(),
            memory_mib: NonZeroU32::new(8),
        };
        let devices = match open_known(&part, None, Some(&known)) {
            Ok(devices) => devices,
            Err(DeviceError::NoGpu { .. }) => return eprintln!("SKIPPED: there is no llvmpipe"),
            Err(error) => panic!("{error}"),
        };
        let profile = combine_profiles(&device_profiles(&devices));
        assert_eq!(
            (profile.memory.bytes, devices[0].memory_free_bytes()),
            (BYTES, BYTES)
        );
        let stated = stated_resources(&part, &profile, &ProviderLimits::default());
        assert_eq!(stated.memory_bytes, BYTES);
        let whole = DeviceChoice::Gpu {
            name: "llvmpipe".to_owned(),
            memory_mib: None,
        };
        let (key, of_all) = (
            identify_device(&part).unwrap(),
            identify_device(&whole).unwrap(),
        );
        assert_eq!(
            key,
            format!("{of_all}, 8 MiB of it"),
            "each is described by itself"
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_known_of_a_device_is_not_measured_again() {
        let mut known = catalogue::find_processor("apple-m1-gpu").unwrap().clone();
        known.emulated = false;
        let known = [known];
        let gpu = DeviceChoice::Gpu {
            name: "llvmpipe".to_owned(),
            memory_mib: None,
        };
        for choice in [DeviceChoice::Cpu { threads: 1 }, gpu] {
            match open_known(&choice, None, Some(&known)) {
                Ok(devices) => assert_eq!(device_profiles(&devices), known, "{choice:?}"),
                Err(DeviceError::NoGpu { .. }) => eprintln!("SKIPPED: there is no llvmpipe"),
                Err(error) => panic!("{choice:?}: {error}"),
            }
        }
    }

    #[test]
    fn the_work_of_a_model_is_the_same_from_its_sizes_as_from_a_run() {
        const MODEL: &[u8] = include_bytes!("../../../testnet/models/digits/digits.onnx");
        const IMAGES: &[u8] = include_bytes!("../../../testnet/models/digits/images.npy");
        let subgraph = Subgraph {
            model: Bytes::from_static(MODEL),
            weights: BTreeMap::new(),
        };
        let images = npy::read(&Bytes::from_static(IMAGES)).unwrap();
        let inputs = BTreeMap::from([("images".to_owned(), images)]);
        let sizes = value_extents(subgraph.model.clone(), &inputs).unwrap();
        let inferred = Cpu::work_from(&subgraph, &sizes).unwrap();
        let cpu = Cpu::new(catalogue::all_processors()[0].clone(), NonZeroUsize::MIN);
        assert_eq!(inferred, Some(cpu.work_of(&subgraph, &inputs).unwrap()));
        let nothing = Cpu::work_from(&subgraph, &BTreeMap::new()).unwrap();
        assert_eq!(nothing, None, "what is not known is not guessed");
    }

    #[test]
    fn no_more_is_offered_or_used_than_the_limits_allow() {
        let choice = DeviceChoice::new_emulated("nvidia-h100-sxm");
        let limits = ProviderLimits {
            memory_mib: Some(512),
            ..ProviderLimits::default()
        };
        let profile = combine_profiles(&device_profiles(&open_devices(&choice, Some(1)).unwrap()));
        assert_eq!(
            stated_resources(&choice, &profile, &limits).memory_bytes,
            512 << 20
        );
        assert_eq!(threads_of(0, Some(1)).get(), 1);
        let halves = ProviderLimits {
            leases: 2,
            ..limits.clone()
        };
        let (whole, half) = (
            stated_resources(&choice, &profile, &limits),
            stated_resources(&choice, &profile, &halves),
        );
        assert_eq!(half.memory_bytes, 256 << 20);
        assert_eq!(half.memory_bandwidth, whole.memory_bandwidth / 2);
        assert_eq!(half.launch_overhead_ns, whole.launch_overhead_ns * 2);
        let rate = |stated: &Resources| stated.throughput.for_dtype(Dtype::F32);
        assert_eq!(rate(&half), rate(&whole) / 2);
        assert_eq!(threads_of(1, Some(0)).get(), 1, "0 is no limit");
    }

    #[test]
    fn a_team_is_stated_as_the_sum_of_its_devices() {
        let one = |profile: &str| DeviceChoice::new_emulated(profile);
        let group = DeviceChoice::Group(vec![one("nvidia-h100-sxm"), one("amd-epyc-9654")]);
        let stated = stated_resources(
            &group,
            &combine_profiles(&device_profiles(&open_devices(&group, None).unwrap())),
            &ProviderLimits::default(),
        );
        assert_eq!(stated.kind_name.as_str(), "gpu");
        assert_eq!(
            stated.throughput.for_dtype(Dtype::F32),
            67_000_000 + 10_800_000
        );
        assert!(matches!(
            open_devices(&DeviceChoice::Group(Vec::new()), None).err(),
            Some(DeviceError::Nobody)
        ));
    }

    #[test]
    fn an_unknown_profile_is_refused_with_those_there_are() {
        let choice = DeviceChoice::new_emulated("abacus");
        let refused = open_devices(&choice, None).err().unwrap().to_string();
        assert!(
            refused.contains("abacus") && refused.contains("nvidia-h100-sxm"),
            "{refused}"
        );
    }
}
