//! What an account can ask of the exchange, and what it gets back.

use serde::{Deserialize, Serialize};

use crate::event::Event;
use crate::ids::{AccountKey, LeaseId, OrderId, RequestId};
use crate::order::{Ask, Bid, Trade};
use crate::receipt::Receipt;
use crate::refusal::Refusal;
use crate::request::{Direction, PayoutLock};
use crate::rules::{Setting, Upgrade};
use crate::text::Name;
use crate::units::{Credits, DeviceMicros, Millis, Price, Units};

/// One command. The account is the batch's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Opens the account, under a name such as its peer id. The first command of its batch.
    Register {
        /// A name for people and peers.
        name: Name,
    },
    /// The operator credits an account, which is opened if there is none.
    Deposit {
        /// Whose.
        account: AccountKey,
        /// How much.
        amount: Credits,
    },
    /// Asks the operator for credits, or has some of its own held until the operator says that they
    /// have gone out.
    Request {
        /// In or out.
        direction: Direction,
        /// How much.
        amount: Credits,
        /// What it is known by outside.
        reference: Name,
    },
    /// The operators begin to pay a withdrawal out: its account can't take it back any more. The
    /// one whose word completes it is the one who pays.
    Lock {
        /// Which.
        request: RequestId,
    },
    /// The operator says that what was requested has come in or gone out. A withdrawal is locked
    /// before.
    Confirm {
        /// Which.
        request: RequestId,
    },
    /// The operator, or who made it, says that nothing comes of a request.
    Refuse {
        /// Which.
        request: RequestId,
        /// Why.
        reason: Name,
    },
    /// Gives available credits to another account.
    Transfer {
        /// Whose they are then.
        to: AccountKey,
        /// How much.
        amount: Credits,
        /// What they are for.
        reference: Name,
    },
    /// The operators take what the market earned: fees, and what is left of slashed stake.
    Collect {
        /// Whose it is then.
        to: AccountKey,
        /// How much.
        amount: Credits,
    },
    /// The operators freeze an account: it begins nothing new, and its orders leave the books.
    Freeze {
        /// Which.
        account: AccountKey,
        /// Why, for all to read.
        reason: Name,
    },
    /// The operators thaw an account.
    Thaw {
        /// Which.
        account: AccountKey,
    },
    /// The operators tell a change of the rules beforehand.
    ChangeRules {
        /// What becomes what.
        settings: Vec<Setting>,
        /// The log time at which it takes effect.
        at: Millis,
    },
    /// The operators take a change back that was told and is not made yet.
    KeepRules {
        /// Its number.
        change: u64,
    },
    /// The operators tell from when another version of the rules applies.
    Upgrade(Upgrade),
    /// Offers device time.
    PlaceAsk(Box<Ask>),
    /// Asks for device time.
    PlaceBid(Box<Bid>),
    /// Up to [`Command::GANG_MAX`] bids that all match now, each whole, on as many unlike
    /// provider accounts, or none of them does. Of all ways to match them the cheapest is taken.
    PlaceGang(Vec<Bid>),
    /// Takes an order out of the book.
    Cancel {
        /// Which.
        order: OrderId,
    },
    /// Changes an order in the book. A smaller quantity at the same price keeps its place in time.
    Amend {
        /// Which.
        order: OrderId,
        /// The new quantity.
        quantity: Units,
        /// The new price.
        price: Price,
    },
    /// The buyer says that the work of its lease has begun: from now on the provider may state what
    /// is used, and silence accepts that. It says so again to keep a lease whose provider is ready
    /// and sees no work.
    StartWork {
        /// Which lease.
        lease: LeaseId,
    },
    /// The provider says that it is ready and sees no work. Unless the buyer says in time that the
    /// work has begun, or ends the lease, the market ends it. Of a lease that has ended the
    /// provider claims by this word the time in which its device was held and not used, and nothing
    /// else.
    StateReady {
        /// Which lease.
        lease: LeaseId,
    },
    /// The provider states what a lease has used so far. Unless the buyer disputes it in time it
    /// counts as accepted.
    NoteUsage {
        /// Which lease.
        lease: LeaseId,
        /// Device time since the lease's start, all earlier notes included.
        usage: DeviceMicros,
    },
    /// The buyer accepts the open note at once.
    AcceptNote {
        /// Which lease.
        lease: LeaseId,
        /// The usage it accepts: that of the open note.
        usage: DeviceMicros,
    },
    /// The buyer refuses the work, noted or not. The provider gets what was accepted before, and
    /// for the rest of the time no more than for a device that is held and not used; what it states
    /// beyond that, the buyer pays to the market.
    Dispute {
        /// Which lease.
        lease: LeaseId,
    },
    /// Closes a lease by a receipt that both parties have signed. Anyone may bring it.
    Settle(Box<Receipt>),
    /// The buyer ends its lease now; the provider may still bring its last note or the receipt.
    EndLease {
        /// Which.
        lease: LeaseId,
    },
    /// The provider can't go on: closes its lease now, paid only for what was accepted.
    GiveUp {
        /// Which.
        lease: LeaseId,
    },
    /// The provider takes a spot lease back, after its notice.
    Reclaim {
        /// Which.
        lease: LeaseId,
    },
    /// The buyer makes its lease longer, within what the ask allowed, at the same price.
    Extend {
        /// Which.
        lease: LeaseId,
        /// By how much.
        by: Millis,
    },
    /// The buyer offers the rest of its lease, all units together, to whoever bids. The provider
    /// goes on being paid its own price; the difference is the reseller's gain or loss.
    Resell {
        /// Which.
        lease: LeaseId,
        /// The least price, per device-second.
        price: Price,
    },
    /// Puts credits at stake, for buyers who demand it.
    Stake {
        /// How much.
        amount: Credits,
    },
    /// Takes stake back, when no lease is open and the last one is long enough ago.
    Unstake {
        /// How much.
        amount: Credits,
    },
    /// Two receipts of one lease that its provider signed and that contradict each other: for the
    /// same graph and inputs they name unlike outputs. The provider loses stake.
    ProveFault(Box<[Receipt; 2]>),
}

