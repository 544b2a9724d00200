//! Configures gossipsub, by which providers' profiles spread from peer to peer: how far, how often,
//! and which peers a node trusts. The swarm's task and the benchmark of gossip use it.
//!
//! The figures suit a market of 1,000 providers, each of which publishes once in ten minutes: a
//! message needs few repetitions, because another always follows. `souk testnet gossip` measures
//! the cost for a node.

use std::time::Duration;

use libp2p::{PeerId, gossipsub};
use souk_memory::ContentId;

use crate::profile;

/// The topic on which providers publish their profiles.
pub const TOPIC: &str = "souk/profiles/1";

/// Peers to which a node forwards each message at once: three reach every node with certainty while
/// none fails, and each one more costs every node traffic with every message.
const MESH: usize = 4;
const MESH_LEAST: usize = 3;
const MESH_MOST: usize = 8;

/// Peers to which a node sends the names of messages, so that one that missed a message can ask for
/// it.
const LAZY: usize = 2;

/// How often a node maintains the mesh and sends names.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// Heartbeats for which a node keeps a message to answer requests, and for which it sends the name.
const HISTORY: usize = 6;
const HISTORY_TOLD: usize = 2;

/// How long a message can wait for a busy connection: a profile is as good seconds later.
const QUEUED_MAX: Duration = Duration::from_secs(10);

/// Bytes of a message's name, a prefix of its hash, long enough that collisions are infeasible.
const NAME_BYTES: usize = 16;

/// When a message longer than this arrives, the node calls it off at its other neighbours; for a
/// shorter one the call would cost more.
const CALL_OFF_BYTES: usize = 128;

/// A peer below the first score receives no names, below the second no messages, and below the last
/// it is ignored and kept out.
const SCORE_NAMES: f64 = -20.0;
const SCORE_PUBLISH: f64 = -40.0;
const SCORE_HEARD: f64 = -100.0;

/// The score for each invalid message; their number counts squared.
const SCORE_WRONG: f64 = -20.0;

/// The most that a peer can gain by its presence and by being first, together.
const SCORE_TOPIC_MAX: f64 = 10.0;

/// Breaches of the protocol that are forgiven, for example reconnecting too soon, and the cost of
/// each one more, squared: an honest node in a bad network has a few.
const BREACHES_FORGIVEN: f64 = 6.0;
const SCORE_BREACH: f64 = -5.0;

/// The counters decay by this factor in each period.
const DECAY_PERIOD: Duration = Duration::from_secs(10);
const DECAY: f64 = 0.9;

/// Returns gossip as every permanent node speaks it. A message does not name its author: the
/// profile in it is signed, and scores count against the peer that forwarded it.
pub fn new_behaviour() -> gossipsub::Behaviour {
    let name = |message: &gossipsub::Message| {
        let hash = ContentId::for_content(&message.data);
        gossipsub::MessageId::from(hash.as_bytes()[..NAME_BYTES].to_vec())
    };
    let config = gossipsub::ConfigBuilder::default()
        .protocol_id_prefix("/souk/gossip/4")
        .validation_mode(gossipsub::ValidationMode::Anonymous)
        // A node must check a message before it forwards it.
        .validate_messages()
        .message_id_fn(name)
        .max_transmit_size(profile::BYTES_MAX * 2)
        .mesh_n(MESH)
        .mesh_n_low(MESH_LEAST)
        .mesh_n_high(MESH_MOST)
        .mesh_outbound_min(1)
        .gossip_lazy(LAZY)
        // A validator with a thousand neighbours sends names to as few as any node.
        .gossip_factor(0.0)
        .flood_publish(false)
        .heartbeat_interval(HEARTBEAT)
        .history_length(HISTORY)
        .history_gossip(HISTORY_TOLD)
        .publish_queue_duration(QUEUED_MAX)
        .forward_queue_duration(QUEUED_MAX)
        .idontwant_message_size_threshold(CALL_OFF_BYTES)
        .build()
        .expect("the figures fit each other");
    let unsigned = gossipsub::MessageAuthenticity::Anonymous;
    let mut gossip = gossipsub::Behaviour::new(unsigned, config).expect("nothing is signed");
    let topic = gossipsub::IdentTopic::new(TOPIC);
    gossip
        .with_peer_score(score_params(&topic), score_thresholds())
        .expect("the figures fit each other");
    gossip
        .subscribe(&topic)
        .expect("no filter forbids the topic");
    gossip
}

/// Publishes a message to all nodes.
pub fn publish_message(gossip: &mut gossipsub::Behaviour, bytes: Vec<u8>) -> Result<(), String> {
    let topic = gossipsub::IdentTopic::new(TOPIC);
    let published = gossip.publish(topic, bytes);
    published.map(drop).map_err(|error| error.to_string())
}

fn score_params(topic: &gossipsub::IdentTopic) -> gossipsub::PeerScoreParams {
    let of_topic = gossipsub::TopicScoreParams {
        topic_weight: 1.0,
        time_in_mesh_weight: 0.01,
        time_in_mesh_quantum: Duration::from_secs(1),
        time_in_mesh_cap: 300.0,
        first_message_deliveries_weight: 0.1,
        first_message_deliveries_decay: DECAY,
        first_message_deliveries_cap: 50.0,
        // A quiet topic: a peer that delivers nothing can have had nothing to deliver.
        mesh_message_deliveries_weight: 0.0,
        mesh_failure_penalty_weight: 0.0,
        invalid_message_deliveries_weight: SCORE_WRONG,
        invalid_message_deliveries_decay: DECAY,
        ..gossipsub::TopicScoreParams::default()
    };
    gossipsub::PeerScoreParams {
        topics: [(topic.hash(), of_topic)].into(),
        topic_score_cap: SCORE_TOPIC_MAX,
        // The points for a peer's other faults.
        app_specific_weight: 1.0,
        // Addresses are counted where connections are accepted.
        ip_colocation_factor_weight: 0.0,
        behaviour_penalty_weight: SCORE_BREACH,
        behaviour_penalty_threshold: BREACHES_FORGIVEN,
        behaviour_penalty_decay: DECAY,
        decay_interval: DECAY_PERIOD,
        ..gossipsub::PeerScoreParams::default()
    }
}

fn score_thresholds() -> gossipsub::PeerScoreThresholds {
    gossipsub::PeerScoreThresholds {
        gossip_threshold: SCORE_NAMES,
        publish_threshold: SCORE_PUBLISH,
        graylist_threshold: SCORE_HEARD,
        ..gossipsub::PeerScoreThresholds::default()
    }
}

/// Returns the peers whose score is so low that they must be kept out.
pub(super) fn low_score_peers(gossip: &gossipsub::Behaviour) -> Vec<PeerId> {
    let peers = gossip.all_peers().map(|(peer, _)| *peer);
    peers
        .filter(|peer| {
            gossip
                .peer_score(peer)
                .is_some_and(|score| score < SCORE_HEARD)
        })
        .collect()
}
