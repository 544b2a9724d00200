//! One module a command.

mod audit;
mod bench;
mod demo;
mod device;
mod job;
mod jobs;
mod key;
mod market;
mod model;
mod node;
mod peers;
mod provider;
mod receipt;
mod testnet;
mod trial;
mod validator;

use std::process::ExitCode;

use crate::args::{Args, Command};
use crate::failure::Failure;

/// Carries out the command line.
pub async fn run(args: Args) -> Result<ExitCode, Failure> {
    let (folder, output) = (args.dir.as_path(), args.output());
    match args.command {
        Command::Demo => return demo::run(output).await,
        Command::Testnet(command) => testnet::run(folder, output, command).await?,
        Command::Plan(job) => job::plan(folder, output, &job).await?,
        Command::Submit(submit) => job::submit(folder, output, &submit).await?,
        Command::Job(command) => jobs::run(folder, output, &command).await?,
        Command::Peers => peers::run(folder, output)?,
        Command::Book(freshness) => market::book(folder, freshness, output).await?,
        Command::Balance(freshness) => market::balance(folder, freshness, output).await?,
        Command::Receipt(command) => receipt::run(output, &command)?,
        Command::Model(command) => model::run(output, &command)?,
        Command::Device(command) => device::run(folder, output, &command)?,
        Command::Audit { folder } => audit::run(&folder, output)?,
        Command::Bench(command) => bench::run(folder, output, &command).await?,
        Command::Validator(command) => validator::run(folder, output, command).await?,
        Command::Key(command) => key::run(folder, output, &command)?,
        Command::Provider(command) => provider::run(folder, output, command).await?,
    }
    Ok(ExitCode::SUCCESS)
}
