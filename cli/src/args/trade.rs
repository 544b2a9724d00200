//! The arguments of `souk order …` and `souk lease …`.

use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use souk_node::market::{AccountKey, Millis, Price, SpotPrice};

use super::account::credits;

/// Commands on the orders of --dir's account.
#[derive(Debug, Subcommand)]
pub enum Order {
    /// Bid for devices of a class. What finds no ask rests in the book until one comes.
    Bid(BidArgs),
    /// Offer the device of the provider whose folder --dir is, at a price by hand. `souk provider
    /// run` places its own ask: this is for a provider that does not run yet.
    Ask(AskArgs),
    /// Say which asks a bid would find now, and what rules out the others. Nothing is placed.
    Explain(BidArgs),
    /// Show one of its orders that rests.
    Show {
        /// Its id.
        order: u64,
    },
    /// List its orders that rest in the books, the oldest first.
    List,
    /// Take one out of its book; what was held for it returns.
    Cancel {
        /// Its id.
        order: u64,
    },
    /// Change one. With fewer units at the same price it keeps its place in line.
    Amend {
        /// Its id.
        order: u64,
        /// Its new price, in credits per device-second; else as it is.
        #[arg(long, value_parser = credits)]
        price: Option<u64>,
        /// Its new number of units; else as it is.
        #[arg(long)]
        units: Option<u32>,
    },
}

/// A bid.
#[derive(Clone, Debug, clap::Args)]
pub struct BidArgs {
    /// The class: its name or the beginning of it, as `souk market classes` lists it.
    pub class: String,
    /// The most to pay for a device-second, in credits.
    #[arg(long, value_parser = credits, required_unless_present = "market_order")]
    pub price: Option<u64>,
    /// Pay whatever is asked, within --budget; it never rests.
    #[arg(long = "at-market", conflicts_with = "price", requires = "budget")]
    pub market_order: bool,
    /// How many devices.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub units: u32,
    /// How long each lease is, such as 90s, 10m or 2h.
    #[arg(long, default_value = "1m", value_name = "TIME", value_parser = duration)]
    pub lease: Duration,
    /// The most that all its leases may cost, in credits; else what the price comes to.
    #[arg(long, value_parser = credits, value_name = "CREDITS")]
    pub budget: Option<u64>,
    #[command(flatten)]
    pub rest: RestArgs,
    /// Nothing trades unless all of it can at once.
    #[arg(long)]
    pub all_or_none: bool,
    /// Bid for spot leases, which a higher bid or the provider may end with notice.
    #[arg(long)]
    pub spot: bool,
    /// Displace spot leases of lower bids whose notice is at most this long.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub displace: Option<Duration>,
    /// Only devices with at least this much memory, such as 8GiB.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub min_memory: Option<u64>,
    /// Only providers of at least this reputation, 0 to 1000.
    #[arg(long, value_name = "PERMILLE", default_value_t = 0,
          value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub min_reputation: u16,
    /// Only providers with at least so many credits at stake.
    #[arg(long, value_name = "CREDITS", value_parser = credits)]
    pub min_stake: Option<u64>,
    /// Only asks that give at least this notice.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub min_notice: Option<Duration>,
    /// Only devices in this region, such as europe-west; europe is all that begin so. May be given
    /// again.
    #[arg(long, value_name = "REGION")]
    pub region: Vec<String>,
    /// Not from this provider: its name or account, or what either begins with. May be given
    /// again.
    #[arg(long, value_name = "PROVIDER")]
    pub exclude: Vec<String>,
}

/// An ask.
#[derive(Clone, Debug, clap::Args)]
pub struct AskArgs {
    /// The least price of a device-second, in credits; else that of its file.
    #[arg(long, value_parser = credits)]
    pub price: Option<u64>,
    /// How many of the leases that its file sells at once are offered; else all of them.
    #[arg(long, value_name = "N")]
    pub units: Option<u32>,
    /// The longest lease, such as 10m.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub lease: Option<Duration>,
    #[command(flatten)]
    pub rest: RestArgs,
    /// The notice before a spot lease is taken back or displaced.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub notice: Option<Duration>,
    /// What a spot lease costs whose notice is this long, in credits, such as 5s=0.04; the longer
    /// the notice, the dearer, and all below the price. May be given four times; else as its file
    /// says.
    #[arg(long, value_name = "TIME=CREDITS", value_parser = spot_price)]
    pub spot: Vec<SpotPrice>,
    /// Only to buyers of at least this reputation, 0 to 1000.
    #[arg(long, value_name = "PERMILLE", default_value_t = 0,
          value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub min_reputation: u16,
    /// Only to this account (64 hexadecimal digits). May be given again.
    #[arg(long, value_name = "ACCOUNT")]
    pub only: Vec<AccountKey>,
    /// Not to this account (64 hexadecimal digits). May be given again.
    #[arg(long, value_name = "ACCOUNT")]
    pub exclude: Vec<AccountKey>,
}

/// How long an order rests.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct RestArgs {
    /// How long what finds no match stays in the book: until it is cancelled (gtc), for --rest
    /// (gtd), not at all (ioc), or not at all and nothing trades unless all can (fok).
    #[arg(long, value_enum)]
    pub tif: Option<Tif>,
    /// How long it rests, such as 2h.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub rest: Option<Duration>,
}

/// How long an order stays in the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Tif {
    /// Until it is cancelled.
    Gtc,
    /// Until a time.
    Gtd,
    /// Not at all.
    Ioc,
    /// All of it at once, or nothing.
    Fok,
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
    /// List its leases that are not closed, bought and sold.
    List,
    /// Show any lease: parties, price, times, what is held and was paid.
    Show {
        /// Its number.
        lease: u64,
    },
    /// Say that the work of a lease that it bought has begun: from then on silence pays for the
    /// notes of use of its provider. A job says so by itself.
    Start {
        /// Its number.
        lease: u64,
    },
    /// Refuse the work of a lease that it bought. It costs what the provider states of the work: of
    /// that the provider gets the price of a device that is held, and the market the rest.
    Refuse {
        /// Its number.
        lease: u64,
    },
    /// End a lease that it bought. What was used is paid, the rest returns.
    End {
        /// Its number.
        lease: u64,
    },
    /// Make a lease that it bought longer, within what its ask allows, at the same price.
    Extend {
        /// Its number.
        lease: u64,
        /// By how many seconds.
        seconds: u64,
    },
    /// Offer the rest of a lease that it bought, whole, to whoever bids.
    Resell {
        /// Its number.
        lease: u64,
        /// The least price, in credits per device-second.
        #[arg(value_parser = credits)]
        price: u64,
    },
    /// Give up a lease that it sold: it closes unpaid but for what was accepted, at a cost in
    /// reputation by what it has settled with that buyer.
    GiveUp {
        /// Its number.
        lease: u64,
    },
    /// Take back a spot lease that it sold, after its notice.
    Reclaim {
        /// Its number.
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
