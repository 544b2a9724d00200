//! The arguments of `souk order …` and `souk lease …`: the bids and asks that an account places in
//! the market, and the device time (leases) that it bought or sold.

use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use souk_node::market::{AccountKey, Millis, Permille, Price, SpotPrice};

use super::account::credits;

/// Commands on the orders of --dir's account.
#[derive(Debug, Subcommand)]
pub enum Order {
    /// Bid for devices of a class. The part that matches no ask rests in the book until one comes.
    Bid(BidArgs),
    /// Offer the device of the provider in --dir at a price of your own. `souk provider run` places
    /// its own ask; use this command for a provider that does not run yet.
    Ask(AskArgs),
    /// Explain which asks a bid would match now, and what rules out the others; places nothing.
    Explain(BidArgs),
    /// Show one of the account's resting orders.
    Show {
        /// The order's id.
        order: u64,
    },
    /// List the account's resting orders, oldest first.
    List,
    /// Cancel an order; what the market held for it returns to the account.
    Cancel {
        /// The order's id.
        order: u64,
    },
    /// Amend an order. With fewer units at the same price, it keeps its place in the queue.
    Amend {
        /// The order's id.
        order: u64,
        /// The new price, in credits per device-second; by default unchanged.
        #[arg(long, value_parser = credits)]
        price: Option<u64>,
        /// The new number of units; by default unchanged.
        #[arg(long)]
        units: Option<u32>,
    },
}

/// A bid.
#[derive(Clone, Debug, clap::Args)]
pub struct BidArgs {
    /// The class: its name or the beginning of it, as `souk market classes` lists it.
    pub class: String,
    /// The maximum price of a device-second, in credits.
    #[arg(long, value_parser = credits, required_unless_present = "market_order")]
    pub price: Option<u64>,
    /// Pay any price within --budget; such a bid never rests.
    #[arg(long = "at-market", conflicts_with = "price", requires = "budget")]
    pub market_order: bool,
    /// The number of devices.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub units: u32,
    /// The duration of each lease, such as 90s, 10m or 2h.
    #[arg(long, default_value = "1m", value_name = "TIME", value_parser = duration)]
    pub lease: Duration,
    /// The maximum cost of all leases, in credits; by default what the price comes to.
    #[arg(long, value_parser = credits, value_name = "CREDITS")]
    pub budget: Option<u64>,
    #[command(flatten)]
    pub rest: RestArgs,
    /// Trade all units at once, or nothing.
    #[arg(long)]
    pub all_or_none: bool,
    /// Bid for spot leases, which a higher bid or the provider can end with notice.
    #[arg(long)]
    pub spot: bool,
    /// Displace spot leases with lower bids whose notice is at most this long.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub displace: Option<Duration>,
    /// Match only devices with at least this much memory, such as 8GiB.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub min_memory: Option<u64>,
    /// Match only providers with at least this reputation, 0 to 1000.
    #[arg(long, value_name = "PERMILLE", default_value_t = 0,
          value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub min_reputation: u16,
    /// Match only providers with at least this many credits at stake.
    #[arg(long, value_name = "CREDITS", value_parser = credits)]
    pub min_stake: Option<u64>,
    /// Match only asks that give at least this notice.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub min_notice: Option<Duration>,
    /// Match only devices in this region, such as europe-west; europe matches all regions that
    /// begin with it. Can be given several times.
    #[arg(long, value_name = "REGION")]
    pub region: Vec<String>,
    /// Do not buy from this provider: its name, its account, or the beginning of either. Can be
    /// given several times.
    #[arg(long, value_name = "PROVIDER")]
    pub exclude: Vec<String>,
}

/// An ask.
#[derive(Clone, Debug, clap::Args)]
pub struct AskArgs {
    /// The minimum price of a device-second, in credits; by default that of the provider's file.
    #[arg(long, value_parser = credits)]
    pub price: Option<u64>,
    /// How many of the leases that the provider's file sells at once to offer; by default all of
    /// them.
    #[arg(long, value_name = "N")]
    pub units: Option<u32>,
    /// The maximum duration of a lease, such as 10m.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub lease: Option<Duration>,
    #[command(flatten)]
    pub rest: RestArgs,
    /// The notice before a spot lease is reclaimed or displaced.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub notice: Option<Duration>,
    /// The price of a spot lease with this notice, in credits, such as 5s=0.04; a longer notice
    /// must have a higher price, and all must be below the full price. Can be given up to four
    /// times; by default as in the provider's file.
    #[arg(long, value_name = "TIME=CREDITS", value_parser = spot_price)]
    pub spot: Vec<SpotPrice>,
    /// Sell only to buyers with at least this reputation, 0 to 1000.
    #[arg(long, value_name = "PERMILLE", default_value_t = 0,
          value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub min_reputation: u16,
    /// Sell only to this account (64 hexadecimal digits). Can be given several times.
    #[arg(long, value_name = "ACCOUNT")]
    pub only: Vec<AccountKey>,
    /// Do not sell to this account (64 hexadecimal digits). Can be given several times.
    #[arg(long, value_name = "ACCOUNT")]
    pub exclude: Vec<AccountKey>,
}

