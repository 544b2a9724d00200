//! An open GPU as the rest of the backend uses it: its memory, its compiled kernels, and its
//! driver. All programs on a GPU share one [`Context`]. A run holds its turn from the first upload
//! to the last read-out, so only one run at a time uses the device.
//!
//! Buffers come from a pool. They return to it when the last value that uses them is dropped, so a
//! program that runs again allocates nothing. The context stores compiled kernels by their source.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use souk_host::busy::Busy;
use souk_host::power::PowerDomain;

use crate::driver::{Buffer, Driver, Launch, Pipeline};
use crate::error::GpuError;
use crate::numbers::doubles::DoubleSupport;
use crate::numbers::packed::Halves;
use crate::sysfs_card::SysfsCard;
use crate::traffic::{CopyDirection, Traffic};

/// Upper bound on the compiled kernels kept; a backend's own are below a hundred, the others are
/// buyers'.
const PIPELINES_MAX: usize = 512;
/// Upper bound on the bytes of idle buffers; the context returns any excess to the driver.
const POOL_BYTES_MAX: u64 = 1 << 30;
/// Smallest size of a buffer in bytes.
const BUFFER_BYTES_MIN: u64 = 256;

/// A device with its queue, kernels and memory.
pub(crate) struct Context {
    driver: Driver,
    /// Name of the device in errors.
    pub name: String,
    /// The most bytes that can be in use at once.
    pub bytes_max: u64,
    /// A submission must end within this time.
    pub time_max: Duration,
    lost: Arc<AtomicBool>,
    meter: Option<Box<dyn PowerDomain>>,
    live: Option<SysfsCard>,
    memory: Arc<Memory>,
    pipelines: Mutex<BTreeMap<String, Arc<Pipeline>>>,
    compiling_us: AtomicU64,
    traffic: Traffic,
    /// How kernels have floats of 16 bits, once a graph asked.
    halves: OnceLock<Halves>,
    /// Which numbers of 64 bits kernels have.
    doubles: OnceLock<DoubleSupport>,
    busy: Busy,
    /// Held from the first upload of a run to its last read-out.
    pub run_lock: Mutex<()>,
}

/// Buffers at rest, and the bytes of all there are.
#[derive(Default)]
struct Memory {
    idle: Mutex<BTreeMap<u64, Vec<Buffer>>>,
    idle_bytes: AtomicU64,
    used_bytes: AtomicU64,
}

/// A buffer that counts while it lives; it returns to the pool if it came from there.
pub(crate) struct PooledBuffer {
    buffer: Option<Buffer>,
    memory: Arc<Memory>,
    /// Whether it goes back to the pool.
    reusable: bool,
}

impl Context {
    /// A context over a device just opened.
    pub fn new(
        name: String,
        driver: Driver,
        bytes_max: u64,
        time_max: Duration,
        lost: Arc<AtomicBool>,
    ) -> Self {
        Self {
            driver,
            name,
            bytes_max,
            time_max,
            lost,
            memory: Arc::default(),
            pipelines: Mutex::default(),
            compiling_us: AtomicU64::new(0),
            meter: None,
            live: None,
            traffic: Traffic::default(),
            halves: OnceLock::new(),
            doubles: OnceLock::new(),
            busy: Busy::default(),
            run_lock: Mutex::default(),
        }
    }

    /// Adds a counter of the device's energy.
    #[cfg(feature = "cuda")]
    pub fn with_meter(mut self, meter: Option<Box<dyn PowerDomain>>) -> Self {
        self.meter = meter;
        self
    }

    /// Adds the readings that the kernel's driver provides of the card.
    pub fn with_live_readings(mut self, live: Option<SysfsCard>) -> Self {
        self.live = live;
        self
    }

    /// Returns the bytes of `all` that this context can still take: those that it does not use and,
    /// where the driver says so, no other process uses. Idle buffers in its pool count as free.
    pub fn free_bytes(&self, all: u64) -> u64 {
        let own = all.saturating_sub(self.used_bytes());
        let left = self.driver.free_bytes();
        let left = left.or_else(|| self.live.as_ref()?.free_bytes());
        match left {
            Some(left) => own.min(left + self.memory.idle_bytes.load(Ordering::Relaxed)),
            None => own,
        }
    }

    /// Joules counted, where the device has a counter.
    pub fn joules(&self) -> Option<f64> {
        self.meter.as_ref()?.energy_joules()
    }

    /// Bytes in buffers that hold values.
    pub fn used_bytes(&self) -> u64 {
        self.memory.used_bytes.load(Ordering::Relaxed)
    }

