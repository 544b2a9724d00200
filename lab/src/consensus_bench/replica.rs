//! Runs one replica of `souk bench consensus` in a process of its own: a production validator over
//! the benchmark's state machine, which answers the driver until its process is killed.

use std::collections::HashMap;
use std::path::PathBuf;

use bytes::Bytes;
use futures::AsyncReadExt;
use futures::io::{ReadHalf, WriteHalf};
use libp2p::PeerId;
use libp2p::swarm::Stream;
use souk_consensus::ReplicaId;
use souk_consensus::replica::Proposal;
use souk_network::Network;
use souk_network::wire::{self, WireError};
use souk_node::validator::raft_link;
use souk_node::validator::{
    Consistency, LogBeginning, Validator, ValidatorConfig, ValidatorError, ValidatorFailure,
};
use tokio::sync::{mpsc, watch};

use super::Signing;
use super::machine::{CountingMachine, Number};
use super::protocol::{PUT, PutRequest, ReplicaProgress, RequestEnd, STATUS, key, replica_contact};

/// Maximum queued messages for other replicas.
const OUTBOUND_MAX: usize = 4_096;

/// Maximum drivers at a time.
const DRIVERS_MAX: usize = 16;

/// Maximum requests of one driver in flight, in groups that the replica accepts together.
const REQUESTS_MAX: usize = 1_024;

/// Commands of one frame that the replica verifies, proposes and answers together, like those of
/// one busy client: less than a millisecond's work.
const TAKEN_TOGETHER: usize = 48;

/// Arguments of a replica.
#[derive(Clone, Debug)]
pub struct NodeArguments {
    /// The replica's id, from 1. There must be a port for it.
    pub id: u64,
    /// Loopback ports of all replicas, ordered by id. The list must be the same for every replica.
    pub ports: Vec<u16>,
    /// The replica's folder.
    pub folder: PathBuf,
    /// How commands are signed. It must be the same for every replica.
    pub signed: Signing,
}

/// Why a replica ended.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The arguments have no port for this id.
    #[error("replica {0} is not among the ports")]
    NoSuchReplica(u64),
    /// The network failed.
    #[error(transparent)]
    Network(#[from] souk_network::StartError),
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
/// If the replica does not start, or fails.
pub async fn serve_replica(arguments: NodeArguments) -> Result<(), NodeError> {
    match arguments.signed {
        Signing::None => run_replica::<false>(arguments).await,
        Signing::Each | Signing::Batch64 => run_replica::<true>(arguments).await,
    }
}

async fn run_replica<const SIGNED: bool>(arguments: NodeArguments) -> Result<(), NodeError> {
    let NodeArguments {
        id, ports, folder, ..
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
        // The network has just started, so it has not stopped.
        let _ = network
            .add_contact(&replica_contact(member.get(), *port))
            .await;
        peers.insert(key(member.get()).peer_id(), *member);
    }
    let (outbound, messages) = mpsc::channel(OUTBOUND_MAX);
    let config = ValidatorConfig::new(*me, id, folder, LogBeginning::Found(members.clone()));
    let (validator, ended) =
        Validator::start(&config, CountingMachine::<SIGNED>::default(), outbound)?;
    // The peers never change, so the sender can go.
    let (_, peers) = watch::channel(raft_link::Peers::new(peers));
    // Nobody cosigns here, so no notes come.
    let (notes, _) = mpsc::channel(1);
    raft_link::receive(&network, validator.clone(), notes, peers.clone());
    let sender = validator.clone();
    tokio::spawn(raft_link::send(network.clone(), sender, messages, peers));
    let asked = validator.clone();
    network.serve_protocol(STATUS, DRIVERS_MAX, move |_, stream| {
        serve_status(asked.clone(), stream)
    });
    network.serve_protocol(PUT, DRIVERS_MAX, move |_, stream| {
        let validator = validator.clone();
        async move {
            // If the driver has gone, nothing is left to do.
            let _ended = serve_puts(validator, stream).await;
        }
    });
    Ok(ended.wait_for_end().await?)
}

async fn serve_status<const SIGNED: bool>(
    validator: Validator<CountingMachine<SIGNED>>,
    mut stream: Stream,
) {
    let Ok(status) = validator.status().await else {
        return;
    };
    let counted = validator.query_machine(Consistency::Stale, ()).await;
    let counted = counted.map(|(counted, _)| counted);
    let leader = status.leader.map_or(0, ReplicaId::get);
    let (commands, numbers) = counted.unwrap_or_default();
    let standing = ReplicaProgress {
        leader,
        applied: status.applied.0,
        commands,
        numbers,
    };
    // If the driver has gone, nothing is left to do.
    let _ended = wire::send(&mut stream, &standing).await;
}

/// Accepts requests as they arrive, and answers in the same order.
async fn serve_puts<const SIGNED: bool>(
    validator: Validator<CountingMachine<SIGNED>>,
    stream: Stream,
) -> Result<(), WireError> {
    let (mut from, mut to): (ReadHalf<Stream>, WriteHalf<Stream>) = stream.split();
    let (requests, mut running) = mpsc::channel(REQUESTS_MAX);
    tokio::spawn(async move {
        while let Ok(Some(frame)) = wire::receive_bytes(&mut from).await {
            let Ok(mut puts) = PutRequest::decode(frame.into()) else {
                return;
            };
            let together = if SIGNED { TAKEN_TOGETHER } else { puts.len() };
            while !puts.is_empty() {
                let rest = puts.split_off(together.min(puts.len()));
                let taken_in = tokio::spawn(take_in(validator.clone(), puts));
                puts = rest;
                if requests.send(taken_in).await.is_err() {
                    return;
                }
            }
        }
    });
    while let Some(taken_in) = running.recv().await {
        // If a task ended early, its requests get no answer, which the client notices.
        let done = taken_in.await.unwrap_or_default();
        wire::send_bytes(&mut to, &RequestEnd::encode(&done)).await?;
    }
    Ok(())
}

/// Checks the signatures of requests, if they have any, and replicates the commands.
async fn take_in<const SIGNED: bool>(
    validator: Validator<CountingMachine<SIGNED>>,
    puts: Vec<PutRequest>,
) -> Vec<RequestEnd> {
    let (numbers, commands): (Vec<u64>, Vec<Bytes>) = puts
        .into_iter()
        .map(|put| (put.number, put.payload))
        .unzip();
    let results = match verify_commands(&validator, commands).await {
        Some(commands) => validator.propose_all(commands).await.unwrap_or_default(),
        None => Vec::new(),
    };
    let applied = |place: usize| results.get(place).is_some_and(Result::is_ok);
    let numbers = numbers.into_iter().enumerate();
    numbers
        .map(|(place, number)| RequestEnd {
            number,
            applied: applied(place),
        })
        .collect()
}

/// Returns the commands if all of them may enter the log.
async fn verify_commands<const SIGNED: bool>(
    validator: &Validator<CountingMachine<SIGNED>>,
    commands: Vec<Bytes>,
) -> Option<Vec<Proposal<Number>>> {
    let verified = if SIGNED {
        validator.verify_each(commands).await.ok()?
    } else {
        Proposal::verify_each::<CountingMachine<SIGNED>>(commands)
    };
    verified.into_iter().collect::<Result<_, _>>().ok()
}
