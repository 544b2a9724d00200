//! Places a client's orders in the market, each under an idempotency key (by which the gateway
//! recognises a repeated request): the market gets each order once, even if its answer is lost.
//!
//! An order is on disk before the gateway sends it. If the process died, or no validator answered,
//! the gateway asks the market about the order before it sends it again. If the first signed batch
//! with the order can still reach the market, the gateway sends nothing until that batch has
//! expired.

use souk_api::order::{PlacedTrade, PlacedView};
use souk_folder::clock::unix_ms;
use souk_network::protocols::statement::StatementLine;
use souk_node::client::broker::{Broker, BrokerError};
use souk_node::client::trader::TradeError;
use souk_node::market::{AccountKey, Command, Event, JobId, Limit, OrderId, Price, Side, Units};

use crate::keys::{self, Purpose, UsedKey};
use crate::order_body::OrderBody;
use crate::problem::{Code, Problem};
use crate::state::State;

/// Milliseconds for which an order without an answer can still execute: its batch lives a minute,
/// and clocks differ.
const ON_THE_WAY_MS: u64 = 70_000;

/// Milliseconds by which the log's clock can lag behind this machine's.
const CLOCK_SKEW_MS: u64 = 60_000;

/// Places an order under a key, or returns the result of the one already placed.
///
/// # Errors
/// Fails if the order is refused, or if its fate is not known yet.
pub async fn place_order(
    state: &State,
    key: &str,
    body: &OrderBody,
) -> Result<PlacedView, Problem> {
    let bytes = serde_json::to_vec(body).map_err(Problem::unexpected_failure)?;
    let body_hash = blake3::hash(&bytes).to_string();
    let account = state.buyer.account();
    let id = keys::id(account, Purpose::Order, key);
    let _place = state.placing.reserve_place(&id.to_string())?;
    let broker = state.buyer.broker();
    let used = state.keys.find_key(id);
    if let Some(used) = &used {
        used.check_repeat(key, &body_hash)?;
        if let Some(placed) = &used.placed {
            return Ok(placed.clone());
        }
    }
    let command = body.to_command(broker, id).await?;
    if let Some(mut used) = used {
        // One search at a time: each takes an order that no other key has.
        let _finding = state.finding.lock().await;
        let since = used.at_ms.saturating_sub(CLOCK_SKEW_MS);
        let others = state.keys.orders_since(since);
        let lost = LostOrder {
            account,
            id,
            since_ms: since,
            is_other: &|order| others.contains(&order.0),
        };
        if let Some(placed) = lost.find_outcome(broker, &command).await? {
            used.placed = Some(placed.clone());
            state.keys.store_key(id, &used)?;
            return Ok(placed);
        }
        if unix_ms() < used.at_ms.saturating_add(ON_THE_WAY_MS) {
            let detail = "it is not known yet what became of this order";
            let hint = "ask again under the same key: within a minute it is";
            return Err(Problem::new(Code::Busy, detail, hint));
        }
    }
    let mut used = UsedKey {
        key: key.to_owned(),
        body_hash,
        at_ms: unix_ms(),
        placed: None,
    };
    state.keys.store_key(id, &used)?;
    let done = match state.buyer.trader().submit_one(command).await {
        Ok(done) => done,
        // The market may have executed it.
        Err(error @ TradeError::Uncertain(_)) => return Err(error.into()),
        Err(error) => {
            state.keys.remove_key(id)?;
            return Err(error.into());
        }
    };
    let placed = PlacedView::from_acceptance(&done);
    let placed =
        placed.ok_or_else(|| Problem::unexpected_failure("the market answered something else"))?;
    used.placed = Some(placed.clone());
    state.keys.store_key(id, &used)?;
    Ok(placed)
}

/// An order that the market may or may not have executed.
struct LostOrder<'s> {
    account: AccountKey,
    id: JobId,
    /// Earliest time of the order by the log's clock, in milliseconds.
    since_ms: u64,
    /// Returns whether an order belongs to another key.
    is_other: &'s (dyn Fn(OrderId) -> bool + Sync),
}

impl LostOrder<'_> {
    async fn find_outcome(
        &self,
        broker: &Broker,
        command: &Command,
    ) -> Result<Option<PlacedView>, BrokerError> {
        match command {
            Command::Resell { lease, .. } => {
                let found = broker.fetch_lease(*lease).await?;
                let found = found.filter(|found| found.buyer == self.account);
                let order = found.as_ref().and_then(|found| found.resale_ask);
                Ok(order.map(|order| PlacedView {
                    order: order.0,
                    trades: Vec::new(),
                    resting: found.map_or(0, |found| found.quantity.0),
                }))
            }
            Command::PlaceBid(bid) => {
                let leases = broker.job_leases(self.account, &[self.id]).await?;
                let traded = leases.first().map(|lease| lease.bid);
                let (price, units) = match bid.limit {
                    Limit::Price(price) => (price, bid.quantity),
                    // A market order never rests: it traded or it did not.
                    Limit::Market => (Price(0), Units(0)),
                };
                let rested = self
                    .find_resting_order(broker, traded, price, units)
                    .await?;
                let Some(order) = traded.or(rested.map(|(order, _)| order)) else {
                    return Ok(None);
                };
                Ok(Some(PlacedView {
                    order: order.0,
                    trades: leases.iter().map(PlacedTrade::from).collect(),
                    resting: rested.map_or(0, |(_, units)| units.0),
                }))
            }
            _ => Ok(None),
        }
    }

    /// Finds the rest of the order that came into the book: the order that traded under its id, or
    /// one that is like it and belongs to no other key.
    async fn find_resting_order(
        &self,
        broker: &Broker,
        traded: Option<OrderId>,
        price: Price,
        units: Units,
    ) -> Result<Option<(OrderId, Units)>, BrokerError> {
        let mut before = None;
        loop {
            let page = broker.statement_before(self.account, before).await?;
            for line in &page.lines {
                if line.time.0 < self.since_ms {
                    return Ok(None);
                }
                let found =
                    resting_bids(self.account, line).find(|(order, at, many)| match traded {
                        Some(traded) => *order == traded,
                        None => (*at, *many) == (price, units) && !(self.is_other)(*order),
                    });
                if let Some((order, _, many)) = found {
                    return Ok(Some((order, many)));
                }
            }
            before = page.lines.last().map(|line| line.place);
            if before.is_none() || !page.more {
                return Ok(None);
            }
        }
    }
}

/// Returns the bids of an account that came to rest in a line.
fn resting_bids(
    own: AccountKey,
    line: &StatementLine,
) -> impl Iterator<Item = (OrderId, Price, Units)> {
    line.causes.iter().filter_map(move |event| match *event {
        Event::Rested {
            account,
            order,
            side: Side::Bid,
            price,
            quantity,
        } if account == own => Some((order, price, quantity)),
        _ => None,
    })
}
