//! Records the kernels of `Attention` and `RotaryEmbedding`. Attention writes the matrix of scores
//! only where the node has it as an output.
//!
//! A workgroup computes one query's row. It goes over the keys 64 at a time, a thread a key, keeps
//! the largest score and the sum of exponentials so far, and rescales its sums when the largest
//! grows. Kernels find heads by strides, so they read inputs of three dimensions in place.

use souk_memory::DType;
use souk_reference::call::KernelError;
use souk_reference::shape::broadcast_shape;

use crate::error::GpuError;
use crate::numbers::packed::element_type;
use crate::operators::gather::take_runs;
use crate::operators::layout::{join_arrays, permute_axes};
use crate::recording::{Array, Groups, Step, to_word};
use crate::shaders::{PRELUDE, bindings, by_group, group_reduction, prelude, rotate_kernel};

/// Columns of the result that one pass over the keys computes: four to a thread.
const COLUMNS: usize = 256;

/// Queries, keys or values by head: sizes, and steps of sample, head and position.
struct Heads {
    array: Array,
    samples: usize,
    heads: usize,
    length: usize,
    width: usize,
    steps: [usize; 3],
}

impl Heads {
    /// `[sample, head, position, width]`, or `[sample, position, head * width]`.
    fn read(array: Array, heads: i64) -> Result<Self, KernelError> {
        match array.dims[..] {
            [samples, heads, length, width] => Ok(Self {
                samples,
                heads,
                length,
                width,
                steps: [heads * length * width, length * width, width],
                array,
            }),
            [samples, length, all] => {
                let heads = usize::try_from(heads)
                    .ok()
                    .filter(|&heads| heads > 0 && all.is_multiple_of(heads))
                    .ok_or(KernelError::Attribute("q_num_heads"))?;
                let width = all / heads;
                Ok(Self {
                    samples,
                    heads,
                    length,
                    width,
                    steps: [length * all, width, all],
                    array,
                })
            }
            _ => Err(KernelError::Range(0)),
        }
    }

    /// Returns it as an array of four dimensions.
    fn by_head(&self, step: &mut Step<'_, '_>) -> Result<Array, GpuError> {
        if self.array.dims.len() == 4 {
            return Ok(self.array.clone());
        }
        let dims = [self.samples, self.length, self.heads, self.width];
        permute_axes(step, &self.array.with_dims(dims), &[0, 2, 1, 3])
    }
}

/// `Attention`: masks, causality, windows, soft caps, grouped heads, past keys and values.
pub(crate) fn attention(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let key_heads = step.call.int_attribute("kv_num_heads", 0);
    let past = step.optional_wide(4)?;
    // If keys or values are joined to a past or kept for a future, they move in words of their own.
    let is_moved = past.is_some() || step.call.output_count() > 1;
    let mut given = |index| match is_moved {
        true => step.wide_array(index),
        false => step.native_array(index),
    };
    let (query, key, value) = (given(0)?, given(1)?, given(2)?);
    let query = Heads::read(query, step.call.int_attribute("q_num_heads", 0))?;
    let key = Heads::read(key, key_heads)?;
    let value = Heads::read(value, key_heads)?;
    let past_length = past
        .as_ref()
        .map_or(0, |past| past.dims.get(2).copied().unwrap_or(0));
    let (key, present_key) = with_past(step, key, 4, 1)?;
    let (value, present_value) = with_past(step, value, 5, 2)?;
    let fits = query.width == key.width
        && key.length == value.length
        && key.heads > 0
        && key.heads == value.heads
        && query.heads.is_multiple_of(key.heads)
        && key.samples == query.samples;
    if !fits {
        return Err(KernelError::Shapes(query.array.dims, key.array.dims).into());
    }
    let flat = query.array.dims.len() == 3;
    let dims = if flat {
        vec![query.samples, query.length, query.heads * value.width]
    } else {
        vec![query.samples, query.heads, query.length, value.width]
    };
    let result = step.stream.allocate_array(step.output_dtype(), &dims)?;
    let target = Heads::read(result.clone(), query.heads as i64)?;
    let all = [&query, &key, &value, &target];
    let told = attention_sizes(step, all, past_length)?;
    record(step, all, &told)?;
    let mut results = vec![result];
    results.extend(present_key);
    results.extend(present_value);
    if step.call.output_count() > 3 {
        results.push(scores(step, [&query, &key], &told)?);
    }
    Ok(results)
}

/// Keys or values after those of the past (input `index`), and as output `output` if it is wanted.
fn with_past(
    step: &mut Step<'_, '_>,
    new: Heads,
    index: usize,
    output: usize,
) -> Result<(Heads, Option<Array>), GpuError> {
    let wanted = step.call.output_count() > output;
    let all = match step.optional_wide(index)? {
        Some(past) => {
            let own = new.by_head(step)?;
            if past.dims.len() != 4 {
                return Err(KernelError::Range(index).into());
            }
            join_arrays(step, &[&past, &own], 2)?
        }
        None if wanted => new.by_head(step)?,
        None => return Ok((new, None)),
    };
    Ok((Heads::read(all.clone(), 0)?, wanted.then_some(all)))
}

