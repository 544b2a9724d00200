//! A replica through its public functions, as one program: it links once.

mod audit;
mod by_hand;
mod liars;
mod network;
mod store;
mod wal;
