//! A dispute: a buyer accuses its provider of a wrong output, and the validators, as the jury,
//! compute the lease's work again. The exchange holds the bond, counts verdicts and moves credits;
//! it knows no tensor.
//!
//! ```text
//! Open ──⌊2n/3⌋+1 say guilty──> Guilty: the provider loses stake, the bond goes back
//!      ──⌊2n/3⌋+1 say innocent──> Innocent: the bond goes to the provider
//!      ──the time is over──> Undecided: the bond goes back
//! ```
//! Only leases whose bid demanded `exact-1` can be disputed: for other work two honest machines can
//! differ.

use serde::{Deserialize, Serialize};

use crate::ids::{AccountKey, ContentId, JobId, LeaseId, number};
use crate::receipt::Receipt;
use crate::units::{Credits, Millis};

number! {
    /// A dispute, numbered from 1.
    DisputeId(u64)
}

/// The credits that an accuser must put up. An accusation costs every validator some seconds of
/// computing; an unfounded one costs its accuser this. It is no rule of the genesis, because
/// another rule would change the id of every market that exists.
pub const DISPUTE_BOND: Credits = Credits(1_000_000);

/// How long the validators have for their verdicts, in log time. Then the dispute ends without
/// effect.
pub const DISPUTE_LIFE: Millis = Millis(10 * 60_000);

/// The most disputes that can be open: each is a part of what every state root hashes.
pub const DISPUTES_OPEN_MAX: usize = 16;

/// The most open disputes of one accuser, so that one buyer cannot take all places.
pub const DISPUTES_OPEN_OF_ONE_MAX: u32 = 4;

/// The most weights, apart from its graph, that an accusation can name.
pub const ACCUSED_WEIGHTS_MAX: usize = 512;

/// The number of closed disputes that the exchange always remembers: those that closed last.
pub const DISPUTES_CLOSED_KEPT: usize = 64;

/// The most closed disputes that it remembers in all: it keeps more than
/// [`DISPUTES_CLOSED_KEPT`] while their buyers could still accuse the same providers of the same
/// outputs. Beyond, a dispute can no longer be read, but its lease still shows that it was judged.
pub const DISPUTES_CLOSED_MAX: usize = 256;

/// A buyer's accusation of its provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accusation {
    /// The receipt that the provider signed.
    pub receipt: Receipt,
    /// The weights that its graph names by their hashes, so that the validators can fetch them. The
    /// graph decides which they are: with a wrong list no validator can compute anything.
    pub weights: Vec<ContentId>,
}

/// A validator's finding about a provider's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The provider signed an output that the work does not give.
    Guilty,
    /// The work gives every output that the provider signed.
    Innocent,
}

/// The state of a dispute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DisputeState {
    /// The validators compute.
    Open {
        /// The log time at which the dispute ends without effect.
        until: Millis,
    },
    /// The provider was convicted.
    Guilty {
        /// When it was.
        at: Millis,
        /// The stake that it lost.
        slashed: Credits,
        /// The part of it that the buyer got.
        compensated: Credits,
    },
    /// The provider was cleared, and has the bond.
    Innocent {
        /// When it was.
        at: Millis,
    },
    /// Too few validators agreed in time.
    Undecided {
        /// When the time was over.
        at: Millis,
    },
}

/// An accusation, and what the validators find.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispute {
    /// The dispute's id.
    pub id: DisputeId,
    /// The lease of the output.
    pub lease: LeaseId,
    /// The buyer's job, under which its node serves the graph and the inputs.
    pub job: JobId,
    /// The lease's buyer, who accuses.
    pub buyer: AccountKey,
    /// The accused provider.
    pub provider: AccountKey,
    /// The graph that the provider ran.
    pub graph: ContentId,
    /// The inputs that it ran the graph on, by its own receipt; none once the dispute is closed.
    pub inputs: Vec<ContentId>,
    /// The weights that the graph names by their hashes; none once the dispute is closed.
    pub weights: Vec<ContentId>,
    /// The outputs that it signed; none once the dispute is closed.
    pub outputs: Vec<ContentId>,
    /// The credits that the accuser put up.
    pub bond: Credits,
    /// When it was opened.
    pub opened: Millis,
    /// The findings so far, in the order of the log.
    pub verdicts: Vec<(AccountKey, Verdict)>,
    /// Its current state.
    pub state: DisputeState,
}

impl Dispute {
    /// Returns whether the validators can still decide.
    pub fn is_open(&self) -> bool {
        matches!(self.state, DisputeState::Open { .. })
    }

    /// Returns the log time at which the dispute was closed; none if it is open.
    pub fn closed_at(&self) -> Option<Millis> {
        match self.state {
            DisputeState::Open { .. } => None,
            DisputeState::Guilty { at, .. }
            | DisputeState::Innocent { at }
            | DisputeState::Undecided { at } => Some(at),
        }
    }

    /// Returns whether a validator has given its verdict.
    pub fn has_judged(&self, juror: AccountKey) -> bool {
        self.verdicts.iter().any(|(known, _)| *known == juror)
    }

    /// Returns the number of a jury's members who gave this verdict.
    pub fn count_verdicts(&self, verdict: Verdict, jury: &[AccountKey]) -> usize {
        let counts =
            |(juror, given): &&(AccountKey, Verdict)| *given == verdict && jury.contains(juror);
        self.verdicts.iter().filter(counts).count()
    }
}

/// Returns how many of `members` validators must agree: ⌊2n/3⌋+1, so that less than a third of
/// liars decides nothing.
pub fn verdicts_needed(members: usize) -> usize {
    (members.saturating_mul(2) / 3).saturating_add(1)
}
