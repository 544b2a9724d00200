//! The exchange: accounts, orders, matching, leases, receipts and settlement.
//!
//! [`Exchange`] is a pure, deterministic struct: `apply(now, batch)` in, outcomes and events out.
//! It knows nothing of devices, networks, clocks, threads, randomness or floating point, so every
//! replica that applies the same batches at the same log times holds the same state and the same
//! [`Exchange::digest`]. What can't be done is a [`Refusal`], a value, never a panic.
#![forbid(unsafe_code)]
#![warn(
    clippy::float_arithmetic,
    clippy::disallowed_types,
    clippy::disallowed_methods
)]

mod accounts;
mod batch;
mod book;
mod books;
mod class;
mod command;
mod digest;
mod event;
mod exchange;
#[cfg(feature = "bench")]
pub mod flow;
mod genesis;
mod ids;
mod lease;
mod ledger;
mod order;
mod predicate;
mod receipt;
mod refusal;
mod snapshot;
mod tape;
mod terms;
mod text;
mod units;

pub use accounts::{Account, Reputation};
pub use batch::{Batch, BatchFault, COMMANDS_MAX, SignedBatch, VerifiedBatch};
pub use class::{Band, Class, DTYPES, Dtype, Features, KindCode, Region, Resources, Throughput};
pub use command::{Accepted, Applied, Command, Outcome};
pub use event::{Event, OrderEnd};
pub use exchange::{DepthLevel, Exchange, Explanation, FirstAsk, Listing, Quotes, Ruled};
pub use genesis::{ClassRules, Genesis, Rules};
pub use ids::{
    AccountKey, ContentId, DeviceId, Digest, JobId, LeaseId, MarketId, Nonce, OrderId, Signature,
    SigningKey, TradeId,
};
pub use lease::{CloseReason, Lease, LeaseState, Note, NoteState, Resale};
pub use ledger::Totals;
pub use order::{Ask, Bid, Limit, Side, Term, TimeInForce, Trade};
pub use predicate::{Accepts, EXCLUDED_MAX, Lack, Regions, Wants};
pub use receipt::{Receipt, ReceiptBody, ReceiptFault};
pub use refusal::{Quantity, Refusal};
pub use snapshot::SnapshotFault;
pub use tape::{Candle, PriceIndex, Print};
pub use text::{Name, NameFault};
pub use units::{Credits, DeviceMicros, Millis, Permille, Price, Rounding, Units};
