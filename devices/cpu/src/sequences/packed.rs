//! The weights of a product in the order its tiles read them, and back.

use souk_host::isa::Isa;

use super::super::lines::Lines;

/// Columns that a tile computes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Panel {
    /// The first column.
    pub start: usize,
    /// Columns; the vectors may be wider.
    pub columns: usize,
    pub vectors: usize,
    /// Where its columns begin among those of all panels, the filling between them counted.
    pub place: usize,
}

/// A matrix in panels: of each all rows, of each row the panel's columns.
#[derive(Debug)]
pub(super) struct Packed {
    pub panels: Vec<Panel>,
    pub depth: usize,
    pub columns: usize,
    pub weights: Lines,
    /// One for each column of every panel.
    pub bias: Vec<f32>,
    /// Ones, as many as the widest panel has columns.
    pub ones: Vec<f32>,
}

/// The panels that `columns` are cut into.
pub(super) fn panels(isa: Isa, columns: usize) -> Vec<Panel> {
    let mut panels = Vec::new();
    let (mut start, mut place) = (0, 0);
    while start < columns {
        let wanted = (columns - start).div_ceil(isa.width());
        // Of about one width: what is left over would be a narrow one.
        let vectors = wanted.div_ceil(wanted.div_ceil(isa.tile_vectors_max()));
        let width = vectors * isa.width();
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
pub(super) fn width(isa: Isa, panels: &[Panel]) -> usize {
    let end = panels.last();
    end.map_or(0, |it| it.place + it.vectors * isa.width())
}

impl Packed {
    /// Packs a matrix of `depth` rows, or, `transposed`, of as many columns.
    pub fn new(
        isa: Isa,
        [depth, columns]: [usize; 2],
        values: &[f32],
        transposed: bool,
        bias: &[f32],
    ) -> Self {
        let panels = panels(isa, columns);
        let width = width(isa, &panels);
        let mut weights = Lines::zeros(width * depth);
        let mut biases = Vec::with_capacity(width);
        for panel in &panels {
            let filled = panel.vectors * isa.width();
            let rows = weights[panel.place * depth..].chunks_exact_mut(filled);
            for (row, to) in rows.take(depth).enumerate() {
                let to = &mut to[..panel.columns];
                if transposed {
                    for (column, to) in to.iter_mut().enumerate() {
                        *to = values[(panel.start + column) * depth + row];
                    }
                } else {
                    let from = row * columns + panel.start;
                    to.copy_from_slice(&values[from..from + panel.columns]);
                }
            }
            let end = biases.len() + filled;
            biases.extend_from_slice(&bias[panel.start..panel.start + panel.columns]);
            biases.resize(end, 0.0);
        }
        Self {
            ones: vec![1.0; isa.tile_vectors_max() * isa.width()],
            panels,
            depth,
            columns,
            weights,
            bias: biases,
        }
    }

    /// The weights from those of a panel on.
    pub fn weights_from(&self, panel: &Panel) -> &[f32] {
        &self.weights[panel.place * self.depth..]
    }

    /// The matrix as it was given.
    pub fn unpacked(&self, isa: Isa, transposed: bool) -> Vec<f32> {
        let mut values = vec![0.0; self.depth * self.columns];
        for panel in &self.panels {
            let filled = panel.vectors * isa.width();
            let rows = self.weights[panel.place * self.depth..].chunks_exact(filled);
            for (row, held) in rows.take(self.depth).enumerate() {
                for (column, weight) in held[..panel.columns].iter().enumerate() {
                    let column = panel.start + column;
                    let place = match transposed {
                        true => column * self.depth + row,
                        false => row * self.columns + column,
                    };
                    values[place] = *weight;
                }
            }
        }
        values
    }
}