impl Command {
    /// The most legs of a gang.
    pub const GANG_MAX: usize = 16;
}

/// What an accepted command did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Acceptance {
    /// The account is open.
    Registered,
    /// Credits came in; what the account now has available.
    Deposited {
        /// Available afterwards.
        available: Credits,
    },
    /// The request waits for the operator.
    Requested {
        /// Its id.
        request: RequestId,
    },
    /// The withdrawal is to be paid out, and by whom.
    Locked(PayoutLock),
    /// The request is done; what its account now has available.
    Confirmed {
        /// Available afterwards.
        available: Credits,
    },
    /// The request is off.
    Refused {
        /// What was held for it and is available again.
        released: Credits,
    },
    /// The credits are another's; what is left.
    Transferred {
        /// Available afterwards.
        available: Credits,
    },
    /// The market's earnings are the operator's; what it now has available.
    Collected {
        /// Available afterwards.
        available: Credits,
    },
    /// The account is frozen.
    Frozen,
    /// The account is not frozen.
    Thawed,
    /// The rules will change.
    Due {
        /// The number of the change.
        change: u64,
        /// When it takes effect.
        at: Millis,
    },
    /// The rules stay as they are.
    Kept,
    /// Another version of the rules will apply.
    UpgradeDue(Upgrade),
    /// The command waits until more of the operators have given the same.
    Awaited {
        /// The number by which the others find it.
        approval: u64,
        /// How many have given it.
        given: u32,
        /// How many must.
        needed: u32,
        /// When it is forgotten.
        until: Millis,
    },
    /// An ask or a bid was taken.
    Placed {
        /// Its id.
        order: OrderId,
        /// What it traded at once.
        trades: Vec<Trade>,
        /// What of it rests in the book.
        resting: Units,
    },
    /// Every leg of the gang traded: one trade a leg, in the order of the legs.
    Ganged {
        /// The trades.
        trades: Vec<Trade>,
    },
    /// The order left the book.
    Cancelled {
        /// What was held for it and is available again.
        released: Credits,
    },
    /// The order was changed.
    Amended {
        /// Its id: a new one if it lost its place in time.
        order: OrderId,
        /// What it traded at its new price.
        trades: Vec<Trade>,
        /// What of it rests in the book.
        resting: Units,
    },
    /// The work has begun.
    Started,
    /// The buyer has so long to begin or to end the lease.
    Ready {
        /// When the reserve is due.
        until: Millis,
    },
    /// The note stands until it is accepted, disputed or its deadline passes.
    Noted {
        /// When it counts as accepted.
        accepted_at: Millis,
    },
    /// The note was accepted.
    NoteAccepted,
    /// The lease is closed and paid.
    Closed {
        /// What the provider got.
        paid: Credits,
        /// What the market took of it.
        fee: Credits,
        /// What the buyer got back.
        refunded: Credits,
    },
    /// The lease has been told to end.
    Ending {
        /// When it ends.
        at: Millis,
    },
    /// The lease is longer.
    Extended {
        /// When it ends now.
        deadline: Millis,
        /// What is in escrow for it now.
        escrow: Credits,
    },
    /// The stake was changed.
    Staked {
        /// What is at stake now.
        stake: Credits,
    },
    /// The fault is proven.
    Slashed {
        /// What the provider lost.
        slashed: Credits,
        /// What of it the buyer got: at most what the lease had cost it. The rest are fees.
        compensated: Credits,
    },
}

/// What one command came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was done.
    Accepted(Acceptance),
    /// It was not done, and nothing was changed by it.
    Refused(Refusal),
}

impl Outcome {
    /// The facts if it was done, the refusal if not.
    ///
    /// # Errors
    /// The refusal.
    pub fn into_result(self) -> Result<Acceptance, Refusal> {
        match self {
            Self::Accepted(accepted) => Ok(accepted),
            Self::Refused(refusal) => Err(refusal),
        }
    }
}

/// What a batch came to: one outcome per command, and every event in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchOutcome {
    /// One per command, in order.
    pub outcomes: Vec<Outcome>,
    /// What happened, those of time passing first.
    pub events: Vec<Event>,
}
