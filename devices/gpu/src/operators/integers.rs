//! Records the kernels of products of bytes, exact in 32-bit integers: `MatMulInteger` and
//! `QLinearMatMul`.
//!
//! A workgroup holds strips of both operands as words of four bytes along the depth, and a thread
//! multiplies and adds four at a time, which most devices do in one instruction. The kernel first
//! moves unsigned bytes into the signed range, and subtracts zero points by the sums of rows and
//! columns. Where the maker of a card has a library that takes the operands, the library multiplies
//! the bytes.

use souk_memory::DType;
use souk_reference::call::KernelError;

use crate::error::GpuError;
use crate::operators::elementwise::map;
#[cfg(feature = "cuda")]
use crate::operators::products::library::bytes_product;
use crate::operators::products::{Pair, tile_grid, tile_rows};
#[cfg(feature = "cuda")]
use crate::recording::Groups;
use crate::recording::{Array, Step};
#[cfg(feature = "cuda")]
use crate::shaders::BY_THREAD;
use crate::shaders::{PRELUDE, bindings};

/// Where a matrix of a batch begins, the sizes and steps of which lie from `p[6]` on; and four
/// products of words.
const FUNCTIONS: &str = r"
fn place(z: u32, steps: u32) -> u32 {
  var rest = z;
  var at = 0u;
  for (var k = p[5]; k > 0u; k--) {
    at += (rest % p[6u + k - 1u]) * p[6u + steps * p[5] + k - 1u];
    rest = rest / p[6u + k - 1u];
  }
  return at;
}
fn dots(a: u32, b: vec4<u32>) -> vec4<i32> {
  return vec4<i32>(dot4I8Packed(a, b.x), dot4I8Packed(a, b.y),
                   dot4I8Packed(a, b.z), dot4I8Packed(a, b.w));
}
";

/// A thread's part of a workgroup's product, once both tiles are filled.
const MULTIPLY: &str = r"
    for (var k = 0u; k < 16u; k++) {
      let at = k * 64u + tc;
      let b = vec4<u32>(tb[at], tb[at + 16u], tb[at + 32u], tb[at + 48u]);
      let from_row = tr * 64u + k;
      let a = vec4<u32>(ta[from_row], ta[from_row + 16u], ta[from_row + 32u], ta[from_row + 48u]);
      s0 += dots(a.x, b);
      s1 += dots(a.y, b);
      s2 += dots(a.z, b);
      s3 += dots(a.w, b);
      along += dots(0x01010101u, a);
      down += dots(0x01010101u, b);
    }
";

/// The deepest product that the library gets: a float tells the next kernel the depth.
#[cfg(feature = "cuda")]
const LIBRARY_DEPTH_MAX: usize = 1 << 24;

/// Which inputs are the operands and their zero points.
struct OperandIndices {
    left: usize,
    left_zero: usize,
    right: usize,
    right_zero: usize,
}

/// `MatMulInteger`: the exact product, in 32 bits.
pub(crate) fn matmul_integer(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let places = OperandIndices {
        left: 0,
        left_zero: 2,
        right: 1,
        right_zero: 3,
    };
    Ok(vec![multiply_bytes(step, &places)?])
}

/// `QLinearMatMul`: dequantises two matrices, multiplies them and quantises the product.
pub(crate) fn qlinear_matmul(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let places = OperandIndices {
        left: 0,
        left_zero: 2,
        right: 3,
        right_zero: 5,
    };
    let sum = multiply_bytes(step, &places)?;
    let mut scales = [
        step.wide_array(1)?,
        step.wide_array(4)?,
        step.wide_array(6)?,
    ];
    for scale in &mut scales {
        if scale.count() != 1 {
            return Err(KernelError::Shapes(scale.dims.clone(), vec![1]).into());
        }
        scale.dims.clear();
    }
    let [left, right, made] = &scales;
    let factor = [left, right, made].map(|scale| (scale, DType::F32));
    let factor = map(step, "a * b / c", &factor, DType::F32, [0.0; 3])?;
    let scaled = [(&sum, DType::I32), (&factor, DType::F32)];
    let scaled = map(step, "f32(a) * b", &scaled, DType::F32, [0.0; 3])?;
    let mut zero = step.wide_array(7)?;
    if zero.count() != 1 {
        return Err(KernelError::Shapes(zero.dims, vec![1]).into());
    }
    zero.dims.clear();
    let [low, high] = crate::numbers::integers::value_range(step.stored_array(7)?.dtype);
    let inputs = [(&scaled, DType::F32), (&zero, DType::I32)];
    let expression = "i32(clamp(round(a) + f32(b), s, t))";
    let made = map(step, expression, &inputs, DType::I32, [low, high, 0.0])?;
    Ok(vec![made])
}

