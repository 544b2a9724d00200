//! Tests the scheduler through its public functions. All tests are in one program, so that it is
//! linked only once.

mod constructs;
mod digits;
mod exports;
mod objectives;
mod planners;
mod plans;
mod soak;
mod strangers;
mod tasks;