    /// How kernels have floats of 16 bits; two to a word until [`Self::try_halves`] was called.
    pub fn half_support(&self) -> Halves {
        self.halves.get().copied().unwrap_or(Halves::Words)
    }

    /// Finds out, once, whether the device's own floats of 16 bits are right.
    pub fn try_halves(&self, probe: impl FnOnce(&Self) -> Halves) {
        self.halves.get_or_init(|| probe(self));
    }

    /// Which numbers of 64 bits kernels have.
    pub fn double_support(&self) -> DoubleSupport {
        *self.doubles.get_or_init(|| self.driver.double_support())
    }

    /// Leaves these numbers of 64 bits to it, whatever the device has.
    #[cfg(test)]
    pub fn keep_doubles(&self, doubles: DoubleSupport) {
        self.doubles.get_or_init(|| doubles);
    }

    /// Leaves halves two to a word, whatever the device has.
    #[cfg(test)]
    pub fn keep_words(&self) {
        self.halves.get_or_init(|| Halves::Words);
    }

    /// Returns the idle buffers to the driver.
    #[cfg(test)]
    pub fn let_go(&self) {
        self.memory.let_go();
    }

    /// Bytes in the pool.
    #[cfg(test)]
    pub fn resting_bytes(&self) -> u64 {
        self.memory.idle_bytes.load(Ordering::Relaxed)
    }

    /// Returns the counts of bytes copied in each direction.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Notes that the device worked.
    pub fn note_busy(&self, time: Duration) {
        self.busy.record_busy(time);
    }

    /// Returns the part of the time that the device worked since the last call, 0 to 1; or its
    /// recent load by all processes, if that is known and larger.
    pub fn utilisation(&self) -> f64 {
        let own = self.busy.utilisation();
        let by_meter = || self.meter.as_ref().and_then(|meter| meter.busy_fraction());
        let for_all = self
            .live
            .as_ref()
            .and_then(SysfsCard::busy_fraction)
            .or_else(by_meter);
        for_all.map_or(own, |for_all| own.max(for_all))
    }

    /// A buffer of at least `bytes`.
    pub fn allocate_buffer(&self, bytes: u64) -> Result<Arc<PooledBuffer>, GpuError> {
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
        if let Some(buffer) = self.memory.take_idle(size) {
            return Ok(self.memory.hold_reusable(buffer));
        }
        let largest = self.driver.buffer_bytes_max();
        if size > largest || self.used_bytes() + size > self.bytes_max {
            return Err(out_of_memory());
        }
        let rested = self.memory.idle_bytes.load(Ordering::Relaxed);
        if self.used_bytes() + rested + size > self.bytes_max {
            self.memory.let_go();
        }
        let made = self.driver.allocate_buffer(size).or_else(|| {
            self.memory.let_go();
            self.driver.allocate_buffer(size)
        });
        Ok(self.memory.hold_reusable(made.ok_or_else(out_of_memory)?))
    }

    /// Uploads bytes to a buffer outside the pool. The driver executes a write before the whole
    /// submission that records it, and an earlier part of that submission can use a pooled buffer.
    pub fn upload_bytes(&self, bytes: &[u8]) -> Result<Arc<PooledBuffer>, GpuError> {
        let size = (bytes.len() as u64).max(4).next_multiple_of(4);
        let free = self.bytes_max.saturating_sub(self.used_bytes());
        let out_of_memory = GpuError::OutOfMemory { bytes: size, free };
        if size > self.driver.buffer_bytes_max() || size > free {
            return Err(out_of_memory);
        }
        let buffer = self
            .driver
            .upload_bytes(bytes, size)?
            .ok_or(out_of_memory)?;
        self.traffic
            .record_transfer(CopyDirection::FromHost, bytes.len() as u64);
        Ok(self.memory.hold_once(buffer))
    }

