//! The decisions of a provider: which leases it accepts, which parts it runs, what it bills, and
//! which ask it has in the book.
//!
//! [`ProviderCore`] coordinates the leases. A lease at work is a state machine of its own, and so
//! is its *claim*, the open payment after the work has ended. Only ids and numbers enter them: no
//! tensor, graph, report or key.

mod access_list;
pub mod action;
mod ask;
mod bill;
mod claim;
mod config;
mod core;
pub mod event;
pub mod facts;
mod lease;
mod lease_priority;
mod provider_context;
mod requests;
mod state_feedback;

pub use self::core::{Counts, ProviderCore, ProviderStatus};
pub use access_list::LeaseReaders;
pub use action::{Action, Content, ContentKind, Report, Urgency};
pub use ask::DEVICE;
pub use claim::ClaimStage;
pub use config::Config;
pub use event::{
    Answer, Arrival, Event, FailedRun, MarketView, NotDone, RunResult, StreamId, Terms,
};
pub use facts::{EarlierLeases, Fact, LeaseResult, Past, PastLease, PastState};
pub use lease::WorkStage;
pub use provider_context::Stage;

#[cfg(test)]
pub(crate) mod tests;
