//! Drives one open NVIDIA card: allocates its memory, copies data to and from it, launches kernels
//! and matrix products in one stream, and captures repeated runs as CUDA graphs. The GPU backend
//! calls it in place of wgpu.

#![expect(
    unsafe_code,
    reason = "CUDA is called with addresses; each block says why they hold"
)]

mod cublas_lt;
mod peers;
mod staging;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaGraph, CudaSlice, CudaStream, DevicePtr, DriverError,
    LaunchConfig, PushKernelArg, result, sys,
};
use souk_memory::paths::Path;

use super::emit::{self, BoundArray, ENTRY, Translation};
use super::product::ADA;
use super::{CudaDevice, CudaError, Product, library, nvrtc};
use cublas_lt::CublasLt;
use staging::Staging;

/// Upper bound on the runs whose graphs the driver keeps.
const GRAPHS_MAX: usize = 32;
/// Period at which a wait polls a run that was not done at once.
const POLL_PERIOD: Duration = Duration::from_micros(50);

/// An open card.
pub struct Driver {
    pub(super) stream: Arc<CudaStream>,
    pub(super) order: Order,
    pub(super) capability: (u8, u8),
    pub(super) host_link: Path,
    /// Links from other cards' memory to this one's, by ordinal, for the cards queried so far.
    pub(super) peers: Mutex<BTreeMap<usize, Option<Path>>>,
    products: Option<CublasLt>,
    staging: Mutex<Staging>,
    graphs: Mutex<Graphs>,
}

/// The lock on a card's stream: a capture would include anything that another thread enqueues
/// meanwhile.
#[derive(Clone, Default)]
pub(super) struct Order(Arc<Mutex<()>>);

/// Allocated memory of a card.
pub struct Block {
    /// `None` only while it is dropped.
    slice: Option<CudaSlice<u8>>,
    bytes: u64,
    address: sys::CUdeviceptr,
    order: Order,
}

/// The address and the length of a stretch of a card's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    address: sys::CUdeviceptr,
    bytes: u64,
}

/// A compiled kernel.
pub struct Kernel {
    /// No other has this number.
    number: u64,
    function: CudaFunction,
    threads: [u32; 3],
    arrays: Vec<BoundArray>,
}

/// A launch of a kernel: its workgroups and its arguments.
pub struct Call {
    /// The number of its kernel.
    kernel: u64,
    function: CudaFunction,
    threads: [u32; 3],
    groups: [u32; 3],
    /// Address and number of elements of each array.
    arguments: Vec<(sys::CUdeviceptr, u32)>,
}

/// One step of a run.
pub enum RunStep {
    /// Launches a kernel.
    Kernel(Call),
    /// Multiplies matrices with cuBLASLt.
    Product(Product<Span>),
}

/// Runs seen once, keyed by their launches, and the graphs of runs seen again.
#[derive(Default)]
struct Graphs {
    seen: BTreeMap<Vec<u64>, Option<Graph>>,
}

struct Graph(CudaGraph);

// SAFETY: a graph must be used by one thread at a time, and lies behind the lock of `Graphs`.
unsafe impl Send for Graph {}

/// Returns the number of cards.
pub(super) fn device_count() -> Result<usize, DriverError> {
    Ok(usize::try_from(CudaContext::device_count()?).unwrap_or(0))
}

/// Reads the properties of a card.
pub(super) fn describe_device(ordinal: usize) -> Result<CudaDevice, CudaError> {
    let context = CudaContext::new(ordinal).map_err(CudaError::from_driver)?;
    let (major, minor) = context
        .compute_capability()
        .map_err(CudaError::from_driver)?;
    Ok(CudaDevice {
        ordinal,
        name: context.name().map_err(CudaError::from_driver)?,
        capability: to_capability(major, minor),
        memory_bytes: context.total_mem().map_err(CudaError::from_driver)? as u64,
    })
}

/// A compute capability, which has two small numbers.
fn to_capability(major: i32, minor: i32) -> (u8, u8) {
    let small = |number| u8::try_from(number).unwrap_or(0);
    (small(major), small(minor))
}

/// Returns CUDA's error as text.
pub(super) fn error_text(error: impl std::fmt::Debug) -> String {
    format!("{error:?}")
}

impl Driver {
    /// Opens a card.
    pub fn open(ordinal: usize) -> Result<Self, String> {
        let context = CudaContext::new(ordinal).map_err(error_text)?;
        // SAFETY: all work of a card goes through one stream, in which order is all that is needed.
        unsafe { context.disable_event_tracking() };
        let (major, minor) = context.compute_capability().map_err(error_text)?;
        let stream = context.new_stream().map_err(error_text)?;
        let capability = to_capability(major, minor);
        let products = match library::has_cublaslt() {
            true => Some(CublasLt::open(stream.clone(), capability)?),
            false => None,
        };
        let staging = Staging::allocate_staging(&context).map_err(error_text)?;
        Ok(Self {
            host_link: peers::host_link(&context),
            peers: Mutex::default(),
            order: Order::default(),
            stream,
            capability,
            products,
            staging: Mutex::new(staging),
            graphs: Mutex::default(),
        })
    }

