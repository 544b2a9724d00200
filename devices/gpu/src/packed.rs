//! Values narrower than a word: several lie in one, are widened where a kernel reads them, and what
//! a node makes is narrowed once. Halves and 8-bit floats are computed with as 32-bit floats,
//! integers as those of 32 bits.
//!
//! All of it is arithmetic of integers, so every adapter has it and every one gives the same bits.
//! Products and convolutions read packed halves as they are, products of bytes packed bytes.

use souk_memory::DType;
use souk_reference::call::KernelError;

use super::error::GpuError;
use super::halves::{self, is_half};
use super::quarters::{self, Rounding};
use super::shaders::{BY_THREAD, PRELUDE, bindings, prelude};
use super::stream::{Array, Groups, Stream};
use super::wholes;

/// How many values of a type lie in a word.
pub(super) fn lanes(dtype: DType) -> usize {
    match dtype {
        _ if is_half(dtype) => 2,
        _ if quarters::is_quarter_float(dtype) || quarters::is_power_of_two(dtype) => 4,
        _ if quarters::is_eighth_float(dtype) => 8,
        _ => wholes::packed_bits(dtype).map_or(1, |bits| 32 / bits),
    }
}

/// Whether a type is a float of 8 or 4 bits.
pub(super) fn is_small_float(dtype: DType) -> bool {
    quarters::is_quarter_float(dtype) || quarters::is_eighth_float(dtype)
}

/// Whether values of a type lie on the device in words of their own or packed. Other integers are
/// narrowed to 32 bits when they are sent.
pub(super) fn lies_there(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::Bool) || lanes(dtype) > 1
}

/// What values of a type are computed with as.
pub(super) fn wide(dtype: DType) -> DType {
    match dtype {
        _ if wholes::packed_bits(dtype).is_some() => DType::I32,
        _ if lanes(dtype) > 1 => DType::F32,
        _ => dtype,
    }
}

/// The functions `widened` and `narrowed` of a packed type; nothing for another. Floats too large
/// for 8 bits become the largest there is, or what stands for infinity.
pub(super) fn functions(dtype: DType, rounding: Rounding) -> String {
    match wholes::packed_bits(dtype) {
        Some(bits) => wholes::functions(dtype, bits),
        None if is_half(dtype) => halves::functions(dtype).to_owned(),
        None => quarters::functions(dtype, rounding),
    }
}

/// How kernels have floats of 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Halves {
    /// Two to a word, widened and rounded by arithmetic of integers, which every device has.
    Words,
    /// As the device's own, where it gives the same for each of them.
    Own,
}

impl Halves {
    /// Whether kernels read and write elements of a type one by one as they lie.
    pub fn has(self, dtype: DType) -> bool {
        self == Self::Own && dtype == DType::F16
    }
}

/// How WGSL reads element `at` of `array`, whose words are [`words`] of the type.
pub(super) fn read(dtype: DType, halves: Halves, array: &str, at: &str) -> String {
    match lanes(dtype) {
        _ if halves.has(dtype) => format!("f32({array}[{at}])"),
        1 => format!("{array}[{at}]"),
        lanes => {
            let (bits, last) = (32 / lanes, lanes - 1);
            let mask = (1u32 << bits) - 1;
            let word = format!("{array}[({at}) / {lanes}u]");
            format!("widened(({word} >> ({bits}u * (({at}) & {last}u))) & {mask}u)")
        }
    }
}

/// How WGSL writes a float as an element of a type that is not packed, or the device's own.
pub(super) fn stored(dtype: DType, value: &str) -> String {
    match dtype {
        DType::F16 => format!("f16({value})"),
        _ => value.to_owned(),
    }
}

/// How WGSL names elements of a type that is not packed, or of halves that are the device's own.
pub(super) fn element(dtype: DType, is_double: bool) -> &'static str {
    match (dtype, is_double) {
        (DType::F16, _) => "f16",
        (DType::F64, true) => "f64",
        (DType::I64, true) => "i64",
        (DType::U64, true) => "u64",
        (DType::F32 | DType::F64, _) => "f32",
        (DType::Bool | DType::U32, _) => "u32",
        _ => "i32",
    }
}

