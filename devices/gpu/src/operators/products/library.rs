//! Records products and convolutions with the card maker's library for matrix products, where the
//! driver has one and the library takes the operands. Otherwise the callers use kernels of our own.

use souk_cuda as cuda;
use souk_cuda::{Side, SumPrecision, even_stride};
use souk_memory::DType;
use souk_onnx::NodeProto;
use souk_reference::call::KernelError;

use crate::driver::{Driver, Launch, Stretch};
use crate::error::GpuError;
use crate::operators::elementwise::map;
use crate::operators::products::{Operand, Product};
use crate::operators::unfolding::unfold_kernel;
use crate::recording::{Array, ElementFunction, FusedFunction, Groups, Step, widen_array};
use crate::shaders::{BY_THREAD, PRELUDE, bindings};

/// A node's note that says how its products of 32-bit floats can be summed.
const SUMS: &str = "ai.souk.sums";
/// The note's value for operands rounded to 19 bits (TF32).
const SUMS_TF32: &str = "tf32";

/// Multiplies with the library, if there is one and it takes the operands in place. It rounds a
/// product of 16-bit floats to their type immediately.
pub(crate) fn library_product(
    step: &mut Step<'_, '_>,
    product: &Product<'_>,
    dims: &[usize],
) -> Result<Option<Array>, GpuError> {
    let Driver::Cuda(driver) = step.stream.context.driver() else {
        return Ok(None);
    };
    let operands = [&product.left, &product.right];
    let operands = operands.into_iter().chain(&product.added);
    let dtype = product.left.array.dtype;
    if operands.into_iter().any(|it| it.array.dtype != dtype) {
        return Ok(None);
    }
    let result = step.stream.allocate_array(dtype, dims)?;
    let Some(mut wanted) = describe_product(product, &result) else {
        return Ok(None);
    };
    wanted.sums = sum_precision(step.call.node);
    let then = step.epilogue.then.as_ref();
    // The library's ReLU turns NaN into 0, but NaN must pass through: our kernel does that.
    let known = then.and_then(|then| then.known);
    wanted.known = match known {
        Some(FusedFunction::GeluTanh) => Some(cuda::FusedFunction::GeluTanh),
        Some(FusedFunction::Relu) | None => None,
    };
    if wanted.known.is_some() && !driver.can_multiply(&wanted) {
        wanted.known = None;
    }
    if !driver.can_multiply(&wanted) {
        return Ok(None);
    }
    let left = then.filter(|_| wanted.known.is_none());
    step.stream.record_launch(Launch::Product(Box::new(wanted)));
    match left {
        Some(then) => Ok(Some(apply_function(step, result, then)?)),
        None => Ok(Some(result)),
    }
}

/// The most bytes that an image is unfolded to.
const UNFOLDED_MAX: usize = 512 << 20;

/// Computes a convolution as a product of its weights with the image, if the library takes it.
/// Unfolds the image first unless the window is one place. The sizes are the arguments of the
/// convolution kernels.
pub(crate) fn library_conv(
    step: &mut Step<'_, '_>,
    [input, weights]: [&Array; 2],
    bias: Option<&Array>,
    (dims, sizes): (&[usize], &[usize]),
) -> Result<Option<Array>, GpuError> {
    let (&[samples, filters, ..], &[_, places, depth, ..]) = (dims, sizes) else {
        return Ok(None);
    };
    let count = samples * depth * places;
    let is_single = [input, weights].iter().all(|it| it.dtype == DType::F32);
    let is_driven = matches!(step.stream.context.driver(), Driver::Cuda(_));
    if !is_driven || !is_single || count == 0 || 4 * count > UNFOLDED_MAX {
        return Ok(None);
    }
    let [extents, windows, made, strides] = [4, 7, 10, 13].map(|at| &sizes[at..at + 3]);
    let is_whole = extents == made && sizes[19..22] == [0; 3];
    let is_plain = is_whole && windows == [1; 3] && strides == [1; 3];
    let unfolded = match is_plain {
        true => input.clone(),
        false => step
            .stream
            .allocate_array(DType::F32, &[samples, depth, places])?,
    };
    let operand = |array, batch, row| Operand {
        array,
        batch: vec![batch],
        row,
        column: 1,
    };
    let product = Product {
        batch: vec![samples],
        rows: filters,
        columns: places,
        depth,
        left: operand(weights, 0, depth),
        right: operand(&unfolded, depth * places, places),
        added: None,
        factor: 1.0,
        share: 1.0,
    };
    let mut made = step.stream.allocate_array(DType::F32, dims)?;
    let Some(mut wanted) = describe_product(&product, &made) else {
        return Ok(None);
    };
    wanted.sums = sum_precision(step.call.node);
    let Driver::Cuda(driver) = step.stream.context.driver() else {
        return Ok(None);
    };
    if !driver.can_multiply(&wanted) {
        return Ok(None);
    }
    if !is_plain {
        let sizes = [&[count], &sizes[1..]].concat();
        let groups = Groups::Threads(count);
        step.record_kernel(&unfold_kernel(), &sizes, &[input, &unfolded], groups)?;
    }
    step.stream.record_launch(Launch::Product(Box::new(wanted)));
    if let Some(bias) = bias {
        let ones = vec![1; dims.len() - 2];
        let bias = bias.clone().with_dims([&[filters], &ones[..]].concat());
        let inputs = [(&made, DType::F32), (&bias, DType::F32)];
        made = map(step, "a + b", &inputs, DType::F32, [0.0; 3])?;
    }
    match step.epilogue.then.as_ref() {
        Some(then) => Ok(Some(apply_function(step, made, then)?)),
        None => Ok(Some(made)),
    }
}

