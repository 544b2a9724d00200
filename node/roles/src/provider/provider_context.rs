//! The state that all leases of a provider share during a step: the time, the pending answers, the
//! run queue and the requested effects.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Serialize;
use souk_market::{LeaseId, Millis, OrderId, Resources};
use souk_memory::ContentId;

use super::action::{Action, Content};
use super::config::Config;
use super::facts::Fact;
use super::lease_priority::RunsByRank;
use super::{StreamId, Terms};
use crate::clock::{Micros, Now, Timers};
use crate::effect::{Effect, PendingEffects};
use crate::lease::{Offer, ProviderMessage, WorkResult};
use souk_market::AccountKey;

/// The most leases at work at a time. The device serves one; the others fetch their contents.
pub(super) const RUNNING_MAX: usize = 16;

/// The most streams whose first message waits for the log, and the most streams of leases.
pub(super) const STREAMS_MAX: usize = 256;

/// The most results remembered for buyers that come back; each is a receipt and some names.
const RESULTS_MAX: usize = 256;

/// The most leases remembered one by one as begun. The market ends a lease long before this core
/// forgets it.
const BEGUN_MAX: usize = 100_000;

/// The pause before the core retries what the market or the disk did not accept.
pub(super) const RETRY: Micros = Micros::from_seconds(2);

/// How far a provider is with selling and stopping. It never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Stage {
    /// It settles the open leases of an earlier life.
    Recovering,
    /// Its ask is in the book while it has free units.
    Selling,
    /// It stops: it accepts no new lease, and ends leases that allow notice.
    Draining,
    /// Every lease at work ends with the results it has.
    LastCall,
    /// No lease is at work; the provider records the last states from the log.
    Leaving,
    /// It has stopped.
    Stopped,
}

/// The purpose of a pending answer.
#[derive(Clone, Debug, Serialize)]
pub(super) enum Wait {
    /// Reads the log's view of the account.
    Market,
    /// Places an ask with these terms and resources.
    Place(Terms, Box<Resources>),
    /// Cancels an ask.
    Cancel(OrderId),
    /// Returns a lease that did not begin, or that is not over.
    GiveBack(LeaseId),
    /// Reports to the log that this provider is ready and has no work, or claims the time during
    /// which a buyer held its device.
    Ready(LeaseId),
    /// Looks up the lease that a stream wants to start.
    Opening(StreamId),
    /// Looks up a lease in the log.
    Look(LeaseId),
    /// Records facts, and then takes the next step.
    Record(Vec<Fact>, FollowingStep),
    /// Carries out an effect for a lease at work.
    LeaseResult(LeaseId, LeaseEffect),
    /// Signs a receipt of this provider.
    Sign(LeaseId),
    /// Sends a command about the money of a lease.
    Command(LeaseId),
    /// Notes the usage so far of a lease at work.
    Note(LeaseId),
}

/// The step that follows once facts are on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum FollowingStep {
    /// The provider reports to the buyer that it accepted the lease.
    Accepted(LeaseId),
    /// The provider signs the receipt and sends it.
    Told(LeaseId),
    /// The provider settles the receipt.
    Settled(LeaseId),
    /// No step follows.
    Nothing,
}

/// An effect for a lease at work.
#[derive(Clone, Debug, Serialize)]
pub(super) enum LeaseEffect {
    /// Fetches the contents of a part, and all graphs with those of the first.
    Contents(u32, Vec<Content>),
    /// Fetches an input of a request.
    Input(u32, String, ContentId),
    Check,
    Sandbox,
    Prepare(u32),
    Run(u32, u32),
    Offer(AccountKey, Offer),
}

/// The moments that a provider core awaits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) enum Timer {
    /// A lease ends and the device becomes free.
    Ends(LeaseId),
    /// Too little time is left for another run of a lease.
    Nears(LeaseId),
    /// The core notes the usage so far of a lease at work.
    Note(LeaseId),
    /// A device has waited too long for a buyer's next request.
    Idle(LeaseId),
    /// The core sends a heartbeat to the buyer of a lease at work.
    Alive(LeaseId),
    /// The buyer is lost: the core stops waiting for tensors that other providers do not offer.
    Patience(LeaseId),
    /// The buyer's signature is overdue.
    Signature(LeaseId),
    /// The buyer's settlement is overdue.
    Settle(LeaseId),
    /// The core retries a command that the market did not answer.
    Retry(LeaseId),
    /// The core looks at the market.
    Look,
    /// The core retries facts that the disk did not accept.
    Write,
    /// The time of leases at work is over while the provider stops.
    Drain,
    /// The time to end with the results so far is over.
    LastCall,
    /// The market's answer about leases that a stopping provider returns is overdue.
    Silence,
    /// The last wait before the provider stops is over.
    Leaving,
}

