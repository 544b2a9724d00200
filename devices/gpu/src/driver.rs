//! One interface to the two ways of driving a GPU: wgpu, or CUDA where it is built in and found.
//! The context allocates buffers, compiles kernels and submits launches through it.
//!
//! Besides this module and those below it, only the modules that open a GPU (`adapter` and `card`)
//! and the products by the maker's library know which of the two drives it.

mod submitter;
pub(crate) mod webgpu;

use std::sync::Arc;
#[cfg(all(test, feature = "cuda"))]
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
#[cfg(feature = "cuda")]
use souk_cuda as cuda;
use souk_memory::paths::Path;

use crate::driver::webgpu::WebGpu;
use crate::error::GpuError;
use crate::numbers::doubles::DoubleSupport;

/// How a device is driven.
pub(crate) enum Driver {
    WebGpu(WebGpu),
    #[cfg(feature = "cuda")]
    Cuda(Box<cuda::Driver>),
    /// No device: kernels are translated for CUDA, compiled for it, and run on the CPU.
    #[cfg(all(test, feature = "cuda"))]
    Paper,
}

/// Memory of a device.
#[derive(Clone)]
pub(crate) enum Buffer {
    WebGpu(wgpu::Buffer),
    #[cfg(feature = "cuda")]
    Cuda(Arc<cuda::Block>),
    #[cfg(all(test, feature = "cuda"))]
    Paper(Arc<[AtomicU32]>),
}

/// A kernel compiled for a device.
pub(crate) enum Pipeline {
    WebGpu(wgpu::ComputePipeline),
    #[cfg(feature = "cuda")]
    Cuda(cuda::Kernel),
    #[cfg(all(test, feature = "cuda"))]
    Paper(souk_testing::host::HostKernel),
}

/// A stretch of a buffer, in bytes.
#[derive(Clone)]
pub(crate) struct Stretch {
    pub buffer: Buffer,
    pub start: u64,
    pub length: u64,
}

/// One operation of a submission; operations run in order.
pub(crate) enum Launch {
    /// A kernel, its arrays by binding, and its workgroups.
    Kernel {
        pipeline: Arc<Pipeline>,
        arrays: Vec<Stretch>,
        groups: [u32; 3],
    },
    /// A product of matrices by the maker's library.
    #[cfg(feature = "cuda")]
    Product(Box<cuda::Product<Stretch>>),
}

impl Buffer {
    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        match self {
            Self::WebGpu(buffer) => buffer.size(),
            #[cfg(feature = "cuda")]
            Self::Cuda(block) => block.bytes(),
            #[cfg(all(test, feature = "cuda"))]
            Self::Paper(words) => 4 * words.len() as u64,
        }
    }

    /// Returns the stretch of the whole buffer.
    pub fn as_stretch(&self) -> Stretch {
        Stretch {
            buffer: self.clone(),
            start: 0,
            length: self.size(),
        }
    }
}

impl Driver {
    /// The largest buffer.
    pub fn buffer_bytes_max(&self) -> u64 {
        match self {
            Self::WebGpu(driver) => driver.buffer_bytes_max(),
            #[cfg(feature = "cuda")]
            Self::Cuda(_) => u64::MAX,
            #[cfg(all(test, feature = "cuda"))]
            Self::Paper => u64::MAX,
        }
    }

    /// Whether products of 8-bit floats go to the maker's library directly.
    pub fn multiplies_quarters(&self) -> bool {
        #[cfg(feature = "cuda")]
        if let Self::Cuda(driver) = self {
            return driver.multiplies_quarters();
        }
        false
    }

    /// Whether our own kernels, which read weights in their stored form, compute all products: a
    /// maker's library takes floats.
    pub fn reads_blocks(&self) -> bool {
        match self {
            Self::WebGpu(_) => true,
            #[cfg(feature = "cuda")]
            Self::Cuda(_) => false,
            #[cfg(all(test, feature = "cuda"))]
            Self::Paper => true,
        }
    }

    /// Whether kernels can have floats of 16 bits of the device's own.
    pub fn has_halves(&self) -> bool {
        match self {
            Self::WebGpu(driver) => driver.has_halves(),
            #[cfg(feature = "cuda")]
            Self::Cuda(_) => false,
            #[cfg(all(test, feature = "cuda"))]
            Self::Paper => false,
        }
    }

