//! Packs the weights of a convolution in the order in which its tiles (small blocks of the result)
//! read them. The image engine packs constant weights once, when it compiles the model, and
//! computed weights in each run.
//!
//! The scale and bias of a filter are applied to its sums, so packing only reorders weights.

use std::sync::Arc;

use souk_host::isa::Isa;

use crate::tiled::packed_weights::{PackLayout, WeightPacks};
use crate::tiled::panels::{self, PackedMatrix, Panel};

/// The shape of a convolution's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilterDims {
    /// Filters, one for each output channel.
    pub filters: usize,
    /// Input channels that a filter reads: those of its group.
    pub depth: usize,
    /// Rows of the window.
    pub height: usize,
    /// Columns of the window.
    pub width: usize,
    /// Groups of filters; each group reads its own input channels.
    pub groups: usize,
}

impl FilterDims {
    fn tap_count(&self) -> usize {
        self.height * self.width
    }

    fn is_depthwise(&self) -> bool {
        self.depth == 1 && self.groups == self.filters && self.groups > 1
    }
}

/// Weights as tiles read them.
#[derive(Debug)]
pub(super) enum PackedFilters {
    /// Filters next to each other, in panels as wide as a tile.
    Panels {
        /// A row for each channel of each tap; shared by all convolutions with these weights.
        matrix: Arc<PackedMatrix>,
        scale: Vec<f32>,
        bias: Vec<f32>,
        groups: usize,
        /// Filters of a group; a panel never spans two groups.
        group_filters: usize,
    },
    /// One filter for each channel, tap by tap.
    Depthwise {
        weights: Vec<f32>,
        scale: Vec<f32>,
        bias: Vec<f32>,
    },
}

impl PackedFilters {
    /// Packs `weights`, given filter by filter, with a factor and a summand for each filter's sums;
    /// panels that `packs` has are shared.
    pub fn new(
        isa: Isa,
        dims: FilterDims,
        weights: &[f32],
        factor: impl Fn(usize) -> f64,
        shift: impl Fn(usize) -> f64,
        packs: WeightPacks<'_>,
    ) -> Self {
        let each = dims.depth * dims.tap_count();
        let weight = |filter: usize, channel: usize, tap: usize| {
            weights[filter * each + channel * dims.tap_count() + tap]
        };
        let (factor, shift) = (|it| factor(it) as f32, |it| shift(it) as f32);
        if dims.is_depthwise() {
            let taps = 0..dims.tap_count();
            let row = |tap| (0..dims.filters).map(move |filter| (filter, tap));
            let places = taps.flat_map(row);
            return Self::Depthwise {
                weights: places.map(|(filter, tap)| weight(filter, 0, tap)).collect(),
                scale: (0..dims.filters).map(factor).collect(),
                bias: (0..dims.filters).map(shift).collect(),
            };
        }
        let fill = |panel: &Panel, row: usize, to: &mut [f32]| {
            let (tap, channel) = (row / dims.depth, row % dims.depth);
            for (column, to) in to.iter_mut().enumerate() {
                *to = weight(panel.start + column, channel, tap);
            }
        };
        let layout = PackLayout::Filters {
            groups: dims.groups,
        };
        let pack = || PackedMatrix::new(isa, filter_panels(isa, dims), each, fill);
        let matrix = packs.get_or_pack(layout, pack);
        Self::Panels {
            scale: panels::by_column(isa, &matrix.panels, factor),
            bias: panels::by_column(isa, &matrix.panels, shift),
            matrix,
            groups: dims.groups,
            group_filters: dims.filters / dims.groups,
        }
    }

    /// Returns the weights filter by filter, in the layout of the model.
    pub fn unpack_filters(&self, isa: Isa, dims: FilterDims) -> Vec<f32> {
        let (taps, each) = (dims.tap_count(), dims.depth * dims.tap_count());
        let mut given = vec![0.0; dims.filters * each];
        match self {
            Self::Depthwise { weights, .. } => {
                for (place, weight) in weights.iter().enumerate() {
                    let (tap, filter) = (place / dims.filters, place % dims.filters);
                    given[filter * each + tap] = *weight;
                }
            }
            Self::Panels { matrix, .. } => matrix.for_each_weight(isa, |row, filter, weight| {
                let (tap, channel) = (row / dims.depth, row % dims.depth);
                given[filter * each + channel * taps + tap] = weight;
            }),
        }
        given
    }
}

/// The panels that filters are cut into, group by group.
fn filter_panels(isa: Isa, dims: FilterDims) -> Vec<Panel> {
    let each = dims.filters / dims.groups;
    let of_one = panels::split_panels(isa, each);
    let width = panels::panels_width(isa, &of_one);
    let group = |group: usize| {
        of_one.iter().map(move |panel| Panel {
            start: group * each + panel.start,
            place: group * width + panel.place,
            ..*panel
        })
    };
    (0..dims.groups).flat_map(group).collect()
}
