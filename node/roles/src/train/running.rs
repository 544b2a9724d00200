//! Follows one lease of a training run: sends its steps and evaluations, counts the answers, and
//! decides whether its provider is to blame for its end.

use std::collections::VecDeque;

use serde::Serialize;
use souk_market::{AccountKey, Credits};

use super::*;

/// The most kept states that wait for the journal before the core sends another step: they are in
/// memory until they are on the disk, and a disk can be slower than the steps.
pub(super) const UNRECORDED_STATES_MAX: usize = 2;

/// A request that a lease has not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum UnderWay {
    /// A step, and whether it must bring the states.
    Step {
        keep: bool,
    },
    Evaluation,
}

/// A lease that is bought or at work.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LeaseRun {
    pub(super) provider: AccountKey,
    /// The position of its first step, and the one after its last.
    first: u64,
    end: u64,
    /// The position of the next step to send.
    next: u64,
    /// The number of evaluations that it can still send.
    evaluations_left: u64,
    /// The position of the last evaluation sent.
    evaluated: Option<u64>,
    /// How many evaluations were in the journal before.
    held_out_before: usize,
    /// What is under way.
    under_way: VecDeque<UnderWay>,
    /// Whether the last step sent must bring the states.
    is_last_kept: bool,
    /// Whether its time ends soon.
    pub(super) is_time_short: bool,
    has_no_more: bool,
    /// Whether the next request waits for the journal.
    pub(super) is_send_due: bool,
    /// The losses of the steps since the last kept states.
    pub(super) unkept: Vec<LossBits>,
    /// The number of answered requests: of steps, and of batches of evaluations.
    pub(super) answered: u64,
    /// Whether it runs the steps of an audit again.
    is_audit: bool,
    /// Its result for the steps of an audit; none until it has done all of them.
    pub(super) claim: Option<SegmentClaim>,
    /// What the market holds for it.
    pub(super) escrow: Credits,
    /// Whether no further answer counts.
    pub(super) is_deaf: bool,
    is_malformed: bool,
    /// How the run ends with the lease.
    ends: Option<End>,
}

impl LeaseRun {
    pub(super) fn new(provider: AccountKey, wish: &LeaseWish, past: &Past) -> LeaseRun {
        let first = wish.from.position;
        let mut lease = LeaseRun {
            provider,
            first,
            end: first + wish.steps,
            next: first,
            evaluations_left: wish.evaluations,
            evaluated: None,
            held_out_before: past.held_out.len(),
            under_way: VecDeque::new(),
            // The states with which it begins are kept.
            is_last_kept: true,
            is_time_short: false,
            has_no_more: false,
            is_send_due: false,
            unkept: Vec::new(),
            answered: 0,
            is_audit: !wish.claims.is_empty(),
            claim: None,
            escrow: Credits::ZERO,
            is_deaf: false,
            is_malformed: false,
            ends: None,
        };
        lease.note_sent(wish.first);
        lease
    }

    fn note_sent(&mut self, request: RunRequest) {
        let under_way = match request {
            RunRequest::Step(step) => {
                self.next += 1;
                self.is_last_kept = step.keep;
                UnderWay::Step { keep: step.keep }
            }
            RunRequest::Evaluation { position } => {
                self.evaluations_left -= 1;
                self.evaluated = Some(position);
                UnderWay::Evaluation
            }
        };
        self.under_way.push_back(under_way);
    }

    /// Ends the run with this lease.
    pub(super) fn ends_run(&mut self, end: End) {
        self.is_deaf = true;
        self.ends = Some(end);
    }

    /// Returns the position from which its unkept steps go on.
    fn base(&self, past: &Past) -> u64 {
        match self.is_audit {
            true => self.first,
            false => past.kept.position,
        }
    }

