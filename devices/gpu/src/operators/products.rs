//! Records the kernels of matrix products (`MatMul`, `Gemm`), and builds the tiled kernel that
//! convolutions use as well. The kernel takes sizes and strides as arguments, so one kernel serves
//! all shapes.
//!
//! Each workgroup computes one tile of the result from strips of both operands in workgroup memory;
//! each thread computes sixteen elements. The kernel applies element-wise functions to each sum
//! before it writes it. With the feature `cuda`, cuBLASLt computes the products that it supports.

#[cfg(feature = "cuda")]
pub(crate) mod library;
pub(crate) mod matrix;

use souk_memory::DType;
use souk_reference::call::KernelError;
use souk_reference::shape::{broadcast_shape, strides};

use crate::error::GpuError;
use crate::numbers::packed::{Halves, packing_functions, read, store_expression, word_type};
use crate::numbers::quarters::{Rounding, is_f8};
use crate::operators::elementwise::map;
use crate::recording::{Array, Epilogue, Groups, Step, widen_array};
use crate::shaders::{bindings, prelude};
#[cfg(feature = "cuda")]
use library::{f8_product, library_product};

/// Columns of a tile.
const TILE_COLUMNS: usize = 64;

/// Returns the WGSL of a tiled product. `rows` is the height of a tile. `functions` must define
/// `left(z, m, k)` and `right(z, k, n)`, which load an element of batch `z`, and `done(z, m, n,
/// sum)`, which stores a result.
pub(crate) fn tiled_kernel_source(arrays: &str, functions: &str, rows: usize) -> String {
    let threads = rows / 4 * (TILE_COLUMNS / 4);
    let prelude = prelude(arrays);
    format!(
        r"{prelude}{arrays}
var<workgroup> ta: array<f32, {left}>;
var<workgroup> tb: array<f32, 1024>;
{functions}
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

/// Returns the tile height for a product with `rows` rows.
pub(crate) fn tile_rows(rows: usize) -> usize {
    if rows <= 16 { 16 } else { 64 }
}

/// Returns the workgroups that cover `batches` results of `rows` by `columns` with tiles.
pub(crate) fn tile_grid(rows: usize, columns: usize, batches: usize) -> Groups {
    Groups::Grid([
        columns.div_ceil(TILE_COLUMNS),
        rows.div_ceil(tile_rows(rows)),
        batches,
    ])
}

/// A batch of matrices in an array, with the strides (in elements) of the batch dimensions, the
/// rows and the columns.
pub(crate) struct Operand<'a> {
    pub array: &'a Array,
    pub batch: Vec<usize>,
    pub row: usize,
    pub column: usize,
}

/// `factor * left * right + share * added` (Gemm's alpha and beta) over broadcast batches; `batch`
/// holds the sizes of their dimensions.
pub(crate) struct Product<'a> {
    pub batch: Vec<usize>,
    pub rows: usize,
    pub columns: usize,
    pub depth: usize,
    pub left: Operand<'a>,
    pub right: Operand<'a>,
    pub added: Option<Operand<'a>>,
    pub factor: f32,
    pub share: f32,
}

fn record_product(
    step: &mut Step<'_, '_>,
    product: &Product<'_>,
    dims: &[usize],
) -> Result<Array, GpuError> {
    #[cfg(feature = "cuda")]
    if let Some(result) = library_product(step, product, dims)? {
        return Ok(result);
    }
    let result = step.stream.allocate_array(step.output_dtype(), dims)?;
    let dtype = product.left.array.dtype;
    let halves = step.stream.context.half_support();
    let floats = word_type(dtype, halves);
    let mut names = vec![("x", floats), ("right_x", floats)];
    let mut arrays = vec![product.left.array, product.right.array];
    let mut added = "0.0".to_owned();
    if let Some(operand) = &product.added {
        names.push(("c", floats));
        arrays.push(operand.array);
        added = format!(
            "f(10u) * {}",
            read(dtype, halves, "c", "m * p[7] + n * p[8]")
        );
    }
    names.push(("y", word_type(result.dtype, halves)));
    arrays.push(&result);
    let lines = product_functions([dtype, result.dtype], halves, &added, step.epilogue);
    let source = tiled_kernel_source(&bindings(&names, 1), &lines, tile_rows(product.rows));
    let sizes = product.kernel_arguments();
    let each = product.batch.iter().product();
    let groups = tile_grid(product.rows, product.columns, each);
    step.record_kernel(&source, &sizes, &arrays, groups)?;
    Ok(result)
}

/// Returns the functions `left`, `right` and `done` of a product for the types of its operands and
/// its result.
fn product_functions(
    [dtype, result_dtype]: [DType; 2],
    halves: Halves,
    added: &str,
    epilogue: &Epilogue,
) -> String {
    let functions = packing_functions(dtype, Rounding::default());
    let (epilogue_functions, done) = epilogue.kernel_lines(&format!("f(9u) * sum + {added}"));
    let done = store_expression(result_dtype, &done);
    let left = read(
        dtype,
        halves,
        "x",
        "batch_offset(z, 1u) + m * p[3] + k * p[4]",
    );
    let right = read(
        dtype,
        halves,
        "right_x",
        "batch_offset(z, 2u) + k * p[5] + n * p[6]",
    );
    format!(
        r"{functions}{epilogue_functions}
// Returns the offset of batch `z` in an operand: 1 is the left one, 2 the right one.
fn batch_offset(z: u32, operand: u32) -> u32 {{
  var rest = z;
  var at = 0u;
  for (var k = p[11]; k > 0u; k--) {{
    at += (rest % p[11u + k]) * p[11u + operand * p[11] + k];
    rest = rest / p[11u + k];
  }}
  return at;
}}
fn left(z: u32, m: u32, k: u32) -> f32 {{ return {left}; }}
fn right(z: u32, k: u32, n: u32) -> f32 {{ return {right}; }}
fn done(z: u32, m: u32, n: u32, sum: f32) {{
  y[(z * p[0] + m) * p[1] + n] = {done};
}}"
    )
}

