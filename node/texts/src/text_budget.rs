//! The budget of a text, from which several sessions are bought in turn.
//!
//! If a session fails, its leases hold credits until they close. Until then their cost is unknown,
//! so these credits cannot buy another session. The unspent ones return to the budget.

use souk_node::buyer::{Buyer, JobResult, Spending, UnfinishedJob};
use souk_node::market::{Credits, JobId};

use souk_node::buyer::QuoteError;

use crate::text_error::{TextError, UsedBudget};

/// A budget; `None` for `given` and `left` is no limit.
pub struct Purse {
    given: Option<Credits>,
    left: Option<Credits>,
    /// Ended sessions whose leases can still return credits.
    holding: Vec<(JobId, Spending)>,
}

impl Purse {
    /// Creates a full budget.
    pub fn new(given: Option<Credits>) -> Self {
        Self {
            given,
            left: given,
            holding: Vec::new(),
        }
    }

    /// Returns the remaining credits, or `None` without a limit.
    pub fn remaining_credits(&self) -> Option<Credits> {
        self.left
    }

    /// Returns whether leases can still return credits.
    pub fn is_holding(&self) -> bool {
        self.left.is_some() && !self.holding.is_empty()
    }

    /// Subtracts the spent and held credits of a session that is over.
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

    /// Adds the credits that leases of ended sessions have returned since the last call.
    pub async fn add_returned_credits(&mut self, buyer: &Buyer) {
        for (job, known) in &mut self.holding {
            // If the market is unreachable, a later call counts them.
            if let Ok(now) = buyer.job_spending(*job).await {
                let back = given_back(known, now);
                self.left = self.left.map(|left| Credits(left.0.saturating_add(back.0)));
            }
        }
        self.holding.retain(|(_, known)| known.held.0 > 0);
    }

    /// Returns the error of a quote that failed. If the budget is at fault, the error says how much
    /// of it is left.
    pub fn explain_quote(&self, error: QuoteError) -> TextError {
        let used = self
            .left
            .zip(self.given)
            .filter(|(left, given)| left < given);
        let is_budget = matches!(error, QuoteError::Budget { .. } | QuoteError::Escrow { .. });
        let used = used.filter(|_| is_budget);
        TextError::Quote {
            error: Box::new(error),
            budget: used.map(|(left, given)| UsedBudget { given, left }),
        }
    }
}

/// Returns the credits that came back between `known` and `now`, and sets `known` to `now`.
fn given_back(known: &mut Spending, now: Spending) -> Credits {
    // The market can forget a closed lease; its cost stays paid.
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
