//! Products of matrices and convolutions: one tiled kernel, told where its operands lie.
//!
//! A workgroup makes a tile of the result from strips of both operands held in its own memory, a
//! thread sixteen elements of it. A convolution is a product whose right operand is read from
//! the image through the window as it is needed, so nothing is unfolded in memory.

use souk_memory::DType;

use super::error::GpuError;
use super::halves::{functions, read, words};
use super::shaders::{BY_THREAD, PRELUDE, bindings};
use super::steps::{Step, word};
use super::stream::{Array, Groups};
use crate::cpu::reference::call::KernelError;
use crate::cpu::reference::conv::{Spread, Window};
use crate::cpu::reference::shape::{broadcast, strides};

/// Spatial dimensions the kernels know; fewer are padded with ones.
const SPACE: usize = 3;
/// Columns of a tile.
const TILE_COLUMNS: usize = 64;
/// With fewer output channels to a group than this a tile would be mostly empty.
const TILED_CHANNELS_MIN: usize = 8;

/// The tiled product: `rows` is the height of a tile, `lines` begin the kernel with functions
/// `left(z, m, k)`, `right(z, k, n)` and `done(z, m, n, sum)`.
fn tiled(arrays: &str, lines: &str, rows: usize) -> String {
    let threads = rows / 4 * (TILE_COLUMNS / 4);
    format!(
        r"{PRELUDE}{arrays}
var<workgroup> ta: array<f32, {left}>;
var<workgroup> tb: array<f32, 1024>;
{lines}
@compute @workgroup_size({threads})
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) l: u32) {{
  let rows = p[0];
  let columns = p[1];
  let depth = p[2];
  let row0 = w.y * {rows}u;
  let column0 = w.x * 64u;
  let tr = l / 16u;
  let tc = l % 16u;
  var s0 = vec4<f32>();
  var s1 = vec4<f32>();
  var s2 = vec4<f32>();
  var s3 = vec4<f32>();
  for (var k0 = 0u; k0 < depth; k0 += 16u) {{
    for (var e = l; e < {left}u; e += {threads}u) {{
      let m = row0 + e / 16u;
      let k = k0 + e % 16u;
      var v = 0.0;
      if (m < rows && k < depth) {{ v = left(w.z, m, k); }}
      ta[e] = v;
    }}
    for (var e = l; e < 1024u; e += {threads}u) {{
      let k = k0 + e / 64u;
      let n = column0 + e % 64u;
      var v = 0.0;
      if (n < columns && k < depth) {{ v = right(w.z, k, n); }}
      tb[e] = v;
    }}
    workgroupBarrier();
    for (var k = 0u; k < 16u; k++) {{
      let at = k * 64u + tc;
      let b = vec4<f32>(tb[at], tb[at + 16u], tb[at + 32u], tb[at + 48u]);
      let from_row = tr * 64u + k;
      s0 += ta[from_row] * b;
      s1 += ta[from_row + 16u] * b;
      s2 += ta[from_row + 32u] * b;
      s3 += ta[from_row + 48u] * b;
    }}
    workgroupBarrier();
  }}
  var sums = array<vec4<f32>, 4>(s0, s1, s2, s3);
  for (var r = 0u; r < 4u; r++) {{
    let m = row0 + tr * 4u + r;
    for (var c = 0u; c < 4u; c++) {{
      let n = column0 + tc + 16u * c;
      if (m < rows && n < columns) {{ done(w.z, m, n, sums[r][c]); }}
    }}
  }}
}}",
        left = rows * 16,
    )
}

/// The height of tiles for so many rows.
fn tile_rows(rows: usize) -> usize {
    if rows <= 16 { 16 } else { 64 }
}

fn grid(rows: usize, columns: usize, each: usize) -> Groups {
    Groups::Grid([
        columns.div_ceil(TILE_COLUMNS),
        rows.div_ceil(tile_rows(rows)),
        each,
    ])
}

