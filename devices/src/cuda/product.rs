//! Products of matrices as cuBLASLt takes them.
//!
//! It counts rows first, so a product of matrices in C order is that of their transposes, the right
//! one before the left; a bias along the columns is then one along its rows, which it adds itself.

use souk_memory::DType;

/// One side of a product: where it lies, whether it is given transposed, how far its rows are apart
/// and its matrices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Side<P> {
    pub place: P,
    pub is_transposed: bool,
    /// Elements from one row of what is stored to the next.
    pub pitch: usize,
    /// Elements from one matrix of a batch to the next.
    pub stride: usize,
}

/// `factor * left * right + bias`, `batch` times, all of one type of floats, summed in 32 bits.
/// Places are buffers, or addresses.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Product<P> {
    pub dtype: DType,
    pub rows: usize,
    pub columns: usize,
    pub depth: usize,
    pub batch: usize,
    pub factor: f32,
    pub left: Side<P>,
    pub right: Side<P>,
    /// One for each column.
    pub bias: Option<P>,
    pub result: P,
}

impl<P> Side<P> {
    /// A side by the steps of its rows and columns, if its rows or columns lie together.
    pub(crate) fn read(place: P, (row, column): (usize, usize), stride: usize) -> Option<Self> {
        let (is_transposed, pitch) = match (row, column) {
            (pitch, 1) => (false, pitch),
            (1, pitch) => (true, pitch),
            _ => return None,
        };
        Some(Self {
            place,
            is_transposed,
            pitch,
            stride,
        })
    }
}

impl<P> Product<P> {
    /// The same with its places spelt otherwise; `None` if one cannot be.
    pub(crate) fn spelt<Q>(&self, spell: impl Fn(&P) -> Option<Q>) -> Option<Product<Q>> {
        let side = |side: &Side<P>| {
            Some(Side {
                place: spell(&side.place)?,
                is_transposed: side.is_transposed,
                pitch: side.pitch,
                stride: side.stride,
            })
        };
        let bias = match &self.bias {
            Some(bias) => Some(spell(bias)?),
            None => None,
        };
        Some(Product {
            dtype: self.dtype,
            rows: self.rows,
            columns: self.columns,
            depth: self.depth,
            batch: self.batch,
            factor: self.factor,
            left: side(&self.left)?,
            right: side(&self.right)?,
            bias,
            result: spell(&self.result)?,
        })
    }
}

/// The step from one matrix of a batch to the next, if they lie evenly: `dims` of the batch, and
/// the steps of one side along them.
pub(crate) fn even_stride(dims: &[usize], steps: &[usize]) -> Option<usize> {
    let mut lies: Vec<(usize, usize)> = dims.iter().copied().zip(steps.iter().copied()).collect();
    lies.retain(|(size, _)| *size != 1);
    let Some(&(_, last)) = lies.last() else {
        return Some(0);
    };
    let even = |pair: &[(usize, usize)]| pair[0].1 == pair[1].0 * pair[1].1;
    lies.windows(2).all(even).then_some(last)
}
