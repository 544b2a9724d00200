//! Runs one replica of `souk bench consensus` in its own process: a production validator with the
//! benchmark's state machine. It answers the driver until its process is killed.

use std::collections::HashMap;
use std::path::PathBuf;

use bytes::Bytes;
use futures::AsyncReadExt;
use futures::io::{ReadHalf, WriteHalf};
use libp2p::PeerId;
use libp2p::swarm::Stream;
use souk_consensus::ReplicaId;
use souk_consensus::replica::Proposal;
use souk_consensus::wire::Envelope;
use souk_market::{AccountKey, MarketId};
use souk_network::Network;
use souk_network::wire::{self, WireError};
use souk_node::validator::raft_link;
use souk_node::validator::{
    Consistency, CosigningError, LogBeginning, Validator, ValidatorConfig, ValidatorError,
    ValidatorFailure, start_cosigning_in_group,
};
use tokio::sync::{mpsc, watch};

use super::Signing;
use super::machine::{CountingMachine, Number};
use super::protocol::{PUT, PutRequest, PutResult, ReplicaProgress, STATUS, key, replica_contact};

/// Maximum number of queued messages for other replicas.
const OUTBOUND_MAX: usize = 4_096;

/// Maximum number of connected drivers, for each protocol.
const DRIVERS_MAX: usize = 16;

/// Maximum number of batches of one driver that wait for their results.
const REQUESTS_MAX: usize = 1_024;

/// Maximum number of signed commands in a batch, which the replica verifies, proposes and answers
/// together. To verify a batch of this size takes less than a millisecond.
const SIGNED_BATCH_COMMANDS_MAX: usize = 48;

/// Arguments of a replica.
#[derive(Clone, Debug)]
pub struct ReplicaArguments {
    /// The replica's id, at least 1. The replica listens on `ports[id - 1]`.
    pub id: u64,
    /// Loopback ports of all replicas, ordered by id. The list must be the same for every replica.
    pub ports: Vec<u16>,
    /// The replica's folder.
    pub folder: PathBuf,
    /// How commands are signed. It must be the same for every replica.
    pub signed: Signing,
    /// Whether the replica cosigns the history, as a market's validators do.
    pub is_cosigning: bool,
}

