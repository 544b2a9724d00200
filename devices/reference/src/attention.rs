//! Computes the operators `Attention`, `RotaryEmbedding` and `LinearAttention` (whose state passes
//! from call to call) for the reference kernels, which put exactness before speed. The table of
//! kernels (`table.rs`) assigns these functions to operators.

use souk_memory::{DType, Tensor};

use super::call::{Call, KernelError, Results};
use super::layout::{concat_along, permute_axes};
use super::shape::{broadcast_places, broadcast_shape};
use super::value::{from_floats, to_floats, to_truths};

/// Converts `[batch, length, heads * width]` to `[batch, heads, length, width]`; a tensor of any
/// other rank stays as it is. The number of heads must divide the width.
fn by_head(tensor: &Tensor, heads: i64) -> Result<Tensor, KernelError> {
    let &[batch, length, width] = tensor.dims() else {
        return Ok(tensor.clone());
    };
    let heads = usize::try_from(heads)
        .ok()
        .filter(|&it| it > 0 && width % it == 0);
    let heads = heads.ok_or(KernelError::Attribute("q_num_heads"))?;
    permute_axes(
        &tensor.to_shape([batch, length, heads, width / heads])?,
        &[0, 2, 1, 3],
    )
}

/// Reverses [`by_head`], for inputs of three dimensions.
fn merge_heads(tensor: &Tensor) -> Result<Tensor, KernelError> {
    let &[batch, heads, length, width] = tensor.dims() else {
        return Err(KernelError::Range(0));
    };
    Ok(permute_axes(tensor, &[0, 2, 1, 3])?.to_shape([batch, length, heads * width])?)
}

/// The sizes of one attention operator.
struct Sizes {
    batch: usize,
    heads: usize,
    key_heads: usize,
    queries: usize,
    keys: usize,
    width: usize,
    value_width: usize,
}

impl Sizes {
    fn read(query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Self, KernelError> {
        let mismatch = || KernelError::Shapes(query.dims().to_vec(), key.dims().to_vec());
        let &[batch, heads, queries, width] = query.dims() else {
            return Err(mismatch());
        };
        let &[_, key_heads, keys, key_width] = key.dims() else {
            return Err(mismatch());
        };
        let value_width = last_dim(value);
        if width != key_width || key_heads == 0 || heads % key_heads != 0 {
            return Err(mismatch());
        }
        Ok(Self {
            batch,
            heads,
            key_heads,
            queries,
            keys,
            width,
            value_width,
        })
    }

    /// Returns the head of keys and values for a head of queries.
    fn key_lane(&self, lane: usize) -> usize {
        let (sample, head) = (lane / self.heads, lane % self.heads);
        sample * self.key_heads + head / (self.heads / self.key_heads)
    }
}

/// The addends of the scores: 0 where a query can attend, minus infinity where it must not, or a
/// bias.
struct Mask {
    /// Rows of keys for each query of each head, from the mask input.
    bias: Option<Vec<f64>>,
    causal: bool,
    left: i64,
    right: i64,
    /// For each sample, the position of the first query relative to the first key.
    offsets: Vec<i64>,
    /// For each sample, the number of keys without the padding.
    valid: Option<Vec<i64>>,
}

impl Mask {
    fn read(call: &Call<'_>, sizes: &Sizes) -> Result<Self, KernelError> {
        let bias = call
            .optional_input(3)
            .map(|mask| mask_bias(mask, sizes))
            .transpose()?;
        let valid = call.optional_input_ints(6)?;
        let past = call
            .optional_input(4)
            .map_or(0, |past| past.dims().get(2).copied().unwrap_or(0));
        let offsets = match &valid {
            Some(valid) if call.optional_input(4).is_none() => valid
                .iter()
                .map(|valid| valid - sizes.queries as i64)
                .collect(),
            _ => vec![past as i64; sizes.batch],
        };
        Ok(Self {
            bias,
            causal: call.is_flag_set("is_causal"),
            left: call.int_attribute("left_window_size", -1),
            right: call.int_attribute("right_window_size", -1),
            offsets,
            valid,
        })
    }