/// How long an order rests.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct RestArgs {
    /// What to do with units that find no match: keep them in the book until you cancel them (gtc)
    /// or for --rest (gtd), drop them (ioc), or trade nothing unless all units match at once (fok).
    #[arg(long, value_enum)]
    pub time_in_force: Option<Tif>,
    /// How long the order rests, such as 2h.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub rest: Option<Duration>,
}

/// How long an order stays in the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Tif {
    /// Good till cancelled.
    Gtc,
    /// Good till date: rests for --rest.
    Gtd,
    /// Immediate or cancel: never rests.
    Ioc,
    /// Fill or kill: all units at once, or nothing.
    Fok,
}

/// Reads a share above 0, in percent with at most one decimal, such as 10%.
///
/// # Errors
/// If it is not such a share.
pub fn share(text: &str) -> Result<Permille, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    let percent: Result<f64, _> = number.parse();
    let thousandths = percent.map(|percent| percent * 10.0).unwrap_or(0.0);
    let share = thousandths.round();
    match (1.0..=1_000.0).contains(&share) && (share - thousandths).abs() < 1e-6 {
        true => Ok(Permille(share as u16)),
        false => Err("give a share from 0.1% to 100%, such as 10%".to_owned()),
    }
}

/// Parses a number of bytes: plain, or in KiB, MiB or GiB.
pub fn bytes(text: &str) -> Result<u64, String> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
    let unit = units
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (digits, shift) = unit.unwrap_or((text, 0));
    let number = digits.trim().parse::<u64>().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| "give a number of bytes such as 4096, 512KiB or 1GiB".to_owned())
}

/// Parses a duration such as 90, 90s, 10m, 2h or 1d.
pub fn duration(text: &str) -> Result<Duration, String> {
    let units = [("d", 86_400.0), ("h", 3_600.0), ("m", 60.0), ("s", 1.0)];
    let unit = units
        .iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, *seconds)));
    let (number, seconds) = unit.unwrap_or((text, 1.0));
    let number: f64 = number
        .parse()
        .map_err(|_| "a time is like 90s, 10m or 2h".to_owned())?;
    let time = Duration::try_from_secs_f64(number * seconds);
    time.map_err(|error| format!("it is no time: {error}"))
}

/// Parses a price of spot leases by their notice, such as `5s=0.04`.
fn spot_price(text: &str) -> Result<SpotPrice, String> {
    let wrong = || "a price by notice is like 5s=0.04".to_owned();
    let (notice, price) = text.split_once('=').ok_or_else(wrong)?;
    let notice = duration(notice)?.as_millis();
    Ok(SpotPrice {
        notice: Millis(u64::try_from(notice).map_err(|_| wrong())?),
        price: Price(credits(price)?),
    })
}

/// Parses the share of the price for spot leases by their notice, such as `5s=40`; returns the
/// notice in seconds and the share in per cent.
pub fn spot_share(text: &str) -> Result<(u32, u32), String> {
    let wrong = || "a share by notice is like 5s=40, in per cent".to_owned();
    let (notice, percent) = text.split_once('=').ok_or_else(wrong)?;
    let percent = percent.trim_end_matches('%').parse().map_err(|_| wrong())?;
    let seconds = duration(notice)?.as_secs();
    Ok((u32::try_from(seconds).map_err(|_| wrong())?, percent))
}

/// Commands on the leases of --dir's account.
#[derive(Debug, Subcommand)]
pub enum Lease {
    /// List the account's open leases, bought and sold.
    List,
    /// Show any lease: parties, price, times, escrow and payments.
    Show {
        /// The lease's number.
        lease: u64,
    },
    /// State that the work of a bought lease has begun: from then on your silence accepts the usage
    /// notes of its provider. A job does this itself.
    Start {
        /// The lease's number.
        lease: u64,
    },
    /// Refuse the work of a bought lease. You pay for the use that the provider states. Of this
    /// sum, the provider gets the price of a held device, and the market the rest.
    Refuse {
        /// The lease's number.
        lease: u64,
    },
    /// End a bought lease. You pay for what was used; the rest returns.
    End {
        /// The lease's number.
        lease: u64,
    },
    /// Extend a bought lease, within what its ask allows, at the same price.
    Extend {
        /// The lease's number.
        lease: u64,
        /// The number of seconds to add.
        seconds: u64,
    },
    /// Offer the rest of a bought lease, whole, to any bid.
    Resell {
        /// The lease's number.
        lease: u64,
        /// The minimum price, in credits per device-second.
        #[arg(value_parser = credits)]
        price: u64,
    },
    /// Give up a sold lease: it closes, only the accepted use is paid, and you lose reputation,
    /// depending on what you have settled with that buyer.
    GiveUp {
        /// The lease's number.
        lease: u64,
    },
    /// Reclaim a sold spot lease, after its notice.
    Reclaim {
        /// The lease's number.
        lease: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_unit() {
        let seconds = |text| duration(text).map(|time| time.as_secs_f64());
        assert_eq!(seconds("90"), Ok(90.0));
        assert_eq!(seconds("1.5m"), Ok(90.0));
        assert_eq!(seconds("2h"), Ok(7_200.0));
        for wrong in ["", "h", "-1s", "1w", "inf"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
