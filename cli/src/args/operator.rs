//! The arguments of `souk operator …`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use souk_node::market::AccountKey;

use super::account::credits;
use super::trade::duration;

/// Commands of a market's operator.
#[derive(Debug, Subcommand)]
pub enum Operator {
    /// List requests for credits in and out that wait for the operator; it takes no key.
    Requests,
    /// Decide requests as they come, by a program or as a faucet, until told to stop.
    Decide(DecideArgs),
    /// Compare what was confirmed with an account outside the market, row by row.
    Reconcile {
        /// A CSV file whose first line is direction,amount,reference.
        file: PathBuf,
    },
    /// Lock withdrawals before they are paid out: their accounts can't take them back any more.
    Lock {
        /// Their ids.
        #[arg(required = true)]
        requests: Vec<u64>,
        #[command(flatten)]
        key: OperatorKey,
    },
    /// Say that requested credits have come in or gone out; a withdrawal is locked before.
    Confirm {
        /// Their ids.
        #[arg(required = true)]
        requests: Vec<u64>,
        #[command(flatten)]
        key: OperatorKey,
    },
    /// Say that nothing comes of a request; what was held returns to its account.
    Refuse {
        /// Its id.
        request: u64,
        /// Why, for its account.
        reason: String,
        #[command(flatten)]
        key: OperatorKey,
    },
    /// Make credits for an account without a request; it is opened if there is none.
    Credit {
        /// The account (64 hexadecimal digits), as `souk account new` prints it.
        account: AccountKey,
        /// How much, in credits.
        #[arg(value_parser = credits)]
        amount: u64,
        #[command(flatten)]
        key: OperatorKey,
    },
    /// Take what the market earned (fees, the rest of slashed stake) into the operator's account.
    Collect {
        /// How much, in credits.
        #[arg(value_parser = credits)]
        amount: u64,
        #[command(flatten)]
        key: OperatorKey,
    },
    /// Freeze an account: it can withdraw, give and place nothing, and its orders leave the books.
    /// Its leases go on and are paid.
    Freeze {
        /// The account (64 hexadecimal digits).
        account: AccountKey,
        /// Why, for all to read: at most 64 bytes.
        #[arg(long, value_name = "TEXT")]
        reason: String,
        #[command(flatten)]
        key: OperatorKey,
    },
    /// Thaw an account.
    Thaw {
        /// The account (64 hexadecimal digits).
        account: AccountKey,
        #[command(flatten)]
        key: OperatorKey,
    },
    /// The market's rules: as they are, and as they will be.
    #[command(subcommand)]
    Rules(OperatorRules),
    /// List commands that wait for more operators; it takes no key.
    Pending,
    /// Give a command that another operator has given, where more than one must.
    Approve {
        /// Its number, as `souk operator pending` lists it.
        command: u64,
        #[command(flatten)]
        key: OperatorKey,
    },
    /// Say from when another version of the market's rules applies: validators that do not speak it
    /// stop then.
    Upgrade {
        /// The version.
        #[arg(long, value_name = "VERSION")]
        to: u16,
        /// How long before it is told, such as 1h; else as long as the market's rules say.
        #[arg(long, value_name = "TIME", value_parser = duration)]
        notice: Option<Duration>,
        /// Also where validators are known that do not speak it: they will stop.
        #[arg(long)]
        anyway: bool,
        #[command(flatten)]
        key: OperatorKey,
    },
}

/// Commands on a market's rules.
#[derive(Debug, Subcommand)]
pub enum OperatorRules {
    /// Print the rules as they are, with what each means, and what will change; it takes no key.
    Show,
    /// List the changes that are to come; it takes no key.
    List,
    /// Say that rules change. Open leases and orders that rest keep what they have.
    Change(RulesChangeArgs),
    /// Take a change back that is not made yet.
    Keep {
        /// Its number, as `souk operator rules list` lists it.
        change: u64,
        #[command(flatten)]
        key: OperatorKey,
    },
}

/// What of the rules is to change, and when.
#[derive(Debug, clap::Args)]
pub struct RulesChangeArgs {
    /// A rule and what it becomes, both as `souk operator rules show` prints them.
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// A class to trade otherwise: its name, or the beginning of it.
    #[arg(long)]
    pub class: Option<String>,
    /// What prices in that class are multiples of, in micro-credits.
    #[arg(long, requires = "class", value_name = "MICRO")]
    pub tick: Option<u64>,
    /// What quantities in that class are multiples of.
    #[arg(long, requires = "class", value_name = "UNITS")]
    pub lot: Option<u32>,
    /// Have its orders meet in auctions, so far apart, such as 60s; 0 for none.
    #[arg(long, requires = "class", value_name = "TIME", value_parser = duration)]
    pub auctions: Option<Duration>,
    /// How long before it is told, such as 1h; else as long as the market's rules say.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub notice: Option<Duration>,
    #[command(flatten)]
    pub key: OperatorKey,
}

/// How requests are decided.
#[derive(Debug, clap::Args)]
#[group(id = "decider", required = true, multiple = false, args = ["hook", "faucet"])]
pub struct DecideArgs {
    /// A program that is given each request as a line of JSON and answers with
    /// {"decision":"confirm"}, {"decision":"refuse","reason":"…"} or {"decision":"wait"}. A
    /// withdrawal is locked before; "payment" in it is an id under which it must be paid once only.
    #[arg(long, value_name = "PROGRAM")]
    pub hook: Option<PathBuf>,
    /// Confirm every deposit up to so many credits, and refuse larger ones; withdrawals wait.
    #[arg(long, value_name = "CREDITS", value_parser = credits)]
    pub faucet: Option<u64>,
    /// Decide what waits now, and end.
    #[arg(long)]
    pub once: bool,
    #[command(flatten)]
    pub key: OperatorKey,
}

/// Who signs for a market.
#[derive(Debug, clap::Args)]
pub struct OperatorKey {
    /// The key of the market's operator; else operator/key in --dir or in the folder above it.
    #[arg(long, value_name = "FILE")]
    pub operator_key: Option<PathBuf>,
}
