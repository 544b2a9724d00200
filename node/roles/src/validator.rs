//! What a validator decides.

pub mod action;
pub mod core;
pub mod event;
pub mod exchange;
pub mod members;
mod proposals;
pub mod questions;
pub mod steps;
mod vouchers;
