//! Records the kernels of `MatMul` with a weight matrix in its stored form (halves, or integers
//! with scales), and `Gather` of its rows. Kernels widen blocks and halves as they read them, so
//! narrow weights save memory and bandwidth.
//!
//! For a few rows, such as a token's, a workgroup computes each element of the result, so that the
//! kernel reads the matrix once. For more rows it uses tiles.

use souk_memory::DType;
use souk_reference::call::KernelError;

use super::{tile_grid, tile_rows, tiled_kernel_source};
use crate::error::GpuError;
use crate::numbers::packed::{Halves, packing_functions, read, word_type};
use crate::numbers::quarters::Rounding;
use crate::recording::{Array, Groups, Matrix, Step};
use crate::shaders::{BY_THREAD, bindings, by_group, group_reduction, prelude};

/// Rows that are few.
const ROWS_FEW: usize = 8;

/// Returns the bindings of a kernel that reads `x` of a type and a matrix, and writes `y`.
fn kernel_bindings(matrix: &Matrix, halves: Halves, x: &'static str) -> String {
    let held = word_type(matrix.values.dtype, halves);
    let mut names = vec![("x", x), ("held", held)];
    names.extend(matrix.scales.as_ref().map(|_| ("scales", "f32")));
    names.push(("y", "f32"));
    bindings(&names, 1)
}

/// The function `weight(n, k)`: of row `n` the element `k`, of `p[2]`. It is of a block of `p[3]`,
/// of which a row has `p[4]`.
fn weight_function(matrix: &Matrix, halves: Halves) -> String {
    let dtype = matrix.values.dtype;
    let functions = packing_functions(dtype, Rounding::default());
    let value = read(dtype, halves, "held", "n * p[2] + k");
    let scale = match matrix.scales {
        Some(_) => " * scales[n * p[4] + k / p[3]]",
        None => "",
    };
    format!("{functions}\nfn weight(n: u32, k: u32) -> f32 {{ return f32({value}){scale}; }}\n")
}

/// Records `MatMul` with a stored matrix, each row of which makes one column of the result.
pub(crate) fn matrix_product(
    step: &mut Step<'_, '_>,
    matrix: &Matrix,
) -> Result<Vec<Array>, GpuError> {
    let input = step.wide_array(0)?;
    let [columns, depth] = matrix.rows_and_depth();
    let Some((last, batch)) = input.dims.split_last().filter(|(last, _)| **last == depth) else {
        return Err(KernelError::Shapes(input.dims, vec![depth, columns]).into());
    };
    let rows = batch.iter().product();
    let dims = [batch, &[columns]].concat();
    let result = step.stream.allocate_array(DType::F32, &dims)?;
    let [block, blocks] = matrix.block_dims();
    let halves = step.stream.context.half_support();
    let arrays = kernel_bindings(matrix, halves, "f32");
    let reading = weight_function(matrix, halves);
    let (source, sizes, groups) = if rows <= ROWS_FEW {
        let groups = rows * columns;
        let sizes = [groups, columns, *last, block, blocks, rows];
        let (then, done) = step.epilogue.kernel_lines("t[0]");
        let source = few_rows_kernel(&arrays, &format!("{reading}{then}"), &done);
        (source, sizes, Groups::Each(groups))
    } else {
        let sizes = [rows, columns, *last, block, blocks, rows];
        let (then, done) = step.epilogue.kernel_lines("sum");
        let source = tiled_kernel_source(
            &arrays,
            &many_rows_lines(&reading, &then, &done),
            tile_rows(rows),
        );
        (source, sizes, tile_grid(rows, columns, 1))
    };
    let mut bound = vec![&input];
    bound.extend(matrix.arrays());
    bound.push(&result);
    step.record_kernel(&source, &sizes, &bound, groups)?;
    Ok(vec![result])
}

/// A group for each element: columns one after another, the rows of each side by side.
fn few_rows_kernel(arrays: &str, lines: &str, done: &str) -> String {
    let (prelude, entry, sum) = (prelude(arrays), by_group("f32"), group_reduction("a + b"));
    format!(
        r"{prelude}{arrays}{lines}{entry}
  let n = g / p[5];
  let m = g % p[5];
  var sum = 0.0;
  for (var k = l; k < p[2]; k += 64u) {{ sum += x[m * p[2] + k] * weight(n, k); }}
  t[l] = sum;
  {sum}
  if (l == 0u) {{ y[m * p[1] + n] = {done}; }}
}}"
    )
}

fn many_rows_lines(reading: &str, then: &str, done: &str) -> String {
    format!(
        r"{reading}{then}
fn left(z: u32, m: u32, k: u32) -> f32 {{ return x[m * p[2] + k]; }}
fn right(z: u32, k: u32, n: u32) -> f32 {{ return weight(n, k); }}
fn done(z: u32, m: u32, n: u32, sum: f32) {{ y[m * p[1] + n] = {done}; }}"
    )
}

/// Records `Gather` of rows of a stored matrix, by indices that the host has.
pub(crate) fn gather_rows(
    step: &mut Step<'_, '_>,
    matrix: &Matrix,
) -> Result<Vec<Array>, GpuError> {
    let [rows, depth] = matrix.rows_and_depth();
    let row = |&index: &i64| {
        // A negative index counts from the end.
        let index = if index < 0 {
            index + rows as i64
        } else {
            index
        };
        let row = i32::try_from(index).ok();
        row.filter(|&row| row >= 0 && (row as usize) < rows)
    };
    let indices = step.call.input_ints(1)?;
    let row_indices: Option<Vec<i32>> = indices.iter().map(row).collect();
    let row_indices = step.upload_indices(&row_indices.ok_or(KernelError::Range(1))?)?;
    let dims = [step.call.input(1)?.dims(), &[depth]].concat();
    let result = step.stream.allocate_array(DType::F32, &dims)?;
    let [block, blocks] = matrix.block_dims();
    let halves = step.stream.context.half_support();
    let arrays = kernel_bindings(matrix, halves, "i32");
    let (prelude, reading) = (prelude(&arrays), weight_function(matrix, halves));
    let source = format!(
        r"{prelude}{arrays}{reading}{BY_THREAD}
  y[i] = weight(u32(x[i / p[2]]), i % p[2]);
}}"
    );
    let sizes = [result.count(), 0, depth.max(1), block, blocks];
    let mut bound = vec![&row_indices];
    bound.extend(matrix.arrays());
    bound.push(&result);
    step.record_kernel(&source, &sizes, &bound, Groups::Threads(result.count()))?;
    Ok(vec![result])
}
