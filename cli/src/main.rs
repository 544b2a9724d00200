//! Starts the `souk` program; all its code is in the library `souk_cli`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    souk_cli::main()
}
