//! Vectors of 32-bit floats in the widths that processors have, and the macro that builds a
//! function once for each width. Most kernels of the CPU's engines are written once over [`Vector`]
//! or as a pass.
//!
//! The engines find the widest instructions of this processor when a model is compiled, and each
//! call chooses its variant by them.

/// Declares a pass: its body is built once for each `Isa`, and the right one is called.
macro_rules! pass {
    ($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),*) $body:block) => {
        $(#[$doc])*
        pub(crate) fn $name(isa: souk_host::isa::Isa, $($argument: $kind),*) {
            #[inline(always)]
            fn body($($argument: $kind),*) $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl,avx2,fma")]
            fn built_512($($argument: $kind),*) {
                body($($argument),*);
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn built_256($($argument: $kind),*) {
                body($($argument),*);
            }

            match isa {
                #[cfg(target_arch = "x86_64")]
                #[expect(unsafe_code, reason = "built for wider vectors")]
                // SAFETY: this variant of `Isa` is only made where the instructions were found.
                souk_host::isa::Isa::Avx512 => unsafe { built_512($($argument),*) },
                #[cfg(target_arch = "x86_64")]
                #[expect(unsafe_code, reason = "built for wider vectors")]
                // SAFETY: this variant of `Isa` is only made where the instructions were found.
                souk_host::isa::Isa::Avx2 => unsafe { built_256($($argument),*) },
                // Built for NEON without more: every aarch64 processor has it.
                #[cfg(target_arch = "aarch64")]
                souk_host::isa::Isa::Neon => body($($argument),*),
                souk_host::isa::Isa::Plain => body($($argument),*),
            }
        }
    };
}
pub(crate) use pass;

/// A vector of floats. Loads and stores take pointers: whole vectors must lie there.
///
/// # Safety
/// Every method must only be called where the processor has the instructions of the type: within a
/// function that was entered through the `Isa` found for it.
#[expect(unsafe_code, reason = "vector instructions and pointers to vectors")]
pub(crate) unsafe trait Vector: Copy {
    /// Number of floats in a vector.
    const WIDTH: usize;
    /// Returns a vector with this float in every lane.
    unsafe fn splat(value: f32) -> Self;
    /// Loads a vector.
    unsafe fn load(from: *const f32) -> Self;
    /// Prefetches the cache line of a place, if the processor can.
    unsafe fn prefetch_line(from: *const f32);
    /// Stores the vector at a place.
    unsafe fn store(self, to: *mut f32);
    /// Loads the first `count` floats, which must be fewer than a vector holds; the other lanes are
    /// zero.
    unsafe fn load_part(from: *const f32, count: usize) -> Self;
    /// Stores the first `count` floats.
    unsafe fn store_part(self, to: *mut f32, count: usize);
    /// `self * factor + sum`, rounded once, also where the processor has no such instruction: so
    /// every width gives the same bits.
    unsafe fn times_plus(self, factor: Self, sum: Self) -> Self;
    /// Returns the sum of two vectors.
    unsafe fn plus(self, other: Self) -> Self;
    /// Returns the larger of two values; NaN in either gives NaN.
    unsafe fn max_or_nan(self, other: Self) -> Self;
    /// Returns the larger of `bound` and this value; NaN stays NaN.
    unsafe fn at_least(self, bound: Self) -> Self;
    /// Returns the smaller of `bound` and this value; NaN stays NaN.
    unsafe fn at_most(self, bound: Self) -> Self;
}

#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    //! The two widths of x86-64.

    use std::arch::x86_64::*;

    use super::Vector;

    /// The lowest `count` of 16 lanes.
    #[inline(always)]
    fn mask_512(count: usize) -> __mmask16 {
        ((1u32 << count) - 1) as __mmask16
    }

    #[inline(always)]
    #[expect(unsafe_code, reason = "a vector instruction")]
    unsafe fn load_part_512(from: *const f32, mask: __mmask16) -> __m512 {
        // SAFETY: the caller's; the load reads nothing where the mask is not set.
        unsafe { _mm512_maskz_loadu_ps(mask, from) }
    }

    /// Returns `value` where it is NaN, otherwise `otherwise`.
    #[inline(always)]
    #[expect(unsafe_code, reason = "vector instructions")]
    unsafe fn or_no_number_512(value: __m512, otherwise: __m512) -> __m512 {
        // SAFETY: the caller's: the processor has the instructions.
        unsafe {
            let is_none = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
            _mm512_mask_mov_ps(otherwise, is_none, value)
        }
    }

    /// Returns `value` where it is NaN, otherwise `otherwise`.
    #[inline(always)]
    #[expect(unsafe_code, reason = "vector instructions")]
    unsafe fn or_no_number_256(value: __m256, otherwise: __m256) -> __m256 {
        // SAFETY: the caller's: the processor has the instructions.
        unsafe {
            let is_none = _mm256_cmp_ps::<_CMP_UNORD_Q>(value, value);
            _mm256_blendv_ps(otherwise, value, is_none)
        }
    }

    /// The lowest `count` of 8 lanes.
    #[inline(always)]
    #[expect(unsafe_code, reason = "a vector instruction")]
    unsafe fn mask_256(count: usize) -> __m256i {
        const EDGE: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
        // SAFETY: eight integers lie from any of the first nine places on; the rest is the
        // caller's.
        unsafe { _mm256_loadu_si256(EDGE[8 - count..].as_ptr().cast()) }
    }

    macro_rules! lanes {
        ($name:ident, $inner:ty, $width:expr, $doc:expr, $set:ident, $load:ident, $store:ident,
         $fma:ident, $add:ident, $max:ident, $min:ident, $load_part:ident, $store_part:ident,
         $mask:ident, $number:ident) => {
            #[doc = $doc]
            #[derive(Clone, Copy)]
            pub struct $name($inner);

            #[expect(unsafe_code, reason = "vector instructions")]
            // SAFETY: each method is one instruction of the set that the trait's contract requires.
            // The caller supplies the pointers, which can be unaligned. Where one operand is NaN,
            // the maximum and the minimum return their second operand.
            unsafe impl Vector for $name {
                const WIDTH: usize = $width;
                #[inline(always)]
                unsafe fn splat(value: f32) -> Self {
                    // SAFETY: the caller upholds the contract of the trait.
                    Self(unsafe { $set(value) })
                }
                #[inline(always)]
                unsafe fn load(from: *const f32) -> Self {
                    // SAFETY: the caller upholds the contract of the trait.
                    Self(unsafe { $load(from) })
                }
                #[inline(always)]
                unsafe fn prefetch_line(from: *const f32) {
                    // SAFETY: a prefetch is a hint and reads nothing.
                    unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
                }
                #[inline(always)]
                unsafe fn store(self, to: *mut f32) {
                    // SAFETY: the caller upholds the contract of the trait.
                    unsafe { $store(to, self.0) }
                }
                #[inline(always)]
                unsafe fn load_part(from: *const f32, count: usize) -> Self {
                    // SAFETY: the caller upholds the contract of the trait.
                    Self(unsafe { $load_part(from, $mask(count)) })
                }
                #[inline(always)]
                unsafe fn store_part(self, to: *mut f32, count: usize) {
                    // SAFETY: the caller upholds the contract of the trait.
                    unsafe { $store_part(to, $mask(count), self.0) }
                }
                #[inline(always)]
                unsafe fn times_plus(self, factor: Self, sum: Self) -> Self {
                    // SAFETY: the caller upholds the contract of the trait.
                    Self(unsafe { $fma(self.0, factor.0, sum.0) })
                }
                #[inline(always)]
                unsafe fn plus(self, other: Self) -> Self {
                    // SAFETY: the caller upholds the contract of the trait.
                    Self(unsafe { $add(self.0, other.0) })
                }
                #[inline(always)]
                unsafe fn max_or_nan(self, other: Self) -> Self {
                    // SAFETY: the caller upholds the contract of the trait. Where one operand is
                    // NaN, the maximum returns `self`, so only `other` remains to be checked.
                    unsafe { Self($number(other.0, $max(other.0, self.0))) }
                }
                #[inline(always)]
                unsafe fn at_least(self, bound: Self) -> Self {
                    // SAFETY: the caller upholds the contract of the trait.
                    Self(unsafe { $max(bound.0, self.0) })
                }
                #[inline(always)]
                unsafe fn at_most(self, bound: Self) -> Self {
                    // SAFETY: the caller upholds the contract of the trait.
                    Self(unsafe { $min(bound.0, self.0) })
                }
            }
        };
    }

    lanes!(
        Wide,
        __m512,
        16,
        "Sixteen floats.",
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_fmadd_ps,
        _mm512_add_ps,
        _mm512_max_ps,
        _mm512_min_ps,
        load_part_512,
        _mm512_mask_storeu_ps,
        mask_512,
        or_no_number_512
    );
    lanes!(
        Half,
        __m256,
        8,
        "Eight floats.",
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_fmadd_ps,
        _mm256_add_ps,
        _mm256_max_ps,
        _mm256_min_ps,
        _mm256_maskload_ps,
        _mm256_maskstore_ps,
        mask_256,
        or_no_number_256
    );
}

