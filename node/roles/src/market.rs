//! The market as its peers see it: what they and validators say to each other, what a buyer demands
//! of asks, and who the validators are.

pub mod client;
pub mod demands;
pub mod features;
pub mod known_members;
pub mod market_protocol;
pub mod operators;
pub mod regions;
pub mod roster;
pub mod statement;
pub mod unsuitable;
