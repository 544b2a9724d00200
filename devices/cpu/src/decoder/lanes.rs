//! The vector instructions that the decoder's products and attention are written with: a trait for
//! sixteen numbers side by side, its implementation for each kind of processor, and the choice of
//! the best one for this processor. In a product the sixteen numbers belong to sixteen rows of a
//! matrix.
//!
//! No sum runs across a vector. The value of a row therefore depends neither on the number of rows
//! computed together nor on the width of the machine's vectors, except for the rounding of fused
//! products.

use souk_memory::F16;

/// Rows side by side.
pub(super) const LANES: usize = 16;

/// The vector instructions that products of decoders are built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneIsa {
    /// 16 numbers at once, and sums of products of bytes.
    #[cfg(target_arch = "x86_64")]
    Vnni,
    /// Twice 8 numbers.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Four times 4 numbers, and sums of products of bytes.
    #[cfg(target_arch = "aarch64")]
    NeonDots,
    /// Four times 4 numbers.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// The vectors that the compiler makes of arrays.
    Plain,
}

impl LaneIsa {
    /// Returns all instructions that this processor has, the best first.
    pub fn all_supported() -> Vec<Self> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let has_bytes =
                is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512bw");
            if is_x86_feature_detected!("avx512f") && has_bytes {
                all.push(Self::Vnni);
            }
            let has_halves = is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            if is_x86_feature_detected!("avx2") && has_halves {
                all.push(Self::Avx2);
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                all.push(Self::NeonDots);
            }
            all.push(Self::Neon);
        }
        all.push(Self::Plain);
        all
    }

    /// Returns the best instructions that this processor has.
    pub fn best_supported() -> Self {
        Self::all_supported()[0]
    }
}

/// Sixteen floats, and sixteen sums of whole numbers.
///
/// # Safety
/// Every method must only be called where the processor has the instructions of the type; pointers
/// must be to as many numbers as are read or written, aligned or not.
#[expect(unsafe_code, reason = "vector instructions and pointers to vectors")]
pub(super) unsafe trait Lanes: Copy {
    /// Sums of products of bytes.
    type ByteSums: Copy;
    /// Sums of products of bytes with 4-bit weights, as long as a block's sums.
    type FourBitSums: Copy;
    /// Excess of each 8-bit weight in a sum: 128, which is added in storage, or 0 where removed.
    const EIGHTS_ABOVE: i32;
    /// Returns a vector with this float in every lane.
    unsafe fn splat(value: f32) -> Self;
    /// Floats of 32 bits.
    unsafe fn load_f32(from: *const f32) -> Self;
    /// Floats of 16 bits.
    unsafe fn load_f16(from: *const u16) -> Self;
    /// The upper halves of floats of 32 bits.
    unsafe fn load_bf16(from: *const u16) -> Self;
    /// `self * factor + sum`.
    unsafe fn times_plus(self, factor: Self, sum: Self) -> Self;
    /// Sum.
    unsafe fn plus(self, other: Self) -> Self;
    /// Product.
    unsafe fn times(self, other: Self) -> Self;
    /// Returns the larger of `bound` and this value; NaN stays NaN.
    unsafe fn at_least(self, bound: Self) -> Self;
    /// Itself times two to the power that the lowest bits of `power` say, of a sum with 1.5 * 2^23.
    unsafe fn scale_by_power(self, power: Self) -> Self;
    /// Puts them to a place.
    unsafe fn store(self, to: *mut f32);
    /// Returns sums with this whole number in every lane.
    unsafe fn splat_integers(value: i32) -> Self::ByteSums;
    /// Adds products of four weights of 8 bits a lane, and four bytes that are the same for all.
    unsafe fn add_eights(sum: Self::ByteSums, weights: *const u8, bytes: i32) -> Self::ByteSums;
    /// Sums to begin a block of 4 bits with.
    unsafe fn no_fours() -> Self::FourBitSums;
    /// Adds products of four weights in the lower halves of bytes, and of four in the upper, at
    /// most four times.
    unsafe fn add_fours(
        sum: Self::FourBitSums,
        weights: *const u8,
        low: i32,
        high: i32,
    ) -> Self::FourBitSums;
    /// Adds a block's.
    unsafe fn plus_fours(sum: Self::ByteSums, fours: Self::FourBitSums) -> Self::ByteSums;
    /// Sums as floats.
    unsafe fn floats_from_sums(sum: Self::ByteSums) -> Self;
}

