//! Adds one to the weights of norms when a folder of a Gemma model is read, because such folders
//! store each of these weights less one.

use souk_memory::Tensor;

use super::{Weight, Weights};

/// Adds one to the weights of all norms. A weight that is not float stays, and the decoder refuses
/// it by its name.
pub(crate) fn raise_norms(weights: &mut Weights) {
    let norms = weights.iter_mut();
    for (_, weight) in norms.filter(|(name, _)| name.ends_with("norm.weight")) {
        if let Weight::Floats(tensor) = weight
            && let Ok(values) = tensor.to_f64s()
        {
            let raised = values.into_iter().map(|value| 1.0 + value as f32);
            let raised = Tensor::from_vec(tensor.dims(), raised.collect::<Vec<f32>>());
            *tensor = raised.expect("as many as there were");
        }
    }
}
