//! A replicated, durable, deterministic state machine over raft-rs.
//!
//! [`Replica`] is the core: `tick`, `step`, `propose` and `read` change it, and what has to happen
//! in the world comes back as ordered effects ([`Work`], then [`Outcome`]). It does no I/O, has no
//! clock, no thread and no randomness of its own, so one seed replays a whole cluster. [`Store`] is
//! what a replica keeps on disk: a segmented write-ahead log and snapshots, over a [`Disk`] that is
//! real files in production and a model of a failing disk in the simulator.
//!
//! The caller carries effects out in this order, for each [`Work`]:
//! send `send_first`, keep `parts` with [`Store::keep_parts`], persist with [`Store::persist`],
//! send `send_after`, then give the work back to [`Replica::persisted`] and carry out the
//! [`Outcome`].
//!
//! Commands are applied on the word of the replica that took them in. The caller checks behind,
//! with [`StateMachine::verify`], what others took in, and says how far it is with
//! [`Replica::on_verified`]: no checkpoint is told to others and no snapshot kept before that.

pub mod audit;
pub mod batch;
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
pub mod snapshot;
pub mod store;
pub mod views;
pub mod wal;
pub mod wire;

pub use disk::{Disk, FolderDisk};
pub use history::{Digest, History};
pub use ids::{Incarnation, LogIndex, LogTime, ReplicaId, Term};
pub use machine::{Forged, Position, RestoreError, StateMachine};
pub use replica::{Outcome, Replica, ReplicaConfig, Work};
pub use snapshot::Snapshot;
pub use store::{Recovered, Store, StoreConfig};
