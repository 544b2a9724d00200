//! Estimates the latency and bandwidth of the links that a plan uses, between the buyer and
//! providers and between two providers. A quote takes measured figures where there are some, else
//! figures that providers state.

use std::collections::BTreeMap;

use souk_market::{AccountKey, Listing};
use souk_network::content::links::{self, LinkRecord};
use souk_scheduler::planning::{Link, Links};

/// The factor from which a measured figure counts as different from the usual: from one job to the
/// next, the same link can measure half or twice as fast.
const NOISE: f64 = 2.0;

/// The least stated figure, which must be above 0, because the code divides by it.
const LEAST: f64 = 1e-6;

/// The measured figures of one link.
#[derive(Clone, Copy, Debug, Default)]
struct SeenLink {
    latency_seconds: Option<f64>,
    bytes_per_second: Option<f64>,
}

/// The measured links between a buyer and providers at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkEstimates {
    buyer: AccountKey,
    now_ms: u64,
    estimates: BTreeMap<(AccountKey, AccountKey), links::Link>,
}

impl LinkEstimates {
    pub(super) fn new(buyer: AccountKey, seen: Vec<LinkRecord>, now_ms: u64) -> LinkEstimates {
        let ends = |known: LinkRecord| ((known.from, known.to), known.samples);
        LinkEstimates {
            buyer,
            now_ms,
            estimates: seen.into_iter().map(ends).collect(),
        }
    }

    /// Returns the links of each offer with the buyer, and between each two offers.
    pub(super) fn estimate_links(&self, listings: &[Listing]) -> Links {
        let stated: Vec<Link> = listings.iter().map(stated_link).collect();
        let own = listings.iter().map(|listing| {
            // A plan has one link for both directions, which must be the slower one: it delays a
            // job.
            let there = self.seen_link(self.buyer, listing.provider);
            there.combine_worse(self.seen_link(listing.provider, self.buyer))
        });
        let own: Vec<SeenLink> = own.collect();
        let pairs =
            || (0..listings.len()).flat_map(|from| (0..listings.len()).map(move |to| (from, to)));
        let stated_between: Vec<Link> = pairs()
            .map(|(from, to)| worse_link(stated[from], stated[to]))
            .collect();
        let seen_between: Vec<SeenLink> = pairs()
            .map(|(from, to)| self.seen_link(listings[from].provider, listings[to].provider))
            .collect();
        let between = combine_links(&stated_between, &seen_between);
        Links {
            buyer: combine_links(&stated, &own),
            between: between
                .chunks(listings.len().max(1))
                .map(<[Link]>::to_vec)
                .collect(),
        }
    }

    fn seen_link(&self, from: AccountKey, to: AccountKey) -> SeenLink {
        let Some(seen) = self.estimates.get(&(from, to)) else {
            return SeenLink::default();
        };
        SeenLink {
            latency_seconds: seen.latency_seconds(self.now_ms),
            bytes_per_second: seen.bytes_per_second(self.now_ms),
        }
    }
}

impl SeenLink {
    fn combine_worse(self, other: SeenLink) -> SeenLink {
        let either = |one: Option<f64>, other: Option<f64>, worse: fn(f64, f64) -> f64| match other
        {
            Some(other) => Some(one.map_or(other, |one| worse(one, other))),
            None => one,
        };
        SeenLink {
            latency_seconds: either(self.latency_seconds, other.latency_seconds, f64::max),
            bytes_per_second: either(self.bytes_per_second, other.bytes_per_second, f64::min),
        }
    }
}

/// Combines the stated and the measured figures of links.
fn combine_links(stated: &[Link], seen: &[SeenLink]) -> Vec<Link> {
    let figures = |stated_of: fn(&Link) -> f64, seen_of: fn(&SeenLink) -> Option<f64>| {
        let stated: Vec<f64> = stated.iter().map(stated_of).collect();
        let seen: Vec<Option<f64>> = seen.iter().map(seen_of).collect();
        settled_figures(&stated, &seen)
    };
    let latencies = figures(|link| link.latency_seconds, |seen| seen.latency_seconds);
    let rates = figures(|link| link.bytes_per_second, |seen| seen.bytes_per_second);
    let links = latencies.into_iter().zip(rates);
    links
        .map(|(latency_seconds, rate)| Link {
            latency_seconds,
            bytes_per_second: rate.max(1.0),
        })
        .collect()
}

/// Combines stated and measured figures. A provider that was never measured is expected to deviate
/// from its statement as the others do; otherwise each job would leave a known provider for an
/// unknown one. A small deviation from the usual is noise.
fn settled_figures(stated: &[f64], seen: &[Option<f64>]) -> Vec<f64> {
    let both = || stated.iter().zip(seen);
    let ratio = |(stated, seen): (&f64, &Option<f64>)| seen.map(|seen| seen / stated.max(LEAST));
    let mut ratios: Vec<f64> = both().filter_map(ratio).collect();
    ratios.sort_by(f64::total_cmp);
    let Some(usual) = ratios.get(ratios.len() / 2).copied() else {
        return stated.to_vec();
    };
    let settle = |(stated, seen): (&f64, &Option<f64>)| {
        let expected = stated.max(LEAST) * usual;
        let telling = |seen: &f64| *seen > expected * NOISE || seen * NOISE < expected;
        seen.filter(telling).unwrap_or(expected)
    };
    both().map(settle).collect()
}

fn stated_link(listing: &Listing) -> Link {
    Link {
        latency_seconds: listing.resources.link_latency_us as f64 / 1e6,
        bytes_per_second: (listing.resources.link_bandwidth as f64).max(1.0),
    }
}

fn worse_link(one: Link, other: Link) -> Link {
    Link {
        latency_seconds: one.latency_seconds.max(other.latency_seconds),
        bytes_per_second: one.bytes_per_second.min(other.bytes_per_second),
    }
}

#[cfg(test)]
mod tests {
    use souk_network::content::links::Carrier;
    use souk_network::content::links::Sample;

    use super::*;

    #[test]
    fn what_was_seen_of_today_is_known_of_a_way() {
        let (buyer, other) = (AccountKey([1; 32]), AccountKey([2; 32]));
        let links = links::Links::load_or_default(None);
        let sample = Sample {
            at_ms: 5,
            bytes: 1 << 20,
            micros: 1 << 20,
            latency_micros: None,
            way: Carrier::Stream,
        };
        links.record_sample(buyer, other, sample);
        let seen = LinkEstimates::new(buyer, links.list_links(), 6).seen_link(buyer, other);
        assert_eq!(seen.latency_seconds, None);
        assert!((seen.bytes_per_second.unwrap() - 1e6).abs() < 1.0);
        let later = LinkEstimates::new(buyer, links.list_links(), u64::MAX).seen_link(buyer, other);
        assert_eq!(later.bytes_per_second, None);
    }

    #[test]
    fn who_was_not_tried_is_expected_to_do_as_the_others_did() {
        let stated = [8.0, 8.0, 4.0, 8.0];
        assert_eq!(settled_figures(&stated, &[None; 4]), stated);
        // One was seen at a quarter of its word: so are all, and none looks better for it.
        let one = settled_figures(&stated, &[Some(2.0), None, None, None]);
        assert_eq!(one, [2.0, 2.0, 1.0, 2.0]);
        // Of three, one is far from what the others do: that one is told apart.
        let three = settled_figures(&stated, &[Some(8.0), Some(7.0), Some(0.5), None]);
        assert_eq!(three, [7.0, 7.0, 0.5, 7.0]);
    }
}
