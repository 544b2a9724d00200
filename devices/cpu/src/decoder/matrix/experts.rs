//! Splits a tensor that holds the matrices of several experts into one matrix for each expert. The
//! reader of a decoder's graph calls it for models that route each token to a few of their experts.

use souk_memory::{Shape, Tensor};

use super::MatrixSource;

impl MatrixSource {
    /// The matrices of `[experts, rows, depth]`, if products can take each of them.
    pub fn split_experts(&self) -> Option<Vec<Self>> {
        let (Self::Floats(tensor) | Self::Blocks(tensor, _)) = self;
        let &[count, _, _] = tensor.dims() else {
            return None;
        };
        let own = |at: usize| {
            let own = match self {
                Self::Floats(tensor) => Self::Floats(slice_part(tensor, count, at)?),
                Self::Blocks(integers, scales) => Self::Blocks(
                    slice_part(integers, count, at)?,
                    slice_part(scales, count, at)?,
                ),
            };
            own.valid_dims().map(|_| own)
        };
        (0..count).map(own).collect()
    }
}

/// Returns one of this many parts of a tensor along its first axis, if each has whole bytes.
fn slice_part(tensor: &Tensor, count: usize, at: usize) -> Option<Tensor> {
    let (first, dims) = tensor.dims().split_first()?;
    let each = tensor.bytes().len() / count;
    if *first != count || each * count != tensor.bytes().len() {
        return None;
    }
    let bytes = tensor.bytes().slice(at * each..(at + 1) * each);
    Tensor::new(tensor.dtype(), Shape::new(dims).ok()?, bytes).ok()
}