/// How WGSL names the words that values of a type lie in.
pub(super) fn words(dtype: DType, halves: Halves) -> &'static str {
    match (lanes(dtype), dtype) {
        _ if halves.has(dtype) => "f16",
        (1, DType::I32) => "i32",
        (1, DType::U32) => "u32",
        (1, _) => "f32",
        _ => "u32",
    }
}

/// A packed array in words of its own, and one of 64 bits that is known in 32 in all of them where
/// the device has such; another is given back as it is.
pub(super) fn widen(stream: &mut Stream<'_>, array: Array) -> Result<Array, GpuError> {
    let dtype = array.dtype;
    if stream.context.doubles().has(dtype) && !array.is_double {
        return lengthen(stream, array);
    }
    if lanes(dtype) == 1 {
        return Ok(array);
    }
    let wide_array = stream.array(wide(dtype), &array.dims)?;
    let halves = stream.context.halves();
    let names = [
        ("x", words(dtype, halves)),
        ("y", words(wide(dtype), halves)),
    ];
    let arrays = bindings(&names, 1);
    let read = read(dtype, halves, "x", "i");
    let functions = functions(dtype, Rounding::default());
    let prelude = prelude(&arrays);
    let source = format!("{prelude}{functions}{arrays}{BY_THREAD}  y[i] = {read};\n}}");
    let count = size(array.count())?;
    let groups = Groups::Threads(array.count());
    stream.dispatch(&source, &[count], &[&array, &wide_array], groups)?;
    Ok(wide_array)
}

/// Values of 64 bits, which 32 say all of, in 64.
fn lengthen(stream: &mut Stream<'_>, array: Array) -> Result<Array, GpuError> {
    let long = stream.array(array.dtype, &array.dims)?;
    let [from, to] = [&array, &long].map(|it| element(it.dtype, it.is_double));
    let arrays = bindings(&[("x", from), ("y", to)], 1);
    let prelude = prelude(&arrays);
    let source = format!("{prelude}{arrays}{BY_THREAD}  y[i] = {to}(x[i]);\n}}");
    let groups = Groups::Threads(array.count());
    stream.dispatch(&source, &[size(array.count())?], &[&array, &long], groups)?;
    Ok(long)
}

/// Values rounded to a packed type and packed; what is of another type is given back as it is.
pub(super) fn narrow(
    stream: &mut Stream<'_>,
    array: Array,
    dtype: DType,
) -> Result<Array, GpuError> {
    narrow_by(stream, array, dtype, Rounding::default())
}

/// The same, rounded to floats of 8 bits in this way: a thread for each word.
pub(super) fn narrow_by(
    stream: &mut Stream<'_>,
    array: Array,
    dtype: DType,
    rounding: Rounding,
) -> Result<Array, GpuError> {
    let lanes = lanes(dtype);
    if lanes == 1 || array.dtype != wide(dtype) {
        return Ok(array);
    }
    let packed = stream.array(dtype, &array.dims)?;
    let halves = stream.context.halves();
    if halves.has(dtype) {
        let arrays = bindings(&[("x", "f32"), ("y", "f16")], 1);
        let prelude = prelude(&arrays);
        let source = format!("{prelude}{arrays}{BY_THREAD}  y[i] = f16(x[i]);\n}}");
        let sizes = [size(array.count())?];
        let groups = Groups::Threads(array.count());
        stream.dispatch(&source, &sizes, &[&array, &packed], groups)?;
        return Ok(packed);
    }
    let arrays = bindings(&[("x", words(array.dtype, halves)), ("y", "u32")], 1);
    let (functions, bits) = (functions(dtype, rounding), 32 / lanes);
    let source = format!(
        r"{PRELUDE}{functions}{arrays}{BY_THREAD}
  var word = 0u;
  for (var k = 0u; k < {lanes}u; k++) {{
    let at = {lanes}u * i + k;
    if (at < p[1]) {{ word |= narrowed(x[at]) << ({bits}u * k); }}
  }}
  y[i] = word;
}}"
    );
    let words = array.count().div_ceil(lanes);
    let sizes = [size(words)?, size(array.count())?];
    stream.dispatch(&source, &sizes, &[&array, &packed], Groups::Threads(words))?;
    Ok(packed)
}

fn size(count: usize) -> Result<u32, GpuError> {
    let size = u32::try_from(count).map_err(|_| KernelError::TooLarge(count as u128))?;
    Ok(size)
}
