//! Sixteen floats in four vectors of NEON, which every aarch64 processor has, with sums of products
//! of bytes by the instruction for them (`sdot`) or by pairs. Rust's functions for `sdot` are not
//! stable, so it must be written as assembly.

use std::arch::aarch64::*;
use std::arch::asm;
use std::array::from_fn;

use super::Lanes;

/// Adds to four sums the products of four signed bytes each. The processor must have `dotprod`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
#[expect(unsafe_code, reason = "an instruction that has no stable function")]
unsafe fn add_dots(sum: int32x4_t, left: int8x16_t, right: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: the processor has the instruction, which reads and writes these registers alone.
    unsafe {
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sum,
            in(vreg) left,
            in(vreg) right,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// Adds to four sums the products of four signed bytes each, no two of whose products leave 16
/// bits together: no byte is -128.
#[inline(always)]
#[expect(unsafe_code, reason = "vector instructions")]
unsafe fn add_pairs(sum: int32x4_t, left: int8x16_t, right: int8x16_t) -> int32x4_t {
    // SAFETY: every aarch64 processor has the instructions.
    unsafe {
        let lower = vmull_s8(vget_low_s8(left), vget_low_s8(right));
        let upper = vmull_high_s8(left, right);
        vpadalq_s16(sum, vpaddq_s16(lower, upper))
    }
}

macro_rules! lanes {
    ($name:ident, $add_products:ident, $doc:expr) => {
        #[doc = $doc]
        #[derive(Clone, Copy)]
        pub struct $name([float32x4_t; 4]);

        #[expect(unsafe_code, reason = "vector instructions")]
        // SAFETY: each method is a few instructions of the sets that the trait's contract asks for;
        // pointers are the caller's, and loads and stores take unaligned ones.
        unsafe impl Lanes for $name {
            type ByteSums = [int32x4_t; 4];
            type FourBitSums = [int32x4_t; 4];
            const EIGHTS_ABOVE: i32 = 0;
            #[inline(always)]
            unsafe fn splat(value: f32) -> Self {
                // SAFETY: the caller upholds the contract of the trait.
                Self([unsafe { vdupq_n_f32(value) }; 4])
            }
            #[inline(always)]
            unsafe fn load_f32(from: *const f32) -> Self {
                // SAFETY: the caller upholds the contract of the trait.
                Self(from_fn(|at| unsafe { vld1q_f32(from.add(4 * at)) }))
            }
            #[inline(always)]
            unsafe fn load_f16(from: *const u16) -> Self {
                // SAFETY: the caller upholds the contract of the trait.
                Self(from_fn(|at| unsafe {
                    vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from.add(4 * at))))
                }))
            }
            #[inline(always)]
            unsafe fn load_bf16(from: *const u16) -> Self {
                // SAFETY: the caller upholds the contract of the trait.
                Self(from_fn(|at| unsafe {
                    vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.add(4 * at))))
                }))
            }
            #[inline(always)]
            unsafe fn times_plus(self, factor: Self, sum: Self) -> Self {
                // SAFETY: the caller upholds the contract of the trait.
                Self(from_fn(|at| unsafe {
                    vfmaq_f32(sum.0[at], self.0[at], factor.0[at])
                }))
            }
            #[inline(always)]
            unsafe fn plus(self, other: Self) -> Self {
                // SAFETY: the caller upholds the contract of the trait.
                Self(from_fn(|at| unsafe { vaddq_f32(self.0[at], other.0[at]) }))
            }
            #[inline(always)]
            unsafe fn times(self, other: Self) -> Self {
                // SAFETY: the caller upholds the contract of the trait.
                Self(from_fn(|at| unsafe { vmulq_f32(self.0[at], other.0[at]) }))
            }
            #[inline(always)]
            unsafe fn at_least(self, bound: Self) -> Self {
                // SAFETY: the caller upholds the contract of the trait.
                Self(from_fn(|at| unsafe {
                    let is_below = vcgtq_f32(bound.0[at], self.0[at]);
                    vbslq_f32(is_below, bound.0[at], self.0[at])
                }))
            }
            #[inline(always)]
            unsafe fn scale_by_power(self, power: Self) -> Self {
                // SAFETY: the caller upholds the contract of the trait.
                Self(from_fn(|at| unsafe {
                    let power = vshlq_n_s32::<23>(vreinterpretq_s32_f32(power.0[at]));
                    let bits = vaddq_s32(vreinterpretq_s32_f32(self.0[at]), power);
                    vreinterpretq_f32_s32(bits)
                }))
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut f32) {
                for (at, floats) in self.0.into_iter().enumerate() {
                    // SAFETY: the caller upholds the contract of the trait.
                    unsafe { vst1q_f32(to.add(4 * at), floats) };
                }
            }
            #[inline(always)]
            unsafe fn splat_integers(value: i32) -> [int32x4_t; 4] {
                // SAFETY: the caller upholds the contract of the trait.
                [unsafe { vdupq_n_s32(value) }; 4]
            }
            #[inline(always)]
            unsafe fn add_eights(
                sum: [int32x4_t; 4],
                weights: *const u8,
                bytes: i32,
            ) -> [int32x4_t; 4] {
                // SAFETY: the caller upholds the contract of the trait. No weight is -128 once it
                // is signed, and no byte is.
                from_fn(|at| unsafe {
                    let kept = veorq_u8(vld1q_u8(weights.add(16 * at)), vdupq_n_u8(128));
                    let bytes = vreinterpretq_s8_s32(vdupq_n_s32(bytes));
                    $add_products(sum[at], vreinterpretq_s8_u8(kept), bytes)
                })
            }
            #[inline(always)]
            unsafe fn no_fours() -> [int32x4_t; 4] {
                // SAFETY: the caller upholds the contract of the trait.
                unsafe { Self::splat_integers(0) }
            }
            #[inline(always)]
            unsafe fn add_fours(
                sum: [int32x4_t; 4],
                weights: *const u8,
                low: i32,
                high: i32,
            ) -> [int32x4_t; 4] {
                // SAFETY: the caller upholds the contract of the trait. No weight is above 15.
                from_fn(|at| unsafe {
                    let both = vld1q_u8(weights.add(16 * at));
                    let lower = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
                    let upper = vreinterpretq_s8_u8(vshrq_n_u8::<4>(both));
                    let low = vreinterpretq_s8_s32(vdupq_n_s32(low));
                    let high = vreinterpretq_s8_s32(vdupq_n_s32(high));
                    let sum = $add_products(sum[at], lower, low);
                    $add_products(sum, upper, high)
                })
            }
            #[inline(always)]
            unsafe fn plus_fours(sum: [int32x4_t; 4], fours: [int32x4_t; 4]) -> [int32x4_t; 4] {
                // SAFETY: the caller upholds the contract of the trait.
                from_fn(|at| unsafe { vaddq_s32(sum[at], fours[at]) })
            }
            #[inline(always)]
            unsafe fn floats_from_sums(sum: [int32x4_t; 4]) -> Self {
                // SAFETY: the caller upholds the contract of the trait.
                Self(from_fn(|at| unsafe { vcvtq_f32_s32(sum[at]) }))
            }
        }
    };
}

lanes!(
    Neon,
    add_pairs,
    "Sixteen floats; products of bytes by pairs."
);
lanes!(
    Dots,
    add_dots,
    "Sixteen floats; products of bytes by `sdot`, so the processor must have `dotprod`."
);
