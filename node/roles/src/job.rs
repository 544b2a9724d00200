//! A buyer's job: what is bought, who is told what, what is right and paid, and what is not.
//!
//! A job is requests, one or many. It is done in *attempts*: an attempt buys a gang of leases, its
//! *legs*, over one plan, and sends requests through them. What is right is signed and paid; where
//! a provider fails, what was made is kept, and the next attempt does what is left without it.

pub mod action;
pub mod event;
pub mod facts;
pub mod plan;
pub mod reason;
pub mod spec;

pub use action::{Action, JobEvent, Outcome, Spending};
pub use event::{Answer, CommandError, Event, FetchFault, Leg};
pub use facts::{End, Fact, Past, attempt_id, request_id};
pub use plan::{Plan, Wanted, Work};
pub use reason::{Loss, Objection, Reason};
pub use spec::{JobSpec, Limits};
