//! Carries out the attacks of hostile peers on real nodes. Each kind of attack is a loop that
//! repeats one action against one node after another, for example sends random bytes or opens many
//! streams.

mod gossip;

use std::sync::Arc;
use std::time::Duration;

use futures::AsyncWriteExt;
use libp2p::StreamProtocol;
use serde::Serialize;
use souk_folder::clock::{unix_ms, unix_us};
use souk_folder::contact::Contact;
use souk_folder::key::NodeKey;
use souk_market::{AccountKey, Batch, Command, MarketId, Millis, Name, Nonce};
use souk_network::content::{direct, transfers};
use souk_network::protocols::lease;
use souk_network::protocols::market::{self, Request, TimedAnswer};
use souk_network::wire;
use souk_network::{Network, OpenError};
use souk_node::buyer::Buyer;
use souk_node::validator::raft_link;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::chaos::load;
use souk_sim::random::Random;

/// Maximum bytes of random garbage.
const GARBAGE_BYTES_MAX: u64 = 4_096;

/// Maximum streams or connections that a slow peer keeps open.
const SLOW_MAX: usize = 400;

/// Rounds of one identity that can fail in a row before it takes a new one.
const FAILURES_MAX: u32 = 3;

/// Pause between two identities.
const IDENTITY_PAUSE: Duration = Duration::from_millis(50);

/// Maximum milliseconds that a hostile buyer watches a job before it vanishes.
const VANISH_MS_MAX: u64 = 60;

/// Rounds of questions in one stream.
const STORM_ROUNDS: usize = 1_000;

/// Protocols of validators, of providers, and of every node below those.
const OF_VALIDATORS: [StreamProtocol; 2] = [market::PROTOCOL, raft_link::PROTOCOL];
const OF_PROVIDERS: [StreamProtocol; 3] = [lease::PROTOCOL, transfers::PROTOCOL, direct::PROTOCOL];
const OF_ALL: [StreamProtocol; 9] = [
    StreamProtocol::new("/souk/kad/1"),
    StreamProtocol::new("/souk/gossip/4/1.1.0"),
    StreamProtocol::new("/ipfs/id/1.0.0"),
    StreamProtocol::new("/ipfs/id/push/1.0.0"),
    StreamProtocol::new("/ipfs/ping/1.0.0"),
    StreamProtocol::new("/libp2p/autonat/2/dial-request"),
    StreamProtocol::new("/libp2p/autonat/2/dial-back"),
    StreamProtocol::new("/libp2p/circuit/relay/0.2.0/stop"),
    StreamProtocol::new("/libp2p/dcutr"),
];

/// A node to attack.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) contact: Contact,
    pub(super) validates: bool,
    pub(super) market: MarketId,
}

/// Kinds of attack. A provider plays one more: it takes leases and does no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Attack {
    /// Frames that decode to nothing, on every protocol.
    Malformed,
    /// Lengths over the limit, on every protocol.
    Oversize,
    /// Streams with only one byte.
    SlowStreams,
    /// Connections that never finish their handshake.
    SlowConnections,
    /// Requests whose answers the attacker never reads.
    Unread,
    /// Endless questions in one stream; the attacker reads each answer.
    Storm,
    /// Frames of the maximum length without their last byte.
    Unfinished,
    /// As many streams as the node accepts.
    Flood,
    /// The same order again and again, at every validator.
    Replay,
    /// Profiles in the names of others.
    Forged,
    /// Profiles of a thousand providers that do not exist.
    Sybil,
    /// A buyer that buys and vanishes before it acknowledges.
    Vanish,
}

/// Results of an attack.
#[derive(Clone, Debug, Serialize)]
pub struct AttackReport {
    /// The kind of attack.
    pub attack: Attack,
    /// Acts that nodes accepted.
    pub acts: u64,
    /// Acts that nodes refused, or that failed.
    pub refused: u64,
    /// Identities used.
    pub identities: u64,
}

impl Attack {
    /// All kinds of attack.
    pub(super) const ALL: [Attack; 12] = [
        Attack::Malformed,
        Attack::Oversize,
        Attack::SlowStreams,
        Attack::SlowConnections,
        Attack::Unread,
        Attack::Storm,
        Attack::Unfinished,
        Attack::Flood,
        Attack::Replay,
        Attack::Forged,
        Attack::Sybil,
        Attack::Vanish,
    ];

    /// Returns the pause between two acts.
    fn pause(self) -> Duration {
        Duration::from_millis(match self {
            Attack::Flood => 1,
            Attack::Forged | Attack::Sybil => 5,
            Attack::Vanish => 1_000,
            _ => 20,
        })
    }

