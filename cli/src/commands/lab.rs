//! Runs `souk-lab`, the program that tests and measures souk, with the arguments of this process.
//! `souk` calls it for the commands that it does not contain: `souk bench …` and some of
//! `souk testnet …`.

use std::io;
use std::process::{Command, ExitCode};

use crate::failure::{Failure, Kind};
use crate::program::program_path;

/// Runs `souk-lab`, which must be next to this program, with the arguments of this process.
///
/// # Errors
/// Fails if there is no such program, or if it cannot be started.
pub fn run() -> Result<ExitCode, Failure> {
    let lab = program_path()?.with_file_name(format!("souk-lab{}", std::env::consts::EXE_SUFFIX));
    let mut command = Command::new(&lab);
    command.args(std::env::args_os().skip(1));
    let error = match replace_process(command) {
        Ok(code) => return Ok(code),
        Err(error) => error,
    };
    let path = lab.display();
    if error.kind() == io::ErrorKind::NotFound {
        let cause = format!("this command is part of souk-lab, and there is no {path}");
        let hint = "build it with `cargo build --release -p souk-lab` from the same sources, and \
                    put it beside souk";
        return Err(Failure::new(Kind::Usage, cause, hint));
    }
    let cause = format!("cannot start {path}: {error}");
    Err(Failure::new(Kind::Unexpected, cause, ""))
}

/// Makes this process the command's. It returns only if that fails.
#[cfg(unix)]
fn replace_process(mut command: Command) -> io::Result<ExitCode> {
    use std::os::unix::process::CommandExt;

    Err(command.exec())
}

/// Runs the command, and returns its exit code.
#[cfg(not(unix))]
fn replace_process(mut command: Command) -> io::Result<ExitCode> {
    let code = command.status()?.code();
    let code = code.and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
