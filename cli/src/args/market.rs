//! The arguments of `souk market …`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Subcommand;
use souk_node::client::history::{NoWitnessKey, WitnessKey};
use souk_node::market::AccountKey;

use super::Freshness;

/// Commands on markets.
#[derive(Debug, Subcommand)]
pub enum Market {
    /// Create a market: its rules, its operator's key and its first validator, all in --dir. Prints
    /// an invitation, a line with which others join; `souk validator run` then runs it.
    Create(MarketCreateArgs),
    /// Join a market by its invitation: ask one of its validators for its genesis, check the
    /// genesis against the invitation, and store it in --dir for any role.
    Join {
        /// The line that `souk market create` or `souk market show` prints: souk:ID@ADDRESS.
        invitation: String,
    },
    /// Show the market of --dir: its name, invitation, operators, validators and rules, and the
    /// changes to come.
    Show,
    /// Check the history of a market from its genesis alone: which validators signed it, whether
    /// enough of them certify it, and whether two contradict each other. Then the command fails,
    /// and saves the two signed heads as evidence in --dir.
    Verify(VerifyArgs),
    /// Follow the history of a market as a witness: check it like `market verify`, and sign each
    /// certified head that continues the last one. Publish the file `witness.checkpoint` in --dir
    /// and the key that the command prints: others name both with `market verify --witness`.
    Witness(WitnessArgs),
    /// List the traded device classes: best bid and ask, last trade, units traded.
    Classes(Freshness),
    /// Show the asks and bids of a class, price by price.
    Depth {
        /// The class: its name or the beginning of it, as `souk market classes` lists it.
        class: String,
        #[command(flatten)]
        freshness: Freshness,
    },
    /// Show the last trades of a class, newest first.
    Trades {
        /// The class: its name or the beginning of it.
        class: String,
        #[command(flatten)]
        freshness: Freshness,
    },
    /// Show the prices of a class minute by minute, newest last: at most a day.
    Candles {
        /// The class: its name or the beginning of it.
        class: String,
        /// The number of minutes per candle.
        #[arg(long, default_value_t = 1, value_name = "MINUTES",
              value_parser = clap::value_parser!(u32).range(1..=1440))]
        step: u32,
        #[command(flatten)]
        freshness: Freshness,
    },
    /// Show the price of measured work in each class: a tera-operation, a gigabyte moved, a
    /// gigabyte kept for an hour.
    Price(Freshness),
    /// Print the rules of a new market with comments, for `souk market create --rules`.
    Rules,
}

/// What to check, and by which genesis.
#[derive(Debug, clap::Args)]
pub struct VerifyArgs {
    /// The market's invitation, souk:ID@ADDRESS, if you have no folder of it; by default the market
    /// of --dir, where the command also keeps the last certified head, which later ones must
    /// continue.
    pub invitation: Option<String>,
    /// Ask nobody: check the signed heads and tiles in this folder, such as a validator's
    /// replica/history. Can be given several times, to compare what several people were shown.
    #[arg(long, value_name = "FOLDER")]
    pub from: Vec<PathBuf>,
    /// Also save every signed head that validators show into this folder, for others to compare.
    #[arg(
        short = 'o',
        long = "out",
        value_name = "FOLDER",
        conflicts_with = "from"
    )]
    pub heads: Option<PathBuf>,
    /// Demand that the history is the one that a witness signed: the key that it printed, and its
    /// `witness.checkpoint`. Can be given several times.
    #[arg(long, value_name = "KEY=FILE")]
    pub witness: Vec<WitnessFile>,
}

/// A head that a witness signed.
#[derive(Clone, Debug)]
pub struct WitnessFile {
    /// The key of the witness.
    pub key: WitnessKey,
    /// The file with the head and the signature.
    pub path: PathBuf,
}

impl FromStr for WitnessFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((key, path)) = text.split_once('=') else {
            return Err("write it as KEY=FILE".to_owned());
        };
        let key = key
            .parse()
            .map_err(|error: NoWitnessKey| error.to_string())?;
        let path = PathBuf::from(path);
        Ok(Self { key, path })
    }
}

/// How to follow the history.
#[derive(Debug, clap::Args)]
pub struct WitnessArgs {
    /// Sign the newest certified head, and end.
    #[arg(long)]
    pub once: bool,
    /// The seconds between two looks at the history.
    #[arg(long, default_value_t = 10, value_name = "SECONDS",
          value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub pause: u32,
}

/// A market to create.
#[derive(Debug, clap::Args)]
pub struct MarketCreateArgs {
    /// The market's name.
    #[arg(long)]
    pub name: String,
    /// The market's rules, as `souk market rules` prints them; by default the usual ones.
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Another operator (64 hexadecimal digits), in addition to the key that souk creates in the
    /// folder. Can be given several times.
    #[arg(long, value_name = "ACCOUNT")]
    pub operator: Vec<AccountKey>,
    /// How many operators must give the same command before it takes effect.
    #[arg(long, default_value_t = 1, value_name = "K")]
    pub threshold: u32,
    /// The address on which the first validator listens and the others reach it, such as
    /// /ip4/192.0.2.7/tcp/4001; souk replaces port 0 with a free port. By default this machine's
    /// own address, with a free port.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
}