    /// Attacks until `length` is over.
    pub(super) async fn go_on(
        self,
        targets: Arc<Vec<Target>>,
        buyer: Buyer,
        seed: u64,
        length: Duration,
    ) -> AttackReport {
        let mut attacker = Attacker {
            attack: self,
            random: Random::new(seed, &format!("{self:?}")),
            targets,
            buyer,
            held: Vec::new(),
            done: AttackReport {
                attack: self,
                acts: 0,
                refused: 0,
                identities: 0,
            },
        };
        let end = Instant::now() + length;
        // The timeout can cut off the current act.
        let _ = tokio::time::timeout_at(end, attacker.run_attack()).await;
        attacker.done
    }
}

/// A stream or connection that a slow attacker keeps open.
enum OpenHandle {
    Stream(#[expect(dead_code, reason = "it is held, not used")] libp2p::Stream),
    Socket(#[expect(dead_code, reason = "it is held, not used")] TcpStream),
}

struct Attacker {
    attack: Attack,
    random: Random,
    targets: Arc<Vec<Target>>,
    buyer: Buyer,
    held: Vec<OpenHandle>,
    done: AttackReport,
}

/// Why an act failed.
#[derive(Debug)]
struct ActFailure;

impl<E: std::error::Error> From<E> for ActFailure {
    fn from(_: E) -> ActFailure {
        ActFailure
    }
}

impl Attacker {
    /// Attacks under one identity after another.
    async fn run_attack(&mut self) {
        loop {
            // The pause makes a new identity cost time, so that the loop does not spin if a node
            // refuses it at once.
            tokio::time::sleep(IDENTITY_PAUSE).await;
            self.done.identities += 1;
            let place = self.random.draw_index(self.targets.len());
            let targets = self.targets.clone();
            let target = &targets[place];
            match self.attack {
                Attack::Forged | Attack::Sybil => {
                    let sybil = self.attack == Attack::Sybil;
                    gossip::flood_profiles(target, sybil, self.attack.pause(), &mut self.done)
                        .await;
                }
                Attack::Vanish => self.buy_and_vanish().await,
                _ => self.as_one(target).await,
            }
        }
    }

    /// Acts under one identity until nodes stop accepting it.
    async fn as_one(&mut self, target: &Target) {
        let key = NodeKey::generate();
        let Ok(network) = Network::start(&key, souk_network::NetworkConfig::default()).await else {
            return;
        };
        if network.add_contact(&target.contact).await.is_err() {
            return;
        }
        let mut failures = 0;
        while failures < FAILURES_MAX {
            tokio::time::sleep(self.attack.pause()).await;
            match self.perform_act(&network, &key, target).await {
                Ok(()) => {
                    self.done.acts += 1;
                    failures = 0;
                }
                Err(ActFailure) => {
                    self.done.refused += 1;
                    failures += 1;
                }
            }
        }
    }

    async fn perform_act(
        &mut self,
        network: &Network,
        key: &NodeKey,
        target: &Target,
    ) -> Result<(), ActFailure> {
        match self.attack {
            Attack::Malformed => {
                let length = self.random.draw_below(GARBAGE_BYTES_MAX) as usize;
                let bytes: Vec<u8> = (0..length).map(|_| self.random.next_u64() as u8).collect();
                let mut stream = self.open_random_stream(network, target).await?;
                // Half of the payloads have a frame around them.
                if self.random.chance(500) {
                    wire::send_bytes(&mut stream, &bytes).await?;
                } else {
                    stream.write_all(&bytes).await?;
                }
                Ok(stream.close().await?)
            }
            Attack::Oversize => {
                let mut stream = self.open_random_stream(network, target).await?;
                stream.write_all(&u32::MAX.to_be_bytes()).await?;
                Ok(stream.flush().await?)
            }
            Attack::SlowStreams => {
                let mut stream = self.open_random_stream(network, target).await?;
                stream.write_all(&[0]).await?;
                stream.flush().await?;
                self.hold_open(OpenHandle::Stream(stream));
                Ok(())
            }
            Attack::SlowConnections => {
                let mut socket = connect_tcp(target).await?;
                socket.write_all(&[0x13]).await?;
                self.hold_open(OpenHandle::Socket(socket));
                Ok(())
            }
            Attack::Unread => {
                let mut stream = open_stream(network, target, market::PROTOCOL).await?;
                for _ in 0..16 {
                    wire::send(&mut stream, &Request::Book).await?;
                }
                self.hold_open(OpenHandle::Stream(stream));
                Ok(())
            }
            Attack::Storm => self.storm_questions(network, target).await,
            Attack::Unfinished => {
                let (protocol, bytes) = match target.validates {
                    true => (market::PROTOCOL, market::REQUEST_BYTES_MAX),
                    false => (lease::PROTOCOL, lease::OPENING_BYTES_MAX),
                };
                let mut stream = open_stream(network, target, protocol).await?;
                let length = u32::try_from(bytes)?;
                stream.write_all(&length.to_be_bytes()).await?;
                stream.write_all(&vec![0; bytes - 1]).await?;
                stream.flush().await?;
                self.hold_open(OpenHandle::Stream(stream));
                Ok(())
            }
            Attack::Flood => {
                let mut stream = self.open_random_stream(network, target).await?;
                Ok(stream.write_all(&[0, 0]).await?)
            }
            _ => self.replay_order(network, key, target).await,
        }
    }

    /// Repeats expensive questions: the whole book, and the maximum of named items.
    async fn storm_questions(
        &mut self,
        network: &Network,
        target: &Target,
    ) -> Result<(), ActFailure> {
        let Some(validator) = self.pick_validator(target) else {
            return Err(ActFailure);
        };
        network.add_contact(&validator.contact).await?;
        let mut stream = open_stream(network, &validator, market::PROTOCOL).await?;
        let nobody = AccountKey([7; 32]);
        let named = vec![nobody; market::NAMED_MAX];
        for _ in 0..STORM_ROUNDS {
            for request in [Request::Book, Request::Find(named.clone())] {
                wire::send(&mut stream, &request).await?;
                let _: TimedAnswer = wire::receive(&mut stream).await?;
                self.done.acts += 1;
            }
        }
        Ok(())
    }

    /// Returns the target if it is a validator, otherwise another validator.
    fn pick_validator(&self, target: &Target) -> Option<Target> {
        let validator = target.validates.then_some(target);
        let validator = validator.or_else(|| self.targets.iter().find(|t| t.validates));
        validator.cloned()
    }

    /// Sends the same order twice: the second must change nothing.
    async fn replay_order(
        &mut self,
        network: &Network,
        key: &NodeKey,
        target: &Target,
    ) -> Result<(), ActFailure> {
        let Some(validator) = self.pick_validator(target) else {
            return Err(ActFailure);
        };
        network.add_contact(&validator.contact).await?;
        let number = self.random.next_u64();
        let name = Name::try_from(format!("r{number:x}").as_str())?;
        let batch = Batch {
            market: target.market,
            account: AccountKey(key.public_key()),
            nonce: Nonce(unix_us()),
            expires: Millis(unix_ms() + 30_000),
            commands: vec![Command::Register { name }],
        };
        let request = Request::Submit(batch.sign(key.signing_key()));
        let mut stream = open_stream(network, &validator, market::PROTOCOL).await?;
        for _ in 0..8 {
            wire::send(&mut stream, &request).await?;
            let _: TimedAnswer = wire::receive(&mut stream).await?;
        }
        Ok(())
    }

    /// Buys, and vanishes.
    async fn buy_and_vanish(&mut self) {
        tokio::time::sleep(self.attack.pause()).await;
        let patience = Duration::from_millis(self.random.draw_below(VANISH_MS_MAX));
        match load::begin_and_leave(&self.buyer, patience).await {
            true => self.done.acts += 1,
            false => self.done.refused += 1,
        }
    }

    /// Opens a stream of a protocol that the node may support.
    async fn open_random_stream(
        &mut self,
        network: &Network,
        target: &Target,
    ) -> Result<libp2p::Stream, ActFailure> {
        let own = match target.validates {
            true => &OF_VALIDATORS[..],
            false => &OF_PROVIDERS[..],
        };
        // Half of the time, this picks a souk protocol, otherwise a lower one.
        let protocols = match self.random.chance(500) {
            true => own,
            false => &OF_ALL[..],
        };
        let protocol = protocols[self.random.draw_index(protocols.len())].clone();
        open_stream(network, target, protocol).await
    }

    fn hold_open(&mut self, held: OpenHandle) {
        if self.held.len() >= SLOW_MAX {
            self.held.remove(0);
        }
        self.held.push(held);
    }
}

async fn open_stream(
    network: &Network,
    target: &Target,
    protocol: StreamProtocol,
) -> Result<libp2p::Stream, ActFailure> {
    let peer = target.contact.peer_id().map_err(OpenError::from)?;
    Ok(network.open_stream(peer, protocol).await?)
}

async fn connect_tcp(target: &Target) -> Result<TcpStream, ActFailure> {
    use libp2p::multiaddr::Protocol;
    let address = target.contact.addresses.first().ok_or(ActFailure)?;
    let mut parts = address.iter();
    match (parts.next(), parts.next()) {
        (Some(Protocol::Ip4(ip)), Some(Protocol::Tcp(port))) => {
            Ok(TcpStream::connect((ip, port)).await?)
        }
        _ => Err(ActFailure),
    }
}
