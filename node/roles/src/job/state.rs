//! The types of a job core's state: attempts, their legs, their requests, and the purposes of
//! pending effects. The other files of `job` read and change them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, Credits, LeaseId, Millis, Note, Receipt};
use souk_memory::ContentId;

use super::event::Leg;
use super::facts::{PastAnswer, Terms};
use super::plan::Plan;
use super::reason::Reason;
use super::seen_span::SeenTime;
use super::warning_time::WarningTime;
use crate::clock::Micros;
use crate::lease::Start;

/// Tensors by name.
pub(super) type Tensors = Vec<(String, ContentId)>;

/// The purpose of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum AttemptPurpose {
    /// The attempt answers requests.
    Main,
    /// The attempt decides between two runs of a part that disagree.
    Check,
}

/// The purpose of a pending effect, which its answer returns to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Wait {
    Began,
    Look(AttemptPurpose),
    Plan(AttemptPurpose),
    Buy(AttemptPurpose),
    Adopt(AttemptPurpose),
    Find(u32),
    RecordAttempt(u32),
    RecordSkipped(u32),
    Skip(AttemptPurpose),
    Announce(AttemptPurpose),
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
    /// Fetches an input of a part for its third run.
    FetchGiven {
        leg: Leg,
        name: String,
    },
    /// Finds the makers of the answers that an earlier life gave.
    FindPast {
        request: u32,
    },
    /// Fetches from its maker a value that an earlier life gave.
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
    /// Signs a receipt of an earlier life. `is_paid` says whether that life paid it.
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

/// A tensor that the buyer passes on from its maker to a reader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RelayedOffer {
    pub offer: crate::lease::Offer,
    pub why: String,
}

impl Wait {
    /// Returns the attempt that must wait for this answer.
    pub(super) fn attempt_number(&self) -> Option<u32> {
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

    /// Returns whether the core awaits the answer even while the job ends.
    pub(super) fn can_outlive_job(&self) -> bool {
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

/// The progress of an attempt's purchase.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AttemptPlan {
    pub phase: Phase,
    /// The plan to buy.
    pub plan: Option<Box<Plan>>,
    /// The time since which it waits for devices.
    pub since: Option<Micros>,
    /// The shortage of budget while closed leases still hold some of it.
    pub shortage: Option<Shortage>,
    /// The escrow of the leases at the last look.
    pub held: Credits,
    /// The rest of the budget at the last look.
    pub left: Option<Credits>,
}

/// The activity between attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Phase {
    /// No activity, or an attempt is running.
    #[default]
    Idle,
    /// The core looks up the job's leases.
    Looking,
    /// The core awaits a plan.
    Planning,
    /// The core waits for a moment.
    Pausing,
    /// The core bids for a gang of leases.
    Buying,
    /// The core looks up whether the market sold the gang.
    Adopting,
}

/// A budget that is too small until some escrow returns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shortage {
    pub until: Micros,
    pub held: Credits,
    pub reason: Reason,
}

/// The stage of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Stage {
    /// The market sold its lease.
    Sold,
    /// The core asks its provider how the lease went.
    Asked,
    /// The core opened a stream with the work.
    Opened,
    /// The provider accepted.
    Accepted,
    /// The provider compiled its parts.
    Ready,
    /// The core ordered the provider to begin.
    Working,
    /// The result is here and not judged.
    Finished,
    /// No other run or answer confirms the result.
    Doubted,
    /// The result is right, and the core records that.
    Right,
    /// The core signs or settles the receipt.
    Signing,
    /// Both sides signed, and the market knows.
    Settled,
    /// The core does not pay for the leg.
    Refused,
    /// The leg gave no result.
    Lost,
}

impl Stage {
    /// Returns whether its provider can still report about its work.
    pub(super) fn is_talking(self) -> bool {
        (Stage::Asked..=Stage::Working).contains(&self)
    }

    /// Returns whether the leg has ended.
    pub(super) fn is_over(self) -> bool {
        self >= Stage::Finished
    }

    /// Returns whether the attempt can close without waiting for the leg.
    pub(super) fn is_closed(self) -> bool {
        self >= Stage::Settled || self == Stage::Doubted
    }
}

