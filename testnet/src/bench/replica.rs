//! One replica's process.

use std::collections::HashMap;
use std::path::PathBuf;

use bytes::Bytes;
use futures::io::{ReadHalf, WriteHalf};
use futures::stream::FuturesUnordered;
use futures::{AsyncReadExt, FutureExt, StreamExt};
use libp2p::PeerId;
use libp2p::swarm::Stream;
use souk_consensus::ReplicaId;
use souk_node::key::NodeKey;
use souk_node::network::{self, Network};
use souk_node::raft_link;
use souk_node::validator::{
    Beginning, Consistency, Validator, ValidatorConfig, ValidatorError, ValidatorFailure,
};
use souk_node::wire::{self, WireError};
use tokio::sync::{mpsc, watch};

use super::Signed;
use super::machine::Chain;
use super::protocol::{Done, PUT, Put, STATUS, Standing, contact, key};

/// Messages for other replicas that may wait.
const OUTBOUND_MAX: usize = 4_096;

/// Drivers at a time.
const DRIVERS_MAX: usize = 16;

/// Bytes of a signature.
const SIGNATURE_BYTES: usize = 64;

/// How one replica is started.
#[derive(Clone, Debug)]
pub struct NodeArguments {
    /// Its id, from 1.
    pub id: u64,
    /// The ports of all replicas on the loopback, in the order of their ids.
    pub ports: Vec<u16>,
    /// Its folder.
    pub folder: PathBuf,
    /// Who signs what.
    pub signed: Signed,
}

/// Why a replica ended.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The arguments name no such replica.
    #[error("replica {0} is not among the ports")]
    NoSuchReplica(u64),
    /// The network.
    #[error(transparent)]
    Network(#[from] network::StartError),
    /// The replica did not start.
    #[error(transparent)]
    Start(#[from] ValidatorError),
    /// The replica failed.
    #[error(transparent)]
    Failed(#[from] ValidatorFailure),
}

/// Runs one replica until its process is killed.
///
/// # Errors
/// When it can't start, or fails.
pub async fn serve(arguments: NodeArguments) -> Result<(), NodeError> {
    let NodeArguments {
        id,
        ports,
        folder,
        signed,
    } = arguments;
    let missing = NodeError::NoSuchReplica(id);
    let members: Vec<ReplicaId> = (1..=ports.len() as u64)
        .filter_map(ReplicaId::new)
        .collect();
    let mine = members
        .iter()
        .zip(&ports)
        .find(|(member, _)| member.get() == id);
    let (me, port) = mine.ok_or(missing)?;
    let listen = contact(id, *port).addresses.first().cloned();
    let network = Network::start(
        &key(id),
        network::Config {
            listen,
            ..network::Config::default()
        },
    )
    .await?;
    let mut peers: HashMap<PeerId, ReplicaId> = HashMap::new();
    for (member, port) in members
        .iter()
        .zip(&ports)
        .filter(|(member, _)| *member != me)
    {
        // The network was started a moment ago: it has not stopped.
        let _ = network.learn(&contact(member.get(), *port)).await;
        peers.insert(key(member.get()).peer_id(), *member);
    }
    let (outbound, messages) = mpsc::channel(OUTBOUND_MAX);
    let config = ValidatorConfig::new(*me, id, folder, Beginning::Found(members.clone()));
    let (validator, ended) = Validator::start(&config, Chain::default(), outbound)?;
    // They stay who they are: nobody needs the sender.
    let (_, peers) = watch::channel(raft_link::Peers::new(peers));
    raft_link::receive(&network, validator.clone(), peers.clone());
    tokio::spawn(raft_link::send(network.clone(), messages, peers));
    let asked = validator.clone();
    network.serve(STATUS, DRIVERS_MAX, move |_, stream| {
        status(asked.clone(), stream)
    });
    let driver = driver_key();
    network.serve(PUT, DRIVERS_MAX, move |_, stream| {
        let (validator, driver) = (validator.clone(), driver.clone());
        async move {
            // The driver went away: nobody is left to tell.
            let _ended = put(validator, signed, &driver, stream).await;
        }
    });
    Ok(ended.wait().await?)
}

/// The key the driver signs with.
pub fn driver_key() -> NodeKey {
    key(0)
}

async fn status(validator: Validator<Chain>, mut stream: Stream) {
    let Ok(status) = validator.status().await else {
        return;
    };
    let numbers = validator
        .query(Consistency::Stale, |chain, _| chain.numbers())
        .await;
    let leader = status.leader.map_or(0, ReplicaId::get);
    let numbers = numbers.unwrap_or_default();
    let standing = Standing {
        leader,
        applied: status.applied.0,
        numbers,
    };
    // The asker went away: nobody is left to tell.
    let _ended = wire::send(&mut stream, &standing).await;
}

/// Takes in requests as they come and answers as they end.
async fn put(
    validator: Validator<Chain>,
    signed: Signed,
    driver: &NodeKey,
    stream: Stream,
) -> Result<(), WireError> {
    let (mut from, mut to): (ReadHalf<Stream>, WriteHalf<Stream>) = stream.split();
    let (frames, mut inbox) = mpsc::channel::<Vec<Put>>(DRIVERS_MAX);
    tokio::spawn(async move {
        while let Ok(Some(puts)) = wire::receive_or_end::<Vec<Put>>(&mut from).await {
            if frames.send(puts).await.is_err() {
                return;
            }
        }
    });
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            puts = inbox.recv() => {
                let Some(puts) = puts else { return Ok(()) };
                for put in puts {
                    running.push(one(&validator, signed, driver, put));
                }
            }
            Some(done) = running.next() => {
                let mut all = vec![done];
                while let Some(Some(done)) = running.next().now_or_never() {
                    all.push(done);
                }
                wire::send(&mut to, &all).await?;
            }
        }
    }
}

async fn one(validator: &Validator<Chain>, signed: Signed, driver: &NodeKey, put: Put) -> Done {
    let Put { number, payload } = put;
    let command = match signed {
        Signed::None => Some(payload),
        Signed::Each | Signed::Batch64 => verified(driver, payload),
    };
    let applied = match command {
        Some(command) => validator.propose(command).await.is_ok(),
        None => false,
    };
    Done { number, applied }
}

/// The commands behind a signature, if it holds.
fn verified(driver: &NodeKey, payload: Bytes) -> Option<Bytes> {
    let signature = payload.first_chunk::<SIGNATURE_BYTES>()?;
    let signature = ed25519_dalek::Signature::from_bytes(signature);
    let commands = payload.slice(SIGNATURE_BYTES..);
    let holds = driver
        .signing()
        .verifying_key()
        .verify_strict(&commands, &signature);
    holds.is_ok().then_some(commands)
}
