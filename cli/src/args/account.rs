//! The arguments of `souk account …`.

use std::path::PathBuf;

use clap::Subcommand;
use souk_node::market::AccountKey;

/// Commands on accounts.
#[derive(Debug, Subcommand)]
pub enum Account {
    /// Create a key in --dir, if there is none, and open its account in the market. If the account
    /// exists, the command changes nothing.
    New {
        /// The account's name in the market; by default your user name.
        #[arg(long)]
        name: Option<String>,
    },
    /// Show an account's credits, its standing, and its requests to the operator.
    Show {
        /// The account (64 hexadecimal digits); by default that of --dir.
        account: Option<AccountKey>,
    },
    /// List every movement of an account's credits and its cause, oldest first; needs no key.
    History {
        /// The account (64 hexadecimal digits); by default that of --dir.
        account: Option<AccountKey>,
        /// Show only the last N movements.
        #[arg(long, value_name = "N", default_value_t = 10_000)]
        last: usize,
        /// Print CSV for a spreadsheet, in micro-credits.
        #[arg(long)]
        csv: bool,
    },
    /// Prove an account's balances, or that there is no such account, by the state that the
    /// validators certify. You need the market's folder, and no account.
    Prove {
        /// The account (64 hexadecimal digits); by default that of --dir.
        account: Option<AccountKey>,
        /// Write the proof to this file, which anyone can check offline.
        #[arg(short = 'o', long = "out", value_name = "FILE")]
        proof_output: Option<PathBuf>,
    },
    /// Check a saved proof of balances offline, with the market's genesis alone.
    Verify {
        /// The proof that `souk account prove -o` wrote.
        file: PathBuf,
        /// The account (64 hexadecimal digits) that it must be of; by default any.
        #[arg(long, value_name = "ACCOUNT")]
        account: Option<AccountKey>,
    },
    /// Request credits from the market's operator. They arrive once the operator confirms the
    /// deposit; pay as agreed with the operator, under the same reference.
    Deposit(Movement),
    /// Request a payout of available credits from the operator. The market holds them until the
    /// operator confirms the payout, and returns them if the operator refuses.
    Withdraw(Movement),
    /// Transfer available credits to another account.
    Transfer {
        /// The receiving account (64 hexadecimal digits).
        to: AccountKey,
        #[command(flatten)]
        movement: Movement,
    },
    /// Stake available credits, for buyers who demand a stake of a provider.
    Stake {
        /// The amount, in credits.
        #[arg(value_parser = credits)]
        amount: u64,
    },
    /// Withdraw stake, if no lease is open and the last one is long enough ago.
    Unstake {
        /// The amount, in credits.
        #[arg(value_parser = credits)]
        amount: u64,
    },
    /// Cancel a request that the operator has not decided.
    Cancel {
        /// The request's id, from `souk account show`.
        request: u64,
    },
}

/// An amount of credits to move.
#[derive(Debug, clap::Args)]
pub struct Movement {
    /// The amount, in credits.
    #[arg(value_parser = credits)]
    pub amount: u64,
    /// The reference outside the market: the text of a transfer, where to pay to.
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