/// The state of one lease of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LegState {
    pub terms: Terms,
    /// The work for its provider; none until the core has found the provider's peers.
    pub start: Option<Start>,
    pub stage: Stage,
    /// The number of the attempt's requests sent to it.
    pub requests_sent: usize,
    /// Whether the provider knows that no request follows.
    pub knows_last: bool,
    /// The number of parts of each request that it can still run; no limit if none.
    pub limit: Option<u32>,
    pub has_stalled: bool,
    /// Whether it reported the contents that it fetched.
    pub has_fetched: bool,
    /// The number of parts of each request whose begin it reported.
    pub parts_begun: BTreeMap<u32, u32>,
    /// When the provider was last heard from.
    pub last_heard: Micros,
    /// The most that a run took that failed because of its inputs, which the buyer pays for.
    pub failed_run: Micros,
    /// Whether the log knows that its work has begun: from then on, silence pays for it.
    pub has_started: bool,
    /// The last usage note seen.
    pub last_note: Option<Note>,
    /// The number of parts made when the core last accepted a note on the stream.
    pub agreed_parts: usize,
    /// The requests sent to it that it has not completed.
    pub open: BTreeSet<u32>,
    /// The latest end that the buyer asked the market for: its lease can last so long, whether an
    /// answer came or not.
    pub asked_until: Millis,
    /// The time during which it had work.
    pub seen: SeenTime,
    /// The time during which it waited for a further request.
    pub waited: SeenTime,
    /// When the core sent a message whose answer needs no work, and the shortest such round trip.
    pub called: Option<Micros>,
    pub round_trip_min: Option<Micros>,
    /// Whether the core disputed it in the log already, although its result can be right.
    pub is_disputed: bool,
    /// The outputs that it made of each request, part by part.
    pub outputs_made: BTreeMap<u32, Vec<Tensors>>,
    /// The receipt that it asks the buyer to sign.
    pub receipt: Option<Box<Receipt>>,
    /// The contents that it serves since it finished.
    pub served: BTreeSet<ContentId>,
    /// Its outputs that their readers did not accept.
    pub untaken_outputs: BTreeSet<(u32, String, LeaseId)>,
    /// The doubt about its outputs, if any.
    pub doubt: Option<UnconfirmedOutputs>,
}

/// The outputs of a leg that no other run or answer confirms yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UnconfirmedOutputs {
    /// The name, the tensor and the tolerance of its part, in parts per million.
    pub unconfirmed: Vec<(String, ContentId, u32)>,
    /// When the log accepted the note that sets the time to decide.
    pub note: Option<Millis>,
}

impl LegState {
    pub(super) fn new(terms: Terms) -> LegState {
        LegState {
            terms,
            start: None,
            stage: Stage::Sold,
            requests_sent: 0,
            knows_last: false,
            limit: None,
            has_stalled: false,
            has_fetched: false,
            parts_begun: BTreeMap::new(),
            last_heard: Micros(0),
            failed_run: Micros(0),
            has_started: false,
            last_note: None,
            agreed_parts: 0,
            open: BTreeSet::new(),
            asked_until: Millis(0),
            seen: SeenTime::default(),
            waited: SeenTime::default(),
            called: None,
            round_trip_min: None,
            is_disputed: false,
            outputs_made: BTreeMap::new(),
            receipt: None,
            served: BTreeSet::new(),
            untaken_outputs: BTreeSet::new(),
            doubt: None,
        }
    }

    /// Records an answer that needs no work.
    pub(super) fn record_echo(&mut self, now: Micros) {
        if let Some(called) = self.called.take() {
            let took = now.since(called);
            self.round_trip_min = Some(self.round_trip_min.map_or(took, |echo| echo.min(took)));
        }
    }

    /// Returns the number of parts of a request that it made.
    pub(super) fn parts_made(&self, request: u32) -> u32 {
        let made = self.outputs_made.get(&request).map_or(0, Vec::len);
        u32::try_from(made).expect("parts are few")
    }

    /// Returns every output that it reported.
    pub(super) fn all_made(&self) -> impl Iterator<Item = &(String, ContentId)> {
        self.outputs_made.values().flatten().flatten()
    }
}

/// The progress of a request in an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Progress {
    /// Some part is missing.
    Open,
    /// The core compares two runs of it.
    Comparing,
    /// The core fetches its outputs.
    Fetching,
    /// The outputs are here.
    Here,
    /// The core passes the outputs to the caller.
    Given,
    /// The caller has them.
    Taken,
    /// Two runs differ, or an output did not arrive.
    Broken,
}

/// The progress of the verdict on an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Judging {
    Running,
    Comparing,
    Checking,
    Fetching,
    Keeping,
    Settling,
    /// Some of its legs are in doubt; no other work waits for them.
    Doubting,
}

