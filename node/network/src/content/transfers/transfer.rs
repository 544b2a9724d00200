//! Receives one content: the receiver's side of `/souk/tensor/2`.
//!
//! It checks each frame by its hash, and keeps checked frames, no matter which peer sent them over
//! which carrier (a libp2p stream or a direct channel).

use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::io::BufReader;
use futures::{AsyncRead, AsyncReadExt};
use libp2p::PeerId;
use libp2p::swarm::Stream;
use souk_host::streaming;
use souk_memory::{
    Arrival, CheckedFrame, ContentId, CorruptFrame, FRAME_BYTES, Frame, Outline, OutlineError,
    Store, VerifiedContent,
};
use souk_roles::access::Scope;
use tokio::time::{Sleep, sleep};

use super::order::Gate;
use super::protocol::{ContentAnswer, ContentRequest, Want};
use super::{FetchError, SILENCE_MAX, with_timeout};
use crate::content::direct::{Breaker, Channel};
use crate::wire::{self, WireError};

/// How many bytes of a frame are read at once: they are hashed and copied while they are in the
/// processor's cache.
const PIECE_BYTES: usize = 64 << 10;

/// Why reading frames ended early.
enum TransferFault {
    Broken(WireError),
    Corrupt(CorruptFrame),
}

/// A stream to a peer, with a buffer for small answers.
pub(super) type TensorStream = BufReader<Stream>;

/// How far a request brought the transfer.
pub(super) enum TransferProgress {
    /// The content is complete.
    End,
    /// Only the head came, because the content is long enough for a direct channel.
    Head,
}

/// The duration of a transfer, as a measurement of the link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TransferTimes {
    /// From the request to the head of the answer.
    pub(super) answered: Option<Duration>,
    /// The bytes of the received frames, and how long they took.
    pub(super) bytes: u64,
    pub(super) moving: Duration,
}

/// A content on its way.
pub(super) struct Transfer {
    /// The job that needs it.
    scope: Scope,
    id: ContentId,
    /// The store that will keep it.
    store: Arc<Store>,
    bytes_max: u64,
    /// None until a peer has stated the outline of the content.
    arrival: Option<Arrival>,
    pub(super) measured: TransferTimes,
}

impl Transfer {
    pub(super) fn new(
        (scope, id): (Scope, ContentId),
        store: Arc<Store>,
        bytes_max: u64,
    ) -> Transfer {
        Transfer {
            scope,
            id,
            store,
            bytes_max,
            arrival: None,
            measured: TransferTimes::default(),
        }
    }

    pub(super) fn id(&self) -> ContentId {
        self.id
    }

    pub(super) fn scope(&self) -> Scope {
        self.scope
    }

    /// Returns the content, once [`TransferProgress::End`] was reached.
    pub(super) fn into_content(self) -> Option<VerifiedContent> {
        self.arrival?.finish()
    }

    /// Drops the received part of an incomplete frame.
    pub(super) fn drop_partial_frame(&mut self) {
        self.arrival.iter_mut().for_each(Arrival::on_interrupted);
    }

    /// Lets another peer restate the outline, as long as no frame is checked.
    pub(super) fn ask_another(&mut self) {
        self.drop_partial_frame();
        self.arrival.take_if(|arrival| arrival.next_frame() == 0);
    }

    /// Returns the number of the first missing frame.
    pub(super) fn next_frame(&self) -> u64 {
        self.arrival.as_ref().map_or(0, Arrival::next_frame)
    }

    /// Returns the request for the missing frames; of content above this length it wants only the
    /// head.
    pub(super) fn next_request(&self, body_bytes_max: u64) -> Want {
        Want {
            id: self.id,
            frame: self.next_frame(),
            outline: self.arrival.is_none(),
            body_bytes_max,
        }
    }

