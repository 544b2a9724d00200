//! Measures the traffic that gossip causes for a node of a large market: runs many nodes in one
//! process and counts their bytes.
//!
//! The nodes run the gossip of a real node with its parameters, over encrypted and multiplexed
//! connections in this process's memory. Each node is a provider that publishes its profile once
//! per period, at a random time; each node checks a message before it forwards it. The count
//! excludes the headers of TCP and IP.

mod counting_transport;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use libp2p::core::transport::{MemoryTransport, Transport};
use libp2p::core::upgrade::Version;
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, Swarm, gossipsub, noise, swarm, yamux};
use serde::Serialize;
use souk_folder::clock::unix_ms;
use souk_folder::key::NodeKey;
use souk_market::{AccountKey, Resources};
use souk_network::gossip;
use souk_network::profile::{LIFE_MS, Profile, SignedProfile};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use counting_transport::{ByteCounter, CountingTransport};
use souk_sim::random::Random;

/// Peers that each node dials, like a long-lived node.
const DIALS: usize = 8;

/// Nodes that dial at the same time: if all did, the handshakes would exceed the connection
/// timeout.
const DIALLING: usize = 50;

/// How long profiles published in the counted time can still arrive: as long as a message can wait
/// for a busy connection.
const SETTLING: Duration = Duration::from_secs(10);

/// The first address; the others follow.
const FIRST_ADDRESS: u64 = 1_000_000;

/// Configuration of a gossip measurement.
#[derive(Clone, Debug)]
pub struct GossipConfig {
    /// Determines which nodes dial which, and when each publishes.
    pub seed: u64,
    /// Number of nodes, each a provider; it must exceed the peers that each dials.
    pub nodes: usize,
    /// How often each node publishes its profile.
    pub period: Duration,
    /// How long the mesh can form before the count.
    pub warm_up: Duration,
    /// How long the count lasts.
    pub duration: Duration,
}

/// Results of a gossip measurement.
#[derive(Clone, Debug, Serialize)]
pub struct GossipReport {
    /// The seed of the run. A run with the same configuration will draw the same again.
    pub seed: u64,
    /// Number of nodes.
    pub nodes: usize,
    /// Seconds between two profiles of a node.
    pub period_seconds: u64,
    /// Seconds counted.
    pub seconds: f64,
    /// Bytes of an encoded profile.
    pub profile_bytes: usize,
    /// Profiles published in the counted time.
    #[serde(rename = "said")]
    pub sent_count: u64,
    /// Average share of the other nodes that received each of them, from 0 to 1.
    #[serde(rename = "heard")]
    pub received_share: f64,
    /// Bytes per second that a node received, on average.
    pub received: f64,
    /// Bytes per second that a node sent, on average.
    pub sent: f64,
    /// Sum of received and sent bytes per second: the average.
    pub both: f64,
    /// The 99th percentile of the sum.
    pub both_p99: f64,
    /// The maximum of the sum.
    pub both_max: f64,
}

/// The network has too few nodes to gossip.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0} node(s) have too few peers: give at least {least}", least = DIALS + 1)]
pub struct TooFewNodes(pub usize);

/// Counts of all nodes.
#[derive(Debug, Default)]
struct Totals {
    sent_count: AtomicU64,
    received_count: AtomicU64,
    /// Begin of the count and end of the counted publishing, in milliseconds since 1970.
    begin_ms: AtomicU64,
    end_ms: AtomicU64,
}

/// One node.
struct GossipNode {
    swarm: Swarm<gossipsub::Behaviour>,
    key: NodeKey,
    totals: Arc<Totals>,
    phase: watch::Receiver<Phase>,
    /// Time until the first profile, and the period.
    first: Duration,
    period: Duration,
}

/// The phase of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Silent,
    WarmUp,
    Counting,
    /// Profiles from the counted time are still on their way.
    Settling,
    Over,
}

