//! The arguments of `souk operator …`. A market's operators create its credits and change its rules
//! and members.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use souk_node::market::AccountKey;

use super::account::credits;
use super::trade::duration;

/// Commands of a market's operator.
#[derive(Debug, Subcommand)]
pub enum Operator {
    /// List requests for credits in and out that wait for the operator; needs no key.
    Requests,
    /// Decide requests as they arrive, with a program or as a faucet, until you stop the command.
    Decide(DecideArgs),
    /// Compare the confirmed requests with an account outside the market, row by row.
    Reconcile {
        /// A CSV file with the first line direction,amount,reference.
        file: PathBuf,
    },
    /// Lock withdrawals before you pay them out: their accounts can then no longer cancel them.
    Lock {
        /// The ids of the requests.
        #[arg(required = true)]
        requests: Vec<u64>,
        #[command(flatten)]
        key: OperatorKey,
    },
    /// Confirm that requested credits have come in or gone out; you must lock a withdrawal first.
    Confirm {
        /// The ids of the requests.
        #[arg(required = true)]
        requests: Vec<u64>,
        #[command(flatten)]
        key: OperatorKey,
    },
    /// Refuse a request; held credits return to its account.
    Refuse {
        /// The request's id.
        request: u64,
        /// The reason, for the account.
        reason: String,
        #[command(flatten)]
        key: OperatorKey,
    },
    /// Create credits for an account without a request; opens the account if there is none.
    Credit {
        /// The account (64 hexadecimal digits), as `souk account new` prints it.
        account: AccountKey,
        /// The amount, in credits.
        #[arg(value_parser = credits)]
        amount: u64,
        #[command(flatten)]
        key: OperatorKey,
    },
    /// Collect the market's earnings (fees, the rest of slashed stake) into the operator's account.
    Collect {
        /// The amount, in credits.
        #[arg(value_parser = credits)]
        amount: u64,
        #[command(flatten)]
        key: OperatorKey,
    },
    /// Freeze an account: it cannot withdraw or transfer credits or place orders, and its orders
    /// leave the books. Its leases continue and are paid.
    Freeze {
        /// The account (64 hexadecimal digits).
        account: AccountKey,
        /// The reason, public: at most 64 bytes.
        #[arg(long, value_name = "TEXT")]
        reason: String,
        #[command(flatten)]
        key: OperatorKey,
    },
    /// Unfreeze an account.
    Thaw {
        /// The account (64 hexadecimal digits).
        account: AccountKey,
        #[command(flatten)]
        key: OperatorKey,
    },
    /// Show and change the market's rules.
    #[command(subcommand)]
    Rules(OperatorRules),
    /// List commands that wait for more operators; needs no key.
    Pending,
    /// Approve a command that another operator has given, if it needs more than one.
    Approve {
        /// The command's number, from `souk operator pending`.
        command: u64,
        #[command(flatten)]
        key: OperatorKey,
    },
    /// Announce when another version of the market's rules applies; validators that do not support
    /// it stop then.
    Upgrade {
        /// The version that validators must have by then.
        #[arg(long, value_name = "VERSION")]
        to: u16,
        /// The notice before it takes effect, such as 1h; by default that of the market's rules.
        #[arg(long, value_name = "TIME", value_parser = duration)]
        notice: Option<Duration>,
        /// Announce the version even if some known validators do not support it; they will stop.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        key: OperatorKey,
    },
}

/// Commands on a market's rules.
#[derive(Debug, Subcommand)]
pub enum OperatorRules {
    /// Print the rules with an explanation of each, and the changes to come; needs no key.
    Show,
    /// List the changes to come; needs no key.
    List,
    /// Announce a change of the rules. Open leases and resting orders keep their terms.
    Change(RulesChangeArgs),
    /// Cancel a change that has not taken effect yet.
    Cancel {
        /// The change's number, from `souk operator rules list`.
        change: u64,
        #[command(flatten)]
        key: OperatorKey,
    },
}

/// A change of the rules, and its notice.
#[derive(Debug, clap::Args)]
pub struct RulesChangeArgs {
    /// A rule and its new value, both as `souk operator rules show` prints them.
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// A class whose trading to change: its name or the beginning of it.
    #[arg(long)]
    pub class: Option<String>,
    /// The tick of that class: prices are multiples of it, in micro-credits.
    #[arg(long, requires = "class", value_name = "MICRO")]
    pub tick: Option<u64>,
    /// The lot of that class: quantities are multiples of it.
    #[arg(long, requires = "class", value_name = "UNITS")]
    pub lot: Option<u32>,
    /// The notice before it takes effect, such as 1h; by default that of the market's rules.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub notice: Option<Duration>,
    #[command(flatten)]
    pub key: OperatorKey,
}

/// How to decide requests.
#[derive(Debug, clap::Args)]
#[group(id = "decider", required = true, multiple = false, args = ["hook", "faucet"])]
pub struct DecideArgs {
    /// A program that gets each request as a line of JSON and answers with {"decision":"confirm"},
    /// {"decision":"refuse","reason":"…"} or {"decision":"wait"}. souk locks a withdrawal before;
    /// its "payment" is an id under which the program must pay it only once.
    #[arg(long, value_name = "PROGRAM")]
    pub hook: Option<PathBuf>,
    /// Confirm every deposit up to this many credits, and refuse larger ones; withdrawals wait.
    #[arg(long, value_name = "CREDITS", value_parser = credits)]
    pub faucet: Option<u64>,
    /// Decide the requests that wait now, and exit.
    #[arg(long)]
    pub once: bool,
    #[command(flatten)]
    pub key: OperatorKey,
}

/// The key that signs for a market.
#[derive(Debug, clap::Args)]
pub struct OperatorKey {
    /// The key of the market's operator; by default operator/key in --dir or in the folder above
    /// it.
    #[arg(long, value_name = "FILE")]
    pub operator_key: Option<PathBuf>,
}