/// A batch of matrices: where each begins, and the steps of its rows and columns.
struct Operand<'a> {
    array: &'a Array,
    batch: Vec<usize>,
    row: usize,
    column: usize,
}

/// `factor * left * right + share * added`, over broadcast batches.
struct Product<'a> {
    batch: Vec<usize>,
    rows: usize,
    columns: usize,
    depth: usize,
    left: Operand<'a>,
    right: Operand<'a>,
    added: Option<Operand<'a>>,
    factor: f32,
    share: f32,
}

fn multiply(
    step: &mut Step<'_, '_>,
    product: &Product<'_>,
    dims: &[usize],
) -> Result<Array, GpuError> {
    #[cfg(feature = "cuda")]
    if step.stream.context.driver().has_products()
        && let Some(result) = library_product(step, product, dims)?
    {
        return Ok(result);
    }
    let result = step.stream.array(DType::F32, dims)?;
    let dtype = product.left.array.dtype;
    let floats = words(dtype);
    let mut names = vec![("x", floats), ("right_x", floats)];
    let mut arrays = vec![product.left.array, product.right.array];
    let mut added = "0.0".to_owned();
    if let Some(operand) = &product.added {
        names.push(("c", floats));
        arrays.push(operand.array);
        added = format!("f(10u) * {}", read(dtype, "c", "m * p[7] + n * p[8]"));
    }
    names.push(("y", "f32"));
    arrays.push(&result);
    let lines = product_lines(dtype, &added);
    let source = tiled(&bindings(&names, 1), &lines, tile_rows(product.rows));
    let sizes = product.sizes();
    let each = product.batch.iter().product();
    let groups = grid(product.rows, product.columns, each);
    step.kernel(&source, &sizes, &arrays, groups)?;
    Ok(result)
}

/// A product's part of the tiled kernel, its operands of one type.
fn product_lines(dtype: DType, added: &str) -> String {
    let functions = functions(dtype);
    let left = read(dtype, "x", "place(z, 1u) + m * p[3] + k * p[4]");
    let right = read(dtype, "right_x", "place(z, 2u) + k * p[5] + n * p[6]");
    format!(
        r"{functions}
fn place(z: u32, steps: u32) -> u32 {{
  var rest = z;
  var at = 0u;
  for (var k = p[11]; k > 0u; k--) {{
    at += (rest % p[11u + k]) * p[11u + steps * p[11] + k];
    rest = rest / p[11u + k];
  }}
  return at;
}}
fn left(z: u32, m: u32, k: u32) -> f32 {{ return {left}; }}
fn right(z: u32, k: u32, n: u32) -> f32 {{ return {right}; }}
fn done(z: u32, m: u32, n: u32, sum: f32) {{
  y[(z * p[0] + m) * p[1] + n] = f(9u) * sum + {added};
}}"
    )
}

impl Product<'_> {
    /// What the kernel is told of it.
    fn sizes(&self) -> Vec<usize> {
        let added = self.added.as_ref();
        let (row, column) = added.map_or((0, 0), |operand| (operand.row, operand.column));
        let mut sizes = vec![
            self.rows,
            self.columns,
            self.depth,
            self.left.row,
            self.left.column,
            self.right.row,
            self.right.column,
            row,
            column,
            self.factor.to_bits() as usize,
            self.share.to_bits() as usize,
            self.batch.len(),
        ];
        for list in [&self.batch, &self.left.batch, &self.right.batch] {
            sizes.extend(list);
        }
        sizes
    }
}

/// A product by the maker's library, if its operands lie as that wants them; of 16-bit floats it is
/// rounded to that type at once.
#[cfg(feature = "cuda")]
fn library_product(
    step: &mut Step<'_, '_>,
    product: &Product<'_>,
    dims: &[usize],
) -> Result<Option<Array>, GpuError> {
    let operands = [&product.left, &product.right];
    let operands = operands.into_iter().chain(&product.added);
    let dtype = product.left.array.dtype;
    if operands.into_iter().any(|it| it.array.dtype != dtype) {
        return Ok(None);
    }
    let result = step.stream.array(dtype, dims)?;
    let Some(launch) = library_launch(product, &result) else {
        return Ok(None);
    };
    step.stream.launch(launch);
    Ok(Some(result))
}

