//! Audits of a run: which steps another provider runs again, and what follows from its answer.
//!
//! A provider can answer with states that look right and are not: it left steps out, or computed
//! something else. So a share of the *segments* (the steps from one kept states to the next) is run
//! again by another provider. Which ones follows from a secret of the buyer and the head of the
//! chain after the segment, so nobody knows before the answer is given. If both make the same, the
//! segment is confirmed. If not, a third provider decides: two that agree convict the others.
//!
//! A convicted provider may also have lied in segments that nobody ran again. So the run goes back
//! to the states before the first step that it made (its *anchor*), and nothing that it made is in
//! the result.

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, Permille};
use souk_memory::ContentId;

use super::facts::{Checkpoint, FactError, LossBits, Past, States, states_root};
use super::running::LeaseRun;
use super::*;

/// How many audits can wait for the end of a lease. With so many, the lease ends: until they are
/// done, their states are on the buyer's disk, and a liar goes on.
const DUE_AUDITS_MAX: usize = 4;

/// How a run audits its steps, which has no effect on its result if nobody lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditSpec {
    /// The share of the segments that are run again.
    pub share: Permille,
    /// What determines which ones. Nobody but the buyer may know it.
    pub secret: [u8; 32],
}

/// The steps from one kept states to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Where they begin.
    pub from: Checkpoint,
    /// The provider that made them.
    pub by: AccountKey,
    /// What it made.
    pub claim: SegmentClaim,
}

/// What a provider says that steps make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentClaim {
    /// The loss of each of them.
    pub losses: Vec<LossBits>,
    /// The states after the last of them. Without losses and states, the claim is that a number is
    /// infinite or no number.
    pub states: States,
}

/// Where a provider began to make steps of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// The provider.
    pub provider: AccountKey,
    /// The states before its first step.
    pub from: Checkpoint,
    /// The head of the chain there.
    pub link: ContentId,
}

/// What audits found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditTally {
    /// The steps that another provider made too.
    pub confirmed_steps: u64,
    /// The steps that were to be run again, for which there was no other provider.
    pub unaudited_steps: u64,
    /// The providers that lied.
    pub convicted: Vec<AccountKey>,
}

/// What an audit led to.
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
        /// The number of steps after which the run goes on.
        back_to: u64,
    },
}

impl AuditSpec {
    /// Returns whether the segment that ends with this head of the chain is run again.
    pub(super) fn draws(&self, link: ContentId) -> bool {
        let drawn = ContentId::for_content(&[&self.secret[..], link.as_bytes()].concat());
        let first: [u8; 8] = drawn.as_bytes()[..8].try_into().expect("a hash is longer");
        u64::from_le_bytes(first) % 1_000 < u64::from(self.share.0)
    }
}

impl Segment {
    /// Returns the number of its steps.
    #[must_use]
    pub fn step_count(&self) -> u64 {
        self.claim.losses.len() as u64
    }

    /// Returns the position after its last step.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.from.position + self.step_count()
    }
}

impl Anchor {
    /// Returns the anchor of a provider that begins now.
    pub(super) fn at(provider: AccountKey, past: &Past) -> Anchor {
        Anchor {
            provider,
            from: past.kept.clone(),
            link: past.link,
        }
    }
}

impl Past {
    /// Notes who made the last kept segment, which began at this anchor, and draws whether it is
    /// run again.
    pub(super) fn note_segment(&mut self, before: Anchor) {
        let position = before.from.position;
        let first = usize::try_from(position).unwrap_or(usize::MAX);
        if self.audits.is_some_and(|spec| spec.draws(self.link)) {
            self.due_audits.push(Segment {
                from: before.from.clone(),
                by: before.provider,
                claim: SegmentClaim {
                    losses: self.losses[first..].to_vec(),
                    states: self.kept.states.clone(),
                },
            });
        }
        let mut anchors = self.anchors.iter();
        if !anchors.any(|anchor| anchor.provider == before.provider) {
            self.anchors.push(before);
        }
    }

