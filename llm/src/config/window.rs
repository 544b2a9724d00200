//! Layers whose tokens see no further back than a window.

use super::Rotary;

/// A window, and which layers have it.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Positions that a token sees, its own among them.
    pub positions: usize,
    /// The layers that have it.
    pub layers: LocalLayers,
    /// How positions are told in them, where it is another way than in the others.
    pub rotary: Option<Rotary>,
}

/// Which layers are local.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalLayers {
    /// From this one on.
    From(usize),
    /// All but each last of so many.
    AllButLastOf(usize),
    /// Those of which it is said.
    Listed(Vec<bool>),
}

impl LocalLayers {
    /// Whether a layer is.
    #[must_use]
    pub fn has(&self, layer: usize) -> bool {
        match self {
            Self::From(first) => layer >= *first,
            Self::AllButLastOf(count) => !(layer + 1).is_multiple_of(*count),
            Self::Listed(listed) => listed.get(layer) == Some(&true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pattern_has_the_layers_that_it_says() {
        let of = |layers: &LocalLayers| (0..6).filter(|at| layers.has(*at)).collect::<Vec<_>>();
        assert_eq!(of(&LocalLayers::From(4)), [4, 5]);
        assert_eq!(of(&LocalLayers::AllButLastOf(2)), [0, 2, 4]);
        assert_eq!(of(&LocalLayers::AllButLastOf(6)), [0, 1, 2, 3, 4]);
        assert_eq!(of(&LocalLayers::AllButLastOf(1)), [0usize; 0]);
        assert_eq!(of(&LocalLayers::AllButLastOf(0)), [0, 1, 2, 3, 4, 5]);
        assert_eq!(of(&LocalLayers::Listed(vec![false, true])), [1]);
    }
}
