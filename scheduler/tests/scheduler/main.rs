//! The scheduler through its public functions, as one program: it links once.

mod constructs;
mod digits;
mod exports;
mod objectives;
mod planners;
mod plans;
mod soak;
mod strangers;
mod tasks;
