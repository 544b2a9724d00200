//! The receiver's side of `/souk/tensor/2`: one content on its way.
//!
//! It keeps checked frames, no matter which peer sent them over which carrier.

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
use super::{FetchError, SILENCE_MAX, patient};
use crate::content::direct::{Breaker, Channel};
use crate::network::wire::{self, WireError};

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
    pub(super) fn finish(self) -> Option<VerifiedContent> {
        self.arrival?.finish()
    }

    /// Drops the received part of an incomplete frame.
    pub(super) fn interrupted(&mut self) {
        self.arrival.iter_mut().for_each(Arrival::interrupted);
    }

    /// Lets another peer restate the outline, as long as no frame is checked.
    pub(super) fn ask_another(&mut self) {
        self.interrupted();
        self.arrival.take_if(|arrival| arrival.next_frame() == 0);
    }

    /// Returns the number of the first missing frame.
    pub(super) fn next_frame(&self) -> u64 {
        self.arrival.as_ref().map_or(0, Arrival::next_frame)
    }

    /// Returns the request for the missing frames; of content above this length it wants only the
    /// head.
    pub(super) fn want(&self, body_bytes_max: u64) -> Want {
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
        let (scope, wants) = (self.scope, vec![self.want(body_bytes_max)]);
        let begin = Instant::now();
        let asked = patient(wire::send(line, &ContentRequest { scope, wants })).await;
        asked.map_err(|cause| self.broken(cause))?;
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
        let answer = patient(wire::receive(line)).await;
        let answer = answer.map_err(|cause| self.broken(cause))?;
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
            gate.pass(length).await;
            let mut filled = 0;
            while filled < length {
                let reading = async { Ok(line.read(&mut buffer[filled..]).await?) };
                let read = patient(reading).await.map_err(|cause| self.broken(cause))?;
                if read == 0 {
                    return Err(self.broken(WireError::Stream(ended())));
                }
                self.take(peer, &buffer[filled..filled + read])?;
                filled += read;
            }
        }
        self.moved(begin);
        self.ended(peer)
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
        let mut line = Patient::new(line);
        for mut frame in self.arriving().frames() {
            let filled = line.fill(&mut frame, gate).await;
            ended = kept(frame, filled, &mut right);
            if ended.is_err() {
                break;
            }
        }
        self.keep_checked(right);
        ended.map_err(|left| self.left(peer, left))
    }

    /// Sends a request over a direct channel and receives the answer. It blocks its thread.
    pub(super) fn over_channel(
        &mut self,
        peer: PeerId,
        channel: &mut Channel,
        gate: &mut Gate,
    ) -> Result<TransferProgress, FetchError> {
        let (scope, wants) = (self.scope, vec![self.want(u64::MAX)]);
        let set = channel.set_patience(SILENCE_MAX);
        set.map_err(|error| self.broken(error.into()))?;
        let asked = channel.send_message(&ContentRequest { scope, wants });
        asked.map_err(|cause| self.broken(cause))?;
        let answer = channel.receive_message();
        let answer = answer.map_err(|cause| self.broken(cause))?;
        self.take_head(peer, answer.ok_or_else(|| self.broken(WireError::Closed))?)?;
        let begin = Instant::now();
        self.frames_of_channel(peer, channel, gate)?;
        while let Some(length) = self.next_length(gate) {
            gate.pass_blocking(length);
            let mut left = length;
            while left > 0 {
                let mut taken = Ok(());
                let read = channel.receive_up_to(left, |bytes| taken = self.take(peer, bytes));
                match read.map_err(|error| self.broken(error.into()))? {
                    0 => return Err(self.broken(WireError::Stream(ended()))),
                    read => left -= read,
                }
                taken?;
            }
        }
        self.moved(begin);
        self.ended(peer)
    }

    /// Reads whole frames from a direct channel, record by record as they are decrypted.
    fn frames_of_channel(
        &mut self,
        peer: PeerId,
        channel: &mut Channel,
        gate: &mut Gate,
    ) -> Result<(), FetchError> {
        let (mut right, mut ended) = (Vec::new(), Ok(()));
        for mut frame in self.arriving().frames() {
            let filled = fill(channel, &mut frame, gate);
            ended = kept(frame, filled, &mut right);
            if ended.is_err() {
                break;
            }
        }
        self.keep_checked(right);
        ended.map_err(|left| self.left(peer, left))
    }

    fn arriving(&mut self) -> &mut Arrival {
        self.arrival.as_mut().expect("a head came before the bytes")
    }

    fn keep_checked(&mut self, frames: Vec<CheckedFrame>) {
        let arrival = self.arriving();
        let before = arrival.missing();
        for frame in frames {
            arrival.on_checked(frame);
        }
        self.measured.bytes += before - arrival.missing();
    }

    fn left(&self, peer: PeerId, left: TransferFault) -> FetchError {
        match left {
            TransferFault::Broken(cause) => self.broken(cause),
            TransferFault::Corrupt(CorruptFrame { frame, .. }) => self.corrupt(peer, frame),
        }
    }

    fn moved(&mut self, begin: Instant) {
        self.measured.moving = begin.elapsed();
    }

    fn ended(&self, peer: PeerId) -> Result<TransferProgress, FetchError> {
        match &self.arrival {
            Some(arrival) if arrival.is_complete() => Ok(TransferProgress::End),
            _ => Err(self.corrupt(peer, 0)),
        }
    }

    /// Checks the head of an answer, and returns whether the bytes follow.
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
                let restated = arrival.restate(length);
                restated.map_err(|cause| described(peer, id, cause))?;
            }
            None => {
                let stated = Outline::stated(id, length, frames);
                let outline = stated.map_err(|cause| described(peer, id, cause))?;
                self.arrival = Some(self.store.awaits(outline));
            }
        }
        self.measured.bytes = 0;
        Ok(follows)
    }

    /// Returns how many bytes to read next, at most a frame; none at the end.
    fn next_length(&self, gate: &Gate) -> Option<usize> {
        let arrival = self.arrival.as_ref()?;
        let left = usize::try_from(arrival.missing()).unwrap_or(usize::MAX);
        (left > 0).then_some(left.min(gate.piece(FRAME_BYTES)))
    }

    fn take(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), FetchError> {
        self.measured.bytes += bytes.len() as u64;
        let (id, taken) = (self.id, self.arriving().take(bytes));
        taken.map_err(|corrupt| FetchError::Corrupt {
            peer,
            id,
            frame: corrupt.frame,
        })
    }

    fn broken(&self, cause: WireError) -> FetchError {
        FetchError::Broken { id: self.id, cause }
    }

    fn corrupt(&self, peer: PeerId, frame: u64) -> FetchError {
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
    let breaker: Breaker = match channel.breaker() {
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
struct Patient<'l> {
    line: &'l mut TensorStream,
    timer: Pin<Box<Sleep>>,
    heard: Instant,
    /// Empty until there is a frame to fill, because many contents are small.
    piece: Vec<u8>,
}

impl<'l> Patient<'l> {
    fn new(line: &'l mut TensorStream) -> Patient<'l> {
        Patient {
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
            0 => Err(WireError::Stream(ended())),
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
    async fn fill(&mut self, frame: &mut Frame<'_>, gate: &mut Gate) -> Result<(), WireError> {
        self.piece.resize(PIECE_BYTES, 0);
        while frame.missing() > 0 {
            let piece = gate.piece(frame.missing());
            gate.pass(piece).await;
            self.heard = Instant::now();
            let end = frame.missing() - piece;
            while frame.missing() > end {
                let length = (frame.missing() - end).min(PIECE_BYTES);
                let mut filled = 0;
                while filled < length {
                    filled += self.read(filled..length).await?;
                }
                frame.take(&self.piece[..length], streaming::copy);
            }
        }
        Ok(())
    }
}

/// Fills a frame from a direct channel.
fn fill(channel: &mut Channel, frame: &mut Frame<'_>, gate: &mut Gate) -> Result<(), WireError> {
    while frame.missing() > 0 {
        let piece = gate.piece(frame.missing());
        gate.pass_blocking(piece);
        channel.receive(piece, |bytes| frame.take(bytes, streaming::copy))?;
    }
    Ok(())
}

/// Checks a filled frame and adds it to `right`.
fn kept(
    frame: Frame<'_>,
    filled: Result<(), WireError>,
    right: &mut Vec<CheckedFrame>,
) -> Result<(), TransferFault> {
    filled.map_err(TransferFault::Broken)?;
    right.push(frame.check().map_err(TransferFault::Corrupt)?);
    Ok(())
}

fn described(peer: PeerId, id: ContentId, cause: OutlineError) -> FetchError {
    let cause = Box::new(cause);
    FetchError::Outline { peer, id, cause }
}

fn ended() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}
