//! Tests the exchange through its public interface: whole jobs, special cases, and random streams
//! of commands that are compared with a naive exchange.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod bytes;
mod crowd;
mod disputes;
mod forgetting;
mod harm;
mod hostile;
mod naive;
mod quotes;
mod refusals;
mod room;
mod scenario;
mod streams;
mod tokens;
mod town;
mod versions;
mod way_of_a_job;
