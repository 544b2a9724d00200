//! Counts the credits of one session and of the sessions that replace it, so that together they
//! never spend more than the user's budget allows.
//!
//! The core divides the user's budget among the sessions that run at a time. If a session fails,
//! its leases hold credits until they close. Until then their cost is unknown, so these credits
//! cannot buy another session. The unspent ones return to the budget.

use serde::{Deserialize, Serialize};
use souk_market::{Credits, JobId};

use crate::job::Spending;

/// A budget; `None` for `budget` and `left` is no limit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SessionBudget {
    budget: Option<Credits>,
    left: Option<Credits>,
    /// Ended sessions whose leases can still return credits.
    holding: Vec<(JobId, Spending)>,
}

impl SessionBudget {
    /// Creates a full budget.
    pub fn new(budget: Option<Credits>) -> SessionBudget {
        SessionBudget {
            budget,
            left: budget,
            holding: Vec::new(),
        }
    }

    /// Returns the whole budget.
    pub fn budget(&self) -> Option<Credits> {
        self.budget
    }

    /// Returns the remaining credits, or `None` without a limit.
    pub fn remaining_credits(&self) -> Option<Credits> {
        self.left
    }

    /// Returns the jobs that can still return credits.
    pub fn holding_jobs(&self) -> Vec<JobId> {
        self.holding.iter().map(|(job, _)| *job).collect()
    }

    /// Subtracts the spent and held credits of a session that is over.
    pub fn on_ended(&mut self, job: JobId, spending: Spending) {
        let gone = spending.spent.0.saturating_add(spending.held.0);
        self.left = self.left.map(|left| Credits(left.0.saturating_sub(gone)));
        if self.left.is_some() && spending.held.0 > 0 {
            self.holding.push((job, spending));
        }
    }

    /// Adds the credits that leases of ended sessions have returned since the last call. A job
    /// without an answer is for a later call.
    pub fn add_returned_credits(&mut self, answers: &[(JobId, Option<Spending>)]) {
        for (job, known) in &mut self.holding {
            let answer = answers.iter().find(|(of, _)| of == job);
            if let Some((_, Some(now))) = answer {
                let back = update_spending(known, *now);
                self.left = self.left.map(|left| Credits(left.0.saturating_add(back.0)));
            }
        }
        self.holding.retain(|(_, known)| known.held.0 > 0);
    }
}

/// Sets `known` to `now`, and returns the credits that came back between them.
fn update_spending(known: &mut Spending, now: Spending) -> Credits {
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
    fn held_credits_come_back_less_those_that_were_paid() {
        let mut known = spending(10, 100);
        let mut update = |spent, held| update_spending(&mut known, spending(spent, held));
        assert_eq!(update(10, 100), Credits(0));
        assert_eq!(update(25, 60), Credits(25));
        assert_eq!(update(25, 0), Credits(60));
        assert_eq!(known, spending(25, 0));
    }

    #[test]
    fn a_lease_that_the_market_forgot_returns_nothing_twice() {
        let mut known = spending(50, 40);
        assert_eq!(update_spending(&mut known, spending(0, 0)), Credits(40));
        assert_eq!(update_spending(&mut known, spending(0, 0)), Credits(0));
        assert_eq!(known, spending(50, 0));
    }

    #[test]
    fn a_budget_waits_for_the_jobs_that_hold_its_credits() {
        let [first, second] = [1, 2].map(|byte| JobId([byte; 32]));
        let mut budget = SessionBudget::new(Some(Credits(100)));
        budget.on_ended(first, spending(10, 30));
        budget.on_ended(second, spending(5, 0));
        assert_eq!(budget.remaining_credits(), Some(Credits(55)));
        assert_eq!(budget.holding_jobs(), [first]);
        budget.add_returned_credits(&[(first, None), (second, None)]);
        assert_eq!(budget.holding_jobs(), [first]);
        budget.add_returned_credits(&[(first, Some(spending(20, 0)))]);
        assert_eq!(budget.remaining_credits(), Some(Credits(75)));
        assert_eq!(budget.holding_jobs(), []);
        // Without a limit there is nothing to wait for.
        let mut endless = SessionBudget::new(None);
        endless.on_ended(first, spending(10, 30));
        assert_eq!(endless.holding_jobs(), []);
    }
}