    /// Sends a request over a stream and receives the answer.
    pub(super) async fn over_stream(
        &mut self,
        peer: PeerId,
        line: &mut TensorStream,
        body_bytes_max: u64,
        gate: &mut Gate,
    ) -> Result<TransferProgress, FetchError> {
        let (scope, wants) = (self.scope, vec![self.next_request(body_bytes_max)]);
        let begin = Instant::now();
        let asked = with_timeout(wire::send(line, &ContentRequest { scope, wants })).await;
        asked.map_err(|cause| self.broken_error(cause))?;
        self.take_answer(peer, line, gate, Some(begin)).await
    }

    /// Receives the answer to a request that was sent at `begin`.
    pub(super) async fn take_answer(
        &mut self,
        peer: PeerId,
        line: &mut TensorStream,
        gate: &mut Gate,
        begin: Option<Instant>,
    ) -> Result<TransferProgress, FetchError> {
        let answer = with_timeout(wire::receive(line)).await;
        let answer = answer.map_err(|cause| self.broken_error(cause))?;
        self.measured.answered = begin.map(|begin| begin.elapsed());
        let follows = self.take_head(peer, answer)?;
        if !follows {
            return Ok(TransferProgress::Head);
        }
        let begin = Instant::now();
        self.frames_of_stream(peer, line, gate).await?;
        let mut buffer = Vec::new();
        while let Some(length) = self.next_length(gate) {
            buffer.resize(length, 0);
            gate.pass_bytes(length).await;
            let mut filled = 0;
            while filled < length {
                let reading = async { Ok(line.read(&mut buffer[filled..]).await?) };
                let read = with_timeout(reading)
                    .await
                    .map_err(|cause| self.broken_error(cause))?;
                if read == 0 {
                    return Err(self.broken_error(WireError::Stream(unexpected_eof())));
                }
                self.take_bytes(peer, &buffer[filled..filled + read])?;
                filled += read;
            }
        }
        self.record_duration(begin);
        self.check_complete(peer)
    }

    /// Reads whole frames from a stream, if the content has several, and checks each while its
    /// bytes are in the cache: passing them to another thread takes longer.
    async fn frames_of_stream(
        &mut self,
        peer: PeerId,
        line: &mut TensorStream,
        gate: &mut Gate,
    ) -> Result<(), FetchError> {
        let (mut right, mut ended) = (Vec::new(), Ok(()));
        let mut line = TimedReader::new(line);
        for mut frame in self.arrival_mut().missing_frames() {
            let filled = line.fill_frame(&mut frame, gate).await;
            ended = check_and_push(frame, filled, &mut right);
            if ended.is_err() {
                break;
            }
        }
        self.keep_checked(right);
        ended.map_err(|left| self.fault_error(peer, left))
    }

    /// Sends a request over a direct channel and receives the answer. It blocks its thread.
    pub(super) fn over_channel(
        &mut self,
        peer: PeerId,
        channel: &mut Channel,
        gate: &mut Gate,
    ) -> Result<TransferProgress, FetchError> {
        let (scope, wants) = (self.scope, vec![self.next_request(u64::MAX)]);
        let set = channel.set_patience(SILENCE_MAX);
        set.map_err(|error| self.broken_error(error.into()))?;
        let asked = channel.send_message(&ContentRequest { scope, wants });
        asked.map_err(|cause| self.broken_error(cause))?;
        let answer = channel.receive_message();
        let answer = answer.map_err(|cause| self.broken_error(cause))?;
        self.take_head(
            peer,
            answer.ok_or_else(|| self.broken_error(WireError::Closed))?,
        )?;
        let begin = Instant::now();
        self.frames_of_channel(peer, channel, gate)?;
        while let Some(length) = self.next_length(gate) {
            gate.pass_blocking(length);
            let mut left = length;
            while left > 0 {
                let mut taken = Ok(());
                let read =
                    channel.receive_up_to(left, |bytes| taken = self.take_bytes(peer, bytes));
                match read.map_err(|error| self.broken_error(error.into()))? {
                    0 => return Err(self.broken_error(WireError::Stream(unexpected_eof()))),
                    read => left -= read,
                }
                taken?;
            }
        }
        self.record_duration(begin);
        self.check_complete(peer)
    }

