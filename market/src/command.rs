//! The commands that an account can give to the exchange, and their outcomes.

use serde::{Deserialize, Serialize};

use crate::dispute::{Accusation, DisputeId};
use crate::event::Event;
use crate::ids::{AccountKey, LeaseId, OrderId, RequestId};
use crate::order::{Ask, Bid, Trade};
use crate::receipt::Receipt;
use crate::refusal::Refusal;
use crate::request::{Direction, PayoutLock};
use crate::rules::{Setting, Upgrade};
use crate::text::Name;
use crate::units::{Credits, DeviceMicros, Millis, Price, Units};

/// One command. The batch names the account that gives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Opens the account under a name, such as its peer id. It must be the first command of its
    /// batch.
    Register {
        /// A name for people and peers.
        name: Name,
    },
    /// The operators credit an account, and open it if it does not exist.
    Deposit {
        /// The account to credit.
        account: AccountKey,
        /// The credits to add.
        amount: Credits,
    },
    /// An account asks the operators for credits, or asks them to pay out credits of its own. The
    /// exchange holds the latter until the operators decide.
    Request {
        /// Whether credits go in or out.
        direction: Direction,
        /// The credits to move.
        amount: Credits,
        /// The reference that identifies the payment outside the market.
        reference: Name,
    },
    /// The operators begin to pay a withdrawal out, so its account can no longer take it back. The
    /// operator whose command completes the approval must pay.
    Lock {
        /// The withdrawal request.
        request: RequestId,
    },
    /// The operators confirm that the credits of a request came in or went out. They must lock a
    /// withdrawal first.
    Confirm {
        /// The request to confirm.
        request: RequestId,
    },
    /// The operators, or the account that made it, end a request without moving credits.
    Refuse {
        /// The request to end.
        request: RequestId,
        /// The reason, for the account to read.
        reason: Name,
    },
    /// Transfers available credits to another account.
    Transfer {
        /// The receiving account.
        to: AccountKey,
        /// The credits to transfer.
        amount: Credits,
        /// The purpose of the transfer.
        reference: Name,
    },
    /// The operators collect the market's earnings: fees, and slashed stake that compensates no
    /// buyer.
    Collect {
        /// The receiving account.
        to: AccountKey,
        /// The credits to collect.
        amount: Credits,
    },
    /// The operators freeze an account: it can begin nothing new, and its orders leave the books.
    Freeze {
        /// The account to freeze.
        account: AccountKey,
        /// The reason, which everyone can read.
        reason: Name,
    },
    /// The operators thaw an account.
    Thaw {
        /// The account to thaw.
        account: AccountKey,
    },
    /// The operators announce a change of the rules.
    ChangeRules {
        /// The new settings.
        settings: Vec<Setting>,
        /// The log time at which the change takes effect.
        at: Millis,
    },
    /// The operators cancel an announced change before it takes effect.
    KeepRules {
        /// The number of the change.
        change: u64,
    },
    /// The operators announce when another version of the rules applies.
    Upgrade(Upgrade),
    /// Offers device time.
    PlaceAsk(Box<Ask>),
    /// Bids for device time.
    PlaceBid(Box<Bid>),
    /// Places up to [`Command::GANG_MAX`] bids that must all match now, each in full and each with
    /// a different provider account; otherwise none matches. The exchange chooses the cheapest
    /// combination.
    PlaceGang(Vec<Bid>),
    /// Removes an order from the book.
    Cancel {
        /// The order to remove.
        order: OrderId,
    },
    /// Changes an order in the book. The order keeps its time priority if its price stays and its
    /// quantity shrinks.
    Amend {
        /// The order to change.
        order: OrderId,
        /// The new quantity.
        quantity: Units,
        /// The new price.
        price: Price,
    },
    /// The buyer states that the work of its lease has begun. From then on the provider can note
    /// all usage; before, it can note only the time of the rule `note_unstarted`. The buyer must
    /// repeat the command to keep a lease whose provider states that it is ready and sees no work.
    StartWork {
        /// The lease whose work has begun.
        lease: LeaseId,
    },
    /// The provider states that it is ready and sees no work. The market ends the lease unless, in
    /// time, the buyer states that the work has begun or ends the lease itself. If the lease has
    /// ended already, the provider claims by this command the time in which its device was held and
    /// not used, and nothing else.
    StateReady {
        /// The lease for which the provider is ready.
        lease: LeaseId,
    },
    /// The provider notes the usage of a lease so far. The note counts as accepted unless the buyer
    /// disputes it in time.
    NoteUsage {
        /// The lease whose usage is noted.
        lease: LeaseId,
        /// Device time since the lease's start, earlier notes included.
        usage: DeviceMicros,
    },
    /// The buyer accepts the open note at once.
    AcceptNote {
        /// The lease with the open note.
        lease: LeaseId,
        /// The accepted usage, which must equal that of the open note.
        usage: DeviceMicros,
    },
    /// The buyer refuses the work, noted or not. The provider gets the usage accepted before and,
    /// for the remaining time, no more than the price of a device that is held and not used. For
    /// usage that the provider states beyond that, the buyer pays the market.
    Dispute {
        /// The lease whose work the buyer refuses.
        lease: LeaseId,
    },
    /// Closes a lease with a receipt that both parties have signed. Any account can submit it.
    Settle(Box<Receipt>),
    /// The buyer ends its lease now; the provider can still submit its last note or the receipt.
    EndLease {
        /// The lease to end.
        lease: LeaseId,
    },
    /// The provider cannot continue: its lease closes now, and it gets only the accepted usage.
    GiveUp {
        /// The lease to close.
        lease: LeaseId,
    },
    /// The provider takes a spot lease back, after the lease's notice.
    Reclaim {
        /// The lease to take back.
        lease: LeaseId,
    },
    /// The buyer extends its lease at the same price, up to the ask's longest duration.
    Extend {
        /// The lease to extend.
        lease: LeaseId,
        /// The time to add, in milliseconds.
        by: Millis,
    },
    /// The buyer offers the rest of its lease, all units together, to any bid. The provider still
    /// gets its own price; the reseller gains or loses the difference.
    Resell {
        /// The lease to resell.
        lease: LeaseId,
        /// The least price, per device-second.
        price: Price,
    },
    /// Puts credits at stake, for buyers that demand a stake.
    Stake {
        /// The credits to stake.
        amount: Credits,
    },
    /// Takes stake back, if no lease is open and the last one closed long enough ago.
    Unstake {
        /// The credits to take back.
        amount: Credits,
    },
    /// Submits two receipts of one lease that its provider signed and that contradict each other:
    /// they must name different outputs for the same graph and inputs. The provider loses stake.
    ProveFault(Box<[Receipt; 2]>),
    /// The buyer of an exact lease accuses its provider of an output that the work does not give,
    /// by a receipt that the provider signed. The buyer puts up a bond, and the validators compute
    /// the work again.
    Accuse(Box<Accusation>),
}

