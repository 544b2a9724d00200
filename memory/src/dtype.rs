//! The element types of ONNX.
//!
//! Strings are not included: a shape does not determine their size, so code can neither check them
//! before allocation nor address them by index. Types narrower than a byte are packed, low bits
//! first, as in ONNX: callers must size them by [`DType::byte_length`], because they have no width
//! in bytes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum DType {
    /// 32-bit IEEE float.
    F32,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// One byte, 0 or 1.
    Bool,
    /// 16-bit IEEE float.
    F16,
    /// 64-bit IEEE float.
    F64,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
    /// Two 32-bit floats: real, imaginary.
    Complex64,
    /// Two 64-bit floats: real, imaginary.
    Complex128,
    /// The upper half of a 32-bit float.
    Bf16,
    /// 8-bit float, 4 exponent bits, no infinity.
    F8E4M3Fn,
    /// 8-bit float, 4 exponent bits, no infinity, no negative zero.
    F8E4M3FnUz,
    /// 8-bit float, 5 exponent bits.
    F8E5M2,
    /// 8-bit float, 5 exponent bits, no infinity, no negative zero.
    F8E5M2FnUz,
    /// Unsigned 4-bit integer, two to a byte.
    U4,
    /// Signed 4-bit integer, two to a byte.
    I4,
    /// 4-bit float, two to a byte.
    F4E2M1,
    /// 8-bit power of two (a block's scale).
    F8E8M0,
    /// Unsigned 2-bit integer, four to a byte.
    U2,
    /// Signed 2-bit integer, four to a byte.
    I2,
}

/// Why a number or a name is not a known element type.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DTypeError {
    /// The type is ONNX's string type, which has no fixed size.
    #[error("string tensors are not supported: their size is not known from the shape")]
    Strings,
    /// The number is not a known `TensorProto.DataType` of ONNX 1.23.
    #[error("{code} is not an ONNX element type")]
    Code {
        /// The number found.
        code: i32,
    },
    /// The name is not a known element type.
    #[error("{name:?} is not an element type")]
    Name {
        /// The name found.
        name: String,
    },
}

/// Every type must have one row: the type, ONNX's number for it, its name, its size in bits.
const TABLE: [(DType, i32, &str, usize); 25] = [
    (DType::F32, 1, "f32", 32),
    (DType::U8, 2, "u8", 8),
    (DType::I8, 3, "i8", 8),
    (DType::U16, 4, "u16", 16),
    (DType::I16, 5, "i16", 16),
    (DType::I32, 6, "i32", 32),
    (DType::I64, 7, "i64", 64),
    (DType::Bool, 9, "bool", 8),
    (DType::F16, 10, "f16", 16),
    (DType::F64, 11, "f64", 64),
    (DType::U32, 12, "u32", 32),
    (DType::U64, 13, "u64", 64),
    (DType::Complex64, 14, "complex64", 64),
    (DType::Complex128, 15, "complex128", 128),
    (DType::Bf16, 16, "bf16", 16),
    (DType::F8E4M3Fn, 17, "f8e4m3fn", 8),
    (DType::F8E4M3FnUz, 18, "f8e4m3fnuz", 8),
    (DType::F8E5M2, 19, "f8e5m2", 8),
    (DType::F8E5M2FnUz, 20, "f8e5m2fnuz", 8),
    (DType::U4, 21, "u4", 4),
    (DType::I4, 22, "i4", 4),
    (DType::F4E2M1, 23, "f4e2m1", 4),
    (DType::F8E8M0, 24, "f8e8m0", 8),
    (DType::U2, 25, "u2", 2),
    (DType::I2, 26, "i2", 2),
];

/// ONNX's number for strings.
const ONNX_STRING: i32 = 8;

impl DType {
    /// Iterates over all element types.
    pub fn all_types() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.0)
    }

    /// Returns ONNX's number for this type (`TensorProto.DataType`).
    #[must_use]
    pub fn onnx_code(self) -> i32 {
        self.table_row().1
    }

    /// Returns the type with ONNX's number `code`.
    ///
    /// # Errors
    /// [`DTypeError::Strings`] for strings, [`DTypeError::Code`] for an unknown number.
    pub fn from_onnx_code(code: i32) -> Result<Self, DTypeError> {
        match TABLE.iter().find(|row| row.1 == code) {
            Some(row) => Ok(row.0),
            None if code == ONNX_STRING => Err(DTypeError::Strings),
            None => Err(DTypeError::Code { code }),
        }
    }

    /// Returns the short name, such as `f32`, `bf16` or `i64`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.table_row().2
    }

    /// Returns the size of one element in bits: 2 to 128.
    #[must_use]
    pub fn bit_width(self) -> usize {
        self.table_row().3
    }

    /// Returns the size of one element in bytes; `None` for types packed several to a byte.
    #[must_use]
    pub fn byte_width(self) -> Option<usize> {
        self.bit_width()
            .is_multiple_of(8)
            .then(|| self.bit_width() / 8)
    }

    /// Returns the bytes that `count` elements take, packed; `None` beyond `usize`.
    #[must_use]
    pub fn byte_length(self, count: usize) -> Option<usize> {
        match self.byte_width() {
            Some(bytes) => count.checked_mul(bytes),
            None => Some(count.div_ceil(8 / self.bit_width())),
        }
    }

    /// Returns whether this is a floating-point type.
    #[must_use]
    pub fn is_float(self) -> bool {
        self.name().starts_with('f') || self == Self::Bf16
    }

    fn table_row(self) -> &'static (Self, i32, &'static str, usize) {
        TABLE
            .iter()
            .find(|row| row.0 == self)
            .expect("the table has a row for every type")
    }
}

impl fmt::Display for DType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = DTypeError;

    fn from_str(name: &str) -> Result<Self, DTypeError> {
        let row = TABLE.iter().find(|row| row.2 == name);
        row.map(|row| row.0).ok_or_else(|| DTypeError::Name {
            name: name.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_survives_its_code_and_its_name() {
        for dtype in DType::all_types() {
            assert_eq!(DType::from_onnx_code(dtype.onnx_code()), Ok(dtype));
            assert_eq!(dtype.name().parse(), Ok(dtype));
            let json = serde_json::to_string(&dtype).unwrap();
            assert_eq!(serde_json::from_str::<DType>(&json).unwrap(), dtype);
        }
    }

    #[test]
    fn packed_types_round_up_to_whole_bytes() {
        assert_eq!(DType::U4.byte_length(3), Some(2));
        assert_eq!(DType::I2.byte_length(5), Some(2));
        assert_eq!(DType::I64.byte_length(usize::MAX), None);
    }

    #[test]
    fn strings_are_refused_by_name() {
        assert_eq!(DType::from_onnx_code(8), Err(DTypeError::Strings));
        assert_eq!(
            DType::from_onnx_code(99),
            Err(DTypeError::Code { code: 99 })
        );
    }
}
