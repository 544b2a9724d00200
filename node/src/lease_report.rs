//! Defines the report that a provider sends with the results of a lease: the lease's traffic, the
//! work of the device and its times. It is for people; no decision depends on it.

use serde::{Deserialize, Serialize};
use souk_market::AccountKey;
use souk_network::content::links::Sample;
use souk_scheduler::execution::report::Report;
use souk_scheduler::execution::timeline::Timeline;

/// The report of a lease's work for people: it travels in
/// [`WorkResult`](souk_roles::lease::WorkResult), and no role reads it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LeaseReport {
    /// The traffic over the network, by sender.
    pub moved: Vec<PeerTraffic>,
    /// The work of the device.
    pub report: Report,
    /// The times of that work.
    pub timeline: Timeline,
}

/// The bytes that a provider received from one peer during a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerTraffic {
    /// The peer's account.
    pub from: AccountKey,
    /// The content: a tensor's name, `graph` or `weights`.
    pub what: String,
    /// The bytes received.
    pub bytes: u64,
    /// The measurement of the longest transfer.
    pub link: Option<Sample>,
}

impl LeaseReport {
    /// Encodes the report.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("plain data in memory always encodes")
    }

    /// Decodes a provider's report; returns an empty one if it does not decode, because nothing
    /// depends on it.
    pub(crate) fn read(bytes: &[u8]) -> LeaseReport {
        postcard::from_bytes(bytes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use souk_node_testing::fuzzed;

    use super::*;

    #[test]
    fn damaged_reports_are_refused_or_read_back() {
        fuzzed::fuzz_decoder::<LeaseReport>(6, &[LeaseReport::default()]);
    }
}
