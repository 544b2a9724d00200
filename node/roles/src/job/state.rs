//! What a core remembers of attempts, their legs and their requests.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, Credits, LeaseId, Millis, Note, Receipt};
use souk_memory::ContentId;

use super::event::Leg;
use super::facts::{PastAnswer, Terms};
use super::lease_span::LeaseSpan;
use super::plan::Plan;
use super::reason::Reason;
use super::seen_span::SeenTime;
use crate::clock::Micros;
use crate::lease::Start;

/// Tensors by name.
pub(super) type Tensors = Vec<(String, ContentId)>;

/// What an attempt is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Errand {
    /// To answer requests.
    Main,
    /// To decide between two runs of a part that are unlike.
    Check,
}

/// What an effect's answer is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Wait {
    Began,
    Look(Errand),
    Plan(Errand),
    Buy(Errand),
    Adopt(Errand),
    Find(u32),
    RecordAttempt(u32),
    RecordSkipped(u32),
    Skip(Errand),
    Announce(Errand),
    Serve(u32),
    FetchAnswer {
        leg: Leg,
        request: u32,
        name: String,
    },
    FetchKept {
        leg: Leg,
        name: String,
        id: ContentId,
    },
    /// What a part read that is to be run a third time.
    FetchGiven {
        leg: Leg,
        name: String,
    },
    /// Where those are who made what an earlier life was given.
    FindPast {
        request: u32,
    },
    /// What an earlier life was given, from who made it.
    FetchPast {
        request: u32,
        name: String,
        id: ContentId,
    },
    FetchPair {
        pair: u32,
        is_left: bool,
    },
    Compare {
        pair: u32,
    },
    FetchUntaken {
        maker: Leg,
        consumer: Leg,
        untaken: RelayedOffer,
    },
    HandOn {
        maker: Leg,
        consumer: Leg,
        untaken: RelayedOffer,
    },
    Give {
        attempt: Option<u32>,
        request: u32,
    },
    Keep(u32),
    RecordRight(u32),
    Sign {
        lease: LeaseId,
        leg: Leg,
    },
    /// Of an earlier life, and whether that paid it.
    SignPast {
        leg: Leg,
        is_paid: bool,
    },
    Settle {
        lease: LeaseId,
        leg: Option<Leg>,
    },
    RecordRefused {
        leg: Leg,
        lease: LeaseId,
        why: String,
    },
    Dispute(LeaseId),
    StartWork(Leg),
    AcceptNote(LeaseId),
    EndLease(LeaseId),
    LookToExtend(u32),
    Extend(LeaseId),
    Record,
    LookPast,
    LookLast,
    RecordOver,
}

/// A tensor that is on its way through the buyer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RelayedOffer {
    pub offer: crate::lease::Offer,
    pub why: String,
}

impl Wait {
    /// The attempt that goes no further before this is answered.
    pub(super) fn attempt(&self) -> Option<u32> {
        match self {
            Wait::Find(n) | Wait::RecordAttempt(n) | Wait::Serve(n) => Some(*n),
            Wait::Keep(n) | Wait::RecordRight(n) | Wait::RecordSkipped(n) => Some(*n),
            Wait::FetchAnswer { leg, .. }
            | Wait::FetchKept { leg, .. }
            | Wait::FetchGiven { leg, .. } => Some(leg.attempt),
            Wait::Give { attempt, .. } => *attempt,
            Wait::Sign { leg, .. } => Some(leg.attempt),
            Wait::Settle { leg, .. } => leg.map(|leg| leg.attempt),
            _ => None,
        }
    }

    /// Whether it is awaited although the job ends.
    pub(super) fn outlives(&self) -> bool {
        matches!(
            self,
            Wait::RecordRight(_)
                | Wait::Sign { .. }
                | Wait::SignPast { .. }
                | Wait::Settle { .. }
                | Wait::RecordRefused { .. }
                | Wait::Dispute(_)
                | Wait::StartWork(_)
                | Wait::AcceptNote(_)
                | Wait::EndLease(_)
                | Wait::Extend(_)
                | Wait::Record
        )
    }
}