impl Timer {
    pub(super) fn lease_id(self) -> Option<LeaseId> {
        match self {
            Timer::Ends(lease)
            | Timer::Nears(lease)
            | Timer::Note(lease)
            | Timer::Alive(lease)
            | Timer::Patience(lease)
            | Timer::Idle(lease)
            | Timer::Signature(lease)
            | Timer::Settle(lease)
            | Timer::Retry(lease) => Some(lease),
            Timer::Look
            | Timer::Write
            | Timer::Drain
            | Timer::LastCall
            | Timer::Silence
            | Timer::Leaving => None,
        }
    }
}

/// The facts that the disk has not accepted yet.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Journal {
    unwritten: VecDeque<(Vec<Fact>, FollowingStep)>,
    /// Whether no write has succeeded since one failed.
    pub(super) is_broken: bool,
}

/// Every lease that ever began.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct BegunLeases {
    up_to: LeaseId,
    later: BTreeSet<LeaseId>,
}

impl BegunLeases {
    pub(super) fn new(up_to: LeaseId, later: impl IntoIterator<Item = LeaseId>) -> BegunLeases {
        let later = later.into_iter().collect();
        BegunLeases { up_to, later }
    }

    pub(super) fn has_begun(&self, lease: LeaseId) -> bool {
        lease <= self.up_to || self.later.contains(&lease)
    }

    pub(super) fn mark_begun(&mut self, lease: LeaseId) {
        assert!(!self.has_begun(lease), "a lease is begun once");
        self.later.insert(lease);
        if self.later.len() > BEGUN_MAX
            && let Some(first) = self.later.pop_first()
        {
            self.up_to = self.up_to.max(first);
        }
    }
}

/// The state that leases share.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SharedState {
    pub(super) config: Config,
    #[serde(skip)]
    pub(super) now: Now,
    pub(super) stage: Stage,
    pub(super) pending: PendingEffects<Wait>,
    pub(super) timers: Timers<Timer>,
    pub(super) runs_by_rank: RunsByRank,
    pub(super) journal: Journal,
    pub(super) begun: BegunLeases,
    /// The resources in the last ask.
    pub(super) resources: Resources,
    /// The results for buyers that come back.
    results: BTreeMap<LeaseId, Box<WorkResult>>,
    #[serde(skip)]
    effects: Vec<Effect<Action>>,
}

impl SharedState {
    pub(super) fn new(config: Config, begun: BegunLeases, now: Now) -> SharedState {
        SharedState {
            resources: config.resources.clone(),
            config,
            now,
            stage: Stage::Recovering,
            pending: PendingEffects::default(),
            timers: Timers::default(),
            runs_by_rank: RunsByRank::default(),
            journal: Journal::default(),
            begun,
            results: BTreeMap::new(),
            effects: Vec::new(),
        }
    }

    /// Requests an effect whose answer goes to `wait`.
    pub(super) fn request_effect(&mut self, wait: Wait, action: Action) {
        let ticket = self.pending.open_wait(wait);
        self.effects.push(Effect { ticket, action });
    }

    /// Requests an effect without an answer.
    pub(super) fn push_effect(&mut self, action: Action) {
        let ticket = self.pending.new_ticket();
        self.effects.push(Effect { ticket, action });
    }

    /// Sends a message to the buyer, if one is connected.
    pub(super) fn send_message(&mut self, stream: Option<StreamId>, message: ProviderMessage) {
        if let Some(stream) = stream {
            self.push_effect(Action::SendMessage { stream, message });
        }
    }

    /// Closes the stream of the buyer, if one is connected.
    pub(super) fn close_stream(&mut self, stream: &mut Option<StreamId>) {
        if let Some(stream) = stream.take() {
            self.push_effect(Action::CloseStream { stream });
        }
    }

    /// Cancels the effects whose purpose is over.
    pub(super) fn stop_effects(&mut self, is_over: impl FnMut(&Wait) -> bool) {
        for ticket in self.pending.forget_waits(is_over) {
            self.push_effect(Action::Stop(ticket));
        }
    }

