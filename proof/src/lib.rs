//! Builds and checks the proofs about a market's history: the tree over all commands, proofs that a
//! leaf is in it and that one tree continues another. With the feature `market` also the notes that
//! validators cosign, the proof that a receipt was settled, and the proof of an account's balances.
//!
//! It has no I/O, clock or thread. The crate of the replicated log builds the tree with it; clients
//! and auditors can check proofs with this crate and few others of souk.

#[cfg(feature = "market")]
pub mod account_proof;
pub mod consistency;
pub mod digest;
pub mod history;
pub mod inclusion;
#[cfg(feature = "market")]
pub mod note;
pub mod place;
pub mod quorum;
#[cfg(feature = "market")]
pub mod receipt_proof;
pub mod tiles;
#[cfg(feature = "market")]
pub mod witness;

pub use digest::Digest;
pub use history::{History, Leaf, SealedLeaf};
pub use place::{LogIndex, LogTime, Position, TreeHead};
pub use quorum::certifying_count;
pub use tiles::{Tile, TileId};
