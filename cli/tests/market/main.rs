//! Tests the `souk` binary from outside, against markets of real processes.

mod asks;
#[cfg(feature = "generate")]
mod audits;
mod backups;
mod between;
mod certification;
#[cfg(feature = "generate")]
mod chats;
mod common;
mod disputes;
mod doors;
mod drain;
mod drivers;
#[cfg(feature = "generate")]
mod endpoints;
mod engines;
mod faults;
mod following;
mod founding;
mod gate;
mod gateway;
mod governing;
mod hand;
mod http;
mod jobs;
mod kernels;
mod keys;
mod limits;
mod loops;
mod members;
mod options;
mod orders;
mod parties;
mod priorities;
mod providers;
#[cfg(feature = "generate")]
mod questions;
mod recovery;
mod refusals;
#[cfg(feature = "generate")]
mod resellers;
mod sandboxes;
mod seller;
#[cfg(feature = "generate")]
mod served_models;
mod shares;
mod strangers;
mod streams;
mod teams;
mod testnets;
#[cfg(feature = "generate")]
mod text_keys;
#[cfg(feature = "generate")]
mod texts;
#[cfg(feature = "generate")]
mod token_prices;
mod trading;
mod training;
mod training_audits;
mod unbegun;
mod validator;
mod watching;
mod wizard;
