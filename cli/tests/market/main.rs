//! The binary as a user has it, against markets of real processes.

mod backups;
mod between;
mod common;
mod drain;
mod drivers;
mod engines;
mod faults;
mod founding;
mod hand;
mod jobs;
mod kernels;
mod keys;
mod limits;
mod members;
mod priorities;
mod providers;
mod recovery;
mod refusals;
mod sandboxes;
mod seller;
mod shares;
mod streams;
mod teams;
mod validator;
mod watching;
mod wizard;
