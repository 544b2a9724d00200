//! Collects the kernels of one run, node by node, and submits them to the device together. It also
//! allocates the arrays that they write.
//!
//! Every kernel reads its sizes from one buffer of 32-bit words, a stretch for each dispatch, so a
//! kernel is compiled once for all shapes.

use std::borrow::Cow;
use std::sync::Arc;

use souk_memory::{DType, Tensor};

use crate::context::{Context, PooledBuffer};
use crate::driver::{Launch, Pipeline, Stretch};
use crate::error::GpuError;
use crate::numbers::packed::{element_type, per_word};
use crate::shaders::{CopyUnit, KernelTypes};

/// Alignment in words of a dispatch's sizes, which must be as large as that of any device.
const WORDS_ALIGNMENT: usize = 64;
/// Workgroups along one dimension of a dispatch, on every device.
const GROUPS_MAX: u64 = 65_535;
/// Threads of a workgroup, in every kernel.
pub(crate) const THREADS: u64 = 64;

/// Values on the device, one 32-bit word an element: floats, truths as 0 and 1, or integers.
/// Narrower elements lie several to a word; 64-bit ones take two words where the device has such
/// numbers.
#[derive(Clone)]
pub(crate) struct Array {
    pub buffer: Arc<PooledBuffer>,
    pub dims: Vec<usize>,
    pub dtype: DType,
    /// Whether an element has 64 bits. It is false for an array of a 64-bit type stored in 32 bits.
    pub is_double: bool,
}

/// The recorded kernels of one run, and the words with their sizes.
pub(crate) struct Stream<'a> {
    pub context: &'a Context,
    words: Vec<u32>,
    dispatches: Vec<Record>,
}

/// A launch of a kernel: its arrays, and the range of words that hold its sizes.
struct Dispatch {
    pipeline: Arc<Pipeline>,
    words: (usize, usize),
    arrays: Vec<Stretch>,
    groups: [u32; 3],
}

/// An operation of the recording.
enum Record {
    Kernel(Dispatch),
    Whole(Launch),
}

/// How many workgroups a dispatch has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Groups {
    /// One thread for each of this many elements.
    Threads(usize),
    /// One workgroup for each of this many results.
    Each(usize),
    /// This many workgroups in three dimensions.
    Grid([usize; 3]),
}

impl Array {
    /// Returns the name of its elements' type in WGSL, if it is not packed.
    pub fn element_type(&self) -> &'static str {
        element_type(self.dtype, self.is_double)
    }

    /// The unit in which kernels move its elements, if it is not packed.
    pub fn word(&self) -> CopyUnit {
        match self.dtype {
            _ if self.is_double => CopyUnit::Double,
            DType::F16 => CopyUnit::Half,
            _ => CopyUnit::Single,
        }
    }

    /// Returns the types of a kernel that reads this array and writes another.
    pub fn numbers_to(&self, made: &Self) -> KernelTypes {
        KernelTypes::from_types(self.element_type(), made.element_type())
    }

    /// Returns the number of elements.
    pub fn count(&self) -> usize {
        self.dims.iter().product()
    }

    /// Returns the bytes of the words that the elements lie in.
    pub fn bytes(&self) -> u64 {
        storage_bytes(self.dtype, self.is_double, self.count())
    }

    /// Returns the same values in another shape with as many elements.
    pub fn with_dims(&self, dims: impl Into<Vec<usize>>) -> Self {
        Self {
            dims: dims.into(),
            ..self.clone()
        }
    }
}

impl<'a> Stream<'a> {
    pub fn new(context: &'a Context) -> Self {
        Self {
            context,
            words: Vec::new(),
            dispatches: Vec::new(),
        }
    }

    /// Room for a value.
    pub fn allocate_array(&self, dtype: DType, dims: &[usize]) -> Result<Array, GpuError> {
        self.allocate_array_as(dtype, self.context.double_support().has_dtype(dtype), dims)
    }

    /// Room for a value that 32 bits say all of, whatever its type: a place, or a widened float.
    pub fn array_of_words(&self, dtype: DType, dims: &[usize]) -> Result<Array, GpuError> {
        self.allocate_array_as(dtype, false, dims)
    }

    fn allocate_array_as(
        &self,
        dtype: DType,
        is_double: bool,
        dims: &[usize],
    ) -> Result<Array, GpuError> {
        let count = souk_reference::shape::element_count(dims)?;
        Ok(Array {
            buffer: self
                .context
                .allocate_buffer(storage_bytes(dtype, is_double, count))?,
            dims: dims.to_vec(),
            dtype,
            is_double,
        })
    }