/// Kinds of moments that are awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Timer {
    /// The job's time is over.
    Deadline,
    /// Book or escrow are looked at again.
    LookAgain(Errand),
    /// No request is sent in this attempt any more.
    SendUntil(u32),
    /// No answer is awaited in this attempt any more.
    AwaitUntil(u32),
    /// The attempt's first lease ends.
    LeaseEnd(u32),
    /// Half of what was left of its leases is over: they may be made longer.
    Extend(u32),
    /// The log is told that the work of a leg has begun.
    Start(Leg),
    /// A provider was to say at least that it lives.
    Silent(Leg),
    /// A note of a leg at work is to be answered.
    Note(Leg),
    /// A part was to be made.
    Patience { leg: Leg, request: u32, part: u32 },
    /// A leg that was told to stop was to be done.
    Wrap(Leg),
    /// A provider at work is asked again.
    AskAgain(Leg),
    /// A leg in doubt is decided.
    Decide(Leg),
    /// It is looked once more for what still runs.
    LookLast,
}

impl Timer {
    /// The leg whose conversation it is about.
    pub(super) fn leg(self) -> Option<Leg> {
        match self {
            Timer::Start(leg)
            | Timer::Silent(leg)
            | Timer::Note(leg)
            | Timer::Patience { leg, .. }
            | Timer::Wrap(leg)
            | Timer::AskAgain(leg) => Some(leg),
            _ => None,
        }
    }
}

/// How far the buying of an attempt is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pursuit {
    pub phase: Phase,
    /// A plan that is to be bought.
    pub plan: Option<Box<Plan>>,
    /// Until when what passes is waited for.
    pub wait_until: Option<Micros>,
    /// The budget is too small while leases that are over hold some of it.
    pub shortage: Option<Shortage>,
    /// What leases held when they were looked at last.
    pub held: Credits,
    /// What was left of the budget then.
    pub left: Option<Credits>,
}

/// What is under way between attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Phase {
    /// Nothing, or an attempt.
    #[default]
    Idle,
    /// The job's leases are looked at.
    Looking,
    /// A plan is made.
    Planning,
    /// A moment is waited for.
    Pausing,
    /// A gang is bid for.
    Buying,
    /// It is looked for whether it was bought.
    Adopting,
}

/// A budget that is too small as long as nothing comes back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shortage {
    pub until: Micros,
    pub held: Credits,
    pub reason: Reason,
}

/// Where a leg is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Stage {
    /// Its lease is bought.
    Sold,
    /// Its provider is asked how the lease went.
    Asked,
    /// Its provider is told what to do.
    Opened,
    /// It has accepted.
    Accepted,
    /// It has compiled.
    Ready,
    /// It was told to go.
    Working,
    /// Its result is here and not judged.
    Finished,
    /// Its result is not borne out by anybody.
    Doubted,
    /// It is right, and that is being put down.
    Right,
    /// The receipt is signed or settled.
    Signing,
    /// Both signed, and the market knows.
    Settled,
    /// It is not paid.
    Refused,
    /// It gave no result.
    Lost,
}

impl Stage {
    /// Whether its provider may still say something of its work.
    pub(super) fn is_talking(self) -> bool {
        (Stage::Asked..=Stage::Working).contains(&self)
    }

    /// Whether nothing more comes of it.
    pub(super) fn is_over(self) -> bool {
        self >= Stage::Finished
    }

    /// Whether the attempt need not wait for it.
    pub(super) fn is_closed(self) -> bool {
        self >= Stage::Settled || self == Stage::Doubted
    }
}

