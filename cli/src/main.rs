//! The `souk` binary: every role of the market behind one command line.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod failure;
mod files;
mod folder;
mod show;
mod stop;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use args::{Args, Output};

fn main() -> ExitCode {
    // Before anything else starts a thread: the walls around a job stand for threads to come.
    #[cfg(target_os = "linux")]
    if std::env::args_os()
        .nth(1)
        .is_some_and(|first| first == souk_node::cell::COMMAND)
    {
        return souk_node::cell::inside::main();
    }
    let args = Args::parse();
    let filter = EnvFilter::try_from_env("SOUK_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // It would say so on the same stderr and panic: a node outlives its full disk.
        .log_internal_errors(false)
        .init();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = args.threads() {
        builder.worker_threads(threads);
    }
    let runtime = match builder.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    let json = args.output() == Output::Json;
    let done = runtime.block_on(commands::run(args));
    // A thread that reads standard input cannot be stopped; nothing else is left to wait for.
    runtime.shutdown_background();
    match done {
        Ok(code) => code,
        Err(failure) => failure.report(json),
    }
}