/// The product of two matrices of bytes less their zero points.
fn multiply_bytes(step: &mut Step<'_, '_>, places: &OperandIndices) -> Result<Array, GpuError> {
    let (left, right) = (
        step.stored_array(places.left)?,
        step.stored_array(places.right)?,
    );
    let pair = Pair::from_arrays(left, right)?;
    let Pair {
        rows,
        columns,
        depth,
        ..
    } = pair;
    let left_zero = zero_point(step, places.left_zero, rows)?;
    let right_zero = zero_point(step, places.right_zero, columns)?;
    #[cfg(feature = "cuda")]
    if let Some(made) = by_library(step, places, &pair, [&left_zero, &right_zero])? {
        return Ok(made);
    }
    let result = step.stream.allocate_array(DType::I32, &pair.dims)?;
    let mut sizes = vec![
        rows,
        columns,
        depth,
        usize::from(left_zero.count() > 1),
        usize::from(right_zero.count() > 1),
        pair.batch.len(),
    ];
    let [left_side, right_side] = pair.operands();
    for list in [&pair.batch, &left_side.batch, &right_side.batch] {
        sizes.extend(list);
    }
    let (left, right) = (&pair.left, &pair.right);
    let source = source(left.dtype, right.dtype, tile_rows(rows));
    let arrays = [left, right, &left_zero, &right_zero, &result];
    let groups = tile_grid(rows, columns, pair.batch.iter().product());
    step.record_kernel(&source, &sizes, &arrays, groups)?;
    Ok(result)
}

/// Computes the same with the maker's library, which has no zero points: a later kernel subtracts
/// them.
#[cfg(feature = "cuda")]
fn by_library(
    step: &mut Step<'_, '_>,
    places: &OperandIndices,
    pair: &Pair,
    [left_zero, right_zero]: [&Array; 2],
) -> Result<Option<Array>, GpuError> {
    if pair.depth > LIBRARY_DEPTH_MAX {
        return Ok(None);
    }
    let operands = [
        step.stored_array(places.left)?,
        step.stored_array(places.right)?,
    ];
    let [left, right] = operands.each_ref();
    let flips = [sign_flip_bits(left.dtype), sign_flip_bits(right.dtype)];
    let words = flips.map(|flip| flip * 0x0101_0101);
    let Some(made) = bytes_product(step, [left, right], words)? else {
        return Ok(None);
    };
    let is_given = |index: usize| step.values.get(index).copied().flatten().is_some();
    if flips == [0, 0] && !is_given(places.left_zero) && !is_given(places.right_zero) {
        return Ok(Some(made.product));
    }
    let along = row_sums(step, &made.left, pair.depth)?;
    let down = row_sums(step, &made.right, pair.depth)?;
    let mut rows = left.dims.clone();
    *rows.last_mut().expect("it has rows") = 1;
    let along = along.with_dims(rows);
    let down = down.with_dims([pair.columns]);
    // One for all, or one for each row and each column.
    let left_zero = left_zero.with_dims([left_zero.count(), 1]);
    let right_zero = right_zero.with_dims([right_zero.count()]);
    let [transpose_left, transpose_right] = flips;
    let depth = pair.depth as f64;
    let expression = format!(
        "a - (e - {transpose_right}) * b - (d - {transpose_left}) * c \
         + i32(s) * (d - {transpose_left}) * (e - {transpose_right})"
    );
    let inputs = [&made.product, &along, &down, &left_zero, &right_zero];
    let inputs = inputs.map(|array| (array, DType::I32));
    let whole = map(step, &expression, &inputs, DType::I32, [depth, 0.0, 0.0])?;
    Ok(Some(whole))
}

/// The sums of bytes that lie in rows of fours, a thread a row.
#[cfg(feature = "cuda")]
fn row_sums(step: &mut Step<'_, '_>, array: &Array, depth: usize) -> Result<Array, GpuError> {
    let rows = array.count() / depth;
    let result = step.stream.allocate_array(DType::I32, &[rows])?;
    let groups = Groups::Threads(rows);
    step.record_kernel(
        &row_sums_kernel(),
        &[rows, depth / 4],
        &[array, &result],
        groups,
    )?;
    Ok(result)
}

