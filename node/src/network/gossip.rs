//! What providers say of themselves, from peer to peer: how far, how often, and who is listened to.
//!
//! The figures are set for a market of 1,000 providers, each of which speaks once in ten minutes:
//! a message is repeated to few, since there is always a next one. `souk testnet gossip` measures
//! what a node pays for it.

use std::time::Duration;

use libp2p::{PeerId, gossipsub};
use souk_memory::ContentId;

use crate::network::profile;

/// The topic on which providers say what they are.
pub const TOPIC: &str = "souk/profiles/1";

/// Peers to which each message is passed on at once: three already reach everyone with certainty
/// while nobody fails, and each more is paid for by every node with every message.
const MESH: usize = 4;
const MESH_LEAST: usize = 3;
const MESH_MOST: usize = 8;

/// Peers that are told the names of messages, so that one that missed them can ask.
const LAZY: usize = 2;

/// How often the mesh is looked after and names are told.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// Heartbeats for which a message is kept for who asks, and for which its name is told.
const HISTORY: usize = 6;
const HISTORY_TOLD: usize = 2;

/// How long a message may wait for a connection that is busy: a profile is as good seconds later.
const QUEUED_MAX: Duration = Duration::from_secs(10);

/// Bytes of a message's name, the begin of its hash: nobody finds a second message to it.
const NAME_BYTES: usize = 16;

/// A message is called off at the other neighbours as soon as it has come, where it is longer than
/// the call.
const CALL_OFF_BYTES: usize = 128;

/// A peer below this is told no names, below the next sent nothing, below the last not heard and
/// kept out.
const SCORE_NAMES: f64 = -20.0;
const SCORE_PUBLISH: f64 = -40.0;
const SCORE_HEARD: f64 = -100.0;

/// What a message costs that does not hold; the score falls with the square of their number.
const SCORE_WRONG: f64 = -20.0;

/// What may be gained by being there and by being first, together.
const SCORE_TOPIC_MAX: f64 = 10.0;

/// Breaches of the protocol, such as to come back too soon, that are forgiven, and what each more
/// costs, squared: an honest node in a bad network has a few.
const BREACHES_FORGIVEN: f64 = 6.0;
const SCORE_BREACH: f64 = -5.0;

/// Every so often what was counted is multiplied by the factor.
const DECAY_PERIOD: Duration = Duration::from_secs(10);
const DECAY: f64 = 0.9;

/// Gossip as every node that stays speaks it. A message carries no name of its sender: the profile
/// in it is signed, and what is said of a peer is said by whom it came from.
pub fn behaviour() -> gossipsub::Behaviour {
    let name = |message: &gossipsub::Message| {
        let hash = ContentId::of(&message.data);
        gossipsub::MessageId::from(hash.as_bytes()[..NAME_BYTES].to_vec())
    };
    let config = gossipsub::ConfigBuilder::default()
        .protocol_id_prefix("/souk/gossip/4")
        .validation_mode(gossipsub::ValidationMode::Anonymous)
        // Nothing is passed on before it was checked.
        .validate_messages()
        .message_id_fn(name)
        .max_transmit_size(profile::BYTES_MAX * 2)
        .mesh_n(MESH)
        .mesh_n_low(MESH_LEAST)
        .mesh_n_high(MESH_MOST)
        .mesh_outbound_min(1)
        .gossip_lazy(LAZY)
        // A validator with a thousand neighbours tells names to as few as anybody.
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
        .with_peer_score(scores(&topic), thresholds())
        .expect("the figures fit each other");
    gossip
        .subscribe(&topic)
        .expect("no filter forbids the topic");
    gossip
}

/// Says something to everyone.
pub fn publish(gossip: &mut gossipsub::Behaviour, bytes: Vec<u8>) -> Result<(), String> {
    let topic = gossipsub::IdentTopic::new(TOPIC);
    let published = gossip.publish(topic, bytes);
    published.map(drop).map_err(|error| error.to_string())
}

fn scores(topic: &gossipsub::IdentTopic) -> gossipsub::PeerScoreParams {
    let of_topic = gossipsub::TopicScoreParams {
        topic_weight: 1.0,
        time_in_mesh_weight: 0.01,
        time_in_mesh_quantum: Duration::from_secs(1),
        time_in_mesh_cap: 300.0,
        first_message_deliveries_weight: 0.1,
        first_message_deliveries_decay: DECAY,
        first_message_deliveries_cap: 50.0,
        // A quiet topic: who brings nothing may have had nothing to bring.
        mesh_message_deliveries_weight: 0.0,
        mesh_failure_penalty_weight: 0.0,
        invalid_message_deliveries_weight: SCORE_WRONG,
        invalid_message_deliveries_decay: DECAY,
        ..gossipsub::TopicScoreParams::default()
    };
    gossipsub::PeerScoreParams {
        topics: [(topic.hash(), of_topic)].into(),
        topic_score_cap: SCORE_TOPIC_MAX,
        // The points of a peer's other faults.
        app_specific_weight: 1.0,
        // Addresses are counted where connections are taken.
        ip_colocation_factor_weight: 0.0,
        behaviour_penalty_weight: SCORE_BREACH,
        behaviour_penalty_threshold: BREACHES_FORGIVEN,
        behaviour_penalty_decay: DECAY,
        decay_interval: DECAY_PERIOD,
        ..gossipsub::PeerScoreParams::default()
    }
}

fn thresholds() -> gossipsub::PeerScoreThresholds {
    gossipsub::PeerScoreThresholds {
        gossip_threshold: SCORE_NAMES,
        publish_threshold: SCORE_PUBLISH,
        graylist_threshold: SCORE_HEARD,
        ..gossipsub::PeerScoreThresholds::default()
    }
}

/// The peers with such a score that they are kept out.
pub(super) fn judged(gossip: &gossipsub::Behaviour) -> Vec<PeerId> {
    let peers = gossip.all_peers().map(|(peer, _)| *peer);
    peers
        .filter(|peer| {
            gossip
                .peer_score(peer)
                .is_some_and(|score| score < SCORE_HEARD)
        })
        .collect()
}
