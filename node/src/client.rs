//! A node's own side of the market: it reaches the validators, asks them, and trades.

pub mod broker;
pub mod joining;
pub mod market_data;
pub mod reach;
mod task;
pub mod trader;