    /// Words on the device.
    pub fn upload_words(
        &self,
        dtype: DType,
        dims: &[usize],
        words: &[u8],
    ) -> Result<Array, GpuError> {
        Ok(Array {
            buffer: self.context.upload_bytes(words)?,
            dims: dims.to_vec(),
            dtype,
            is_double: self.context.double_support().has_dtype(dtype),
        })
    }

    /// The words of several tensors on the device, sent in one copy.
    pub fn words_of_all(
        &self,
        tensors: &[&Tensor],
        words: &[Cow<'_, [u8]>],
    ) -> Result<Vec<Array>, GpuError> {
        let buffers = self.context.upload_all(words)?;
        let array = |(tensor, buffer): (&&Tensor, Arc<PooledBuffer>)| Array {
            buffer,
            dims: tensor.dims().to_vec(),
            dtype: tensor.dtype(),
            is_double: self.context.double_support().has_dtype(tensor.dtype()),
        };
        Ok(tensors.iter().zip(buffers).map(array).collect())
    }

    /// Records a kernel: its sizes, the arrays it reads and then writes, and how many groups.
    pub fn record_dispatch(
        &mut self,
        source: &str,
        sizes: &[u32],
        arrays: &[&Array],
        groups: Groups,
    ) -> Result<(), GpuError> {
        let Some(groups) = groups.workgroup_grid()? else {
            return Ok(());
        };
        let pipeline = self.context.pipeline_for(source)?;
        let start = self.words.len().next_multiple_of(WORDS_ALIGNMENT);
        self.words.resize(start, 0);
        self.words.extend_from_slice(sizes);
        self.dispatches.push(Record::Kernel(Dispatch {
            pipeline,
            words: (start, sizes.len()),
            arrays: arrays
                .iter()
                .map(|array| array.buffer.get().as_stretch())
                .collect(),
            groups,
        }));
        Ok(())
    }

    /// Records an operation that is not a kernel of ours.
    pub fn record_launch(&mut self, launch: Launch) {
        self.dispatches.push(Record::Whole(launch));
    }

    /// Submits the recorded operations.
    pub fn submit(self) -> Result<(), GpuError> {
        if self.dispatches.is_empty() {
            return Ok(());
        }
        let context = self.context;
        let bytes: Vec<u8> = self
            .words
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let words = context.upload_bytes(&bytes)?;
        let launch = |recorded| match recorded {
            Record::Kernel(dispatch) => {
                let (start, length) = dispatch.words;
                let sizes = Stretch {
                    buffer: words.get().clone(),
                    start: 4 * start as u64,
                    length: 4 * length.max(1) as u64,
                };
                Launch::Kernel {
                    pipeline: dispatch.pipeline,
                    arrays: std::iter::once(sizes).chain(dispatch.arrays).collect(),
                    groups: dispatch.groups,
                }
            }
            Record::Whole(launch) => launch,
        };
        let launches: Vec<Launch> = self.dispatches.into_iter().map(launch).collect();
        let done = context.submit_launches(&launches);
        done.map_err(|error| match error {
            GpuError::Kernel(reason) => GpuError::Driver(reason),
            error => error,
        })
    }
}

impl Groups {
    /// Workgroups in three dimensions; `None` for no work.
    pub fn workgroup_grid(self) -> Result<Option<[u32; 3]>, GpuError> {
        let groups = match self {
            Self::Threads(threads) => (threads as u64).div_ceil(THREADS),
            Self::Each(groups) => groups as u64,
            Self::Grid(grid) => {
                if grid.contains(&0) {
                    return Ok(None);
                }
                if grid.iter().any(|&side| side as u64 > GROUPS_MAX) {
                    return Err(too_many(grid.iter().map(|&side| side as u64).product()));
                }
                return Ok(Some(grid.map(|side| side as u32)));
            }
        };
        if groups == 0 {
            return Ok(None);
        }
        let rows = groups.div_ceil(GROUPS_MAX);
        if rows > GROUPS_MAX {
            return Err(too_many(groups));
        }
        let columns = groups.div_ceil(rows);
        Ok(Some([columns as u32, rows as u32, 1]))
    }
}

/// Returns the bytes of the words that hold this many values.
fn storage_bytes(dtype: DType, is_double: bool, count: usize) -> u64 {
    match is_double {
        true => 8 * count as u64,
        false => 4 * count.div_ceil(per_word(dtype)) as u64,
    }
}

fn too_many(groups: u64) -> GpuError {
    GpuError::Operator(souk_reference::call::KernelError::TooLarge(
        u128::from(groups) * u128::from(THREADS),
    ))
}
