//! The WGSL expressions by which element-wise operators compute integers: arithmetic, comparisons,
//! shifts and powers, in 32 or 64 bits, and the remainder of floats. The element-wise operators and
//! casts build their kernels from them.

use souk_memory::DType;

use crate::operators::elementwise::Map;

/// Returns the function of an operator on one or two 32-bit integers, signed if `is_signed`.
pub(crate) fn integer_map(operator: &str, is_signed: bool) -> Option<Map> {
    let expression = match (operator, is_signed) {
        ("Add" | "Sum", _) => "a + b",
        ("Sub", _) => "a - b",
        ("Mul", _) => "a * b",
        ("Div", _) => "a / b",
        ("Mod", true) => "modulo(a, b)",
        ("Mod", false) => "a % b",
        ("Max", _) => "max(a, b)",
        ("Min", _) => "min(a, b)",
        ("BitwiseAnd", _) => "a & b",
        ("BitwiseOr", _) => "a | b",
        ("BitwiseXor", _) => "a ^ b",
        ("BitwiseNot", _) => "~a",
        ("Abs", true) => "abs(a)",
        ("Neg", true) => "-a",
        ("Sign", true) => "sign(a)",
        ("Sign", false) => "min(a, 1)",
        ("Relu", true) => "max(a, 0)",
        ("Abs" | "Relu", false) => "a",
        ("Equal", _) => return Some(test_map("u32(a == b)", is_signed)),
        ("Greater", _) => return Some(test_map("u32(a > b)", is_signed)),
        ("GreaterOrEqual", _) => return Some(test_map("u32(a >= b)", is_signed)),
        ("Less", _) => return Some(test_map("u32(a < b)", is_signed)),
        ("LessOrEqual", _) => return Some(test_map("u32(a <= b)", is_signed)),
        _ => return None,
    };
    Some(plain_map(expression, is_signed))
}

/// Returns the map of an expression of integers with an integer result.
pub(crate) fn plain_map(expression: &'static str, is_signed: bool) -> Map {
    Map {
        expression,
        inputs: word_dtype(is_signed),
        output: word_dtype(is_signed),
        numbers: &[],
    }
}

/// Returns the expression of `BitShift`. A shift by a negative count, or by the number of bits or
/// more, leaves only the sign (to the right) or zero.
pub(crate) fn shift_expression(to_left: bool, dtype: DType) -> &'static str {
    match (to_left, dtype) {
        (true, DType::I32) => "select(a << u32(b), 0, b < 0 || b >= 32)",
        (true, DType::I64) => "select(a << u32(b), 0, b < 0 || b >= 64)",
        (true, DType::U64) => "select(a << u32(b), 0, b >= 64)",
        (true, _) => "select(a << b, 0u, b >= 32u)",
        (false, DType::I32) => "select(a >> u32(b), a >> 31u, b < 0 || b >= 32)",
        (false, DType::I64) => "select(a >> u32(b), a >> 63u, b < 0 || b >= 64)",
        (false, DType::U64) => "select(a >> u32(b), 0, b >= 64)",
        (false, _) => "select(a >> b, 0u, b >= 32u)",
    }
}

/// Returns the expression of `Pow` of integers by integers of this many bits: fractions are cut
/// off, and values outside the range wrap.
pub(crate) fn power_expression(
    base_is_signed: bool,
    exponent_is_signed: bool,
    bits: usize,
) -> String {
    let expression = match (base_is_signed, exponent_is_signed) {
        (true, true) => "signed_power(a, b)",
        (true, false) => "bitcast<i32>(whole_power(bitcast<u32>(a), b))",
        (false, true) => {
            "select(select(u32(), whole_power(a, u32(b)), b >= 0 || a == 1), \
                          ~u32(), b < 0 && a == 0)"
        }
        (false, false) => "whole_power(a, b)",
    };
    expression.replace("32", &bits.to_string())
}

/// Turns a map of 32-bit integers into one of 64-bit integers.
pub(crate) fn to_long(map: Map, dtype: DType) -> Map {
    let output = if map.output == map.inputs {
        dtype
    } else {
        map.output
    };
    Map {
        inputs: dtype,
        output,
        ..map
    }
}

/// `Mod` of floats: the rest has the divisor's sign, or with `fmod` the dividend's.
pub(crate) fn float_modulo_map(is_fmod: bool) -> Map {
    Map {
        expression: if is_fmod {
            "rest_of(a, b)"
        } else {
            "float_modulo(a, b)"
        },
        inputs: DType::F32,
        output: DType::F32,
        numbers: &[],
    }
}

fn test_map(expression: &'static str, is_signed: bool) -> Map {
    Map {
        expression,
        inputs: word_dtype(is_signed),
        output: DType::Bool,
        numbers: &[],
    }
}

/// Returns the type in which the device computes with integers.
fn word_dtype(is_signed: bool) -> DType {
    if is_signed { DType::I32 } else { DType::U32 }
}
