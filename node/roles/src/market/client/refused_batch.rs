//! Collects what validators state about a batch that they refused for its nonce or its expiry, so
//! that the client knows whether it can safely sign the commands anew.
//!
//! A validator shows in two steps that the market never carried the batch out and never will: it
//! refuses the batch, and then shows the account, which has not applied it. Both are final: a nonce
//! stays too old, a batch stays expired, and an account remembers the latest expiry of its batches.
//! If so many validators show this that at least one of them is honest, it is true.

use std::collections::BTreeMap;

use serde::Serialize;
use souk_market::{Account, Batch, Millis, Nonce, Refusal};

use super::ValidatorIndex;
use super::nonces::CLOCK_AHEAD_MAX;
use crate::clock::Micros;

/// What validators stated about a batch that they refused for its nonce or its expiry.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct RefusedBatch {
    /// The refusal of the validator that the client now asks for the account.
    pub(super) asking: Option<Refusal>,
    /// Whether each validator showed that the market never applied the batch, and never will.
    pub(super) shown: BTreeMap<ValidatorIndex, bool>,
    /// The latest start of the account's window of nonces that a validator stated.
    pub(super) oldest: Option<Nonce>,
    /// The earliest time past the expiry that a validator stated for the log.
    pub(super) expired_at: Option<Millis>,
}

impl RefusedBatch {
    /// Forgets the question for the account: the batch is put again.
    pub(super) fn stop_asking(&mut self) {
        self.asking = None;
    }

    /// Records the facts of a refusal.
    pub(super) fn record_refusal(&mut self, refusal: &Refusal) {
        match *refusal {
            Refusal::NonceOld { oldest, .. } => self.oldest = self.oldest.max(Some(oldest)),
            Refusal::BatchExpired { now, .. } => {
                self.expired_at = Some(self.expired_at.map_or(now, |known| known.min(now)));
            }
            _ => {}
        }
    }

    /// Returns how many validators showed that the market never applied the batch.
    pub(super) fn count_shown(&self) -> usize {
        self.shown.values().filter(|is_shown| **is_shown).count()
    }
}

/// Returns whether a refusal can be true of the batch. No clock of the account was as far ahead as
/// a liar can state.
pub(super) fn is_consistent(batch: &Batch, refusal: &Refusal, own: Micros) -> bool {
    match *refusal {
        Refusal::NonceOld { oldest, .. } => {
            let ahead_max = Nonce(own.0.saturating_add(CLOCK_AHEAD_MAX.0));
            batch.nonce < oldest && oldest <= ahead_max
        }
        Refusal::BatchExpired { now, .. } => batch.expires <= now,
        _ => false,
    }
}

/// Returns whether the account that a validator showed after its refusal never applied the batch.
pub(super) fn is_never_applied(
    batch: &Batch,
    refusal: &Refusal,
    account: Option<&Account>,
) -> bool {
    match account {
        Some(account) => account.key == batch.account && account.quiet_at < batch.expires,
        // The market has no account, so it refuses every nonce of it for another reason.
        None => matches!(refusal, Refusal::BatchExpired { .. }),
    }
}
