//! Carries raft's messages between validators over `/souk/raft/2`, in one-way streams of frames.
//!
//! Each validator opens one stream to each other and keeps it. It drops messages that it cannot
//! send, as raft allows: raft repeats the important ones. It will accept a stream only from a peer
//! that the roster (the replicated list of the validators) names, and only messages with that
//! validator's id. Both follow the roster.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use libp2p::PeerId;
use libp2p::swarm::{Stream, StreamProtocol};
use souk_consensus::ReplicaId;
use souk_consensus::wire::{self as raft_wire, Envelope};
use souk_network::Network;
use souk_network::wire;
use souk_proof::note::NOTE_BYTES_MAX;
use souk_roles::validator::questions::AnsweringMachine;
use tokio::sync::{mpsc, watch};

use crate::validator::Validator;

/// The protocol's name.
pub const PROTOCOL: StreamProtocol = StreamProtocol::new("/souk/raft/2");

/// Messages that can wait for one peer: more than a round of a few hundred entries; older ones are
/// useless to raft once newer ones wait.
const WAITING_MAX: usize = 1024;

/// Streams from other validators at a time: a few for each while connections change.
const STREAMS_MAX: usize = 64;

/// Messages sent with one write; a few of a megabyte each use the most memory.
const TOGETHER_MAX: usize = 8;

/// The pause before the validator tries an unreachable peer again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The current validators other than this one, by peer.
pub type Peers = Arc<HashMap<PeerId, ReplicaId>>;

/// Receives messages of `peers` for `validator`, and cosigned notes for `notes`.
pub fn receive<M: AnsweringMachine<Command: Send> + Send + 'static>(
    network: &Network,
    validator: Validator<M>,
    notes: mpsc::Sender<(ReplicaId, Bytes)>,
    peers: watch::Receiver<Peers>,
) {
    network.serve_protocol(PROTOCOL, STREAMS_MAX, move |peer, stream| {
        let (validator, notes) = (validator.clone(), notes.clone());
        let mut peers = peers.clone();
        let from = peers.borrow_and_update().get(&peer).copied();
        async move {
            let Some(from) = from else {
                // The level is low, because any peer can cause this a hundred times a second.
                tracing::debug!(%peer, "closed a raft stream from a peer that is not a validator");
                return;
            };
            let unseated = async {
                let left = peers.wait_for(|peers| peers.get(&peer) != Some(&from));
                // Without a sender the peers no longer change.
                if left.await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = listen(&validator, &notes, from, stream) => {}
                () = unseated => tracing::info!(%from, "a validator left; its stream is closed"),
            }
        }
    });
}

/// The connection to a peer; dropping it closes it.
struct PeerConnection {
    peer: PeerId,
    waiting: mpsc::Sender<Bytes>,
}

/// Sends each message from `outbound` to its peer, until the channel closes.
pub async fn send<M: AnsweringMachine<Command: Send> + Send + 'static>(
    network: Network,
    validator: Validator<M>,
    mut outbound: mpsc::Receiver<Envelope>,
    mut peers: watch::Receiver<Peers>,
) {
    let open = |peer: PeerId, id: ReplicaId| {
        let (line, waiting) = mpsc::channel(WAITING_MAX);
        let (network, validator) = (network.clone(), validator.clone());
        tokio::spawn(async move {
            let unreachable = || validator.report_unreachable(id);
            keep_line(network, peer, waiting, unreachable).await;
        });
        PeerConnection {
            peer,
            waiting: line,
        }
    };
    let mut lines: HashMap<ReplicaId, PeerConnection> = HashMap::new();
    while let Some(envelope) = outbound.recv().await {
        // Without a sender the peers stay as they are.
        if lines.is_empty() || peers.has_changed().unwrap_or(false) {
            update_lines(open, &mut lines, &peers.borrow_and_update());
        }
        if let Some(line) = lines.get(&envelope.to) {
            // If the queue is full, the peer is gone or slow; raft repeats the message.
            let _ = line.waiting.try_send(envelope.bytes);
        }
    }
}

/// Closes the connections to peers that left and opens those to new ones.
fn update_lines(
    open: impl Fn(PeerId, ReplicaId) -> PeerConnection,
    lines: &mut HashMap<ReplicaId, PeerConnection>,
    peers: &Peers,
) {
    lines.retain(|id, line| peers.get(&line.peer) == Some(id));
    for (peer, id) in peers.iter() {
        lines.entry(*id).or_insert_with(|| open(*peer, *id));
    }
}

async fn listen<M: AnsweringMachine<Command: Send> + Send + 'static>(
    validator: &Validator<M>,
    notes: &mpsc::Sender<(ReplicaId, Bytes)>,
    from: ReplicaId,
    mut stream: Stream,
) {
    loop {
        match wire::receive_bytes(&mut stream).await {
            Ok(Some(frame)) => {
                let frame = Bytes::from(frame);
                match raft_wire::cosigned_note(&frame) {
                    // A full queue loses it; a later head replaces it.
                    // No note of an honest validator is longer; a queue of such would fill memory.
                    Some(note) if note.len() > NOTE_BYTES_MAX => {
                        tracing::debug!(%from, bytes = note.len(), "a long note was dropped");
                    }
                    Some(note) => drop(notes.try_send((from, note))),
                    None => drop(validator.peer_message(from, frame)),
                }
            }
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(%from, %error, "a validator's stream broke");
                return;
            }
        }
    }
}

/// Keeps one stream to one peer and sends the queued messages; reports when the peer cannot be
/// reached.
async fn keep_line(
    network: Network,
    peer: PeerId,
    mut waiting: mpsc::Receiver<Bytes>,
    unreachable: impl Fn(),
) {
    while let Some(first) = waiting.recv().await {
        let mut stream = match network.open_stream(peer, PROTOCOL).await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%peer, %error, "a validator could not be reached");
                unreachable();
                tokio::time::sleep(RETRY_PAUSE).await;
                continue;
            }
        };
        let mut frames = vec![first];
        while !frames.is_empty() {
            let bytes = frames.iter().map(Bytes::as_ref);
            if let Err(error) = wire::send_all(&mut stream, bytes).await {
                tracing::debug!(%peer, %error, "sending to a validator failed");
                unreachable();
                break;
            }
            frames.clear();
            waiting.recv_many(&mut frames, TOGETHER_MAX).await;
        }
    }
}
