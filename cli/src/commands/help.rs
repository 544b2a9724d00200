//! Writes the help in two other forms, both derived from the definition of the command line: shell
//! completions for `souk completions`, and manual pages for `souk man`.

use std::path::Path;

use clap_complete::Shell;
use serde_json::json;

use crate::args::{Args, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::create_folder;
use crate::show;

/// Prints the completions for a shell.
pub fn print_completions(shell: Shell) {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Args::build_command(), "souk", &mut text);
    show::print_line(String::from_utf8_lossy(&text).trim_end());
}

/// Writes the manual pages: `souk.1`, and one for each subcommand.
pub fn write_manual(folder: &Path, output: Output) -> Outcome {
    create_folder(folder)?;
    clap_mangen::generate_to(Args::build_command(), folder).map_err(|error| {
        let cause = format!("cannot write to {}: {error}", folder.display());
        Failure::new(Kind::State, cause, "give another folder")
    })?;
    let text = format!(
        "wrote the pages to {0}; read one with `man {0}/souk.1`",
        folder.display()
    );
    show::print_result(output, &json!({ "folder": folder }), &text);
    Ok(())
}
