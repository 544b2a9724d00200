//! Sends and receives the messages of every protocol as frames on a stream: four bytes of length,
//! then a postcard-encoded message.
//!
//! Every protocol of souk must use these frames, so that one limit and one decoder separate a
//! peer's bytes from the rest of the node.

use std::io;
use std::time::Duration;

use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

/// The largest frame of any protocol: a snapshot chunk or a large subgraph fits, a flood does not.
pub const FRAME_BYTES_MAX: usize = 16 << 20;

/// Bytes of a frame's length field.
const LENGTH_BYTES: usize = 4;

/// Memory for a frame is allocated in steps of this size as its bytes arrive, so that a length
/// alone, which costs a peer four bytes, reserves nothing.
const READ_STEP_BYTES: usize = 64 << 10;

/// The most memory that unfinished frames of one protocol can hold together, beyond the first step
/// of each.
const ROOM_BYTES: usize = 128 << 20;

/// A peer must read some of a message to it within this time, because a peer that asks and does not
/// read holds memory here.
const UNREAD_MAX: Duration = Duration::from_secs(30);

/// Why a frame could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The stream broke.
    #[error("the connection broke: {0}")]
    Stream(#[from] io::Error),
    /// The peer closed the stream where a frame was expected.
    #[error("the peer closed the stream before it answered")]
    Closed,
    /// A frame is over the limit.
    #[error("a frame of {bytes} bytes is over the limit of {limit}")]
    TooLong {
        /// The frame's length.
        bytes: usize,
        /// The longest that is allowed.
        limit: usize,
    },
    /// Other unfinished frames hold all the memory reserved for them.
    #[error("too many large messages are arriving here: send it again later")]
    Crowded,
    /// The bytes are not a message of this protocol.
    #[error("the peer sent a message that does not decode: {0}")]
    Malformed(#[from] postcard::Error),
}

/// Sends one message.
pub async fn send<T: Serialize>(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &T,
) -> Result<(), WireError> {
    let bytes = postcard::to_allocvec(message)?;
    send_bytes(stream, &bytes).await
}

/// Appends a frame to a buffer: its length, then its bytes.
pub(crate) fn push_frame(buffer: &mut Vec<u8>, bytes: &[u8]) -> Result<(), WireError> {
    if bytes.len() > FRAME_BYTES_MAX {
        return Err(WireError::TooLong {
            bytes: bytes.len(),
            limit: FRAME_BYTES_MAX,
        });
    }
    let length = u32::try_from(bytes.len()).expect("a frame is shorter than 16 MiB");
    buffer.extend_from_slice(&length.to_be_bytes());
    buffer.extend_from_slice(bytes);
    Ok(())
}

/// Receives one message that the peer owes.
pub async fn receive<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<T, WireError> {
    receive_or_end(stream).await?.ok_or(WireError::Closed)
}

/// Receives one message, or none if the peer has closed the stream between two.
pub async fn receive_or_end<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Option<T>, WireError> {
    match receive_bytes(stream).await? {
        Some(bytes) => Ok(Some(postcard::from_bytes(&bytes)?)),
        None => Ok(None),
    }
}

/// Receives one message of at most `bytes_max` that the peer owes.
pub async fn receive_short<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
    bytes_max: usize,
) -> Result<T, WireError> {
    let frame = receive_frame(stream, bytes_max, None).await?;
    Ok(postcard::from_bytes(&frame.ok_or(WireError::Closed)?)?)
}

/// Receives the next message, of at most `bytes_max`, from a peer that owes none; returns none at
/// the end of the stream. If the peer is silent for `idle`, it counts as gone and loses its place.
pub async fn receive_within<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
    idle: Duration,
    bytes_max: usize,
) -> Result<Option<T>, WireError> {
    receive_message(stream, idle, bytes_max, None).await
}

/// A server's limits on messages that peers, even strangers, send unasked. An answer can be as long
/// as a frame; a question seldom is.
#[derive(Debug)]
pub struct Intake {
    bytes_max: usize,
    idle: Duration,
    /// Steps of memory that are free for unfinished frames.
    room: Semaphore,
}

