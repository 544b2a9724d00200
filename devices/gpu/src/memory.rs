//! Moves tensors into a GPU's memory, where they stay from one run to another, and back. It
//! implements [`DeviceMemory`] for GPUs and [`Resident`] for such a tensor.
//!
//! A resident tensor is a buffer that a run wrote or the host filled. The buffer is out of the
//! pool, and counts as used, until its last reference is dropped. A kernel writes only to buffers
//! of its own run, so a resident tensor can be the input of any number of runs at once.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use souk_memory::paths::Path;
use souk_memory::{DType, Shape, Tensor};
use souk_reference::call::KernelError;
use souk_vocabulary::links::Link;
use souk_vocabulary::processor::RunError;
use souk_vocabulary::residency::{DeviceMemory, Resident};

use crate::context::Context;
use crate::error::GpuError;
use crate::numbers::packed::is_stored_natively;
use crate::recording::{Array, Stream, Value, tensor_from_words, upload_all, upload_tensor};
use crate::traffic::CopyDirection;

/// A GPU's memory, to and from which the host and other devices copy tensors.
pub(crate) struct GpuMemory {
    context: Arc<Context>,
    host_link: Path,
}

impl GpuMemory {
    pub fn new(context: Arc<Context>, host_link: Path) -> Self {
        Self { context, host_link }
    }

    /// Takes in how long copies to the host and back took: of both ways the slower.
    pub fn record_timings(&mut self, timed: &[Link]) {
        let slowest = timed.iter().map(|link| link.bytes_per_second);
        let Some(rate) = slowest.min_by(f64::total_cmp) else {
            return;
        };
        let latest = timed.iter().map(|link| link.latency_seconds);
        let latency = Duration::try_from_secs_f64(latest.fold(0.0, f64::max));
        self.host_link = Path {
            latency: latency.unwrap_or(self.host_link.latency),
            bytes_per_second: rate,
            ..self.host_link
        };
    }

    /// Whether tensors of a type go there.
    fn can_hold(&self, dtype: DType) -> bool {
        is_stored_natively(dtype) || dtype == DType::F64 && self.context.double_support().floats
    }

    fn wrap_resident(&self, value: Value) -> Result<Arc<dyn Resident>, RunError> {
        let resident = GpuResident::new(&self.context, value);
        let resident = resident.map_err(|error| error.into_run_error(&self.context.name, None))?;
        Ok(Arc::new(resident))
    }
}

impl DeviceMemory for GpuMemory {
    fn host_link(&self) -> Path {
        self.host_link
    }

    fn peer_link(&self, other: &dyn DeviceMemory) -> Option<Path> {
        let other: &dyn Any = other;
        let other = other.downcast_ref::<Self>()?;
        let driver = self.context.driver();
        driver.link_from(other.context.driver())
    }

    /// Moves floats, truths and bytes to the device. Other integers stay in the host's memory; each
    /// run whose kernels read them sends them, in the 32 bits in which kernels compute.
    fn copy_from_host(&self, tensor: &Tensor) -> Result<Arc<dyn Resident>, RunError> {
        if !self.can_hold(tensor.dtype()) {
            return self.wrap_resident(Value::of_host(tensor.clone()));
        }
        let gone = self.context.ensure_not_lost();
        let sent = gone.and_then(|()| upload_tensor(&Stream::new(&self.context), tensor));
        let array = sent.map_err(|error| error.into_run_error(&self.context.name, None))?;
        self.wrap_resident(Value::of_device(array))
    }

    fn put_all(&self, tensors: &[Tensor]) -> Result<Vec<Arc<dyn Resident>>, RunError> {
        let there = |tensor: &&Tensor| self.can_hold(tensor.dtype());
        let sent: Vec<&Tensor> = tensors.iter().filter(there).collect();
        let gone = self.context.ensure_not_lost();
        let arrays = gone.and_then(|()| upload_all(&Stream::new(&self.context), &sent));
        let mut arrays = arrays
            .map_err(|error| error.into_run_error(&self.context.name, None))?
            .into_iter();
        let each = tensors.iter().map(|tensor| {
            let array = there(&tensor).then(|| arrays.next()).flatten();
            let on_host = || Value::of_host(tensor.clone());
            self.wrap_resident(array.map_or_else(on_host, Value::of_device))
        });
        each.collect()
    }

    fn read_all(&self, residents: &[Arc<dyn Resident>]) -> Result<Vec<Tensor>, RunError> {
        let own = residents
            .iter()
            .map(|resident| local_resident(&self.context, &**resident));
        // A resident of another device reads itself.
        let Some(own) = own.collect::<Option<Vec<&GpuResident>>>() else {
            return residents.iter().map(|it| it.to_host()).collect();
        };
        let read = read(&self.context, &own);
        read.map_err(|error| error.into_run_error(&self.context.name, None))
    }

