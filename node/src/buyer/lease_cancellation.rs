//! Ends the leases (bought device time) of a job that no process runs any more. `souk job cancel`
//! calls it.

use souk_market::{Command, JobId, LeaseState, Refusal};

use crate::client::trader::{TradeError, Trader};

/// Ends those leases of a job that still run or wait, by the ids under which they were bought.
/// Returns how many it ended.
///
/// # Errors
/// When no validator answers, or the market refuses. You can then call this again: it skips the
/// leases that have ended.
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
            // The lease ended by itself meanwhile.
            Err(TradeError::Refused(Refusal::LeaseClosed { .. } | Refusal::LeaseEnded { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(ended)
}
