//! Buyers with jobs and providers with devices: the cores that a node runs, on simulated streams,
//! stores, devices and disks.

pub mod buyer;
mod checks;
mod conduct;
mod contents;
mod harm;
mod journal;
mod links;
mod planner;
mod recording;
mod requests;
mod serving;
mod tally;
mod tricks;
mod witness;
mod work;
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

/// What an effect of a core came to.
pub enum EffectResult {
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
    /// Whom buyers talk to.
    talks: BTreeMap<(usize, job::Leg), AccountKey>,
    /// The promise that was broken first.
    pub breach: Option<JobBreach>,
    /// Who ran what: never twice.
    ran: BTreeMap<(AccountKey, LeaseId, u32, u32), u64>,
    /// When each open lease was traded.
    opened: BTreeMap<LeaseId, u64>,
    /// What only a run tells how long it takes: graphs with a loop by a count.
    loops: BTreeSet<ContentId>,
    /// What each job and provider remembered when its life ended.
    cores: blake3::Hasher,
}

impl Jobs {
    /// Nothing yet.
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
    /// A life of a job or provider ends: what it remembers is part of what a seed must repeat.
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

    /// A hash of all that jobs and providers remembered, in the order in which their lives ended.
    pub fn digest_of_cores(&mut self) -> blake3::Hash {
        for actor in 0..self.actors.list.len() {
            self.remember_core(actor);
        }
        self.jobs.cores.finalize()
    }
}

/// The ticket of an effect that is answered, and what it came to.
pub type EffectAnswer = (Ticket, EffectResult);
