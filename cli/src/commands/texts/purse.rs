//! What is left of a budget that several sessions are bought from, one after the other.
//!
//! A session whose provider was lost has leases that hold credits until they are over: until then
//! nobody knows what of it is paid, and it is nothing to buy with. What comes back is.

use souk_node::buyer::{Buyer, JobResult, Spending, UnfinishedJob};
use souk_node::market::{Credits, JobId};

use crate::failure::{Failure, Kind};
use crate::show;

/// A budget, unless as much may be spent as there is.
pub struct Purse {
    given: Option<Credits>,
    left: Option<Credits>,
    /// Sessions whose leases may still give something back.
    holding: Vec<(JobId, Spending)>,
}

impl Purse {
    /// A full one.
    pub fn new(given: Option<Credits>) -> Self {
        Self {
            given,
            left: given,
            holding: Vec::new(),
        }
    }

    /// What there is to buy with.
    pub fn left(&self) -> Option<Credits> {
        self.left
    }

    /// Whether something may still come back.
    pub fn is_holding(&self) -> bool {
        self.left.is_some() && !self.holding.is_empty()
    }

    /// A session is over.
    pub fn on_ended(&mut self, ended: &Result<JobResult, Box<UnfinishedJob>>) {
        let spending = match ended {
            Ok(done) => Spending {
                spent: Credits(done.receipts.iter().map(|it| it.body.amount.0).sum()),
                held: Credits(0),
            },
            Err(ended) => ended.spending.unwrap_or_default(),
        };
        let gone = spending.spent.0.saturating_add(spending.held.0);
        self.left = self.left.map(|left| Credits(left.0.saturating_sub(gone)));
        if let Err(ended) = ended
            && spending.held.0 > 0
        {
            self.holding.push((ended.done.job, spending));
        }
    }

    /// Takes back what leases of sessions that are over have given back by now.
    pub async fn look(&mut self, buyer: &Buyer) {
        for (job, known) in &mut self.holding {
            // Where the market is not reached nothing has come back yet.
            if let Ok(now) = buyer.spending(*job).await {
                let back = given_back(known, now);
                self.left = self.left.map(|left| Credits(left.0.saturating_add(back.0)));
            }
        }
        self.holding.retain(|(_, known)| known.held.0 > 0);
    }

    /// Why nothing is bought: of the budget a part may be gone by now.
    pub fn explained(&self, mut failure: Failure) -> Failure {
        if let (Kind::Budget, Some(left), Some(given)) = (failure.kind, self.left, self.given)
            && left < given
        {
            let [left, given] = [left, given].map(|it| show::credits(it.0));
            failure.cause = format!(
                "of {given} credits {left} are left, the rest is paid, or held for leases whose \
                 providers were lost: {}",
                failure.cause
            );
            "give a larger --budget; what is held and not paid comes back when its lease is over"
                .clone_into(&mut failure.hint);
        }
        failure
    }
}

/// What came back since it was looked last, which is then `now`.
fn given_back(known: &mut Spending, now: Spending) -> Credits {
    // A lease that is closed may be forgotten: what it cost stays paid.
    let spent = now.spent.max(known.spent);
    let held = now.held.min(known.held);
    let paid = spent.0 - known.spent.0;
    let back = (known.held.0 - held.0).saturating_sub(paid);
    *known = Spending { spent, held };
    Credits(back)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spending(spent: u64, held: u64) -> Spending {
        let [spent, held] = [spent, held].map(Credits);
        Spending { spent, held }
    }

    #[test]
    fn what_leases_held_comes_back_less_what_of_it_was_paid() {
        let mut known = spending(10, 100);
        assert_eq!(given_back(&mut known, spending(10, 100)), Credits(0));
        assert_eq!(given_back(&mut known, spending(25, 60)), Credits(25));
        assert_eq!(given_back(&mut known, spending(25, 0)), Credits(60));
        assert_eq!(known, spending(25, 0));
    }

    #[test]
    fn a_lease_that_the_market_forgot_gives_nothing_back_twice() {
        let mut known = spending(50, 40);
        assert_eq!(given_back(&mut known, spending(0, 0)), Credits(40));
        assert_eq!(given_back(&mut known, spending(0, 0)), Credits(0));
        assert_eq!(known, spending(50, 0));
    }
}
