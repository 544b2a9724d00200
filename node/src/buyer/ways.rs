//! The links that a plan counts with: what was seen of each way, and of the others what is stated.

use std::collections::BTreeMap;

use souk_market::{AccountKey, Listing};
use souk_scheduler::plan::{Link, Links};

use crate::links::{self, Known};

/// What is known of the ways between a buyer and providers, as it is at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Ways {
    buyer: AccountKey,
    now_ms: u64,
    seen: BTreeMap<(AccountKey, AccountKey), links::Link>,
}

impl Ways {
    pub(super) fn new(buyer: AccountKey, seen: Vec<Known>, now_ms: u64) -> Ways {
        let ends = |known: Known| ((known.from, known.to), known.samples);
        Ways {
            buyer,
            now_ms,
            seen: seen.into_iter().map(ends).collect(),
        }
    }

    /// The link of each offer to and from the buyer, and between each two.
    pub(super) fn links(&self, listings: &[Listing]) -> Links {
        let stated: Vec<Link> = listings.iter().map(stated).collect();
        let to_buyer = |(listing, stated): (&Listing, &Link)| {
            // A plan has one link for both directions: the slower one holds up a job.
            let there = self.link(self.buyer, listing.provider, *stated);
            worse(there, self.link(listing.provider, self.buyer, *stated))
        };
        let between = |(from, own): (&Listing, &Link)| {
            let to = |(to, other): (&Listing, &Link)| {
                self.link(from.provider, to.provider, worse(*own, *other))
            };
            listings.iter().zip(&stated).map(to).collect()
        };
        Links {
            buyer: listings.iter().zip(&stated).map(to_buyer).collect(),
            between: listings.iter().zip(&stated).map(between).collect(),
        }
    }

    /// What was seen of a way, figure by figure, else what is stated.
    fn link(&self, from: AccountKey, to: AccountKey, stated: Link) -> Link {
        let Some(seen) = self.seen.get(&(from, to)) else {
            return stated;
        };
        let latency = seen.latency_seconds(self.now_ms);
        let rate = seen.bytes_per_second(self.now_ms);
        Link {
            latency_seconds: latency.unwrap_or(stated.latency_seconds),
            bytes_per_second: rate.unwrap_or(stated.bytes_per_second).max(1.0),
        }
    }
}

fn stated(listing: &Listing) -> Link {
    Link {
        latency_seconds: listing.resources.link_latency_us as f64 / 1e6,
        bytes_per_second: (listing.resources.link_bandwidth as f64).max(1.0),
    }
}

fn worse(one: Link, other: Link) -> Link {
    Link {
        latency_seconds: one.latency_seconds.max(other.latency_seconds),
        bytes_per_second: one.bytes_per_second.min(other.bytes_per_second),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::Sample;
    use crate::tensors::Way;

    #[test]
    fn what_was_seen_counts_and_what_was_not_is_taken_as_stated() {
        let (buyer, other) = (AccountKey([1; 32]), AccountKey([2; 32]));
        let links = links::Links::open(None);
        let sample = Sample {
            at_ms: 5,
            bytes: 1 << 20,
            micros: 1 << 20,
            latency_micros: None,
            way: Way::Stream,
        };
        links.observe(buyer, other, sample);
        let ways = Ways::new(buyer, links.all(), 6);
        let stated = Link {
            latency_seconds: 0.25,
            bytes_per_second: 7e9,
        };
        let seen = ways.link(buyer, other, stated);
        assert_eq!(seen.latency_seconds, 0.25);
        assert!((seen.bytes_per_second - 1e6).abs() < 1.0, "{seen:?}");
        assert_eq!(ways.link(other, buyer, stated), stated);
        let later = Ways::new(buyer, links.all(), u64::MAX);
        assert_eq!(later.link(buyer, other, stated), stated);
    }
}
