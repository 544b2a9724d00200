//! Defines the JSON body with which a client places an order by hand, and converts it into the
//! market's order. Amounts are in micro-credits, times in seconds.

use serde::{Deserialize, Serialize};
use souk_folder::clock::unix_ms;
use souk_node::client::broker::Broker;
use souk_node::client::market_data;
use souk_node::market::{
    Bid, Command, Credits, JobId, LeaseId, Limit, Millis, Price, Term, TimeInForce, Units, Wants,
};
use utoipa::ToSchema;

use crate::parse::{self, invalid_input, parse_millis};
use crate::problem::Problem;

/// Default duration of a lease, in seconds.
const DURATION: f64 = 60.0;

/// An order.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(tag = "side", rename_all = "snake_case")]
pub enum OrderBody {
    /// Buys device time of a class.
    Bid(Box<BidBody>),
    /// Sells the rest of a lease that the account bought.
    Ask(AskBody),
}

/// A bid. Units that match no ask rest in the book.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BidBody {
    /// The class, or the beginning of its name: `/v1/market/classes` lists them.
    pub class: String,
    /// The highest price of a device-second. Without it, the bid takes any price within `budget`,
    /// and never rests.
    #[serde(
        default,
        deserialize_with = "parse::amount_if_any",
        skip_serializing_if = "Option::is_none"
    )]
    pub price: Option<u64>,
    /// How many devices.
    #[serde(default = "one")]
    #[schema(default = 1, minimum = 1)]
    pub units: u32,
    /// How long each lease is.
    #[serde(default = "duration")]
    #[schema(default = 60.0)]
    pub duration: f64,
    /// The most that all its leases may cost; else what the price comes to.
    #[serde(
        default,
        deserialize_with = "parse::amount_if_any",
        skip_serializing_if = "Option::is_none"
    )]
    pub budget: Option<u64>,
    /// How long what finds no match stays: `gtc` until it is cancelled, `gtd` for `rest`, `ioc` not
    /// at all, `fok` not at all and nothing trades unless all can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tif: Option<Tif>,
    /// How long it rests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest: Option<f64>,
    /// Nothing trades unless all of it can at once.
    #[serde(default)]
    pub all_or_none: bool,
    /// Bid for leases that a higher bid or the provider may end with notice.
    #[serde(default)]
    pub spot: bool,
    /// Displace spot leases of lower bids whose notice is at most so long.
    #[serde(default)]
    pub displace: f64,
    /// At least so many bytes of memory.
    #[serde(default, deserialize_with = "parse::amount")]
    pub min_memory: u64,
    /// From 0 to 1000.
    #[serde(default)]
    #[schema(maximum = 1000)]
    pub min_reputation: u16,
    /// What the provider has at stake at least.
    #[serde(default, deserialize_with = "parse::amount")]
    pub min_stake: u64,
    /// The least notice before a device is taken back.
    #[serde(default)]
    pub min_notice: f64,
    /// Regions, such as `europe-west`; `europe` is all that begin so.
    #[serde(default)]
    pub regions: Vec<String>,
    /// Accounts not to buy from.
    #[serde(default)]
    pub exclude: Vec<String>,
}

/// An ask.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AskBody {
    /// The number of the lease of which the rest is sold, whole.
    #[serde(deserialize_with = "parse::amount")]
    pub lease: u64,
    /// The least for a device-second.
    #[serde(deserialize_with = "parse::amount")]
    pub price: u64,
}

/// How long an order stays in the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
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

fn one() -> u32 {
    1
}

fn duration() -> f64 {
    DURATION
}

impl OrderBody {
    /// Returns the command that places the order under this id.
    ///
    /// # Errors
    /// Fails if a field is invalid or the class is unknown.
    pub async fn to_command(&self, broker: &Broker, job: JobId) -> Result<Command, Problem> {
        Ok(match self {
            OrderBody::Bid(bid) => Command::PlaceBid(Box::new(bid.to_bid(broker, job).await?)),
            OrderBody::Ask(ask) => Command::Resell {
                lease: LeaseId(ask.lease),
                price: Price(ask.price),
            },
        })
    }
}

