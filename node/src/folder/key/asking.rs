//! The passphrase of who sits at the terminal, typed without being shown.

use std::io::{self, IsTerminal, Write};

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

/// Asks for a line at the terminal; none where standard input is not one, as in a service.
///
/// # Errors
/// What the system says.
pub(super) fn ask(question: &str) -> io::Result<Option<String>> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Ok(None);
    }
    let before = tcgetattr(&stdin)?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    // The line's end is shown, or what is printed next would follow the question.
    silent.local_modes.insert(LocalModes::ECHONL);
    eprint!("{question}: ");
    io::stderr().flush()?;
    tcsetattr(&stdin, OptionalActions::Flush, &silent)?;
    let mut line = String::new();
    let read = stdin.read_line(&mut line);
    tcsetattr(&stdin, OptionalActions::Now, &before)?;
    read.map(|_| Some(line))
}
