//! The replicated log's line between validators: `/souk/raft/1`, one-way streams of frames.
//!
//! Each validator opens one stream to each other and keeps it. What cannot be sent is dropped, as
//! raft allows: it sends again what matters. A stream is taken only from a peer that the market's
//! file names as a validator, and speaks for that validator's id alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use libp2p::PeerId;
use libp2p::swarm::{Stream, StreamProtocol};
use souk_consensus::wire::Envelope;
use souk_consensus::{ReplicaId, StateMachine};
use tokio::sync::mpsc;

use crate::network::Network;
use crate::validator::Validator;
use crate::wire;

/// The protocol's name.
pub const PROTOCOL: StreamProtocol = StreamProtocol::new("/souk/raft/1");

/// Messages waiting for one peer: more than a round of a few hundred entries; older ones are of no
/// use to raft once newer ones wait.
const WAITING_MAX: usize = 1024;

/// Streams from other validators at a time: a few for each, while connections change.
const STREAMS_MAX: usize = 64;

/// The pause before a peer that could not be reached is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Takes messages of `peers` for `validator`.
pub fn receive<M: StateMachine + Send + 'static>(
    network: &Network,
    validator: Validator<M>,
    peers: HashMap<PeerId, ReplicaId>,
) {
    let peers = Arc::new(peers);
    network.serve(PROTOCOL, STREAMS_MAX, move |peer, stream| {
        let (validator, from) = (validator.clone(), peers.get(&peer).copied());
        async move {
            match from {
                Some(from) => listen(&validator, from, stream).await,
                None => tracing::warn!(%peer, "a peer that is no validator spoke raft"),
            }
        }
    });
}

/// Sends what comes from `outbound` to the peers it is for, until the channel closes.
pub async fn send(
    network: Network,
    mut outbound: mpsc::Receiver<Envelope>,
    peers: HashMap<PeerId, ReplicaId>,
) {
    let lines: HashMap<ReplicaId, mpsc::Sender<Bytes>> = peers
        .into_iter()
        .map(|(peer, id)| {
            let (line, waiting) = mpsc::channel(WAITING_MAX);
            tokio::spawn(keep_line(network.clone(), peer, waiting));
            (id, line)
        })
        .collect();
    while let Some(envelope) = outbound.recv().await {
        if let Some(line) = lines.get(&envelope.to) {
            // A full line is a peer that is gone or slow; raft sends again.
            let _ = line.try_send(envelope.bytes);
        }
    }
}

async fn listen<M: StateMachine + Send + 'static>(
    validator: &Validator<M>,
    from: ReplicaId,
    mut stream: Stream,
) {
    loop {
        match wire::receive_bytes(&mut stream).await {
            Ok(Some(frame)) => {
                validator.peer_message(from, frame.into());
            }
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(%from, %error, "a validator's stream broke");
                return;
            }
        }
    }
}

/// Keeps one stream to one peer and sends what waits.
async fn keep_line(network: Network, peer: PeerId, mut waiting: mpsc::Receiver<Bytes>) {
    while let Some(first) = waiting.recv().await {
        let mut stream = match network.open(peer, PROTOCOL).await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%peer, %error, "a validator is not reached");
                tokio::time::sleep(RETRY_PAUSE).await;
                continue;
            }
        };
        let mut next = Some(first);
        while let Some(frame) = next {
            if let Err(error) = wire::send_bytes(&mut stream, &frame).await {
                tracing::debug!(%peer, %error, "a validator's line broke");
                break;
            }
            next = waiting.recv().await;
        }
    }
}
