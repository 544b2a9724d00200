//! The core of one run of training: decides which lease to buy next, at which steps the provider
//! returns the states (the model's parameters and the optimiser's state), which steps count, and
//! which provider is to blame for missing states.
//!
//! A run is a chain of steps, each of which reads the states that the one before it made. A lease
//! does some of them, one after the other, and only some answers bring the states (*kept* steps).
//! Steps after the last kept one are lost with their lease, and the next lease repeats them. So a
//! step counts once the states after it, or after a later step of its lease, are on the disk, and
//! the journal has its loss with them ([`Fact::Kept`]). If the buyer's process ends, the next one
//! (a later *life* of the run) continues from there.
//!
//! ```text
//! Quoting ─Quoted─> Recording ─Recorded─> Running ─LeaseEnded─> Quoting, or Ending ─> Over
//! ```
//! If there are held-out examples (on which the run does not train), the run also evaluates them
//! with the states at some positions. It always keeps those states, so that an evaluation counts at
//! once.
//!
//! If a lease was bought for too short a time, its provider is not to blame. The core gets a
//! warning before the time is over: the next step then brings the states, and is the last one of
//! the lease. The time that a request took determines the length of the next lease.
//!
//! The claim of one provider alone does not end a run: a second provider must confirm a loss that
//! is not a finite number, or states that the run had before. Only audits can find wrong states
//! that look right, if the run makes some: see `audits`.

mod action;
mod audits;
mod evaluating;
mod event;
mod facts;
mod running;

use std::collections::VecDeque;

use serde::Serialize;
use souk_market::{AccountKey, Credits};

use crate::clock::Micros;
pub use action::{Action, LeaseWish, RunRequest, Step};
pub use audits::AuditVerdict;
pub use evaluating::EvaluationSpec;
pub use event::{Event, LeaseEnd, LeaseEndReason, StepAnswer};
pub use facts::{
    Anchor, AuditFindings, AuditSpec, Blame, Checkpoint, End, Fact, FactError, LossBits, Past,
    Payer, Segment, SegmentClaim, Shortage, States, next_link, states_root,
};
use running::LeaseRun;

/// The number of leases of one provider that can end early before the run avoids it.
pub const LOST_LEASES_MAX: u32 = 2;

/// A provider is slow if its requests take this many times as long as those of any earlier lease.
const SLOW_TIMES: u64 = 4;

/// A provider is far slower than its ask if its requests take this many times as long as planned,
/// and exceed the plan by this time; a machine that is only busy stays below that.
const FAR_OFF_TIMES: u64 = 16;
const FAR_OFF_MARGIN: Micros = Micros::from_millis(100);

/// How many leases in a row may bring no states.
const FRUITLESS_LEASES_MAX: u32 = 3;

/// How the core conducts a run. None of this affects the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RunSpec {
    /// The number of steps after which the provider returns the states.
    pub keep_steps: u64,
    /// The most steps of one lease.
    pub lease_steps_max: u64,
    /// The most that all leases may cost together, those of earlier lives included.
    pub budget: Option<Credits>,
    /// When to evaluate held-out examples; none if there are none.
    pub evaluation: Option<EvaluationSpec>,
}

/// The core of a run.
#[derive(Clone, Debug, Serialize)]
pub struct TrainCore {
    spec: RunSpec,
    past: Past,
    phase: Phase,
    doubt: Option<Doubt>,
    /// Whether two providers found that the states do not change any more.
    is_still: bool,
    /// How many leases in a row brought no states.
    fruitless: u32,
    /// How long a request took in the slowest lease of this life.
    request_time: Option<Micros>,
    /// Whether this life has bought again from providers that it avoided, since no other is left.
    has_forgiven: bool,
    /// The records without an answer.
    unrecorded: VecDeque<OpenRecord>,
    /// The results of other providers for the next audit's steps, all of which contradict the
    /// claim.
    claims: Vec<(AccountKey, SegmentClaim)>,
    /// The providers whose answers to the next audit do not count.
    unheard: Vec<AccountKey>,
    /// How many leases for the next audit brought no answer.
    failed_audits: u32,
    /// Whether no provider is left to decide the next audit, on which providers contradict each
    /// other.
    is_disputed: bool,
    /// Whether the last kept states are older ones, which the caller must read again.
    is_rewound: bool,
    is_journal_lost: bool,
    /// How often the caller asked to stop.
    stops: u32,
    #[serde(skip)]
    actions: Vec<Action>,
}