/// The mask: its array, its kind (1 truths, 2 added), its steps, and how many keys it covers.
struct Mask {
    array: Option<Array>,
    kind: usize,
    steps: [usize; 4],
    shown: usize,
}

fn attention_mask(step: &mut Step<'_, '_>, query: &Heads, key: &Heads) -> Result<Mask, GpuError> {
    let Some(array) = step.optional_wide(3)? else {
        let (array, kind, steps, shown) = (None, 0, [0; 4], key.length);
        return Ok(Mask {
            array,
            kind,
            steps,
            shown,
        });
    };
    let length = *array.dims.last().ok_or(KernelError::Range(3))?;
    let shown = if length == 1 {
        key.length
    } else {
        length.min(key.length)
    };
    let dims = [query.samples, query.heads, query.length, shown];
    let own = [&array.dims[..array.dims.len() - 1], &[length.min(shown)]].concat();
    if broadcast_shape(&own, &dims)? != dims {
        return Err(KernelError::Shapes(array.dims, dims.to_vec()).into());
    }
    let walk =
        super::elementwise::broadcast_steps(&array.dims, &[dims[0], dims[1], dims[2], length]);
    let steps = [walk[0], walk[1], walk[2], walk[3]];
    let kind = if array.dtype == DType::Bool { 1 } else { 2 };
    Ok(Mask {
        array: Some(array),
        kind,
        steps,
        shown,
    })
}

/// The arguments of both kernels of attention: sizes and steps, the mask, and for each sample the
/// place of its first query and the number of keys that are not padding.
struct AttentionSizes {
    sizes: Vec<usize>,
    mask: Mask,
    limits: Array,
    /// Rows of queries, a workgroup each.
    rows: usize,
}

fn attention_sizes(
    step: &mut Step<'_, '_>,
    [query, key, value, target]: [&Heads; 4],
    past: usize,
) -> Result<AttentionSizes, GpuError> {
    let mask = attention_mask(step, query, key)?;
    let call = &step.call;
    let has_past = step.values.get(4).copied().flatten().is_some();
    let valid = call.optional_input_ints(6)?;
    let limits: Vec<i32> = match &valid {
        Some(valid) if valid.len() != query.samples => return Err(KernelError::Range(6).into()),
        Some(valid) => valid
            .iter()
            .flat_map(|&valid| {
                let own = valid - query.length as i64;
                let offset = if past > 0 || has_past {
                    past as i64
                } else {
                    own
                };
                [offset as i32, valid as i32]
            })
            .collect(),
        None => [past as i32, key.length as i32].repeat(query.samples),
    };
    let scale = call.float_attribute("scale", 1.0 / (query.width as f64).sqrt()) as f32;
    let softcap = call.float_attribute("softcap", 0.0) as f32;
    let window = |name| to_word(call.int_attribute(name, -1).clamp(-1, i64::from(i32::MAX)));
    let rows = query.samples * query.heads * query.length;
    let mut sizes = vec![
        rows,
        query.heads,
        key.heads,
        query.length,
        key.length,
        query.width,
        value.width,
        scale.to_bits() as usize,
        softcap.to_bits() as usize,
        usize::from(call.is_flag_set("is_causal")),
        window("left_window_size"),
        window("right_window_size"),
        mask.kind,
        mask.shown,
    ];
    sizes.extend(mask.steps);
    for heads in [query, key, value, target] {
        sizes.extend(heads.steps);
    }
    let limits = step.upload_indices(&limits)?;
    Ok(AttentionSizes {
        sizes,
        mask,
        limits,
        rows,
    })
}

fn record(
    step: &mut Step<'_, '_>,
    [query, key, value, target]: [&Heads; 4],
    told: &AttentionSizes,
) -> Result<(), GpuError> {
    let mut arrays = vec![&query.array, &key.array, &value.array, &told.limits];
    arrays.extend(&told.mask.array);
    arrays.push(&target.array);
    let types = [query, key, value, target].map(|it| element_type(it.array.dtype, false));
    let source = source(told.mask.kind, types);
    for first in (0..value.width).step_by(COLUMNS) {
        let mut sizes = told.sizes.clone();
        sizes.push(first);
        step.record_kernel(&source, &sizes, &arrays, Groups::Each(told.rows))?;
    }
    Ok(())
}