#[cfg(target_arch = "aarch64")]
pub(super) mod neon;

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    //! The two widths of x86-64.

    use std::arch::x86_64::*;

    use super::Lanes;

    /// Sixteen floats in one vector.
    #[derive(Clone, Copy)]
    pub struct Avx512(__m512);

    #[expect(unsafe_code, reason = "vector instructions")]
    // SAFETY: each method is a few instructions of the sets that the trait's contract asks for;
    // pointers are the caller's, and loads and stores take unaligned ones.
    unsafe impl Lanes for Avx512 {
        type ByteSums = __m512i;
        type FourBitSums = __m512i;
        const EIGHTS_ABOVE: i32 = 128;
        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: the caller upholds the contract of the trait.
            Self(unsafe { _mm512_set1_ps(value) })
        }
        #[inline(always)]
        unsafe fn load_f32(from: *const f32) -> Self {
            // SAFETY: the caller upholds the contract of the trait.
            Self(unsafe { _mm512_loadu_ps(from) })
        }
        #[inline(always)]
        unsafe fn load_f16(from: *const u16) -> Self {
            // SAFETY: the caller upholds the contract of the trait.
            Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
        }
        #[inline(always)]
        unsafe fn load_bf16(from: *const u16) -> Self {
            // SAFETY: the caller upholds the contract of the trait.
            unsafe {
                let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
                Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)))
            }
        }
        #[inline(always)]
        unsafe fn times_plus(self, factor: Self, sum: Self) -> Self {
            // SAFETY: the caller upholds the contract of the trait.
            Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, sum.0) })
        }
        #[inline(always)]
        unsafe fn plus(self, other: Self) -> Self {
            // SAFETY: the caller upholds the contract of the trait.
            Self(unsafe { _mm512_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn times(self, other: Self) -> Self {
            // SAFETY: the caller upholds the contract of the trait.
            Self(unsafe { _mm512_mul_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn at_least(self, bound: Self) -> Self {
            // SAFETY: the caller upholds the contract of the trait.
            Self(unsafe { _mm512_max_ps(bound.0, self.0) })
        }
        #[inline(always)]
        unsafe fn scale_by_power(self, power: Self) -> Self {
            // SAFETY: the caller upholds the contract of the trait.
            unsafe {
                let power = _mm512_slli_epi32::<23>(_mm512_castps_si512(power.0));
                let bits = _mm512_add_epi32(_mm512_castps_si512(self.0), power);
                Self(_mm512_castsi512_ps(bits))
            }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: the caller upholds the contract of the trait.
            unsafe { _mm512_storeu_ps(to, self.0) }
        }
        #[inline(always)]
        unsafe fn splat_integers(value: i32) -> __m512i {
            // SAFETY: the caller upholds the contract of the trait.
            unsafe { _mm512_set1_epi32(value) }
        }
        #[inline(always)]
        unsafe fn add_eights(sum: __m512i, weights: *const u8, bytes: i32) -> __m512i {
            // SAFETY: the caller upholds the contract of the trait.
            unsafe {
                let weights = _mm512_loadu_si512(weights.cast());
                _mm512_dpbusd_epi32(sum, weights, _mm512_set1_epi32(bytes))
            }
        }
        #[inline(always)]
        unsafe fn no_fours() -> __m512i {
            // SAFETY: the caller upholds the contract of the trait.
            unsafe { _mm512_setzero_si512() }
        }
        #[inline(always)]
        unsafe fn plus_fours(sum: __m512i, fours: __m512i) -> __m512i {
            // SAFETY: the caller upholds the contract of the trait.
            unsafe { _mm512_add_epi32(sum, fours) }
        }
        #[inline(always)]
        unsafe fn add_fours(sum: __m512i, weights: *const u8, low: i32, high: i32) -> __m512i {
            // SAFETY: the caller upholds the contract of the trait.
            unsafe {
                let (weights, mask) = (_mm512_loadu_si512(weights.cast()), _mm512_set1_epi8(15));
                let lower = _mm512_and_si512(weights, mask);
                let upper = _mm512_and_si512(_mm512_srli_epi16::<4>(weights), mask);
                let sum = _mm512_dpbusd_epi32(sum, lower, _mm512_set1_epi32(low));
                _mm512_dpbusd_epi32(sum, upper, _mm512_set1_epi32(high))
            }
        }
        #[inline(always)]
        unsafe fn floats_from_sums(sum: __m512i) -> Self {
            // SAFETY: the caller upholds the contract of the trait.
            Self(unsafe { _mm512_cvtepi32_ps(sum) })
        }
    }

    /// Applies an expression to both vectors. It is a macro because a closure lacks the
    /// instructions of the function around it, so the compiler would inline none of them into it.
    macro_rules! both {
        (|$at:ident| $made:expr) => {
            [
                {
                    const $at: usize = 0;
                    $made
                },
                {
                    const $at: usize = 1;
                    $made
                },
            ]
        };
    }

    /// Sixteen floats in two vectors.
    #[derive(Clone, Copy)]
    pub struct Half([__m256; 2]);

    /// Adds to eight sums the products of four bytes each: `left` without signs, `right` with, no
    /// two of whose products leave 16 bits.
    #[inline(always)]
    #[expect(unsafe_code, reason = "vector instructions")]
    unsafe fn add_products(sum: __m256i, left: __m256i, right: __m256i) -> __m256i {
        // SAFETY: the caller's: the processor has the instructions.
        unsafe {
            let pairs = _mm256_maddubs_epi16(left, right);
            let fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
            _mm256_add_epi32(sum, fours)
        }
    }

    #[expect(unsafe_code, reason = "vector instructions")]
    // SAFETY: each method is a few instructions of the sets that the trait's contract asks for;
    // pointers are the caller's, and loads and stores take unaligned ones.
    unsafe impl Lanes for Half {
        type ByteSums = [__m256i; 2];
        type FourBitSums = [__m256i; 2];
        const EIGHTS_ABOVE: i32 = 0;
        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: the caller upholds the contract of the trait.
            Self([unsafe { _mm256_set1_ps(value) }; 2])
        }
        #[inline(always)]
        unsafe fn load_f32(from: *const f32) -> Self {
            // SAFETY: the caller upholds the contract of the trait.
            Self(unsafe { both!(|AT| _mm256_loadu_ps(from.add(8 * AT))) })
        }
        #[inline(always)]
        unsafe fn load_f16(from: *const u16) -> Self {
            // SAFETY: the caller upholds the contract of the trait.
            Self(unsafe { both!(|AT| _mm256_cvtph_ps(_mm_loadu_si128(from.add(8 * AT).cast()))) })
        }
        #[inline(always)]
        unsafe fn load_bf16(from: *const u16) -> Self {
            // SAFETY: the caller upholds the contract of the trait.
            Self(unsafe {
                both!(|AT| {
                    let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(8 * AT).cast()));
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
                })
            })
        }
        #[inline(always)]
        unsafe fn times_plus(self, factor: Self, sum: Self) -> Self {
            // SAFETY: the caller upholds the contract of the trait.
            Self(unsafe { both!(|AT| _mm256_fmadd_ps(self.0[AT], factor.0[AT], sum.0[AT])) })
        }
        #[inline(always)]
        unsafe fn plus(self, other: Self) -> Self {
            // SAFETY: the caller upholds the contract of the trait.
            Self(unsafe { both!(|AT| _mm256_add_ps(self.0[AT], other.0[AT])) })
        }
        #[inline(always)]
        unsafe fn times(self, other: Self) -> Self {
            // SAFETY: the caller upholds the contract of the trait.
            Self(unsafe { both!(|AT| _mm256_mul_ps(self.0[AT], other.0[AT])) })
        }
        #[inline(always)]
        unsafe fn at_least(self, bound: Self) -> Self {
            // SAFETY: the caller upholds the contract of the trait.
            Self(unsafe { both!(|AT| _mm256_max_ps(bound.0[AT], self.0[AT])) })
        }
        #[inline(always)]
        unsafe fn scale_by_power(self, power: Self) -> Self {
            // SAFETY: the caller upholds the contract of the trait.
            Self(unsafe {
                both!(|AT| {
                    let power = _mm256_slli_epi32::<23>(_mm256_castps_si256(power.0[AT]));
                    let bits = _mm256_add_epi32(_mm256_castps_si256(self.0[AT]), power);
                    _mm256_castsi256_ps(bits)
                })
            })
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: the caller upholds the contract of the trait.
            unsafe {
                _mm256_storeu_ps(to, self.0[0]);
                _mm256_storeu_ps(to.add(8), self.0[1]);
            }
        }
        #[inline(always)]
        unsafe fn splat_integers(value: i32) -> [__m256i; 2] {
            // SAFETY: the caller upholds the contract of the trait.
            [unsafe { _mm256_set1_epi32(value) }; 2]
        }
        #[inline(always)]
        unsafe fn add_eights(sum: [__m256i; 2], weights: *const u8, bytes: i32) -> [__m256i; 2] {
            // SAFETY: the caller upholds the contract of the trait. No weight is -128, so each has
            // its negative, and two products of at most 127 by 127 stay within 16 bits.
            unsafe {
                both!(|AT| {
                    let kept = _mm256_loadu_si256(weights.add(32 * AT).cast());
                    let weights = _mm256_xor_si256(kept, _mm256_set1_epi8(-128));
                    let bytes = _mm256_set1_epi32(bytes);
                    let signed = _mm256_sign_epi8(weights, bytes);
                    add_products(sum[AT], _mm256_abs_epi8(bytes), signed)
                })
            }
        }
        #[inline(always)]
        unsafe fn no_fours() -> [__m256i; 2] {
            // SAFETY: the caller upholds the contract of the trait.
            [unsafe { _mm256_setzero_si256() }; 2]
        }
        #[inline(always)]
        unsafe fn add_fours(
            sum: [__m256i; 2],
            weights: *const u8,
            low: i32,
            high: i32,
        ) -> [__m256i; 2] {
            // SAFETY: the caller upholds the contract of the trait. Sums of pairs have 16 bits,
            // which hold eight times two products of at most 15 by 127.
            unsafe {
                both!(|AT| {
                    let weights = _mm256_loadu_si256(weights.add(32 * AT).cast());
                    let mask = _mm256_set1_epi8(15);
                    let lower = _mm256_and_si256(weights, mask);
                    let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(weights), mask);
                    let lower = _mm256_maddubs_epi16(lower, _mm256_set1_epi32(low));
                    let upper = _mm256_maddubs_epi16(upper, _mm256_set1_epi32(high));
                    _mm256_add_epi16(_mm256_add_epi16(sum[AT], lower), upper)
                })
            }
        }
        #[inline(always)]
        unsafe fn plus_fours(sum: [__m256i; 2], fours: [__m256i; 2]) -> [__m256i; 2] {
            // SAFETY: the caller upholds the contract of the trait.
            unsafe {
                both!(|AT| {
                    let pairs = _mm256_madd_epi16(fours[AT], _mm256_set1_epi16(1));
                    _mm256_add_epi32(sum[AT], pairs)
                })
            }
        }
        #[inline(always)]
        unsafe fn floats_from_sums(sum: [__m256i; 2]) -> Self {
            // SAFETY: the caller upholds the contract of the trait.
            Self(unsafe { both!(|AT| _mm256_cvtepi32_ps(sum[AT])) })
        }
    }
}

