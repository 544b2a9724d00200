//! The contents that the providers of a job can fetch from its buyer.

use std::collections::BTreeSet;

use souk_market::{AccountKey, JobId};
use souk_memory::ContentId;
use souk_roles::access::{Readers, Scope};

use crate::content::transfers::Tensors;

/// The served contents, by the ids under which leases were bought. Dropping it ends the access.
pub(super) struct ServedContents {
    tensors: Tensors,
    buyer: AccountKey,
    begun: BTreeSet<JobId>,
}

impl ServedContents {
    pub(super) fn new(tensors: Tensors, buyer: AccountKey) -> ServedContents {
        ServedContents {
            tensors,
            buyer,
            begun: BTreeSet::new(),
        }
    }

    /// Returns the scope of contents for leases that were bought under this id.
    pub(super) fn job_scope(&self, job: JobId) -> Scope {
        let buyer = self.buyer;
        Scope { buyer, job }
    }

    /// Grants a provider these contents, for the work of its lease.
    pub(super) fn grant_contents(&mut self, job: JobId, to: AccountKey, contents: &[ContentId]) {
        let (scope, access) = (self.job_scope(job), self.tensors.access());
        if self.begun.insert(job) {
            access.begin_lease(scope);
        }
        access.grant_contents(scope, &Readers::new([to].into()), contents);
    }
}

impl Drop for ServedContents {
    fn drop(&mut self) {
        let begun = self.begun.iter();
        begun.for_each(|job| self.tensors.access().end_lease(self.job_scope(*job)));
    }
}
