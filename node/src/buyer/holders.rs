//! Which providers have what was made, and which of them the buyer asks for it.
//!
//! A provider has what it made. So has who made the same, and who took it to go on with. An id
//! names the bytes, so they are the same from each: they are asked for where they come from
//! soonest, by what was seen of the ways, and of the others where that one has gone.

use std::collections::BTreeMap;
use std::time::Duration;

use libp2p::PeerId;
use souk_market::AccountKey;
use souk_memory::ContentId;
use souk_memory::holdings::Holdings;
use souk_memory::paths::{NetworkKind, Path, PathKind};
use souk_memory::place::{PeerIndex, Place};

use super::Buyer;
use super::session::Session;
use crate::clock::unix_ms;
use crate::content::links::Links;
use crate::protocols::lease::Source;

/// What is made counts as this long where ways are compared: how long it is, only its maker knows.
const USUAL_BYTES: u64 = 1 << 20;

/// What providers have that a buyer wants.
pub(super) struct Holders<'a> {
    links: &'a Links,
    here: AccountKey,
    now_ms: u64,
    holdings: Holdings,
    /// By the number of their place.
    peers: Vec<PeerId>,
}

impl<'a> Holders<'a> {
    /// Nobody has anything yet, over the ways that this buyer has seen.
    pub(super) fn new(buyer: &'a Buyer) -> Holders<'a> {
        Holders::over(buyer.tensors.links(), buyer.account(), unix_ms())
    }

    fn over(links: &'a Links, here: AccountKey, now_ms: u64) -> Holders<'a> {
        Holders {
            links,
            here,
            now_ms,
            holdings: Holdings::default(),
            peers: Vec::new(),
        }
    }

    /// What the providers of sessions made, and took of each other.
    pub(super) fn of(buyer: &'a Buyer, sessions: &BTreeMap<usize, Session>) -> Holders<'a> {
        let mut holders = Holders::new(buyer);
        for session in sessions.values() {
            let party = (session.provider, session.peer);
            for (_, made) in &session.finished.outputs {
                holders.hold(party, *made);
            }
            for input in session.start.parts.iter().flat_map(|part| &part.inputs) {
                let Source::Lease { lease, .. } = &input.source else {
                    continue;
                };
                let makers = sessions.values();
                let makers = makers.filter(|maker| maker.start.lease == *lease);
                let made = makers.flat_map(|maker| &maker.finished.outputs);
                for (_, taken) in made.filter(|(name, _)| *name == input.name) {
                    holders.hold(party, *taken);
                }
            }
        }
        holders
    }

    /// A provider has some content.
    pub(super) fn hold(&mut self, party: (AccountKey, PeerId), content: ContentId) {
        let place = self.place(party);
        let held = self.holdings.adopt(content, USUAL_BYTES, place);
        held.expect("what a peer has room for is not limited here");
    }

    /// Whom to ask for some content, in this order; its maker is one of them.
    pub(super) fn whom(&self, content: ContentId, maker: PeerId) -> Vec<PeerId> {
        let handle = self.holdings.find(&content);
        let places = handle.and_then(|handle| self.holdings.places(handle).ok());
        let mut whom: Vec<(Duration, PeerId)> = Vec::new();
        for place in places.into_iter().flatten() {
            let Place::Peer(PeerIndex(number)) = place else {
                continue;
            };
            let paths = self.holdings.paths();
            let route = paths.route(place, Place::Host, USUAL_BYTES);
            // Of whom nothing was seen comes after whom something was seen of.
            let time = route.map_or(Duration::MAX, |route| route.time);
            whom.push((time, self.peers[number as usize]));
        }
        if whom.iter().all(|(_, peer)| *peer != maker) {
            whom.push((Duration::MAX, maker));
        }
        whom.sort_by_key(|(time, peer)| (*time, *peer != maker));
        whom.into_iter().map(|(_, peer)| peer).collect()
    }

    /// The place of a provider, with what was seen of the way from there.
    fn place(&mut self, (provider, peer): (AccountKey, PeerId)) -> Place {
        let place = |number| Place::Peer(PeerIndex(u32::try_from(number).expect("peers are few")));
        if let Some(number) = self.peers.iter().position(|known| *known == peer) {
            return place(number);
        }
        let place = place(self.peers.len());
        self.peers.push(peer);
        let seen = self.links.between(provider, self.here);
        let rate = seen
            .as_ref()
            .and_then(|seen| seen.bytes_per_second(self.now_ms));
        if let (Some(seen), Some(bytes_per_second)) = (seen, rate) {
            let latency = seen.latency_seconds(self.now_ms).unwrap_or(0.0);
            let path = Path {
                kind: PathKind::Network(NetworkKind::Tcp),
                latency: Duration::try_from_secs_f64(latency).unwrap_or(Duration::MAX),
                bytes_per_second,
            };
            self.holdings.paths_mut().declare(place, Place::Host, path);
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use souk_memory::Store;

    use super::*;
    use crate::content::links::Carrier;
    use crate::content::links::Sample;
    use crate::content::transfers::{self, Tensors};
    use crate::folder::contact::Contact;
    use crate::folder::key::NodeKey;
    use crate::network::{self, Network};

    const HERE: AccountKey = AccountKey([9; 32]);
    const NOW_MS: u64 = 1_000_000;

    fn party(number: u8) -> (AccountKey, PeerId) {
        (AccountKey([number; 32]), PeerId::random())
    }

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
        let [slow, quick, unseen] = [1, 2, 3].map(party);
        see(&links, slow.0, 100_000);
        see(&links, quick.0, 1_000);
        let (both, all) = (ContentId::of(b"both"), ContentId::of(b"all"));
        let mut holders = Holders::over(&links, HERE, NOW_MS);
        for party in [slow, quick] {
            holders.hold(party, both);
        }
        for party in [unseen, slow, quick, slow] {
            holders.hold(party, all);
        }
        assert_eq!(holders.whom(both, slow.1), [quick.1, slow.1]);
        assert_eq!(holders.whom(all, unseen.1), [quick.1, slow.1, unseen.1]);
        let unknown = ContentId::of(b"nobody told of it");
        assert_eq!(holders.whom(unknown, unseen.1), [unseen.1]);
    }

    #[test]
    fn of_those_of_whom_nothing_was_seen_the_maker_is_asked_first() {
        let links = Links::open(None);
        let (first, second) = (party(1), party(2));
        let content = ContentId::of(b"same");
        let mut holders = Holders::over(&links, HERE, NOW_MS);
        holders.hold(first, content);
        holders.hold(second, content);
        assert_eq!(holders.whom(content, second.1), [second.1, first.1]);
        assert_eq!(holders.whom(content, first.1), [first.1, second.1]);
    }

    /// A peer with some content in its store.
    async fn peer(content: &[u8]) -> (Tensors, Network, Contact) {
        let key = NodeKey::generate();
        let config = network::Config {
            listen: Some("/ip4/127.0.0.1/tcp/0".parse().unwrap()),
            ..network::Config::default()
        };
        let network = Network::start(&key, config).await.unwrap();
        let store = Store::in_memory(1 << 20);
        store.put(Bytes::copy_from_slice(content)).unwrap();
        let config = transfers::Config {
            bytes_max: 1 << 20,
            ..transfers::Config::default()
        };
        let tensors = Tensors::start(network.clone(), &key, Arc::new(store), config);
        let (account, addresses) = (key.public(), network.addresses().await);
        let contact = Contact { account, addresses };
        (tensors.await.unwrap(), network, contact)
    }

    #[tokio::test]
    async fn what_its_maker_lost_comes_from_who_took_it() {
        let (_maker, _its_network, made_at) = peer(b"another thing").await;
        let (_taker, _other_network, taken_at) = peer(b"answer").await;
        let (buyer, network, _) = peer(b"question").await;
        let content = ContentId::of(b"answer");
        let mut holders = Holders::over(buyer.links(), HERE, NOW_MS);
        let mut peers = Vec::new();
        for contact in [&made_at, &taken_at] {
            network.learn(contact).await.unwrap();
            let peer = contact.peer().unwrap();
            holders.hold((AccountKey(contact.account), peer), content);
            peers.push(peer);
        }
        let whom = holders.whom(content, peers[0]);
        assert_eq!(whom, peers, "the maker first");
        let fetched = buyer.fetch_from(&whom, content).await.unwrap();
        assert_eq!(fetched.bytes, &b"answer"[..]);
        assert_eq!(fetched.from.map(|(peer, _)| peer), Some(peers[1]));
    }
}
