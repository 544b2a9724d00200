//! Decides which steps of a training run another provider runs again, to find providers that lie,
//! and what follows from its answer.
//!
//! A provider can answer with states that look right and are not: it left steps out, or computed
//! something else. So a share of the *segments* (the steps from one kept states to the next) is run
//! again by another provider. A secret of the buyer and the head of the chain after the segment (a
//! hash over all steps and states so far) determine which segments, so no provider can know it
//! before it has answered. If both results are the same, the segment is confirmed. If not, a third
//! provider decides: two that agree convict the others.
//!
//! A convicted provider may also have lied in segments that were not run again. So the run goes
//! back to the states before the first step that it made (its *anchor*), and nothing that it made
//! is in the result.

use souk_market::{AccountKey, Credits, Permille};

use super::running::LeaseRun;
use super::*;

/// How many audits can wait for the end of a lease; with this many, the lease ends. Until they are
/// done, their states take room on the buyer's disk, and a liar can continue.
const DUE_AUDITS_MAX: usize = 4;

/// How many opinions on an audited step the money is kept back for: a second one, and a third one
/// or a second provider that asks up to twice the price.
const OPINIONS_KEPT_BACK: u64 = 2;

/// The verdict of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditVerdict {
    /// Another provider made the same.
    Confirmed {
        /// The provider that ran the steps again.
        by: AccountKey,
    },
    /// Another provider made something else, and a third one must decide.
    Contradicted {
        /// The provider that ran the steps again.
        by: AccountKey,
    },
    /// No other provider could run the steps again.
    Unaudited,
    /// A provider lied.
    Convicted {
        /// The liar, which either made the steps or ran them again.
        provider: AccountKey,
        /// The position (number of steps done) from which the run continues.
        back_to: u64,
    },
}

impl TrainCore {
    /// Returns whether so many audits wait that the lease must end.
    pub(super) fn has_many_audits(&self) -> bool {
        self.past.due_audits.len() >= DUE_AUDITS_MAX
    }

    /// Returns how much of the rest of the budget a lease must leave for its audits. If the lease
    /// costs all that it may, the reserve pays for two opinions, at the price of its steps, on the
    /// share of the steps that is run again, and on at least one segment. The audits follow the
    /// lease, so the unused part of the reserve is available to the next one.
    pub(super) fn audit_reserve(&self, left: Credits, steps: u64, evaluations: u64) -> Credits {
        let share = self.past.audits.map_or(Permille::default(), |it| it.share);
        if share.0 == 0 {
            return Credits::ZERO;
        }
        let drawn = steps.saturating_mul(u64::from(share.0)).div_ceil(1_000);
        let audited = drawn.max(self.spec.keep_steps.min(steps));
        let batches = self.spec.evaluation.map_or(0, |it| it.requests);
        let requests = steps.saturating_add(evaluations.saturating_mul(batches));
        let opinions = u128::from(audited) * u128::from(OPINIONS_KEPT_BACK);
        let all = (u128::from(requests) + opinions).max(1);
        let reserve = (u128::from(left.0) * opinions).div_ceil(all);
        Credits(u64::try_from(reserve).unwrap_or(u64::MAX))
    }

    /// Returns how a run ends whose budget does not pay its next audit. The audit stays due, so a
    /// later life with more money makes it.
    pub(super) fn unpaid_audit_end(&self, segment: &Segment) -> End {
        let step = segment.from.position;
        match self.claims.is_empty() {
            true => End::AuditUnpaid { step },
            false => End::Disputed {
                step,
                short_of: Shortage::Money,
            },
        }
    }

    /// Returns the lease that runs the steps of the next audit again.
    pub(super) fn audit_wish(&self) -> Option<LeaseWish> {
        let segment = self.past.due_audits.first()?;
        let mut excluded = self.excluded_providers();
        excluded.push(segment.by);
        excluded.extend(self.claims.iter().map(|(provider, _)| *provider));
        excluded.extend(&self.unheard);
        excluded.sort_unstable();
        excluded.dedup();
        let claims = self.claims.iter().map(|(_, claim)| claim.clone());
        let position = segment.from.position;
        Some(LeaseWish {
            from: segment.from.clone(),
            first: RunRequest::Step(Step::of_audit(position, segment.end())),
            steps: segment.step_count(),
            evaluations: 0,
            request_time: self.request_time,
            budget: self.budget_left(),
            kept_back: Credits::ZERO,
            excluded,
            claims: [segment.claim.clone()].into_iter().chain(claims).collect(),
        })
    }

