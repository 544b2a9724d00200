//! The reasons for which the exchange refuses a command or a batch: each has a stable code for
//! programs, the facts behind it, and a sentence for people.

use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::class::Class;
use crate::dispute::DisputeId;
use crate::ids::{AccountKey, DeviceId, LeaseId, MarketId, Nonce, OrderId, RequestId};
use crate::receipt::ReceiptFault;
use crate::text::Name;
use crate::tokens::TokenTermsFault;
use crate::units::{Credits, DeviceMicros, Millis, Price, Units};

/// A number to which a refusal refers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// The units of an order.
    #[error("the quantity")]
    Units,
    /// The price of an order.
    #[error("the price")]
    Price,
    /// Credits to move.
    #[error("the amount")]
    Amount,
    /// The sum of all deposits so far.
    #[error("the sum of all deposits")]
    Deposits,
    /// Price x quantity x duration.
    #[error("price x quantity x duration")]
    Cost,
}

macro_rules! refusals {
    ($($(#[doc = $doc:expr])+ $code:literal $name:ident { $($fact:ident: $kind:ty),* }
        => $sentence:literal;)+) => {
        /// Why the exchange refused a command, which changed nothing.
        ///
        /// `code()` is stable and meant for programs, `facts()` are the values behind the refusal,
        /// and `Display` is a sentence for people.
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
            /// All codes.
            pub const CODES: &[&str] = &[$($code),+];

            /// Returns the stable code.
            pub fn code(&self) -> &'static str {
                match self { $(Self::$name { .. } => $code,)+ }
            }

            /// Returns the values behind the refusal, each with its name.
            pub fn facts(&self) -> Vec<(&'static str, String)> {
                match self {
                    $(Self::$name { $($fact),* } => {
                        vec![$((stringify!($fact), fact_text($fact))),*]
                    })+
                }
            }
        }
    };
}

fn fact_text(fact: &impl Display) -> String {
    fact.to_string()
}