/// Why a replica ended.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The arguments have no port for this id.
    #[error("there is no port for replica {0}")]
    NoSuchReplica(u64),
    /// The network did not start.
    #[error(transparent)]
    Network(#[from] souk_network::StartError),
    /// The replica did not start.
    #[error(transparent)]
    Start(#[from] ValidatorError),
    /// The record of what the replica signed cannot be read.
    #[error(transparent)]
    Cosigning(#[from] CosigningError),
    /// The replica failed while it ran.
    #[error(transparent)]
    Failed(#[from] ValidatorFailure),
}

/// Runs one replica until its process is killed.
///
/// # Errors
/// If the replica does not start, or fails.
pub async fn serve_replica(arguments: ReplicaArguments) -> Result<(), ReplicaError> {
    match arguments.signed {
        Signing::None => run_replica::<false>(arguments).await,
        Signing::Each | Signing::Batch64 => run_replica::<true>(arguments).await,
    }
}

async fn run_replica<const SIGNED: bool>(arguments: ReplicaArguments) -> Result<(), ReplicaError> {
    let ReplicaArguments {
        id,
        ports,
        folder,
        is_cosigning,
        ..
    } = arguments;
    let missing = ReplicaError::NoSuchReplica(id);
    let members: Vec<ReplicaId> = (1..=ports.len() as u64)
        .filter_map(ReplicaId::new)
        .collect();
    let mine = members
        .iter()
        .zip(&ports)
        .find(|(member, _)| member.get() == id);
    let (me, port) = mine.ok_or(missing)?;
    let listen = replica_contact(id, *port).addresses.first().cloned();
    let network = Network::start(
        &key(id),
        souk_network::NetworkConfig {
            listen,
            ..souk_network::NetworkConfig::default()
        },
    )
    .await?;
    let mut peers: HashMap<PeerId, ReplicaId> = HashMap::new();
    for (member, port) in members
        .iter()
        .zip(&ports)
        .filter(|(member, _)| *member != me)
    {
        // An error would mean that the network has stopped, but it has just started.
        let _ = network
            .add_contact(&replica_contact(member.get(), *port))
            .await;
        peers.insert(key(member.get()).peer_id(), *member);
    }
    let (outbound, messages) = mpsc::channel(OUTBOUND_MAX);
    let config = ValidatorConfig::new(*me, id, folder, LogBeginning::NewGroup(members.clone()));
    let (validator, ended) = Validator::start(
        &config,
        CountingMachine::<SIGNED>::default(),
        outbound.clone(),
    )?;
    // The peers never change, so nothing needs the sender.
    let (_, peers) = watch::channel(raft_link::Peers::new(peers));
    // Without cosigning no notes arrive.
    let notes = match is_cosigning {
        true => start_cosigning(&validator, *me, &members, outbound)?,
        false => mpsc::channel(1).0,
    };
    raft_link::receive(&network, validator.clone(), notes, peers.clone());
    let sender = validator.clone();
    tokio::spawn(raft_link::send(network.clone(), sender, messages, peers));
    let status_validator = validator.clone();
    network.serve_protocol(STATUS, DRIVERS_MAX, move |_, stream| {
        serve_status(status_validator.clone(), stream)
    });
    network.serve_protocol(PUT, DRIVERS_MAX, move |_, stream| {
        let validator = validator.clone();
        async move {
            // An error means that the driver has disconnected.
            let _ = serve_puts(validator, stream).await;
        }
    });
    Ok(ended.wait_for_end().await?)
}

/// Has the replica cosign the history with the others; returns the channel for their notes.
fn start_cosigning<const SIGNED: bool>(
    validator: &Validator<CountingMachine<SIGNED>>,
    me: ReplicaId,
    members: &[ReplicaId],
    outbound: mpsc::Sender<Envelope>,
) -> Result<mpsc::Sender<(ReplicaId, Bytes)>, CosigningError> {
    let members = members.iter().map(|id| id.get());
    let cosigners = members.map(|id| (id, AccountKey(key(id).public_key())));
    let (cosigners, mine) = (cosigners.collect(), key(me.get()));
    let market = MarketId([0; 32]);
    start_cosigning_in_group(
        validator,
        cosigners,
        market,
        me,
        mine.signing_key(),
        outbound,
    )
}

async fn serve_status<const SIGNED: bool>(
    validator: Validator<CountingMachine<SIGNED>>,
    mut stream: Stream,
) {
    let Ok(status) = validator.status().await else {
        return;
    };
    let reply = validator.query_machine(Consistency::Stale, ()).await;
    let counts = reply.map(|(counts, _)| counts);
    let leader = status.leader.map_or(0, ReplicaId::get);
    let (commands, numbers) = counts.unwrap_or_default();
    let progress = ReplicaProgress {
        leader,
        applied: status.applied.0,
        commands,
        numbers,
    };
    // An error means that the driver has disconnected.
    let _ = wire::send(&mut stream, &progress).await;
}

/// Proposes requests in batches as they arrive, and sends their results in the same order.
async fn serve_puts<const SIGNED: bool>(
    validator: Validator<CountingMachine<SIGNED>>,
    stream: Stream,
) -> Result<(), WireError> {
    let (mut reader, mut writer): (ReadHalf<Stream>, WriteHalf<Stream>) = stream.split();
    let (batches, mut pending) = mpsc::channel(REQUESTS_MAX);
    tokio::spawn(async move {
        while let Ok(Some(frame)) = wire::receive_bytes(&mut reader).await {
            let Ok(mut puts) = PutRequest::decode(frame.into()) else {
                return;
            };
            let batch_size = if SIGNED {
                SIGNED_BATCH_COMMANDS_MAX
            } else {
                puts.len()
            };
            while !puts.is_empty() {
                let rest = puts.split_off(batch_size.min(puts.len()));
                let batch = tokio::spawn(propose_batch(validator.clone(), puts));
                puts = rest;
                if batches.send(batch).await.is_err() {
                    return;
                }
            }
        }
    });
    while let Some(batch) = pending.recv().await {
        // If the task of a batch failed, its requests get no results, which the driver notices.
        let results = batch.await.unwrap_or_default();
        wire::send_bytes(&mut writer, &PutResult::encode(&results)).await?;
    }
    Ok(())
}

/// Verifies the commands of requests, with their signatures if they have any, and proposes them.
async fn propose_batch<const SIGNED: bool>(
    validator: Validator<CountingMachine<SIGNED>>,
    puts: Vec<PutRequest>,
) -> Vec<PutResult> {
    let (numbers, commands): (Vec<u64>, Vec<Bytes>) = puts
        .into_iter()
        .map(|put| (put.number, put.payload))
        .unzip();
    let results = match verify_commands(&validator, commands).await {
        Some(commands) => validator.propose_all(commands).await.unwrap_or_default(),
        None => Vec::new(),
    };
    let applied = |index: usize| results.get(index).is_some_and(Result::is_ok);
    let numbers = numbers.into_iter().enumerate();
    numbers
        .map(|(index, number)| PutResult {
            number,
            applied: applied(index),
        })
        .collect()
}

/// Returns the commands as proposals if all of them are valid.
async fn verify_commands<const SIGNED: bool>(
    validator: &Validator<CountingMachine<SIGNED>>,
    commands: Vec<Bytes>,
) -> Option<Vec<Proposal<Number>>> {
    let verified = if SIGNED {
        validator.verify_each(commands).await.ok()?
    } else {
        Proposal::verify_commands::<CountingMachine<SIGNED>>(commands)
    };
    verified.into_iter().collect::<Result<_, _>>().ok()
}
