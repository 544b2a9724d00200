//! What the roles of a node decide: synchronous state machines, `apply(now, event) -> effects`.
//!
//! A core knows no clock, thread, lock, network, disk, randomness or device. It is told what
//! happened, and says what is to be done as data; whoever drives it carries that out and tells it
//! what came of it. Two drive the same cores: a node's shells, with libp2p and files, and the
//! seeded simulator, with neither.

#![forbid(unsafe_code)]
#![warn(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::float_arithmetic
)]

pub mod access;
pub mod clock;
pub mod effect;
pub mod job;
pub mod lease;
pub mod market;
pub mod provider;
pub mod validator;