/// A function of one element that the library does not do.
fn apply_function(
    step: &mut Step<'_, '_>,
    made: Array,
    then: &ElementFunction,
) -> Result<Array, GpuError> {
    let wide = widen_array(step.stream, made)?;
    let inputs = [(&wide, DType::F32)];
    map(
        step,
        then.expression,
        &inputs,
        DType::F32,
        then.numbers.map(f64::from),
    )
}

/// A product of values of 8 bits that the library takes, its right side yet to be turned.
struct ByteProduct {
    wanted: cuda::Product<Stretch>,
    result: Array,
    turned: Array,
}

/// Plans a product of 8-bit values, if the library takes it: any number of rows with one matrix,
/// which must lie along the depth.
fn plan_byte_product(
    step: &Step<'_, '_>,
    [left, right]: [&Array; 2],
    [given, made]: [DType; 2],
    scales: Option<[Stretch; 2]>,
) -> Result<Option<ByteProduct>, GpuError> {
    let Driver::Cuda(driver) = step.stream.context.driver() else {
        return Ok(None);
    };
    let (&[depth, columns], Some((&last, outer))) = (&right.dims[..], left.dims.split_last())
    else {
        return Ok(None);
    };
    if last != depth || outer.contains(&0) || columns == 0 || depth == 0 {
        return Ok(None);
    }
    let result = step
        .stream
        .allocate_array(made, &[outer, &[columns]].concat())?;
    let turned = step.stream.allocate_array(given, &[columns, depth])?;
    let side = |array: &Array, is_transposed| Side {
        place: array.buffer.get().as_stretch(),
        dtype: array.dtype,
        is_transposed,
        pitch: depth,
        stride: 0,
    };
    let wanted = cuda::Product {
        scales,
        made,
        sums: SumPrecision::Full,
        rows: outer.iter().product(),
        columns,
        depth,
        batch: 1,
        factor: 1.0,
        left: side(left, false),
        right: side(&turned, true),
        bias: None,
        known: None,
        result: result.buffer.get().as_stretch(),
    };
    Ok(driver.can_multiply(&wanted).then_some(ByteProduct {
        wanted,
        result,
        turned,
    }))
}

/// Multiplies 8-bit floats, each side with its scale, if the library takes them.
pub(crate) fn f8_product(
    step: &mut Step<'_, '_>,
    left: &Array,
    right: &Array,
) -> Result<Option<Array>, GpuError> {
    if !matches!(step.stream.context.driver(), Driver::Cuda(_)) {
        return Ok(None);
    }
    let scales = [step.wide_array(3)?, step.wide_array(4)?];
    let scales = scales.map(|scale| scale.buffer.get().as_stretch());
    let types = [right.dtype, DType::F32];
    let Some(plan) = plan_byte_product(step, [left, right], types, Some(scales))? else {
        return Ok(None);
    };
    turn_moved(step, right, &plan.turned, 0)?;
    step.stream
        .record_launch(Launch::Product(Box::new(plan.wanted)));
    let mut made = plan.result;
    if let Some(bias) = step.optional_wide(2)? {
        let inputs = [(&made, DType::F32), (&bias, DType::F32)];
        made = map(step, "a + b", &inputs, DType::F32, [0.0; 3])?;
    }
    match step.epilogue.then.as_ref() {
        Some(then) => Ok(Some(apply_function(step, made, then)?)),
        None => Ok(Some(made)),
    }
}

/// A product of bytes by the library; and its operands, moved into the signed range, the right one
/// transposed.
pub(crate) struct Bytes {
    pub product: Array,
    pub left: Array,
    pub right: Array,
}