/// Eight floats in an array.
#[derive(Clone, Copy)]
pub(crate) struct Plain([f32; 8]);

#[expect(unsafe_code, reason = "the trait's loads and stores take pointers")]
// SAFETY: no special instructions; the places are the caller's to vouch for.
unsafe impl Vector for Plain {
    const WIDTH: usize = 8;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; 8])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller upholds the contract of the trait.
        Self(unsafe { from.cast::<[f32; 8]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn prefetch_line(_: *const f32) {}
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller upholds the contract of the trait.
        unsafe { to.cast::<[f32; 8]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const f32, count: usize) -> Self {
        let mut held = [0.0; 8];
        for (at, held) in held.iter_mut().enumerate().take(count) {
            // SAFETY: the caller upholds the contract of the trait.
            *held = unsafe { *from.add(at) };
        }
        Self(held)
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, count: usize) {
        for (at, held) in self.0.iter().enumerate().take(count) {
            // SAFETY: the caller upholds the contract of the trait.
            unsafe { *to.add(at) = *held };
        }
    }
    #[inline(always)]
    unsafe fn times_plus(self, factor: Self, sum: Self) -> Self {
        Self(std::array::from_fn(|at| {
            self.0[at].mul_add(factor.0[at], sum.0[at])
        }))
    }
    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] + other.0[at]))
    }
    #[inline(always)]
    unsafe fn max_or_nan(self, other: Self) -> Self {
        let larger = |held: f32, other: f32| {
            if held >= other || held.is_nan() {
                held
            } else {
                other
            }
        };
        Self(std::array::from_fn(|at| larger(self.0[at], other.0[at])))
    }
    #[inline(always)]
    unsafe fn at_least(self, bound: Self) -> Self {
        let larger = |value: f32, bound: f32| if bound > value { bound } else { value };
        Self(std::array::from_fn(|at| larger(self.0[at], bound.0[at])))
    }
    #[inline(always)]
    unsafe fn at_most(self, bound: Self) -> Self {
        let smaller = |value: f32, bound: f32| if bound < value { bound } else { value };
        Self(std::array::from_fn(|at| smaller(self.0[at], bound.0[at])))
    }
}
