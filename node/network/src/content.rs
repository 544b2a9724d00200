//! Moves content between peers: tensors, weights and graphs, each named by an id that is a hash of
//! its bytes. The job of a buyer and the providers of its leases (bought device time) use it.
//!
//! A peer requests content by its id and must check it by the id. The holder will serve it only to
//! the parties of its job, over a direct TLS channel if one opens, within the owner's rate limits.
//! A buyer asks the fastest holder first.

pub mod access;
pub mod direct;
pub mod inline_contents;
pub mod links;
pub mod pace;
pub mod transfers;
