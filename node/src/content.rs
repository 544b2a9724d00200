//! Content between peers. A peer requests it by its id and must check it by the id; the holder will
//! serve it only to the parties of its job, over a direct TLS channel if one opens, within the
//! owner's rate limits. A buyer asks the fastest holder first.

pub mod access;
pub mod direct;
pub mod inline_contents;
pub mod links;
pub mod pace;
pub mod transfers;
