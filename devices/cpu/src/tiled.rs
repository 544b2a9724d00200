//! The parts that the engines over images, sequences and decoders share: plans of steps over
//! numbered values, weights in panels, tiles of products in registers, and threads that go from
//! stage to stage.

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
