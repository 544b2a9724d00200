//! A bid of a buyer's own price that rests in the book until an ask comes, and the job that waits
//! for the lease it buys.
//!
//! A job buys at the price of the asks it was planned over, all or nothing. Below that price there
//! is nothing to buy at once: the bid rests, under the job's id, and whoever lowers its price or
//! comes anew sells to it. The job then takes the lease that is there under its id, as it does
//! after a purchase whose answer was lost.

use souk_market::{
    Acceptance, Bid, Command, Credits, JobId, Lease, LeaseState, Limit, Millis, OrderId, Price,
    TimeInForce, Units,
};
use souk_roles::job::{Reason, bid, holds};

use super::Buyer;
use super::job::Limits;
use super::planner::plan_of;
use super::quote::Quote;
use crate::client::broker::BrokerError;
use crate::client::trader::TradeError;

/// What a buyer bids.
#[derive(Clone, Copy, Debug)]
pub struct OwnPrice {
    /// The most for a device-second.
    pub price: Price,
    /// When the bid leaves the book.
    pub until: Millis,
    /// Spot leases with at most so much notice may be displaced for it.
    pub displace: Millis,
}

/// Why a bid does not rest.
#[derive(Debug, thiserror::Error)]
pub enum RestingError {
    /// The plan is none of one lease.
    #[error("a bid that rests buys one lease, the plan has {0}")]
    Leases(usize),
    /// The budget does not hold it.
    #[error(transparent)]
    Budget(Reason),
    /// The market did not take it.
    #[error(transparent)]
    Trade(#[from] TradeError),
}

impl Quote {
    /// What its leases would hold until they are settled, within what is left of a budget, and how
    /// long they are.
    ///
    /// # Errors
    /// When the budget does not hold the shortest of them.
    pub fn holds(&self, budget: Option<Credits>) -> Result<(Credits, Millis), Reason> {
        holds(&plan_of(self), budget)
    }

    /// The same plan where its leases cost a price of the buyer's own.
    #[must_use]
    pub fn at(mut self, price: Price) -> Quote {
        for offer in self.plan.offers() {
            self.listings[offer].price = price;
        }
        self
    }
}

impl Buyer {
    /// Puts a bid for the lease of a plan into the book; what it holds, and its number where it
    /// rests. Without one it was matched at once.
    ///
    /// # Errors
    /// [`RestingError`].
    pub async fn rest(
        &self,
        quote: &Quote,
        limits: &Limits,
        (job, own): (JobId, OwnPrice),
    ) -> Result<(OrderId, Credits), RestingError> {
        let plan = plan_of(quote);
        let [leg] = &plan.legs[..] else {
            return Err(RestingError::Leases(plan.legs.len()));
        };
        let (held, duration) = holds(&plan, limits.budget).map_err(RestingError::Budget)?;
        let at_once = bid(leg, &limits.told(), &limits.excluded, (duration, job));
        let resting = Bid {
            limit: Limit::Price(own.price),
            budget: own.price.escrow(Units(1), duration).unwrap_or(held),
            start_delay_max: own.displace,
            tif: TimeInForce::Gtd(own.until),
            ..at_once
        };
        self.opened(job);
        let placed = self
            .trader
            .submit_one(Command::PlaceBid(Box::new(resting)))
            .await?;
        match placed {
            Acceptance::Placed { order, .. } => Ok((order, held)),
            _ => Err(TradeError::Broker(BrokerError::Confused).into()),
        }
    }

    /// Ends once a bid under this id is matched: its lease, which runs or waits for the one that it
    /// displaced.
    ///
    /// # Errors
    /// When the market is not reached.
    pub async fn filled(&self, job: JobId) -> Result<Lease, BrokerError> {
        let is_there = |lease: &Lease| match lease.state {
            LeaseState::Waiting { .. } => true,
            _ => lease.is_running(),
        };
        self.lease_of(job, is_there).await
    }

    /// Ends once the lease of a matched bid runs, or is over without.
    ///
    /// # Errors
    /// When the market is not reached.
    pub async fn begun(&self, job: JobId) -> Result<Lease, BrokerError> {
        let is_waiting = |lease: &Lease| matches!(lease.state, LeaseState::Waiting { .. });
        self.lease_of(job, |lease| !is_waiting(lease)).await
    }

    async fn lease_of(
        &self,
        job: JobId,
        is_it: impl Fn(&Lease) -> bool,
    ) -> Result<Lease, BrokerError> {
        let mut changes = self.broker().watch(self.account());
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

    /// Takes a bid out of the book; what returned, or none where it was matched before.
    ///
    /// # Errors
    /// When the market did not do it.
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
                        // It is over already.
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
