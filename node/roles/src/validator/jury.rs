//! The core of a validator's duty as a juror: which dispute it judges next, and when it gives its
//! verdict to the log.
//!
//! It judges one dispute at a time, the oldest first, because each costs it memory and seconds of
//! computing. What it could not judge (the accuser serves nothing, the work is too large, or a run
//! failed) it tries again after a pause, until the exchange closes the dispute: it never guesses. A
//! verdict that did not reach the log is given again.

use std::collections::BTreeMap;

use souk_market::{AccountKey, Dispute, DisputeId, Verdict};

use crate::clock::Micros;

/// The pause before it looks at a dispute again that it could not judge: the accuser may come back.
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
    /// The findings about open disputes.
    found: BTreeMap<DisputeId, Verdict>,
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
        }
    }

    fn on_judged(&mut self, now: Micros, id: DisputeId, found: Option<Verdict>) {
        assert_eq!(self.judging, Some(id), "one dispute is judged at a time");
        self.judging = None;
        match found {
            Some(verdict) => drop(self.found.insert(id, verdict)),
            None => drop(self.retries.insert(id, now.plus(RETRY))),
        }
    }

    fn on_disputes(&mut self, now: Micros, disputes: Vec<Dispute>) -> Vec<JuryEffect> {
        let awaited = |dispute: &Dispute| dispute.is_open() && !dispute.has_judged(self.account);
        let open: Vec<Dispute> = disputes.into_iter().filter(awaited).collect();
        let is_open = |id: &DisputeId| open.iter().any(|dispute| dispute.id == *id);
        self.found.retain(|id, _| is_open(id));
        self.retries.retain(|id, _| is_open(id));
        // The log does not show these verdicts yet: they may have been lost with a leader.
        let lost = self.found.iter();
        let mut effects: Vec<JuryEffect> = lost
            .map(|(id, verdict)| JuryEffect::Submit(*id, *verdict))
            .collect();
        if self.judging.is_some() {
            return effects;
        }
        let is_due = |dispute: &&Dispute| {
            let retry = self.retries.get(&dispute.id);
            !self.found.contains_key(&dispute.id) && retry.is_none_or(|at| *at <= now)
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
