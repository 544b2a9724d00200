//! A replicated, durable, deterministic state machine over raft-rs.
//!
//! [`Replica`] is the core: `tick`, `step`, `propose` and `read` change it, and it returns ordered
//! effects ([`RoundWork`], then [`Outcome`]). It has no I/O, clock, thread or randomness,
//! so one seed can replay a whole cluster. [`Store`] keeps a replica's data on disk: a segmented
//! write-ahead log and snapshots. Its [`Disk`] is real files in production and a model of a failing
//! disk in the simulator.
//!
//! You must carry out the effects of each [`RoundWork`] in this order: send `send_first`, start
//! `checks`, store `parts` with [`Store::store_parts`], persist with [`Store::persist`], send
//! `send_after`, then return the work to [`Replica::on_persisted`] and carry out the [`Outcome`].
//!
//! A [`Check`] runs concurrently on any thread and can take any time: you must pass its verdict
//! to [`Replica::on_verified`] between two rounds. A replica will acknowledge, count and apply
//! other replicas' batches only once they are durable and verified.
//!
//! For example, a single replica of a machine that adds numbers:
//!
//! ```
//! use souk_consensus::replica::Proposal;
//! use souk_consensus::{
//!     CommandFault, FolderDisk, LogTime, Position, Replica, ReplicaConfig, ReplicaId,
//!     RestoreError, StateMachine, Store, StoreConfig,
//! };
//!
//! #[derive(Default)]
//! struct Sum(u64);
//!
//! impl StateMachine for Sum {
//!     type Command = u64;
//!
//!     fn verify_command(command: &[u8]) -> Result<u64, CommandFault> {
//!         let bytes = command.try_into();
//!         bytes.map(u64::from_le_bytes).map_err(|_| CommandFault { cause: "no number".into() })
//!     }
//!
//!     fn apply_command(&mut self, _at: Position, _now: LogTime, command: &u64) -> Vec<u8> {
//!         self.0 = self.0.wrapping_add(*command);
//!         self.snapshot()
//!     }
//!
//!     fn tick(&mut self, _at: Position, _now: LogTime) -> Vec<u8> {
//!         Vec::new()
//!     }
//!
//!     fn wakes_at(&self) -> Option<LogTime> {
//!         None
//!     }
//!
//!     fn digest(&self) -> [u8; 32] {
//!         *blake3::hash(&self.snapshot()).as_bytes()
//!     }
//!
//!     fn snapshot(&self) -> Vec<u8> {
//!         self.0.to_le_bytes().into()
//!     }
//!
//!     fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
//!         let bytes = bytes.try_into().map_err(|cause| RestoreError { cause: Box::new(cause) })?;
//!         self.0 = u64::from_le_bytes(bytes);
//!         Ok(())
//!     }
//! }
//!
//! let folder = tempfile::tempdir()?;
//! let me = ReplicaId::new(1).ok_or("ids begin at 1")?;
//! let (mut store, _) = Store::open(FolderDisk::open(folder.path())?, StoreConfig::default())?;
//! let recovered = store.bootstrap(Replica::genesis_snapshot(&[me], &Sum::default()))?;
//! let mut replica = Replica::new(ReplicaConfig::new(me, 1), recovered, Vec::new(), Sum(0))?;
//!
//! // Time is told to it, and its effects are carried out, by whoever owns it.
//! let commands = [19u64, 23].map(|it| it.to_le_bytes().to_vec().into());
//! let mut proposals = Proposal::verify_commands::<Sum>(commands.into());
//! let mut now = 1_000;
//! while replica.machine().0 < 42 {
//!     now += 10;
//!     replica.tick(LogTime(now));
//!     if replica.is_leader() {
//!         for proposal in proposals.drain(..) {
//!             replica.propose(proposal?)?;
//!         }
//!     }
//!     while let Some(work) = replica.take_work(LogTime(now)) {
//!         store.persist(&work.persist)?;
//!         replica.on_persisted(work)?;
//!     }
//! }
//! assert_eq!(replica.machine().0, 42);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod audit;
pub mod batch;
pub mod check;
pub mod checkpoint;
pub mod codec;
#[cfg(test)]
mod damaged_bytes;
pub mod disk;
pub mod entry;
pub mod ids;
pub mod incoming_snapshot;
pub mod log;
pub mod machine;
pub mod manifest;
pub mod replica;
pub mod sessions;
pub mod snapshot;
pub mod store;
pub mod tree_head;
pub mod views;
pub mod voucher;
pub mod wal;
pub mod wire;

pub use check::{Check, CheckTicket, Verdict};
pub use checkpoint::Checkpoint;
pub use disk::{Disk, FolderDisk};
pub use ids::{Incarnation, ReplicaId, Term};
pub use machine::{
    ChangeStanding, CommandFault, MachineFailure, MemberChange, RestoreError, StateMachine,
};
pub use replica::{Outcome, Replica, ReplicaConfig, RoundWork};
pub use sessions::Sessions;
pub use snapshot::Snapshot;
pub use souk_proof::{
    Digest, History, Leaf, LogIndex, LogTime, Position, SealedLeaf, Tile, TileId, TreeHead,
};
pub use store::{Persist, Recovery, Store, StoreConfig};
pub use tree_head::TreeTip;
pub use voucher::{Certificate, OfferedState, Statement, Tally, Voucher};
