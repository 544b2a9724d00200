//! Describes the layers of a decoder with sliding-window attention, in which each token sees only a
//! limited number of earlier positions.

use super::Rotary;

/// A window, and the *local* layers: those that use it. The other layers see all positions.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Positions that a token sees, including its own.
    pub positions: usize,
    /// The local layers.
    pub layers: LocalLayers,
    /// The rotary encoding in these layers, if it differs from the other layers'.
    pub rotary: Option<Rotary>,
}

/// The set of local layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalLayers {
    /// All layers from this one on.
    From(usize),
    /// All but the last of each group of this size.
    AllButLastOfEach(usize),
    /// One flag for each layer; a layer beyond the list is not local.
    Listed(Vec<bool>),
}

impl LocalLayers {
    /// Returns whether a layer is local.
    #[must_use]
    pub fn is_local(&self, layer: usize) -> bool {
        match self {
            Self::From(first) => layer >= *first,
            Self::AllButLastOfEach(count) => !(layer + 1).is_multiple_of(*count),
            Self::Listed(listed) => listed.get(layer) == Some(&true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pattern_has_the_layers_that_it_says() {
        let of =
            |layers: &LocalLayers| (0..6).filter(|at| layers.is_local(*at)).collect::<Vec<_>>();
        assert_eq!(of(&LocalLayers::From(4)), [4, 5]);
        assert_eq!(of(&LocalLayers::AllButLastOfEach(2)), [0, 2, 4]);
        assert_eq!(of(&LocalLayers::AllButLastOfEach(6)), [0, 1, 2, 3, 4]);
        assert_eq!(of(&LocalLayers::AllButLastOfEach(1)), [0usize; 0]);
        assert_eq!(of(&LocalLayers::AllButLastOfEach(0)), [0, 1, 2, 3, 4, 5]);
        assert_eq!(of(&LocalLayers::Listed(vec![false, true])), [1]);
    }
}
