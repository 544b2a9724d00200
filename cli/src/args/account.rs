//! The arguments of `souk account …` and `souk operator …`.

use std::path::PathBuf;

use clap::Subcommand;
use souk_node::market::AccountKey;

/// Commands on accounts.
#[derive(Debug, Subcommand)]
pub enum Account {
    /// Make a key for --dir, if it has none, and open its account in the market. Done again it does
    /// nothing more.
    New {
        /// The account's name in the market; else that of the user.
        #[arg(long)]
        name: Option<String>,
    },
    /// Show what an account holds, where it stands, and what it has asked the operator for.
    Show {
        /// The account (64 hexadecimal digits); else that of --dir.
        account: Option<AccountKey>,
    },
    /// Ask the market's operator for credits. They come once the operator has confirmed it, which
    /// is between the two of you: pay as agreed, under the same reference.
    Deposit(Movement),
    /// Ask the operator to pay available credits out. They are held until that is confirmed, and
    /// come back if it is refused.
    Withdraw(Movement),
    /// Give available credits to another account.
    Transfer {
        /// Whose they are then (64 hexadecimal digits).
        to: AccountKey,
        #[command(flatten)]
        movement: Movement,
    },
    /// Put available credits at stake, for buyers who demand it of a provider.
    Stake {
        /// How much, in credits.
        #[arg(value_parser = credits)]
        amount: u64,
    },
    /// Take stake back, when no lease is open and the last one is long enough ago.
    Unstake {
        /// How much, in credits.
        #[arg(value_parser = credits)]
        amount: u64,
    },
    /// Take back a request that the operator has not decided.
    Cancel {
        /// Its id, as `souk account show` lists it.
        request: u64,
    },
}

/// Credits that are to move.
#[derive(Debug, clap::Args)]
pub struct Movement {
    /// How much, in credits.
    #[arg(value_parser = credits)]
    pub amount: u64,
    /// What it is known by outside: the text of a transfer, where to pay to.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reference: String,
}

/// Commands of a market's operator.
#[derive(Debug, Subcommand)]
pub enum Operator {
    /// List requests for credits in and out that wait for the operator; it takes no key.
    Requests,
    /// Say that requested credits have come in or gone out.
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
    /// Make credits for an account without a request; it must be open.
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
}

/// Who signs for a market.
#[derive(Debug, clap::Args)]
pub struct OperatorKey {
    /// The key of the market's operator; else operator/key in --dir or in the folder above it.
    #[arg(long, value_name = "FILE")]
    pub operator_key: Option<PathBuf>,
}

/// Reads an amount of credits with at most six decimal places, exactly: as micro-credits.
pub fn credits(text: &str) -> Result<u64, String> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || whole.is_empty() || part.len() > 6 {
        return Err("an amount is like 12 or 0.000001: six decimal places at most".to_owned());
    }
    let micro = format!("{whole}{part:0<6}").parse();
    match micro {
        Ok(0) => Err("it is nothing".to_owned()),
        Ok(micro) => Ok(micro),
        Err(_) => Err("it is more than a market can hold".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_to_the_micro_credit() {
        assert_eq!(credits("12"), Ok(12_000_000));
        assert_eq!(credits("0.1"), Ok(100_000));
        assert_eq!(credits("18446744073709.551615"), Ok(u64::MAX));
        for wrong in [
            "",
            ".5",
            "1e3",
            "-1",
            "0.0000001",
            "0",
            "18446744073709.551616",
        ] {
            assert!(credits(wrong).is_err(), "{wrong}");
        }
    }
}
