//! States which 64-bit numbers a device has, and which types need them. The table of operators
//! refuses a node by it if the device lacks them, and the kernels choose their words by it.

use souk_memory::DType;
use souk_onnx::subgraph::UnsupportedReason;

/// Which numbers of 64 bits a device has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DoubleSupport {
    pub integers: bool,
    pub floats: bool,
}

impl DoubleSupport {
    /// All numbers of 64 bits.
    pub const ALL: Self = Self {
        integers: true,
        floats: true,
    };

    /// Whether kernels have numbers of this type of 64 bits.
    pub fn has_dtype(self, dtype: DType) -> bool {
        match dtype {
            DType::F64 => self.floats,
            DType::I64 | DType::U64 => self.integers,
            _ => false,
        }
    }

    /// Why a node is refused whose kernels would need numbers of 64 bits that are not there.
    pub fn unsupported_reason(self, dtype: DType) -> UnsupportedReason {
        let feature = match self.integers {
            true => "SHADER_F64",
            false if dtype == DType::F64 => "SHADER_F64 with SHADER_INT64",
            false => "SHADER_INT64",
        };
        UnsupportedReason::Engine(format!("not in {dtype}: the adapter lacks {feature}"))
    }
}

/// Whether a type has 64 bits.
pub(crate) fn is_double(dtype: DType) -> bool {
    matches!(dtype, DType::F64 | DType::I64 | DType::U64)
}

/// Whether a type is an integer of 64 bits.
pub(crate) fn is_long(dtype: DType) -> bool {
    matches!(dtype, DType::I64 | DType::U64)
}

/// Whether each value of a type is one of a 32-bit float as well.
pub(crate) fn fits_floats(dtype: DType) -> bool {
    dtype == DType::Bool || (dtype.is_float() && dtype.bit_width() <= 32) || dtype.bit_width() <= 16
}