/// One lease of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LegState {
    pub terms: Terms,
    /// What its provider is told; none before its peers are found.
    pub start: Option<Start>,
    pub stage: Stage,
    /// How many of the attempt's requests it was told of.
    pub told: usize,
    /// Whether it knows that none follows.
    pub knows_last: bool,
    /// How many parts of each request it is still to run.
    pub limit: Option<u32>,
    pub has_stalled: bool,
    /// When it said something last.
    pub heard: Micros,
    /// The planned time of a run that failed by its inputs: it is paid, though it gave nothing.
    pub failed_run: Micros,
    /// Whether the log was told that its work has begun: silence pays for it from then on.
    pub has_started: bool,
    /// The note of usage that was seen last.
    pub noted: Option<Note>,
    /// Parts that were made when it last accepted a note by word.
    pub agreed_parts: usize,
    /// The requests that it was told of and has not made whole.
    pub open: BTreeSet<u32>,
    /// What is known of its length beside its terms.
    pub span: LeaseSpan,
    /// How long it had something to do.
    pub seen: SeenTime,
    /// Since when an answer of it is awaited that needs no work, and the soonest that one came.
    pub called: Option<Micros>,
    pub echo: Option<Micros>,
    /// Whether it is refused in the log already, though what it made may be right.
    pub is_disputed: bool,
    /// What it made of each request, part by part.
    pub made: BTreeMap<u32, Vec<Tensors>>,
    /// What it wants signed.
    pub receipt: Option<Box<Receipt>>,
    /// What it serves, now it is done.
    pub served: BTreeSet<ContentId>,
    /// What of it others did not take.
    pub untaken: BTreeSet<(u32, String, LeaseId)>,
    /// What of it is in doubt, and how many comparisons with answers are under way.
    pub doubt: Option<Doubt>,
}

/// What of a leg nobody bears out yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Doubt {
    /// Name, tensor, and how far results of that part may be apart.
    pub left: Vec<(String, ContentId, u32)>,
    /// The note that says how long there is.
    pub note: Option<Millis>,
}

impl LegState {
    pub(super) fn new(terms: Terms) -> LegState {
        LegState {
            terms,
            start: None,
            stage: Stage::Sold,
            told: 0,
            knows_last: false,
            limit: None,
            has_stalled: false,
            heard: Micros(0),
            failed_run: Micros(0),
            has_started: false,
            noted: None,
            agreed_parts: 0,
            open: BTreeSet::new(),
            span: LeaseSpan::default(),
            seen: SeenTime::default(),
            called: None,
            echo: None,
            is_disputed: false,
            made: BTreeMap::new(),
            receipt: None,
            served: BTreeSet::new(),
            untaken: BTreeSet::new(),
            doubt: None,
        }
    }

    /// It has answered what needs no work.
    pub(super) fn answered(&mut self, now: Micros) {
        if let Some(called) = self.called.take() {
            let took = now.since(called);
            self.echo = Some(self.echo.map_or(took, |echo| echo.min(took)));
        }
    }

    /// How many parts of a request it made.
    pub(super) fn parts_made(&self, request: u32) -> u32 {
        let made = self.made.get(&request).map_or(0, Vec::len);
        u32::try_from(made).expect("parts are few")
    }

    /// Everything that it said it made.
    pub(super) fn all_made(&self) -> impl Iterator<Item = &(String, ContentId)> {
        self.made.values().flatten().flatten()
    }
}

/// How far a request is in an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Progress {
    /// Some part is not made.
    Open,
    /// Two runs of it are compared.
    Comparing,
    /// Its outputs are fetched.
    Fetching,
    /// They are here.
    Here,
    /// They are given to the caller.
    Given,
    /// The caller has them.
    Taken,
    /// Two runs are not alike, or an output did not come.
    Broken,
}

/// How far the judging of an attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Judging {
    Running,
    Comparing,
    Checking,
    Fetching,
    Keeping,
    Settling,
    /// Some of its legs are in doubt; nothing waits for that.
    Doubting,
}

/// A gang of leases and what is done with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Attempt {
    pub errand: Errand,
    /// Whether an earlier life began it.
    pub is_resumed: bool,
    pub plan: Box<Plan>,
    pub legs: Vec<LegState>,
    /// The numbers of the requests that were sent, in order.
    pub sent: Vec<u32>,
    pub progress: BTreeMap<u32, Progress>,
    /// The same of each sequence.
    pub sequences: BTreeMap<u32, Vec<u32>>,
    /// The tensors that the buyer gave.
    pub given: BTreeSet<ContentId>,
    /// The most requests that the receipts can name, and their time allows.
    pub requests_max: usize,
    /// Nothing more is sent.
    pub no_more: bool,
    /// All have accepted.
    pub has_begun: bool,
    pub failed: Option<Reason>,
    /// What is no failure where there is another.
    pub stalled: Option<Reason>,
    pub judging: Judging,
    /// Whether two runs of a part of a request are alike, once that is known.
    pub alike: BTreeMap<(u32, u32), bool>,
    pub questions: Vec<Question>,
    /// Parts whose run is wrong, or read what is wrong.
    pub tainted: BTreeSet<u32>,
    /// Values of the request that is left, right and here.
    pub right: BTreeMap<String, ContentId>,
}

