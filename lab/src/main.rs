//! Starts the `souk-lab` program; all its code is in the library `souk_lab`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    souk_lab::main()
}
