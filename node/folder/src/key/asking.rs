//! Asks the user at the terminal for the passphrase of a key file, and reads it without an echo.

use std::io::{self, IsTerminal, Write};

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

/// Asks for a line at the terminal; returns `None` if standard input is not a terminal, as in a
/// service.
///
/// # Errors
/// The system's error.
pub(super) fn prompt_line(question: &str) -> io::Result<Option<String>> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Ok(None);
    }
    let before = tcgetattr(&stdin)?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    // The end of the line is echoed, because the next output would otherwise follow the question.
    silent.local_modes.insert(LocalModes::ECHONL);
    eprint!("{question}: ");
    io::stderr().flush()?;
    tcsetattr(&stdin, OptionalActions::Flush, &silent)?;
    let mut line = String::new();
    let read = stdin.read_line(&mut line);
    tcsetattr(&stdin, OptionalActions::Now, &before)?;
    read.map(|_| Some(line))
}