#[cfg(feature = "cuda")]
fn library_launch(product: &Product<'_>, result: &Array) -> Option<super::driver::Launch> {
    use crate::cuda::{self, Side, even_stride};
    let side = |operand: &Operand<'_>| {
        let stride = even_stride(&product.batch, &operand.batch)?;
        let place = operand.array.buffer.get().whole();
        Side::read(place, (operand.row, operand.column), stride)
    };
    let sizes = [product.rows, product.columns, product.depth];
    if sizes.contains(&0) || product.batch.contains(&0) {
        return None;
    }
    let bias = match &product.added {
        None => None,
        // One for each column is what the library adds itself.
        Some(added) if added.row == 0 && added.column == 1 && product.share == 1.0 => {
            Some(added.array.buffer.get().whole())
        }
        Some(_) => return None,
    };
    Some(super::driver::Launch::Product(Box::new(cuda::Product {
        dtype: result.dtype,
        rows: product.rows,
        columns: product.columns,
        depth: product.depth,
        batch: product.batch.iter().product(),
        factor: product.factor,
        left: side(&product.left)?,
        right: side(&product.right)?,
        bias,
        result: result.buffer.get().whole(),
    })))
}

/// `MatMul`: the last two dimensions multiplied, the others broadcast; vectors gain a dimension.
pub(super) fn matmul(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let (mut left, mut right) = (step.operand(0)?, step.operand(1)?);
    let (row_vector, column_vector) = (left.dims.len() == 1, right.dims.len() == 1);
    if row_vector {
        left.dims.insert(0, 1);
    }
    if column_vector {
        right.dims.push(1);
    }
    let mismatch = || KernelError::Shapes(left.dims.clone(), right.dims.clone());
    let (Some((left_batch, &[rows, depth])), Some((right_batch, &[other, columns]))) = (
        left.dims.split_last_chunk::<2>(),
        right.dims.split_last_chunk::<2>(),
    ) else {
        return Err(mismatch().into());
    };
    if depth != other {
        return Err(mismatch().into());
    }
    let batch = broadcast(left_batch, right_batch)?;
    let mut dims = batch.clone();
    if !row_vector {
        dims.push(rows);
    }
    if !column_vector {
        dims.push(columns);
    }
    let product = Product {
        left: operand(&left, left_batch, &batch, (depth, 1)),
        right: operand(&right, right_batch, &batch, (columns, 1)),
        batch,
        rows,
        columns,
        depth,
        added: None,
        factor: 1.0,
        share: 0.0,
    };
    Ok(vec![multiply(step, &product, &dims)?])
}

/// Matrices in C order whose batch is repeated to `batch`.
fn operand<'a>(
    array: &'a Array,
    own: &[usize],
    batch: &[usize],
    (row, column): (usize, usize),
) -> Operand<'a> {
    let matrix: usize = array.dims[own.len()..].iter().product();
    let missing = batch.len() - own.len();
    let own_steps = strides(own);
    let step = |axis: usize| match axis.checked_sub(missing) {
        Some(inside) if own[inside] != 1 => own_steps[inside] * matrix,
        _ => 0,
    };
    Operand {
        array,
        batch: (0..batch.len()).map(step).collect(),
        row,
        column,
    }
}

