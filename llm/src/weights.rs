//! Holds a model's weights between the reader of a file and the builder of the decoder, in the form
//! of their files: whole tensors, or integers with a scale for each block. Also converts weights
//! that families of models store in different ways to the single form that the decoder takes.

mod experts;
mod joint;
mod norms;
mod order;

use std::collections::BTreeMap;

use souk_memory::{Bf16, DType, F16, Tensor};
use thiserror::Error;

pub(crate) use experts::stack_experts;
pub(crate) use joint::split_joint_matrices;
pub(crate) use norms::raise_norms;
pub(crate) use order::order_queries;

/// Weights by their names in Hugging Face's files.
pub(crate) type Weights = BTreeMap<String, Weight>;

/// Elements that share a scale.
pub(crate) const BLOCK: usize = 32;

/// A weight.
#[derive(Clone, Debug)]
pub(crate) enum Weight {
    /// 32-bit or 16-bit floats.
    Floats(Tensor),
    /// 8-bit or 4-bit integers, and a scale for each [`BLOCK`] of a row.
    Blocks {
        /// One integer for each element of the weight.
        integers: Tensor,
        /// One scale for each block.
        scales: Tensor,
    },
}

/// Why a model's weights do not match its dimensions.
#[derive(Debug, Error)]
pub enum WeightError {
    /// A weight is missing.
    #[error("weight {0:?} is missing")]
    Missing(String),
    /// No decoder of these dimensions has this weight.
    #[error("weight {0:?} is in the file, but no decoder of these dimensions has it")]
    Unused(String),
    /// The sizes of a weight do not match.
    #[error("weight {name:?} has the sizes {found:?}, not {expected:?}")]
    Sizes {
        /// The weight's name.
        name: String,
        /// The weight's sizes.
        found: Vec<usize>,
        /// The expected sizes.
        expected: Vec<usize>,
    },
    /// No decoder supports the type of this weight.
    #[error("weight {name:?} is of {dtype}, not of f32, f16 or bf16")]
    Type {
        /// The weight's name.
        name: String,
        /// The weight's type.
        dtype: DType,
    },
    /// The weights of a layer's experts have different types.
    #[error("weight {name:?} does not have the type of the other experts' weights")]
    Unlike {
        /// The first weight of another type.
        name: String,
    },
}

impl Weight {
    /// Returns the weight's sizes.
    pub fn dims(&self) -> &[usize] {
        match self {
            Self::Floats(tensor) => tensor.dims(),
            Self::Blocks { integers, .. } => integers.dims(),
        }
    }
}

/// Returns the values of a float tensor in 32 bits; none if it has another type.
pub(crate) fn read_floats(tensor: &Tensor) -> Option<Vec<f32>> {
    let is_float = matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::Bf16);
    let values = is_float.then(|| tensor.to_f64s().ok()).flatten()?;
    Some(values.into_iter().map(|value| value as f32).collect())
}

/// Returns a tensor like another one, with other values, rounded to its type.
///
/// # Panics
/// If there are not as many values as elements.
pub(crate) fn with_floats(like: &Tensor, values: Vec<f32>) -> Tensor {
    let dims = like.dims();
    let made = match like.dtype() {
        DType::F16 => {
            let all = values.into_iter().map(F16::from_f32);
            Tensor::from_vec(dims, all.collect::<Vec<F16>>())
        }
        DType::Bf16 => {
            let all = values.into_iter().map(Bf16::from_f32);
            Tensor::from_vec(dims, all.collect::<Vec<Bf16>>())
        }
        _ => Tensor::from_vec(dims, values),
    };
    made.expect("there are as many values as elements")
}

/// Returns weights in 32 bits, as they are trained. Those in blocks stay.
pub(crate) fn widen(weights: &Weights) -> Weights {
    let weights = weights.iter();
    let wide = weights.map(|(name, weight)| {
        let floats = match weight {
            Weight::Floats(tensor) if tensor.dtype() != DType::F32 => {
                read_floats(tensor).and_then(|it| Tensor::from_vec(tensor.dims(), it).ok())
            }
            _ => None,
        };
        let wide = floats.map_or_else(|| weight.clone(), Weight::Floats);
        (name.clone(), wide)
    });
    wide.collect()
}