impl Intake {
    /// Returns limits for messages of at most `bytes_max`. A peer that needs longer than `idle` to
    /// send one, or to begin, counts as gone and loses its place.
    #[must_use]
    pub const fn new(bytes_max: usize, idle: Duration) -> Intake {
        Intake {
            bytes_max,
            idle,
            room: Semaphore::const_new(ROOM_BYTES / READ_STEP_BYTES),
        }
    }

    /// Receives the next message, or none at the end of the stream.
    ///
    /// # Errors
    /// [`WireError`]; a message over the limit is refused by its length.
    pub async fn receive_next<T: DeserializeOwned>(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
    ) -> Result<Option<T>, WireError> {
        receive_message(stream, self.idle, self.bytes_max, Some(&self.room)).await
    }
}

async fn receive_message<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
    idle: Duration,
    bytes_max: usize,
    room: Option<&Semaphore>,
) -> Result<Option<T>, WireError> {
    let receiving = receive_frame(stream, bytes_max, room);
    let received = tokio::time::timeout(idle, receiving).await;
    let silent = |_| WireError::Stream(io::ErrorKind::TimedOut.into());
    match received.map_err(silent)?? {
        Some(bytes) => Ok(Some(postcard::from_bytes(&bytes)?)),
        None => Ok(None),
    }
}

/// Sends one frame of raw bytes.
pub async fn send_bytes(
    stream: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
) -> Result<(), WireError> {
    send_all(stream, [bytes]).await
}

/// Sends several frames of raw bytes with one write: each write on an encrypted stream becomes a
/// separate packet, so a separate length would cost as much as the frame.
pub async fn send_all<'a>(
    stream: &mut (impl AsyncWrite + Unpin),
    frames: impl IntoIterator<Item = &'a [u8]>,
) -> Result<(), WireError> {
    let mut buffer = Vec::new();
    for frame in frames {
        buffer.reserve(frame.len() + LENGTH_BYTES);
        push_frame(&mut buffer, frame)?;
    }
    let mut unsent = buffer.as_slice();
    while !unsent.is_empty() {
        match with_send_timeout(stream.write(unsent)).await? {
            0 => return Err(WireError::Stream(io::ErrorKind::WriteZero.into())),
            sent => unsent = &unsent[sent..],
        }
    }
    with_send_timeout(stream.flush()).await
}

/// Waits for a step of sending, and fails if the peer does not read.
async fn with_send_timeout<T>(step: impl Future<Output = io::Result<T>>) -> Result<T, WireError> {
    match tokio::time::timeout(UNREAD_MAX, step).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(WireError::Stream(io::ErrorKind::TimedOut.into())),
    }
}

/// Receives one frame of raw bytes, or none at the end of the stream.
pub async fn receive_bytes(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Option<Vec<u8>>, WireError> {
    receive_frame(stream, FRAME_BYTES_MAX, None).await
}

/// Receives a frame up to a limit; memory beyond its first step comes from `room`.
async fn receive_frame(
    stream: &mut (impl AsyncRead + Unpin),
    limit: usize,
    room: Option<&Semaphore>,
) -> Result<Option<Vec<u8>>, WireError> {
    let mut length = [0; LENGTH_BYTES];
    let first = stream.read(&mut length).await?;
    if first == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut length[first..]).await?;
    let bytes = u32::from_be_bytes(length) as usize;
    if bytes > limit {
        return Err(WireError::TooLong { bytes, limit });
    }
    let mut frame = Vec::with_capacity(bytes.min(READ_STEP_BYTES));
    let mut taken = Vec::new();
    while frame.len() < bytes {
        if let Some(room) = room.filter(|_| !frame.is_empty()) {
            taken.push(room.try_acquire().map_err(|_| WireError::Crowded)?);
        }
        let step = READ_STEP_BYTES.min(bytes - frame.len());
        let read = stream.take(step as u64).read_to_end(&mut frame).await?;
        if read < step {
            return Err(WireError::Stream(io::ErrorKind::UnexpectedEof.into()));
        }
    }
    Ok(Some(frame))
}

#[cfg(test)]
mod tests {
    use futures::io::Cursor;

    use super::*;

