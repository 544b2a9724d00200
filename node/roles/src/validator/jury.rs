//! The core of a validator's duty as a juror: which dispute it judges next, and when it gives its
//! verdict to the log.
//!
//! The juror judges one dispute at a time, the oldest first, because each costs memory and seconds
//! of computing. If it cannot judge one (the accuser serves nothing, the work is too large, or a
//! run failed), it tries again after a pause, until the exchange closes the dispute: it never
//! guesses. It also repeats a verdict that did not reach the log, but not one that the exchange
//! refuses.

use std::collections::{BTreeMap, BTreeSet};

use souk_market::{AccountKey, Dispute, DisputeId, Verdict};

use crate::clock::Micros;

/// The pause before it looks at a dispute again that it could not judge, because the accuser may
/// come back, and before it gives a verdict again that the log does not show.
const RETRY: Micros = Micros::from_seconds(5);

/// The most bytes of a dispute's graph and inputs together: every validator fetches them.
pub const EVIDENCE_BYTES_MAX: u64 = 64 << 20;

/// The most floating-point operations of all runs of a dispute. It is some seconds of one core, so
/// that slow validators are done within their minute too; only the accuser's command checks it.
pub const EVIDENCE_WORK_MAX: u64 = 20_000_000_000;

/// What happens around the juror.
#[derive(Clone, Debug)]
pub enum JuryEvent {
    /// The disputes that the exchange knows now.
    Seen(Vec<Dispute>),
    /// The work of a dispute was computed; none if that was not possible.
    Judged(DisputeId, Option<Verdict>),
    /// The exchange refuses this validator's verdict.
    Refused(DisputeId),
}

/// What the juror's shell must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JuryEffect {
    /// Fetch the evidence and compute the work; [`JuryEvent::Judged`] must follow.
    Judge(Box<Dispute>),
    /// Sign a verdict and propose it to the log.
    Submit(DisputeId, Verdict),
}

/// The state of a juror; see the module.
#[derive(Clone, Debug)]
pub struct Juror {
    account: AccountKey,
    /// The dispute whose work is computed now.
    judging: Option<DisputeId>,
    /// The findings about open disputes, and when each was last given to the log.
    found: BTreeMap<DisputeId, (Verdict, Micros)>,
    /// The open disputes in which the exchange does not count this validator.
    refused: BTreeSet<DisputeId>,
    /// When to look again at disputes that could not be judged.
    retries: BTreeMap<DisputeId, Micros>,
}

impl Juror {
    /// Creates the juror of a validator's account.
    #[must_use]
    pub fn new(account: AccountKey) -> Juror {
        Juror {
            account,
            judging: None,
            found: BTreeMap::new(),
            refused: BTreeSet::new(),
            retries: BTreeMap::new(),
        }
    }

    /// Takes an event at a moment of the validator's own clock, and returns the effects in order.
    pub fn apply(&mut self, now: Micros, event: JuryEvent) -> Vec<JuryEffect> {
        match event {
            JuryEvent::Seen(disputes) => self.on_disputes(now, disputes),
            JuryEvent::Judged(id, found) => {
                self.on_judged(now, id, found);
                let submit = found.map(|verdict| JuryEffect::Submit(id, verdict));
                submit.into_iter().collect()
            }
            JuryEvent::Refused(id) => {
                self.found.remove(&id);
                self.refused.insert(id);
                Vec::new()
            }
        }
    }

    fn on_judged(&mut self, now: Micros, id: DisputeId, found: Option<Verdict>) {
        assert_eq!(self.judging, Some(id), "one dispute is judged at a time");
        self.judging = None;
        match found {
            Some(verdict) => drop(self.found.insert(id, (verdict, now))),
            None => drop(self.retries.insert(id, now.plus(RETRY))),
        }
    }

    fn on_disputes(&mut self, now: Micros, disputes: Vec<Dispute>) -> Vec<JuryEffect> {
        let awaited = |dispute: &Dispute| dispute.is_open() && !dispute.has_judged(self.account);
        let open: Vec<Dispute> = disputes.into_iter().filter(awaited).collect();
        let is_open = |id: &DisputeId| open.iter().any(|dispute| dispute.id == *id);
        self.found.retain(|id, _| is_open(id));
        self.refused.retain(is_open);
        self.retries.retain(|id, _| is_open(id));
        // The log does not show these verdicts yet: they may have been lost with a leader.
        let mut effects = Vec::new();
        for (id, (verdict, given)) in &mut self.found {
            if given.plus(RETRY) <= now {
                *given = now;
                effects.push(JuryEffect::Submit(*id, *verdict));
            }
        }
        if self.judging.is_some() {
            return effects;
        }
        let is_due = |dispute: &&Dispute| {
            let retry = self.retries.get(&dispute.id);
            let is_known =
                self.found.contains_key(&dispute.id) || self.refused.contains(&dispute.id);
            !is_known && retry.is_none_or(|at| *at <= now)
        };
        // One that was tried before waits behind those that were not.
        let waited = |dispute: &&Dispute| (self.retries.contains_key(&dispute.id), dispute.id);
        let next = open.iter().filter(is_due).min_by_key(waited).cloned();
        if let Some(next) = next {
            self.judging = Some(next.id);
            effects.push(JuryEffect::Judge(Box::new(next)));
        }
        effects
    }
}

#[cfg(test)]
mod tests;