/// Computes the scores of all queries and keys at the stage that the node asks for: products,
/// capped, with the mask added, or the weights computed from them.
fn scores(
    step: &mut Step<'_, '_>,
    [query, key]: [&Heads; 2],
    told: &AttentionSizes,
) -> Result<Array, GpuError> {
    let dims = [query.samples, query.heads, query.length, key.length];
    let result = step.stream.allocate_array(DType::F32, &dims)?;
    let stage = step
        .call
        .int_attribute("qk_matmul_output_mode", 0)
        .clamp(0, 3);
    let mut sizes = told.sizes.clone();
    sizes.push(stage as usize);
    let mut arrays = vec![&query.array, &key.array, &told.limits];
    arrays.extend(&told.mask.array);
    arrays.push(&result);
    let source = scores_source(told.mask.kind);
    step.record_kernel(&source, &sizes, &arrays, Groups::Each(told.rows))?;
    Ok(result)
}

/// Computes the places of a group's query, keys and values, and declares its sums.
const PLACES: &str = r"
  let s = g % p[3];
  let h = (g / p[3]) % p[1];
  let z = g / (p[3] * p[1]);
  let kh = h / (p[1] / p[2]);
  let q0 = z * p[18] + h * p[19] + s * p[20];
  let k0 = z * p[21] + kh * p[22];
  let v0 = z * p[24] + kh * p[25];
  let place = i32(s) + limits[2u * z];
  let valid = limits[2u * z + 1u];
  let left = bitcast<i32>(p[10]);
  let right = bitcast<i32>(p[11]);
  var top = -infinity();
  var total = 0.0;
  var sums = vec4<f32>();
";

/// Whether the query can look at `key`, but for the mask.
const OPEN: &str = r"
    let ahead = i32(key) - place;
    var open = key < p[4] && key < p[13] && i32(key) < valid;
    open = open && !(p[9] != 0u && ahead > 0);
    open = open && !(left >= 0 && -ahead > left) && !(right >= 0 && ahead > right);
";

/// The keys among which are all that the query can look at: a cache can have room for many more.
const SPAN: &str = r"
  var stop = min(i32(min(p[4], p[13])), valid);
  if (p[9] != 0u) { stop = min(stop, place + 1); }
  if (right >= 0 && right < i32(p[4])) { stop = min(stop, place + right + 1); }
  let end = u32(max(stop, 0));
  var begin = 0u;
  if (left >= 0 && place > left) { begin = u32(place - left) / 64u * 64u; }
";

/// Returns the bindings of a kernel, including its mask and its result, and the expression that
/// reads the mask.
fn arrays_and_mask<'a>(
    mut arrays: Vec<(&'a str, &'a str)>,
    mask_kind: usize,
    made: &'a str,
) -> (String, String) {
    let at = "m[z * p[14] + h * p[15] + s * p[16] + key * p[17]]";
    let mask = match mask_kind {
        0 => String::new(),
        1 => format!("open = open && {at} != 0u;"),
        _ => format!("bias = {at}; open = open && bias != -infinity();"),
    };
    match mask_kind {
        0 => {}
        1 => arrays.push(("m", "u32")),
        _ => arrays.push(("m", "f32")),
    }
    arrays.push(("y", made));
    (bindings(&arrays, 1), mask)
}

fn source(mask_kind: usize, [q, k, v, y]: [&str; 4]) -> String {
    let arrays = vec![("q", q), ("k", k), ("v", v), ("limits", "i32")];
    let (arrays, mask) = arrays_and_mask(arrays, mask_kind, y);
    let prelude = prelude(&arrays);
    let (largest, sum) = (group_reduction("larger(a, b)"), group_reduction("a + b"));
    let entry = by_group("f32");
    format!(
        r"{prelude}{arrays}
var<workgroup> weights: array<f32, 64>;
{entry}
{PLACES}{SPAN}  for (var first = begin; first < end; first += 64u) {{
    let key = first + l;
{OPEN}    var score = -infinity();
    if (open) {{
      var bias = 0.0;
      {mask}
      if (open) {{
        var dot = 0.0;
        for (var c = 0u; c < p[5]; c++) {{
          dot += f32(q[q0 + c]) * f32(k[k0 + key * p[23] + c]);
        }}
        score = dot * f(7u);
        if (f(8u) > 0.0) {{ score = tanh(clamp(score / f(8u), -20.0, 20.0)) * f(8u); }}
        score += bias;
      }}
    }}
    t[l] = score;
    {largest}
    let highest = larger(top, t[0]);
    workgroupBarrier();
    var weight = 0.0;
    if (open) {{ weight = exp(score - highest); }}
    weights[l] = weight;
    t[l] = weight;
    {sum}
    var fade = 0.0;
    if (top != -infinity()) {{ fade = exp(top - highest); }}
    total = total * fade + t[0];
    sums = sums * fade;
    top = highest;
    for (var j = 0u; j < min(64u, end - first); j++) {{
      let at = v0 + (first + j) * p[26] + p[30];
      if (weights[j] != 0.0) {{
        for (var c = 0u; c < 4u; c++) {{
          let column = l + 64u * c;
          if (p[30] + column < p[6]) {{ sums[c] += weights[j] * f32(v[at + column]); }}
        }}
      }}
    }}
    workgroupBarrier();
  }}
  let y0 = z * p[27] + h * p[28] + s * p[29] + p[30];
  for (var c = 0u; c < 4u; c++) {{
    let column = l + 64u * c;
    if (p[30] + column < p[6]) {{
      var r = 0.0;
      if (top != -infinity()) {{ r = sums[c] / total; }}
      y[y0 + column] = {y}(r);
    }}
  }}
}}"
    )
}

