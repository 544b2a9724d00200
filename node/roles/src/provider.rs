//! What a provider decides: which leases it takes, what it runs of them, what it bills, and what it
//! has in the book.
//!
//! [`ProviderCore`] holds what lies between leases, a lease at work is a machine of its own, and
//! what it is owed afterwards another. Ids and numbers alone enter them: no tensor, graph, report
//! or key.

pub mod action;
mod ask;
mod bill;
mod claim;
mod config;
mod core;
pub mod event;
pub mod facts;
mod feeds;
mod lease;
mod readers;
mod requests;
mod shared;
mod turns;

pub use self::core::{Counts, ProviderCore, ProviderStatus};
pub use action::{Action, Content, ContentKind, Report, Urgency};
pub use ask::DEVICE;
pub use claim::ClaimStage;
pub use config::Config;
pub use event::{Answer, Arrival, Event, MarketView, NotDone, RunResult, StreamId, Terms};
pub use facts::{Before, Fact, Past, PastLease, PastState, Work};
pub use lease::WorkStage;
pub use readers::LeaseReaders;
pub use shared::Stage;

#[cfg(test)]
mod tests;
