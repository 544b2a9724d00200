//! Carries out the parsed command of `souk`: [`run`] calls the module of the command. Each
//! submodule implements one command or one group of them; a few hold helpers that several commands
//! share.

mod account;
mod audit;
mod book;
#[cfg(feature = "generate")]
mod chat;
mod config;
mod debug;
mod demo;
pub mod device;
mod dispute;
mod doctor;
#[cfg(feature = "generate")]
mod generate;
mod help;
mod job;
mod key;
mod lab;
mod market;
mod model;
mod node;
#[cfg(feature = "generate")]
mod openai;
mod operator;
mod peers;
mod provider;
mod providers;
mod receipt;
mod roster;
#[cfg(feature = "gateway")]
mod serve;
#[cfg(feature = "generate")]
mod served_model;
mod submit;
pub mod testnet;
#[cfg(feature = "generate")]
mod texts;
mod top;
mod trade;
mod train;
mod uncertified;
mod validator;

use std::process::ExitCode;

use crate::args::{Args, Command, ConfigCommand, DebugCommand};
use crate::failure::Failure;
use crate::{folder, suggested_command};

/// Runs the command of the arguments.
pub async fn run(args: Args) -> Result<ExitCode, Failure> {
    let global = args.global;
    let output = global.output();
    let folder = &folder::chosen_folder(&global)?;
    suggested_command::work_in(folder);
    match args.command {
        Command::Demo(args) => return demo::run(output, args).await,
        Command::Testnet(command) => testnet::run(folder, output, command).await?,
        Command::Plan(job) => submit::show_plan(folder, output, &job).await?,
        Command::Submit(submit) => submit::submit_job(folder, output, &submit).await?,
        Command::Train(train) => train::run(folder, output, &train).await?,
        Command::Job(command) => job::run(folder, output, &command).await?,
        #[cfg(feature = "gateway")]
        Command::Serve(args) => serve::run(folder, output, &args).await?,
        #[cfg(feature = "gateway")]
        Command::Dashboard(args) => serve::print_dashboard_url(folder, output, args)?,
        Command::Peers => peers::run(folder, output)?,
        Command::Account(command) => account::run(folder, output, command).await?,
        Command::Order(command) => trade::run_order(folder, output, command).await?,
        Command::Lease(command) => trade::run_lease(folder, output, command).await?,
        Command::Operator(command) => operator::run(folder, output, command).await?,
        Command::Market(command) => market::run(folder, output, command).await?,
        Command::Book(freshness) => book::list_asks(folder, freshness, output).await?,
        Command::Balance(freshness) => book::show_balance(folder, freshness, output).await?,
        Command::Receipt(command) => receipt::run(folder, output, &command).await?,
        Command::Dispute(command) => dispute::run(folder, output, &command).await?,
        Command::Model(command) => model::run(folder, output, &command).await?,
        #[cfg(feature = "generate")]
        Command::Generate(args) => generate::run(folder, output, &args).await?,
        #[cfg(feature = "generate")]
        Command::Chat(args) => chat::run(folder, output, &args).await?,
        #[cfg(feature = "generate")]
        Command::Openai(args) => openai::run(folder, output, &args).await?,
        Command::Device(command) => device::run(folder, output, &command)?,
        Command::Doctor => doctor::run(folder, output).await?,
        Command::Top(args) => top::run(folder, output, args).await?,
        Command::Config(ConfigCommand::Show) => config::show_settings(&global, folder)?,
        Command::Debug(DebugCommand::Bundle { out }) => {
            debug::write_bundle(&global, folder, &out).await?;
        }
        Command::Completions { shell } => help::print_completions(shell),
        Command::Man { folder } => help::write_manual(&folder, output)?,
        Command::Audit(args) => audit::run(folder, output, &args).await?,
        Command::Bench(_) => return lab::run(),
        Command::Validator(command) => validator::run(folder, output, command).await?,
        Command::Key(command) => key::run(folder, output, &command)?,
        Command::Provider(command) => provider::run(folder, output, command).await?,
    }
    Ok(ExitCode::SUCCESS)
}
