//! Eight floats in two vectors of NEON, which every aarch64 processor has. Two vectors, and not
//! one, because its 32 registers can then hold a tile of the size that AVX2 has.

use std::arch::aarch64::*;
use std::arch::asm;
use std::array::from_fn;

use super::Vector;

/// Eight floats.
#[derive(Clone, Copy)]
pub(crate) struct Neon([float32x4_t; 2]);

#[expect(unsafe_code, reason = "vector instructions")]
// SAFETY: each method is a few instructions that every aarch64 processor has; pointers are the
// caller's, and loads and stores take unaligned ones. A comparison and a selection stand for
// the instructions of maximum and minimum, which can return other zeros and NaNs than x86-64 does
// and so must not be used.
unsafe impl Vector for Neon {
    const WIDTH: usize = 8;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller upholds the contract of the trait.
        Self([unsafe { vdupq_n_f32(value) }; 2])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller upholds the contract of the trait.
        Self(from_fn(|at| unsafe { vld1q_f32(from.add(4 * at)) }))
    }
    #[inline(always)]
    unsafe fn prefetch_line(from: *const f32) {
        // SAFETY: a prefetch is a hint and reads nothing.
        unsafe {
            asm!(
                "prfm pldl2keep, [{}]",
                in(reg) from,
                options(nostack, preserves_flags, readonly)
            );
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller upholds the contract of the trait.
        unsafe {
            vst1q_f32(to, self.0[0]);
            vst1q_f32(to.add(4), self.0[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const f32, count: usize) -> Self {
        let mut held = [0.0; 8];
        // SAFETY: the caller upholds the contract of the trait: `count` floats are there, and
        // fewer than eight.
        unsafe {
            std::ptr::copy_nonoverlapping(from, held.as_mut_ptr(), count);
            Self::load(held.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, count: usize) {
        let mut held = [0.0; 8];
        // SAFETY: the caller upholds the contract of the trait: there is room for `count` floats,
        // and these are fewer than eight.
        unsafe {
            self.store(held.as_mut_ptr());
            std::ptr::copy_nonoverlapping(held.as_ptr(), to, count);
        }
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
    unsafe fn max_or_nan(self, other: Self) -> Self {
        // SAFETY: the caller upholds the contract of the trait.
        Self(from_fn(|at| unsafe {
            let is_number = vceqq_f32(self.0[at], self.0[at]);
            let is_smaller = vmvnq_u32(vcgeq_f32(self.0[at], other.0[at]));
            vbslq_f32(vandq_u32(is_number, is_smaller), other.0[at], self.0[at])
        }))
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
    unsafe fn at_most(self, bound: Self) -> Self {
        // SAFETY: the caller upholds the contract of the trait.
        Self(from_fn(|at| unsafe {
            let is_above = vcltq_f32(bound.0[at], self.0[at]);
            vbslq_f32(is_above, bound.0[at], self.0[at])
        }))
    }
}
