//! Shares packed weights within a program: a weight that several nodes read is packed once for each
//! layout. The image and sequence engines look here before they pack a weight.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::panels::PackedMatrix;

/// The layout of a packed weight: which element is at which row and column of the panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PackLayout {
    /// A matrix as it stands, or transposed.
    Matrix,
    Transposed,
    /// Filters of a convolution with this many groups.
    Filters {
        groups: usize,
    },
}

/// The weights packed so far while a program is compiled. A name identifies a content, because
/// weights of equal content were merged under one name before.
#[derive(Default)]
pub(crate) struct PackedWeights(BTreeMap<(String, PackLayout), Arc<PackedMatrix>>);

/// The place of one weight among those packed.
pub(crate) struct WeightPacks<'a> {
    packed: &'a mut PackedWeights,
    name: &'a str,
}

impl PackedWeights {
    /// The place of the weight of this name.
    pub fn for_weight<'a>(&'a mut self, name: &'a str) -> WeightPacks<'a> {
        WeightPacks { packed: self, name }
    }
}

impl WeightPacks<'_> {
    /// The weight in a layout: packed before, or now. All callers must pack alike, because they
    /// share the result.
    pub fn get_or_pack(
        self,
        layout: PackLayout,
        pack: impl FnOnce() -> PackedMatrix,
    ) -> Arc<PackedMatrix> {
        let entry = self.packed.0.entry((self.name.to_owned(), layout));
        entry.or_insert_with(|| Arc::new(pack())).clone()
    }
}
