//! Why a command was not done: a stable code, the facts that caused it, and a sentence.

use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::class::Class;
use crate::ids::{AccountKey, DeviceId, LeaseId, MarketId, Nonce, OrderId, RequestId};
use crate::receipt::ReceiptFault;
use crate::text::Name;
use crate::units::{Credits, DeviceMicros, Millis, Price, Units};

/// A number that a refusal is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// The units of an order.
    #[error("the quantity")]
    Units,
    /// The price of an order.
    #[error("the price")]
    Price,
    /// Credits that are to move.
    #[error("the amount")]
    Amount,
    /// All that was ever deposited.
    #[error("the sum of all deposits")]
    Deposits,
    /// Price x quantity x duration.
    #[error("price x quantity x duration")]
    Cost,
}

macro_rules! refusals {
    ($($(#[doc = $doc:expr])+ $code:literal $name:ident { $($fact:ident: $kind:ty),* }
        => $sentence:literal;)+) => {
        /// Why a command was not done. Nothing was changed by it.
        ///
        /// `code()` is stable and for programs, `facts()` are the values that caused it, and
        /// `Display` is a sentence for people.
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Refusal {
            $(
                $(#[doc = $doc])+
                #[error($sentence)]
                #[allow(missing_docs, reason = "the facts are named by the sentence above them")]
                $name { $($fact: $kind),* },
            )+
        }

        impl Refusal {
            /// Every code there is.
            pub const CODES: &[&str] = &[$($code),+];

            /// The stable code.
            pub fn code(&self) -> &'static str {
                match self { $(Self::$name { .. } => $code,)+ }
            }

            /// The values that caused it, each with its name.
            pub fn facts(&self) -> Vec<(&'static str, String)> {
                match self {
                    $(Self::$name { $($fact),* } => vec![$((stringify!($fact), shown($fact))),*],)+
                }
            }
        }
    };
}

fn shown(fact: &impl Display) -> String {
    fact.to_string()
}

refusals! {
    /// The batch was signed for another market.
    "market_other" MarketOther { market: MarketId, batch: MarketId }
        => "this market is {market}, the batch is for {batch}";
    /// The batch came too late.
    "batch_expired" BatchExpired { expires: Millis, now: Millis }
        => "the batch expired at {expires} ms, it is {now} ms";
    /// The batch could be brought for longer than the market remembers.
    "batch_far" BatchFar { expires: Millis, latest: Millis }
        => "the batch expires at {expires} ms, none may after {latest} ms: sign it for less time";
    /// The account has used this nonce before.
    "nonce_used" NonceUsed { nonce: Nonce }
        => "nonce {nonce} is already applied";
    /// The nonce is so old that it can't be told whether it was used.
    "nonce_old" NonceOld { nonce: Nonce, oldest: Nonce }
        => "nonce {nonce} is below {oldest}, the oldest still accepted";
    /// No such account.
    "account_unknown" AccountUnknown { account: AccountKey }
        => "account {account} is not registered";
    /// The account exists.
    "account_known" AccountKnown { account: AccountKey }
        => "account {account} is already registered";
    /// The market has all the accounts it may have.
    "accounts_many" AccountsMany { limit: u32 }
        => "there are {limit} accounts already, the limit, and none makes room: try again later";
    /// The key is a weak one.
    "key_weak" KeyWeak { account: AccountKey }
        => "the key {account} is weak: it would sign anything";
    /// Only the operator may do this.
    "operator_only" OperatorOnly { account: AccountKey }
        => "only the market's operators may do this, {account} is none";
    /// An operator has begun too many commands that wait for the others.
    "approvals_many" ApprovalsMany { limit: u32 }
        => "{limit} commands of this operator wait for the others, the limit: have some approved";
    /// The batch has had the exchange look at as much as one may.
    "steps_spent" StepsSpent { limit: u32 }
        => "the commands before it took too many of the {limit} steps that a batch has: send it \
            again in another batch";
    /// The account is frozen.
    "account_frozen" AccountFrozen { account: AccountKey, reason: Name }
        => "account {account} is frozen ({reason}): ask the market's operators";
    /// The account has moved what it may in a day.
    "cap_reached" CapReached { cap: Credits, moved: Credits, next: Millis }
        => "an account moves {cap} micro-credits a day at most, and {moved} were moved today: wait \
            until {next} ms, or ask the market's operators";
    /// The rule stays as it was founded.
    "rule_fixed" RuleFixed { rule: String }
        => "the rule {rule} is fixed: only a new market has another";
    /// The rule can't be that.
    "rule_range" RuleRange { rule: String, value: u64, least: u64, most: u64 }
        => "the rule {rule} can't become {value}: it is {least} to {most} (times in milliseconds)";
    /// A change is told too late.
    "notice_short" NoticeShort { at: Millis, earliest: Millis }
        => "a change at {at} ms is told too late: it can take effect from {earliest} ms on";
    /// A change of nothing, or of too much.
    "settings_many" SettingsMany { count: u32, limit: u32 }
        => "a change of {count} settings is not within 1 to {limit}";
    /// Too many changes are told and not made.
    "changes_many" ChangesMany { limit: u32 }
        => "{limit} changes are told and not made yet, the limit: take one back, or wait";
    /// No such change is told.
    "change_unknown" ChangeUnknown { change: u64 }
        => "no change {change} is to come: it was made, or taken back";
    /// The version applies already.
    "version_old" VersionOld { to: u16, current: u16 }
        => "version {current} of the rules applies already, {to} is not later";
    /// The account has too many requests that are not decided.
    "requests_many" RequestsMany { open: u32, limit: u32 }
        => "{open} requests wait for the operators, the limit is {limit}";
    /// The market has all the requests it may have.
    "requests_full" RequestsFull { limit: u32 }
        => "{limit} requests wait for the operators, the limit of the market: try again later";
    /// No such request is open.
    "request_unknown" RequestUnknown { request: RequestId }
        => "there is no open request {request}: it was decided, or never made";
    /// A withdrawal is being paid out.
    "request_locked" RequestLocked { request: RequestId, at: Millis }
        => "withdrawal {request} is being paid out since {at} ms: only the operators end it";
    /// A withdrawal is not locked.
    "request_unlocked" RequestUnlocked { request: RequestId }
        => "withdrawal {request} is not locked, so its account may still take it back: lock it \
            before it is paid, and confirm it then";
    /// Only withdrawals are locked.
    "lock_needless" LockNeedless { request: RequestId }
        => "request {request} is a deposit: only what is paid out is locked";
    /// Not enough credits available.
    "funds_short" FundsShort { available: Credits, needed: Credits }
        => "{needed} micro-credits are needed, {available} are available";
    /// A number of zero where something is needed.
    "amount_zero" AmountZero { what: Quantity }
        => "{what} must be more than zero";
    /// A number too great for the arithmetic.
    "amount_large" AmountLarge { what: Quantity }
        => "{what} is more than the market can count";
    /// The price is between two ticks.
    "price_off_tick" PriceOffTick { price: Price, tick: Price }
        => "the price {price} is not a multiple of the tick {tick}";
    /// A price by notice of an ask is not one.
    "spot_price_bad" SpotPriceBad { place: u32 }
        => "spot price {place} must be below the limit, and longer and dearer than the one before";
    /// The budget buys nothing even at the lowest price.
    "budget_small" BudgetSmall { budget: Credits, needed: Credits }
        => "the budget of {budget} micro-credits buys nothing: the lowest price needs {needed}";
    /// The duration is outside the ask's or the market's bounds.
    "duration_bad" DurationBad { min: Millis, max: Millis, limit: Millis }
        => "durations from {min} to {max} ms are not within 1 to {limit} ms";
    /// More accounts than a predicate holds.
    "predicate_large" PredicateLarge { count: u32, limit: u32 }
        => "a predicate names {count} accounts, at most {limit} fit";
    /// The region is out of range.
    "region_bad" RegionBad { region: u8 }
        => "region {region} is not within 0 to 31";
    /// The account has too many open orders.
    "orders_many" OrdersMany { open: u32, limit: u32 }
        => "{open} orders are open, the limit is {limit}";
    /// Only the first ask of an account is free.
    "deposit_short" DepositShort { deposit: Credits, available: Credits }
        => "this ask holds {deposit} micro-credits until it ends, {available} are available: an \
            account's first alone holds none, while there is room. Earn or be given them, or end \
            the other ask";
    /// The market has all the orders it may have.
    "orders_full" OrdersFull { limit: u32, deposit: Credits }
        => "there are {limit} orders already, the limit: only one that holds {deposit} \
            micro-credits or more can take the place of one that holds less. Try again later";
    /// The pool is offered or leased already.
    "device_busy" DeviceBusy { device: DeviceId, capacity: Units, offered: Units, leased: Units }
        => "device {device} has {capacity} units, {offered} are on offer and {leased} leased";
    /// The pool's capacity can't change while it is in use.
    "capacity_differs" CapacityDiffers { device: DeviceId, capacity: Units, claimed: Units }
        => "device {device} has {capacity} units while in use, not {claimed}";
    /// The order expires before it is placed.
    "order_expired" OrderExpired { expires: Millis, now: Millis }
        => "the order expires at {expires} ms, it is {now} ms";
    /// A market order can't rest.
    "market_rests" MarketRests { quantity: Units }
        => "a market order of {quantity} units can't rest: use ioc or fok";
    /// Not all of it could trade at once.
    "unfilled" Unfilled { wanted: Units, found: Units }
        => "{found} of {wanted} units could trade now, and all were wanted";
    /// A gang has no legs or too many.
    "gang_size" GangSize { legs: u32, limit: u32 }
        => "a gang of {legs} legs is not within 1 to {limit}";
    /// No ask suits this leg at all.
    "gang_leg_unmatched" GangLegUnmatched { leg: u32, seen: u32 }
        => "no ask suits leg {leg} of the gang, {seen} were seen in its class";
    /// Each leg has asks, but not on unlike providers.
    "gang_unmatched" GangUnmatched { legs: u32, matched: u32 }
        => "{matched} of {legs} legs can have a provider of their own";
    /// The quantity is between two lots.
    "quantity_off_lot" QuantityOffLot { quantity: Units, lot: Units }
        => "the quantity {quantity} is not a multiple of the lot {lot}";
    /// The market has all the classes it may have.
    "classes_many" ClassesMany { limit: u32, deposit: Credits }
        => "there are {limit} classes already, the limit: only an ask that holds {deposit} \
            micro-credits can take the place of one in which nobody holds as much. Try again later";
    /// Nobody has offered such devices.
    "class_unknown" ClassUnknown { class: Class }
        => "nobody has offered a device of class {class} yet: an ask that rests opens a class";
    /// Orders in a class matched by auctions must rest.
    "auction_only" AuctionOnly { interval: Millis }
        => "this class is matched by auctions every {interval} ms: orders rest, whole or in parts";
    /// No such open order.
    "order_unknown" OrderUnknown { order: OrderId }
        => "no order {order} is open";
    /// The order is another account's.
    "order_not_yours" OrderNotYours { order: OrderId }
        => "order {order} belongs to another account";
    /// No such lease.
    "lease_unknown" LeaseUnknown { lease: LeaseId }
        => "no lease {lease} is known";
    /// The lease is closed.
    "lease_closed" LeaseClosed { lease: LeaseId, closed_at: Millis, paid: Credits }
        => "lease {lease} was closed at {closed_at} ms with {paid} micro-credits paid";
    /// The lease is ending or has ended.
    "lease_ended" LeaseEnded { lease: LeaseId, at: Millis }
        => "lease {lease} is told to end at {at} ms";
    /// The lease can't become that long.
    "lease_long" LeaseLong { lease: LeaseId, duration: Millis, limit: Millis }
        => "lease {lease} would last {duration} ms, at most {limit} are allowed";
    /// The lease's rest is on offer, or was bought from another buyer.
    "lease_resold" LeaseResold { lease: LeaseId }
        => "the rest of lease {lease} is on offer, or it was itself bought from a buyer";
    /// A resale is offered anew, not amended.
    "resale_fixed" ResaleFixed { order: OrderId }
        => "order {order} resells a lease: cancel it and resell at another price";
    /// The stake answers for leases.
    "stake_held" StakeHeld { open_leases: u32, until: Millis }
        => "the stake answers for {open_leases} open leases, and for closed ones until {until} ms";
    /// Less is at stake.
    "stake_short" StakeShort { stake: Credits, wanted: Credits }
        => "{wanted} micro-credits are wanted back, {stake} are at stake";
    /// The receipts don't contradict each other.
    "fault_none" FaultNone { lease: LeaseId }
        => "the two receipts of lease {lease} do not contradict each other";
    /// The fault was proven before.
    "fault_known" FaultKnown { lease: LeaseId }
        => "a fault in lease {lease} is proven already";
    /// Only the lease's buyer may do this.
    "buyer_only" BuyerOnly { lease: LeaseId, buyer: AccountKey }
        => "only the buyer {buyer} may do this to lease {lease}";
    /// Only the lease's provider may do this.
    "provider_only" ProviderOnly { lease: LeaseId, provider: AccountKey }
        => "only the provider {provider} may do this to lease {lease}";
    /// A firm lease can't be taken back.
    "lease_firm" LeaseFirm { lease: LeaseId, deadline: Millis }
        => "lease {lease} is firm until {deadline} ms";
    /// More usage than the lease can have had.
    "usage_over" UsageOver { claimed: DeviceMicros, possible: DeviceMicros }
        => "{claimed} device-us are claimed, at most {possible} were possible";
    /// The lease waits for another one's end.
    "lease_waits" LeaseWaits { lease: LeaseId, until: Millis }
        => "lease {lease} waits for the device, until {until} ms at the latest";
    /// The buyer has not said that the work began.
    "work_unstarted" WorkUnstarted { lease: LeaseId }
        => "the buyer of lease {lease} has not said that the work began: no more usage is noted";
    /// Not more usage than was accepted.
    "usage_stale" UsageStale { claimed: DeviceMicros, accepted: DeviceMicros }
        => "{claimed} device-us are claimed, {accepted} are accepted already";
    /// An earlier note is still open.
    "note_open" NoteOpen { lease: LeaseId, accepted_at: Millis }
        => "a note on lease {lease} is open until {accepted_at} ms";
    /// No note is open.
    "note_none" NoteNone { lease: LeaseId }
        => "no note on lease {lease} is open";
    /// The note says something else.
    "note_differs" NoteDiffers { noted: DeviceMicros, accepted: DeviceMicros }
        => "the open note says {noted} device-us, not {accepted}";
    /// The receipt is not valid by itself.
    "receipt_bad" ReceiptBad { fault: Box<ReceiptFault> }
        => "the receipt is not valid: {fault}";
    /// The receipt is for another market.
    "receipt_market" ReceiptMarket { market: MarketId, receipt: MarketId }
        => "this market is {market}, the receipt is for {receipt}";
    /// The receipt names other parties than the lease.
    "receipt_parties" ReceiptParties { lease: LeaseId, buyer: AccountKey, provider: AccountKey }
        => "lease {lease} is between buyer {buyer} and provider {provider}";
    /// The receipt's job or class is not the lease's.
    "receipt_terms" ReceiptTerms { lease: LeaseId }
        => "the receipt's job, class or emulated flag is not that of lease {lease}";
    /// The receipt's price is not the lease's.
    "receipt_price" ReceiptPrice { lease_price: Price, receipt_price: Price }
        => "the lease's price is {lease_price}, the receipt's {receipt_price}";
    /// The receipt claims more than is in escrow.
    "receipt_over" ReceiptOver { claimed: Credits, escrow: Credits }
        => "{claimed} micro-credits are claimed, {escrow} are in escrow";
}
