//! The specification of a job, which its caller fixes when the job begins: the work, the outputs,
//! and the buyer's limits.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, Credits, JobId, MarketId, Millis, Permille, Regions};
use souk_memory::ContentId;

use crate::clock::Micros;

/// A job: the outputs to make, and the buyer's limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Its id, which must not be another job's; its first leases are bought under it.
    pub job: JobId,
    /// The account that buys.
    pub account: AccountKey,
    /// The market it buys in.
    pub market: MarketId,
    /// The id of its subject: the model with the shapes of its inputs, and the inputs if there is
    /// one request. A job can resume only with the same subject.
    pub subject: ContentId,
    /// The caller's command, which the journal keeps.
    pub command: String,
    /// The names of the outputs of each request.
    pub outputs: Vec<String>,
    /// The number of requests expected, for the plan and the length of leases.
    pub requests: u32,
    /// The number of sequences for which providers keep states from request to request, 0 for none.
    /// Another provider cannot use those states, so such a job ends when its leases do.
    pub sequences: u32,
    /// The most requests under way at a time.
    pub window: u32,
    /// The inputs of all requests, including those answered in earlier lives, if the job resumes.
    pub request_inputs: BTreeSet<ContentId>,
    /// The buyer's limits.
    pub limits: Limits,
}

/// The limits that a buyer sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The most that the job may ever cost, including all failures; none for the account's balance.
    pub budget: Option<Credits>,
    /// The most time from its begin to its last output; none for any time.
    pub deadline: Option<Micros>,
    /// The most time for a run whose length is unknown before it runs.
    pub time_max: Micros,
    /// How long to wait for devices that others have leased.
    pub wait: Micros,
    /// The fewest providers, each with real work.
    pub providers_min: u32,
    /// The most providers.
    pub providers_max: u32,
    /// The providers not to buy from.
    pub excluded: Vec<AccountKey>,
    /// The regions where devices can be.
    pub regions: Regions,
    /// The least reputation of a provider.
    pub reputation_min: Permille,
    /// The least notice that a provider must give before it reclaims a device.
    pub notice_min: Millis,
    /// The number of providers that run each part, 1 or 2: with two, the buyer compares their
    /// results.
    pub copies: u32,
    /// Whether providers may reclaim devices, with the notice they state.
    pub spot: bool,
    /// Its priority among this buyer's own leases at the same provider.
    pub priority: u8,
}
