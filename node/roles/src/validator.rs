//! What a validator decides.

pub mod exchange;
pub mod questions;