/// `Gemm`: two matrices, either of them transposed, and a third repeated to the result's shape.
pub(super) fn gemm(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let (left, right) = (step.operand(0)?, step.operand(1)?);
    let added = step.packed(2)?;
    let (flip_left, flip_right) = (step.call.flag("transA"), step.call.flag("transB"));
    let (&[a0, a1], &[b0, b1]) = (&left.dims[..], &right.dims[..]) else {
        return Err(KernelError::Shapes(left.dims.clone(), right.dims.clone()).into());
    };
    let (rows, depth) = if flip_left { (a1, a0) } else { (a0, a1) };
    let (other, columns) = if flip_right { (b1, b0) } else { (b0, b1) };
    if depth != other {
        return Err(KernelError::Shapes(left.dims.clone(), right.dims.clone()).into());
    }
    let made = [rows, columns];
    let steps = |flip, width| if flip { (1, width) } else { (width, 1) };
    let single = |array, (row, column)| Operand {
        array,
        batch: Vec::new(),
        row,
        column,
    };
    let third = match &added {
        Some(array) => {
            if broadcast(&array.dims, &made)? != made {
                return Err(KernelError::Shapes(array.dims.clone(), made.to_vec()).into());
            }
            let mut dims = vec![1; 2 - array.dims.len()];
            dims.extend(&array.dims);
            let row = if dims[0] == 1 { 0 } else { dims[1] };
            Some(single(array, (row, usize::from(dims[1] != 1))))
        }
        None => None,
    };
    let product = Product {
        batch: Vec::new(),
        rows,
        columns,
        depth,
        left: single(&left, steps(flip_left, a1)),
        right: single(&right, steps(flip_right, b1)),
        added: third,
        factor: step.call.float("alpha", 1.0) as f32,
        share: step.call.float("beta", 1.0) as f32,
    };
    Ok(vec![multiply(step, &product, &made)?])
}

/// Sizes of up to three spatial dimensions, padded in front.
pub(super) fn space(sizes: &[usize], fill: usize) -> Result<[usize; SPACE], KernelError> {
    let mut all = [fill; SPACE];
    let missing = SPACE
        .checked_sub(sizes.len())
        .ok_or(KernelError::Range(0))?;
    all[missing..].copy_from_slice(sizes);
    Ok(all)
}

/// A window as the kernels read it from `p[at]` on: input, kernel, output, strides, dilations,
/// padding before; three sizes each.
pub(super) fn geometry(window: &Window, input: &[usize]) -> Result<Vec<usize>, KernelError> {
    let lists = [
        (input, 1),
        (&window.kernel[..], 1),
        (&window.output[..], 1),
        (&window.strides[..], 1),
        (&window.dilations[..], 1),
        (&window.before[..], 0),
    ];
    let mut sizes = Vec::with_capacity(lists.len() * SPACE);
    for (list, fill) in lists {
        sizes.extend(space(list, fill)?);
    }
    Ok(sizes)
}

/// Where the window at result place `n` with its kernel at place `k` reads: `tap(k, n)` is the
/// place in the image, or none (-1). The geometry lies from `p[4]` on.
const TAP: &str = r"
fn tap(k: u32, n: u32) -> i32 {
  let kx = k % p[9]; let ky = (k / p[9]) % p[8]; let kz = k / (p[9] * p[8]);
  let ox = n % p[12]; let oy = (n / p[12]) % p[11]; let oz = n / (p[12] * p[11]);
  let z = i32(oz * p[13] + kz * p[16]) - i32(p[19]);
  let y = i32(oy * p[14] + ky * p[17]) - i32(p[20]);
  let x = i32(ox * p[15] + kx * p[18]) - i32(p[21]);
  if (z < 0 || y < 0 || x < 0 || z >= i32(p[4]) || y >= i32(p[5]) || x >= i32(p[6])) { return -1; }
  return (z * i32(p[5]) + y) * i32(p[6]) + x;
}
";

