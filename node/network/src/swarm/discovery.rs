//! Lets nodes that run permanently find each other: addresses by kad (a distributed table of
//! peers), providers by gossip.
//!
//! Both begin with peers that are already known: configured ones, or those of an earlier run. A
//! node broadcasts nothing on the local network by default and stores no records for others: kad
//! only locates peers.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use libp2p::multiaddr::Protocol;
use libp2p::swarm::StreamProtocol;
use libp2p::{Multiaddr, PeerId, gossipsub, identity, kad, mdns};
use souk_folder::clock::unix_ms;
use tokio::time::Instant;

use crate::acquaintances::{Acquaintances, Worth};
use crate::peer_score::Misconduct;
use crate::swarm::{DialFailure, SwarmTask};

/// The protocol by which a node asks peers for the addresses of others.
pub(crate) const ROUTING: StreamProtocol = StreamProtocol::new("/souk/kad/1");

/// How long the network can take to locate a peer; this must be less than the time to open a
/// stream.
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);

/// A node without any connection for this time logs a warning.
const ALONE: Duration = Duration::from_secs(10);

/// Peers that a node dials each second while it has no connection.
const DIALS_ALONE: usize = 4;

/// Connections that a permanent node wants: the peers to which it forwards profiles, and spares.
const PEERS_WANTED: usize = 8;

/// Failures that are remembered for the warning.
const FAILURES_MAX: usize = 16;

/// The least time between two writes of the known addresses.
const SAVE_PERIOD: Duration = Duration::from_secs(5);

/// The state of a node's search for others.
pub(crate) struct Discovery {
    pub(crate) acquaintances: Acquaintances,
    asked: HashMap<kad::QueryId, PeerId>,
    /// The moment since which there is no connection; none while there is one.
    alone_since: Option<Instant>,
    said: bool,
    failed: BTreeMap<PeerId, String>,
    next: usize,
    saved: Instant,
    viewed: Instant,
    /// Whether the node has learned an address since the last write.
    pub(crate) unsaved: bool,
}

impl Discovery {
    pub(crate) fn new(acquaintances: Acquaintances) -> Discovery {
        Discovery {
            acquaintances,
            asked: HashMap::new(),
            alone_since: None,
            said: false,
            failed: BTreeMap::new(),
            next: 0,
            saved: Instant::now(),
            viewed: Instant::now(),
            unsaved: false,
        }
    }

    /// Remembers why a peer could not be reached.
    pub(crate) fn on_failed(&mut self, peer: PeerId, why: &str) {
        if self.failed.len() < FAILURES_MAX || self.failed.contains_key(&peer) {
            self.failed.insert(peer, why.to_owned());
        }
    }
}

/// Returns the behaviour that locates peers.
pub(crate) fn new_routing(pair: &identity::Keypair) -> kad::Behaviour<kad::store::MemoryStore> {
    let local = pair.public().to_peer_id();
    let mut config = kad::Config::new(ROUTING);
    // The node keeps no records of others, because the market's book is the only directory.
    config.set_record_filtering(kad::StoreInserts::FilterBoth);
    config.set_query_timeout(QUERY_TIMEOUT);
    let store = kad::store::MemoryStore::new(local);
    let mut routing = kad::Behaviour::with_config(local, store, config);
    routing.set_mode(Some(kad::Mode::Server));
    routing
}

/// Returns the search on the local network, or none if the system does not list its interfaces.
pub(crate) fn new_mdns(local: PeerId) -> Option<mdns::tokio::Behaviour> {
    let started = mdns::tokio::Behaviour::new(mdns::Config::default(), local);
    match started {
        Ok(nearby) => Some(nearby),
        Err(error) => {
            tracing::warn!(%error, "peers on the local network cannot be discovered");
            None
        }
    }
}

impl SwarmTask {
    /// Learns peers that were found on the local network, as if they were configured.
    pub(crate) fn on_nearby(&mut self, found: Vec<(PeerId, Multiaddr)>) {
        let mut peers: BTreeMap<PeerId, Vec<Multiaddr>> = BTreeMap::new();
        for (peer, mut address) in found {
            if matches!(address.iter().last(), Some(Protocol::P2p(_))) {
                address.pop();
            }
            peers.entry(peer).or_default().push(address);
        }
        for (peer, addresses) in peers {
            tracing::info!(%peer, ?addresses, "found a peer on the local network");
            self.add_addresses(peer, addresses);
            if !self.swarm.is_connected(&peer) {
                self.dial_peer(peer);
            }
        }
    }

    /// Publishes a profile; it is no error if no peer receives it.
    pub(crate) fn publish_profile(&mut self, bytes: Vec<u8>) {
        let here = self.swarm.local_peer_id().to_owned();
        // A node checks its own profile by the same rule.
        self.discovery
            .acquaintances
            .judge_message(here, &bytes, unix_ms());
        if let Some(gossip) = self.swarm.behaviour_mut().gossip.as_mut()
            && let Err(error) = crate::gossip::publish_message(gossip, bytes)
        {
            tracing::debug!(%error, "the profile could not be published");
        }
    }

