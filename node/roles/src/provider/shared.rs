//! What all leases of a provider share while it takes a step: the time, what is awaited, whose turn
//! it is, and what is to be done.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Serialize;
use souk_market::{LeaseId, Millis, OrderId, Resources};
use souk_memory::ContentId;

use super::action::{Action, Content};
use super::config::Config;
use super::facts::Fact;
use super::turns::Turns;
use super::{StreamId, Terms};
use crate::clock::{Micros, Now, Timers};
use crate::effect::{Effect, Waits};
use crate::lease::{Offer, ProviderWord, WorkResult};
use souk_market::AccountKey;

/// Leases at work at a time. One device does one thing; the others fetch what they need.
pub(super) const RUNNING_MAX: usize = 16;

/// Streams whose first word waits for the log, and streams of leases, at most.
pub(super) const STREAMS_MAX: usize = 256;

/// Results remembered for buyers that come back; each is a receipt and some names.
const RESULTS_MAX: usize = 256;

/// Leases remembered one by one as begun. The market ends a lease long before it is forgotten here.
const BEGUN_MAX: usize = 100_000;

/// After so long what the market or the disk did not take is tried again.
pub(super) const RETRY: Micros = Micros::seconds(2);

/// How far a provider is with selling and stopping. It never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Stage {
    /// It puts right what an earlier life left open.
    Recovering,
    /// Its ask is in the book while something is free.
    Selling,
    /// It was told to stop: nothing new is taken, and what may be ended with notice ends.
    Draining,
    /// Whatever is at work ends with what is done.
    LastCall,
    /// Nothing is at work any more; what the log says of the last leases is put down.
    Leaving,
    /// It has stopped.
    Stopped,
}

/// What an answer is for.
#[derive(Clone, Debug, Serialize)]
pub(super) enum Wait {
    /// What the log has of the account.
    Market,
    /// An ask was placed with these terms and figures.
    Place(Terms, Box<Resources>),
    /// An ask was cancelled.
    Cancel(OrderId),
    /// A lease that was not begun, or that is not over, was given back.
    GiveBack(LeaseId),
    /// The log is told that this provider is ready and sees no work, or claims the time for which
    /// its device was held.
    Ready(LeaseId),
    /// The lease that a stream wants to start.
    Opening(StreamId),
    /// A lease as the log has it.
    Look(LeaseId),
    /// Facts, and what follows once they are on the disk.
    Record(Vec<Fact>, Follows),
    /// Something for a lease at work.
    Work(LeaseId, Effort),
    /// A receipt of ours, to be signed.
    Sign(LeaseId),
    /// A command about the money of a lease.
    Command(LeaseId),
    /// What a lease at work has used so far was noted.
    Note(LeaseId),
}

/// What follows once facts are on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Follows {
    /// The buyer is told that the lease is accepted.
    Accepted(LeaseId),
    /// The receipt is signed and told.
    Told(LeaseId),
    /// The receipt is settled.
    Settled(LeaseId),
    /// Nothing.
    Nothing,
}

/// What is done for a lease at work.
#[derive(Clone, Debug, Serialize)]
pub(super) enum Effort {
    /// The contents of a part come; with those of the first come all graphs.
    Contents(u32, Vec<Content>),
    /// An input of a request comes.
    Input(u32, String, ContentId),
    Check,
    Sandbox,
    Prepare(u32),
    Run(u32, u32),
    Offer(AccountKey, Offer),
}

/// What is waited for by the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) enum Timer {
    /// The end of a lease: the device is another's.
    Ends(LeaseId),
    /// No further run of it would be over in time.
    Nears(LeaseId),
    /// What a lease at work has used so far is noted.
    Note(LeaseId),
    /// A device that waits for a buyer's next request.
    Idle(LeaseId),
    /// The buyer of a lease at work hears that this provider lives.
    Alive(LeaseId),
    /// A buyer that is lost: what others do not offer is not waited for any more.
    Patience(LeaseId),
    /// The buyer's signature.
    Signature(LeaseId),
    /// The buyer's own settling.
    Settle(LeaseId),
    /// The market did not answer.
    Retry(LeaseId),
    /// The market is looked at.
    Look,
    /// The disk did not take facts.
    Write,
    /// Leases at work have time no longer than this.
    Drain,
    /// Nor to end with what is done.
    LastCall,
    /// The market's word on what a provider takes back as it stops.
    Silence,
    /// Nor does anything hold up the end.
    Leaving,
}

impl Timer {
    pub(super) fn lease(self) -> Option<LeaseId> {
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

/// Facts that the disk did not take yet.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Journal {
    unwritten: VecDeque<(Vec<Fact>, Follows)>,
    /// Since a write failed none has succeeded.
    pub(super) is_broken: bool,
}

/// The leases that were ever begun.
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

    pub(super) fn has(&self, lease: LeaseId) -> bool {
        lease <= self.up_to || self.later.contains(&lease)
    }

    pub(super) fn begin(&mut self, lease: LeaseId) {
        assert!(!self.has(lease), "a lease is begun once");
        self.later.insert(lease);
        if self.later.len() > BEGUN_MAX
            && let Some(first) = self.later.pop_first()
        {
            self.up_to = self.up_to.max(first);
        }
    }
}