impl BidBody {
    async fn to_bid(&self, broker: &Broker, job: JobId) -> Result<Bid, Problem> {
        let limit = self
            .price
            .map_or(Limit::Market, |price| Limit::Price(Price(price)));
        let (quantity, duration) = (Units(self.units), parse_millis("duration", self.duration)?);
        let budget = match (self.budget, limit) {
            (Some(budget), _) => Credits(budget),
            (None, Limit::Price(price)) => {
                price.escrow_for(quantity, duration).ok_or_else(|| {
                    invalid_input("price x units x duration is more than a market holds")
                })?
            }
            (None, Limit::Market) => {
                return Err(invalid_input(
                    "give a price, or a budget for whatever is asked",
                ));
            }
        };
        Ok(Bid {
            wants: self.to_wants()?,
            limit,
            budget,
            quantity,
            all_or_none: self.all_or_none,
            duration,
            start_delay_max: parse_millis("displace", self.displace)?,
            term: if self.spot { Term::Spot } else { Term::Firm },
            tif: self.time_in_force()?,
            job,
            // The market comes last: the gateway refuses unreadable fields without it.
            class: market_data::find_class(broker, &self.class).await?,
        })
    }

    fn to_wants(&self) -> Result<Wants, Problem> {
        Ok(Wants {
            memory_bytes: self.min_memory,
            regions: parse::parse_regions(&self.regions)?,
            reputation: parse::parse_reputation(self.min_reputation)?,
            stake: Credits(self.min_stake),
            notice: parse_millis("min_notice", self.min_notice)?,
            excluded: parse::parse_excluded_accounts(&self.exclude)?,
            ..Wants::default()
        })
    }

    fn time_in_force(&self) -> Result<TimeInForce, Problem> {
        match (self.tif, self.rest) {
            (None, None) if self.price.is_none() => Ok(TimeInForce::Ioc),
            (None | Some(Tif::Gtc), None) => Ok(TimeInForce::Gtc),
            (Some(Tif::Ioc), None) => Ok(TimeInForce::Ioc),
            (Some(Tif::Fok), None) => Ok(TimeInForce::Fok),
            (None | Some(Tif::Gtd), Some(rest)) => {
                let until = unix_ms().saturating_add(parse_millis("rest", rest)?.0);
                Ok(TimeInForce::Gtd(Millis(until)))
            }
            (Some(Tif::Gtd), None) => Err(invalid_input("tif gtd takes rest")),
            (Some(_), Some(_)) => Err(invalid_input("rest goes with tif gtd alone")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<OrderBody, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn an_order_has_a_side_and_no_field_that_is_not_known() {
        let bid = read(r#"{"side":"bid","class":"gpu","price":5}"#).unwrap();
        let OrderBody::Bid(bid) = bid else {
            panic!("it is a bid");
        };
        assert_eq!(
            (bid.units, bid.time_in_force().unwrap()),
            (1, TimeInForce::Gtc)
        );
        assert!(matches!(
            read(r#"{"side":"ask","lease":7,"price":5}"#).unwrap(),
            OrderBody::Ask(AskBody { lease: 7, price: 5 })
        ));
        for wrong in [
            r#"{"class":"gpu","price":5}"#,
            r#"{"side":"bid","class":"gpu","price":5,"colour":"red"}"#,
            r#"{"side":"ask","class":"gpu","price":5}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn how_long_it_rests_is_said_in_one_way() {
        let of = |more: &str| {
            let text = format!(r#"{{"side":"bid","class":"gpu"{more}}}"#);
            let Ok(OrderBody::Bid(bid)) = read(&text) else {
                panic!("{text} is a bid");
            };
            bid.time_in_force().ok()
        };
        assert_eq!(of(r#","budget":9"#), Some(TimeInForce::Ioc));
        assert_eq!(of(r#","price":9,"tif":"fok""#), Some(TimeInForce::Fok));
        assert!(matches!(
            of(r#","price":9,"rest":2"#),
            Some(TimeInForce::Gtd(_))
        ));
        assert_eq!(of(r#","price":9,"tif":"gtd""#), None);
        assert_eq!(of(r#","price":9,"tif":"ioc","rest":2"#), None);
        assert_eq!(of(r#","price":9,"rest":-2"#), None);
    }
}