    /// Which numbers of 64 bits kernels can have.
    pub fn double_support(&self) -> DoubleSupport {
        match self {
            Self::WebGpu(driver) => driver.double_support(),
            #[cfg(feature = "cuda")]
            Self::Cuda(_) => DoubleSupport::default(),
            #[cfg(all(test, feature = "cuda"))]
            Self::Paper => DoubleSupport::default(),
        }
    }

    /// Returns the bytes of memory that no process uses, if the driver reports them.
    pub fn free_bytes(&self) -> Option<u64> {
        match self {
            Self::WebGpu(_) => None,
            #[cfg(feature = "cuda")]
            Self::Cuda(driver) => driver.free_bytes(),
            #[cfg(all(test, feature = "cuda"))]
            Self::Paper => None,
        }
    }

    /// Returns the link from another device's memory to this one's, if the driver can copy from
    /// there without passing the host's memory.
    pub fn link_from(&self, other: &Self) -> Option<Path> {
        #[cfg(feature = "cuda")]
        if let (Self::Cuda(own), Self::Cuda(other)) = (self, other) {
            return own.link_from(other);
        }
        let _ = other;
        None
    }

    /// Copies the first bytes of a buffer of another device, from which there must be a link.
    pub fn copy_from_peer(
        &self,
        from: &Self,
        source: &Buffer,
        target: &Buffer,
        bytes: u64,
    ) -> Result<(), GpuError> {
        #[cfg(feature = "cuda")]
        if let (Self::Cuda(own), Self::Cuda(from)) = (self, from)
            && let (Buffer::Cuda(source), Buffer::Cuda(target)) = (source, target)
        {
            let copied = cuda::Driver::copy_from_peer(
                own,
                from,
                source.span(0, bytes),
                target.span(0, bytes),
            );
            return copied.map_err(GpuError::Driver);
        }
        let _ = (from, source, target, bytes);
        Err(GpuError::Driver("nothing links these devices".to_owned()))
    }

    /// Allocates a buffer; returns `None` if there is no room.
    pub fn allocate_buffer(&self, bytes: u64) -> Option<Buffer> {
        match self {
            Self::WebGpu(driver) => driver.allocate_buffer(bytes).map(Buffer::WebGpu),
            #[cfg(feature = "cuda")]
            Self::Cuda(driver) => driver
                .allocate_block(bytes)
                .map(|it| Buffer::Cuda(Arc::new(it))),
            #[cfg(all(test, feature = "cuda"))]
            Self::Paper => Some(paper_buffer(&[], bytes)),
        }
    }

    /// A new buffer of `size` bytes with these in it, before whatever is launched next.
    pub fn upload_bytes(&self, bytes: &[u8], size: u64) -> Result<Option<Buffer>, GpuError> {
        match self {
            Self::WebGpu(driver) => Ok(driver.upload_bytes(bytes, size).map(Buffer::WebGpu)),
            #[cfg(feature = "cuda")]
            Self::Cuda(driver) => {
                let Some(block) = driver.allocate_block(size) else {
                    return Ok(None);
                };
                driver.write(&block, bytes).map_err(GpuError::Driver)?;
                Ok(Some(Buffer::Cuda(Arc::new(block))))
            }
            #[cfg(all(test, feature = "cuda"))]
            Self::Paper => Ok(Some(paper_buffer(bytes, size))),
        }
    }

    /// New buffers with these in them, in one copy where the driver has such.
    pub fn upload_all(&self, contents: &[(&[u8], u64)]) -> Result<Option<Vec<Buffer>>, GpuError> {
        match self {
            Self::WebGpu(driver) => {
                let uploaded = driver.upload_all(contents)?;
                Ok(uploaded.map(|all| all.into_iter().map(Buffer::WebGpu).collect()))
            }
            #[cfg(feature = "cuda")]
            _ => {
                let each = contents
                    .iter()
                    .map(|(bytes, size)| self.upload_bytes(bytes, *size));
                each.collect()
            }
        }
    }

    /// Compiles a kernel.
    pub fn compile_kernel(&self, source: &str) -> Result<Pipeline, GpuError> {
        match self {
            Self::WebGpu(driver) => driver.compile_kernel(source).map(Pipeline::WebGpu),
            #[cfg(feature = "cuda")]
            Self::Cuda(driver) => {
                let compiled = driver.compile_kernel(source).map_err(GpuError::Kernel);
                compiled.map(Pipeline::Cuda)
            }
            #[cfg(all(test, feature = "cuda"))]
            Self::Paper => Ok(Pipeline::Paper(super::tests::paper::check(source))),
        }
    }

