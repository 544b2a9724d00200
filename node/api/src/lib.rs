//! The public JSON of souk: one schema for `--json`, HTTP and Python.
//!
//! Each type here is the public form of something: of a lease, an order, an event of a job, the
//! limits of a job. The exchange and the roles have types of their own, which they store and send.
//! A conversion separates these from the public types, so a field of replicated state can change
//! its name without any effect on users.
//!
//! Amounts are in micro-credits, prices in micro-credits per device-second. Moments are RFC 3339 in
//! UTC, durations are in seconds. Accounts, jobs and contents are hexadecimal.
//!
//! With the feature `schema`, each type also has a schema of OpenAPI; only the gateway needs it.

#![forbid(unsafe_code)]

pub mod account;
pub mod ask;
pub mod class_name;
pub mod event;
pub mod governance;
pub mod history;
pub mod lease;
pub mod market;
pub mod member;
pub mod order;
pub mod text_key;
pub mod text_offer;
pub mod time;
