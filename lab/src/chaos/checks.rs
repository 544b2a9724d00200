//! Checks the invariants that a market must keep even if its nodes fail or lie, such as the sum of
//! all credits. The chaos test checks them after each fault and at the end; the test with hostile
//! peers checks them at its end.

use std::collections::BTreeMap;
use std::time::Duration;

use souk_folder::clock::unix_ms;
use souk_node::buyer::Buyer;
use souk_node::client::broker::BrokerError;
use souk_node::market::{Credits, Lease, LeaseState, Totals};
use tokio::time::Instant;

use super::load::Jobs;
use super::schedule::PlannedFault;

/// A market must satisfy every invariant within this time after a fault: it covers an election, a
/// restart, and a lease that was not renewed.
const HEALING: Duration = Duration::from_secs(30);

/// All leases must be closed within this time after the last job: the longest, its grace, and a
/// note's time.
const CLOSING: Duration = Duration::from_secs(90);

/// Interval of the checks in that time.
const PERIOD: Duration = Duration::from_millis(500);

/// How much a lease may outlive its time before the log's clock advances.
const CLOCK_LAG_MS: u64 = 10_000;

/// The checks so far and their findings.
pub(crate) struct Checks {
    deposits: Option<Credits>,
    pub(crate) count: usize,
    pub(crate) violations: Vec<String>,
}

impl Checks {
    pub(crate) async fn begin(buyer: &Buyer) -> Checks {
        let totals = buyer.broker().fetch_totals().await.ok();
        let deposits = totals.map(|totals| totals.deposits);
        Checks {
            deposits,
            count: 0,
            violations: Vec::new(),
        }
    }

    /// Waits after a fault until every invariant holds, and records those that still fail.
    pub(crate) async fn await_invariants(&mut self, buyer: &Buyer, planned: &PlannedFault) {
        self.count += 1;
        let begin = Instant::now();
        while let Some(wrong) = self.find_violation(buyer).await {
            if begin.elapsed() > HEALING {
                self.violations.push(format!("after {planned:?}: {wrong}"));
                return;
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Checks at the end that nothing is open, and that all validators have the same state.
    pub(crate) async fn look_at_end(&mut self, buyer: &Buyer, jobs: &Jobs) {
        self.count += 1;
        if jobs.wrong > 0 {
            self.violations
                .push(format!("{} job(s) gave wrong outputs", jobs.wrong));
        }
        let begin = Instant::now();
        while let Some(wrong) = self.wrong_at_end(buyer).await {
            if begin.elapsed() > CLOSING {
                self.violations.push(format!("at the end: {wrong}"));
                return;
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    async fn find_violation(&self, buyer: &Buyer) -> Option<String> {
        match fetch_state(buyer).await {
            Err(error) => Some(format!("the market does not answer: {error}")),
            Ok((totals, leases)) => self.wrong_totals(&totals).or_else(|| wrong_leases(&leases)),
        }
    }

    async fn wrong_at_end(&self, buyer: &Buyer) -> Option<String> {
        if let Some(wrong) = self.find_violation(buyer).await {
            return Some(wrong);
        }
        match fetch_state(buyer).await {
            Err(error) => return Some(format!("the market does not answer: {error}")),
            Ok((totals, leases)) => {
                let open = leases.iter().filter(|lease| !lease.is_closed()).count();
                if open > 0 || totals.escrow != Credits(0) {
                    return Some(format!("{open} leases hold {} in escrow", totals.escrow));
                }
            }
        }
        let statuses = buyer.broker().fetch_statuses().await;
        let states: Vec<_> = statuses.iter().map(|s| s.as_ref().ok()).collect();
        let state = |place: usize| states[place].map(|status| (status.applied, &status.digest));
        let same =
            (0..states.len()).all(|place| state(place).is_some() && state(place) == state(0));
        (!same).then(|| "the validators do not hold the same state".to_owned())
    }

    fn wrong_totals(&self, totals: &Totals) -> Option<String> {
        let same = self
            .deposits
            .is_none_or(|deposits| deposits == totals.deposits);
        (!totals.is_balanced() || !same).then(|| format!("credits were made or lost: {totals:?}"))
    }
}

async fn fetch_state(buyer: &Buyer) -> Result<(Totals, Vec<Lease>), BrokerError> {
    Ok((
        buyer.broker().fetch_totals().await?,
        buyer.fetch_leases().await?,
    ))
}

/// Finds a device that is sold twice, or a lease that keeps its escrow beyond its time.
fn wrong_leases(leases: &[Lease]) -> Option<String> {
    let mut sold = BTreeMap::new();
    let now = unix_ms();
    for lease in leases {
        let until = match lease.state {
            LeaseState::Active | LeaseState::Waiting { .. } => lease.deadline.0,
            LeaseState::Ending { at, .. } => at.0,
            LeaseState::Due { until, .. } => until.0,
            LeaseState::Closed { .. } => continue,
        };
        if until + CLOCK_LAG_MS < now {
            let id = lease.id;
            return Some(format!("lease {id} keeps {} beyond its time", lease.escrow));
        }
        if lease.is_running()
            && let Some(other) = sold.insert((lease.provider, lease.device), lease.id)
        {
            return Some(format!(
                "one device is sold under leases {other} and {}",
                lease.id
            ));
        }
    }
    None
}
