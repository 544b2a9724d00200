//! The formats in which a device's 32-bit words hold numbers of each type, and the WGSL that reads
//! and writes them. The operators and the recording build their kernels from it.

pub(crate) mod doubles;
pub(crate) mod halves;
pub(crate) mod integers;
pub(crate) mod packed;
pub(crate) mod quarters;
