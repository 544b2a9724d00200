//! What a validator decides.

pub mod exchange;