/// Sixteen floats in an array.
#[derive(Clone, Copy)]
pub(super) struct Array([f32; LANES]);

/// Reads numbers at a place and converts each.
#[inline(always)]
#[expect(unsafe_code, reason = "the place is the caller's to vouch for")]
unsafe fn read<T: Copy, U>(from: *const T, of: impl Fn(T) -> U) -> [U; LANES] {
    // SAFETY: the caller vouches for sixteen numbers there.
    std::array::from_fn(|at| of(unsafe { from.add(at).read_unaligned() }))
}

#[expect(unsafe_code, reason = "the trait's loads and stores take pointers")]
// SAFETY: no special instructions; the places are the caller's to vouch for.
unsafe impl Lanes for Array {
    type ByteSums = [i32; LANES];
    type FourBitSums = [i32; LANES];
    const EIGHTS_ABOVE: i32 = 128;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; LANES])
    }
    #[inline(always)]
    unsafe fn load_f32(from: *const f32) -> Self {
        // SAFETY: the caller upholds the contract of the trait.
        Self(unsafe { read(from, |float| float) })
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller upholds the contract of the trait.
        Self(unsafe { read(from, |bits| F16(bits).to_f32()) })
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the caller upholds the contract of the trait.
        Self(unsafe { read(from, |bits| f32::from_bits(u32::from(bits) << 16)) })
    }
    #[inline(always)]
    unsafe fn times_plus(self, factor: Self, sum: Self) -> Self {
        Self(std::array::from_fn(|at| {
            self.0[at] * factor.0[at] + sum.0[at]
        }))
    }
    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] + other.0[at]))
    }
    #[inline(always)]
    unsafe fn times(self, other: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] * other.0[at]))
    }
    #[inline(always)]
    unsafe fn at_least(self, bound: Self) -> Self {
        let larger = |value: f32, bound: f32| if bound > value { bound } else { value };
        Self(std::array::from_fn(|at| larger(self.0[at], bound.0[at])))
    }
    #[inline(always)]
    unsafe fn scale_by_power(self, power: Self) -> Self {
        let doubled = |value: f32, power: f32| {
            f32::from_bits(value.to_bits().wrapping_add(power.to_bits() << 23))
        };
        Self(std::array::from_fn(|at| doubled(self.0[at], power.0[at])))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller upholds the contract of the trait.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn splat_integers(value: i32) -> [i32; LANES] {
        [value; LANES]
    }
    #[inline(always)]
    unsafe fn add_eights(mut sum: [i32; LANES], weights: *const u8, bytes: i32) -> [i32; LANES] {
        let bytes = bytes.to_le_bytes().map(u8::cast_signed);
        for (lane, sum) in sum.iter_mut().enumerate() {
            for (at, byte) in bytes.iter().enumerate() {
                // SAFETY: the caller upholds the contract of the trait: four weights a lane.
                let weight = unsafe { *weights.add(lane * 4 + at) };
                *sum += i32::from(weight) * i32::from(*byte);
            }
        }
        sum
    }
    #[inline(always)]
    unsafe fn no_fours() -> [i32; LANES] {
        [0; LANES]
    }
    #[inline(always)]
    unsafe fn plus_fours(sum: [i32; LANES], fours: [i32; LANES]) -> [i32; LANES] {
        std::array::from_fn(|lane| sum[lane] + fours[lane])
    }
    #[inline(always)]
    unsafe fn add_fours(
        mut sum: [i32; LANES],
        weights: *const u8,
        low: i32,
        high: i32,
    ) -> [i32; LANES] {
        let [low, high] = [low, high].map(|bytes| bytes.to_le_bytes().map(u8::cast_signed));
        for (lane, sum) in sum.iter_mut().enumerate() {
            for (at, (low, high)) in low.iter().zip(&high).enumerate() {
                // SAFETY: the caller upholds the contract of the trait: four bytes a lane.
                let both = unsafe { *weights.add(lane * 4 + at) };
                *sum += i32::from(both & 15) * i32::from(*low);
                *sum += i32::from(both >> 4) * i32::from(*high);
            }
        }
        sum
    }
    #[inline(always)]
    unsafe fn floats_from_sums(sum: [i32; LANES]) -> Self {
        Self(sum.map(|sum| sum as f32))
    }
}
