//! The formats of numbers in a device's words, and the WGSL that reads and writes them.

pub(crate) mod doubles;
pub(crate) mod halves;
pub(crate) mod integers;
pub(crate) mod packed;
pub(crate) mod quarters;
