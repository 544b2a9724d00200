//! Carries out the parsed command of `souk-lab`: a benchmark, or a test of a whole market.

mod bench;
mod testnet;

use std::process::ExitCode;

use souk_cli::failure::Failure;
use souk_cli::folder;

use crate::args::{Args, Command};

/// Runs the command of the arguments.
pub async fn run(args: Args) -> Result<ExitCode, Failure> {
    let global = args.global;
    let output = global.output();
    let folder = &folder::chosen_folder(&global)?;
    match args.command {
        Command::Bench(command) => bench::run(folder, output, &command).await?,
        Command::Testnet(command) => testnet::run(folder, output, &command).await?,
    }
    Ok(ExitCode::SUCCESS)
}
