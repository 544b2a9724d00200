//! A replicated, durable, deterministic state machine over raft-rs.
//!
//! [`Replica`] is the core: `tick`, `step`, `propose` and `read` change it, and what has to happen
//! in the world comes back as ordered effects ([`Work`], then [`Outcome`]). It does no I/O, has no
//! clock, no thread and no randomness of its own, so one seed replays a whole cluster. [`Store`] is
//! what a replica keeps on disk: a segmented write-ahead log and snapshots, over a [`Disk`] that is
//! real files in production and a model of a failing disk in the simulator.
//!
//! The caller carries effects out in this order, for each [`Work`]:
//! send `send_first`, begin with `checks`, keep `parts` with [`Store::keep_parts`], persist with
//! [`Store::persist`], send `send_after`, then give the work back to [`Replica::persisted`] and
//! carry out the [`Outcome`].
//!
//! A [`Check`] runs beside all that, on any thread, and may take as long as it likes: its verdict
//! is given to [`Replica::on_verified`] between two rounds. What others took in is acknowledged,
//! counted and applied only once it is durable and verified.

pub mod audit;
pub mod batch;
pub mod check;
pub mod checkpoint;
pub mod codec;
#[cfg(test)]
mod damaged;
pub mod disk;
pub mod entry;
pub mod history;
pub mod ids;
pub mod incoming;
pub mod log;
pub mod machine;
pub mod manifest;
pub mod replica;
pub mod sessions;
pub mod snapshot;
pub mod store;
pub mod views;
pub mod wal;
pub mod wire;

pub use check::{Check, CheckTicket, Verdict};
pub use checkpoint::Checkpoint;
pub use disk::{Disk, FolderDisk};
pub use history::{Digest, History};
pub use ids::{Incarnation, LogIndex, LogTime, ReplicaId, Term};
pub use machine::{CommandFault, Position, RestoreError, StateMachine, Unable};
pub use replica::{Outcome, Replica, ReplicaConfig, Work};
pub use sessions::Sessions;
pub use snapshot::Snapshot;
pub use store::{Persist, Recovery, Store, StoreConfig};
