//! Lists the GPUs that the drivers of this machine offer through wgpu (its Vulkan, Metal and
//! Direct3D 12 adapters), describes each by a profile, and opens it for use.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use souk_host::system;
use souk_memory::paths::Path as Link;
use souk_vocabulary::links;
use souk_vocabulary::profile::{self, Memory, Profile};
use souk_vocabulary::taxonomy::{GpuApi, MemoryKind, ProcessorKind, Trait};
use thiserror::Error;
use wgpu::{
    Backend, Backends, DeviceDescriptor, DeviceType, Features, Instance, InstanceDescriptor,
    Limits, MemoryHints,
};

use crate::context::Context;
use crate::driver::Driver;
use crate::driver::webgpu::{CompletionSignal, WebGpu};
use crate::sysfs_card::SysfsCard;

/// PCI vendors that decide how a GPU is named.
const QUALCOMM: u32 = 0x5143;
const ARM: u32 = 0x13b5;

/// Number types that kernels use if the adapter has them.
const NUMBER_TYPES: Features = Features::SHADER_F16
    .union(Features::SHADER_F64)
    .union(Features::SHADER_INT64);

/// How a GPU is used.
#[derive(Clone, Copy, Debug)]
pub struct GpuConfig {
    /// Bytes of its memory that souk can use; `None` for all of it.
    pub memory_bytes_max: Option<u64>,
    /// A submission must end within this time, otherwise souk gives the device up.
    pub time_max: Duration,
}

impl Default for GpuConfig {
    fn default() -> Self {
        Self {
            memory_bytes_max: None,
            // No subgraph takes that long, and a user does not wait too long for a hung driver.
            time_max: Duration::from_secs(120),
        }
    }
}

/// A GPU that a driver offers.
pub struct Adapter {
    adapter: wgpu::Adapter,
    info: wgpu::AdapterInfo,
}

/// Why an adapter was not opened.
#[derive(Debug, Error)]
#[error("{adapter}: the driver does not open it: {cause}")]
pub struct OpenError {
    /// Name of the adapter.
    pub adapter: String,
    /// The driver's message.
    pub cause: String,
}

/// Lists the adapters of this machine, software ones last.
#[must_use]
pub fn list_adapters() -> Vec<Adapter> {
    let mut descriptor = InstanceDescriptor::new_without_display_handle();
    descriptor.backends = Backends::VULKAN | Backends::METAL | Backends::DX12;
    let instance = Instance::new(descriptor);
    let adapters = pollster::block_on(instance.enumerate_adapters(Backends::all()));
    let mut adapters: Vec<Adapter> = adapters
        .into_iter()
        .map(|adapter| Adapter {
            info: adapter.get_info(),
            adapter,
        })
        .collect();
    adapters.sort_by_key(Adapter::is_software);
    adapters
}

