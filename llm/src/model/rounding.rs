//! Changes a model's weights by pseudo-random amounts as small as the rounding of bf16, by which
//! two honest copies of one model can differ. Audits compare the reference with such a copy, to
//! know how far honest answers can differ.

use souk_memory::{Bf16, DType, F16, Tensor};

use crate::config::ConfigError;
use crate::weights::{Weight, Weights};

/// The largest change of a weight, in parts of itself: bf16 has 8 bits, so a number and the next
/// one are at most this apart.
const CHANGE_MAX: f32 = 1.0 / 256.0;

/// Changes each weight by a part of itself, up to [`CHANGE_MAX`] up or down.
pub(super) fn jitter(weights: &mut Weights) -> Result<(), ConfigError> {
    for (name, weight) in weights {
        let Weight::Floats(tensor) = weight else {
            let part = "its weights in blocks of few bits: take one in f32, f16 or bf16";
            return Err(ConfigError::Reference(part));
        };
        let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |seed, byte| {
            (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        *tensor = jitter_tensor(tensor, seed);
    }
    Ok(())
}

fn jitter_tensor(tensor: &Tensor, seed: u64) -> Tensor {
    let change = |at: usize, value: f32| {
        let unit = (mix(seed.wrapping_add(at as u64)) >> 40) as f32 / (1_u64 << 23) as f32 - 1.0;
        value * (1.0 + unit * CHANGE_MAX)
    };
    let dims = tensor.dims();
    let made = match tensor.dtype() {
        DType::F16 => changed(tensor, |at, it: F16| F16::from_f32(change(at, it.to_f32()))),
        DType::Bf16 => changed(tensor, |at, it: Bf16| {
            Bf16::from_f32(change(at, it.to_f32()))
        }),
        DType::F32 => changed(tensor, |at, it: f32| change(at, it)),
        _ => None,
    };
    assert!(made.as_ref().is_none_or(|made| made.dims() == dims));
    made.unwrap_or_else(|| tensor.clone())
}

fn changed<T: souk_memory::Element>(
    tensor: &Tensor,
    change: impl Fn(usize, T) -> T,
) -> Option<Tensor> {
    let values = tensor.to_vec::<T>().ok()?.into_iter().enumerate();
    let values: Vec<T> = values.map(|(at, value)| change(at, value)).collect();
    Tensor::from_vec(tensor.dims(), values).ok()
}

/// SplitMix64's finaliser.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_weight_changes_a_little_and_always_alike() {
        let values: Vec<f32> = (1..2_000).map(|at| at as f32 / 100.0 - 9.0).collect();
        let tensor = Tensor::from_vec([values.len()], values.clone()).unwrap();
        let once = || {
            let mut weights = Weights::from([("w".to_owned(), Weight::Floats(tensor.clone()))]);
            jitter(&mut weights).unwrap();
            match &weights["w"] {
                Weight::Floats(tensor) => tensor.to_vec::<f32>().unwrap(),
                Weight::Blocks { .. } => unreachable!("they are floats"),
            }
        };
        let made = once();
        assert_eq!(made, once());
        let parts = values.iter().zip(&made).filter(|(was, _)| **was != 0.0);
        let parts: Vec<f32> = parts.map(|(was, is)| is / was - 1.0).collect();
        assert!(parts.iter().all(|part| part.abs() <= CHANGE_MAX * 1.001));
        let most = parts
            .iter()
            .fold(0.0_f32, |most, part| most.max(part.abs()));
        let mean = parts.iter().sum::<f32>() / parts.len() as f32;
        assert!(most > CHANGE_MAX * 0.9 && mean.abs() < CHANGE_MAX / 10.0);
    }
}
