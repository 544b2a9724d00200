//! Packs a matrix of weights in the order in which tiles (small blocks of a result) read it: in
//! panels as wide as a tile. The image and sequence engines use it for convolutions, products and
//! attention.
//!
//! Packing only moves the weights, so it can be undone, and no program needs to store them twice.

use souk_host::isa::Isa;

use super::aligned_floats::AlignedFloats;

/// Columns that a tile computes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panel {
    /// The first column.
    pub start: usize,
    /// Columns; the vectors can be wider.
    pub columns: usize,
    pub vectors: usize,
    /// Where its columns begin among those of all panels, the filling between them counted.
    pub place: usize,
}

/// A matrix in panels: of each all rows, of each row the panel's columns.
#[derive(Debug)]
pub(crate) struct PackedMatrix {
    pub panels: Vec<Panel>,
    /// Rows.
    pub depth: usize,
    pub weights: AlignedFloats,
}

impl Panel {
    /// Columns, the filling counted.
    pub fn padded_width(&self, isa: Isa) -> usize {
        self.vectors * isa.vector_width()
    }
}

/// The panels that `columns` are cut into.
pub(crate) fn split_panels(isa: Isa, columns: usize) -> Vec<Panel> {
    let mut panels = Vec::new();
    let (mut start, mut place) = (0, 0);
    while start < columns {
        let wanted = (columns - start).div_ceil(isa.vector_width());
        // Make panels of about one width, so that no narrow panel is left over.
        let vectors = wanted.div_ceil(wanted.div_ceil(isa.tile_vectors_max()));
        let width = vectors * isa.vector_width();
        let columns = (columns - start).min(width);
        panels.push(Panel {
            start,
            columns,
            vectors,
            place,
        });
        start += columns;
        place += width;
    }
    panels
}

/// Columns of all panels, filling included.
pub(crate) fn panels_width(isa: Isa, panels: &[Panel]) -> usize {
    panels
        .last()
        .map_or(0, |it| it.place + it.padded_width(isa))
}

/// One float for each column of every panel; the filling has zeros.
pub(crate) fn by_column(isa: Isa, panels: &[Panel], of: impl Fn(usize) -> f32) -> Vec<f32> {
    let mut floats = Vec::with_capacity(panels_width(isa, panels));
    for panel in panels {
        floats.extend((panel.start..panel.start + panel.columns).map(&of));
        floats.resize(panel.place + panel.padded_width(isa), 0.0);
    }
    floats
}

impl PackedMatrix {
    /// Packs `depth` rows; `fill` writes a panel's columns of one row.
    pub fn new(
        isa: Isa,
        panels: Vec<Panel>,
        depth: usize,
        fill: impl Fn(&Panel, usize, &mut [f32]),
    ) -> Self {
        let mut weights = AlignedFloats::zeros(panels_width(isa, &panels) * depth);
        for panel in &panels {
            let rows = weights[panel.place * depth..].chunks_exact_mut(panel.padded_width(isa));
            for (row, to) in rows.take(depth).enumerate() {
                fill(panel, row, &mut to[..panel.columns]);
            }
        }
        Self {
            panels,
            depth,
            weights,
        }
    }

    /// The weights from those of a panel on, which must be one of this matrix.
    pub fn weights_from(&self, panel: &Panel) -> &[f32] {
        &self.weights[panel.place * self.depth..]
    }

    /// Tells of every weight its row, its column and its value; `isa` must be that of the packing.
    pub fn for_each_weight(&self, isa: Isa, mut tell: impl FnMut(usize, usize, f32)) {
        for panel in &self.panels {
            let rows = self
                .weights_from(panel)
                .chunks_exact(panel.padded_width(isa));
            for (row, weights) in rows.take(self.depth).enumerate() {
                for (column, weight) in weights[..panel.columns].iter().enumerate() {
                    tell(row, panel.start + column, *weight);
                }
            }
        }
    }
}
