//! The arguments of `souk account …`.

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
    /// List every movement of an account's credits, the oldest first, with what caused it. It takes
    /// no key.
    History {
        /// The account (64 hexadecimal digits); else that of --dir.
        account: Option<AccountKey>,
        /// Only the last so many.
        #[arg(long, value_name = "N", default_value_t = 10_000)]
        last: usize,
        /// Print rows for a spreadsheet, in micro-credits.
        #[arg(long)]
        csv: bool,
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

/// Parses an amount of credits with at most six decimal places into micro-credits, exactly.
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
