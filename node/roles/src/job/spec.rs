//! What a job is told once, when it begins.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, Credits, JobId, MarketId, Millis, Permille, Regions};
use souk_memory::ContentId;

use crate::clock::Micros;

/// A job: what is to be made, and what its buyer will bear.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Its id, of no other job's; its first leases are bought under it.
    pub job: JobId,
    /// Who buys.
    pub account: AccountKey,
    /// The market it buys in.
    pub market: MarketId,
    /// What it is about: the model with the shapes of its inputs, and the inputs where there is one
    /// request. A job is resumed with the same.
    pub subject: ContentId,
    /// The caller's own words, kept in the journal.
    pub command: String,
    /// The names of the outputs of each request.
    pub outputs: Vec<String>,
    /// How many requests there will be, for the plan and the length of leases.
    pub requests: u32,
    /// For how many sequences providers keep states from request to request, 0 for none: what was
    /// computed is then of no use to another provider, and the job ends where its leases do.
    pub sequences: u32,
    /// How many requests may be under way at a time.
    pub window: u32,
    /// The inputs of all requests, those answered in earlier lives too, where a job is resumed.
    pub given: BTreeSet<ContentId>,
    /// What the buyer will bear.
    pub limits: Limits,
}

/// What a buyer will bear.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The most the job may ever cost, all that failed on the way counted; none for whatever the
    /// account has.
    pub budget: Option<Credits>,
    /// The most it may take from its begin to its last output; none for any time.
    pub deadline: Option<Micros>,
    /// The most that a run may take of which nobody knows beforehand how long it takes.
    pub time_max: Micros,
    /// How long to wait for devices that others have leased.
    pub wait: Micros,
    /// The fewest providers, each with real work.
    pub providers_min: u32,
    /// The most providers.
    pub providers_max: u32,
    /// Providers not to buy from.
    pub excluded: Vec<AccountKey>,
    /// Where devices may be.
    pub regions: Regions,
    /// The least reputation of a provider.
    pub reputation_min: Permille,
    /// The least notice a provider must give before it takes a device back.
    pub notice_min: Millis,
    /// On how many providers each part is run, 1 or 2: with two, their results are compared.
    pub copies: u32,
    /// Whether providers may take devices back, with the notice they state.
    pub spot: bool,
    /// Its place among this buyer's own leases at the same provider.
    pub priority: u8,
}
