//! Records the kernels that widen packed values (several to a word) to a word each, and those that
//! narrow the results of a node to a packed type again. GPU programs, the steps of a recording and
//! some operators call it.

use souk_memory::DType;
use souk_reference::call::KernelError;

use crate::error::GpuError;
use crate::numbers::packed::{
    compute_dtype, element_type, packing_functions, per_word, read, word_type,
};
use crate::numbers::quarters::Rounding;
use crate::shaders::{BY_THREAD, PRELUDE, bindings, prelude};

use super::stream::{Array, Groups, Stream};

/// Unpacks an array into one word per element, and widens 64-bit values stored in 32 bits where the
/// device has 64-bit numbers. Returns any other array unchanged.
pub(crate) fn widen_array(stream: &mut Stream<'_>, array: Array) -> Result<Array, GpuError> {
    let dtype = array.dtype;
    if stream.context.double_support().has_dtype(dtype) && !array.is_double {
        return lengthen_array(stream, array);
    }
    if per_word(dtype) == 1 {
        return Ok(array);
    }
    let wide_array = stream.allocate_array(compute_dtype(dtype), &array.dims)?;
    let halves = stream.context.half_support();
    let names = [
        ("x", word_type(dtype, halves)),
        ("y", word_type(compute_dtype(dtype), halves)),
    ];
    let arrays = bindings(&names, 1);
    let read = read(dtype, halves, "x", "i");
    let functions = packing_functions(dtype, Rounding::default());
    let prelude = prelude(&arrays);
    let source = format!("{prelude}{functions}{arrays}{BY_THREAD}  y[i] = {read};\n}}");
    let count = to_size(array.count())?;
    let groups = Groups::Threads(array.count());
    stream.record_dispatch(&source, &[count], &[&array, &wide_array], groups)?;
    Ok(wide_array)
}

/// Values of 64 bits, which 32 say all of, in 64.
fn lengthen_array(stream: &mut Stream<'_>, array: Array) -> Result<Array, GpuError> {
    let long = stream.allocate_array(array.dtype, &array.dims)?;
    let [from, to] = [&array, &long].map(|it| element_type(it.dtype, it.is_double));
    let arrays = bindings(&[("x", from), ("y", to)], 1);
    let prelude = prelude(&arrays);
    let source = format!("{prelude}{arrays}{BY_THREAD}  y[i] = {to}(x[i]);\n}}");
    let groups = Groups::Threads(array.count());
    stream.record_dispatch(
        &source,
        &[to_size(array.count())?],
        &[&array, &long],
        groups,
    )?;
    Ok(long)
}

/// Rounds values to a packed type and packs them; returns an array of another type unchanged.
pub(crate) fn narrow_array(
    stream: &mut Stream<'_>,
    array: Array,
    dtype: DType,
) -> Result<Array, GpuError> {
    narrow_by(stream, array, dtype, Rounding::default())
}

/// Narrows values to a packed type, 8-bit floats with this rounding: a thread for each word.
pub(crate) fn narrow_by(
    stream: &mut Stream<'_>,
    array: Array,
    dtype: DType,
    rounding: Rounding,
) -> Result<Array, GpuError> {
    let held = per_word(dtype);
    if held == 1 || array.dtype != compute_dtype(dtype) {
        return Ok(array);
    }
    let packed = stream.allocate_array(dtype, &array.dims)?;
    let halves = stream.context.half_support();
    if halves.has_dtype(dtype) {
        let arrays = bindings(&[("x", "f32"), ("y", "f16")], 1);
        let prelude = prelude(&arrays);
        let source = format!("{prelude}{arrays}{BY_THREAD}  y[i] = f16(x[i]);\n}}");
        let sizes = [to_size(array.count())?];
        let groups = Groups::Threads(array.count());
        stream.record_dispatch(&source, &sizes, &[&array, &packed], groups)?;
        return Ok(packed);
    }
    let arrays = bindings(&[("x", word_type(array.dtype, halves)), ("y", "u32")], 1);
    let (functions, bits) = (packing_functions(dtype, rounding), 32 / held);
    let source = format!(
        r"{PRELUDE}{functions}{arrays}{BY_THREAD}
  var word = 0u;
  for (var k = 0u; k < {held}u; k++) {{
    let at = {held}u * i + k;
    if (at < p[1]) {{ word |= narrowed(x[at]) << ({bits}u * k); }}
  }}
  y[i] = word;
}}"
    );
    let words = array.count().div_ceil(held);
    let sizes = [to_size(words)?, to_size(array.count())?];
    stream.record_dispatch(&source, &sizes, &[&array, &packed], Groups::Threads(words))?;
    Ok(packed)
}

fn to_size(count: usize) -> Result<u32, GpuError> {
    let size = u32::try_from(count).map_err(|_| KernelError::TooLarge(count as u128))?;
    Ok(size)
}