    /// Returns the card's UUID.
    pub fn device_uuid(&self) -> Option<[u8; 16]> {
        let identity = self.stream.context().uuid().ok()?;
        // Its type differs from machine to machine.
        Some(
            identity
                .bytes
                .map(|byte| u8::from_ne_bytes(byte.to_ne_bytes())),
        )
    }

    /// Returns the link between the card's memory and the host's.
    pub fn host_link(&self) -> Path {
        self.host_link
    }

    /// Whether there is a library of products on a card that multiplies 8-bit floats.
    pub fn multiplies_quarters(&self) -> bool {
        self.products.is_some() && self.capability >= ADA
    }

    /// Whether there is a library of products, and it does this one.
    pub fn can_multiply<P>(&self, product: &Product<P>) -> bool {
        let products = self.products.as_ref();
        products.is_some_and(|products| products.can_multiply(product))
    }

    /// Returns the bytes of the card's memory that no process uses.
    pub fn free_bytes(&self) -> Option<u64> {
        let (free, _) = self.stream.context().mem_get_info().ok()?;
        Some(free as u64)
    }

    /// Allocates memory; returns `None` if there is no room.
    pub fn allocate_block(&self, bytes: u64) -> Option<Block> {
        let bytes = usize::try_from(bytes).ok()?;
        let slice = {
            let _alone = self.order.lock_stream();
            // SAFETY: bytes have no value they may not have; kernels write before they read, and a
            // buyer's kernel gets its outputs cleared.
            unsafe { self.stream.alloc::<u8>(bytes) }.ok()?
        };
        let (address, _) = slice.device_ptr(&self.stream);
        Some(Block {
            bytes: slice.num_bytes() as u64,
            address,
            slice: Some(slice),
            order: self.order.clone(),
        })
    }

    /// Writes bytes to the beginning of a block, before whatever is run next. The block must have
    /// room for them.
    pub fn write(&self, block: &Block, bytes: &[u8]) -> Result<(), String> {
        let span = block.span(0, bytes.len() as u64);
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        let _alone = self.order.lock_stream();
        staging.write(&self.stream, span, bytes).map_err(error_text)
    }

    /// Copies memory within the card, as many bytes as the shorter stretch has. The caller must
    /// keep the blocks of both alive.
    pub fn copy_span(&self, from: Span, to: Span) -> Result<(), String> {
        self.stream.context().bind_to_thread().map_err(error_text)?;
        let _alone = self.order.lock_stream();
        let bytes = usize::try_from(from.bytes.min(to.bytes)).unwrap_or(usize::MAX);
        let stream = self.stream.cu_stream();
        // SAFETY: each span lies within a block that the caller keeps alive.
        unsafe { result::memcpy_dtod_async(to.address, from.address, bytes, stream) }
            .map_err(error_text)
    }

    /// Translates and compiles a kernel.
    pub fn compile_kernel(&self, wgsl: &str) -> Result<Kernel, String> {
        let translated = emit::translate_kernel(wgsl).map_err(|error| error.to_string())?;
        let Translation {
            source,
            threads,
            arrays,
        } = translated;
        let ptx = nvrtc::compile_ptx(&source, self.capability)?;
        let module = self.stream.context().load_module(ptx).map_err(error_text)?;
        let function = module.load_function(ENTRY).map_err(error_text)?;
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        Ok(Kernel {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            function,
            threads,
            arrays,
        })
    }