    fn copy_from_peer(&self, from: &dyn Resident) -> Result<Arc<dyn Resident>, RunError> {
        match import_resident(&self.context, from)? {
            Some(value) => self.wrap_resident(value),
            None => Err(RunError::Engine {
                engine: "gpu",
                reason: format!("nothing links {from:?} to {}", self.context.name),
            }),
        }
    }
}

/// A tensor that a run wrote or the host copied to the device.
pub(crate) struct GpuResident {
    context: Arc<Context>,
    value: Value,
    dtype: DType,
    shape: Shape,
}

impl GpuResident {
    /// A value of this device that stays as long as this does.
    pub fn new(context: &Arc<Context>, value: Value) -> Result<Self, GpuError> {
        let dtype = match (&value.host, value.on_device()) {
            (Some(tensor), _) => tensor.dtype(),
            (None, Some(array)) => array.dtype,
            (None, None) => return Err(KernelError::Missing(0).into()),
        };
        let shape = Shape::new(value.dims().to_vec()).map_err(KernelError::from)?;
        Ok(Self {
            context: context.clone(),
            value,
            dtype,
            shape,
        })
    }

    /// Where it lies on the device, if nowhere else.
    fn device_array(&self) -> Option<&Array> {
        let on_device = self.value.on_device();
        on_device.filter(|_| self.value.host.is_none())
    }
}

impl Resident for GpuResident {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn bytes(&self) -> u64 {
        let array = self.value.on_device();
        array.map_or(0, |array| array.buffer.get().size())
    }

    fn to_host(&self) -> Result<Tensor, RunError> {
        let read = read(&self.context, &[self]);
        let mut read = read.map_err(|error| error.into_run_error(&self.context.name, None))?;
        Ok(read.pop().expect("it was asked for one"))
    }
}

impl fmt::Debug for GpuResident {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dtype, shape) = (self.dtype, &self.shape);
        write!(formatter, "{dtype} {shape} in {}", self.context.name)
    }
}

/// Reads residents of a device; reads those that lie only there in one copy.
fn read(context: &Context, residents: &[&GpuResident]) -> Result<Vec<Tensor>, GpuError> {
    let arrays: Vec<&Array> = residents
        .iter()
        .filter_map(|it| it.device_array())
        .collect();
    let mut read = Vec::new();
    if !arrays.is_empty() {
        context.ensure_not_lost()?;
        let buffers = arrays.iter().map(|it| (it.buffer.get(), it.bytes()));
        read = context.read(&buffers.collect::<Vec<_>>())?;
    }
    let mut read = read.into_iter();
    let each = residents.iter().map(|it| match it.device_array() {
        Some(array) => tensor_from_words(array, read.next().ok_or(KernelError::Missing(0))?),
        None => Ok(it.value.host.clone().ok_or(KernelError::Missing(0))?),
    });
    each.collect()
}

/// Returns a resident, if it lies in this device's memory.
fn local_resident<'r>(
    context: &Arc<Context>,
    resident: &'r dyn Resident,
) -> Option<&'r GpuResident> {
    let any: &dyn Any = resident;
    let resident: &GpuResident = any.downcast_ref()?;
    Arc::ptr_eq(&resident.context, context).then_some(resident)
}

/// Returns a resident as a value of runs on `context`: itself if it lies there, or a copy if a link
/// leads from its device; `None` if neither.
pub(crate) fn import_resident(
    context: &Arc<Context>,
    from: &dyn Resident,
) -> Result<Option<Value>, RunError> {
    let from: &dyn Any = from;
    let Some(resident) = from.downcast_ref::<GpuResident>() else {
        return Ok(None);
    };
    let value = &resident.value;
    if Arc::ptr_eq(&resident.context, context) {
        return Ok(Some(value.clone()));
    }
    match (&value.host, value.on_device()) {
        (Some(tensor), _) => Ok(Some(Value::of_host(tensor.clone()))),
        (None, Some(array)) => {
            let copy = copy_peer_array(context, &resident.context, array);
            let copy = copy.map_err(|error| error.into_run_error(&context.name, None))?;
            Ok(copy.map(Value::of_device))
        }
        (None, None) => Ok(None),
    }
}

/// Copies an array of another device; returns `None` without a link.
fn copy_peer_array(to: &Context, from: &Context, array: &Array) -> Result<Option<Array>, GpuError> {
    if to.driver().link_from(from.driver()).is_none() {
        return Ok(None);
    }
    to.ensure_not_lost()?;
    from.ensure_not_lost()?;
    let buffer = to.allocate_buffer(array.bytes())?;
    to.driver().copy_from_peer(
        from.driver(),
        array.buffer.get(),
        buffer.get(),
        array.bytes(),
    )?;
    to.traffic()
        .record_transfer(CopyDirection::FromPeer, array.bytes());
    Ok(Some(Array {
        buffer,
        ..array.clone()
    }))
}