impl Adapter {
    /// Returns the driver's name for the adapter.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// Returns whether the adapter is a program on the CPU, which is for tests and not for sale.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.info.device_type == DeviceType::Cpu
    }

    /// Returns the name of the driver with its version.
    #[must_use]
    pub fn driver_version(&self) -> String {
        let info = &self.info;
        format!("{:?}: {} {}", info.backend, info.driver, info.driver_info)
    }

    /// Returns a key for measurements of the adapter. It changes when they may no longer hold, for
    /// example with a new driver.
    #[must_use]
    pub fn key(&self) -> String {
        let info = &self.info;
        format!(
            "{:04x}:{:04x} {} {}",
            info.vendor,
            info.device,
            info.name,
            self.driver_version()
        )
    }

    /// Describes the adapter. Throughput, memory bandwidth and launch time must be measured.
    #[must_use]
    pub fn profile(&self) -> Profile {
        let (bytes, source) = self.memory_bytes();
        let is_shared = self.info.device_type != DeviceType::DiscreteGpu;
        Profile {
            name: profile::GPU.to_owned(),
            vendor: vendor_name(self.info.vendor),
            model: self.info.name.clone(),
            kind: self.device_kind(),
            emulated: false,
            memory: Memory {
                kind: if is_shared {
                    MemoryKind::Unified
                } else {
                    MemoryKind::Unknown
                },
                bytes,
                bytes_per_second: f64::INFINITY,
            },
            throughput: Default::default(),
            launch: Duration::ZERO,
            power: None,
            traits: vec![Trait::HighlyParallel, Trait::LargeBatch],
            source: format!("{}; memory: {source}", self.driver_version()),
        }
    }

    fn device_kind(&self) -> ProcessorKind {
        let api = match (self.info.vendor, self.info.backend) {
            (QUALCOMM, _) => GpuApi::Adreno,
            (ARM, _) => GpuApi::Mali,
            (_, Backend::Metal) => GpuApi::Metal,
            _ => GpuApi::WebGpu,
        };
        if self.is_software() {
            return ProcessorKind::Custom;
        }
        ProcessorKind::Gpu { api }
    }

    /// Returns the folder in which Linux describes the adapter, if the driver states its PCI
    /// address.
    fn sysfs_folder(&self) -> Option<PathBuf> {
        let address = &self.info.device_pci_bus_id;
        let has_address = !address.is_empty();
        has_address.then(|| Path::new("/sys/bus/pci/devices").join(address))
    }

    /// Returns the link between the memories of the adapter and the host: PCI Express if Linux
    /// describes it, otherwise a copy within the host's memory, which the driver makes even if both
    /// share one memory.
    pub(crate) fn host_link(&self) -> Link {
        match self.info.device_type {
            DeviceType::IntegratedGpu | DeviceType::Cpu => links::host_copy_path(),
            _ => self
                .sysfs_folder()
                .and_then(|folder| souk_host::bus::pcie_at(&folder))
                .unwrap_or_else(links::host_copy_path),
        }
    }

    /// Returns the size of its memory and the source of that figure, because WebGPU does not report
    /// it.
    fn memory_bytes(&self) -> (u64, &'static str) {
        let vram = self
            .sysfs_folder()
            .map(|folder| folder.join("mem_info_vram_total"));
        let stated = vram.and_then(|file| fs::read_to_string(file).ok());
        if let Some(bytes) = stated.and_then(|text| text.trim().parse().ok()) {
            return (bytes, "as the kernel driver states");
        }
        if self.info.device_type != DeviceType::DiscreteGpu
            && let Some(bytes) = system::memory_bytes()
        {
            return (bytes, "the machine's own");
        }
        let largest = self.adapter.limits().max_buffer_size;
        (largest, "at least the largest buffer the driver allows")
    }

    pub(crate) fn open_context(&self, config: GpuConfig) -> Result<Context, OpenError> {
        let supported = self.adapter.limits();
        let limits = Limits {
            max_buffer_size: supported.max_buffer_size,
            max_storage_buffer_binding_size: supported.max_storage_buffer_binding_size,
            ..Limits::default()
        };
        let descriptor = DeviceDescriptor {
            label: Some("souk"),
            required_features: self.adapter.features() & NUMBER_TYPES,
            required_limits: limits,
            memory_hints: MemoryHints::MemoryUsage,
            ..Default::default()
        };
        let opened = pollster::block_on(self.adapter.request_device(&descriptor));
        let (device, queue) = opened.map_err(|error| OpenError {
            adapter: self.info.name.clone(),
            cause: error.to_string(),
        })?;
        let (bytes, _) = self.memory_bytes();
        let bytes_max = config.memory_bytes_max.unwrap_or(bytes).min(bytes);
        let name = self.info.name.clone();
        let lost = Arc::new(AtomicBool::new(false));
        let lost_flag = lost.clone();
        let completion = match self.is_software() {
            true => CompletionSignal::Done,
            false => CompletionSignal::Begun,
        };
        let on_lost = move || lost_flag.store(true, Ordering::Relaxed);
        let driver = WebGpu::new(device, queue, completion, on_lost);
        let driver = Driver::WebGpu(driver);
        let context = Context::new(name, driver, bytes_max, config.time_max, lost);
        Ok(context.with_live_readings(
            self.sysfs_folder()
                .and_then(|folder| SysfsCard::open_folder(&folder)),
        ))
    }
}

/// Returns the name of a PCI vendor, or its number if the name is unknown.
fn vendor_name(number: u32) -> String {
    let name = match number {
        0x1002 => "AMD",
        0x10de => "NVIDIA",
        0x8086 => "Intel",
        0x106b => "Apple",
        QUALCOMM => "Qualcomm",
        ARM => "Arm",
        0x10005 => "Mesa",
        _ => return format!("vendor {number:#06x}"),
    };
    name.to_owned()
}