/// A gang of leases and the work done with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Attempt {
    pub purpose: AttemptPurpose,
    /// Whether an earlier life began it.
    pub is_resumed: bool,
    pub plan: Box<Plan>,
    pub legs: Vec<LegState>,
    /// The numbers of the requests sent, in order.
    pub sent: Vec<u32>,
    pub progress: BTreeMap<u32, Progress>,
    /// The numbers of the requests sent, by sequence.
    pub sequences: BTreeMap<u32, Vec<u32>>,
    /// The tensors that the buyer gave.
    pub request_inputs: BTreeSet<ContentId>,
    /// The most requests that the receipts can name and their time allows.
    pub requests_max: usize,
    /// Whether the attempt sends no more requests.
    pub no_more: bool,
    /// When the caller of a session is warned of the end of its leases.
    pub warning: WarningTime,
    /// Whether all providers have accepted.
    pub has_begun: bool,
    pub failed: Option<Reason>,
    /// A reason that counts only if there is no failure.
    pub stalled: Option<Reason>,
    pub judging: Judging,
    /// Whether two runs of a part of a request agree, once the core knows.
    pub alike: BTreeMap<(u32, u32), bool>,
    pub questions: Vec<Question>,
    /// The parts whose run is wrong, or which read a wrong value.
    pub tainted: BTreeSet<u32>,
    /// The values of the unanswered request that are right and here.
    pub right: BTreeMap<String, ContentId>,
}

/// A part with runs that disagree, or that no second run confirms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Question {
    pub request: u32,
    pub part: u32,
    /// The value that differs, or the part's first value if there are no two to compare.
    pub value: String,
    /// The place of each run that completed, and whether it agrees with the third.
    pub runs: BTreeMap<u32, bool>,
    /// The outputs of the third run.
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

    /// Returns the index of a part among those of its place.
    pub(super) fn part_order(&self, part: u32) -> usize {
        let place = self.plan.parts[part as usize].leg;
        let mut parts = self.plan.parts_at(place);
        let order = parts.position(|(number, _)| number == part);
        order.expect("a part is run where it was placed")
    }

    /// Returns the outputs that a place made of a part of a request.
    pub(super) fn part_outputs(&self, place: u32, request: u32, part: u32) -> Option<&Tensors> {
        let made = self.leg(place).outputs_made.get(&request)?;
        made.get(self.part_order(part))
    }

    /// Returns a named output that a place made of a part.
    pub(super) fn value(
        &self,
        place: u32,
        request: u32,
        part: u32,
        name: &str,
    ) -> Option<ContentId> {
        let made = self.part_outputs(place, request, part)?;
        made.iter()
            .find(|(made, _)| made == name)
            .map(|(_, id)| *id)
    }

    /// Returns whether every place made every part of a request.
    pub(super) fn is_made(&self, request: u32) -> bool {
        self.places().all(|place| {
            let parts = self.plan.parts_at(place).count();
            self.leg(place).parts_made(request) as usize == parts
        })
    }

    /// Returns the number of requests that the attempt sent and the caller does not have.
    pub(super) fn under_way(&self) -> usize {
        self.sent.len() - self.answer_count()
    }

    /// Returns the number of its requests that the caller has.
    pub(super) fn answer_count(&self) -> usize {
        let progress = self.progress.values();
        progress.filter(|it| **it == Progress::Taken).count()
    }

    /// Returns whether a leg's other run confirms its outputs, or there is no other run.
    pub(super) fn is_borne_out(&self, place: u32) -> bool {
        let first = self.plan.first_of(place);
        if first == place && self.plan.second_of(place).is_none() {
            return true;
        }
        let made = self.leg(place).outputs_made.iter();
        let mut parts = made.flat_map(|(request, made)| {
            let parts = self.plan.parts_at(place).zip(made);
            parts.map(|((number, _), _)| (*request, number))
        });
        parts.all(|part| self.alike.get(&part) == Some(&true))
    }

    /// Returns whether a run can be used: its leg is not refused, and it reads no wrong value.
    pub(super) fn is_usable(&self, place: u32, request: u32, part: u32) -> bool {
        let leg = self.leg(place);
        let stands = !matches!(leg.stage, Stage::Refused | Stage::Lost | Stage::Doubted);
        stands && self.part_outputs(place, request, part).is_some() && !self.tainted.contains(&part)
    }
}

/// A request that the caller has no answer to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OpenRequest {
    pub sequence: u32,
    /// Its size as a multiple of the planned size.
    pub size: u32,
    pub inputs: Tensors,
    /// Whether its answer has the outputs that feed the next request.
    pub keep: bool,
    pub id: ContentId,
    /// The values that are here and kept.
    pub values: BTreeMap<String, ContentId>,
    /// The attempt of an earlier life that answered it.
    pub answered_by: Option<u32>,
    /// Whether the core passed its answer to the caller.
    pub is_given: bool,
}

/// The knowledge that earlier lives left of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownRequest {
    /// The values that are on the disk.
    pub values: BTreeMap<String, ContentId>,
    /// Its answer. `makers` holds the accounts that made it.
    pub answer: Option<PastAnswer>,
    pub makers: Vec<AccountKey>,
}

/// A gang that the market may or may not have sold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UncertainPurchase {
    pub escrow: Credits,
    pub until: Micros,
}
