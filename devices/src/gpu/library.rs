//! Products by the maker's library: what it is given, where it takes it.

use super::driver::{Driver, Launch};
use super::elementwise::map;
use super::error::GpuError;
use super::fused::Then;
use super::halves::widen;
use super::products::{Operand, Product};
use super::steps::Step;
use super::stream::Array;
use crate::cuda::{self, Side, Sums, even_stride};
use crate::onnx::NodeProto;
use souk_memory::DType;

/// A node's note that says how its products of 32-bit floats may be summed.
const SUMS: &str = "ai.souk.sums";
/// The note's value for operands rounded to 19 bits (TF32).
const SUMS_TF32: &str = "tf32";

/// A product by the library, if there is one and it takes the operands as they lie; of 16-bit
/// floats it is rounded to that type at once.
pub(super) fn library_product(
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
    let result = step.stream.array(dtype, dims)?;
    let Some(mut wanted) = spelt(product, &result) else {
        return Ok(None);
    };
    wanted.sums = sums(step.call.node);
    let then = step.tail.then.as_ref();
    wanted.known = then.and_then(|then| then.known);
    if wanted.known.is_some() && !driver.takes(&wanted) {
        wanted.known = None;
    }
    if !driver.takes(&wanted) {
        return Ok(None);
    }
    let left = then.filter(|_| wanted.known.is_none());
    step.stream.launch(Launch::Product(Box::new(wanted)));
    match left {
        Some(then) => Ok(Some(mapped(step, result, then)?)),
        None => Ok(Some(result)),
    }
}

/// A function of one element that the library does not do.
fn mapped(step: &mut Step<'_, '_>, made: Array, then: &Then) -> Result<Array, GpuError> {
    let wide = widen(step.stream, made)?;
    let inputs = [(&wide, DType::F32)];
    map(step, then.expression, &inputs, DType::F32, then.numbers)
}

/// How the products of a node may be summed: in full unless it says otherwise.
fn sums(node: &NodeProto) -> Sums {
    let notes = &node.metadata_props;
    let is_tf32 = |note: &&crate::onnx::StringStringEntryProto| {
        note.key.as_deref() == Some(SUMS) && note.value.as_deref() == Some(SUMS_TF32)
    };
    match notes.iter().find(is_tf32) {
        Some(_) => Sums::Tf32,
        None => Sums::Full,
    }
}

/// A product as the library is told of it, if its operands lie as that wants them.
fn spelt(product: &Product<'_>, result: &Array) -> Option<cuda::Product<super::driver::Stretch>> {
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
    Some(cuda::Product {
        dtype: result.dtype,
        made: result.dtype,
        sums: Sums::Full,
        rows: product.rows,
        columns: product.columns,
        depth: product.depth,
        batch: product.batch.iter().product(),
        factor: product.factor,
        left: side(&product.left)?,
        right: side(&product.right)?,
        bias,
        known: None,
        result: result.buffer.get().whole(),
    })
}
