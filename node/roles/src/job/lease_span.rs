//! How long one lease of a job can last beyond its written terms: when the buyer bought it, and
//! until when it asked for an extension. `extending` reads and updates it. A requested extension
//! counts even without an answer, because the market may have granted it.

use serde::{Deserialize, Serialize};
use souk_market::Millis;

use crate::clock::Micros;

/// The times that bound one lease, besides its terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeaseSpan {
    /// When the buyer bought it, if this process did.
    pub sold_at: Option<Micros>,
    /// The latest end that the buyer asked the market for: the lease can last so long, whether an
    /// answer came or not.
    pub asked_until: Millis,
}

impl LeaseSpan {
    /// Returns for how long this process has had the lease.
    pub(super) fn held_at(&self, tick: Micros) -> Millis {
        let held = self.sold_at.map(|sold_at| tick.since(sold_at));
        held.map_or(Millis(0), |held| Millis(held.0.div_ceil(1_000)))
    }
}
