//! Computes the operators that draw at random, such as `RandomNormal` and `Bernoulli`, and
//! `Sample`, souk's own operator, which draws the next token of a text.
//!
//! ONNX does not define the generator. Here a hash of the node's key and the element's index gives
//! each draw, so the result is the same on every machine, regardless of other draws. You can
//! therefore compare the results of two providers, and another provider can recompute a lost
//! result. The key is the node's `seed`, or its name if it has none, so two nodes draw differently,
//! and each run will repeat the draws of the last.

use souk_memory::{DType, Tensor};
use souk_onnx::NodeProto;
use souk_onnx::sampling::{SampleError, Sampling};
use souk_onnx::subgraph::node_name;

use super::call::{Call, KernelError, Results};
use super::generate::stated_type;
use super::shape::element_count;
use super::value::{from_floats, from_ints, to_floats};

/// Counter increment from one element to the next: the golden ratio in 64 bits.
const APART: u64 = 0x9e37_79b9_7f4a_7c15;

/// The draws of a node.
struct RandomDraws {
    key: u64,
}

impl RandomDraws {
    fn from_node(node: &NodeProto) -> Self {
        let key = match node.float("seed") {
            Some(seed) => u64::from(seed.to_bits()),
            None => node_name(node).bytes().fold(1 << 63, |key, byte| {
                mix_bits(key ^ u64::from(byte)).wrapping_add(APART)
            }),
        };
        Self { key: mix_bits(key) }
    }

