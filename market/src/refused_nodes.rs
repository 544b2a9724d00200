//! The list of the model nodes that a device is known to refuse although it runs their operators.
//! An ask carries it, so that a buyer can avoid the device. It has a bound, so that commands cannot
//! fill the exchange's memory.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Digests of nodes that a device refuses although it runs their operators, newest first. The
/// devices' own taxonomy computes a digest from a node without its names.
///
/// A clone copies no digests, because every lease carries a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<u64>", into = "Vec<u64>")]
pub struct RefusedNodes(Arc<[u64]>);

/// There are more than [`RefusedNodes::NODES_MAX`] digests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{nodes} refused nodes, at most {} can be listed",
    RefusedNodes::NODES_MAX
)]
pub struct TooManyNodes {
    /// The number of digests.
    nodes: usize,
}

impl RefusedNodes {
    /// The most digests in a list. If an older refusal still holds, the device's buyers will find
    /// it again.
    pub const NODES_MAX: usize = 16;

    /// Returns the digests, newest first.
    pub fn digests(&self) -> &[u64] {
        &self.0
    }

    /// Returns this list with one more digest, as the newest.
    #[must_use]
    pub fn with(&self, digest: u64) -> Self {
        let others = self.0.iter().copied().filter(|known| *known != digest);
        let all = std::iter::once(digest).chain(others);
        Self(all.take(Self::NODES_MAX).collect())
    }
}

impl TryFrom<Vec<u64>> for RefusedNodes {
    type Error = TooManyNodes;

    fn try_from(digests: Vec<u64>) -> Result<Self, TooManyNodes> {
        match digests.len() {
            0..=Self::NODES_MAX => Ok(Self(digests.into())),
            nodes => Err(TooManyNodes { nodes }),
        }
    }
}

impl From<RefusedNodes> for Vec<u64> {
    fn from(refused: RefusedNodes) -> Self {
        refused.0.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_told_each_once_and_no_more_are_read() {
        let all = (0..20).fold(RefusedNodes::default(), |all, digest| all.with(digest));
        assert_eq!(all.digests().len(), RefusedNodes::NODES_MAX);
        assert_eq!(all.with(7).digests()[..3], [7, 19, 18]);
        assert_eq!(all.with(7).digests().len(), RefusedNodes::NODES_MAX);
        assert!(RefusedNodes::try_from(vec![1; 17]).is_err());
    }
}
