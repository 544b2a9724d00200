//! Finds the widest vector instructions that this processor has and the CPU's kernels support, and
//! the sizes of tiles that suit them.

/// The vector instructions that kernels are run with. A kernel must not run with instructions that
/// the processor lacks, so callers should use [`Isa::detect_widest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// 16 floats at once, 32 registers.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 8 floats at once, 16 registers.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 8 floats at once in two of 32 registers.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// No vector code of our own: the compiler vectorises plain loops.
    Plain,
}

impl Isa {
    /// The widest this processor has.
    #[must_use]
    pub fn detect_widest() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
                return Self::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Self::Avx2;
            }
        }
        // Every aarch64 processor that Rust's standard library runs on has it.
        #[cfg(target_arch = "aarch64")]
        return Self::Neon;
        #[cfg(not(target_arch = "aarch64"))]
        Self::Plain
    }

    /// All that this processor has, for tests that compare them.
    #[must_use]
    pub fn all_supported() -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        match Self::detect_widest() {
            Self::Avx512 => return vec![Self::Avx512, Self::Avx2, Self::Plain],
            Self::Avx2 => return vec![Self::Avx2, Self::Plain],
            Self::Plain => {}
        }
        #[cfg(target_arch = "aarch64")]
        return vec![Self::Neon, Self::Plain];
        #[cfg(not(target_arch = "aarch64"))]
        vec![Self::Plain]
    }

    /// Floats in a vector.
    #[must_use]
    pub fn vector_width(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => 16,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => 8,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => 8,
            Self::Plain => 8,
        }
    }

    /// Returns the greatest width of a kernel's tile (a block of results that stays in registers),
    /// in vectors. The number of registers bounds it.
    #[must_use]
    pub fn tile_vectors_max(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => 4,
            _ => 2,
        }
    }

    /// Returns the rows of a tile that is `vectors` wide.
    #[must_use]
    pub fn tile_rows(self, vectors: usize) -> usize {
        match (self, vectors) {
            #[cfg(target_arch = "x86_64")]
            (Self::Avx512, ..=3) => 8,
            _ => 6,
        }
    }
}
