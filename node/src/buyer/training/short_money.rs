//! Explains why the budget of a training run does not pay its next lease, and which budget would be
//! enough.

use souk_market::Credits;
use souk_roles::train::LeaseWish;

use crate::buyer::QuoteError;
use crate::buyer::lease_length::{MICRO, TIME_MARGIN_MIN};

/// If nothing of the budget is left, the suggested budget adds this many times the price of a
/// lease.
const TIMES_OF_NOTHING: u64 = 3;

/// A budget that does not pay the next lease of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortMoney {
    /// The budget of the run.
    pub budget: Credits,
    /// What the leases before cost, or can still cost.
    pub spent: Credits,
    /// What is kept back for the audits of the lease.
    pub kept_back: Credits,
    /// What the market would hold for the lease, as far as it is known.
    pub needed: Credits,
    /// If the lease is an audit: the number of steps done before the first that it runs again.
    pub audit: Option<u64>,
}

impl ShortMoney {
    /// Explains why this lease of a run with this budget got no quote; none if money was no cause.
    pub(super) fn explain(
        error: &QuoteError,
        wish: &LeaseWish,
        budget: Option<Credits>,
        spent: Credits,
    ) -> Option<ShortMoney> {
        let needed = match error {
            QuoteError::Escrow { needed, .. } => *needed,
            // The shortest lease is longer than its plan.
            QuoteError::Budget { cheapest, .. } => cheapest * TIME_MARGIN_MIN,
            _ => return None,
        };
        Some(ShortMoney {
            budget: budget?,
            spent,
            kept_back: wish.kept_back,
            needed: Credits((needed * MICRO).ceil() as u64),
            audit: (!wish.claims.is_empty()).then_some(wish.from.position),
        })
    }

    /// Returns a budget of the run that pays the lease, and what is kept back beside it.
    #[must_use]
    pub fn sufficient_budget(&self) -> Credits {
        let gone = self.spent.0.saturating_add(self.kept_back.0);
        let for_lease = self.budget.0.saturating_sub(gone);
        let left = for_lease.saturating_add(self.kept_back.0);
        let wanted = match (for_lease, self.audit) {
            (_, Some(_)) => self.needed.0,
            (0, None) => self.needed.0.saturating_mul(TIMES_OF_NOTHING),
            // Each share of what is left is rounded.
            (_, None) => {
                let wanted = u128::from(self.needed.0) * u128::from(left);
                let wanted = wanted.div_ceil(u128::from(for_lease)) + 2;
                u64::try_from(wanted).unwrap_or(u64::MAX)
            }
        };
        Credits(self.spent.0.saturating_add(wanted))
    }
}

#[cfg(test)]
mod tests {
    use souk_roles::train::{Checkpoint, RunRequest, SegmentClaim, Step};

    use super::*;

    fn wish(kept_back: u64, claims: Vec<SegmentClaim>) -> LeaseWish {
        LeaseWish {
            from: Checkpoint {
                position: 8,
                states: Vec::new(),
            },
            first: RunRequest::Step(Step {
                position: 8,
                keep: false,
            }),
            steps: 8,
            evaluations: 0,
            request_time: None,
            budget: None,
            kept_back: Credits(kept_back),
            excluded: Vec::new(),
            claims,
        }
    }

    fn escrow(needed: f64) -> QuoteError {
        QuoteError::Escrow {
            cheapest: 0.000_001,
            needed,
            budget: 0.0,
        }
    }

    fn explain(kept_back: u64, is_audit: bool) -> ShortMoney {
        let claim = SegmentClaim {
            losses: Vec::new(),
            states: Vec::new(),
        };
        let wish = wish(kept_back, vec![claim; usize::from(is_audit)]);
        let budget = Some(Credits(1_000_000));
        let short = ShortMoney::explain(&escrow(2.0), &wish, budget, Credits(400_000));
        short.expect("money is short")
    }

    #[test]
    fn a_sufficient_budget_keeps_as_large_a_share_back() {
        // Two thirds of what is left are kept back, so two credits of it need six.
        let short = explain(400_000, false);
        assert_eq!(short.sufficient_budget(), Credits(6_400_002));
        assert_eq!(explain(0, false).sufficient_budget(), Credits(2_400_002));
        let nothing_left = explain(600_000, false).sufficient_budget();
        assert_eq!(nothing_left, Credits(6_400_000));
    }

    #[test]
    fn an_audit_keeps_nothing_back_and_names_its_steps() {
        let short = explain(0, true);
        assert_eq!(short.audit, Some(8));
        assert_eq!(short.sufficient_budget(), Credits(2_400_000));
    }

    #[test]
    fn money_explains_only_errors_about_money() {
        let error = QuoteError::Behind { jobs: 1 };
        let budget = Some(Credits(1));
        let short = ShortMoney::explain(&error, &wish(0, Vec::new()), budget, Credits::ZERO);
        assert_eq!(short, None);
        let short = ShortMoney::explain(&escrow(1.0), &wish(0, Vec::new()), None, Credits::ZERO);
        assert_eq!(short, None, "there is no budget");
    }
}
