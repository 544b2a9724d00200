//! A GPU opened: its memory, its compiled kernels, and one submission at a time.
//!
//! Buffers come from a pool and go back to it when the last value that uses them is dropped, so a
//! program that runs again allocates nothing. Pipelines are kept by their source.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use wgpu::{
    Buffer, BufferDescriptor, BufferUsages, ComputePipeline, ComputePipelineDescriptor, Device,
    ErrorFilter, PollError, PollType, Queue, ShaderModuleDescriptor, ShaderSource,
};

use super::error::GpuError;

/// Compiled kernels kept; a backend's own are below a hundred, the others are buyers'.
const PIPELINES_MAX: usize = 512;
/// Bytes of buffers kept for another use; what is beyond goes back to the driver.
const POOL_BYTES_MAX: u64 = 1 << 30;
/// Buffers are made in sizes of at least this.
const BUFFER_BYTES_MIN: u64 = 256;

/// A device with its queue, kernels and memory.
pub(super) struct Context {
    pub device: Device,
    pub queue: Queue,
    /// What the device is called in errors.
    pub name: String,
    /// The most bytes that may be in use at once.
    pub bytes_max: u64,
    /// How long one submission may take.
    pub time_max: Duration,
    lost: Arc<AtomicBool>,
    memory: Arc<Memory>,
    pipelines: Mutex<BTreeMap<String, Arc<ComputePipeline>>>,
    busy_nanos: AtomicU64,
    /// When utilisation was last asked for, and what was busy until then.
    asked: Mutex<(Instant, u64)>,
    /// Held from the first upload of a run to its last read-out.
    pub turn: Mutex<()>,
}

/// Buffers at rest, and the bytes of all there are.
#[derive(Default)]
struct Memory {
    idle: Mutex<BTreeMap<u64, Vec<Buffer>>>,
    idle_bytes: AtomicU64,
    used_bytes: AtomicU64,
}

/// A buffer counted while it lives; it goes back to the pool if it came from there.
pub(super) struct Pooled {
    buffer: Option<Buffer>,
    memory: Arc<Memory>,
    /// Whether it goes back to the pool.
    reusable: bool,
}

impl Context {
    /// A context over a device just opened.
    pub fn new(
        name: String,
        device: Device,
        queue: Queue,
        bytes_max: u64,
        time_max: Duration,
    ) -> Self {
        let lost = Arc::new(AtomicBool::new(false));
        let flag = lost.clone();
        device.set_device_lost_callback(move |_, _| flag.store(true, Ordering::Relaxed));
        // What no scope catches would panic; a lost device is told by the flag.
        device.on_uncaptured_error(Arc::new(|_| {}));
        Self {
            device,
            queue,
            name,
            bytes_max,
            time_max,
            lost,
            memory: Arc::default(),
            pipelines: Mutex::default(),
            busy_nanos: AtomicU64::new(0),
            asked: Mutex::new((Instant::now(), 0)),
            turn: Mutex::default(),
        }
    }

    /// Bytes in buffers that hold values.
    pub fn used_bytes(&self) -> u64 {
        self.memory.used_bytes.load(Ordering::Relaxed)
    }

    /// Notes that the device worked.
    pub fn note_busy(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.busy_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// The part of the time it worked since this was last asked, 0 to 1.
    pub fn utilisation(&self) -> f64 {
        let busy = self.busy_nanos.load(Ordering::Relaxed);
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, before) = std::mem::replace(&mut *asked, (Instant::now(), busy));
        let all = since.elapsed().as_nanos().max(1) as f64;
        ((busy - before) as f64 / all).min(1.0)
    }

