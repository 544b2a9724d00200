//! Builds the transport under all protocols: TCP, noise on top, and streams of yamux within.
//!
//! The layers, and therefore their formats, are libp2p's. In libp2p's own setup they read 8 KiB
//! from the system at a time, send 16 KiB, and can buffer hundreds of megabytes for a slow reader.
//! Here both sizes are 64 KiB and the buffers are bounded. Bytes then stay in the processor's
//! cache, and a receiver needs a quarter less processor time.

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

/// Streams on one connection at a time.
const STREAMS_MAX: usize = 1024;

/// Streams that the other end has opened and no task has taken yet: as many as it opens before it
/// has an answer to one.
const UNTAKEN_MAX: usize = 256;

/// The payload of one noise message.
const NOISE_BYTES: usize = 65_535 - 1024;

/// Bytes of the header of a yamux frame.
const HEADER_BYTES: usize = 12;

/// The most that yamux sends of one stream at once: with its header it fills one noise message.
/// Other streams wait for no more than this.
const SENT_BYTES: usize = NOISE_BYTES - HEADER_BYTES;

/// Bytes requested from the system at once.
const READ_BYTES: usize = 64 << 10;

/// As many as noise's codec requests at once.
const PLAIN_READ_BYTES: usize = 8 << 10;

/// Buffered bytes for all streams of one connection, beyond the 256 KiB of each: about as much as
/// Linux lets a connection have in flight.
const WINDOW_BYTES: usize = 4 << 20;

/// The window that yamux grants each stream.
const WINDOW_EACH_BYTES: usize = 256 << 10;

/// The sizes in which a connection reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pieces {
    /// 64 KiB, with 4 MiB for slow readers.
    #[default]
    Large,
    /// The sizes of libp2p's own builder, for comparison.
    Plain,
}

/// Returns TCP with all layers above it.
///
/// # Errors
/// If the encryption layer refuses the key.
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
        // No reader requests less, so the buffer never holds anything back.
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
    fn wrap_socket<C>(self, socket: C, mode: Mode) -> ConnectionStreams<C>
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
        future::ready(Ok(self.wrap_socket(socket, Mode::Server)))
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
        future::ready(Ok(self.wrap_socket(socket, Mode::Client)))
    }
}

/// The streams of one connection.
pub(super) struct ConnectionStreams<C> {
    connection: Connection<C>,
    /// Streams that the other end opened and that the task which drives the connection must pass
    /// on.
    untaken: VecDeque<yamux::Stream>,
    taker: Option<Waker>,
}

impl<C: AsyncRead + AsyncWrite + Unpin> ConnectionStreams<C> {
    /// Drives the connection until the other end opens the next stream.
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
            tracing::warn!(%stream, "refused a stream: too many are waiting");
        }
        // There can be more, but other tasks come first.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
