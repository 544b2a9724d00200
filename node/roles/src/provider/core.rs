//! The core of a provider, as a driver uses it: [`ProviderCore`] accepts or refuses leases, passes
//! events to the leases at work and to the claims (open payments) of ended ones, and returns
//! effects.

mod answers;
mod log;
mod stopping;
mod streams;

use std::collections::BTreeMap;

use serde::Serialize;
use souk_market::{AccountKey, Command, Lease, LeaseId, LeaseState, Millis, Term};

use super::action::{Action, Report};
use super::ask::PlacedAsks;
use super::claim::{Claim, ClaimStage, not_written};
use super::config::Config;
use super::event::{Answer, Event, MarketView, StreamId};
use super::facts::{Fact, LeaseResult, Past};
use super::lease::{End, LeaseCore, WorkStage, is_own};
use super::provider_context::{
    BegunLeases, FollowingStep, RUNNING_MAX, STREAMS_MAX, SharedState, Stage, Timer, Wait,
};
use super::requests::without_source;
use super::state_feedback::fed_wrongly;
use crate::clock::{Micros, Now};
use crate::effect::Effect;
use crate::lease::{Failure, Offer, OfferAnswer, Opening, ProviderMessage, Start};

/// How often the core looks at the market while no validator reports changes, and how soon after a
/// failure.
const LOOK_PERIOD: Micros = Micros::from_seconds(2);

/// How often the core looks while a validator reports changes and a lease is open whose work is
/// not under way.
const LEASE_LOOK_PERIOD: Micros = Micros::from_seconds(10);

/// The shortest period between two looks while a validator reports changes and every open lease is
/// at work. The longest is three times that: providers that started together do not all ask
/// together.
const QUIET_PERIOD_MIN: Micros = Micros::from_seconds(30);

/// How long a buyer can leave a lease alone before the core reports to the log that its provider is
/// ready.
const UNHEARD: Millis = Millis(10_000);

/// The time for leases that end with the results so far: the run of one request, and its way to the
/// buyer.
const LAST_CALL: Micros = Micros::from_seconds(5);

/// How long a stopping provider without work waits for the market to take its ask back.
const SILENCE: Micros = Micros(1_500_000);

/// How long pending facts can delay the end.
const LEAVE_WAIT: Micros = Micros::from_seconds(2);

/// The purpose of a stream.
#[derive(Clone, Debug, Serialize)]
enum Use {
    /// The core looks up its lease in the log.
    Opening { peer: AccountKey, start: Box<Start> },
    /// It belongs to a lease that is at work or owed.
    Lease(LeaseId),
}

/// The core of a provider.
#[derive(Clone, Debug, Serialize)]
pub struct ProviderCore {
    shared: SharedState,
    placed_asks: PlacedAsks,
    /// The leases at work.
    leases: BTreeMap<LeaseId, LeaseCore>,
    /// The leases with unsettled money.
    claims: BTreeMap<LeaseId, Claim>,
    streams: BTreeMap<StreamId, Use>,
    /// Whether the market changed during a look at it, so that another look must follow.
    looks_again: bool,
    /// Whether a validator reports each change of the account.
    is_watched: bool,
    /// The number of looks so far, from which the next quiet period is drawn.
    looks: u64,
    /// Whether to return the leases that did not begin, once the core knows them.
    gives_back: bool,
    counts: Counts,
}

/// Counts of a provider's events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// The leases that began.
    pub begun: u64,
    /// The leases whose work was completed.
    pub done: u64,
    /// The leases whose work failed.
    pub failed: u64,
    /// The receipts that both sides signed.
    pub signed: u64,
    /// The buyers that came back.
    pub resumed: u64,
    /// The leases whose end the core saw in the log.
    pub closed: u64,
}

/// The state of a provider, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProviderStatus {
    /// How far it is with selling and stopping.
    pub stage: Stage,
    /// The leases at work, each with its progress.
    pub at_work: Vec<(LeaseId, WorkStage)>,
    /// The leases with unsettled money, each with its stage.
    pub owed: Vec<(LeaseId, ClaimStage)>,
    /// Whether the disk accepts facts.
    pub is_writable: bool,
    /// The counts of its events.
    pub counts: Counts,
}

impl ProviderCore {
    /// Resumes a provider from its earlier lives. Returns the core and its first effects.
    #[must_use]
    pub fn resume(config: Config, past: Past, now: Now) -> (ProviderCore, Vec<Effect<Action>>) {
        let begun = BegunLeases::new(past.up_to, past.leases.keys().copied());
        let mut core = ProviderCore {
            shared: SharedState::new(config, begun, now),
            placed_asks: PlacedAsks::default(),
            leases: BTreeMap::new(),
            claims: BTreeMap::new(),
            streams: BTreeMap::new(),
            looks_again: false,
            is_watched: false,
            looks: 0,
            gives_back: false,
            counts: Counts::default(),
        };
        for (lease, past) in past.leases {
            if let Some(claim) = Claim::of_past(&mut core.shared, lease, past) {
                core.claims.insert(lease, claim);
            }
        }
        core.settle_down();
        let effects = core.shared.take_effects();
        (core, effects)
    }