    fn bias_at(&self, sizes: &Sizes, lane: usize, query: usize, key: usize) -> f64 {
        let sample = lane / sizes.heads;
        let place = query as i64 + self.offsets[sample];
        let ahead = key as i64 - place;
        let hidden = (self.causal && ahead > 0)
            || (self.left >= 0 && -ahead > self.left)
            || (self.right >= 0 && ahead > self.right)
            || self
                .valid
                .as_ref()
                .is_some_and(|valid| key as i64 >= valid[sample]);
        if hidden {
            return f64::NEG_INFINITY;
        }
        let row = (lane * sizes.queries + query) * sizes.keys + key;
        self.bias.as_ref().map_or(0.0, |bias| bias[row])
    }
}

/// Broadcasts a mask input to every head and query; hides keys beyond it.
fn mask_bias(mask: &Tensor, sizes: &Sizes) -> Result<Vec<f64>, KernelError> {
    let given = if mask.dtype() == DType::Bool {
        let open = |open: bool| if open { 0.0 } else { f64::NEG_INFINITY };
        to_truths(mask)?.into_iter().map(open).collect()
    } else {
        to_floats(mask)?
    };
    let length = *mask.dims().last().ok_or(KernelError::Range(3))?;
    let shown = if length == 1 {
        sizes.keys
    } else {
        length.min(sizes.keys)
    };
    let dims = [sizes.batch, sizes.heads, sizes.queries, shown];
    if broadcast_shape(mask.dims(), &dims)? != dims {
        return Err(KernelError::Shapes(mask.dims().to_vec(), dims.to_vec()));
    }
    let places = broadcast_places(mask.dims(), &dims);
    let row = |row: &[usize]| {
        let mut keys: Vec<f64> = row.iter().map(|&place| given[place]).collect();
        keys.resize(sizes.keys, f64::NEG_INFINITY);
        keys
    };
    Ok(places.chunks_exact(shown.max(1)).flat_map(row).collect())
}

/// The scores of one head at the four stages that a node can output, and its result.
struct HeadScores {
    stages: [Vec<f64>; 4],
    result: Vec<f64>,
}

pub(super) fn attention(call: &Call<'_>) -> Results {
    let flat = call.input(0)?.dims().len() == 3;
    let query = by_head(call.input(0)?, call.int_attribute("q_num_heads", 0))?;
    let new_key = by_head(call.input(1)?, call.int_attribute("kv_num_heads", 0))?;
    let new_value = by_head(call.input(2)?, call.int_attribute("kv_num_heads", 0))?;
    let with_past = |past: Option<&Tensor>, new: Tensor| match past {
        Some(past) => concat_along(&[past, &new], 2),
        None => Ok(new),
    };
    let key = with_past(call.optional_input(4), new_key)?;
    let value = with_past(call.optional_input(5), new_value)?;
    let sizes = Sizes::read(&query, &key, &value)?;
    let mask = Mask::read(call, &sizes)?;
    let scale = call.float_attribute("scale", 1.0 / (sizes.width as f64).sqrt());
    let softcap = call.float_attribute("softcap", 0.0);
    let (queries, keys, values) = (to_floats(&query)?, to_floats(&key)?, to_floats(&value)?);
    let mode = call.int_attribute("qk_matmul_output_mode", 0).clamp(0, 3) as usize;
    let (mut results, mut scores) = (Vec::new(), Vec::new());
    for lane in 0..sizes.batch * sizes.heads {
        let own = sizes.queries * sizes.width;
        let with = sizes.key_lane(lane);
        let key = &keys[with * sizes.keys * sizes.width..][..sizes.keys * sizes.width];
        let value = &values[with * sizes.keys * sizes.value_width..];
        let head = attend_head(
            &sizes,
            &mask,
            lane,
            (&queries[lane * own..][..own], key, value),
            scale,
            softcap,
        );
        results.extend(head.result);
        scores.extend_from_slice(&head.stages[mode]);
    }
    let dtype = query.dtype();
    let dims = [sizes.batch, sizes.heads, sizes.queries, sizes.value_width];
    let result = from_floats(dtype, &dims, results)?;
    let result = if flat { merge_heads(&result)? } else { result };
    let score_dims = [sizes.batch, sizes.heads, sizes.queries, sizes.keys];
    Ok(vec![
        result,
        key,
        value,
        from_floats(dtype, &score_dims, scores)?,
    ])
}

fn attend_head(
    sizes: &Sizes,
    mask: &Mask,
    lane: usize,
    (query, key, value): (&[f64], &[f64], &[f64]),
    scale: f64,
    softcap: f64,
) -> HeadScores {
    let mut stages: [Vec<f64>; 4] = Default::default();
    let mut result = vec![0.0; sizes.queries * sizes.value_width];
    for at in 0..sizes.queries {
        let own = &query[at * sizes.width..(at + 1) * sizes.width];
        let dot = |other: &[f64]| own.iter().zip(other).map(|(a, b)| a * b).sum::<f64>() * scale;
        let raw: Vec<f64> = key.chunks_exact(sizes.width.max(1)).map(dot).collect();
        let cap = |score: &f64| {
            if softcap > 0.0 {
                (score / softcap).tanh() * softcap
            } else {
                *score
            }
        };
        let capped: Vec<f64> = raw.iter().map(cap).collect();
        let bias: Vec<f64> = (0..sizes.keys)
            .map(|key| mask.bias_at(sizes, lane, at, key))
            .collect();
        let biased: Vec<f64> = capped
            .iter()
            .zip(&bias)
            .map(|(score, bias)| score + bias)
            .collect();
        let weights = attention_weights(&biased, &bias);
        for (key, weight) in weights.iter().enumerate() {
            for column in 0..sizes.value_width {
                let place = at * sizes.value_width + column;
                result[place] += weight * value[key * sizes.value_width + column];
            }
        }
        // Stage 0 is before the mask; it includes a softcap only if the node requests that stage by
        // name.
        for (stage, row) in stages.iter_mut().zip([raw, capped, biased, weights]) {
            stage.extend(row);
        }
    }
    HeadScores { stages, result }
}

/// Returns the softmax of one row, or zeros if it can attend to no key.
fn attention_weights(scores: &[f64], bias: &[f64]) -> Vec<f64> {
    if bias.iter().all(|bias| *bias == f64::NEG_INFINITY) {
        return vec![0.0; scores.len()];
    }
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// Rotates pairs of numbers by an angle that grows with the position.
pub(super) fn rotary_embedding(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let flat = input.dims().len() == 3;
    let heads = by_head(input, call.int_attribute("num_heads", 0))?;
    let &[_, head_count, length, width] = heads.dims() else {
        return Err(KernelError::Range(0));
    };
    let turned = match call.int_attribute("rotary_embedding_dim", 0) {
        0 => width,
        part => {
            usize::try_from(part).map_err(|_| KernelError::Attribute("rotary_embedding_dim"))?
        }
    };
    let half = turned / 2;
    let (cosines, sines) = (call.input_floats(1)?, call.input_floats(2)?);
    let positions = call.optional_input_ints(3)?;
    let interleaved = call.is_flag_set("interleaved");
    if call.input(1)?.dims().last() != Some(&half) || turned > width {
        return Err(KernelError::Shapes(
            call.input(1)?.dims().to_vec(),
            vec![half],
        ));
    }
    let mut values = to_floats(&heads)?;
    for (row, line) in values.chunks_exact_mut(width.max(1)).enumerate() {
        let (sample, at) = (row / (head_count * length), row % length);
        let angle = match &positions {
            Some(positions) => {
                let position = positions.get(sample * length + at);
                let position = position.and_then(|&it| usize::try_from(it).ok());
                position.ok_or(KernelError::Range(3))?
            }
            None => sample * length + at,
        };
        for pair in 0..half {
            let (first, second) = if interleaved {
                (2 * pair, 2 * pair + 1)
            } else {
                (pair, pair + half)
            };
            let place = angle.saturating_mul(half).saturating_add(pair);
            let cosine = cosines.get(place).ok_or(KernelError::Range(3))?;
            let sine = sines.get(place).ok_or(KernelError::Range(3))?;
            let (x, y) = (line[first], line[second]);
            line[first] = cosine * x - sine * y;
            line[second] = sine * x + cosine * y;
        }
    }
    let result = from_floats(input.dtype(), heads.dims(), values)?;
    Ok(vec![if flat { merge_heads(&result)? } else { result }])
}

/// Computes attention whose keys and values accumulate in a state that decays and is corrected.
pub(super) fn linear_attention(call: &Call<'_>) -> Results {
    let (heads, key_heads) = (
        call.int_attribute("q_num_heads", 0),
        call.int_attribute("kv_num_heads", 0),
    );
    let query = by_head(call.input(0)?, heads)?;
    let key = by_head(call.input(1)?, key_heads)?;
    let value = by_head(call.input(2)?, key_heads)?;
    let sizes = Sizes::read(&query, &key, &value)?;
    let rule = call.text_attribute("update_rule", "gated_delta");
    let needed = |wanted: bool, index| wanted.then(|| call.input(index)).transpose();
    let decay = needed(rule.starts_with("gated"), 4)?;
    let beta = needed(rule.ends_with("delta"), 5)?;
    let decay = decay
        .map(|it| Ok::<_, KernelError>((to_floats(it)?, last_dim(it))))
        .transpose()?;
    let beta = beta
        .map(|it| Ok::<_, KernelError>((to_floats(it)?, last_dim(it))))
        .transpose()?;
    let scale = match call.float_attribute("scale", 0.0) {
        0.0 => 1.0 / (sizes.width as f64).sqrt(),
        scale => scale,
    };
    let cells = sizes.width * sizes.value_width;
    let (queries, keys, values) = (to_floats(&query)?, to_floats(&key)?, to_floats(&value)?);
    let mut states = match call.optional_input(3) {
        Some(past) => to_floats(past)?,
        None => vec![0.0; sizes.batch * sizes.key_heads * cells],
    };
    let mut results = vec![0.0; sizes.batch * sizes.heads * sizes.queries * sizes.value_width];
    let group = sizes.heads / sizes.key_heads;
    for lane in 0..sizes.batch * sizes.key_heads {
        let (sample, head) = (lane / sizes.key_heads, lane % sizes.key_heads);
        let state = &mut states[lane * cells..(lane + 1) * cells];
        for step in 0..sizes.queries {
            let row = sample * sizes.queries + step;
            if let Some((decay, width)) = &decay {
                decay_state(state, &sizes, |at| {
                    let own = if *width == sizes.key_heads {
                        head
                    } else {
                        head * sizes.width + at
                    };
                    decay[row * width + own]
                });
            }
            let line = lane * sizes.keys + step;
            let key = &keys[line * sizes.width..][..sizes.width];
            let value = &values[line * sizes.value_width..][..sizes.value_width];
            let strength = beta
                .as_ref()
                .map(|(beta, width)| beta[row * width + head % width]);
            write(state, &sizes, key, value, strength);
            for member in 0..group {
                let own = sample * sizes.heads + head * group + member;
                let at = own * sizes.queries + step;
                let query = &queries[at * sizes.width..][..sizes.width];
                let target = &mut results[at * sizes.value_width..][..sizes.value_width];
                read(target, state, query, scale);
            }
        }
    }
    let dims = [sizes.batch, sizes.heads, sizes.queries, sizes.value_width];
    let result = merge_heads(&from_floats(query.dtype(), &dims, results)?)?;
    let state_dims = [sizes.batch, sizes.key_heads, sizes.width, sizes.value_width];
    let state_type = call.optional_input(3).map_or(query.dtype(), Tensor::dtype);
    Ok(vec![result, from_floats(state_type, &state_dims, states)?])
}

fn last_dim(tensor: &Tensor) -> usize {
    tensor.dims().last().copied().unwrap_or(1).max(1)
}

/// Multiplies each row of the state by the exponential of its decay.
fn decay_state(state: &mut [f64], sizes: &Sizes, decay: impl Fn(usize) -> f64) {
    for (at, row) in state.chunks_exact_mut(sizes.value_width.max(1)).enumerate() {
        let factor = decay(at).exp();
        row.iter_mut().for_each(|cell| *cell *= factor);
    }
}

/// Adds a key and its value to the state. With a strength, adds only the part that the state does
/// not yet predict.
fn write(state: &mut [f64], sizes: &Sizes, key: &[f64], value: &[f64], strength: Option<f64>) {
    let mut added = value.to_vec();
    if let Some(strength) = strength {
        for (column, value) in added.iter_mut().enumerate() {
            let said = key.iter().enumerate();
            let said = said.map(|(row, key)| state[row * sizes.value_width + column] * key);
            *value = strength * (*value - said.sum::<f64>());
        }
    }
    for (row, cells) in state.chunks_exact_mut(sizes.value_width.max(1)).enumerate() {
        for (cell, value) in cells.iter_mut().zip(&added) {
            *cell += key[row] * value;
        }
    }
}

fn read(target: &mut [f64], state: &[f64], query: &[f64], scale: f64) {
    let width = target.len();
    for (column, sum) in target.iter_mut().enumerate() {
        let products = query.iter().enumerate();
        *sum = scale
            * products
                .map(|(row, query)| query * state[row * width + column])
                .sum::<f64>();
    }
}
