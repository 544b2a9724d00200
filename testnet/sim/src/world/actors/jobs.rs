//! Simulates buyers with jobs and providers with devices. They run the cores of a real node, which
//! are the state machines that decide for it, on simulated streams, stores, devices and disks.
//! [`Jobs`] holds the state that all of them share.

pub mod buyer;
mod cheating;
mod checks;
mod content_serving;
mod contents;
mod harm;
mod journal;
mod journal_writes;
mod links;
mod misconduct;
mod planner;
mod requests;
mod simulated_job;
mod tally;
mod witness;
pub mod worker;

use std::collections::{BTreeMap, BTreeSet};

use souk_market::{AccountKey, LeaseId};
use souk_memory::ContentId;
use souk_roles::effect::Ticket;
use souk_roles::{job, provider};

use crate::random::Random;
use crate::world::World;
use crate::world::actors::Role;
pub use checks::JobBreach;
use contents::Contents;
pub use links::Frame;
use links::Links;

/// The result of a core's effect.
pub enum EffectResult {
    /// An answer to a provider.
    Worker(provider::Answer),
    /// An answer to a job.
    Buyer(job::Answer),
    /// The time to sync a write of the journal.
    Sync,
}

/// State that all buyers and providers share: their network, and the truth.
pub struct Jobs {
    pub random: Random,
    contents: Contents,
    links: Links,
    /// The provider of each buyer's leg.
    talks: BTreeMap<(usize, job::Leg), AccountKey>,
    /// The first broken promise.
    pub breach: Option<JobBreach>,
    /// How often each part ran; more than once breaks a promise.
    ran: BTreeMap<(AccountKey, LeaseId, u32, u32), u64>,
    /// When each open lease was traded.
    opened: BTreeMap<LeaseId, u64>,
    /// Graphs with a counted loop, whose duration only a run shows.
    loops: BTreeSet<ContentId>,
    /// Hash of the memory of each job and provider at the end of its life.
    cores: blake3::Hasher,
}

impl Jobs {
    /// Creates an empty state.
    pub fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed, "jobs"),
            contents: Contents::default(),
            links: Links::default(),
            talks: BTreeMap::new(),
            breach: None,
            ran: BTreeMap::new(),
            opened: BTreeMap::new(),
            loops: BTreeSet::new(),
            cores: blake3::Hasher::new(),
        }
    }
}

impl World {
    /// Adds the memory of a job or provider at the end of its life, which must be the same for the
    /// same seed.
    fn remember_core(&mut self, actor: usize) {
        match &self.actors.list[actor].role {
            Role::Buyer(buyer) => {
                let digest = buyer.core.as_ref().map(job::JobCore::digest);
                digest.map(|digest| self.jobs.cores.update(digest.as_bytes()));
            }
            Role::Worker(worker) => {
                let digest = worker.core.as_ref().map(provider::ProviderCore::digest);
                digest.map(|digest| self.jobs.cores.update(&digest));
            }
            Role::Trader(_) => {}
        }
    }

    /// Returns a hash of the memory of all jobs and providers, in the order in which their lives
    /// ended.
    pub fn digest_of_cores(&mut self) -> blake3::Hash {
        for actor in 0..self.actors.list.len() {
            self.remember_core(actor);
        }
        self.jobs.cores.finalize()
    }
}

/// The ticket and the result of an effect.
pub type EffectAnswer = (Ticket, EffectResult);