    #[tokio::test]
    async fn a_message_comes_back_as_it_went() {
        let mut stream = Cursor::new(Vec::new());
        send(&mut stream, &("ask", 7_u64)).await.unwrap();
        stream.set_position(0);
        let (word, number): (String, u64) = receive(&mut stream).await.unwrap();
        assert_eq!((word.as_str(), number), ("ask", 7));
        assert!(receive_or_end::<u64>(&mut stream).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_length_over_the_limit_is_refused_before_memory_is_taken() {
        let mut stream = Cursor::new(u32::MAX.to_be_bytes().to_vec());
        let refused = receive_bytes(&mut stream).await.unwrap_err();
        assert!(matches!(
            refused,
            WireError::TooLong {
                limit: FRAME_BYTES_MAX,
                ..
            }
        ));
    }

    #[tokio::test]
    async fn a_question_over_its_protocols_limit_is_refused() {
        let intake = Intake::new(100, UNREAD_MAX);
        let mut stream = Cursor::new(101_u32.to_be_bytes().to_vec());
        let refused = intake.receive_next::<u64>(&mut stream).await.unwrap_err();
        let (bytes, limit) = (101, 100);
        assert!(
            matches!(refused, WireError::TooLong { bytes: b, limit: l } if (b, l) == (bytes, limit))
        );
        let mut stream = Cursor::new(Vec::new());
        send(&mut stream, &7_u64).await.unwrap();
        stream.set_position(0);
        assert_eq!(intake.receive_next(&mut stream).await.unwrap(), Some(7_u64));
        assert_eq!(intake.receive_next::<u64>(&mut stream).await.unwrap(), None);
    }

    #[tokio::test]
    async fn unfinished_frames_hold_so_much_together_and_no_more() {
        // A sixteenth of what a server has: reading is slow where nothing is optimised.
        let (frame_max, room) = (FRAME_BYTES_MAX / 16, ROOM_BYTES / 16);
        let intake = Intake {
            bytes_max: frame_max,
            idle: UNREAD_MAX,
            room: Semaphore::const_new(room / READ_STEP_BYTES),
        };
        let mut slow = Vec::new();
        // Each sends all but its last byte, and keeps the stream open.
        for _ in 0..room / frame_max {
            let mut bytes = u32::try_from(frame_max).unwrap().to_be_bytes().to_vec();
            bytes.resize(LENGTH_BYTES + frame_max - 1, 0);
            let mut stream = Cursor::new(bytes).chain(Never);
            let mut receiving = Box::pin({
                let intake = &intake;
                async move { intake.receive_next::<u64>(&mut stream).await.map(drop) }
            });
            assert!(futures::poll!(&mut receiving).is_pending());
            slow.push(receiving);
        }
        let large = |bytes: usize| {
            let mut stream = Cursor::new(Vec::new());
            push_frame(stream.get_mut(), &vec![0; bytes]).unwrap();
            stream
        };
        let mut many = large(frame_max);
        let refused = intake.receive_next::<u64>(&mut many).await.unwrap_err();
        assert!(matches!(refused, WireError::Crowded), "{refused}");
        let small = intake
            .receive_next::<u64>(&mut large(READ_STEP_BYTES))
            .await;
        assert_eq!(small.unwrap(), Some(0), "what most say needs no such room");
        slow.pop();
        let again = intake.receive_next::<u64>(&mut large(frame_max)).await;
        assert_eq!(again.unwrap(), Some(0));
    }

    /// A stream whose peer says nothing more.
    struct Never;

    impl AsyncRead for Never {
        fn poll_read(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            _: &mut [u8],
        ) -> std::task::Poll<io::Result<usize>> {
            std::task::Poll::Pending
        }
    }

    #[tokio::test]
    async fn a_frame_cut_short_is_an_error() {
        let mut bytes = 100_u32.to_be_bytes().to_vec();
        bytes.extend_from_slice(b"only this");
        let cut = receive_bytes(&mut Cursor::new(bytes)).await.unwrap_err();
        assert!(matches!(cut, WireError::Stream(e) if e.kind() == io::ErrorKind::UnexpectedEof));
    }
}
