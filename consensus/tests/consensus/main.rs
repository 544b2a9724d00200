//! Tests replicas through the public functions of the crate. It is one program, so that it links
//! once.

mod audit;
mod by_hand;
mod liars;
mod network;
mod store;
mod wal;