    pub(super) fn assert_invariants(&self, past: &Past) {
        let base = self.base(past);
        let head = base + self.unkept.len() as u64;
        assert!(self.first <= base && head <= self.next);
        assert!(self.next <= self.end, "it sends what it was bought for");
        let steps = self.under_way.iter();
        let steps = steps.filter(|it| **it != UnderWay::Evaluation).count() as u64;
        assert!(self.is_deaf || head + steps == self.next, "in order");
    }
}

impl TrainCore {
    /// Sends one more step or evaluation. If the caller stops the run, or the time of the lease
    /// ends soon, the next step is the last one and brings the states.
    pub(super) fn on_step_wanted(&mut self) {
        let Phase::Running(lease) = &self.phase else {
            return;
        };
        if lease.has_no_more {
            return;
        }
        let unrecorded = self.unrecorded.iter().filter(|it| it.has_states).count();
        if unrecorded >= UNRECORDED_STATES_MAX && !lease.is_deaf {
            if let Phase::Running(lease) = &mut self.phase {
                lease.is_send_due = true;
            }
            return;
        }
        let is_at_end = self.is_last_step(lease) && lease.is_last_kept;
        let request = match lease.is_deaf || is_at_end {
            true => None,
            false => self.next_request(lease),
        };
        let Phase::Running(lease) = &mut self.phase else {
            unreachable!("it was looked at");
        };
        match request {
            None => {
                lease.has_no_more = true;
                self.actions.push(Action::SendNoMore);
            }
            Some(request) => {
                lease.note_sent(request);
                self.actions.push(Action::Send(request));
            }
        }
    }

    /// Sends the request that waited for the journal.
    pub(super) fn send_due(&mut self) {
        if let Phase::Running(lease) = &mut self.phase
            && std::mem::take(&mut lease.is_send_due)
        {
            self.on_step_wanted();
        }
    }

    /// Returns the next request of a lease, after all that were sent.
    fn next_request(&self, lease: &LeaseRun) -> Option<RunRequest> {
        let position = lease.next;
        if lease.is_audit {
            let is_over = position >= lease.end || self.is_last_step(lease);
            return (!is_over).then(|| RunRequest::Step(Step::of_audit(position, lease.end)));
        }
        let is_evaluated = lease.evaluated == Some(position) || lease.evaluations_left == 0;
        if self.is_due(position) && !is_evaluated {
            return Some(RunRequest::Evaluation { position });
        }
        let mut step = self.step_at(position, lease.end);
        step.keep |= self.is_last_step(lease);
        (position < lease.end).then_some(RunRequest::Step(step))
    }

    /// Returns whether a lease must end after a step that brings the states.
    fn is_last_step(&self, lease: &LeaseRun) -> bool {
        self.stops > 0 || lease.is_time_short || (!lease.is_audit && self.has_many_audits())
    }

    pub(super) fn on_time_short(&mut self) {
        if let Phase::Running(lease) = &mut self.phase {
            lease.is_time_short = true;
        }
    }

    /// Takes the answer of the oldest step or evaluation under way.
    pub(super) fn on_answered(&mut self, answer: StepAnswer) {
        let Phase::Running(lease) = &mut self.phase else {
            return;
        };
        if lease.is_deaf {
            return;
        }
        let keep = match lease.under_way.pop_front() {
            None => return self.on_malformed(),
            Some(UnderWay::Evaluation) => return self.take_evaluation(&answer),
            Some(UnderWay::Step { keep }) => keep,
        };
        if lease.is_audit {
            return self.on_audit_answered(answer, keep);
        }
        let position = self.past.kept.position + lease.unkept.len() as u64;
        match answer {
            StepAnswer::Malformed | StepAnswer::Abandoned => self.on_malformed(),
            StepAnswer::NotFinite { loss } => {
                if self.is_confirmed(position, Claim::NotFinite(loss)) {
                    let end = End::NotFinite {
                        step: position,
                        loss,
                    };
                    self.end_with_lease(end);
                }
            }
            StepAnswer::Done { states: None, .. } if keep => self.on_malformed(),
            StepAnswer::Done { loss, states } => {
                if let Some(states) = states.as_ref().filter(|_| keep) {
                    let is_old =
                        self.past.seen.contains_key(&states_root(states)) && !self.is_still;
                    if is_old && !self.is_confirmed(position, Claim::OldStates) {
                        return;
                    }
                    self.is_still |= is_old;
                }
                self.take_step(loss, states.filter(|_| keep));
            }
        }
    }

