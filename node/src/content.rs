//! Content between peers: asked for by its id and checked by it, served to the parties of the job
//! it is of, over a direct TLS channel where one comes about, at the pace that the node's owner
//! allows, from where it comes soonest.

pub mod access;
pub mod along;
#[cfg(feature = "bench")]
pub mod bench;
pub mod direct;
pub mod links;
pub mod pace;
pub mod transfers;
