//! Opens a card through CUDA, where that is built in, as a [`Gpu`] that runs the same kernels as
//! one reached through wgpu.

use std::sync::Arc;

use souk_cuda::{CudaError, Driver, list_devices};
use souk_host::power;

use crate::context::Context;
use crate::{Gpu, GpuConfig, driver};

/// Opens a card without measuring its throughput, so its profile will state none.
///
/// # Errors
/// Returns a [`CudaError`] if a library or the device is absent, or the driver reports an error.
pub fn open_card(ordinal: usize, config: GpuConfig) -> Result<Gpu, CudaError> {
    let devices = list_devices()?;
    let count = devices.len();
    let device = devices.get(ordinal);
    let device = device.ok_or(CudaError::Unknown { ordinal, count })?;
    let profile = device.profile();
    let driver = Driver::open(ordinal).map_err(|reason| CudaError::Driver { reason })?;
    let host_link = driver.host_link();
    let card = driver.device_uuid().and_then(power::Card::with_identity);
    let meter = card.map(|card| Box::new(card) as Box<dyn power::PowerDomain>);
    let driver = driver::Driver::Cuda(Box::new(driver));
    let name = profile.model.clone();
    let all = profile.memory.bytes;
    let bytes_max = config.memory_bytes_max.unwrap_or(all).min(all);
    let context = Context::new(name, driver, bytes_max, config.time_max, Arc::default());
    let gpu = Gpu::from_context(profile, context.with_meter(meter), host_link);
    Ok(gpu.with_memory_max(config.memory_bytes_max))
}
