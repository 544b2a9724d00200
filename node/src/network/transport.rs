//! What carries all protocols: TCP, noise on it, and yamux's streams within.
//!
//! The parts are libp2p's, and so is what they say to each other. Put together its way, they ask
//! the system for 8 KiB at a time and give it 16, and hundreds of megabytes may lie here for a
//! reader that is slow. Here both go by 64 KiB, and what lies here is bounded: a receiver whose
//! bytes stay in the processor's cache needs three quarters of the processor time.

use std::collections::VecDeque;
use std::iter;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use futures::future::{self, Ready};
use futures::io::BufReader;
use futures::{AsyncRead, AsyncWrite};
use libp2p::core::Transport;
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use libp2p::core::upgrade::{
    InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo, Version,
};
use libp2p::identity::Keypair;
use libp2p::{PeerId, noise, tcp};
use yamux::{Connection, ConnectionError, Mode};

/// Streams at a time over one connection.
const STREAMS_MAX: usize = 1024;

/// Streams that the other end has opened and nobody has taken yet: as many as it opens without
/// having had an answer to one.
const UNTAKEN_MAX: usize = 256;

/// What noise puts into one message.
const NOISE_BYTES: usize = 65_535 - 1024;

/// Bytes before each of yamux's frames.
const HEADER_BYTES: usize = 12;

/// What yamux sends of a stream at once: with its header it fills one message of noise. What else
/// is to be sent waits for no more than this.
const SENT_BYTES: usize = NOISE_BYTES - HEADER_BYTES;

/// Bytes that are asked of the system at once.
const READ_BYTES: usize = 64 << 10;

/// As many as noise's codec asks for at once.
const PLAIN_READ_BYTES: usize = 8 << 10;

/// What may lie here of the streams of one connection beyond the 256 KiB that each of them has:
/// about what Linux lets a connection have on its way.
const WINDOW_BYTES: usize = 4 << 20;

/// What yamux gives each stream.
const WINDOW_EACH_BYTES: usize = 256 << 10;

/// By how much a connection reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pieces {
    /// By 64 KiB, with 4 MiB for readers that are slow.
    #[default]
    Large,
    /// As libp2p's own builder has it, to compare with.
    Plain,
}

/// TCP with everything above it.
///
/// # Errors
/// When the encryption layer refuses the key.
pub(super) fn over_tcp(
    key: &Keypair,
    pieces: Pieces,
) -> Result<
    impl Transport<
        Output = (
            PeerId,
            impl StreamMuxer<Substream: Send, Error: Send + Sync> + Send + 'static,
        ),
        Error: Send + Sync,
        Dial: Send,
        ListenerUpgrade: Send,
    > + Send
    + Unpin
    + 'static,
    noise::Error,
> {
    let config = tcp::Config::default().nodelay(true);
    let read_bytes = match pieces {
        Pieces::Large => READ_BYTES,
        // Nobody asks for less, so nothing is ever put by.
        Pieces::Plain => PLAIN_READ_BYTES,
    };
    Ok(tcp::tokio::Transport::new(config)
        .map(move |stream, _| BufReader::with_capacity(read_bytes, stream))
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(key)?)
        .multiplex(Multiplexing(pieces)))
}

/// Many streams over one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Multiplexing(pub(super) Pieces);

impl Multiplexing {
    fn over<C>(self, socket: C, mode: Mode) -> ConnectionStreams<C>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let mut config = yamux::Config::default();
        config.set_max_num_streams(STREAMS_MAX);
        if self.0 == Pieces::Large {
            config.set_split_send_size(SENT_BYTES);
            let window = STREAMS_MAX * WINDOW_EACH_BYTES + WINDOW_BYTES;
            config.set_max_connection_receive_window(Some(window));
        }
        ConnectionStreams {
            connection: Connection::new(socket, config, mode),
            untaken: VecDeque::new(),
            taker: None,
        }
    }
}

impl UpgradeInfo for Multiplexing {
    type Info = &'static str;
    type InfoIter = iter::Once<Self::Info>;

    fn protocol_info(&self) -> Self::InfoIter {
        iter::once("/yamux/1.0.0")
    }
}

impl<C> InboundConnectionUpgrade<C> for Multiplexing
where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = ConnectionStreams<C>;
    type Error = ConnectionError;
    type Future = Ready<Result<Self::Output, Self::Error>>;

    fn upgrade_inbound(self, socket: C, _: Self::Info) -> Self::Future {
        future::ready(Ok(self.over(socket, Mode::Server)))
    }
}

impl<C> OutboundConnectionUpgrade<C> for Multiplexing
where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = ConnectionStreams<C>;
    type Error = ConnectionError;
    type Future = Ready<Result<Self::Output, Self::Error>>;

    fn upgrade_outbound(self, socket: C, _: Self::Info) -> Self::Future {
        future::ready(Ok(self.over(socket, Mode::Client)))
    }
}

/// The streams of one connection.
pub(super) struct ConnectionStreams<C> {
    connection: Connection<C>,
    /// Whoever drives the connection may come upon streams that somebody else is to take.
    untaken: VecDeque<yamux::Stream>,
    taker: Option<Waker>,
}

impl<C: AsyncRead + AsyncWrite + Unpin> ConnectionStreams<C> {
    /// Drives the connection up to the next stream that the other end opened.
    fn poll_opened(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<yamux::Stream, ConnectionError>> {
        let opened = ready!(self.connection.poll_next_inbound(context));
        Poll::Ready(opened.unwrap_or(Err(ConnectionError::Closed)))
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> StreamMuxer for ConnectionStreams<C> {
    type Substream = yamux::Stream;
    type Error = ConnectionError;

    fn poll_inbound(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        if let Some(stream) = self.untaken.pop_front() {
            return Poll::Ready(Ok(stream));
        }
        let opened = self.poll_opened(context);
        if opened.is_pending() {
            self.taker = Some(context.waker().clone());
        }
        opened
    }

    fn poll_outbound(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        self.connection.poll_new_outbound(context)
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Self::Error>> {
        self.connection.poll_close(context)
    }

    fn poll(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<StreamMuxerEvent, Self::Error>> {
        let stream = ready!(self.poll_opened(context))?;
        if self.untaken.len() < UNTAKEN_MAX {
            self.untaken.push_back(stream);
            if let Some(taker) = self.taker.take() {
                taker.wake();
            }
        } else {
            tracing::warn!(%stream, "a stream is refused: too many wait already");
        }
        // There may be more: others have their turn before it.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
