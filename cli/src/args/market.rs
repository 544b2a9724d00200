//! The arguments of `souk market …`.

use std::path::PathBuf;

use clap::Subcommand;
use souk_node::market::AccountKey;

use super::Freshness;

/// Commands on markets as such.
#[derive(Debug, Subcommand)]
pub enum Market {
    /// Found a market: its rules, its operator's key and its first validator, all in --dir. Prints
    /// the line that brings others in; `souk validator run` then runs it.
    Found(FoundArgs),
    /// Join a market by its line: asks a validator there how the market began, checks that against
    /// the line, and keeps it in --dir for whatever role is taken next.
    Join {
        /// The line that `souk market found` or `souk market show` prints: souk:ID@ADDRESS.
        line: String,
    },
    /// Show the market of --dir: its name, its line, its operators, validators and rules, and what
    /// of these is to change.
    Show,
    /// List the classes of devices that are traded: best bid and ask, last trade, units traded.
    Classes(Freshness),
    /// Show what is asked and bid in a class, by price.
    Depth {
        /// Its name, or the beginning of it, as `souk market classes` lists it.
        class: String,
        #[command(flatten)]
        freshness: Freshness,
    },
    /// Show the last trades of a class, the newest first.
    Trades {
        /// Its name, or the beginning of it.
        class: String,
        #[command(flatten)]
        freshness: Freshness,
    },
    /// Show what a class cost minute by minute, the newest last: at most a day.
    Candles {
        /// Its name, or the beginning of it.
        class: String,
        /// Minutes in one candle.
        #[arg(long, default_value_t = 1, value_name = "MINUTES",
              value_parser = clap::value_parser!(u32).range(1..=1440))]
        step: u32,
        #[command(flatten)]
        freshness: Freshness,
    },
    /// Show what measured work costs in each class: a tera-operation, a gigabyte moved, a gigabyte
    /// kept for an hour.
    Price(Freshness),
    /// Print the rules of a new market with comments, for `souk market found --rules`.
    Rules,
}

/// A market to found.
#[derive(Debug, clap::Args)]
pub struct FoundArgs {
    /// What it is called.
    #[arg(long)]
    pub name: String,
    /// Its rules, as `souk market rules` prints them; the usual ones where nothing is given.
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Another operator (64 hexadecimal digits), beside the key that is made in the folder; again
    /// for each.
    #[arg(long, value_name = "ACCOUNT")]
    pub operator: Vec<AccountKey>,
    /// How many operators must give the same command before it is done.
    #[arg(long, default_value_t = 1, value_name = "K")]
    pub needed: u32,
    /// Where its first validator listens and is reached by the others, such as
    /// /ip4/192.0.2.7/tcp/4001; a port of 0 is drawn now and kept. Else this machine's own address,
    /// with a port that is drawn.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
}
