//! Packs a matrix of weights in the order in which tiles (small blocks of a result) read it: in
//! panels, groups of neighbouring columns that are as wide as a tile. The image and sequence
//! engines use panels for convolutions, products and attention.
//!
//! Packing only moves the weights and pads each panel to whole vectors. So
//! [`PackedMatrix::for_each_weight`] can undo it, and no program needs to store the weights twice.

use souk_host::isa::Isa;

use super::aligned_floats::AlignedFloats;

/// A panel: neighbouring columns of a matrix, which a tile computes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panel {
    /// Its first column in the matrix.
    pub start: usize,
    /// The number of its columns; its vectors can have room for more.
    pub columns: usize,
    /// Its width in vectors.
    pub vectors: usize,
    /// The place of its first column among the columns of all panels, with the padding of the
    /// panels before it.
    pub place: usize,
}

/// A matrix stored panel by panel. Each panel stores its columns of row 0, then those of row 1, and
/// so on.
#[derive(Debug)]
pub(crate) struct PackedMatrix {
    pub panels: Vec<Panel>,
    /// The number of rows.
    pub depth: usize,
    /// The weights of all panels, with zeros in the padding.
    pub weights: AlignedFloats,
}

impl Panel {
    /// Returns the number of columns with the padding to whole vectors.
    pub fn padded_width(&self, isa: Isa) -> usize {
        self.vectors * isa.vector_width()
    }
}

/// Divides this number of columns into panels.
pub(crate) fn split_panels(isa: Isa, columns: usize) -> Vec<Panel> {
    let mut panels = Vec::new();
    let (mut start, mut place) = (0, 0);
    while start < columns {
        let wanted = (columns - start).div_ceil(isa.vector_width());
        // Make all panels about equally wide, so that no narrow panel remains at the end.
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

/// Returns the number of columns of all panels with their padding.
pub(crate) fn panels_width(isa: Isa, panels: &[Panel]) -> usize {
    panels
        .last()
        .map_or(0, |it| it.place + it.padded_width(isa))
}

/// Returns `of(column)` for each column, such as its bias, in the layout of the panels with zeros
/// in the padding.
pub(crate) fn by_column(isa: Isa, panels: &[Panel], of: impl Fn(usize) -> f32) -> Vec<f32> {
    let mut floats = Vec::with_capacity(panels_width(isa, panels));
    for panel in panels {
        floats.extend((panel.start..panel.start + panel.columns).map(&of));
        floats.resize(panel.place + panel.padded_width(isa), 0.0);
    }
    floats
}

impl PackedMatrix {
    /// Packs a matrix of `depth` rows. `fill` gets a panel, the number of a row, and the slice to
    /// which it must write the panel's columns of that row.
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

    /// Returns the weights from the beginning of `panel`, which must belong to this matrix, to the
    /// end of the matrix.
    pub fn weights_from(&self, panel: &Panel) -> &[f32] {
        &self.weights[panel.place * self.depth..]
    }

    /// Calls `tell` with the row, the column and the value of every weight, without the padding.
    /// `isa` must be the one for which the matrix was packed.
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
