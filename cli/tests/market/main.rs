//! The binary as a user has it, against markets of real processes.

mod backups;
mod common;
mod jobs;
mod members;
mod refusals;
mod validator;