    /// Reads whole frames from a direct channel, record by record as they are decrypted.
    fn frames_of_channel(
        &mut self,
        peer: PeerId,
        channel: &mut Channel,
        gate: &mut Gate,
    ) -> Result<(), FetchError> {
        let (mut right, mut ended) = (Vec::new(), Ok(()));
        for mut frame in self.arrival_mut().missing_frames() {
            let filled = fill_frame_direct(channel, &mut frame, gate);
            ended = check_and_push(frame, filled, &mut right);
            if ended.is_err() {
                break;
            }
        }
        self.keep_checked(right);
        ended.map_err(|left| self.fault_error(peer, left))
    }

    fn arrival_mut(&mut self) -> &mut Arrival {
        self.arrival.as_mut().expect("a head came before the bytes")
    }

    fn keep_checked(&mut self, frames: Vec<CheckedFrame>) {
        let arrival = self.arrival_mut();
        let before = arrival.missing_bytes();
        for frame in frames {
            arrival.on_checked(frame);
        }
        self.measured.bytes += before - arrival.missing_bytes();
    }

    fn fault_error(&self, peer: PeerId, left: TransferFault) -> FetchError {
        match left {
            TransferFault::Broken(cause) => self.broken_error(cause),
            TransferFault::Corrupt(CorruptFrame { frame, .. }) => self.corrupt_error(peer, frame),
        }
    }

    fn record_duration(&mut self, begin: Instant) {
        self.measured.moving = begin.elapsed();
    }

    fn check_complete(&self, peer: PeerId) -> Result<TransferProgress, FetchError> {
        match &self.arrival {
            Some(arrival) if arrival.is_complete() => Ok(TransferProgress::End),
            _ => Err(self.corrupt_error(peer, 0)),
        }
    }

    /// Checks the head of an answer, which must come before any bytes, and returns whether they
    /// follow.
    fn take_head(&mut self, peer: PeerId, answer: ContentAnswer) -> Result<bool, FetchError> {
        let id = self.id;
        let ContentAnswer::Content {
            length,
            frames,
            follows,
        } = answer
        else {
            return Err(FetchError::Missing { peer, id });
        };
        if length > self.bytes_max {
            let limit = self.bytes_max;
            return Err(FetchError::TooLong { id, length, limit });
        }
        match &mut self.arrival {
            Some(arrival) if arrival.outline().length() == length => {}
            Some(arrival) => {
                let restated = arrival.restate_length(length);
                restated.map_err(|cause| outline_error(peer, id, cause))?;
            }
            None => {
                let stated = Outline::from_hashes(id, length, frames);
                let outline = stated.map_err(|cause| outline_error(peer, id, cause))?;
                self.arrival = Some(self.store.new_arrival(outline));
            }
        }
        self.measured.bytes = 0;
        Ok(follows)
    }

    /// Returns how many bytes to read next, at most a frame; none at the end.
    fn next_length(&self, gate: &Gate) -> Option<usize> {
        let arrival = self.arrival.as_ref()?;
        let left = usize::try_from(arrival.missing_bytes()).unwrap_or(usize::MAX);
        (left > 0).then_some(left.min(gate.piece_bytes(FRAME_BYTES)))
    }

    fn take_bytes(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), FetchError> {
        self.measured.bytes += bytes.len() as u64;
        let (id, taken) = (self.id, self.arrival_mut().push_bytes(bytes));
        taken.map_err(|corrupt| FetchError::Corrupt {
            peer,
            id,
            frame: corrupt.frame,
        })
    }

    fn broken_error(&self, cause: WireError) -> FetchError {
        FetchError::Broken { id: self.id, cause }
    }

    fn corrupt_error(&self, peer: PeerId, frame: u64) -> FetchError {
        let id = self.id;
        FetchError::Corrupt { peer, id, frame }
    }
}

