//! Floods a node with gossip of false profiles: in the names of others, or of providers that do not
//! exist. It is one of the attacks of hostile peers.

use std::time::Duration;

use futures::StreamExt;
use libp2p::swarm::SwarmEvent;
use libp2p::{Swarm, SwarmBuilder, gossipsub, noise, tcp, yamux};
use souk_folder::clock::unix_ms;
use souk_folder::key::NodeKey;
use souk_market::{AccountKey, Resources};
use souk_network::gossip;
use souk_network::profile::{LIFE_MS, Profile};

use super::{AttackReport, Target};

/// An identity must connect within this time.
const PATIENCE: Duration = Duration::from_secs(5);

/// Publishes until the node hangs up.
pub(super) async fn flood_profiles(
    target: &Target,
    sybil: bool,
    pause: Duration,
    done: &mut AttackReport,
) {
    let Some(mut swarm) = join_gossip(target) else {
        return;
    };
    let mut connected = false;
    let mut tick = tokio::time::interval(pause);
    let patience = tokio::time::sleep(PATIENCE);
    tokio::pin!(patience);
    loop {
        tokio::select! {
            _ = tick.tick(), if connected => {
                match gossip::publish_message(swarm.behaviour_mut(), profile_bytes(sybil)) {
                    Ok(()) => done.acts += 1,
                    Err(_) => done.refused += 1,
                }
            }
            () = &mut patience, if !connected => return,
            event = swarm.select_next_some() => match event {
                SwarmEvent::ConnectionEstablished { .. } => connected = true,
                SwarmEvent::ConnectionClosed { .. }
                | SwarmEvent::OutgoingConnectionError { .. } => return,
                _ => {}
            },
        }
    }
}

fn join_gossip(target: &Target) -> Option<Swarm<gossipsub::Behaviour>> {
    let builder = SwarmBuilder::with_existing_identity(NodeKey::generate().to_libp2p())
        .with_tokio()
        .with_tcp(
            tcp::Config::default(),
            noise::Config::new,
            yamux::Config::default,
        );
    let mut swarm = builder
        .ok()?
        .with_behaviour(|_| gossip::new_behaviour())
        .ok()?
        .build();
    swarm.dial(target.contact.addresses.first()?.clone()).ok()?;
    Some(swarm)
}

/// Returns a valid profile of a new account, or one with another account's signature.
fn profile_bytes(sybil: bool) -> Vec<u8> {
    let key = NodeKey::generate();
    let now = unix_ms();
    let profile = Profile {
        account: AccountKey(key.public_key()),
        addresses: Vec::new(),
        resources: Resources::default(),
        issued_ms: now,
        expires_ms: now + LIFE_MS,
    };
    let signer = if sybil { key } else { NodeKey::generate() };
    let signed = profile.sign(&signer).expect("a profile encodes");
    postcard::to_allocvec(&signed).expect("a signed profile encodes")
}
