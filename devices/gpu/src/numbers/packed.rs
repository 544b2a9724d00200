//! Gives for every type its layout in a device's words and the WGSL that reads and writes its
//! elements. Values narrower than a word are packed: several lie in one word, a kernel that reads
//! them widens them, and the results of a node are narrowed once. Kernels compute halves and 8-bit
//! floats as 32-bit floats, and integers as 32-bit integers.
//!
//! The conversions use only integer arithmetic, so every adapter has them and gives the same bits.
//! Products and convolutions read packed halves directly, and products of bytes read packed bytes.

use souk_memory::DType;

use super::halves::{self, is_half};
use super::integers;
use super::quarters::{self, Rounding};

/// Returns how many values of a type lie in a 32-bit word.
pub(crate) fn per_word(dtype: DType) -> usize {
    match dtype {
        _ if is_half(dtype) => 2,
        _ if quarters::is_f8(dtype) || quarters::is_power_of_two(dtype) => 4,
        _ if quarters::is_eighth_float(dtype) => 8,
        _ => integers::packed_bits(dtype).map_or(1, |bits| 32 / bits),
    }
}

/// Whether a type is a float of 8 or 4 bits.
pub(crate) fn is_small_float(dtype: DType) -> bool {
    quarters::is_f8(dtype) || quarters::is_eighth_float(dtype)
}

/// Whether values of a type lie on the device in words of their own or packed. Other integers are
/// narrowed to 32 bits on their way to the device.
pub(crate) fn is_stored_natively(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::Bool) || per_word(dtype) > 1
}

/// Returns the type in which kernels compute values of a type.
pub(crate) fn compute_dtype(dtype: DType) -> DType {
    match dtype {
        _ if integers::packed_bits(dtype).is_some() => DType::I32,
        _ if per_word(dtype) > 1 => DType::F32,
        _ => dtype,
    }
}

/// Returns the functions `widened` and `narrowed` of a packed type; an empty string for another.
/// Floats too large for 8 bits become the largest one, or the pattern of infinity.
pub(crate) fn packing_functions(dtype: DType, rounding: Rounding) -> String {
    match integers::packed_bits(dtype) {
        Some(bits) => integers::packing_functions(dtype, bits),
        None if is_half(dtype) => halves::packing_functions(dtype).to_owned(),
        None => quarters::packing_functions(dtype, rounding),
    }
}

/// How kernels read and write 16-bit floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Halves {
    /// Two to a word, widened and rounded by arithmetic of integers, which every device has.
    Words,
    /// As the device's own, where it gives the same for each of them.
    Own,
}

impl Halves {
    /// Whether kernels read and write elements of a type directly, one by one.
    pub fn has_dtype(self, dtype: DType) -> bool {
        self == Self::Own && dtype == DType::F16
    }
}

/// Returns the WGSL expression that reads element `at` of `array`.
pub(crate) fn read(dtype: DType, halves: Halves, array: &str, at: &str) -> String {
    match per_word(dtype) {
        _ if halves.has_dtype(dtype) => format!("f32({array}[{at}])"),
        1 => format!("{array}[{at}]"),
        held => {
            let (bits, last) = (32 / held, held - 1);
            let mask = (1u32 << bits) - 1;
            let word = format!("{array}[({at}) / {held}u]");
            format!("widened(({word} >> ({bits}u * (({at}) & {last}u))) & {mask}u)")
        }
    }
}

/// Returns the WGSL expression that converts a float to an element of a type that is not packed.
pub(crate) fn store_expression(dtype: DType, value: &str) -> String {
    match dtype {
        DType::F16 => format!("f16({value})"),
        _ => value.to_owned(),
    }
}

/// Returns the WGSL type of the elements of a type that is not packed, or of the device's own
/// halves.
pub(crate) fn element_type(dtype: DType, is_double: bool) -> &'static str {
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

/// Returns the WGSL type of the words in which values of a type lie.
pub(crate) fn word_type(dtype: DType, halves: Halves) -> &'static str {
    match (per_word(dtype), dtype) {
        _ if halves.has_dtype(dtype) => "f16",
        (1, DType::I32) => "i32",
        (1, DType::U32) => "u32",
        (1, _) => "f32",
        _ => "u32",
    }
}