/// Computes a product of bytes, if the library takes it: rows with a matrix whose depth and columns
/// are multiples of four. An exclusive or with the `flip` words moves unsigned bytes into the
/// signed range.
pub(crate) fn bytes_product(
    step: &mut Step<'_, '_>,
    [left, right]: [&Array; 2],
    [transpose_left, transpose_right]: [u32; 2],
) -> Result<Option<Bytes>, GpuError> {
    let is_driven = matches!(step.stream.context.driver(), Driver::Cuda(_));
    if !is_driven || left.dims.len() < 2 {
        return Ok(None);
    }
    let moved = match transpose_left {
        0 => Array {
            dtype: DType::I8,
            ..left.clone()
        },
        _ => step.stream.allocate_array(DType::I8, &left.dims)?,
    };
    let types = [DType::I8, DType::I32];
    let Some(plan) = plan_byte_product(step, [&moved, right], types, None)? else {
        return Ok(None);
    };
    if transpose_left != 0 {
        move_bytes(step, left, &moved, transpose_left)?;
    }
    turn_moved(step, right, &plan.turned, transpose_right)?;
    step.stream
        .record_launch(Launch::Product(Box::new(plan.wanted)));
    Ok(Some(Bytes {
        product: plan.result,
        left: moved,
        right: plan.turned,
    }))
}

/// Writes words of four bytes, moved by exclusive or with `flip`.
fn move_bytes(
    step: &mut Step<'_, '_>,
    from: &Array,
    to: &Array,
    flip: u32,
) -> Result<(), GpuError> {
    let words = from.count().div_ceil(4);
    let groups = Groups::Threads(words);
    step.record_kernel(&move_kernel(), &[words, flip as usize], &[from, to], groups)
}

/// The kernel that moves words of bytes.
fn move_kernel() -> String {
    let arrays = bindings(&[("x", "u32"), ("y", "u32")], 1);
    format!("{PRELUDE}{arrays}{BY_THREAD}  y[i] = x[i] ^ p[1];\n}}")
}

/// Writes a matrix of bytes by its columns, a thread for four of one of them; each word is moved by
/// exclusive or with `flip`.
fn turn_moved(
    step: &mut Step<'_, '_>,
    matrix: &Array,
    turned: &Array,
    flip: u32,
) -> Result<(), GpuError> {
    let &[columns, depth] = &turned.dims[..] else {
        return Err(KernelError::Range(1).into());
    };
    let words = columns * depth / 4;
    let groups = Groups::Threads(words);
    let sizes = [words, columns, depth, flip as usize];
    step.record_kernel(&transpose_kernel(), &sizes, &[matrix, turned], groups)
}

/// The kernel that turns a matrix of bytes.
fn transpose_kernel() -> String {
    let arrays = bindings(&[("x", "u32"), ("y", "u32")], 1);
    format!(
        r"{PRELUDE}{arrays}{BY_THREAD}
  let n = 4u * i / p[2];
  let k = 4u * i % p[2];
  var word = 0u;
  for (var j = 0u; j < 4u; j++) {{
    let at = (k + j) * p[1] + n;
    word |= ((x[at / 4u] >> (8u * (at & 3u))) & 0xffu) << (8u * j);
  }}
  y[i] = word ^ p[3];
}}"
    )
}

/// Returns the kernels that rearrange operands as the library wants them.
#[cfg(test)]
pub(crate) fn operand_kernels() -> [String; 3] {
    [move_kernel(), transpose_kernel(), unfold_kernel()]
}

/// How the products of a node can be summed: in full unless it says otherwise.
fn sum_precision(node: &NodeProto) -> SumPrecision {
    let notes = &node.metadata_props;
    let is_tf32 = |note: &&souk_onnx::StringStringEntryProto| {
        note.key.as_deref() == Some(SUMS) && note.value.as_deref() == Some(SUMS_TF32)
    };
    match notes.iter().find(is_tf32) {
        Some(_) => SumPrecision::Tf32,
        None => SumPrecision::Full,
    }
}

/// Returns the library's description of a product, if its operands lie as the library requires.
fn describe_product(product: &Product<'_>, result: &Array) -> Option<cuda::Product<Stretch>> {
    let side = |operand: &Operand<'_>| {
        let stride = even_stride(&product.batch, &operand.batch)?;
        let place = (operand.array.buffer.get().as_stretch(), operand.array.dtype);
        Side::read(place, (operand.row, operand.column), stride)
    };
    let sizes = [product.rows, product.columns, product.depth];
    if sizes.contains(&0) || product.batch.contains(&0) {
        return None;
    }
    let bias = match &product.added {
        None => None,
        // The library itself adds one value per column.
        Some(added) if added.row == 0 && added.column == 1 && product.share == 1.0 => {
            Some(added.array.buffer.get().as_stretch())
        }
        Some(_) => return None,
    };
    Some(cuda::Product {
        scales: None,
        made: result.dtype,
        sums: SumPrecision::Full,
        rows: product.rows,
        columns: product.columns,
        depth: product.depth,
        batch: product.batch.iter().product(),
        factor: product.factor,
        left: side(&product.left)?,
        right: side(&product.right)?,
        bias,
        known: None,
        result: result.buffer.get().as_stretch(),
    })
}