impl Product<'_> {
    /// Returns the kernel's arguments `p`: rows, columns and depth (0 to 2); row and column strides
    /// of `left`, `right` and `added` (3 to 8); the bits of `factor` and `share` (9, 10); the
    /// number of batch dimensions (11); then their sizes and the strides of `left` and `right`.
    fn kernel_arguments(&self) -> Vec<usize> {
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

/// Records `MatMul`: multiplies the last two dimensions and broadcasts the others; vectors gain a
/// dimension. An optional third input, one element for each column, is a bias, fused from an `Add`
/// after the product. For operands of 8-bit floats, the fourth and fifth inputs are their scales.
pub(crate) fn matmul(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    if let Some(matrix) = step.matrix {
        return matrix::matrix_product(step, matrix);
    }
    let (mut left, mut right) = (step.stored_array(0)?, step.stored_array(1)?);
    if is_f8(left.dtype) {
        #[cfg(feature = "cuda")]
        if let Some(made) = f8_product(step, &left, &right)? {
            return Ok(vec![made]);
        }
        left = dequantize_f8(step, left, 3)?;
        right = dequantize_f8(step, right, 4)?;
    }
    Ok(vec![record_array_product(step, left, right)?])
}

/// Converts 8-bit floats to 32-bit floats, multiplied by the input `scale`.
fn dequantize_f8(step: &mut Step<'_, '_>, array: Array, scale: usize) -> Result<Array, GpuError> {
    let (wide, scale) = (widen_array(step.stream, array)?, step.wide_array(scale)?);
    let scale = scale.with_dims(Vec::new());
    let inputs = [(&wide, DType::F32), (&scale, DType::F32)];
    map(step, "a * b", &inputs, DType::F32, [0.0; 3])
}

/// Two operands with compatible shapes. A vector counts as a matrix with one row or one column.
pub(crate) struct Pair {
    pub left: Array,
    pub right: Array,
    /// Sizes of the broadcast batch dimensions (`batch`), and shape of the result (`dims`).
    pub batch: Vec<usize>,
    pub dims: Vec<usize>,
    pub rows: usize,
    pub columns: usize,
    pub depth: usize,
}

impl Pair {
    pub fn from_arrays(mut left: Array, mut right: Array) -> Result<Self, KernelError> {
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
            return Err(mismatch());
        };
        if depth != other {
            return Err(mismatch());
        }
        let batch = broadcast_shape(left_batch, right_batch)?;
        let mut dims = batch.clone();
        dims.extend((!row_vector).then_some(rows));
        dims.extend((!column_vector).then_some(columns));
        Ok(Self {
            left,
            right,
            batch,
            dims,
            rows,
            columns,
            depth,
        })
    }

    /// Returns both operands with their strides.
    pub fn operands(&self) -> [Operand<'_>; 2] {
        [
            batch_operand(&self.left, &self.batch, self.depth, 1),
            batch_operand(&self.right, &self.batch, self.columns, 1),
        ]
    }
}

/// Records a product of two arrays, with the bias of input 2 if there is one.
fn record_array_product(
    step: &mut Step<'_, '_>,
    left: Array,
    right: Array,
) -> Result<Array, GpuError> {
    let pair = Pair::from_arrays(left, right)?;
    let bias = step.optional_stored(2)?;
    let added = bias.as_ref().map(|array| Operand {
        array,
        batch: vec![0; pair.batch.len()],
        row: 0,
        column: 1,
    });
    let [left, right] = pair.operands();
    let product = Product {
        left,
        right,
        batch: pair.batch.clone(),
        rows: pair.rows,
        columns: pair.columns,
        depth: pair.depth,
        added,
        factor: 1.0,
        share: 1.0,
    };
    record_product(step, &product, &pair.dims)
}

/// Returns the operand of an array in C order, broadcast to the batch dimensions `batch`.
fn batch_operand<'a>(array: &'a Array, batch: &[usize], row: usize, column: usize) -> Operand<'a> {
    let (own, matrix) = array.dims.split_at(array.dims.len() - 2);
    let matrix: usize = matrix.iter().product();
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

/// Records `Gemm`: multiplies two matrices, each transposed on request, and adds a third, broadcast
/// to the result's shape.
pub(crate) fn gemm(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let (left, right) = (step.stored_array(0)?, step.stored_array(1)?);
    let added = step.optional_stored(2)?;
    let (transpose_left, transpose_right) = (
        step.call.is_flag_set("transA"),
        step.call.is_flag_set("transB"),
    );
    let (&[a0, a1], &[b0, b1]) = (&left.dims[..], &right.dims[..]) else {
        return Err(KernelError::Shapes(left.dims.clone(), right.dims.clone()).into());
    };
    let (rows, depth) = if transpose_left { (a1, a0) } else { (a0, a1) };
    let (other, columns) = if transpose_right { (b1, b0) } else { (b0, b1) };
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
            if broadcast_shape(&array.dims, &made)? != made {
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
        left: single(&left, steps(transpose_left, a1)),
        right: single(&right, steps(transpose_right, b1)),
        added: third,
        factor: step.call.float_attribute("alpha", 1.0) as f32,
        share: step.call.float_attribute("beta", 1.0) as f32,
    };
    Ok(vec![record_product(step, &product, &made)?])
}
