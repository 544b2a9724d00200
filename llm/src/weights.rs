//! Weights as files hold them: whole tensors, or integers with a scale for each block.

mod experts;
mod joint;
mod norms;

use std::collections::BTreeMap;

use souk_memory::Tensor;
use thiserror::Error;

pub(crate) use experts::stack_experts;
pub(crate) use joint::separate;
pub(crate) use norms::raise_norms;

/// Weights by name, in the words of Hugging Face's files.
pub(crate) type Weights = BTreeMap<String, Weight>;

/// Elements that share a scale.
pub(crate) const BLOCK: usize = 32;

/// A weight.
#[derive(Clone, Debug)]
pub(crate) enum Weight {
    /// Floats of 32 or 16 bits.
    Floats(Tensor),
    /// Integers of 8 or 4 bits, and a scale for each [`BLOCK`] of a row.
    Blocks {
        /// As many as the weight has elements.
        integers: Tensor,
        /// One for each block.
        scales: Tensor,
    },
}

/// Why a model's weights are not what its numbers say.
#[derive(Debug, Error)]
pub enum WeightError {
    /// There is none of this name.
    #[error("weight {0:?} is missing")]
    Missing(String),
    /// No decoder of these numbers has it.
    #[error("weight {0:?} is in the file and in no decoder of its numbers")]
    Unused(String),
    /// It has other sizes.
    #[error("weight {name:?} has the sizes {found:?}, not {expected:?}")]
    Sizes {
        /// Its name.
        name: String,
        /// Sizes it has.
        found: Vec<usize>,
        /// Sizes it should have.
        expected: Vec<usize>,
    },
    /// It is of a type that no decoder is built with.
    #[error("weight {name:?} is of {dtype}, not of f32, f16 or bf16")]
    Type {
        /// Its name.
        name: String,
        /// Its type.
        dtype: souk_memory::DType,
    },
    /// Weights of experts that are not of one type.
    #[error("weight {name:?} is not of the type that the other experts' are")]
    Unlike {
        /// The first of another type.
        name: String,
    },
}

impl Weight {
    /// Its sizes.
    pub fn dims(&self) -> &[usize] {
        match self {
            Self::Floats(tensor) => tensor.dims(),
            Self::Blocks { integers, .. } => integers.dims(),
        }
    }
}