/// A part of whose runs it is not known which is right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Question {
    pub request: u32,
    pub part: u32,
    /// The value that differs, or the part's first where there is nothing to differ from.
    pub value: String,
    /// The place of each run that came to its end, and whether it agrees with the third.
    pub runs: BTreeMap<u32, bool>,
    /// What a third made.
    pub third: Option<BTreeMap<String, ContentId>>,
    pub is_compared: bool,
}

impl Attempt {
    pub(super) fn leg(&self, place: u32) -> &LegState {
        &self.legs[place as usize]
    }

    pub(super) fn places(&self) -> std::ops::Range<u32> {
        0..u32::try_from(self.legs.len()).expect("legs are few")
    }

    /// The number of a part among those of its place.
    pub(super) fn order(&self, part: u32) -> usize {
        let place = self.plan.parts[part as usize].leg;
        let mut parts = self.plan.parts_at(place);
        let order = parts.position(|(number, _)| number == part);
        order.expect("a part is run where it was placed")
    }

    /// What a place made of a part of a request.
    pub(super) fn made(&self, place: u32, request: u32, part: u32) -> Option<&Tensors> {
        let made = self.leg(place).made.get(&request)?;
        made.get(self.order(part))
    }

    /// The value of a name among what a place made of a part.
    pub(super) fn value(
        &self,
        place: u32,
        request: u32,
        part: u32,
        name: &str,
    ) -> Option<ContentId> {
        let made = self.made(place, request, part)?;
        made.iter()
            .find(|(made, _)| made == name)
            .map(|(_, id)| *id)
    }

    /// Whether every place made every part of a request.
    pub(super) fn is_made(&self, request: u32) -> bool {
        self.places().all(|place| {
            let parts = self.plan.parts_at(place).count();
            self.leg(place).parts_made(request) as usize == parts
        })
    }

    /// Requests that were sent and are not with the caller.
    pub(super) fn under_way(&self) -> usize {
        self.sent.len() - self.answered()
    }

    /// Requests of it that the caller has.
    pub(super) fn answered(&self) -> usize {
        let mut progress = self.progress.values();
        progress
            .by_ref()
            .filter(|it| **it == Progress::Taken)
            .count()
    }

    /// Whether a run may be used: it is not refused, nor does it read what is wrong.
    /// Whether what a leg made is borne out by its other run, or has none.
    pub(super) fn is_borne_out(&self, place: u32) -> bool {
        let first = self.plan.first_of(place);
        if first == place && self.plan.second_of(place).is_none() {
            return true;
        }
        let made = self.leg(place).made.iter();
        let mut parts = made.flat_map(|(request, made)| {
            let parts = self.plan.parts_at(place).zip(made);
            parts.map(|((number, _), _)| (*request, number))
        });
        parts.all(|part| self.alike.get(&part) == Some(&true))
    }

    /// Whether what was made can be gone on with.
    pub(super) fn is_usable(&self, place: u32, request: u32, part: u32) -> bool {
        let leg = self.leg(place);
        let stands = !matches!(leg.stage, Stage::Refused | Stage::Lost | Stage::Doubted);
        stands && self.made(place, request, part).is_some() && !self.tainted.contains(&part)
    }
}

/// A request that is not with the caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OpenRequest {
    pub sequence: u32,
    /// How many times as much it brings as was planned with.
    pub size: u32,
    pub inputs: Tensors,
    pub id: ContentId,
    /// Values that are here and kept.
    pub values: BTreeMap<String, ContentId>,
    /// The attempt of an earlier life that answered it.
    pub answered_by: Option<u32>,
    /// Whether the caller is given its answer.
    pub is_given: bool,
}

/// What earlier lives know of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownRequest {
    /// Values that are on the disk.
    pub values: BTreeMap<String, ContentId>,
    /// Its answer, and who made that.
    pub answer: Option<PastAnswer>,
    pub makers: Vec<AccountKey>,
}

/// A gang of which nobody knows whether it was bought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Uncertain {
    pub escrow: Credits,
    pub until: Micros,
}
