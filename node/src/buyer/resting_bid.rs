//! Places a bid at the buyer's own price, which rests in the book (the market's list of orders)
//! until an ask matches it, and waits for the resulting lease. `souk submit --bid` calls it.
//!
//! Without such a bid, a job buys all its leases at the prices of the planned asks, or none. Below
//! these prices no ask is for sale at once: the bid rests under the job's id, until a provider
//! lowers its price or a new ask matches. The job then uses the lease under its id, as it does
//! after a purchase whose answer was lost.

use souk_market::{
    Acceptance, Bid, Command, Credits, JobId, Lease, LeaseState, Limit, Millis, OrderId, Price,
    TimeInForce, Units,
};
use souk_roles::job::{Reason, bid_for_leg, escrow_and_duration};

use super::Buyer;
use super::job::Limits;
use super::planner::plan_of;
use super::quote::Quote;
use crate::client::broker::BrokerError;
use crate::client::trader::TradeError;

/// A bid at the buyer's own price.
#[derive(Clone, Copy, Debug)]
pub struct LimitPrice {
    /// The highest price of a device-second.
    pub price: Price,
    /// When the bid leaves the book.
    pub until: Millis,
    /// The bid can displace spot leases with at most this much notice.
    pub displace: Millis,
}

/// Why a bid does not rest.
#[derive(Debug, thiserror::Error)]
pub enum RestingError {
    /// The plan does not have exactly one lease.
    #[error("a resting bid buys one lease, the plan has {0}")]
    Leases(usize),
    /// The budget is smaller than the escrow.
    #[error(transparent)]
    Budget(Reason),
    /// The market refused the bid.
    #[error(transparent)]
    Trade(#[from] TradeError),
}

impl Quote {
    /// Returns the escrow of its leases, within the rest of a budget, and their length.
    ///
    /// # Errors
    /// When the budget is smaller than the escrow of the shortest leases.
    pub fn lease_escrow(&self, budget: Option<Credits>) -> Result<(Credits, Millis), Reason> {
        escrow_and_duration(&plan_of(self), budget)
    }

    /// Replaces the prices of its offers by the buyer's own price.
    #[must_use]
    pub fn with_price(mut self, price: Price) -> Quote {
        for offer in self.plan.used_offers() {
            self.listings[offer].price = price;
        }
        self
    }
}

impl Buyer {
    /// Places a bid for the lease of a plan, which must have exactly one, in the book. Returns its
    /// order id and its escrow.
    ///
    /// # Errors
    /// [`RestingError`].
    pub async fn place_bid(
        &self,
        quote: &Quote,
        limits: &Limits,
        (job, own): (JobId, LimitPrice),
    ) -> Result<(OrderId, Credits), RestingError> {
        let plan = plan_of(quote);
        let [leg] = &plan.legs[..] else {
            return Err(RestingError::Leases(plan.legs.len()));
        };
        let (held, duration) =
            escrow_and_duration(&plan, limits.budget).map_err(RestingError::Budget)?;
        let at_once = bid_for_leg(
            leg,
            &limits.to_core_limits(),
            &limits.excluded,
            duration,
            job,
        );
        let resting = Bid {
            limit: Limit::Price(own.price),
            budget: own.price.escrow_for(Units(1), duration).unwrap_or(held),
            start_delay_max: own.displace,
            tif: TimeInForce::Gtd(own.until),
            ..at_once
        };
        self.remember_job(job);
        let placed = self
            .trader
            .submit_one(Command::PlaceBid(Box::new(resting)))
            .await?;
        match placed {
            Acceptance::Placed { order, .. } => Ok((order, held)),
            _ => Err(TradeError::Broker(BrokerError::Confused).into()),
        }
    }

    /// Waits until a bid under this id matches, and returns its lease, which runs or waits for the
    /// lease that it displaced.
    ///
    /// # Errors
    /// When no validator answers.
    pub async fn wait_until_filled(&self, job: JobId) -> Result<Lease, BrokerError> {
        let is_there = |lease: &Lease| match lease.state {
            LeaseState::Waiting { .. } => true,
            _ => lease.is_running(),
        };
        self.lease_of(job, is_there).await
    }

    /// Waits until the lease of a matched bid runs, or ends without running.
    ///
    /// # Errors
    /// When no validator answers.
    pub async fn wait_until_begun(&self, job: JobId) -> Result<Lease, BrokerError> {
        let is_waiting = |lease: &Lease| matches!(lease.state, LeaseState::Waiting { .. });
        self.lease_of(job, |lease| !is_waiting(lease)).await
    }

    async fn lease_of(
        &self,
        job: JobId,
        is_it: impl Fn(&Lease) -> bool,
    ) -> Result<Lease, BrokerError> {
        let mut changes = self.broker().watch_account(self.account());
        loop {
            let leases = self.broker().job_leases(self.account(), &[job]).await?;
            if let Some(lease) = leases.into_iter().find(&is_it) {
                return Ok(lease);
            }
            if changes.changed().await.is_err() {
                return Err(BrokerError::Confused);
            }
        }
    }

    /// Cancels a bid. Returns the released credits, or none if it was matched before; then its
    /// lease ends.
    ///
    /// # Errors
    /// When the market did not carry out the command.
    pub async fn withdraw_bid(
        &self,
        order: OrderId,
        job: JobId,
    ) -> Result<Option<Credits>, TradeError> {
        match self.trader.submit_one(Command::Cancel { order }).await {
            Ok(Acceptance::Cancelled { released }) => Ok(Some(released)),
            Ok(_) => Err(TradeError::Broker(BrokerError::Confused)),
            Err(TradeError::Refused(_)) => {
                for lease in self.broker().job_leases(self.account(), &[job]).await? {
                    let end = Command::EndLease { lease: lease.id };
                    match self.trader.submit_one(end).await {
                        // The lease has already ended.
                        Ok(_) | Err(TradeError::Refused(_)) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