    /// Removes an audit that is over. Returns its number of steps.
    pub(super) fn close_audit(&mut self, from: u64) -> Result<u64, FactError> {
        let due = self.due_audits.iter();
        let place = due.clone().position(|it| it.from.position == from);
        let place = place.ok_or(FactError::Position {
            found: from,
            expected: self.kept.position,
        })?;
        Ok(self.due_audits.remove(place).step_count())
    }

    /// Goes back to the states before the first step that a provider made, if it made one.
    pub(super) fn convict_provider(&mut self, provider: AccountKey) {
        self.banned.insert(provider);
        self.audit_tally.convicted.push(provider);
        let place = self.anchors.iter().position(|it| it.provider == provider);
        let Some(place) = place else {
            return;
        };
        let Anchor { from, link, .. } = self.anchors.swap_remove(place);
        let position = from.position;
        self.anchors.retain(|it| it.from.position < position);
        self.due_audits.retain(|it| it.end() <= position);
        let count = usize::try_from(position).unwrap_or(usize::MAX);
        self.losses.truncate(count);
        // The liar may have evaluated the states from which it began.
        self.held_out.retain(|(at, _)| *at < position);
        self.seen.retain(|_, at| *at <= position);
        (self.kept, self.link) = (from, link);
    }

    /// Returns the states that a later life needs: the last kept ones, those of audits, and those
    /// to which a conviction goes back.
    #[must_use]
    pub fn needed_states(&self) -> States {
        let of_audits = self.due_audits.iter();
        let of_audits = of_audits.flat_map(|it| [&it.from.states, &it.claim.states]);
        let of_anchors = self.anchors.iter().map(|it| &it.from.states);
        let all = of_audits.chain(of_anchors).chain([&self.kept.states]);
        let mut all: States = all.flatten().cloned().collect();
        all.sort_unstable_by_key(|(_, id)| *id);
        all.dedup_by_key(|(_, id)| *id);
        all
    }
}

impl TrainCore {
    /// Returns whether so many audits wait that the lease must end.
    pub(super) fn has_many_audits(&self) -> bool {
        self.past.due_audits.len() >= DUE_AUDITS_MAX
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
            first: RunRequest::Step(audit_step(position, segment.end())),
            steps: segment.step_count(),
            evaluations: 0,
            request_time: self.request_time,
            budget: self.budget_left(),
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

    /// Judges what the lease of an audit made.
    pub(super) fn on_audit_over(&mut self, lease: &LeaseRun) {
        let provider = lease.provider;
        let segment = self.past.due_audits.first().cloned();
        let segment = segment.expect("an audit stays due until it is judged");
        let has_spoken =
            segment.by == provider || self.claims.iter().any(|(it, _)| *it == provider);
        // The market can sell another device than the plan names; nobody confirms itself. And two
        // that do nothing would agree.
        let is_old = |claim: &SegmentClaim| {
            *claim != segment.claim && self.past.seen.contains_key(&states_root(&claim.states))
        };
        let claim = lease.claim.clone().filter(|_| !has_spoken);
        let Some(claim) = claim.filter(|it| !is_old(it)) else {
            if lease.claim.is_some() {
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
            return self.show_audit(&segment, AuditVerdict::Contradicted { by: provider });
        }
        self.failed_audits = 0;
        self.unheard.clear();
        let wrong = others.into_iter().filter(|(_, it)| *it != claim);
        let mut liars: Vec<AccountKey> = wrong.map(|(it, _)| it).collect();
        if is_right {
            let from = segment.from.position;
            self.record_fact(Fact::Confirmed { from, by: provider });
            self.show_audit(&segment, AuditVerdict::Confirmed { by: provider });
        } else {
            liars.push(segment.by);
        }
        for provider in liars {
            let before = self.past.kept.clone();
            self.record_fact(Fact::Convicted { provider });
            self.is_rewound |= self.past.kept != before;
            let back_to = self.past.kept.position;
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

/// Returns a step of an audit that ends at `end`.
pub(super) fn audit_step(position: u64, end: u64) -> Step {
    let keep = position + 1 == end;
    Step { position, keep }
}
