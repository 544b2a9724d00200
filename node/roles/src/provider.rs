//! What a provider decides: which leases it takes, what it runs of them, what it bills, and what it
//! has in the book.
//!
//! Ids and numbers alone enter it: no tensor, graph, report or key.

pub mod action;
pub mod config;
pub mod event;
pub mod facts;

pub use action::{Action, Content, Report, Urgency};
pub use config::Config;
pub use event::{Answer, Arrival, Event, MarketView, NotDone, RunResult, StreamId, Terms};
pub use facts::{Before, Fact, Past, PastLease, PastState, Work};
