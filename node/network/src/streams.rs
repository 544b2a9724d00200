//! Opens and accepts the streams of souk's protocols over the swarm's connections, by peer and
//! protocol name. Every protocol uses it through the handle `Network`.
//!
//! An incoming stream waits until its acceptor takes it, and many can wait: peers open several at
//! once, and on a busy machine the acceptor runs later. An implementation that holds one and
//! silently resets the others loses offers between providers, and with them whole rounds of a job.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use libp2p::PeerId;
use libp2p::core::transport::PortUse;
use libp2p::core::upgrade::{InboundUpgrade, OutboundUpgrade, UpgradeInfo};
use libp2p::core::{Endpoint, Multiaddr};
use libp2p::swarm::behaviour::ConnectionClosed;
use libp2p::swarm::handler::{
    ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound,
};
use libp2p::swarm::{
    ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm,
    NetworkBehaviour, Stream, StreamProtocol, StreamUpgradeError, SubstreamProtocol, THandler,
    THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use tokio::sync::{mpsc, oneshot};

/// Incoming streams of one protocol that can wait for their acceptor: as many as a few busy peers
/// can have open. Streams beyond that are reset.
const WAITING_MAX: usize = 256;

/// Requests for streams that can wait on one connection; further callers wait to submit theirs.
const WANTED_MAX: usize = 64;

/// An incoming stream and its peer.
pub(super) type IncomingStream = (PeerId, Stream);

/// Why a stream could not be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    /// The peer does not speak the protocol.
    #[error("the peer does not speak the protocol")]
    Unspoken,
    /// There is no connection, or it broke.
    #[error(transparent)]
    Broken(#[from] io::Error),
}

/// The streams of a swarm: its behaviour, and the handle to it in one.
#[derive(Clone, Default)]
pub(super) struct Streams(Arc<Mutex<StreamTable>>);

#[derive(Default)]
struct StreamTable {
    /// The tasks that take the streams of each protocol.
    acceptors: HashMap<StreamProtocol, mpsc::Sender<IncomingStream>>,
    /// The connections of a peer, in the order in which they were established.
    connections: HashMap<PeerId, Vec<(ConnectionId, mpsc::Sender<StreamRequest>)>>,
}

/// A request for a stream.
struct StreamRequest {
    protocol: StreamProtocol,
    tell: Asker,
}

/// The channel back to the caller that requested a stream.
type Asker = oneshot::Sender<Result<Stream, StreamError>>;

impl Streams {
    /// Opens a stream over one of several connections to `peer`, of which the youngest is number 0,
    /// because the better route is found later.
    pub(super) async fn open_stream(
        &self,
        peer: PeerId,
        protocol: StreamProtocol,
        number: usize,
    ) -> Result<Stream, StreamError> {
        let way = self
            .lock_table()
            .way_to(peer, number)
            .ok_or_else(unconnected_error)?;
        let (tell, told) = oneshot::channel();
        let asked = way.send(StreamRequest { protocol, tell }).await;
        asked.map_err(|_| unconnected_error())?;
        told.await.map_err(|_| unconnected_error())?
    }

    /// Returns the number of connections to a peer.
    pub(super) fn connection_count(&self, peer: PeerId) -> usize {
        self.lock_table().connections.get(&peer).map_or(0, Vec::len)
    }

    /// Returns the streams that arrive for a protocol from now on; none if another task takes them
    /// already.
    pub(super) fn accept_streams(
        &self,
        protocol: StreamProtocol,
    ) -> Option<mpsc::Receiver<IncomingStream>> {
        let mut inner = self.lock_table();
        let acceptors = &mut inner.acceptors;
        if acceptors.get(&protocol).is_some_and(|one| !one.is_closed()) {
            return None;
        }
        let (give, take) = mpsc::channel(WAITING_MAX);
        acceptors.insert(protocol, give);
        Some(take)
    }

    /// Registers a new connection, and returns its handler, which receives the requests.
    fn register_connection(&self, peer: PeerId, id: ConnectionId) -> Handler {
        let (ask, wanted) = mpsc::channel(WANTED_MAX);
        let mut inner = self.lock_table();
        inner.connections.entry(peer).or_default().push((id, ask));
        let streams = self.clone();
        Handler {
            peer,
            streams,
            wanted,
        }
    }

    fn lock_table(&self) -> MutexGuard<'_, StreamTable> {
        // No code under this lock panics half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamTable {
    /// Returns an open connection, the youngest first, and forgets those that were denied after
    /// all.
    fn way_to(&mut self, peer: PeerId, number: usize) -> Option<mpsc::Sender<StreamRequest>> {
        let open = self.connections.get_mut(&peer)?;
        open.retain(|(_, way)| !way.is_closed());
        open.iter().rev().nth(number).map(|(_, way)| way.clone())
    }

    fn on_stream(&mut self, peer: PeerId, stream: Stream, protocol: &StreamProtocol) {
        let Some(acceptor) = self.acceptors.get(protocol) else {
            return;
        };
        if let Err(refused) = acceptor.try_send((peer, stream)) {
            // Dropping the stream resets it, so the peer learns this at once.
            tracing::warn!(%peer, %protocol, %refused, "dropped an incoming stream");
        }
    }

    fn live_protocols(&mut self) -> Vec<StreamProtocol> {
        self.acceptors.retain(|_, acceptor| !acceptor.is_closed());
        self.acceptors.keys().cloned().collect()
    }
}

fn unconnected_error() -> StreamError {
    StreamError::Broken(io::ErrorKind::NotConnected.into())
}

/// The handler of streams on one connection.
pub(super) struct Handler {
    peer: PeerId,
    streams: Streams,
    wanted: mpsc::Receiver<StreamRequest>,
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Infallible;
    type ToBehaviour = Infallible;
    type InboundProtocol = StreamNames;
    type OutboundProtocol = StreamNames;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = Asker;

    fn listen_protocol(&self) -> SubstreamProtocol<StreamNames> {
        SubstreamProtocol::new(StreamNames(self.streams.lock_table().live_protocols()), ())
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<StreamNames, Asker, Infallible>> {
        while let Poll::Ready(Some(StreamRequest { protocol, tell })) =
            self.wanted.poll_recv(context)
        {
            if tell.is_closed() {
                continue;
            }
            return Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest {
                protocol: SubstreamProtocol::new(StreamNames(vec![protocol]), tell),
            });
        }
        Poll::Pending
    }

    fn on_behaviour_event(&mut self, event: Infallible) {
        match event {}
    }

    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<'_, StreamNames, StreamNames, (), Asker>,
    ) {
        // The send fails only if the caller no longer waits.
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound {
                protocol: (stream, protocol),
                ..
            }) => self
                .streams
                .lock_table()
                .on_stream(self.peer, stream, &protocol),
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound {
                protocol: (stream, _),
                info: tell,
            }) => drop(tell.send(Ok(stream))),
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info: tell, error }) => {
                let error = match error {
                    StreamUpgradeError::Timeout => io::Error::from(io::ErrorKind::TimedOut).into(),
                    StreamUpgradeError::NegotiationFailed => StreamError::Unspoken,
                    StreamUpgradeError::Io(error) => error.into(),
                    StreamUpgradeError::Apply(never) => match never {},
                };
                drop(tell.send(Err(error)));
            }
            _ => {}
        }
    }
}