    /// Executes work in order. Launches work that ran before with the same memory as one graph. The
    /// caller must keep that memory alive.
    pub fn run(&self, work: &[RunStep]) -> Result<(), String> {
        let key: Vec<u64> = work.iter().flat_map(RunStep::key).collect();
        let mut graphs = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        let _alone = self.order.lock_stream();
        match graphs.seen.get(&key) {
            Some(Some(graph)) => return graph.0.launch().map_err(error_text),
            Some(None) => {}
            None => {
                if graphs.seen.len() >= GRAPHS_MAX {
                    graphs.seen.clear();
                }
                graphs.seen.insert(key, None);
                return self.launch_all(work);
            }
        }
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).map_err(error_text)?;
        let launched = self.launch_all(work);
        let graph = self.stream.end_capture(sys::CUgraphInstantiate_flags(0));
        launched?;
        let Some(graph) = graph.map_err(error_text)? else {
            return self.launch_all(work);
        };
        graph.launch().map_err(error_text)?;
        graphs.seen.insert(key, Some(Graph(graph)));
        Ok(())
    }

    fn launch_all(&self, work: &[RunStep]) -> Result<(), String> {
        work.iter().try_for_each(|step| match step {
            RunStep::Kernel(call) => self.launch_kernel(call),
            RunStep::Product(product) => self.multiply_matrices(product),
        })
    }

    fn launch_kernel(&self, call: &Call) -> Result<(), String> {
        let tuple = |[x, y, z]: [u32; 3]| (x, y, z);
        let config = LaunchConfig {
            grid_dim: tuple(call.groups),
            block_dim: tuple(call.threads),
            shared_mem_bytes: 0,
        };
        let mut launch = self.stream.launch_builder(&call.function);
        for (address, length) in &call.arguments {
            launch.arg(address).arg(length);
        }
        // SAFETY: the arguments are those that the kernel was translated for, in its order. The
        // caller keeps the memory alive, and the kernel stays within the lengths in its arguments.
        unsafe { launch.launch(config) }
            .map(|_| ())
            .map_err(error_text)
    }

    /// Multiplies matrices with the library.
    ///
    /// # Errors
    /// Returns the library's message, or says that there is no library.
    pub fn multiply_matrices(&self, product: &Product<Span>) -> Result<(), String> {
        let Some(products) = &self.products else {
            return Err("there is no library of products".to_owned());
        };
        products.multiply_matrices(product)
    }

    /// Waits for all work and reads the first bytes of some blocks; returns `None` if the work is
    /// not done in this time.
    pub fn read(
        &self,
        blocks: &[(&Block, u64)],
        time_max: Duration,
    ) -> Result<Option<Vec<Bytes>>, String> {
        let done = {
            let _alone = self.order.lock_stream();
            self.stream.record_event(None).map_err(error_text)?
        };
        let start = Instant::now();
        while !done.try_is_complete().map_err(error_text)? {
            if start.elapsed() > time_max {
                return Ok(None);
            }
            thread::sleep(POLL_PERIOD);
        }
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        let _alone = self.order.lock_stream();
        let mut read = Vec::with_capacity(blocks.len());
        for (block, bytes) in blocks {
            let bytes = usize::try_from((*bytes).min(block.bytes())).map_err(error_text)?;
            let held = staging.read(&self.stream, block.span(0, u64::MAX), bytes);
            read.push(held.map_err(error_text)?.into());
        }
        Ok(Some(read))
    }
}

impl Block {
    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the address of a stretch of the block, cut to the block's size.
    pub fn span(&self, start: u64, bytes: u64) -> Span {
        let start = start.min(self.bytes());
        Span {
            address: self.address + start,
            bytes: bytes.min(self.bytes() - start),
        }
    }
}

impl Drop for Block {
    /// Memory is freed in the order of its stream, by a thread that knows the card.
    fn drop(&mut self) {
        let Some(slice) = self.slice.take() else {
            return;
        };
        let _alone = self.order.lock_stream();
        // A card that is gone has no memory to give back.
        let _ = slice.context().bind_to_thread();
        drop(slice);
    }
}

impl Order {
    /// Locks the stream: until the guard is dropped, no other thread enqueues work.
    pub(super) fn lock_stream(&self) -> MutexGuard<'_, ()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Span {
    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it begins.
    pub fn address(&self) -> sys::CUdeviceptr {
        self.address
    }
}

impl Kernel {
    /// A launch with arrays by their bindings.
    pub fn call(&self, arrays: &[Span], groups: [u32; 3]) -> Result<Call, String> {
        let argument = |bound: &BoundArray| {
            let span = usize::try_from(bound.binding).ok();
            let span = span.and_then(|binding| arrays.get(binding));
            let span = span.ok_or_else(|| {
                let (binding, given) = (bound.binding, arrays.len());
                format!("the kernel binds array {binding}, {given} are given")
            })?;
            Ok((
                span.address,
                u32::try_from(span.bytes / 4).unwrap_or(u32::MAX),
            ))
        };
        let arguments: Result<Vec<_>, String> = self.arrays.iter().map(argument).collect();
        Ok(Call {
            kernel: self.number,
            function: self.function.clone(),
            threads: self.threads,
            groups,
            arguments: arguments?,
        })
    }
}

impl RunStep {
    /// Returns a key of this work: two pieces of work with one key do the same to the same memory.
    fn key(&self) -> Vec<u64> {
        match self {
            Self::Kernel(call) => {
                let mut key = vec![0, call.kernel];
                key.extend(call.groups.iter().map(|&side| u64::from(side)));
                let arguments = call.arguments.iter();
                key.extend(arguments.flat_map(|(address, length)| [*address, u64::from(*length)]));
                key
            }
            Self::Product(product) => {
                let mut key = vec![1, product.result.address];
                key.extend([product.left.place.address, product.right.place.address]);
                key.push(product.bias.map_or(0, |bias| bias.address));
                let scales = product.scales.iter().flatten();
                key.extend(scales.map(|scale| scale.address));
                key.extend(product.algorithm_key());
                key
            }
        }
    }
}