/// `Conv`: groups, strides, dilations and padding over one to three dimensions.
pub(super) fn conv(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let (input, weights) = (step.array(0)?, step.operand(1)?);
    let bias = step.optional(2)?;
    let mismatch = || KernelError::Shapes(input.dims.clone(), weights.dims.clone());
    let (&[samples, channels, ref spatial @ ..], &[filters, each, ref kernel @ ..]) =
        (&input.dims[..], &weights.dims[..])
    else {
        return Err(mismatch().into());
    };
    let groups = step.call.int("group", 1).max(1) as usize;
    if channels != each * groups || !filters.is_multiple_of(groups) {
        return Err(mismatch().into());
    }
    if bias.as_ref().is_some_and(|bias| bias.dims != [filters]) {
        return Err(KernelError::Range(2).into());
    }
    let window = Window::read(&step.call, kernel.to_vec(), spatial)?;
    let dims = [&[samples, filters], &window.output[..]].concat();
    let result = step.stream.array(DType::F32, &dims)?;
    let taps: usize = kernel.iter().product();
    let places: usize = window.output.iter().product();
    let own = filters / groups;
    let mut sizes = vec![own, places, each * taps, groups];
    sizes.extend(geometry(&window, spatial)?);
    sizes.extend([each, taps, result.count()]);
    let dtype = weights.dtype;
    let mut names = vec![("x", "f32"), ("weights", words(dtype))];
    let mut arrays = vec![&input, &weights];
    if let Some(bias) = &bias {
        names.push(("bias", "f32"));
        arrays.push(bias);
    }
    names.push(("y", "f32"));
    arrays.push(&result);
    let arrays_text = bindings(&names, 1);
    let with_bias = bias.is_some();
    if own < TILED_CHANNELS_MIN {
        let source = conv_direct(&arrays_text, dtype, with_bias);
        sizes[0] = result.count();
        sizes.push(own);
        step.kernel(&source, &sizes, &arrays, Groups::Threads(result.count()))?;
    } else {
        let source = tiled(&arrays_text, &conv_lines(dtype, with_bias), tile_rows(own));
        let groups = grid(own, places, samples * groups);
        step.kernel(&source, &sizes, &arrays, groups)?;
    }
    Ok(vec![result])
}

/// A convolution's part of the tiled product; `z` counts samples and in them groups.
fn conv_lines(dtype: DType, with_bias: bool) -> String {
    let functions = functions(dtype);
    let weight = read(dtype, "weights", "((z % p[3]) * p[0] + m) * p[2] + k");
    let bias = if with_bias {
        "bias[(z % p[3]) * p[0] + m]"
    } else {
        "0.0"
    };
    format!(
        r"{TAP}{functions}
fn left(z: u32, m: u32, k: u32) -> f32 {{
  return {weight};
}}
fn right(z: u32, k: u32, n: u32) -> f32 {{
  let at = tap(k % p[23], n);
  if (at < 0) {{ return 0.0; }}
  return x[(z * p[22] + k / p[23]) * (p[4] * p[5] * p[6]) + u32(at)];
}}
fn done(z: u32, m: u32, n: u32, sum: f32) {{
  y[(z * p[0] + m) * p[1] + n] = sum + {bias};
}}"
    )
}

/// A thread for each element of the result: for depthwise and other thin groups.
fn conv_direct(arrays: &str, dtype: DType, with_bias: bool) -> String {
    let functions = functions(dtype);
    let at = "((group * p[25] + m) * p[22] + c) * p[23] + k";
    let weight = read(dtype, "weights", at);
    let bias = if with_bias {
        "bias[group * p[25] + m]"
    } else {
        "0.0"
    };
    format!(
        r"{PRELUDE}{functions}{arrays}{TAP}{BY_THREAD}
  let n = i % p[1];
  let m = (i / p[1]) % p[25];
  let z = i / (p[1] * p[25]);
  let group = z % p[3];
  var sum = 0.0;
  for (var k = 0u; k < p[23]; k++) {{
    let at = tap(k, n);
    if (at < 0) {{ continue; }}
    for (var c = 0u; c < p[22]; c++) {{
      sum += {weight}
        * x[(z * p[22] + c) * (p[4] * p[5] * p[6]) + u32(at)];
    }}
  }}
  y[i] = sum + {bias};
}}"
    )
}