    pub(crate) fn on_gossip(&mut self, event: gossipsub::Event) {
        let gossipsub::Event::Message {
            propagation_source,
            message_id,
            message,
        } = event
        else {
            return;
        };
        let now = unix_ms();
        let worth =
            self.discovery
                .acquaintances
                .judge_message(propagation_source, &message.data, now);
        let acceptance = match worth {
            Worth::New(profile) => {
                self.add_contact(&profile.to_contact());
                gossipsub::MessageAcceptance::Accept
            }
            Worth::Idle => gossipsub::MessageAcceptance::Ignore,
            Worth::Flood => {
                self.on_fault(propagation_source, Misconduct::Flood);
                gossipsub::MessageAcceptance::Ignore
            }
            Worth::Wrong => {
                self.on_fault(propagation_source, Misconduct::Forged);
                gossipsub::MessageAcceptance::Reject
            }
        };
        if let Some(gossip) = self.swarm.behaviour_mut().gossip.as_mut() {
            // If the message has left the cache meanwhile, other peers will forward it.
            let _ = gossip.report_message_validation_result(
                &message_id,
                &propagation_source,
                acceptance,
            );
        }
    }

    /// Asks the network to locate a peer. Returns whether there is any peer to ask.
    pub(crate) fn ask_for(&mut self, peer: PeerId) -> bool {
        let someone = self.swarm.connected_peers().next().is_some();
        match self
            .swarm
            .behaviour_mut()
            .routing
            .as_mut()
            .filter(|_| someone)
        {
            None => false,
            Some(routing) => {
                let query = routing.get_closest_peers(peer);
                self.discovery.asked.insert(query, peer);
                true
            }
        }
    }

    pub(crate) fn on_routing(&mut self, event: kad::Event) {
        let kad::Event::OutboundQueryProgressed {
            id, result, step, ..
        } = event
        else {
            return;
        };
        let Some(wanted) = self.discovery.asked.get(&id).copied() else {
            return;
        };
        let found = match result {
            kad::QueryResult::GetClosestPeers(Ok(found)) => found.peers,
            _ => Vec::new(),
        };
        let found = found.into_iter().find(|info| info.peer_id == wanted);
        if let Some(info) = found.filter(|info| !info.addrs.is_empty()) {
            self.discovery.asked.remove(&id);
            self.add_addresses(wanted, info.addrs);
            self.dial_peer(wanted);
        } else if step.last {
            self.discovery.asked.remove(&id);
            self.answer_dials(wanted, &Err(DialFailure::NoAddress));
        }
    }

    /// Searches for peers, once a second, if there are none, and logs a warning if that does not
    /// help.
    pub(crate) fn on_tick(&mut self) {
        self.keep_order();
        self.look_for_routes();
        if self.swarm.behaviour().gossip.is_enabled() {
            self.look_for_peers();
            if self.discovery.viewed.elapsed() >= SAVE_PERIOD {
                self.discovery.viewed = Instant::now();
                self.save_view();
            }
            if self.discovery.unsaved && self.discovery.saved.elapsed() >= SAVE_PERIOD {
                (self.discovery.saved, self.discovery.unsaved) = (Instant::now(), false);
                self.discovery.acquaintances.save_addresses(&self.known);
            }
        }
    }

    fn look_for_peers(&mut self) {
        let connected = self.swarm.connected_peers().count();
        if connected > 0 {
            self.discovery.alone_since = None;
            self.discovery.said = false;
            self.discovery.failed.clear();
            if connected < PEERS_WANTED {
                self.dial_another();
            }
            return;
        }
        let since = *self.discovery.alone_since.get_or_insert_with(Instant::now);
        let known: Vec<PeerId> = self.known.keys().copied().collect();
        for _ in 0..DIALS_ALONE.min(known.len()) {
            self.discovery.next = (self.discovery.next + 1) % known.len();
            self.dial_peer(known[self.discovery.next]);
        }
        // The first node of a market knows no other, which is no fault.
        if since.elapsed() >= ALONE && !self.discovery.said && !known.is_empty() {
            self.discovery.said = true;
            tracing::warn!("{}", self.isolation_warning());
        }
    }

    /// Dials one more known peer, because a node connected only to validators depends on them for
    /// all its gossip.
    fn dial_another(&mut self) {
        let known: Vec<PeerId> = self.known.keys().copied().collect();
        if known.is_empty() {
            return;
        }
        self.discovery.next = (self.discovery.next + 1) % known.len();
        let peer = known[self.discovery.next];
        if !self.swarm.is_connected(&peer) && self.scores.blocked_peer(&peer).is_none() {
            self.dial_peer(peer);
        }
    }

    /// Returns the warning of a node without connections.
    fn isolation_warning(&self) -> String {
        let listens: Vec<String> = self.swarm.listeners().map(ToString::to_string).collect();
        let failed = self.discovery.failed.iter();
        let tried: Vec<String> = failed
            .map(|(peer, why)| format!("{peer} ({why})"))
            .collect();
        let or_none = |list: Vec<String>| match list.is_empty() {
            true => "nothing".to_owned(),
            false => list.join(", "),
        };
        format!(
            "no peer for {} s: this node listens on {}, knows {} peer(s) and tried {}",
            ALONE.as_secs(),
            or_none(listens),
            self.known.len(),
            or_none(tried),
        )
    }
}
