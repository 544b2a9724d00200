//! Compute kernels of a buyer's own, in WGSL.
//!
//! naga validates the source and bounds every array access and loop; the run has the device's time
//! limit. Group 0 holds the inputs from binding 0 on, as read-only arrays of 32-bit words, and
//! after them the outputs, zeroed, as writable ones. The entry is `main`.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use souk_memory::{DType, Shape, Tensor};
use souk_vocabulary::processor::RunError;
use thiserror::Error;

use crate::Gpu;
use crate::context::PooledBuffer;
use crate::driver::{Buffer, Launch, Stretch};
use crate::error::GpuError;
use crate::program::custom::SOURCE_BYTES_MAX;

/// Workgroups along one dimension, on every device.
const GROUPS_MAX: u32 = 65_535;

/// A kernel and how it is to be run.
#[derive(Clone, Debug)]
pub struct UserKernel {
    /// WGSL with a compute entry `main`.
    pub source: String,
    /// Types and shapes of the outputs.
    pub outputs: Vec<(DType, Vec<usize>)>,
    /// Workgroups in three dimensions.
    pub groups: [u32; 3],
}

/// Why a kernel did not run.
#[derive(Debug, Error)]
pub enum UserKernelError {
    /// The source is too long.
    #[error("the kernel has {bytes} bytes, {SOURCE_BYTES_MAX} are allowed")]
    Long {
        /// Bytes of source.
        bytes: usize,
    },
    /// The source is no valid kernel, or binds other arrays than it is given.
    #[error("the kernel is refused: {reason}")]
    Refused {
        /// What is wrong, with the place in the source.
        reason: String,
    },
    /// An input or output is not of 32-bit words.
    #[error("a kernel's array cannot be of {dtype}: only f32, i32 and u32 are words of 32 bits")]
    Words {
        /// The type.
        dtype: DType,
    },
    /// More workgroups than any device runs.
    #[error("{groups:?} workgroups: {GROUPS_MAX} are allowed in each dimension")]
    Groups {
        /// Those asked for.
        groups: [u32; 3],
    },
    /// An output has an impossible shape.
    #[error(transparent)]
    Shape(#[from] souk_memory::ShapeError),
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl UserKernel {
    fn check(&self, inputs: &[Tensor]) -> Result<(), UserKernelError> {
        let bytes = self.source.len();
        if bytes > SOURCE_BYTES_MAX {
            return Err(UserKernelError::Long { bytes });
        }
        if self.groups.iter().any(|&side| side > GROUPS_MAX) {
            let groups = self.groups;
            return Err(UserKernelError::Groups { groups });
        }
        let given = inputs.iter().map(Tensor::dtype);
        let mut all = given.chain(self.outputs.iter().map(|(dtype, _)| *dtype));
        let is_word = |dtype: &DType| matches!(dtype, DType::F32 | DType::I32 | DType::U32);
        match all.find(|dtype| !is_word(dtype)) {
            Some(dtype) => Err(UserKernelError::Words { dtype }),
            None => Ok(()),
        }
    }
}

impl Gpu {
    /// Runs a buyer's kernel once.
    ///
    /// # Errors
    /// [`UserKernelError`]: what is refused, or why the run failed.
    pub fn run_kernel(
        &self,
        kernel: &UserKernel,
        inputs: &[Tensor],
    ) -> Result<Vec<Tensor>, UserKernelError> {
        kernel.check(inputs)?;
        let mut shapes = Vec::with_capacity(kernel.outputs.len());
        for (_, dims) in &kernel.outputs {
            shapes.push(Shape::new(dims.clone())?);
        }
        let turn = self.context.turn.lock();
        let _turn = turn.unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        let sizes: Vec<u64> = shapes
            .iter()
            .map(|shape| 4 * shape.count() as u64)
            .collect();
        let words = self
            .dispatch(kernel, inputs, &sizes)
            .map_err(|error| match error {
                GpuError::Kernel(reason) | GpuError::Driver(reason) => {
                    UserKernelError::Refused { reason }
                }
                error => UserKernelError::Run(error.at(&self.context.name, None)),
            })?;
        self.context.note_busy(start.elapsed());
        let mut outputs = Vec::with_capacity(words.len());
        for ((words, shape), (dtype, _)) in words.into_iter().zip(shapes).zip(&kernel.outputs) {
            let tensor = Tensor::new(*dtype, shape, words);
            outputs.push(tensor.expect("as many words as the shape has"));
        }
        Ok(outputs)
    }

    fn dispatch(
        &self,
        kernel: &UserKernel,
        inputs: &[Tensor],
        sizes: &[u64],
    ) -> Result<Vec<bytes::Bytes>, GpuError> {
        let context = &*self.context;
        context.check()?;
        let pipeline = context.pipeline(&kernel.source)?;
        let given = inputs.iter().map(|tensor| context.upload(tensor.bytes()));
        let given: Vec<Arc<PooledBuffer>> = given.collect::<Result<_, _>>()?;
        let made = sizes.iter().map(|&bytes| context.buffer(bytes));
        let made: Vec<Arc<PooledBuffer>> = made.collect::<Result<_, _>>()?;
        let lengths = inputs.iter().map(|tensor| tensor.bytes().len() as u64);
        let lengths = lengths.chain(sizes.iter().copied());
        let arrays = given.iter().chain(&made).zip(lengths);
        let arrays = arrays.map(|(array, length)| Stretch {
            buffer: array.get().clone(),
            start: 0,
            length,
        });
        let launch = Launch::Kernel {
            pipeline,
            arrays: arrays.collect(),
            groups: kernel.groups,
        };
        // What another run left there is nobody's business.
        let cleared: Vec<Buffer> = made.iter().map(|array| array.get().clone()).collect();
        context.launch(&cleared, &[launch])?;
        let buffers = made
            .iter()
            .map(|array| array.get())
            .zip(sizes.iter().copied());
        context.read(&buffers.collect::<Vec<_>>())
    }
}