/// Returns the kernel of [`scores`]: a workgroup writes a row, and reads it back for the weights.
fn scores_source(mask_kind: usize) -> String {
    let arrays = vec![("q", "f32"), ("k", "f32"), ("limits", "i32")];
    let (arrays, mask) = arrays_and_mask(arrays, mask_kind, "f32");
    let (largest, sum) = (group_reduction("larger(a, b)"), group_reduction("a + b"));
    let entry = by_group("f32");
    format!(
        r"{PRELUDE}{arrays}{entry}
{PLACES}  let y0 = g * p[4];
  let stage = p[30];
  for (var key = l; key < p[4]; key += 64u) {{
{OPEN}
    var bias = 0.0;
    {mask}
    var dot = 0.0;
    for (var c = 0u; c < p[5]; c++) {{ dot += q[q0 + c] * k[k0 + key * p[23] + c]; }}
    var score = dot * f(7u);
    if (stage > 0u && f(8u) > 0.0) {{
      score = tanh(clamp(score / f(8u), -20.0, 20.0)) * f(8u);
    }}
    if (stage > 1u) {{ score = select(-infinity(), score + bias, open); }}
    y[y0 + key] = score;
    top = larger(top, score);
  }}
  if (stage < 3u) {{ return; }}
  t[l] = top;
  {largest}
  top = t[0];
  workgroupBarrier();
  for (var key = l; key < p[4]; key += 64u) {{
    if (top != -infinity()) {{ total += exp(y[y0 + key] - top); }}
  }}
  t[l] = total;
  {sum}
  total = t[0];
  for (var key = l; key < p[4]; key += 64u) {{
    var weight = 0.0;
    if (top != -infinity()) {{ weight = exp(y[y0 + key] - top) / total; }}
    y[y0 + key] = weight;
  }}
}}"
    )
}

/// `RotaryEmbedding`.
pub(crate) fn rotary_embedding(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let heads = Heads::read(
        step.native_array(0)?,
        step.call.int_attribute("num_heads", 0),
    )?;
    let (mut cosines, mut sines) = (step.wide_array(1)?, step.wide_array(2)?);
    let turned = match step.call.int_attribute("rotary_embedding_dim", 0) {
        0 => heads.width,
        part => usize::try_from(part).map_err(|_| KernelError::Range(0))?,
    };
    let half = turned / 2;
    let mismatch = || KernelError::Shapes(cosines.dims.clone(), vec![half]);
    if turned > heads.width || cosines.dims.last() != Some(&half) || cosines.dims != sines.dims {
        return Err(mismatch().into());
    }
    let rows = heads.samples * heads.length;
    if let Some(positions) = step.call.optional_input_ints(3)? {
        let table_rows = cosines.count() / half.max(1);
        let row = |&position: &i64| {
            let row = usize::try_from(position).ok();
            let row = row.filter(|&row| row < table_rows);
            row.map(|row| row as i32).ok_or(KernelError::Range(3))
        };
        let table_indices: Vec<i32> = positions.iter().map(row).collect::<Result<_, _>>()?;
        if table_indices.len() != rows {
            return Err(KernelError::Range(3).into());
        }
        cosines = take_runs(step, &cosines, &table_indices, half, &[rows, half])?;
        sines = take_runs(step, &sines, &table_indices, half, &[rows, half])?;
    }
    if cosines.count() < rows * half {
        return Err(KernelError::Shapes(cosines.dims, vec![rows, half]).into());
    }
    let input = &heads.array;
    let result = step
        .stream
        .allocate_array(step.output_dtype(), &input.dims)?;
    let sizes = [
        input.count(),
        heads.heads,
        heads.length,
        heads.width,
        turned,
        usize::from(step.call.is_flag_set("interleaved")),
        usize::from(input.dims.len() == 4),
    ];
    let arrays = [input, &cosines, &sines, &result];
    let groups = Groups::Threads(input.count());
    let source = rotate_kernel(input.numbers_to(&result));
    step.record_kernel(&source, &sizes, &arrays, groups)?;
    Ok(vec![result])
}
