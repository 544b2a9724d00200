//! The nodes of model graphs that a device refuses although it runs their operators, for example
//! because of an unusual attribute. An ask lists their digests, so that a buyer of such a graph can
//! choose another device. The list is bounded, so that commands cannot fill the exchange's memory.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Digests of graph nodes that a device refuses although it runs their operators, newest first. A
/// digest ignores the names of the node and its values.
///
/// Cheap to clone (a shared `Arc`): every lease carries a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<u64>", into = "Vec<u64>")]
pub struct RefusedGraphNodes(Arc<[u64]>);

/// There are more than [`RefusedGraphNodes::NODES_MAX`] digests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{nodes} refused nodes; the list holds at most {}",
    RefusedGraphNodes::NODES_MAX
)]
pub struct TooManyNodes {
    /// The number of digests.
    nodes: usize,
}

impl RefusedGraphNodes {
    /// The maximum number of digests in a list. A new digest drops the oldest. If a dropped refusal
    /// still applies, the next buyer reports it again.
    pub const NODES_MAX: usize = 16;

    /// Returns the digests, newest first.
    pub fn digests(&self) -> &[u64] {
        &self.0
    }

    /// Returns this list with `digest` as its newest.
    #[must_use]
    pub fn with(&self, digest: u64) -> Self {
        let others = self.0.iter().copied().filter(|other| *other != digest);
        let all = std::iter::once(digest).chain(others);
        Self(all.take(Self::NODES_MAX).collect())
    }
}

impl TryFrom<Vec<u64>> for RefusedGraphNodes {
    type Error = TooManyNodes;

    fn try_from(digests: Vec<u64>) -> Result<Self, TooManyNodes> {
        match digests.len() {
            0..=Self::NODES_MAX => Ok(Self(digests.into())),
            nodes => Err(TooManyNodes { nodes }),
        }
    }
}

impl From<RefusedGraphNodes> for Vec<u64> {
    fn from(refused: RefusedGraphNodes) -> Self {
        refused.0.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_keeps_the_newest_digests_each_once() {
        let all = (0..20).fold(RefusedGraphNodes::default(), |list, digest| {
            list.with(digest)
        });
        assert_eq!(all.digests().len(), RefusedGraphNodes::NODES_MAX);
        assert_eq!(all.with(7).digests()[..3], [7, 19, 18]);
        assert_eq!(all.with(7).digests().len(), RefusedGraphNodes::NODES_MAX);
        assert!(RefusedGraphNodes::try_from(vec![1; 17]).is_err());
    }
}