    /// Takes the answer to a step of an audit.
    pub(super) fn on_audit_answered(&mut self, answer: StepAnswer, keep: bool) {
        let Phase::Running(lease) = &mut self.phase else {
            unreachable!("its answer came");
        };
        match answer {
            StepAnswer::Malformed | StepAnswer::Abandoned => self.on_malformed(),
            StepAnswer::Done { states: None, .. } if keep => self.on_malformed(),
            StepAnswer::NotFinite { .. } => {
                lease.is_deaf = true;
                lease.claim = Some(SegmentClaim {
                    losses: Vec::new(),
                    states: Vec::new(),
                });
                self.actions.push(Action::CancelLease);
            }
            StepAnswer::Done { loss, states } => {
                lease.answered += 1;
                lease.unkept.push(loss);
                if let Some(states) = states.filter(|_| keep) {
                    let losses = lease.unkept.clone();
                    lease.claim = Some(SegmentClaim { losses, states });
                }
            }
        }
    }

    /// Judges the result of an audit's lease.
    pub(super) fn on_audit_over(&mut self, lease: &LeaseRun) {
        let provider = lease.provider;
        let segment = self.past.due_audits.first().cloned();
        let segment = segment.expect("an audit stays due until it is judged");
        let has_spoken =
            segment.by == provider || self.claims.iter().any(|(it, _)| *it == provider);
        // The market can sell another device than the plan names; nobody confirms itself. And two
        // that do nothing would agree.
        let is_old = |claim: &SegmentClaim| {
            let seen = self.past.seen.get(&states_root(&claim.states));
            *claim != segment.claim && seen.is_some_and(|at| *at <= segment.from.position)
        };
        let claim = lease.claim.clone().filter(|_| !has_spoken);
        let Some(claim) = claim.filter(|it| !is_old(it)) else {
            // A lease that was bought too short says nothing about its provider. Any other without
            // a claim leaves the audit to somebody else, or one confederate could void them all.
            if lease.claim.is_some() || !lease.is_time_short {
                self.unheard.push(provider);
            }
            self.failed_audits += 1;
            if self.failed_audits >= FRUITLESS_LEASES_MAX {
                self.give_up_audit(&segment);
            }
            return;
        };
        let others = std::mem::take(&mut self.claims);
        let is_right = claim == segment.claim;
        if !is_right && !others.iter().any(|(_, it)| *it == claim) {
            self.claims = others;
            self.claims.push((provider, claim));
            self.failed_audits = 0;
            return self.show_audit(&segment, AuditVerdict::Contradicted { by: provider });
        }
        self.failed_audits = 0;
        self.unheard.clear();
        let wrong = others.into_iter().filter(|(_, it)| *it != claim);
        let mut liars: Vec<AccountKey> = wrong.map(|(it, _)| it).collect();
        if !is_right {
            liars.push(segment.by);
        }
        let before = self.past.kept.clone();
        self.record_fact(Fact::Judged {
            from: segment.from.position,
            by: provider,
            is_confirmed: is_right,
            liars: liars.clone(),
        });
        if self.past.kept != before {
            self.is_rewound = true;
            // What was said of the liar's states must not blame those who computed from them.
            self.doubt = None;
        }
        if is_right {
            self.show_audit(&segment, AuditVerdict::Confirmed { by: provider });
        }
        let back_to = self.past.kept.position;
        for provider in liars {
            self.show_audit(&segment, AuditVerdict::Convicted { provider, back_to });
        }
    }

    /// Goes on without an audit for which there is no other provider. Returns how the run ends
    /// instead, if providers contradict each other.
    pub(super) fn give_up_audit(&mut self, segment: &Segment) {
        self.failed_audits = 0;
        self.unheard.clear();
        let step = segment.from.position;
        if !self.claims.is_empty() {
            self.is_disputed = true;
            return;
        }
        self.record_fact(Fact::Unaudited { from: step });
        self.show_audit(segment, AuditVerdict::Unaudited);
    }

    fn show_audit(&mut self, segment: &Segment, verdict: AuditVerdict) {
        self.actions.push(Action::ShowAudit {
            from: segment.from.position,
            end: segment.end(),
            verdict,
        });
    }
}
