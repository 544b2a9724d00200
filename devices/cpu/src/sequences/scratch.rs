//! Divides the scratch memory of a task of attention into its parts: packed keys and values,
//! scores, the mask, and constants. The plan reserves the memory by [`ScratchLayout`], and the task
//! cuts it by the same one.

use souk_host::isa::Isa;

use crate::tiled::panels::{Panel, panels_width, split_panels};

/// Number of queries whose scores are in memory at once: a multiple of the heights of all tiles.
pub(super) const QUERIES: usize = 24;

/// How the scratch of a task is divided.
pub(super) struct ScratchLayout {
    pub isa: Isa,
    pub keys: Vec<Panel>,
    pub values: Vec<Panel>,
    /// Columns of the scores, filling included.
    pub wide: usize,
    /// Columns of a head's values, filling included.
    pub value_wide: usize,
    /// Features of a head's keys, and of its values.
    pub each: [usize; 2],
    pub seen: usize,
}

impl ScratchLayout {
    pub fn new(isa: Isa, seen: usize, each: [usize; 2]) -> Self {
        let keys = split_panels(isa, seen);
        let values = split_panels(isa, each[1]);
        Self {
            isa,
            wide: panels_width(isa, &keys),
            value_wide: panels_width(isa, &values),
            values,
            keys,
            each,
            seen,
        }
    }

    pub fn max_width(&self) -> usize {
        self.wide.max(self.value_wide)
    }

    /// Floats of all parts.
    pub fn float_count(&self) -> usize {
        let [of_keys, of_values] = self.each;
        self.wide * (of_keys + QUERIES)
            + self.value_wide * self.seen
            + 4 * self.max_width()
            + of_values
    }
}