/// Fetches the rest over a direct channel on a blocking thread. If the future is dropped, the
/// channel ends, so that the thread and the sender stop at once.
pub(super) async fn on_a_thread(
    mut transfer: Transfer,
    peer: PeerId,
    mut channel: Channel,
    mut gate: Gate,
) -> (Transfer, Gate, Result<Channel, FetchError>) {
    let id = transfer.id;
    let broken = |cause: io::Error| FetchError::Broken {
        id,
        cause: cause.into(),
    };
    let breaker: Breaker = match channel.new_breaker() {
        Ok(breaker) => breaker,
        Err(error) => return (transfer, gate, Err(broken(error))),
    };
    let moving = tokio::task::spawn_blocking(move || {
        let reached = transfer.over_channel(peer, &mut channel, &mut gate);
        (transfer, gate, reached.map(|_| channel))
    });
    let moved = moving.await.expect("moving bytes does not panic");
    breaker.disarm();
    moved
}

/// Reads from a stream, and fails if it is silent for [`SILENCE_MAX`]. One timer serves all reads,
/// because a gigabyte takes tens of thousands.
struct TimedReader<'l> {
    line: &'l mut TensorStream,
    timer: Pin<Box<Sleep>>,
    heard: Instant,
    /// Empty until there is a frame to fill, because many contents are small.
    piece: Vec<u8>,
}

impl<'l> TimedReader<'l> {
    fn new(line: &'l mut TensorStream) -> TimedReader<'l> {
        TimedReader {
            line,
            timer: Box::pin(sleep(SILENCE_MAX)),
            heard: Instant::now(),
            piece: Vec::new(),
        }
    }

    /// Reads at least one byte into a part of the piece.
    async fn read(&mut self, part: Range<usize>) -> Result<usize, WireError> {
        let read = poll_fn(|context| self.poll_read(context, part.clone())).await;
        match read? {
            0 => Err(WireError::Stream(unexpected_eof())),
            read => Ok(read),
        }
    }

    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        part: Range<usize>,
    ) -> Poll<io::Result<usize>> {
        let piece = &mut self.piece[part];
        if let Poll::Ready(read) = Pin::new(&mut *self.line).poll_read(context, piece) {
            self.heard = Instant::now();
            return Poll::Ready(read);
        }
        while self.timer.as_mut().poll(context).is_ready() {
            let until = self.heard + SILENCE_MAX;
            if until <= Instant::now() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.timer.as_mut().reset(until.into());
        }
        Poll::Pending
    }

    /// Fills a frame. Waiting at the gate does not count as silence.
    async fn fill_frame(
        &mut self,
        frame: &mut Frame<'_>,
        gate: &mut Gate,
    ) -> Result<(), WireError> {
        self.piece.resize(PIECE_BYTES, 0);
        while frame.missing_bytes() > 0 {
            let piece = gate.piece_bytes(frame.missing_bytes());
            gate.pass_bytes(piece).await;
            self.heard = Instant::now();
            let end = frame.missing_bytes() - piece;
            while frame.missing_bytes() > end {
                let length = (frame.missing_bytes() - end).min(PIECE_BYTES);
                let mut filled = 0;
                while filled < length {
                    filled += self.read(filled..length).await?;
                }
                frame.push_bytes(&self.piece[..length], streaming::stream_copy);
            }
        }
        Ok(())
    }
}

/// Fills a frame from a direct channel.
fn fill_frame_direct(
    channel: &mut Channel,
    frame: &mut Frame<'_>,
    gate: &mut Gate,
) -> Result<(), WireError> {
    while frame.missing_bytes() > 0 {
        let piece = gate.piece_bytes(frame.missing_bytes());
        gate.pass_blocking(piece);
        channel.receive_exact(piece, |bytes| {
            frame.push_bytes(bytes, streaming::stream_copy)
        })?;
    }
    Ok(())
}

/// Checks a filled frame and adds it to `right`.
fn check_and_push(
    frame: Frame<'_>,
    filled: Result<(), WireError>,
    right: &mut Vec<CheckedFrame>,
) -> Result<(), TransferFault> {
    filled.map_err(TransferFault::Broken)?;
    right.push(frame.into_checked().map_err(TransferFault::Corrupt)?);
    Ok(())
}

fn outline_error(peer: PeerId, id: ContentId, cause: OutlineError) -> FetchError {
    let cause = Box::new(cause);
    FetchError::Outline { peer, id, cause }
}

fn unexpected_eof() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}
