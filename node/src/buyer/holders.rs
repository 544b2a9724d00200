//! Decides in which order a buyer asks the providers that hold a content.
//!
//! An id names the bytes, so the buyer can ask any holder: it begins with the one that has the
//! fastest measured link, and asks the others if that one fails.

use std::time::Duration;

use libp2p::PeerId;
use souk_folder::key;
use souk_market::AccountKey;
use souk_network::content::links::Links;

/// The length by which links are compared: only the maker of an output can know its real length.
const USUAL_BYTES: f64 = (1 << 20) as f64;

/// Returns the holders by their expected time; those without a measurement come last, in the given
/// order.
pub(super) fn in_order(
    holders: &[AccountKey],
    here: AccountKey,
    (links, now_ms): (&Links, u64),
) -> Vec<PeerId> {
    let time = |holder: &AccountKey| {
        let seen = links.link_between(*holder, here)?;
        let bytes_per_second = seen.bytes_per_second(now_ms)?;
        let latency = seen.latency_seconds(now_ms).unwrap_or(0.0);
        Duration::try_from_secs_f64(latency + USUAL_BYTES / bytes_per_second).ok()
    };
    let mut timed: Vec<(Duration, PeerId)> = holders
        .iter()
        .filter_map(|holder| {
            let peer = key::peer_of(&holder.0).ok()?;
            Some((time(holder).unwrap_or(Duration::MAX), peer))
        })
        .collect();
    timed.sort_by_key(|(time, _)| *time);
    timed.into_iter().map(|(_, peer)| peer).collect()
}

#[cfg(test)]
mod tests {
    use souk_folder::key::NodeKey;
    use souk_network::content::links::{Carrier, Sample};

    use super::*;

    const HERE: AccountKey = AccountKey([9; 32]);
    const NOW_MS: u64 = 1_000_000;

    fn see(links: &Links, from: AccountKey, micros: u64) {
        let sample = Sample {
            at_ms: NOW_MS,
            bytes: 1 << 20,
            micros,
            latency_micros: Some(100),
            way: Carrier::Stream,
        };
        links.record_sample(from, HERE, sample);
    }

    #[test]
    fn what_several_have_is_asked_for_where_it_comes_from_soonest() {
        let links = Links::load_or_default(None);
        let [slow, quick, unseen, other] =
            [(); 4].map(|()| AccountKey(NodeKey::generate().public_key()));
        see(&links, slow, 100_000);
        see(&links, quick, 1_000);
        let order = |holders: &[AccountKey]| in_order(holders, HERE, (&links, NOW_MS));
        let peers = |holders: &[AccountKey]| -> Vec<PeerId> {
            holders
                .iter()
                .map(|it| key::peer_of(&it.0).unwrap())
                .collect()
        };
        assert_eq!(order(&[slow, quick]), peers(&[quick, slow]));
        assert_eq!(
            order(&[unseen, slow, quick, other]),
            peers(&[quick, slow, unseen, other])
        );
    }
}