#[derive(Clone, Debug, Serialize)]
enum Phase {
    /// The next lease is looked for.
    Quoting,
    /// The journal notes what an audit may need before the next lease is looked for.
    Settling,
    /// The journal notes the lease before it is bought.
    Recording(AccountKey),
    /// The lease is bought or at work.
    Running(LeaseRun),
    /// The journal notes the end.
    Ending(End),
    /// Nothing follows.
    Over,
}

/// A record without an answer.
#[derive(Clone, Debug, Serialize)]
struct OpenRecord {
    /// Whether it names new states.
    has_states: bool,
    /// The states that are not needed after it.
    unneeded: States,
}

/// What one provider claims and no second one has confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Doubt {
    position: u64,
    provider: AccountKey,
    claim: Claim,
}

/// What makes an answer doubtful.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Claim {
    /// A number that is infinite or no number.
    NotFinite(LossBits),
    /// States that the run had before.
    OldStates,
}

impl Claim {
    /// Returns whether two providers claim the same; the bits of a NaN can differ.
    fn is_like(self, other: Claim) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

impl TrainCore {
    /// Begins a run with its first fact, a [`Fact::Began`].
    ///
    /// # Panics
    /// If it is another fact.
    #[must_use]
    pub fn begin(spec: RunSpec, began: Fact) -> (TrainCore, Vec<Action>) {
        let past = Past::from_facts([began.clone()]).expect("the first fact of a run is its begin");
        let mut core = TrainCore::new(spec, past);
        let states = core.past.kept.states.clone();
        core.actions.push(Action::KeepStates(states));
        core.unrecorded.push_back(OpenRecord {
            has_states: false,
            unneeded: Vec::new(),
        });
        core.actions.push(Action::Record(began));
        core.go_on();
        let actions = core.take_actions();
        (core, actions)
    }

    /// Goes on with a run of an earlier life, whose last lease is over.
    ///
    /// # Panics
    /// If a lease is open: the caller must add what it cost before.
    #[must_use]
    pub fn resume(spec: RunSpec, mut past: Past) -> (TrainCore, Vec<Action>) {
        assert!(past.open_lease.is_none(), "the last lease is settled first");
        // Who failed then may serve now; who lied may not.
        past.lost.clear();
        let mut core = TrainCore::new(spec, past);
        core.go_on();
        let actions = core.take_actions();
        (core, actions)
    }

    fn new(spec: RunSpec, past: Past) -> TrainCore {
        assert!(spec.keep_steps > 0 && spec.lease_steps_max > 0);
        TrainCore {
            spec,
            past,
            phase: Phase::Quoting,
            doubt: None,
            is_still: false,
            fruitless: 0,
            request_time: None,
            has_forgiven: false,
            unrecorded: VecDeque::new(),
            claims: Vec::new(),
            unheard: Vec::new(),
            failed_audits: 0,
            is_disputed: false,
            is_rewound: false,
            is_journal_lost: false,
            stops: 0,
            actions: Vec::new(),
        }
    }

    /// Handles an event. You must carry out the actions in their order.
    pub fn apply(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Quoted { job, provider } => {
                if matches!(self.phase, Phase::Quoting) {
                    self.phase = Phase::Recording(provider);
                    self.record_fact(Fact::Leasing { job, provider });
                }
            }
            Event::NotQuoted { short_of } => self.on_not_quoted(short_of),
            Event::Recorded => self.on_recorded(),
            Event::NotRecorded => self.on_not_recorded(),
            Event::Stop => self.on_stop(),
            Event::Leased { provider, escrow } => {
                if let Phase::Running(lease) = &mut self.phase {
                    lease.provider = provider;
                    lease.escrow = Credits(lease.escrow.0.saturating_add(escrow.0));
                }
            }
            Event::StepWanted => self.on_step_wanted(),
            Event::Answered(answer) => self.on_answered(answer),
            Event::BatchAnswered => self.on_batch_answered(),
            Event::TimeShort => self.on_time_short(),
            Event::LeaseEnded(ended) => self.on_lease_ended(ended),
        }
        self.take_actions()
    }

