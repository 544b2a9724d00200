//! Which of the providers that have a content the buyer asks for it.
//!
//! An id names the bytes, so they are the same from each: they are asked for where they come from
//! soonest, by what was seen of the ways, and of the others where that one has gone.

use std::time::Duration;

use libp2p::PeerId;
use souk_market::AccountKey;

use crate::content::links::Links;
use crate::folder::key;

/// What is made counts as this long where ways are compared: how long it is, only its maker knows.
const USUAL_BYTES: f64 = (1 << 20) as f64;

/// Whom to ask, in this order; of those of whom nothing was seen, in the order given.
pub(super) fn in_order(
    holders: &[AccountKey],
    here: AccountKey,
    (links, now_ms): (&Links, u64),
) -> Vec<PeerId> {
    let time = |holder: &AccountKey| {
        let seen = links.between(*holder, here)?;
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
    use super::*;
    use crate::content::links::{Carrier, Sample};
    use crate::folder::key::NodeKey;

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
        links.observe(from, HERE, sample);
    }

    #[test]
    fn what_several_have_is_asked_for_where_it_comes_from_soonest() {
        let links = Links::open(None);
        let [slow, quick, unseen, other] =
            [(); 4].map(|()| AccountKey(NodeKey::generate().public()));
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