/// `ConvTranspose`: each place of the result gathers what reaches it.
pub(super) fn conv_transpose(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let (input, weights) = (step.array(0)?, step.array(1)?);
    let bias = step.optional(2)?;
    let mismatch = || KernelError::Shapes(input.dims.clone(), weights.dims.clone());
    let (&[samples, channels, ref spatial @ ..], &[from, own, ref kernel @ ..]) =
        (&input.dims[..], &weights.dims[..])
    else {
        return Err(mismatch().into());
    };
    let groups = step.call.int("group", 1).max(1) as usize;
    if channels != from || !channels.is_multiple_of(groups) || spatial.len() != kernel.len() {
        return Err(mismatch().into());
    }
    let spread = Spread::read(&step.call, kernel, spatial)?;
    let dims = [&[samples, own * groups], &spread.output[..]].concat();
    let result = step.stream.array(DType::F32, &dims)?;
    let taps = kernel.iter().product();
    let places = spread.output.iter().product();
    let mut sizes = vec![result.count(), places, own, groups];
    let lists = [
        (spatial, 1),
        (kernel, 1),
        (&spread.output[..], 1),
        (&spread.strides[..], 1),
        (&spread.dilations[..], 1),
    ];
    for (list, fill) in lists {
        sizes.extend(space(list, fill)?);
    }
    let before: Vec<usize> = spread.before.iter().map(|&cut| word(cut)).collect();
    sizes.extend(space(&before, 0)?);
    sizes.extend([channels / groups, taps]);
    let mut names = vec![("x", "f32"), ("weights", "f32")];
    let mut arrays = vec![&input, &weights];
    if let Some(bias) = &bias {
        names.push(("bias", "f32"));
        arrays.push(bias);
    }
    names.push(("y", "f32"));
    arrays.push(&result);
    let with = if bias.is_some() {
        "bias[channel]"
    } else {
        "0.0"
    };
    let source = conv_transpose_source(&bindings(&names, 1), with);
    step.kernel(&source, &sizes, &arrays, Groups::Threads(result.count()))?;
    Ok(vec![result])
}

/// A transposed convolution, a thread for each element of the result.
fn conv_transpose_source(arrays: &str, with: &str) -> String {
    format!(
        r"{PRELUDE}{arrays}
fn reach(o: u32, cut: u32, k: u32, dilation: u32, stride: u32, size: u32) -> i32 {{
  let at = i32(o) + bitcast<i32>(cut) - i32(k * dilation);
  if (at < 0 || at % i32(stride) != 0 || at / i32(stride) >= i32(size)) {{ return -1; }}
  return at / i32(stride);
}}
{BY_THREAD}
  let n = i % p[1];
  let channel = (i / p[1]) % (p[2] * p[3]);
  let sample = i / (p[1] * p[2] * p[3]);
  let group = channel / p[2];
  let ox = n % p[12]; let oy = (n / p[12]) % p[11]; let oz = n / (p[12] * p[11]);
  var sum = 0.0;
  for (var k = 0u; k < p[23]; k++) {{
    let z_ = reach(oz, p[19], k / (p[9] * p[8]), p[16], p[13], p[4]);
    let y_ = reach(oy, p[20], (k / p[9]) % p[8], p[17], p[14], p[5]);
    let x_ = reach(ox, p[21], k % p[9], p[18], p[15], p[6]);
    if (z_ < 0 || y_ < 0 || x_ < 0) {{ continue; }}
    let at = (u32(z_) * p[5] + u32(y_)) * p[6] + u32(x_);
    for (var c = 0u; c < p[22]; c++) {{
      let source = group * p[22] + c;
      sum += x[(sample * p[22] * p[3] + source) * (p[4] * p[5] * p[6]) + at]
        * weights[(source * p[2] + channel % p[2]) * p[23] + k];
    }}
  }}
  y[i] = sum + {with};
}}"
    )
}