    /// Applies an event and returns the effects to carry out. The tick of `now` must not go back.
    pub fn apply(&mut self, now: Now, event: Event) -> Vec<Effect<Action>> {
        if self.shared.stage == Stage::Stopped {
            return Vec::new();
        }
        assert!(now.tick >= self.shared.now.tick, "time does not go back");
        self.shared.now = now;
        match event {
            Event::Opened {
                stream,
                peer,
                opening,
            } => self.on_opened(stream, peer, opening),
            Event::MessageReceived { stream, message } => self.on_message_received(stream, message),
            Event::StreamClosed { stream } => self.on_stream_closed(stream),
            Event::Changed => {
                self.is_watched = true;
                self.look_at_market();
            }
            Event::WatchLost => {
                self.is_watched = false;
                self.look_soon();
            }
            Event::TermsChanged => self.look_at_market(),
            Event::SpeedDue(resources) => {
                self.placed_asks.on_speed(&self.shared, resources);
                self.look_at_market();
            }
            Event::SandboxLost { lease, fault } => {
                let has_place = |lease: &&LeaseCore| lease.stage >= WorkStage::Checking;
                if self.leases.get(&lease).filter(has_place).is_some() {
                    self.end_lease(lease, End::Failed(fault));
                }
            }
            Event::Stop => self.on_stop(),
            Event::Hurry => self.on_last_call(),
            Event::TimerFired => {}
            Event::EffectAnswered { ticket, answer } => {
                if let Some(wait) = self.shared.pending.take_wait(ticket) {
                    self.on_answer(wait, answer);
                }
            }
        }
        while let Some(timer) = self.shared.timers.pop(now.tick) {
            self.on_timer(timer);
        }
        self.settle_down();
        self.shared.take_effects()
    }

    /// Returns the moment at which you must send [`Event::TimerFired`], if any.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Micros> {
        self.shared.timers.wakes_at()
    }

    /// Returns the state of the provider, for people.
    #[must_use]
    pub fn status(&self) -> ProviderStatus {
        let at_work = self.leases.iter();
        let owed = self.claims.iter();
        ProviderStatus {
            stage: self.shared.stage,
            at_work: at_work.map(|(id, lease)| (*id, lease.stage)).collect(),
            owed: owed.map(|(id, claim)| (*id, claim.stage)).collect(),
            is_writable: !self.shared.journal.is_broken,
            counts: self.counts,
        }
    }

    /// Asserts all invariants of the provider.
    pub fn assert_invariants(&self) {
        assert!(self.leases.len() <= RUNNING_MAX, "so many at work at most");
        assert!(self.streams.len() <= STREAMS_MAX, "so many streams at most");
        self.leases
            .values()
            .for_each(|l| l.assert_invariants(&self.shared));
        self.claims
            .values()
            .for_each(|c| c.assert_invariants(&self.shared));
        let both = self.leases.keys().find(|l| self.claims.contains_key(l));
        assert_eq!(both, None, "a lease is at work or owed");
        let runs: usize = self.leases.values().map(LeaseCore::at_work).sum();
        assert_eq!(
            self.shared.runs_by_rank.at_work() as usize,
            runs,
            "turns are had"
        );
        for (stream, user) in &self.streams {
            let Use::Lease(lease) = user else { continue };
            let at_work = self.leases.get(lease).and_then(|l| l.stream);
            let owed = self.claims.get(lease).and_then(|c| c.stream);
            assert_eq!(at_work.or(owed), Some(*stream), "a stream has its lease");
        }
        for (timer, _) in self.shared.timers.iter() {
            let Some(lease) = timer.lease_id() else {
                continue;
            };
            let is_known = self.leases.contains_key(&lease) || self.claims.contains_key(&lease);
            assert!(is_known, "a timer has an owner");
        }
        if self.shared.stage == Stage::Stopped {
            assert!(
                self.shared.pending.is_empty(),
                "who has stopped waits for nothing"
            );
            assert_eq!(self.wakes_at(), None);
        }
    }

    /// Returns the BLAKE3 hash of its whole state: two cores with the same hash will behave alike
    /// from now on.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let bytes = postcard::to_allocvec(self).expect("plain data in memory always encodes");
        *blake3::hash(&bytes).as_bytes()
    }

    /// Returns the number of answers that arrived for no pending effect.
    #[must_use]
    pub fn stray_answers(&self) -> u64 {
        self.shared.pending.strays
    }
}