    /// Records that the provider is at work, although it has not finished an evaluation.
    pub(super) fn on_batch_answered(&mut self) {
        if let Phase::Running(lease) = &mut self.phase
            && !lease.is_deaf
        {
            lease.answered += 1;
        }
    }

    /// Counts an evaluation with the last kept states. Its loss may be no number: unlike a step's,
    /// it spoils nothing.
    fn take_evaluation(&mut self, answer: &StepAnswer) {
        let loss = match answer {
            StepAnswer::Malformed => return self.on_malformed(),
            // The next lease evaluates these states again.
            StepAnswer::Abandoned => return,
            StepAnswer::NotFinite { loss } | StepAnswer::Done { loss, .. } => *loss,
        };
        let Phase::Running(lease) = &mut self.phase else {
            unreachable!("its answer came");
        };
        assert!(
            lease.unkept.is_empty(),
            "states return before an evaluation"
        );
        lease.answered += 1;
        let position = self.past.kept.position;
        self.record_fact(Fact::HeldOut { position, loss });
        self.actions.push(Action::ShowEvaluation { position, loss });
    }

    /// Counts a step and, if it brings the states, all since the last kept ones.
    fn take_step(&mut self, loss: LossBits, states: Option<States>) {
        let Phase::Running(lease) = &mut self.phase else {
            unreachable!("its answer came");
        };
        lease.answered += 1;
        lease.unkept.push(loss);
        let from = self.past.kept.position;
        let done = from + lease.unkept.len() as u64;
        self.actions.push(Action::ShowStep { done, loss });
        let Some(states) = states else {
            return;
        };
        let losses = std::mem::take(&mut lease.unkept);
        let provider = lease.provider;
        self.actions.push(Action::KeepStates(states.clone()));
        let link = next_link(self.past.link, from, &losses, &states);
        self.record_fact(Fact::Kept {
            from,
            losses,
            states,
            link,
            by: self.past.audits.map(|_| provider),
        });
        self.fruitless = 0;
        let is_refuted = |doubt: &Doubt| doubt.position < done && doubt.provider != provider;
        if let Some(doubt) = self.doubt.take_if(|doubt| is_refuted(doubt)) {
            let provider = doubt.provider;
            self.record_fact(Fact::Banned { provider });
        }
    }

    /// Returns whether a second provider claims the same as one before. If not, the lease ends and
    /// another provider does the steps again.
    fn is_confirmed(&mut self, position: u64, claim: Claim) -> bool {
        let Phase::Running(lease) = &mut self.phase else {
            unreachable!("its answer came");
        };
        let provider = lease.provider;
        let is_same = |doubt: &Doubt| {
            doubt.position == position && doubt.claim.is_like(claim) && doubt.provider != provider
        };
        if self.doubt.take_if(|doubt| is_same(doubt)).is_some() {
            return true;
        }
        lease.is_deaf = true;
        self.doubt = Some(Doubt {
            position,
            provider,
            claim,
        });
        self.actions.push(Action::CancelLease);
        false
    }

    pub(super) fn on_malformed(&mut self) {
        if let Phase::Running(lease) = &mut self.phase {
            (lease.is_deaf, lease.is_malformed) = (true, true);
        }
        self.actions.push(Action::CancelLease);
    }

    fn end_with_lease(&mut self, end: End) {
        if let Phase::Running(lease) = &mut self.phase {
            lease.ends_run(end);
        }
        self.actions.push(Action::CancelLease);
    }

