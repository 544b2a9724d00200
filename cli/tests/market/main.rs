//! The binary as a user has it, against markets of real processes.

mod common;
mod jobs;
mod refusals;
