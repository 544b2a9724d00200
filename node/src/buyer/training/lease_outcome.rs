//! Quotes the next lease of a training run, and converts the end of its job into what the run's
//! core needs: the cost, and the reason for the end.

use std::time::Duration;

use souk_market::Credits;
use souk_roles::train::{LeaseEndReason, Shortage};
use tokio::time::Instant;

use crate::buyer::job::Job;
use crate::buyer::{Buyer, Quote, QuoteError, Reason, Spending};

/// How long a device may take to be on offer again after the lease before, or after its provider
/// restarted.
const NEXT_LEASE_WAIT: Duration = Duration::from_secs(10);

/// The pause between two looks at the book.
const BOOK_PERIOD: Duration = Duration::from_millis(100);

/// How long to wait for a device within the budget, if dearer ones are on offer.
const CHEAPER_LEASE_WAIT: Duration = Duration::from_secs(3);

/// Quotes a lease. If none is on offer for the budget, it can wait for the device of the lease
/// before, which can be cheaper than those on offer now. If the budget then allows no lease for
/// requests of the usual length, it drops that limit of the job: the lease can still do some of
/// them.
pub(super) async fn quote_lease(
    buyer: &Buyer,
    job: &mut Job,
    waits: bool,
) -> Result<Quote, QuoteError> {
    let began = Instant::now();
    loop {
        let quoted = buyer.quote_job(job).await;
        let is_money = quoted.as_ref().is_err_and(is_money);
        let wait = match is_money {
            true => CHEAPER_LEASE_WAIT,
            false => NEXT_LEASE_WAIT,
        };
        if quoted.is_ok() || !waits || began.elapsed() >= wait {
            if is_money && job.limits.request_time.take().is_some() {
                return buyer.quote_job(job).await;
            }
            return quoted;
        }
        tokio::time::sleep(BOOK_PERIOD).await;
    }
}

/// Returns whether the budget is too small for a lease.
pub(super) fn is_money(error: &QuoteError) -> bool {
    matches!(error, QuoteError::Budget { .. } | QuoteError::Escrow { .. })
}

/// Returns what there was too little of to get a quote.
pub(super) fn shortage_of(error: &QuoteError) -> Shortage {
    match is_money(error) {
        true => Shortage::Money,
        false => Shortage::Offers,
    }
}

/// Returns what a lease cost or can still cost. A lease without a receipt costs what its provider
/// notes.
pub(super) fn sum_spending(spending: Spending) -> Credits {
    Credits(spending.spent.0.saturating_add(spending.held.0))
}

/// Returns the reason for the end of a lease. A plan that no longer fits says that the time of a
/// sold lease was over.
pub(super) fn end_reason(how: &crate::buyer::End, is_sold: bool) -> LeaseEndReason {
    match how {
        crate::buyer::End::Done => LeaseEndReason::Done,
        crate::buyer::End::Failed(_) if !is_sold => LeaseEndReason::Unsold,
        crate::buyer::End::Failed(Reason::NoPlan(_)) => LeaseEndReason::TimeOver,
        crate::buyer::End::Cancelled => LeaseEndReason::Cancelled,
        crate::buyer::End::Failed(_) => LeaseEndReason::Fault,
    }
}
