//! The code of the program `souk`: it parses the command line and carries out the commands of
//! buyers, providers, validators and operators. `souk-lab`, the program that tests and measures
//! souk, uses the public modules.

#![forbid(unsafe_code)]

mod args;
pub mod commands;
pub mod failure;
mod files;
pub mod folder;
pub mod program;
mod rules;
pub mod show;
pub mod stop;
mod suggested_command;

/// The parts of options and help that the commands of `souk-lab` share with those of `souk`.
pub mod options {
    pub use crate::args::{
        Backend, Example, GlobalArgs, Output, add_examples, apply_color_choice, bytes, duration,
    };
}

use std::io::IsTerminal;
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

use args::{Args, GlobalArgs, Output};
use failure::{Failure, Kind};

/// Runs `souk` with the arguments of this process.
pub fn main() -> ExitCode {
    start(Args::parse_arguments, |args: Args| Program {
        global: args.global.clone(),
        network_threads: None,
        command: commands::run(args),
    })
}

/// The command that the arguments of a process request, with its options.
pub struct Program<C> {
    /// The options that all commands share.
    pub global: GlobalArgs,
    /// The number of threads for the network; one per core if `None`.
    pub network_threads: Option<usize>,
    /// What the program must do.
    pub command: C,
}

/// Parses the arguments of this process and runs their command, with the log, the threads and the
/// time limit that they ask for.
pub fn start<A, C>(
    parse: impl FnOnce() -> Result<A, clap::Error>,
    program: impl FnOnce(A) -> Program<C>,
) -> ExitCode
where
    C: Future<Output = Result<ExitCode, Failure>>,
{
    // This must come before any thread starts: the sandbox's rules apply only to later threads.
    #[cfg(target_os = "linux")]
    if std::env::args_os()
        .nth(1)
        .is_some_and(|first| first == souk_sandbox::COMMAND)
    {
        return souk_sandbox::inside::main();
    }
    keep_files_private();
    let args = match parse() {
        Ok(args) => args,
        Err(error) => return report_usage_error(&error),
    };
    let Program {
        global,
        network_threads,
        command,
    } = program(args);
    let filter = EnvFilter::try_from_env("SOUK_LOG");
    let no_color = global.no_color || std::env::var_os("NO_COLOR").is_some();
    tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|_| EnvFilter::new(global.log_filter())))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && !no_color)
        // Reporting a failed write to the same stderr would panic; a node must survive a full disk.
        .log_internal_errors(false)
        .init();
    keep_what_is_freed();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = network_threads {
        builder.worker_threads(threads);
    }
    let runtime = match builder.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    let json = global.output() == Output::Json;
    show::set_output_form(&global);
    let done = runtime.block_on(stop::run_within(global.timeout, command));
    // A thread that reads standard input cannot be stopped; there is nothing else to wait for.
    runtime.shutdown_background();
    match done {
        Ok(code) => code,
        Err(failure) => failure.report(json),
    }
}

/// Reports clap's message for arguments that do not parse or that ask for help; as JSON if the
/// arguments ask for that.
fn report_usage_error(error: &clap::Error) -> ExitCode {
    let words = ["--json", "json", "jsonl", "--output=json", "--output=jsonl"];
    let is_json = |argument: std::ffi::OsString| words.iter().any(|word| argument == *word);
    if !error.use_stderr() || !std::env::args_os().any(is_json) {
        error.exit();
    }
    let text = error.render().to_string();
    let (cause, rest) = text.split_once("\n\n").unwrap_or((text.as_str(), ""));
    let cause = cause.trim_start_matches("error: ");
    Failure::new(
        Kind::Usage,
        cause,
        rest.split_whitespace().collect::<Vec<_>>().join(" "),
    )
    .report(true)
}

/// Makes every file and folder of this process private to its user, 0600 and 0700: tensors,
/// journals, outputs, logs.
fn keep_files_private() {
    #[cfg(unix)]
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
}

/// Size of freed memory to keep: more than the frames of a few busy connections.
const KEPT_BYTES: usize = 4 << 20;

/// Makes the allocator keep some freed memory for later. By default, glibc returns free memory
/// beyond 128 KiB to the system at once, and a node that receives at full speed then spends much of
/// its time on new pages. glibc adapts its threshold when a long allocation is freed (mallopt(3),
/// M_MMAP_THRESHOLD); this is such an allocation, whose pages are never touched. Other allocators
/// ignore it.
fn keep_what_is_freed() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(KEPT_BYTES)));
}