    /// Uploads each of these to such a buffer, all in one copy.
    pub fn upload_all(
        &self,
        contents: &[Cow<'_, [u8]>],
    ) -> Result<Vec<Arc<PooledBuffer>>, GpuError> {
        if let [] | [_] = contents {
            return contents
                .iter()
                .map(|bytes| self.upload_bytes(bytes))
                .collect();
        }
        let sized = contents.iter().map(|bytes| {
            let size = (bytes.len() as u64).max(4).next_multiple_of(4);
            (&**bytes, size)
        });
        let sized: Vec<(&[u8], u64)> = sized.collect();
        let total: u64 = sized.iter().map(|(_, size)| size).sum();
        let free = self.bytes_max.saturating_sub(self.used_bytes());
        let out_of_memory = GpuError::OutOfMemory { bytes: total, free };
        // One staging buffer holds all contents.
        if total > self.driver.buffer_bytes_max() || total > free {
            return Err(out_of_memory);
        }
        let buffers = self.driver.upload_all(&sized)?.ok_or(out_of_memory)?;
        let bytes = contents.iter().map(|bytes| bytes.len() as u64).sum();
        self.traffic.record_transfer(CopyDirection::FromHost, bytes);
        let hold = |buffer| self.memory.hold_once(buffer);
        Ok(buffers.into_iter().map(hold).collect())
    }

    /// The pipeline of a kernel, compiled at its first use.
    pub fn pipeline_for(&self, source: &str) -> Result<Arc<Pipeline>, GpuError> {
        let held = self
            .pipelines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(source)
            .cloned();
        if let Some(pipeline) = held {
            return Ok(pipeline);
        }
        let start = Instant::now();
        let pipeline = Arc::new(self.driver.compile_kernel(source)?);
        let took = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.compiling_us.fetch_add(took, Ordering::Relaxed);
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

    /// How long kernels were compiled, since the device was opened: no work of the device.
    pub fn compiled_for(&self) -> Duration {
        Duration::from_micros(self.compiling_us.load(Ordering::Relaxed))
    }

    /// Returns an error if the device was lost or hung in a run.
    pub fn ensure_not_lost(&self) -> Result<(), GpuError> {
        match self.lost.load(Ordering::Relaxed) {
            true => Err(GpuError::Lost),
            false => Ok(()),
        }
    }

    /// Gives the device up: a kernel hangs on it, so the context queues nothing more.
    pub fn give_up(&self) -> GpuError {
        self.lost.store(true, Ordering::Relaxed);
        let limit = self.time_max;
        GpuError::Hung { limit }
    }

    /// Carries out launches in order.
    pub fn submit_launches(&self, launches: &[Launch]) -> Result<(), GpuError> {
        match self.driver.submit_launches(launches, self.time_max)? {
            true => Ok(()),
            false => Err(self.give_up()),
        }
    }

    /// Returns the driver of the device.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Reads buffers back, the first bytes of each, once everything launched is done.
    pub fn read(&self, buffers: &[(&Buffer, u64)]) -> Result<Vec<Bytes>, GpuError> {
        let read = self.driver.read(buffers, self.time_max);
        self.ensure_not_lost()?;
        let read = read?.ok_or_else(|| self.give_up())?;
        let bytes = buffers.iter().map(|(_, bytes)| bytes).sum();
        self.traffic.record_transfer(CopyDirection::ToHost, bytes);
        Ok(read)
    }
}

impl Memory {
    fn take_idle(&self, size: u64) -> Option<Buffer> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // A buffer a quarter larger does as well.
        let (&found, buffers) = idle
            .range_mut(size..=size + size / 4)
            .find(|(_, buffers)| !buffers.is_empty())?;
        self.idle_bytes.fetch_sub(found, Ordering::Relaxed);
        buffers.pop()
    }

    /// Returns the idle buffers to the driver.
    fn let_go(&self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.clear();
        self.idle_bytes.store(0, Ordering::Relaxed);
    }

    fn hold_reusable(self: &Arc<Self>, buffer: Buffer) -> Arc<PooledBuffer> {
        self.count_buffer(buffer, true)
    }

    /// Holds a buffer that does not go to the pool.
    fn hold_once(self: &Arc<Self>, buffer: Buffer) -> Arc<PooledBuffer> {
        self.count_buffer(buffer, false)
    }

    fn count_buffer(self: &Arc<Self>, buffer: Buffer, reusable: bool) -> Arc<PooledBuffer> {
        self.used_bytes.fetch_add(buffer.size(), Ordering::Relaxed);
        Arc::new(PooledBuffer {
            buffer: Some(buffer),
            memory: self.clone(),
            reusable,
        })
    }
}

impl PooledBuffer {
    /// Returns the underlying buffer.
    pub fn get(&self) -> &Buffer {
        self.buffer.as_ref().expect("it is taken only when dropped")
    }
}

impl Drop for PooledBuffer {
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
        let mut idle = memory.idle.lock().unwrap_or_else(PoisonError::into_inner);
        memory.idle_bytes.fetch_add(size, Ordering::Relaxed);
        idle.entry(size).or_default().push(buffer);
    }
}