refusals! {
    /// The batch was signed for another market.
    "market_other" MarketOther { market: MarketId, batch: MarketId }
        => "this market is {market}, the batch is for {batch}";
    /// The batch has expired.
    "batch_expired" BatchExpired { expires: Millis, now: Millis }
        => "the batch expired at {expires} ms, it is {now} ms";
    /// The batch expires later than the exchange can remember its nonce.
    "batch_far" BatchFar { expires: Millis, latest: Millis }
        => "the batch expires at {expires} ms, none may after {latest} ms: sign it for less time";
    /// The account has used this nonce before.
    "nonce_used" NonceUsed { nonce: Nonce }
        => "nonce {nonce} is already applied";
    /// The nonce is below the window, so the exchange no longer knows whether it was used.
    "nonce_old" NonceOld { nonce: Nonce, oldest: Nonce }
        => "nonce {nonce} is below {oldest}, the oldest still accepted";
    /// The account does not exist.
    "account_unknown" AccountUnknown { account: AccountKey }
        => "account {account} is not registered";
    /// The account exists already.
    "account_known" AccountKnown { account: AccountKey }
        => "account {account} is already registered";
    /// The market is at its limit of accounts, and none makes room.
    "accounts_many" AccountsMany { limit: u32 }
        => "there are {limit} accounts already, the limit, and none makes room: try again later";
    /// The key is weak: it has a small order, or is no point of the curve.
    "key_weak" KeyWeak { account: AccountKey }
        => "the key {account} is weak: it would sign anything";
    /// Only the operators can give this command.
    "operator_only" OperatorOnly { account: AccountKey }
        => "only the market's operators may do this, and {account} is not one";
    /// An operator has begun too many commands that wait for other operators.
    "approvals_many" ApprovalsMany { limit: u32 }
        => "{limit} commands of this operator wait for the others, the limit: have some approved";
    /// The batch has too few steps left for the command.
    "steps_spent" StepsSpent { limit: u32 }
        => "the commands before it took too many of the {limit} steps that a batch has: send it \
            again in another batch";
    /// The account is frozen.
    "account_frozen" AccountFrozen { account: AccountKey, reason: Name }
        => "account {account} is frozen ({reason}): ask the market's operators";
    /// The account reached its daily cap.
    "cap_reached" CapReached { cap: Credits, moved: Credits, next: Millis }
        => "an account moves {cap} micro-credits a day at most, and {moved} were moved today: wait \
            until {next} ms, or ask the market's operators";
    /// Operators cannot change this rule.
    "rule_fixed" RuleFixed { rule: String }
        => "the rule {rule} is fixed: only a new market has another";
    /// The value is outside the rule's range.
    "rule_range" RuleRange { rule: String, value: u64, least: u64, most: u64 }
        => "the rule {rule} can't become {value}: it is {least} to {most} (times in milliseconds)";
    /// The announcement comes too late: the change would take effect before the rule's notice ends.
    "notice_short" NoticeShort { at: Millis, earliest: Millis }
        => "a change at {at} ms is announced too late: it can take effect from {earliest} ms on";
    /// The change has no settings, or too many.
    "settings_many" SettingsMany { count: u32, limit: u32 }
        => "a change of {count} settings is not within 1 to {limit}";
    /// Too many announced changes have not taken effect yet.
    "changes_many" ChangesMany { limit: u32 }
        => "{limit} announced changes have not taken effect yet, the limit: take one back, or wait";
    /// No change with this number is announced.
    "change_unknown" ChangeUnknown { change: u64 }
        => "no change {change} is pending: it took effect, or was taken back";
    /// The version is not later than the one that applies.
    "version_old" VersionOld { to: u16, current: u16 }
        => "version {current} of the rules applies already, {to} is not later";
    /// The account has too many undecided requests.
    "requests_many" RequestsMany { open: u32, limit: u32 }
        => "{open} requests wait for the operators, the limit is {limit}";
    /// The market is at its limit of undecided requests.
    "requests_full" RequestsFull { limit: u32 }
        => "{limit} requests wait for the operators, the limit of the market: try again later";
    /// No request with this id is open.
    "request_unknown" RequestUnknown { request: RequestId }
        => "there is no open request {request}: it was decided, or never made";
    /// An operator is already paying the withdrawal out.
    "request_locked" RequestLocked { request: RequestId, at: Millis }
        => "withdrawal {request} is being paid out since {at} ms: only the operators end it";
    /// The withdrawal is not locked.
    "request_unlocked" RequestUnlocked { request: RequestId }
        => "withdrawal {request} is not locked, so its account may still take it back: lock it \
            before it is paid, and confirm it then";
    /// The request is a deposit; operators lock only withdrawals.
    "lock_needless" LockNeedless { request: RequestId }
        => "request {request} is a deposit: only what is paid out is locked";
    /// The account has too few available credits.
    "funds_short" FundsShort { available: Credits, needed: Credits }
        => "{needed} micro-credits are needed, {available} are available";
    /// A number is zero that must be positive.
    "amount_zero" AmountZero { what: Quantity }
        => "{what} must be more than zero";
    /// A number is too large for the arithmetic.
    "amount_large" AmountLarge { what: Quantity }
        => "{what} is more than the market can count";
    /// The price is not a multiple of the tick.
    "price_off_tick" PriceOffTick { price: Price, tick: Price }
        => "the price {price} is not a multiple of the tick {tick}";
    /// A spot price of the ask breaks the rules of [`crate::SpotPrice`].
    "spot_price_bad" SpotPriceBad { place: u32 }
        => "spot price {place} must be below the limit, and longer and dearer than the one before";
    /// The budget buys nothing even at the lowest price.
    "budget_small" BudgetSmall { budget: Credits, needed: Credits }
        => "the budget of {budget} micro-credits buys nothing: the lowest price needs {needed}";
    /// The duration is outside the bounds of the ask or of the market.
    "duration_bad" DurationBad { min: Millis, max: Millis, limit: Millis }
        => "durations from {min} to {max} ms are not within 1 to {limit} ms";
    /// A predicate names too many accounts.
    "predicate_large" PredicateLarge { count: u32, limit: u32 }
        => "a predicate names {count} accounts, at most {limit} fit";
    /// The region is out of range.
    "region_bad" RegionBad { region: u8 }
        => "region {region} is not within 0 to 31";
    /// The ask's terms of tokens are out of their range.
    "token_terms_bad" TokenTermsBad { fault: TokenTermsFault }
        => "the terms of tokens cannot be: {fault}";
    /// The account has too many open orders.
    "orders_many" OrdersMany { open: u32, limit: u32 }
        => "{open} orders are open, the limit is {limit}";
    /// The account cannot pay the deposit that its second and later asks need.
    "deposit_short" DepositShort { deposit: Credits, available: Credits }
        => "this ask holds {deposit} micro-credits until it ends, {available} are available: an \
            account's first alone holds none, while there is room. Earn or be given them, or end \
            the other ask";
    /// The market is at its limit of orders.
    "orders_full" OrdersFull { limit: u32, deposit: Credits }
        => "there are {limit} orders already, the limit: only one that holds {deposit} \
            micro-credits or more can take the place of one that holds less. Try again later";
    /// The pool has too few free units.
    "device_busy" DeviceBusy { device: DeviceId, capacity: Units, offered: Units, leased: Units }
        => "device {device} has {capacity} units, {offered} are on offer and {leased} leased";
    /// The ask states another capacity than the pool has, which cannot change while the pool is in
    /// use.
    "capacity_differs" CapacityDiffers { device: DeviceId, capacity: Units, claimed: Units }
        => "device {device} has {capacity} units while in use, not {claimed}";
    /// The order's expiry has passed already.
    "order_expired" OrderExpired { expires: Millis, now: Millis }
        => "the order expires at {expires} ms, it is {now} ms";
    /// A market order cannot rest.
    "market_rests" MarketRests { quantity: Units }
        => "a market order of {quantity} units can't rest: use ioc or fok";
    /// The order must trade in full at once, and cannot.
    "unfilled" Unfilled { wanted: Units, found: Units }
        => "{found} of {wanted} units could trade now, and all were wanted";
    /// The gang has no legs, or too many.
    "gang_size" GangSize { legs: u32, limit: u32 }
        => "a gang of {legs} legs is not within 1 to {limit}";
    /// No ask suits this leg.
    "gang_leg_unmatched" GangLegUnmatched { leg: u32, seen: u32 }
        => "no ask suits leg {leg} of the gang, {seen} were seen in its class";
    /// The legs cannot each have a different provider.
    "gang_unmatched" GangUnmatched { legs: u32, matched: u32 }
        => "{matched} of {legs} legs can have a provider of their own";
    /// The quantity is not a multiple of the lot.
    "quantity_off_lot" QuantityOffLot { quantity: Units, lot: Units }
        => "the quantity {quantity} is not a multiple of the lot {lot}";
    /// The market is at its limit of classes.
    "classes_many" ClassesMany { limit: u32, deposit: Credits }
        => "there are {limit} classes already, the limit: only an ask that holds {deposit} \
            micro-credits can take the place of one in which nobody holds as much. Try again later";
    /// The class does not exist, because no ask in it has rested yet.
    "class_unknown" ClassUnknown { class: Class }
        => "nobody has offered a device of class {class} yet: an ask that rests opens a class";
    /// No order with this id is open.
    "order_unknown" OrderUnknown { order: OrderId }
        => "no order {order} is open";
    /// The order belongs to another account.
    "order_not_yours" OrderNotYours { order: OrderId }
        => "order {order} belongs to another account";
    /// The exchange does not know the lease.
    "lease_unknown" LeaseUnknown { lease: LeaseId }
        => "no lease {lease} is known";
    /// The lease is closed.
    "lease_closed" LeaseClosed { lease: LeaseId, closed_at: Millis, paid: Credits }
        => "lease {lease} was closed at {closed_at} ms with {paid} micro-credits paid";
    /// The lease is ending or has ended.
    "lease_ended" LeaseEnded { lease: LeaseId, at: Millis }
        => "lease {lease} ends at {at} ms";
    /// The lease would exceed its longest duration.
    "lease_long" LeaseLong { lease: LeaseId, duration: Millis, limit: Millis }
        => "lease {lease} would last {duration} ms, at most {limit} are allowed";
    /// The rest of the lease is on offer, or the buyer bought the lease from another buyer.
    "lease_resold" LeaseResold { lease: LeaseId }
        => "the rest of lease {lease} is on offer, or it was itself bought from a buyer";
    /// An ask that resells a lease cannot be amended.
    "resale_fixed" ResaleFixed { order: OrderId }
        => "order {order} resells a lease: cancel it and resell at another price";
    /// The stake must stay, because it covers leases.
    "stake_held" StakeHeld { open_leases: u32, until: Millis }
        => "the stake answers for {open_leases} open leases, and for closed ones until {until} ms";
    /// The account asks for more than its stake.
    "stake_short" StakeShort { stake: Credits, wanted: Credits }
        => "{wanted} micro-credits are wanted back, {stake} are at stake";
    /// The receipts do not contradict each other.
    "fault_none" FaultNone { lease: LeaseId }
        => "the two receipts of lease {lease} do not contradict each other";
    /// A fault in this lease is proven already.
    "fault_known" FaultKnown { lease: LeaseId }
        => "a fault in lease {lease} is proven already";
    /// The stake must stay, because a dispute about it is open.
    "stake_disputed" StakeDisputed { open_disputes: u32 }
        => "the stake answers in {open_disputes} open disputes: wait until they are decided";
    /// The provider of this lease promised no exact results.
    "lease_inexact" LeaseInexact { lease: LeaseId }
        => "lease {lease} was not bought as exact, so honest machines can differ: buy with --exact";
    /// The receipt names no inputs or no outputs.
    "accusation_empty" AccusationEmpty { lease: LeaseId }
        => "the receipt of lease {lease} names no inputs or no outputs: nothing can be computed";
    /// The accusation names too many weights.
    "accusation_large" AccusationLarge { count: u64, limit: u64 }
        => "the graph has {count} weights, at most {limit} fit";
    /// The provider's stake no longer answers for the lease.
    "accusation_late" AccusationLate { lease: LeaseId, until: Millis }
        => "the stake answered for lease {lease} until {until} ms: accuse earlier";
    /// A dispute about this lease is open or decided.
    "dispute_known" DisputeKnown { lease: LeaseId, dispute: DisputeId }
        => "dispute {dispute} is about lease {lease} already";
    /// Too many disputes are open.
    "disputes_many" DisputesMany { limit: u32 }
        => "{limit} disputes are open, the limit: wait until one is decided";
    /// The dispute is unknown or closed.
    "dispute_unknown" DisputeUnknown { dispute: DisputeId }
        => "no dispute {dispute} is open";
    /// Only a validator can give a verdict.
    "juror_only" JurorOnly { account: AccountKey }
        => "only the market's validators judge, and {account} is not one";
    /// The validator has given its verdict.
    "verdict_known" VerdictKnown { dispute: DisputeId, account: AccountKey }
        => "{account} has judged dispute {dispute} already";
    /// Only the lease's buyer may do this.
    "buyer_only" BuyerOnly { lease: LeaseId, buyer: AccountKey }
        => "only the buyer {buyer} may do this to lease {lease}";
    /// Only the lease's provider may do this.
    "provider_only" ProviderOnly { lease: LeaseId, provider: AccountKey }
        => "only the provider {provider} may do this to lease {lease}";
    /// A firm lease cannot be reclaimed.
    "lease_firm" LeaseFirm { lease: LeaseId, deadline: Millis }
        => "lease {lease} is firm until {deadline} ms";
    /// The usage is more than the lease could have had.
    "usage_over" UsageOver { claimed: DeviceMicros, possible: DeviceMicros }
        => "{claimed} device-us are claimed, at most {possible} were possible";
    /// The lease still waits for its device.
    "lease_waits" LeaseWaits { lease: LeaseId, until: Millis }
        => "lease {lease} waits for the device, until {until} ms at the latest";
    /// The buyer has not stated that the work began.
    "work_unstarted" WorkUnstarted { lease: LeaseId }
        => "the buyer of lease {lease} has not stated that the work began: usage cannot be noted";
    /// The usage is no more than the accepted usage.
    "usage_stale" UsageStale { claimed: DeviceMicros, accepted: DeviceMicros }
        => "{claimed} device-us are claimed, {accepted} are accepted already";
    /// An earlier note is open.
    "note_open" NoteOpen { lease: LeaseId, accepted_at: Millis }
        => "a note on lease {lease} is open until {accepted_at} ms";
    /// No note is open.
    "note_none" NoteNone { lease: LeaseId }
        => "no note on lease {lease} is open";
    /// The accepted usage is not that of the open note.
    "note_differs" NoteDiffers { noted: DeviceMicros, accepted: DeviceMicros }
        => "the open note says {noted} device-us, not {accepted}";
    /// The receipt is not valid by itself.
    "receipt_bad" ReceiptBad { fault: Box<ReceiptFault> }
        => "the receipt is not valid: {fault}";
    /// The receipt is for another market.
    "receipt_market" ReceiptMarket { market: MarketId, receipt: MarketId }
        => "this market is {market}, the receipt is for {receipt}";
    /// The receipt names other parties than the lease has.
    "receipt_parties" ReceiptParties { lease: LeaseId, buyer: AccountKey, provider: AccountKey }
        => "lease {lease} is between buyer {buyer} and provider {provider}";
    /// The receipt's job, class or emulation differs from the lease's.
    "receipt_terms" ReceiptTerms { lease: LeaseId }
        => "the receipt's job, class or emulated flag is not that of lease {lease}";
    /// The receipt's price differs from the lease's.
    "receipt_price" ReceiptPrice { lease_price: Price, receipt_price: Price }
        => "the lease's price is {lease_price}, the receipt's {receipt_price}";
    /// The receipt counts tokens on other terms than the lease's, or bills otherwise than its
    /// counts give.
    "receipt_tokens" ReceiptTokens { lease: LeaseId }
        => "the receipt's terms of tokens are not those of lease {lease}, or its usage not that of \
            its counts";
    /// The receipt claims more credits than are in escrow.
    "receipt_over" ReceiptOver { claimed: Credits, escrow: Credits }
        => "{claimed} micro-credits are claimed, {escrow} are in escrow";
}
