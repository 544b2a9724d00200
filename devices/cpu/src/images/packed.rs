//! A convolution's weights in the order its tiles read them.
//!
//! The weights are only moved: what they are multiplied by is applied to the sums. So they can be
//! put back where they were, and nobody has to keep them twice.

use souk_host::isa::Isa;

use super::super::lines::Lines;

/// Weights of a convolution: outputs, inputs to each group, height and width of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilterDims {
    pub filters: usize,
    pub depth: usize,
    pub height: usize,
    pub width: usize,
    pub groups: usize,
}

/// Weights in panels.
#[derive(Debug)]
pub(super) enum Packed {
    /// Filters next to each other, in panels as wide as a tile.
    Panels {
        panels: Vec<Panel>,
        weights: Lines,
        scale: Vec<f32>,
        bias: Vec<f32>,
    },
    /// One filter for each channel: taps one after another.
    Depthwise {
        weights: Vec<f32>,
        scale: Vec<f32>,
        bias: Vec<f32>,
    },
}

/// Filters of one group that a tile computes at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Panel {
    pub group: usize,
    /// The first filter.
    pub filter: usize,
    /// Filters; the vectors may be wider.
    pub columns: usize,
    pub vectors: usize,
    /// Where its weights begin, and its scales and biases.
    pub weights: usize,
    pub bias: usize,
}

impl FilterDims {
    fn taps(&self) -> usize {
        self.height * self.width
    }

    fn is_depthwise(&self) -> bool {
        self.depth == 1 && self.groups == self.filters && self.groups > 1
    }
}

impl Packed {
    /// Packs `weights`, given filter by filter, with a factor and a summand for each filter's sums.
    pub fn new(
        isa: Isa,
        dims: FilterDims,
        weights: &[f32],
        factor: impl Fn(usize) -> f64,
        shift: impl Fn(usize) -> f64,
    ) -> Self {
        let each = dims.depth * dims.taps();
        let weight = |filter: usize, channel: usize, tap: usize| {
            weights[filter * each + channel * dims.taps() + tap]
        };
        if dims.is_depthwise() {
            let taps = 0..dims.taps();
            let row = |tap| (0..dims.filters).map(move |filter| (filter, tap));
            let places = taps.flat_map(row);
            return Self::Depthwise {
                weights: places.map(|(filter, tap)| weight(filter, 0, tap)).collect(),
                scale: (0..dims.filters).map(|it| factor(it) as f32).collect(),
                bias: (0..dims.filters).map(|it| shift(it) as f32).collect(),
            };
        }
        let panels = panels(isa, dims);
        let floats = |panel: &Panel| panel.vectors * isa.width();
        let total: usize = panels.iter().map(floats).sum();
        let mut packed = Lines::zeros(total * each);
        let (mut scale, mut bias) = (Vec::with_capacity(total), Vec::with_capacity(total));
        for panel in &panels {
            let filter = |column: usize| (column < panel.columns).then(|| panel.filter + column);
            let columns = floats(panel);
            let rows = packed[panel.weights..].chunks_exact_mut(columns);
            for (at, row) in rows.take(each).enumerate() {
                let (tap, channel) = (at / dims.depth, at % dims.depth);
                for (column, to) in row[..panel.columns].iter_mut().enumerate() {
                    *to = weight(panel.filter + column, channel, tap);
                }
            }
            scale.extend((0..columns).map(|it| filter(it).map_or(0.0, |it| factor(it) as f32)));
            bias.extend((0..columns).map(|it| filter(it).map_or(0.0, |it| shift(it) as f32)));
        }
        Self::Panels {
            panels,
            weights: packed,
            scale,
            bias,
        }
    }

    /// The weights filter by filter, as they were given.
    pub fn unpacked(&self, isa: Isa, dims: FilterDims) -> Vec<f32> {
        let (taps, each) = (dims.taps(), dims.depth * dims.taps());
        let mut given = vec![0.0; dims.filters * each];
        match self {
            Self::Depthwise { weights, .. } => {
                for (place, weight) in weights.iter().enumerate() {
                    let (tap, filter) = (place / dims.filters, place % dims.filters);
                    given[filter * each + tap] = *weight;
                }
            }
            Self::Panels {
                panels, weights, ..
            } => {
                for panel in panels {
                    let columns = panel.vectors * isa.width();
                    let rows = weights[panel.weights..].chunks_exact(columns);
                    for (row, filters) in rows.take(each).enumerate() {
                        let (tap, channel) = (row / dims.depth, row % dims.depth);
                        for (column, weight) in filters[..panel.columns].iter().enumerate() {
                            let filter = panel.filter + column;
                            given[filter * each + channel * taps + tap] = *weight;
                        }
                    }
                }
            }
        }
        given
    }
}

fn panels(isa: Isa, dims: FilterDims) -> Vec<Panel> {
    let each = dims.filters / dims.groups;
    let mut panels = Vec::new();
    let (mut weights, mut bias) = (0, 0);
    for group in 0..dims.groups {
        let mut done = 0;
        while done < each {
            let wanted = (each - done).div_ceil(isa.width());
            // Of about one width: what is left over would be a narrow one.
            let vectors = wanted.div_ceil(wanted.div_ceil(isa.tile_vectors_max()));
            let columns = (each - done).min(vectors * isa.width());
            panels.push(Panel {
                group,
                filter: group * each + done,
                columns,
                vectors,
                weights,
                bias,
            });
            weights += dims.depth * dims.taps() * vectors * isa.width();
            bias += vectors * isa.width();
            done += columns;
        }
    }
    panels
}
