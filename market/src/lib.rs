//! The exchange: accounts, orders, matching, leases, receipts and settlement.
//!
//! [`Exchange`] is a pure, deterministic struct: `apply(now, batch)` in, outcomes and events out.
//! It uses no devices, networks, clocks, threads, randomness or floating point, so every replica
//! that applies the same batches at the same log times (the times that the log states for them)
//! holds the same state and the same
//! [`Exchange::digest`]. If the exchange cannot carry out a command, it returns a [`Refusal`],
//! which is a value. A lint forbids unchecked arithmetic, except in the modules that say why theirs
//! cannot overflow, and the exchange panics only if it cannot trust its state. It counts the work
//! of each batch in steps and bounds it by [`BATCH_STEPS`].
//!
//! ```
//! use souk_market::*;
//!
//! let key = SigningKey::from_bytes(&[7; 32]);
//! let account = AccountKey::from(&key);
//! let mut genesis = Genesis::new(Name::try_from("example")?, account);
//! genesis.accounts.push((account, Name::default(), Credits(1_000)));
//! let mut exchange = Exchange::new(genesis);
//!
//! let batch = Batch {
//!     market: exchange.market(),
//!     account,
//!     nonce: Nonce(1),
//!     expires: Millis(60_000),
//!     commands: vec![Command::Stake { amount: Credits(400) }],
//! };
//! let verified = batch.sign(&key).verify()?;
//! let applied = exchange.apply(Millis(5), &verified);
//! let stake = Credits(400);
//! assert_eq!(applied.outcomes, [Outcome::Accepted(Acceptance::Staked { stake })]);
//!
//! let again = exchange.apply(Millis(6), &verified).outcomes.remove(0).into_result();
//! assert_eq!(again.unwrap_err().to_string(), "nonce 1 is already applied");
//! assert!(exchange.totals().is_balanced());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![warn(
    clippy::float_arithmetic,
    clippy::disallowed_types,
    clippy::disallowed_methods
)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod accounts;
mod approval;
mod batch;
pub mod book;
mod books;
#[allow(clippy::arithmetic_side_effects, reason = "bands of 64-bit logarithms")]
mod class;
mod command;
#[allow(clippy::arithmetic_side_effects, reason = "bytes of a block")]
mod digest;
mod dispute;
mod event;
mod exchange;
mod genesis;
mod ids;
mod lease;
#[allow(clippy::arithmetic_side_effects, reason = "leases by their number")]
mod lease_table;
mod ledger;
#[allow(
    clippy::arithmetic_side_effects,
    reason = "places in a set of 64 bytes"
)]
mod operators;
mod order;
mod predicate;
mod receipt;
mod refusal;
mod refused_nodes;
mod reputation;
mod request;
mod rules;
#[allow(
    clippy::arithmetic_side_effects,
    reason = "places in a list of signatures"
)]
mod signing;
mod snapshot;
#[allow(
    clippy::arithmetic_side_effects,
    reason = "places in a tree of paths of 32 bytes"
)]
mod state_tree;
mod tape;
#[allow(
    clippy::arithmetic_side_effects,
    reason = "users of terms, and 16-bit logarithms"
)]
mod terms;
mod text;
mod tokens;
mod units;

pub use accounts::{Account, Movements, NONCE_WINDOW};
pub use approval::{APPROVAL_LIFE, APPROVALS_MAX, Approval};
pub use batch::{Batch, BatchFault, COMMANDS_MAX, SignedBatch, VerifiedBatch};
pub use class::{
    Band, Class, DTYPES, Dtype, Features, KindCode, Region, Resources, Slowness, Throughput,
    WorkKind,
};
pub use command::{Acceptance, BatchOutcome, Command, Outcome};
pub use dispute::{
    ACCUSED_WEIGHTS_MAX, Accusation, DISPUTE_BOND, DISPUTE_LIFE, DISPUTES_OPEN_MAX, Dispute,
    DisputeId, DisputeState, Verdict, verdicts_needed,
};
pub use event::{Balances, Event, MoveReason, OrderEnd};
pub use exchange::{
    BATCH_STEPS, Census, ClassAsks, ClassSummary, DepthLevel, Exchange, Exclusion, Explanation,
    FirstAsk, Listing, ListingRef, OpenOrder, Quotes,
};
pub use genesis::{Founder, Genesis, GenesisFault, OPERATORS_MAX};
pub use ids::{
    AccountKey, ContentId, DeviceId, Digest, JobId, LeaseId, MarketId, Nonce, OrderId, RequestId,
    Signature, SigningKey, TradeId,
};
pub use lease::{CloseReason, Lease, LeaseState, Note, NoteState, Resale};
pub use ledger::Totals;
pub use operators::{Operators, OperatorsFault};
pub use order::{Ask, Bid, Limit, SPOT_PRICES_MAX, Side, SpotPrice, Term, TimeInForce, Trade};
pub use predicate::{BuyerFilter, EXCLUDED_MAX, Lack, Regions, Wants};
pub use receipt::{Receipt, ReceiptBody, ReceiptFault};
pub use refusal::{Quantity, Refusal};
pub use refused_nodes::{RefusedGraphNodes, TooManyNodes};
pub use reputation::Reputation;
pub use request::{Direction, MoneyRequest, PayoutLock};
pub use rules::{
    CHANGES_MAX, ClassRules, FIRST_RULES_VERSION, RECOUNTING_RULES_VERSION, RULES_VERSION, Rule,
    RuleFault, Rules, RulesChange, SETTINGS_MAX, Setting, Unit, Upgrade,
};
pub use signing::Claim;
pub use snapshot::SnapshotFault;
pub use state_tree::{AccountProof, AccountProofFault, PartRoots, StateBalances};
pub use tape::{Candle, PriceIndex, Print};
pub use text::{Name, NameFault};
pub use tokens::{CountingRule, TokenTerms, TokenTermsFault, TokenUsage, WantedTokens};
pub use units::{Credits, DeviceMicros, Millis, Permille, Price, Rounding, Units};