/// Runs the network and measures its traffic.
///
/// # Errors
/// If there are too few nodes.
pub async fn run(config: &GossipConfig) -> Result<GossipReport, TooFewNodes> {
    if config.nodes <= DIALS {
        return Err(TooFewNodes(config.nodes));
    }
    let mut random = Random::new(config.seed, "gossip");
    let totals = Arc::new(Totals::default());
    let (phase, phases) = watch::channel(Phase::Silent);
    let counters: Vec<Arc<ByteCounter>> = (0..config.nodes).map(|_| Arc::default()).collect();
    let mut running = JoinSet::new();
    for group in (0..config.nodes).collect::<Vec<_>>().chunks(DIALLING) {
        for index in group {
            let period_ms = u64::try_from(config.period.as_millis()).unwrap_or(u64::MAX);
            let first = Duration::from_millis(random.draw_below(period_ms.max(1)));
            let key = NodeKey::generate();
            let mut node = GossipNode {
                swarm: build_swarm(&key, counters[*index].clone()),
                key,
                totals: totals.clone(),
                phase: phases.clone(),
                first,
                period: config.period,
            };
            node.listen_and_dial(*index, &mut random);
            running.spawn(node.run());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // If the network has ended early, the results show it.
    let _ = phase.send(Phase::WarmUp);
    tokio::time::sleep(config.warm_up).await;
    let before: Vec<(u64, u64)> = counters.iter().map(|counter| counter.read()).collect();
    totals.end_ms.store(u64::MAX, Ordering::Relaxed);
    totals.begin_ms.store(unix_ms(), Ordering::Relaxed);
    let _ = phase.send(Phase::Counting);
    let begin = Instant::now();
    tokio::time::sleep(config.duration).await;
    let seconds = begin.elapsed().as_secs_f64();
    let after: Vec<(u64, u64)> = counters.iter().map(|counter| counter.read()).collect();
    totals.end_ms.store(unix_ms(), Ordering::Relaxed);
    let _ = phase.send(Phase::Settling);
    tokio::time::sleep(SETTLING).await;
    let _ = phase.send(Phase::Over);
    running.join_all().await;
    Ok(build_report(config, &totals, seconds, &before, &after))
}

fn build_report(
    config: &GossipConfig,
    totals: &Totals,
    seconds: f64,
    before: &[(u64, u64)],
    after: &[(u64, u64)],
) -> GossipReport {
    let rate = |bytes: u64| bytes as f64 / seconds;
    let counts = before.iter().zip(after);
    let rates: Vec<(f64, f64)> = counts
        .map(|(before, after)| (rate(after.0 - before.0), rate(after.1 - before.1)))
        .collect();
    let mut both: Vec<f64> = rates.iter().map(|(read, sent)| read + sent).collect();
    both.sort_by(f64::total_cmp);
    let nodes = rates.len() as f64;
    let sent_count = totals.sent_count.load(Ordering::Relaxed);
    let received_count = totals.received_count.load(Ordering::Relaxed);
    let expected_count = sent_count as f64 * (nodes - 1.0);
    GossipReport {
        seed: config.seed,
        nodes: config.nodes,
        period_seconds: config.period.as_secs(),
        seconds,
        profile_bytes: profile_bytes(&NodeKey::generate()).len(),
        sent_count,
        received_share: if sent_count == 0 {
            0.0
        } else {
            received_count as f64 / expected_count
        },
        received: rates.iter().map(|(read, _)| read).sum::<f64>() / nodes,
        sent: rates.iter().map(|(_, sent)| sent).sum::<f64>() / nodes,
        both: both.iter().sum::<f64>() / nodes,
        both_p99: both[both.len() * 99 / 100],
        both_max: both[both.len() - 1],
    }
}

fn build_swarm(key: &NodeKey, counter: Arc<ByteCounter>) -> Swarm<gossipsub::Behaviour> {
    let pair = key.to_libp2p();
    let noise = noise::Config::new(&pair).expect("the key is of the kind that noise takes");
    let transport = MemoryTransport::default()
        .map(move |socket, _| CountingTransport::new(socket, counter))
        .upgrade(Version::V1Lazy)
        .authenticate(noise)
        .multiplex(yamux::Config::default())
        .boxed();
    let config = swarm::Config::with_tokio_executor()
        .with_idle_connection_timeout(Duration::from_secs(3_600));
    Swarm::new(
        transport,
        gossip::new_behaviour(),
        pair.public().to_peer_id(),
        config,
    )
}

/// Returns the profile of a provider with two addresses.
fn profile_bytes(key: &NodeKey) -> Vec<u8> {
    let now = unix_ms();
    let address = |text: &str| text.parse().expect("it is an address");
    let profile = Profile {
        account: AccountKey(key.public_key()),
        addresses: vec![
            address("/ip4/192.168.100.100/tcp/40001"),
            address("/ip4/203.0.113.100/tcp/40001"),
        ],
        resources: Resources::default(),
        issued_ms: now,
        expires_ms: now + LIFE_MS,
    };
    let signed = profile.sign(key).expect("a profile encodes");
    postcard_bytes(&signed)
}

fn postcard_bytes(signed: &SignedProfile) -> Vec<u8> {
    postcard::to_allocvec(signed).expect("a signed profile encodes")
}

fn node_address(index: usize) -> Multiaddr {
    let number = FIRST_ADDRESS + index as u64;
    libp2p::multiaddr::Protocol::Memory(number).into()
}

impl GossipNode {
    /// Listens, and dials nodes that already listen.
    fn listen_and_dial(&mut self, index: usize, random: &mut Random) {
        let listens = self.swarm.listen_on(node_address(index));
        listens.expect("no two nodes have one address");
        for _ in 0..DIALS.min(index) {
            let other = node_address(random.draw_index(index));
            // If the draw repeats a node, it is dialled once.
            let _ = self.swarm.dial(other);
        }
    }

    async fn run(mut self) {
        let mut next: Option<Instant> = None;
        loop {
            let publish_time = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = publish_time => {
                    next = Some(Instant::now() + self.period);
                    self.publish_profile();
                }
                changed = self.phase.changed() => {
                    let phase = *self.phase.borrow_and_update();
                    if changed.is_err() || phase == Phase::Over {
                        return;
                    }
                    next.get_or_insert(Instant::now() + self.first);
                }
                event = self.swarm.select_next_some() => self.on_event(event),
            }
        }
    }

    fn is_counting(&self) -> bool {
        *self.phase.borrow() == Phase::Counting
    }

    /// Returns whether a profile was published in the counted time.
    fn is_counted(&self, profile: &Profile) -> bool {
        let at = |time: &AtomicU64| time.load(Ordering::Relaxed);
        let counted = at(&self.totals.begin_ms)..at(&self.totals.end_ms);
        let is_phase_counted = matches!(*self.phase.borrow(), Phase::Counting | Phase::Settling);
        is_phase_counted && counted.contains(&profile.issued_ms)
    }

    fn publish_profile(&mut self) {
        let bytes = profile_bytes(&self.key);
        match gossip::publish_message(self.swarm.behaviour_mut(), bytes) {
            Ok(()) if self.is_counting() => {
                self.totals.sent_count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(()) => {}
            Err(error) => tracing::debug!(%error, "the profile could not be published"),
        }
    }

    fn on_event(&mut self, event: SwarmEvent<gossipsub::Event>) {
        let SwarmEvent::Behaviour(gossipsub::Event::Message {
            propagation_source,
            message_id,
            message,
        }) = event
        else {
            return;
        };
        let signed = postcard::from_bytes::<SignedProfile>(&message.data).ok();
        let profile = signed.and_then(|signed| signed.verify(unix_ms()).ok());
        let acceptance = match profile.is_some() {
            true => gossipsub::MessageAcceptance::Accept,
            false => gossipsub::MessageAcceptance::Reject,
        };
        if profile.is_some_and(|profile| self.is_counted(&profile)) {
            self.totals.received_count.fetch_add(1, Ordering::Relaxed);
        }
        let gossip = self.swarm.behaviour_mut();
        gossip.report_message_validation_result(&message_id, &propagation_source, acceptance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nodes_of_a_small_network_receive_profiles_and_their_bytes_are_counted() {
        let config = GossipConfig {
            seed: 1,
            nodes: 20,
            period: Duration::from_secs(1),
            warm_up: Duration::from_secs(4),
            duration: Duration::from_secs(2),
        };
        let report = run(&config).await.unwrap();
        assert!(
            report.sent_count > 0 && report.received_share > 0.5,
            "{report:?}"
        );
        // The bytes of each profile were received at least once.
        let bytes_min =
            report.received_share * report.sent_count as f64 * report.profile_bytes as f64;
        assert!(report.received * report.seconds > bytes_min, "{report:?}");
        assert!(run(&GossipConfig { nodes: 1, ..config }).await.is_err());
    }
}
