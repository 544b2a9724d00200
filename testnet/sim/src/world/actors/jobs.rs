//! Buyers with jobs and providers with devices: the cores that a node runs, on simulated streams,
//! stores, devices and disks.

pub mod buyer;
mod checks;
mod contents;
mod journal;
mod links;
mod planner;
mod requests;
mod work;
pub mod worker;

use std::collections::BTreeMap;

use souk_market::AccountKey;
use souk_roles::effect::Ticket;
use souk_roles::{job, provider};

use crate::random::Random;
pub use checks::JobBreach;
use contents::Contents;
pub use links::Frame;
use links::Links;

/// What an effect of a core came to.
pub enum Done {
    /// An answer to a provider.
    Worker(provider::Answer),
    /// An answer to a job.
    Buyer(job::Answer),
    /// A write of its journal is to be synced now.
    Sync,
}

/// What all buyers and providers share: the network between them, and what is true.
pub struct Jobs {
    pub random: Random,
    contents: Contents,
    links: Links,
    /// The promise that was broken first.
    pub breach: Option<JobBreach>,
    /// Who ran what: never twice.
    ran: BTreeMap<(AccountKey, souk_market::LeaseId, u32, u32), u64>,
}

impl Jobs {
    /// Nothing yet.
    pub fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed, "jobs"),
            contents: Contents::default(),
            links: Links::default(),
            breach: None,
            ran: BTreeMap::new(),
        }
    }
}

/// The ticket of an effect that is answered, and what it came to.
pub type Answered = (Ticket, Done);
