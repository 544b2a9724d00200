//! Runs the tasks of a [`Problem`](crate::problem::Problem) on devices: a planned graph as it was
//! planned, or tasks as they come, each where it ends soonest.
//!
//! [`Dispatch`] is the core: which task a device does next, what a finished one sets free, when the
//! rest of a plan is planned anew, and what becomes of a failed device's work. It knows no thread
//! and no clock. [`Crew`] is the shell: a thread for each device, which asks the core for work and
//! tells it what was done, for several jobs that share the devices.
//!
//! Devices take tasks in batches of about [`dispatch::BATCH_TIME`], so that the bookkeeping of
//! small tasks is paid once a batch.

pub mod crew;
pub mod dispatch;
mod speeds;

pub use crew::{Call, Crew, Ended, Execution, Fault, Job, Moment, Running, Took};
pub use dispatch::{Ask, Counts, Dispatch, Keeper, Placement, Results, Stranded};
pub use speeds::Speeds;
