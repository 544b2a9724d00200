//! Gives providers access to a job's inputs and models, which they fetch from the buyer's store.
//!
//! The job's shell grants each provider the contents of its lease. When the shell ends, all access
//! of the job ends with it.

use std::collections::BTreeSet;

use souk_market::{AccountKey, JobId};
use souk_memory::ContentId;
use souk_network::content::transfers::Tensors;
use souk_roles::access::{Readers, Scope};

/// The access that one job grants. Dropping it ends the access.
pub(super) struct ServedContents {
    tensors: Tensors,
    buyer: AccountKey,
    /// The ids of attempts under which a provider has access.
    attempts: BTreeSet<JobId>,
    /// Graphs and weights, which no other job of this buyer may remove meanwhile.
    pinned: BTreeSet<ContentId>,
}

impl ServedContents {
    pub(super) fn new(tensors: Tensors, buyer: AccountKey) -> ServedContents {
        ServedContents {
            tensors,
            buyer,
            attempts: BTreeSet::new(),
            pinned: BTreeSet::new(),
        }
    }

    /// Returns the scope of contents for leases that were bought under this id.
    pub(super) fn job_scope(&self, job: JobId) -> Scope {
        let buyer = self.buyer;
        Scope { buyer, job }
    }

    /// Keeps a content in the store until the job ends, and after it until others need its room:
    /// the next job of the model can use it.
    pub(super) fn pin_content(&mut self, id: ContentId) {
        if self.pinned.insert(id) {
            self.tensors.store().pin(id);
        }
    }

    /// Grants a provider these contents, for the work of its lease.
    pub(super) fn grant_contents(&mut self, job: JobId, to: AccountKey, contents: &[ContentId]) {
        let (scope, access) = (self.job_scope(job), self.tensors.access());
        if self.attempts.insert(job) {
            access.begin_lease(scope);
        }
        access.grant_contents(scope, &Readers::new([to].into()), contents);
    }
}

impl Drop for ServedContents {
    fn drop(&mut self) {
        let attempts = self.attempts.iter();
        attempts.for_each(|job| self.tensors.access().end_lease(self.job_scope(*job)));
        let store = self.tensors.store();
        self.pinned.iter().for_each(|id| store.release(id));
    }
}