/// What leases share.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SharedState {
    pub(super) config: Config,
    #[serde(skip)]
    pub(super) now: Now,
    pub(super) stage: Stage,
    pub(super) waits: Waits<Wait>,
    pub(super) timers: Timers<Timer>,
    pub(super) turns: Turns,
    pub(super) journal: Journal,
    pub(super) begun: BegunLeases,
    /// The figures that the last ask said.
    pub(super) resources: Resources,
    /// What buyers that come back are told.
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
            waits: Waits::default(),
            timers: Timers::default(),
            turns: Turns::default(),
            journal: Journal::default(),
            begun,
            results: BTreeMap::new(),
            effects: Vec::new(),
        }
    }

    /// Wants something whose answer is `wait`.
    pub(super) fn ask(&mut self, wait: Wait, action: Action) {
        let ticket = self.waits.open(wait);
        self.effects.push(Effect { ticket, action });
    }

    /// Wants something that is not answered.
    pub(super) fn act(&mut self, action: Action) {
        let ticket = self.waits.unanswered();
        self.effects.push(Effect { ticket, action });
    }

    /// Says something to a buyer that is there.
    pub(super) fn send(&mut self, stream: Option<StreamId>, word: ProviderWord) {
        if let Some(stream) = stream {
            self.act(Action::Send { stream, word });
        }
    }

    /// Closes the stream of a buyer that is there.
    pub(super) fn hang(&mut self, stream: &mut Option<StreamId>) {
        if let Some(stream) = stream.take() {
            self.act(Action::Hang { stream });
        }
    }

    /// Stops effects: nobody awaits their answers.
    pub(super) fn stop(&mut self, is_over: impl FnMut(&Wait) -> bool) {
        for ticket in self.waits.forget(is_over) {
            self.act(Action::Stop(ticket));
        }
    }

    /// Asks the log about a lease, unless that is asked already.
    pub(super) fn look_at(&mut self, lease: LeaseId) {
        let is_asked = |wait: &Wait| matches!(wait, Wait::Look(of) if *of == lease);
        if !self.waits.iter().any(is_asked) {
            self.ask(Wait::Look(lease), Action::LookAt { lease });
        }
    }

    /// The moment of this clock at which the log's says `log`; later than now.
    pub(super) fn moment(&self, log: Millis) -> Micros {
        let left = Micros::millis(log.since(self.now.log).0);
        self.now.tick.plus(left.max(Micros::millis(1)))
    }

    /// Wants to be woken after so long.
    pub(super) fn wake_in(&mut self, timer: Timer, wait: Micros) {
        self.timers.set(timer, self.now.tick.plus(wait));
    }

    /// Puts facts down; those that the disk did not take before them go first.
    pub(super) fn record(&mut self, facts: Vec<Fact>, follows: Follows) {
        match self.journal.is_broken {
            true => self.journal.unwritten.push_back((facts, follows)),
            false => self.write(facts, follows),
        }
    }

    fn write(&mut self, facts: Vec<Fact>, follows: Follows) {
        let wait = Wait::Record(facts.clone(), follows);
        self.ask(wait, Action::Record(facts));
    }

    /// The disk took facts: those that wait are tried too.
    pub(super) fn on_recorded(&mut self, facts: &[Fact]) {
        let first = self.journal.unwritten.front();
        if first.is_some_and(|(first, _)| first == facts) {
            self.journal.unwritten.pop_front();
        }
        self.journal.is_broken = false;
        self.timers.stop(Timer::Write);
        for (facts, follows) in std::mem::take(&mut self.journal.unwritten) {
            self.write(facts, follows);
        }
    }

    /// The disk did not take facts: they are tried again, and what follows from them waits.
    pub(super) fn on_not_written(&mut self, facts: Vec<Fact>, follows: Follows) {
        self.journal.is_broken = true;
        let is_known = |(known, _): &(Vec<Fact>, Follows)| *known == facts;
        if !self.journal.unwritten.front().is_some_and(is_known) {
            self.journal.unwritten.push_back((facts, follows));
        }
        if !self.timers.is_set(Timer::Write) {
            self.wake_in(Timer::Write, RETRY);
        }
    }

    /// Tries the first of the facts that the disk did not take; it stays the first until it has.
    pub(super) fn write_again(&mut self) {
        if let Some((facts, follows)) = self.journal.unwritten.front().cloned() {
            self.write(facts, follows);
        }
    }

    /// Remembers a result for a buyer that comes back.
    pub(super) fn remember(&mut self, finished: &WorkResult) {
        let lease = finished.receipt.body.lease;
        self.results.insert(lease, Box::new(finished.clone()));
        if self.results.len() > RESULTS_MAX {
            self.results.pop_first();
        }
    }

    /// The result of a lease, if its buyer asks.
    pub(super) fn result(&self, lease: LeaseId, buyer: AccountKey) -> Option<&WorkResult> {
        let result = self.results.get(&lease)?;
        (result.receipt.body.buyer == buyer).then_some(result)
    }

    /// Nobody awaits anything any more.
    pub(super) fn forget_all(&mut self) {
        self.waits.forget(|_| true);
        self.timers.stop_all(|_| true);
    }

    pub(super) fn take_effects(&mut self) -> Vec<Effect<Action>> {
        std::mem::take(&mut self.effects)
    }

    /// Whether effects for a lease at work are awaited, and how many of a kind.
    pub(super) fn efforts(&self, lease: LeaseId) -> impl Iterator<Item = &Effort> {
        self.waits.iter().filter_map(move |wait| match wait {
            Wait::Work(of, effort) if *of == lease => Some(effort),
            _ => None,
        })
    }

    /// The facts that wait for the disk.
    pub(super) fn unwritten(&self) -> usize {
        self.journal.unwritten.len()
    }
}
