//! The leases of a job that nobody runs any more are ended from outside.

use souk_market::{Command, JobId, LeaseState, Refusal};

use crate::client::trader::{TradeError, Trader};

/// Ends those leases of a job that still run, by the ids that they were bought under; how many.
///
/// # Errors
/// When the market is not reached, or refuses.
pub async fn end_leases(trader: &Trader, ids: &[JobId]) -> Result<u32, TradeError> {
    let mut ended = 0;
    for lease in trader.broker().job_leases(trader.account(), ids).await? {
        let runs = matches!(lease.state, LeaseState::Active | LeaseState::Waiting { .. });
        if !runs {
            continue;
        }
        let end = Command::EndLease { lease: lease.id };
        match trader.submit_one(end).await {
            Ok(_) => ended += 1,
            // It ended by itself meanwhile.
            Err(TradeError::Refused(Refusal::LeaseClosed { .. } | Refusal::LeaseEnded { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(ended)
}
