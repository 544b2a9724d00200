//! Integers: those of 32 bits a word each, of 64 two where the device has such; narrower ones
//! packed and computed with in 32, so that what leaves their range wraps when it is packed, as
//! ONNX's do.

use souk_memory::DType;

use crate::operators::elementwise::Map;

/// What an operator does with one or two integers of 32 bits: with signed ones if `is_signed`.
pub(crate) fn of(operator: &str, is_signed: bool) -> Option<Map> {
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
        ("Equal", _) => return Some(test("u32(a == b)", is_signed)),
        ("Greater", _) => return Some(test("u32(a > b)", is_signed)),
        ("GreaterOrEqual", _) => return Some(test("u32(a >= b)", is_signed)),
        ("Less", _) => return Some(test("u32(a < b)", is_signed)),
        ("LessOrEqual", _) => return Some(test("u32(a <= b)", is_signed)),
        _ => return None,
    };
    Some(plain(expression, is_signed))
}

/// An expression of integers that makes an integer.
pub(crate) fn plain(expression: &'static str, is_signed: bool) -> Map {
    Map {
        expression,
        inputs: word(is_signed),
        output: word(is_signed),
        numbers: &[],
    }
}

/// `BitShift`: of what is moved by as many places as there are bits, or by fewer than none, nothing
/// is left but, to the right, the sign.
pub(crate) fn shift(to_left: bool, dtype: DType) -> &'static str {
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

/// `Pow` of integers by integers of so many bits: what is not whole is cut off, what leaves their
/// range wraps.
pub(crate) fn power(base_is_signed: bool, exponent_is_signed: bool, bits: usize) -> String {
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

/// An expression of 32-bit integers as one of those of 64.
pub(crate) fn long(map: Map, dtype: DType) -> Map {
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
pub(crate) fn rest(is_fmod: bool) -> Map {
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

fn test(expression: &'static str, is_signed: bool) -> Map {
    Map {
        expression,
        inputs: word(is_signed),
        output: DType::Bool,
        numbers: &[],
    }
}

/// What integers are computed with as.
fn word(is_signed: bool) -> DType {
    if is_signed { DType::I32 } else { DType::U32 }
}