impl Command {
    /// The most legs of a gang.
    pub const GANG_MAX: usize = 16;
}

/// The result of an accepted command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Acceptance {
    /// The account is open.
    Registered,
    /// The account was credited.
    Deposited {
        /// The account's available credits afterwards.
        available: Credits,
    },
    /// The request waits for the operators.
    Requested {
        /// The request's id.
        request: RequestId,
    },
    /// The named operator must now pay the withdrawal out.
    Locked(PayoutLock),
    /// The request is confirmed.
    Confirmed {
        /// The account's available credits afterwards.
        available: Credits,
    },
    /// The request was refused.
    Refused {
        /// Credits that the request held and that are available again.
        released: Credits,
    },
    /// The credits are transferred.
    Transferred {
        /// The sender's available credits afterwards.
        available: Credits,
    },
    /// The market's earnings are collected.
    Collected {
        /// The receiving account's available credits afterwards.
        available: Credits,
    },
    /// The account is frozen.
    Frozen,
    /// The account is thawed.
    Thawed,
    /// A change of the rules is announced.
    Due {
        /// The number of the change.
        change: u64,
        /// The log time at which the change takes effect.
        at: Millis,
    },
    /// The announced change is cancelled.
    Kept,
    /// An upgrade to another version of the rules is announced.
    UpgradeDue(Upgrade),
    /// The command waits until more operators give it.
    Awaited {
        /// The number by which the other operators can find the command.
        approval: u64,
        /// The operators that have given it so far.
        given: u32,
        /// The operators that must give it.
        needed: u32,
        /// The log time at which the exchange will forget it.
        until: Millis,
    },
    /// The ask or bid was accepted.
    Placed {
        /// The order's id.
        order: OrderId,
        /// The trades that it made at once.
        trades: Vec<Trade>,
        /// The units that rest in the book.
        resting: Units,
    },
    /// Every leg of the gang traded.
    Ganged {
        /// One trade per leg, in the order of the legs.
        trades: Vec<Trade>,
    },
    /// The order left the book.
    Cancelled {
        /// Credits that the order held and that are available again.
        released: Credits,
    },
    /// The order was changed.
    Amended {
        /// The order's id, which is new if the order lost its time priority.
        order: OrderId,
        /// The trades that the order made at its new price.
        trades: Vec<Trade>,
        /// The units that rest in the book.
        resting: Units,
    },
    /// The exchange recorded that the work has begun.
    Started,
    /// By this time the buyer must state that it works or end the lease.
    Ready {
        /// The log time at which the market ends the lease.
        until: Millis,
    },
    /// The note stays open until the buyer accepts or disputes it, or its deadline passes.
    Noted {
        /// The log time at which the note will count as accepted.
        accepted_at: Millis,
    },
    /// The note is accepted.
    NoteAccepted,
    /// The lease is closed and paid.
    Closed {
        /// Credits paid to the provider.
        paid: Credits,
        /// The market's share of that payment.
        fee: Credits,
        /// Credits returned to the buyer.
        refunded: Credits,
    },
    /// The lease will end.
    Ending {
        /// The log time at which the lease ends.
        at: Millis,
    },
    /// The lease is longer.
    Extended {
        /// The new deadline, in log time.
        deadline: Millis,
        /// Credits in escrow for the lease.
        escrow: Credits,
    },
    /// The stake has changed.
    Staked {
        /// Credits at stake.
        stake: Credits,
    },
    /// The fault is proven.
    Slashed {
        /// Credits that the provider lost.
        slashed: Credits,
        /// The part of them that the buyer got: at most the cost of the lease. The rest are fees.
        compensated: Credits,
    },
    /// The dispute is open.
    Accused {
        /// The dispute's id.
        dispute: DisputeId,
        /// The log time at which it ends without effect, unless the validators decide before.
        until: Millis,
    },
}

/// The outcome of one command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The exchange carried the command out.
    Accepted(Acceptance),
    /// The exchange refused the command, which changed nothing.
    Refused(Refusal),
}

impl Outcome {
    /// Returns the result of an accepted command.
    ///
    /// # Errors
    /// The refusal of a refused command.
    pub fn into_result(self) -> Result<Acceptance, Refusal> {
        match self {
            Self::Accepted(accepted) => Ok(accepted),
            Self::Refused(refusal) => Err(refusal),
        }
    }
}

/// The outcome of a batch: one outcome per command, and all events in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchOutcome {
    /// One outcome per command, in order.
    pub outcomes: Vec<Outcome>,
    /// The events in order; those of time passing come before those of the commands.
    pub events: Vec<Event>,
}