    /// Returns what the facts of the run add up to, those on their way to the disk included.
    #[must_use]
    pub fn past(&self) -> &Past {
        &self.past
    }

    /// Returns whether the next request waits for the journal: until then, room for it is nothing
    /// new.
    #[must_use]
    pub fn is_send_due(&self) -> bool {
        matches!(&self.phase, Phase::Running(lease) if lease.is_send_due)
    }

    fn take_actions(&mut self) -> Vec<Action> {
        self.assert_invariants();
        std::mem::take(&mut self.actions)
    }

    /// Records a fact that follows from those before it.
    fn record_fact(&mut self, fact: Fact) {
        if self.is_journal_lost {
            return;
        }
        let mut unneeded = match fact {
            Fact::Kept { .. } | Fact::Judged { .. } | Fact::Unaudited { .. } => {
                self.past.needed_states()
            }
            _ => Vec::new(),
        };
        let applied = self.past.apply(fact.clone());
        applied.expect("the core makes only facts that follow from those before");
        let needed = self.past.needed_states();
        unneeded.retain(|(_, id)| !needed.iter().any(|(_, needed)| needed == id));
        self.unrecorded.push_back(OpenRecord {
            has_states: matches!(fact, Fact::Kept { .. }),
            unneeded,
        });
        self.actions.push(Action::Record(fact));
    }

    fn on_recorded(&mut self) {
        if self.is_journal_lost {
            // What this record replaces may be the last that is whole on the disk.
            return;
        }
        let recorded = self.unrecorded.pop_front();
        let mut unneeded = recorded.expect("each record has one answer").unneeded;
        let needed = self.past.needed_states();
        unneeded.retain(|(_, id)| !needed.iter().any(|(_, needed)| needed == id));
        if !unneeded.is_empty() {
            self.actions.push(Action::ForgetStates(unneeded));
        }
        self.send_due();
        if !self.unrecorded.is_empty() {
            return;
        }
        if std::mem::take(&mut self.is_rewound) {
            let kept = self.past.kept.clone();
            self.actions.push(Action::RestoreStates(kept));
        }
        match self.phase {
            Phase::Recording(provider) => {
                self.phase = Phase::Running(LeaseRun::new(provider, &self.next_wish(), &self.past));
                self.actions.push(Action::BeginLease);
            }
            Phase::Ending(end) => {
                self.phase = Phase::Over;
                self.actions.push(Action::End(end));
            }
            Phase::Settling => self.go_on(),
            _ => {}
        }
    }

    /// Ends the run because the journal could not be written: steps that are not on the disk do not
    /// count.
    fn on_not_recorded(&mut self) {
        self.is_journal_lost = true;
        match &mut self.phase {
            Phase::Running(lease) => {
                lease.ends_run(End::Journal);
                self.actions.push(Action::CancelLease);
            }
            Phase::Over => {}
            _ => {
                self.phase = Phase::Over;
                self.actions.push(Action::End(End::Journal));
            }
        }
    }

    fn on_stop(&mut self) {
        self.stops = self.stops.saturating_add(1);
        match &self.phase {
            Phase::Quoting | Phase::Settling => self.end_run(End::Stopped),
            Phase::Recording(provider) => {
                // Nothing was bought under the id that the journal notes.
                self.record_fact(Fact::LeaseOver {
                    provider: *provider,
                    cost: Credits::ZERO,
                    receipts: Vec::new(),
                    blame: Blame::Nothing,
                });
                self.end_run(End::Stopped);
            }
            Phase::Running(_) if self.stops > 1 => self.actions.push(Action::CancelLease),
            Phase::Running(_) | Phase::Ending(_) | Phase::Over => {}
        }
    }

    fn on_not_quoted(&mut self, short_of: Shortage) {
        if !matches!(self.phase, Phase::Quoting) {
            return;
        }
        if !self.past.lost.is_empty() && !std::mem::replace(&mut self.has_forgiven, true) {
            self.past.lost.clear();
            return self.go_on();
        }
        if let Some(segment) = self.past.due_audits.first().cloned() {
            return match short_of {
                Shortage::Money => self.end_run(self.unpaid_audit_end(&segment)),
                Shortage::Offers => {
                    self.give_up_audit(&segment);
                    self.go_on_settled();
                }
            };
        }
        let end = match (short_of, self.doubt) {
            (Shortage::Money, _) => End::NoMoney,
            // Nobody else can be asked.
            (
                Shortage::Offers,
                Some(Doubt {
                    position,
                    claim: Claim::NotFinite(loss),
                    ..
                }),
            ) => End::NotFinite {
                step: position,
                loss,
            },
            (Shortage::Offers, _) => End::NoLease,
        };
        self.end_run(end);
    }

