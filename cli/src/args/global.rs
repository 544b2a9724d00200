//! The global options: every command of `souk` and `souk-lab` takes them, before or after its name.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ColorChoice, ValueEnum};

use super::trade::duration;

/// Heading of the shared options in help texts.
const HELP_HEADING: &str = "Global options";

/// The option for output without colours. `apply_color_choice` searches for it before parsing,
/// because it affects the output of the parser.
const NO_COLOR: &str = "--no-color";

/// The global options.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = HELP_HEADING)]
pub struct GlobalArgs {
    /// The folder of the testnet, market or node.
    #[arg(
        long,
        global = true,
        env = "SOUK_DIR",
        hide_env_values = true,
        default_value = "souk-testnet",
        value_name = "DIR"
    )]
    pub dir: PathBuf,
    /// Use the market of this name in a folder below --dir, if --dir holds several.
    #[arg(long, global = true, value_name = "NAME")]
    pub market: Option<String>,
    /// The output format: text for people; json for one JSON value on standard output; jsonl for a
    /// JSON value per line, for each event and each entry of a list.
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t = OutputFormat::Text,
        hide_possible_values = true,
        value_name = "text|json|jsonl"
    )]
    pub output: OutputFormat,
    /// Same as --output json.
    #[arg(long, global = true)]
    pub json: bool,
    /// Print tables in full width; by default they fit the terminal, or 80 columns.
    #[arg(long, global = true)]
    pub wide: bool,
    /// Print only the result: no progress, no warnings.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Log more to standard error; repeat it for still more. SOUK_LOG selects in detail.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Print no colours, as with NO_COLOR set; souk never writes colours to a file or a pipe.
    #[arg(long, global = true)]
    pub no_color: bool,
    /// Stop after this time, such as 30s or 10m, as Ctrl-C would; an unfinished command then exits
    /// with 10.
    #[arg(long, global = true, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<Duration>,
}

/// Whether a command prints its result for people or for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Text for people.
    Text,
    /// JSON for programs.
    Json,
}

/// The value of --output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    Text,
    Json,
    Jsonl,
}

impl GlobalArgs {
    /// Returns whether the result must be text or JSON, from --output and --json.
    pub fn output(&self) -> Output {
        match self.output {
            OutputFormat::Text if !self.json => Output::Text,
            _ => Output::Json,
        }
    }

    /// Returns whether the output format is jsonl: each entry of a list must be a line of its own.
    pub fn is_by_line(&self) -> bool {
        self.output == OutputFormat::Jsonl
    }

    /// Returns the log filter to use if SOUK_LOG sets none.
    pub fn log_filter(&self) -> &'static str {
        match (self.quiet, self.verbose) {
            (true, _) => "error,libp2p_kad=off",
            // That library warns when a market's first validator has no peers yet.
            (false, 0) => "warn,libp2p_kad=error",
            (false, 1) => "info",
            (false, _) => "debug",
        }
    }
}

/// Returns the command without colours if the program's arguments contain --no-color.
pub fn apply_color_choice(command: clap::Command) -> clap::Command {
    match std::env::args_os().any(|argument| argument == NO_COLOR) {
        true => command.color(ColorChoice::Never),
        false => command,
    }
}
