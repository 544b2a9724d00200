//! What a buyer knows of the length of a lease beside its terms.

use serde::{Deserialize, Serialize};
use souk_market::Millis;

use crate::clock::Micros;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeaseSpan {
    /// When it was bought, if this life did.
    pub sold_at: Option<Micros>,
    /// Until when it was asked to be made longer: it can last so long, whether an answer came or
    /// not.
    pub asked_until: Millis,
}

impl LeaseSpan {
    /// For how long this life has had it.
    pub(super) fn held_at(&self, tick: Micros) -> Millis {
        let held = self.sold_at.map(|sold_at| tick.since(sold_at));
        held.map_or(Millis(0), |held| Millis(held.0.div_ceil(1_000)))
    }
}
