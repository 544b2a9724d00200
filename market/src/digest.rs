//! The running digest: BLAKE3 chained over all that went in and came out.

use serde::{Deserialize, Serialize};

use crate::ids::{Digest, canonical};

/// The chain so far. Reading it costs nothing, so replicas compare it as often as they like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chain(Digest);

impl Chain {
    pub(crate) fn head(&self) -> Digest {
        self.0
    }

    pub(crate) fn extend(&mut self, link: &impl Serialize) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0.0);
        hasher.update(&canonical(link));
        self.0 = Digest(*hasher.finalize().as_bytes());
    }
}
