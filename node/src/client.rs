//! Contains the client of a market: connects a node to the validators (the nodes that run the
//! market), sends them questions, and trades. Buyers, providers and the command line use it.

pub mod account_proof;
pub mod broker;
pub mod history;
pub mod join;
pub mod market_data;
pub mod reach;
pub mod settlement;
mod task;
pub mod trader;