    /// Returns the number at an index, from 0 to below 1, with 53 bits.
    fn fraction_at(&self, place: usize) -> f64 {
        let counter = (place as u64).wrapping_add(1).wrapping_mul(APART);
        (mix_bits(self.key.wrapping_add(counter)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns the number at an index, with mean 0 and deviation 1, from two fractions by Box and
    /// Muller.
    fn normal_at(&self, place: usize) -> f64 {
        let (near, turn) = (self.fraction_at(2 * place), self.fraction_at(2 * place + 1));
        let radius = (-2.0 * (1.0 - near).ln()).sqrt();
        radius * (turn * std::f64::consts::TAU).cos()
    }
}

/// Draws the token of each row of logits, where each row is one position further.
pub(super) fn sample_tokens(call: &Call<'_>) -> Results {
    let refused = |error: SampleError| KernelError::Sample(error.to_string());
    let (sampling, position) = Sampling::from_numbers(&call.input_floats(1)?).map_err(refused)?;
    let logits = call.input(0)?;
    let (vocabulary, rows) = logits.dims().split_last().ok_or(KernelError::Range(0))?;
    let floats: Vec<f32> = call
        .input_floats(0)?
        .into_iter()
        .map(|it| it as f32)
        .collect();
    let tokens = floats.chunks_exact((*vocabulary).max(1)).zip(position..);
    let drawn = |(row, at)| sampling.draw_at(row, at).map(i64::from);
    let tokens = tokens.map(drawn).collect::<Result<Vec<i64>, _>>();
    let tokens = tokens.map_err(refused)?;
    Ok(vec![Tensor::from_vec(rows, tokens)?])
}

/// Mixes 64 bits by Stafford's variant 13, the last step of SplitMix64.
fn mix_bits(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

/// Returns the type and shape of a node's output: those stated, or those of its input.
fn output_type_and_shape(call: &Call<'_>) -> Result<(DType, Vec<usize>), KernelError> {
    let stated = stated_type(call, "dtype")?;
    if let Some(input) = call.optional_input(0) {
        return Ok((stated.unwrap_or(input.dtype()), input.dims().to_vec()));
    }
    let shape = call.node.ints("shape").unwrap_or_default().iter();
    let dims = shape.map(|&size| usize::try_from(size));
    let dims = dims.collect::<Result<_, _>>();
    let dims = dims.map_err(|_| KernelError::Attribute("shape"))?;
    Ok((stated.unwrap_or(DType::F32), dims))
}

fn draw_elements(call: &Call<'_>, draw: impl Fn(&RandomDraws, usize) -> f64) -> Results {
    let (dtype, dims) = output_type_and_shape(call)?;
    let draws = RandomDraws::from_node(call.node);
    let values = (0..element_count(&dims)?).map(|place| draw(&draws, place));
    Ok(vec![from_floats(dtype, &dims, values.collect())?])
}

/// Runs `RandomUniform` and `RandomUniformLike`.
pub(super) fn random_uniform(call: &Call<'_>) -> Results {
    let (low, high) = (
        call.float_attribute("low", 0.0),
        call.float_attribute("high", 1.0),
    );
    draw_elements(call, |draws, place| {
        low + (high - low) * draws.fraction_at(place)
    })
}

/// Runs `RandomNormal` and `RandomNormalLike`.
pub(super) fn random_normal(call: &Call<'_>) -> Results {
    let (mean, scale) = (
        call.float_attribute("mean", 0.0),
        call.float_attribute("scale", 1.0),
    );
    draw_elements(call, |draws, place| mean + scale * draws.normal_at(place))
}

/// Runs `Bernoulli`: draws one with the probability in its input, otherwise zero.
pub(super) fn bernoulli(call: &Call<'_>) -> Results {
    let chances = call.input_floats(0)?;
    draw_elements(call, |draws, place| {
        f64::from(u8::from(draws.fraction_at(place) < chances[place]))
    })
}

/// Runs `Multinomial`: draws classes of each row by the logarithms of their probabilities.
pub(super) fn multinomial(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let &[rows, classes] = input.dims() else {
        return Err(KernelError::Shapes(input.dims().to_vec(), vec![1, 1]));
    };
    let samples = usize::try_from(call.int_attribute("sample_size", 1));
    let samples = samples.map_err(|_| KernelError::Attribute("sample_size"))?;
    let (values, draws) = (to_floats(input)?, RandomDraws::from_node(call.node));
    let mut picked = Vec::with_capacity(element_count(&[rows, samples])?);
    for row in 0..rows {
        let chances = cumulative_weights(&values[row * classes..(row + 1) * classes]);
        let whole = chances.last().copied().unwrap_or(0.0);
        for sample in 0..samples {
            let at = draws.fraction_at(row * samples + sample) * whole;
            let class = chances.partition_point(|&sum| sum <= at);
            picked.push(class.min(classes.saturating_sub(1)) as i128);
        }
    }
    let dtype = stated_type(call, "dtype")?.unwrap_or(DType::I32);
    Ok(vec![from_ints(dtype, &[rows, samples], picked)?])
}

/// Returns the running sums of the logarithms' exponentials, scaled by the largest.
fn cumulative_weights(logarithms: &[f64]) -> Vec<f64> {
    let largest = logarithms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    let chance = |&logarithm: &f64| {
        sum += (logarithm - largest).exp();
        sum
    };
    logarithms.iter().map(chance).collect()
}

#[cfg(test)]
mod tests {
    use souk_memory::Tensor;

    use super::*;
    use crate::run_nodes;

    fn run(node: NodeProto, input: Option<Tensor>) -> Tensor {
        let mut scope: crate::Scope = input.map(|it| ("x".to_owned(), it)).into_iter().collect();
        run_nodes(&[node], &mut scope, 22).unwrap();
        scope.remove("y").unwrap()
    }

    fn random(operator: &str, shape: &[i64]) -> NodeProto {
        NodeProto::for_operator(operator, &[], "y").with("shape", shape.to_vec())
    }

    /// Mean and deviation.
    fn spread(tensor: &Tensor) -> (f64, f64) {
        let values = tensor.to_f64s().unwrap();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let apart = values.iter().map(|value| (value - mean).powi(2));
        (mean, (apart.sum::<f64>() / values.len() as f64).sqrt())
    }

    #[test]
    fn what_is_drawn_has_the_distribution_that_is_asked_for() {
        let uniform = random("RandomUniform", &[100, 1000])
            .with("low", -1.0f32)
            .with("high", 3.0f32);
        let uniform = run(uniform, None);
        let (mean, deviation) = spread(&uniform);
        assert!((mean - 1.0).abs() < 0.02 && (deviation - 4.0 / 12f64.sqrt()).abs() < 0.02);
        let mut values = uniform.to_f64s().unwrap();
        values.sort_by(f64::total_cmp);
        // Kolmogorov and Smirnov: 1.63 / sqrt(n) at one in a hundred.
        let off = |(at, value): (usize, &f64)| ((value + 1.0) / 4.0 - at as f64 / 1e5).abs();
        let furthest = values.iter().enumerate().map(off).fold(0.0, f64::max);
        assert!(furthest < 1.63 / 1e5f64.sqrt(), "{furthest}");

        let normal = random("RandomNormal", &[100_000])
            .with("mean", 2.0f32)
            .with("scale", 0.5f32);
        let normal = run(normal, None);
        let (mean, deviation) = spread(&normal);
        assert!((mean - 2.0).abs() < 0.01 && (deviation - 0.5).abs() < 0.01);
        let within = |times: f64| {
            let values = normal.to_f64s().unwrap().into_iter();
            values
                .filter(|value| (value - 2.0).abs() < times * 0.5)
                .count() as f64
                / 1e5
        };
        assert!((within(1.0) - 0.6827).abs() < 0.01 && (within(2.0) - 0.9545).abs() < 0.01);

        let chances = Tensor::from_vec([2, 50_000], [[0.2f32; 50_000], [0.9; 50_000]].concat());
        let bernoulli = run(
            NodeProto::for_operator("Bernoulli", &["x"], "y"),
            Some(chances.unwrap()),
        );
        let values = bernoulli.to_f64s().unwrap();
        for (half, chance) in values.chunks(50_000).zip([0.2, 0.9]) {
            assert!((half.iter().sum::<f64>() / 50_000.0 - chance).abs() < 0.01);
            assert!(half.iter().all(|&value| value == 0.0 || value == 1.0));
        }

        let logarithms: Vec<f32> = [0.1f32, 0.6, 0.3].iter().map(|it| it.ln()).collect();
        let logarithms = Tensor::from_vec([1, 3], logarithms).unwrap();
        let node =
            NodeProto::for_operator("Multinomial", &["x"], "y").with("sample_size", 50_000i64);
        let classes = run(node, Some(logarithms)).to_vec::<i32>().unwrap();
        for (class, chance) in [0.1, 0.6, 0.3].into_iter().enumerate() {
            let found = classes.iter().filter(|&&it| it == class as i32).count();
            assert!((found as f64 / 50_000.0 - chance).abs() < 0.01);
        }
    }

    #[test]
    fn a_node_draws_the_same_each_time_and_another_one_apart() {
        let draw = |name: &str, seed: Option<f32>| {
            let mut node = random("RandomNormal", &[4]);
            node.name = Some(name.to_owned());
            if let Some(seed) = seed {
                node = node.with("seed", seed);
            }
            run(node, None).to_vec::<f32>().unwrap()
        };
        assert_eq!(draw("a", None), draw("a", None));
        assert_ne!(draw("a", None), draw("b", None));
        assert_eq!(draw("a", Some(3.0)), draw("b", Some(3.0)));
        assert_ne!(draw("a", Some(3.0)), draw("a", Some(4.0)));
    }
}
