//! The market as its peers see it: the requests and answers between peers and validators, the
//! demands of a buyer on asks, the names behind the market's numbers, and the list of validators.

pub mod client;
pub mod demands;
mod device_verdicts;
pub mod features;
pub mod history_check;
pub mod known_members;
pub mod market_protocol;
pub mod operators;
pub mod order_number;
pub mod regions;
pub mod roster;
pub mod roster_proof;
pub mod statement;
pub mod unsuitable;
pub mod verdict;
