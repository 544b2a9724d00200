//! Lists who can fetch the contents of one lease from its provider. A provider's shell (the code
//! that carries out the effects of the core) builds these lists for each lease. The buyer can fetch
//! everything of the lease. The job's other providers can fetch only the weights and, if they read
//! it, an output.

use std::collections::{BTreeMap, BTreeSet};

use souk_market::AccountKey;

use super::action::ContentKind;
use crate::access::{Readers, Scope};
use crate::lease::Start;

/// The parties of one lease. The buyer can fetch everything of the lease. The job's other providers
/// can fetch weights, whose ids they know only from the buyer, and the outputs that they read.
#[derive(Clone, Debug)]
pub struct LeaseReaders {
    /// The job under which peers must ask for its contents.
    pub scope: Scope,
    buyer: Readers,
    providers: Readers,
    consumers: BTreeMap<String, Readers>,
}

impl LeaseReaders {
    /// Returns the readers for a lease that this account bought.
    #[must_use]
    pub fn new(buyer: AccountKey, start: &Start) -> LeaseReaders {
        let others = start.peers.iter().map(|contact| contact.account);
        let mut consumers = BTreeMap::<String, BTreeSet<AccountKey>>::new();
        for output in start.parts.iter().flat_map(|part| &part.outputs) {
            let readers = consumers.entry(output.name.clone()).or_default();
            readers.insert(buyer);
            readers.extend(output.consumers.iter().map(|(_, account)| *account));
        }
        let consumers = consumers.into_iter();
        let consumers = consumers.map(|(name, readers)| (name, Readers::new(readers)));
        LeaseReaders {
            scope: Scope {
                buyer,
                job: start.job,
            },
            buyer: Readers::new([buyer].into()),
            providers: Readers::new(others.chain([buyer]).collect()),
            consumers: consumers.collect(),
        }
    }

    /// Returns the readers of a content that came for the lease.
    #[must_use]
    pub fn of_content(&self, kind: ContentKind) -> &Readers {
        match kind {
            ContentKind::Weights => &self.providers,
            ContentKind::Graph | ContentKind::Tensor => &self.buyer,
        }
    }

    /// Returns the readers of an output of the lease.
    #[must_use]
    pub fn of_output(&self, name: &str) -> &Readers {
        self.consumers.get(name).unwrap_or(&self.buyer)
    }
}

#[cfg(test)]
mod tests {
    use souk_market::{JobId, LeaseId};
    use souk_memory::ContentId;

    use super::*;
    use crate::clock::Micros;
    use crate::lease::{Contact, Output, Part, Request};

    const BUYER: AccountKey = AccountKey([1; 32]);
    const NEXT: AccountKey = AccountKey([2; 32]);
    const OTHER: AccountKey = AccountKey([3; 32]);

    #[test]
    fn a_tensor_is_for_who_waits_for_it_and_what_is_the_buyers_for_the_buyer() {
        let contact = |account| Contact {
            account,
            addresses: Vec::new(),
        };
        let start = Start {
            sequences: 0,
            lease: LeaseId(1),
            job: JobId([7; 32]),
            parts: vec![Part {
                name: String::new(),
                graph: ContentId::for_content(b"graph"),
                weights: Vec::new(),
                inputs: Vec::new(),
                outputs: vec![Output {
                    name: "y".into(),
                    consumers: vec![(LeaseId(2), NEXT)],
                    is_wanted: false,
                }],
                flops: 0,
                expected: Micros(0),
            }],
            peers: vec![contact(NEXT), contact(OTHER)],
            priority: 0,
            first: Request::default(),
            last: true,
        };
        let readers = LeaseReaders::new(BUYER, &start);
        let who = |readers: &Readers| readers.iter().copied().collect::<Vec<_>>();
        assert_eq!(who(readers.of_output("y")), [BUYER, NEXT]);
        assert_eq!(who(readers.of_content(ContentKind::Graph)), [BUYER]);
        assert_eq!(who(readers.of_content(ContentKind::Tensor)), [BUYER]);
        let weights = readers.of_content(ContentKind::Weights);
        assert_eq!(who(weights), [BUYER, NEXT, OTHER]);
        assert_eq!(readers.scope.job, start.job);
    }
}
