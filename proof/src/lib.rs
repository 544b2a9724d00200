//! What anyone needs to check a market's history: the tree over all commands, proofs that a leaf is
//! in it and that one tree continues another, and with the feature `market` the notes that
//! validators cosign, the proof that a receipt was settled, and the proof of a balance.
//!
//! It has no I/O, clock or thread. The log's own crate builds the tree with it; clients and
//! auditors check with the same code, and nothing else of souk.

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

pub use digest::Digest;
pub use history::{History, Leaf, SealedLeaf};
pub use place::{LogIndex, LogTime, Position, TreeHead};
pub use quorum::certifying_count;
pub use tiles::{Tile, TileId};