    pub(super) fn on_lease_ended(&mut self, ended: LeaseEnd) {
        let Phase::Running(lease) = std::mem::replace(&mut self.phase, Phase::Quoting) else {
            panic!("a lease that ends was begun");
        };
        let is_doubted = self.doubt.is_some_and(|it| it.provider == lease.provider);
        let is_fruitful = match lease.is_audit {
            true => lease.claim.is_some(),
            false => {
                self.past.kept.position > lease.first
                    || self.past.held_out.len() > lease.held_out_before
            }
        };
        let blame = self.blame_provider(&lease, &ended, is_fruitful);
        self.record_fact(Fact::LeaseOver {
            provider: lease.provider,
            cost: ended.cost.unwrap_or(lease.escrow),
            receipts: ended.receipts,
            blame,
        });
        self.request_time = match ended.why {
            // A lease as long as that may be too dear to be sold.
            LeaseEndReason::Fault | LeaseEndReason::Unsold if lease.answered == 0 => None,
            _ => self.request_time.max(ended.request_time),
        };
        match (lease.is_audit, is_fruitful) {
            (true, false) if self.stops > 0 => {}
            (true, _) if self.is_journal_lost => {}
            (true, _) => self.on_audit_over(&lease),
            (false, true) => self.fruitless = 0,
            (false, false) => self.fruitless += 1,
        }
        // A doubt costs one lease more.
        let fruitless_max = match is_doubted {
            true => 2 * FRUITLESS_LEASES_MAX,
            false => FRUITLESS_LEASES_MAX,
        };
        let is_cancelled = ended.why == LeaseEndReason::Cancelled && !lease.is_deaf;
        if let Some(end) = lease.ends {
            self.end_run(end);
        } else if self.has_all() {
            self.end_run(End::Done);
        } else if self.stops > 0 || is_cancelled {
            self.end_run(End::Stopped);
        } else if self.fruitless >= fruitless_max {
            self.end_run(End::Lost);
        } else if self.past.audits.is_some() {
            self.go_on_settled();
        } else {
            self.go_on();
        }
    }

    /// Returns whether the provider is to blame for the end of its lease. It is not if the time of
    /// the lease was over, because the buyer bought too little of it, unless its requests took far
    /// longer than its ask states, or than those of any lease before. Nor is it if another buyer or
    /// worker was faster.
    fn blame_provider(&self, lease: &LeaseRun, ended: &LeaseEnd, is_fruitful: bool) -> Blame {
        let slowest = self.request_time.zip(ended.request_time);
        let is_slow =
            slowest.is_some_and(|(slowest, it)| it.0 > slowest.0.saturating_mul(SLOW_TIMES));
        let far_off = ended.planned_time.0.saturating_mul(FAR_OFF_TIMES);
        let far_off = Micros(far_off).plus(FAR_OFF_MARGIN);
        let is_far_off = ended.request_time.is_some_and(|it| it > far_off);
        if lease.is_malformed {
            return Blame::Banned;
        }
        if self.stops > 0 || lease.is_deaf {
            return Blame::Nothing;
        }
        match ended.why {
            LeaseEndReason::Done if lease.is_time_short && is_far_off => Blame::Avoided,
            // An audit cannot end early with states, so an audit that is cut short has no fruit.
            LeaseEndReason::Done
                if lease.is_time_short && (is_slow || !is_fruitful && !lease.is_audit) =>
            {
                Blame::Lost
            }
            LeaseEndReason::Unsigned if lease.answered > 0 => Blame::Lost,
            LeaseEndReason::Done
            | LeaseEndReason::Unsigned
            | LeaseEndReason::Cancelled
            | LeaseEndReason::Unsold => Blame::Nothing,
            LeaseEndReason::Fault if lease.answered == 0 => Blame::Avoided,
            LeaseEndReason::TimeOver if is_far_off => Blame::Avoided,
            LeaseEndReason::TimeOver if lease.answered > 0 && !is_slow => Blame::Nothing,
            LeaseEndReason::TimeOver | LeaseEndReason::Fault => Blame::Lost,
        }
    }
}