/// Returns the WGSL of the kernel that sums rows of bytes.
#[cfg(feature = "cuda")]
pub(crate) fn row_sums_kernel() -> String {
    let arrays = bindings(&[("x", "u32"), ("y", "i32")], 1);
    format!(
        r"{PRELUDE}{arrays}{BY_THREAD}
  var sum = 0;
  for (var k = 0u; k < p[1]; k++) {{ sum += dot4I8Packed(0x01010101u, x[i * p[1] + k]); }}
  y[i] = sum;
}}"
    )
}

/// A zero point as an integer for all, or one for each of `each` rows or columns.
fn zero_point(step: &mut Step<'_, '_>, index: usize, each: usize) -> Result<Array, GpuError> {
    let Some(zero) = step.optional_wide(index)? else {
        return step.upload_indices(&[0]);
    };
    let count = zero.count();
    if count != 1 && (count != each || zero.dims.len() != 1) {
        return Err(KernelError::Shapes(zero.dims, vec![each]).into());
    }
    Ok(zero)
}

/// Returns the bits that turn a byte of a type into a signed one, which are also the distance.
fn sign_flip_bits(dtype: DType) -> u32 {
    if dtype == DType::U8 { 0x80 } else { 0 }
}

/// Lines that fill a tile with words of four bytes along the depth: each has place `n` across and
/// begins at `k`.
fn strip(lines: [&str; 4], flip: u32, words: usize, threads: usize) -> String {
    let [tile, place, inside, byte] = lines;
    format!(
        r"
    for (var e = l; e < {words}u; e += {threads}u) {{
      {place}
      var v = 0u;
      for (var j = 0u; j < 4u; j++) {{
        if ({inside} && k + j < depth) {{
          let at = {byte};
          v |= (((bytes_{tile}[at / 4u] >> (8u * (at & 3u))) & 0xffu) ^ {flip}u) << (8u * j);
        }}
      }}
      {tile}[e] = v;
    }}
"
    )
}

fn source(left: DType, right: DType, rows: usize) -> String {
    let names = [
        ("bytes_ta", "u32"),
        ("bytes_tb", "u32"),
        ("zx", "i32"),
        ("zy", "i32"),
        ("y", "i32"),
    ];
    let arrays = bindings(&names, 1);
    let threads = rows / 4 * 16;
    let (transpose_left, transpose_right) = (sign_flip_bits(left), sign_flip_bits(right));
    let words = rows * 16;
    let along = [
        "ta",
        "let n = row0 + e / 16u; let k = k0 + 4u * (e % 16u);",
        "n < rows",
        "left0 + n * depth + k + j",
    ];
    let down = [
        "tb",
        "let n = column0 + e % 64u; let k = k0 + 4u * (e / 64u);",
        "n < columns",
        "right0 + (k + j) * columns + n",
    ];
    let strips =
        strip(along, transpose_left, words, threads) + &strip(down, transpose_right, 1024, threads);
    format!(
        r"{PRELUDE}{arrays}
var<workgroup> ta: array<u32, {words}>;
var<workgroup> tb: array<u32, 1024>;
{FUNCTIONS}@compute @workgroup_size({threads})
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) l: u32) {{
  let rows = p[0];
  let columns = p[1];
  let depth = p[2];
  let row0 = w.y * {rows}u;
  let column0 = w.x * 64u;
  let left0 = place(w.z, 1u);
  let right0 = place(w.z, 2u);
  let tr = l / 16u;
  let tc = l % 16u;
  var s0 = vec4<i32>();
  var s1 = vec4<i32>();
  var s2 = vec4<i32>();
  var s3 = vec4<i32>();
  var along = vec4<i32>();
  var down = vec4<i32>();
  for (var k0 = 0u; k0 < depth; k0 += 64u) {{
{strips}    workgroupBarrier();
{MULTIPLY}    workgroupBarrier();
  }}
  var sums = array<vec4<i32>, 4>(s0, s1, s2, s3);
  for (var r = 0u; r < 4u; r++) {{
    let m = row0 + tr * 4u + r;
    for (var c = 0u; c < 4u; c++) {{
      let n = column0 + tc + 16u * c;
      if (m < rows && n < columns) {{
        let za = zx[m * p[3]] - {transpose_left};
        let zb = zy[n * p[4]] - {transpose_right};
        y[(w.z * rows + m) * columns + n] =
          sums[r][c] - zb * along[r] - za * down[c] + i32(depth) * za * zb;
      }}
    }}
  }}
}}"
    )
}
