//! Maps Rust's number types to ONNX's element types, and defines the 16-bit floats that Rust lacks.

use bytemuck::{Pod, Zeroable};

use crate::DType;

/// A Rust type with the same representation as the elements in a tensor's bytes.
///
/// It is sealed: only this module can implement it. `bool` does not, because a byte other than 0
/// and 1 is not a `bool`; [`crate::Tensor::to_bools`] reads tensors of [`DType::Bool`].
pub trait Element: Pod + Send + Sync + private::Seal {
    /// The element type of this Rust type.
    const DTYPE: DType;
}

mod private {
    /// Restricts [`super::Element`] to the types of this module.
    pub trait Seal {}
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {$(
        impl private::Seal for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

elements! {
    f32 => F32, f64 => F64, F16 => F16, Bf16 => Bf16,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
}

/// A 16-bit IEEE float, stored as its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct F16(pub u16);

/// A bfloat16: the upper half of a 32-bit float, stored as its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Bf16(pub u16);

impl F16 {
    /// Returns the nearest 16-bit float, ties to even; overflow gives infinity, NaN stays NaN.
    #[must_use]
    pub fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let sign = ((bits >> 16) & 0x8000) as u16;
        let magnitude = bits & 0x7fff_ffff;
        let half = match magnitude {
            0x7f80_0001.. => 0x7e00,
            0x477f_f000.. => 0x7c00,
            0x3880_0000.. => rounded_shift(magnitude - 0x3800_0000, 13),
            0x3300_0000.. => {
                let shift = 126 - (magnitude >> 23);
                rounded_shift((magnitude & 0x007f_ffff) | 0x0080_0000, shift)
            }
            _ => 0,
        };
        Self(sign | half as u16)
    }

    /// Returns the exact value as a 32-bit float.
    #[must_use]
    pub fn to_f32(self) -> f32 {
        let sign = u32::from(self.0 & 0x8000) << 16;
        let exponent = u32::from(self.0 >> 10) & 0x1f;
        let fraction = u32::from(self.0) & 0x3ff;
        let magnitude = match exponent {
            0 => (fraction as f32 * 2f32.powi(-24)).to_bits(),
            0x1f => 0x7f80_0000 | (fraction << 13),
            _ => ((exponent + 112) << 23) | (fraction << 13),
        };
        f32::from_bits(sign | magnitude)
    }
}

impl Bf16 {
    /// Returns the nearest bfloat16, ties to even; NaN stays NaN.
    #[must_use]
    pub fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        if value.is_nan() {
            return Self((bits >> 16) as u16 | 0x0040);
        }
        Self(rounded_shift(bits, 16) as u16)
    }

    /// Returns the exact value as a 32-bit float.
    #[must_use]
    pub fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

/// Computes `value >> shift`, rounded to nearest with ties to even; `shift` must be 1 to 31.
fn rounded_shift(value: u32, shift: u32) -> u32 {
    let kept = value >> shift;
    let lost = value & ((1 << shift) - 1);
    let half = 1 << (shift - 1);
    let up = lost > half || (lost == half && kept & 1 == 1);
    kept + u32::from(up)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_float_survives_f32() {
        for bits in 0..=u16::MAX {
            let half = F16(bits);
            let wide = half.to_f32();
            if wide.is_nan() {
                assert!(F16::from_f32(wide).to_f32().is_nan());
            } else {
                assert_eq!(F16::from_f32(wide), half);
            }
        }
    }

    #[test]
    fn every_bfloat_survives_f32() {
        for bits in 0..=u16::MAX {
            let wide = Bf16(bits).to_f32();
            let back = Bf16::from_f32(wide);
            assert!(back == Bf16(bits) || (wide.is_nan() && back.to_f32().is_nan()));
        }
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        assert_eq!(F16::from_f32(2049.0).to_f32(), 2048.0);
        assert_eq!(F16::from_f32(2051.0).to_f32(), 2052.0);
        assert_eq!(F16::from_f32(65519.0).to_f32(), 65504.0);
        assert_eq!(F16::from_f32(65520.0).to_f32(), f32::INFINITY);
        assert_eq!(F16::from_f32(2f32.powi(-25)).to_f32(), 0.0);
        assert_eq!(F16::from_f32(2f32.powi(-25) * 1.5).to_f32(), 2f32.powi(-24));
        assert_eq!(Bf16::from_f32(257.0).to_f32(), 256.0);
        assert_eq!(Bf16::from_f32(f32::MAX).to_f32(), f32::INFINITY);
    }
}