    /// Submits launches; an error names the launch that the driver refused. Returns `Ok(false)` if
    /// the driver does not answer in this time.
    pub fn submit_launches(
        &self,
        launches: &[Launch],
        time_max: Duration,
    ) -> Result<bool, GpuError> {
        match self {
            Self::WebGpu(driver) => driver.submit_launches(launches, time_max),
            #[cfg(feature = "cuda")]
            Self::Cuda(driver) => launch_cuda(driver, launches).map(|()| true),
            #[cfg(all(test, feature = "cuda"))]
            Self::Paper => {
                launches.iter().for_each(launch_paper);
                Ok(true)
            }
        }
    }

    /// Waits for all launches and reads the first bytes of some buffers. Returns `None` if they do
    /// not end in this time.
    pub fn read(
        &self,
        buffers: &[(&Buffer, u64)],
        time_max: Duration,
    ) -> Result<Option<Vec<Bytes>>, GpuError> {
        match self {
            Self::WebGpu(driver) => driver.read(buffers, time_max),
            #[cfg(feature = "cuda")]
            Self::Cuda(driver) => {
                let blocks = buffers.iter().filter_map(|(buffer, bytes)| match buffer {
                    Buffer::Cuda(block) => Some((&**block, *bytes)),
                    _ => None,
                });
                let blocks: Vec<(&cuda::Block, u64)> = blocks.collect();
                driver.read(&blocks, time_max).map_err(GpuError::Driver)
            }
            #[cfg(all(test, feature = "cuda"))]
            Self::Paper => {
                let read = |(buffer, bytes): &(&Buffer, u64)| {
                    let Buffer::Paper(words) = buffer else {
                        return Bytes::new();
                    };
                    let words = words.iter().map(|word| word.load(Ordering::Relaxed));
                    let all: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
                    Bytes::from(all).slice(..*bytes as usize)
                };
                Ok(Some(buffers.iter().map(read).collect()))
            }
        }
    }
}

#[cfg(all(test, feature = "cuda"))]
fn paper_buffer(bytes: &[u8], size: u64) -> Buffer {
    let word = |at: usize| {
        let word = bytes.get(4 * at..4 * at + 4).unwrap_or_default();
        AtomicU32::new(word.try_into().map_or(0, u32::from_le_bytes))
    };
    Buffer::Paper((0..size.div_ceil(4) as usize).map(word).collect())
}

#[cfg(all(test, feature = "cuda"))]
fn launch_paper(launch: &Launch) {
    let Launch::Kernel {
        pipeline,
        arrays,
        groups,
    } = launch
    else {
        return;
    };
    let Pipeline::Paper(kernel) = &**pipeline else {
        return;
    };
    let place = |stretch: &Stretch| {
        let Buffer::Paper(words) = &stretch.buffer else {
            panic!("a buffer of another device");
        };
        let words = &words[stretch.start as usize / 4..];
        let length = (stretch.length as usize / 4).min(words.len());
        (words.as_ptr().cast_mut().cast(), length as u32)
    };
    let arrays: Vec<_> = arrays.iter().map(place).collect();
    kernel.launch(&arrays, *groups);
}

/// Spells launches out for CUDA: addresses and lengths instead of buffers.
#[cfg(feature = "cuda")]
fn launch_cuda(driver: &cuda::Driver, launches: &[Launch]) -> Result<(), GpuError> {
    let span = |stretch: &Stretch| match &stretch.buffer {
        Buffer::Cuda(block) => Some(block.span(stretch.start, stretch.length)),
        _ => None,
    };
    let mut spelt = Vec::with_capacity(launches.len());
    for launch in launches {
        match launch {
            Launch::Kernel {
                pipeline,
                arrays,
                groups,
            } => {
                let Pipeline::Cuda(kernel) = &**pipeline else {
                    continue;
                };
                let arrays: Vec<cuda::Span> = arrays.iter().filter_map(span).collect();
                let call = kernel.call(&arrays, *groups).map_err(GpuError::Kernel)?;
                spelt.push(cuda::RunStep::Kernel(call));
            }
            Launch::Product(product) => {
                if let Some(product) = product.map_places(span) {
                    spelt.push(cuda::RunStep::Product(product));
                }
            }
        }
    }
    driver.run(&spelt).map_err(GpuError::Driver)
}