    /// A buffer of at least `bytes`.
    pub fn buffer(&self, bytes: u64) -> Result<Arc<Pooled>, GpuError> {
        let size = bytes.max(BUFFER_BYTES_MIN).next_power_of_two();
        // Large ones are rounded less: half of a device would be lost to rounding.
        let size = if size > 1 << 20 {
            bytes.next_multiple_of(1 << 18)
        } else {
            size
        };
        let out_of_memory = || GpuError::OutOfMemory {
            bytes,
            free: self.bytes_max.saturating_sub(self.used_bytes()),
        };
        if let Some(buffer) = self.memory.take(size) {
            return Ok(self.memory.hold(buffer));
        }
        let limits = self.device.limits();
        let binding_max = limits
            .max_storage_buffer_binding_size
            .min(limits.max_buffer_size);
        if size > binding_max || self.used_bytes() + size > self.bytes_max {
            return Err(out_of_memory());
        }
        let scope = self.device.push_error_scope(ErrorFilter::OutOfMemory);
        let buffer = self.device.create_buffer(&BufferDescriptor {
            label: None,
            size,
            usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        if pollster::block_on(scope.pop()).is_some() {
            return Err(out_of_memory());
        }
        Ok(self.memory.hold(buffer))
    }

    /// A buffer of its own with these bytes in it. Not from the pool: a write is carried out before
    /// the whole submission it is recorded in, in which a pooled buffer may have had another use.
    pub fn upload(&self, bytes: &[u8]) -> Result<Arc<Pooled>, GpuError> {
        let size = (bytes.len() as u64).max(4).next_multiple_of(4);
        let limits = self.device.limits();
        let binding_max = limits
            .max_storage_buffer_binding_size
            .min(limits.max_buffer_size);
        let free = self.bytes_max.saturating_sub(self.used_bytes());
        if size > binding_max || size > free {
            return Err(GpuError::OutOfMemory { bytes: size, free });
        }
        let scope = self.device.push_error_scope(ErrorFilter::OutOfMemory);
        let buffer = self.device.create_buffer(&BufferDescriptor {
            label: None,
            size,
            usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        if bytes.len().is_multiple_of(4) {
            self.queue.write_buffer(&buffer, 0, bytes);
        } else {
            let mut padded = bytes.to_vec();
            padded.resize(size as usize, 0);
            self.queue.write_buffer(&buffer, 0, &padded);
        }
        if pollster::block_on(scope.pop()).is_some() {
            return Err(GpuError::OutOfMemory { bytes: size, free });
        }
        self.memory.used_bytes.fetch_add(size, Ordering::Relaxed);
        Ok(Arc::new(Pooled {
            buffer: Some(buffer),
            memory: self.memory.clone(),
            reusable: false,
        }))
    }

    /// The pipeline of a kernel, compiled at its first use.
    pub fn pipeline(&self, source: &str) -> Result<Arc<ComputePipeline>, GpuError> {
        let held = self
            .pipelines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(source)
            .cloned();
        if let Some(pipeline) = held {
            return Ok(pipeline);
        }
        let scope = self.device.push_error_scope(ErrorFilter::Validation);
        let module = self.device.create_shader_module(ShaderModuleDescriptor {
            label: None,
            source: ShaderSource::Wgsl(source.into()),
        });
        let pipeline = self
            .device
            .create_compute_pipeline(&ComputePipelineDescriptor {
                label: None,
                layout: None,
                module: &module,
                entry_point: Some("main"),
                compilation_options: Default::default(),
                cache: None,
            });
        if let Some(error) = pollster::block_on(scope.pop()) {
            return Err(GpuError::Kernel(error.to_string()));
        }
        let pipeline = Arc::new(pipeline);
        let mut pipelines = self
            .pipelines
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if pipelines.len() >= PIPELINES_MAX {
            pipelines.clear();
        }
        pipelines.insert(source.to_owned(), pipeline.clone());
        Ok(pipeline)
    }

    /// Whether the device can still be used: not once it was lost, or hung in a run.
    pub fn check(&self) -> Result<(), GpuError> {
        match self.lost.load(Ordering::Relaxed) {
            true => Err(GpuError::Lost),
            false => Ok(()),
        }
    }

    /// Gives the device up: what hangs still runs, so nothing more is queued behind it.
    pub fn give_up(&self) -> GpuError {
        self.lost.store(true, Ordering::Relaxed);
        let limit = self.time_max;
        GpuError::Hung { limit }
    }

    /// Waits until everything submitted is done.
    pub fn wait(&self) -> Result<(), GpuError> {
        let waited = self.device.poll(PollType::Wait {
            submission_index: None,
            timeout: Some(self.time_max),
        });
        self.check()?;
        match waited {
            Ok(_) => Ok(()),
            Err(PollError::Timeout) => Err(self.give_up()),
            Err(error) => Err(GpuError::Driver(error.to_string())),
        }
    }

    /// Reads buffers back, the first `bytes` of each.
    pub fn read(&self, buffers: &[(&Buffer, u64)]) -> Result<Vec<Bytes>, GpuError> {
        let padded = |bytes: u64| bytes.next_multiple_of(8);
        let total: u64 = buffers.iter().map(|(_, bytes)| padded(*bytes)).sum();
        if total == 0 {
            return Ok(vec![Bytes::new(); buffers.len()]);
        }
        let staging = self.device.create_buffer(&BufferDescriptor {
            label: None,
            size: total,
            usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut at = 0;
        for (buffer, bytes) in buffers {
            if *bytes > 0 {
                let copied = bytes.next_multiple_of(4);
                encoder.copy_buffer_to_buffer(buffer, 0, &staging, at, copied);
            }
            at += padded(*bytes);
        }
        self.queue.submit([encoder.finish()]);
        let (sender, receiver) = std::sync::mpsc::channel();
        staging.map_async(wgpu::MapMode::Read, .., move |mapped| {
            // The receiver is gone only if the wait below failed.
            let _ = sender.send(mapped);
        });
        self.wait()?;
        let mapped = receiver
            .recv()
            .map_err(|_| GpuError::Driver("nothing was mapped".to_owned()))?;
        mapped.map_err(|error| GpuError::Driver(error.to_string()))?;
        let view = staging
            .get_mapped_range(..)
            .map_err(|error| GpuError::Driver(error.to_string()))?;
        let mut at = 0;
        let mut read = Vec::with_capacity(buffers.len());
        for (_, bytes) in buffers {
            read.push(Bytes::copy_from_slice(&view[at..at + *bytes as usize]));
            at += padded(*bytes) as usize;
        }
        Ok(read)
    }
}

impl Memory {
    fn take(&self, size: u64) -> Option<Buffer> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // A buffer a quarter larger does as well.
        let (&found, buffers) = idle
            .range_mut(size..=size + size / 4)
            .find(|(_, buffers)| !buffers.is_empty())?;
        self.idle_bytes.fetch_sub(found, Ordering::Relaxed);
        buffers.pop()
    }

    fn hold(self: &Arc<Self>, buffer: Buffer) -> Arc<Pooled> {
        self.used_bytes.fetch_add(buffer.size(), Ordering::Relaxed);
        Arc::new(Pooled {
            buffer: Some(buffer),
            memory: self.clone(),
            reusable: true,
        })
    }
}

impl Pooled {
    /// The buffer.
    pub fn get(&self) -> &Buffer {
        self.buffer.as_ref().expect("it is taken only when dropped")
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else {
            return;
        };
        let size = buffer.size();
        let memory = &self.memory;
        memory.used_bytes.fetch_sub(size, Ordering::Relaxed);
        if !self.reusable || memory.idle_bytes.load(Ordering::Relaxed) + size > POOL_BYTES_MAX {
            return;
        }
        memory.idle_bytes.fetch_add(size, Ordering::Relaxed);
        let mut idle = memory.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.entry(size).or_default().push(buffer);
    }
}
