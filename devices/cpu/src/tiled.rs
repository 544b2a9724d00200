//! The parts that the CPU's own engines share. Those for networks over images and sequences use
//! plans of steps over numbered values, weights in panels, and tiles of products in registers; the
//! one for decoders also uses the aligned floats, and the threads that go from stage to stage.

pub(super) mod aligned_floats;
pub(super) mod buffer_pool;
pub(super) mod packed_weights;
pub(super) mod panels;
pub(super) mod plan;
pub(super) mod row_math;
pub(super) mod span;
pub(super) mod tile;
pub(super) mod values;
pub(super) mod vectors;
pub(super) mod worker_pool;