/// The protocols that a stream can have; agreement yields the stream and its protocol.
pub(super) struct StreamNames(Vec<StreamProtocol>);

impl UpgradeInfo for StreamNames {
    type Info = StreamProtocol;
    type InfoIter = std::vec::IntoIter<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.clone().into_iter()
    }
}

impl InboundUpgrade<Stream> for StreamNames {
    type Output = (Stream, StreamProtocol);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_inbound(self, stream: Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((stream, protocol)))
    }
}

impl OutboundUpgrade<Stream> for StreamNames {
    type Output = (Stream, StreamProtocol);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_outbound(self, stream: Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((stream, protocol)))
    }
}

impl NetworkBehaviour for Streams {
    type ConnectionHandler = Handler;
    type ToSwarm = Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.register_connection(peer, id))
    }

    fn handle_established_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.register_connection(peer, id))
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        if let FromSwarm::ConnectionClosed(ConnectionClosed {
            peer_id: peer,
            connection_id: closed,
            ..
        }) = event
        {
            let mut inner = self.lock_table();
            if let Some(open) = inner.connections.get_mut(&peer) {
                open.retain(|(id, way)| *id != closed && !way.is_closed());
                if open.is_empty() {
                    inner.connections.remove(&peer);
                }
            }
        }
    }

    fn on_connection_handler_event(
        &mut self,
        _: PeerId,
        _: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Infallible, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}