    /// Asks the log for a lease, unless such a question is pending.
    pub(super) fn look_at(&mut self, lease: LeaseId) {
        let is_asked = |wait: &Wait| matches!(wait, Wait::Look(of) if *of == lease);
        if !self.pending.iter().any(is_asked) {
            self.request_effect(Wait::Look(lease), Action::LookAt { lease });
        }
    }

    /// Returns the moment of this clock, after now, at which the log's clock shows `log`.
    pub(super) fn tick_at(&self, log: Millis) -> Micros {
        let left = Micros::from_millis(log.saturating_since(self.now.log).0);
        self.now.tick.plus(left.max(Micros::from_millis(1)))
    }

    /// Sets a timer to fire after `wait`.
    pub(super) fn wake_in(&mut self, timer: Timer, wait: Micros) {
        self.timers.set_timer(timer, self.now.tick.plus(wait));
    }

    /// Records facts, after those that the disk has not accepted yet.
    pub(super) fn record_facts(&mut self, facts: Vec<Fact>, follows: FollowingStep) {
        match self.journal.is_broken {
            true => self.journal.unwritten.push_back((facts, follows)),
            false => self.write(facts, follows),
        }
    }

    fn write(&mut self, facts: Vec<Fact>, follows: FollowingStep) {
        let wait = Wait::Record(facts.clone(), follows);
        self.request_effect(wait, Action::Record(facts));
    }

    /// Handles facts that the disk accepted, and retries those that wait.
    pub(super) fn on_recorded(&mut self, facts: &[Fact]) {
        let first = self.journal.unwritten.front();
        if first.is_some_and(|(first, _)| first == facts) {
            self.journal.unwritten.pop_front();
        }
        self.journal.is_broken = false;
        self.timers.stop_timer(Timer::Write);
        for (facts, follows) in std::mem::take(&mut self.journal.unwritten) {
            self.write(facts, follows);
        }
    }

    /// Handles facts that the disk did not accept: the core will retry, and the following steps
    /// wait.
    pub(super) fn on_not_written(&mut self, facts: Vec<Fact>, follows: FollowingStep) {
        self.journal.is_broken = true;
        let is_known = |(known, _): &(Vec<Fact>, FollowingStep)| *known == facts;
        if !self.journal.unwritten.front().is_some_and(is_known) {
            self.journal.unwritten.push_back((facts, follows));
        }
        if !self.timers.is_set(Timer::Write) {
            self.wake_in(Timer::Write, RETRY);
        }
    }

    /// Retries the first of the facts that the disk did not accept. It stays first until the disk
    /// has it.
    pub(super) fn write_again(&mut self) {
        if let Some((facts, follows)) = self.journal.unwritten.front().cloned() {
            self.write(facts, follows);
        }
    }

    /// Remembers a result for a buyer that comes back.
    pub(super) fn store_result(&mut self, finished: &WorkResult) {
        let lease = finished.receipt.body.lease;
        self.results.insert(lease, Box::new(finished.clone()));
        if self.results.len() > RESULTS_MAX {
            self.results.pop_first();
        }
    }

    /// Returns the result of a lease to its buyer.
    pub(super) fn result_for_buyer(
        &self,
        lease: LeaseId,
        buyer: AccountKey,
    ) -> Option<&WorkResult> {
        let result = self.results.get(&lease)?;
        (result.receipt.body.buyer == buyer).then_some(result)
    }

    /// Forgets all pending answers and timers.
    pub(super) fn forget_all(&mut self) {
        self.pending.forget_waits(|_| true);
        self.timers.stop_all(|_| true);
    }

    pub(super) fn take_effects(&mut self) -> Vec<Effect<Action>> {
        std::mem::take(&mut self.effects)
    }

    /// Returns the pending effects for a lease at work.
    pub(super) fn pending_efforts(&self, lease: LeaseId) -> impl Iterator<Item = &LeaseEffect> {
        self.pending.iter().filter_map(move |wait| match wait {
            Wait::LeaseResult(of, effort) if *of == lease => Some(effort),
            _ => None,
        })
    }

    /// Returns the number of facts that wait for the disk.
    pub(super) fn unwritten_fact_count(&self) -> usize {
        self.journal.unwritten.len()
    }
}