    /// Goes on once the journal has what an audit may need.
    fn go_on_settled(&mut self) {
        match self.unrecorded.is_empty() {
            true => self.go_on(),
            false => self.phase = Phase::Settling,
        }
    }

    /// Looks for the next lease, if there is more to do.
    fn go_on(&mut self) {
        if let Some(segment) = self.past.due_audits.first().filter(|_| self.is_disputed) {
            let step = segment.from.position;
            let short_of = Shortage::Offers;
            return self.end_run(End::Disputed { step, short_of });
        }
        if self.has_all() {
            return self.end_run(End::Done);
        }
        self.phase = Phase::Quoting;
        let wish = self.next_wish();
        self.actions.push(Action::Quote(wish));
    }

    /// Ends the run. One that has done all its steps is done, though its last evaluation failed.
    fn end_run(&mut self, end: End) {
        let end = match end {
            End::NoLease | End::NoMoney | End::Lost | End::Stopped
                if self.past.is_done() && self.past.due_audits.is_empty() =>
            {
                End::Done
            }
            end => end,
        };
        self.phase = Phase::Ending(end);
        self.record_fact(Fact::Over { how: end });
        if self.is_journal_lost {
            self.phase = Phase::Over;
            self.actions.push(Action::End(End::Journal));
        }
    }

    /// Returns what the run can still spend; none for no limit.
    fn budget_left(&self) -> Option<Credits> {
        let budget = self.spec.budget;
        budget.map(|budget| Credits(budget.0.saturating_sub(self.past.spent.0)))
    }

    /// Returns the providers from which the run buys no more, or not now.
    fn excluded_providers(&self) -> Vec<AccountKey> {
        let lost = self.past.lost.iter();
        let lost = lost.filter(|(_, count)| **count >= LOST_LEASES_MAX);
        let banned = self.past.banned.iter().chain(lost.map(|(it, _)| it));
        let mut excluded: Vec<AccountKey> = banned.copied().collect();
        excluded.extend(self.doubt.map(|doubt| doubt.provider));
        excluded.sort_unstable();
        excluded.dedup();
        excluded
    }

    /// Returns the next lease: for the next audit, or from the last kept states.
    fn next_wish(&self) -> LeaseWish {
        if let Some(wish) = self.audit_wish() {
            return wish;
        }
        let from = self.past.kept.clone();
        let (steps, evaluations) = self.lease_extent(from.position);
        let position = from.position;
        let left = self.budget_left();
        let kept_back = left.map_or(Credits::ZERO, |left| {
            self.audit_reserve(left, steps, evaluations)
        });
        LeaseWish {
            first: match self.is_due(position) {
                true => RunRequest::Evaluation { position },
                false => RunRequest::Step(self.step_at(position, position + steps)),
            },
            from,
            steps,
            evaluations,
            request_time: self.request_time,
            budget: left.map(|left| Credits(left.0 - kept_back.0)),
            kept_back,
            excluded: self.excluded_providers(),
            claims: Vec::new(),
        }
    }

    /// Returns a step of a lease that ends at `end`. After leases that brought nothing, states
    /// return more often. They return before each evaluation.
    fn step_at(&self, position: u64, end: u64) -> Step {
        let every = (self.spec.keep_steps >> self.fruitless).max(1);
        let done = position + 1;
        let keep = done.is_multiple_of(every) || done == end || self.is_evaluation_point(done);
        Step { position, keep }
    }

    fn assert_invariants(&self) {
        let past = &self.past;
        assert_eq!(past.losses.len() as u64, past.kept.position);
        assert!(past.kept.position <= past.steps, "no step is done twice");
        if let Phase::Running(lease) = &self.phase {
            lease.assert_invariants(past);
        }
    }
}

#[cfg(test)]
mod tests;
