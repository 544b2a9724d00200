//! Frames on a stream: four bytes of length, then a postcard-encoded message.
//!
//! Every protocol of souk speaks in these frames, so that one limit and one decoder stand
//! between a peer's bytes and the rest of the node.

use std::io;
use std::time::Duration;

use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The largest frame of any protocol: a snapshot chunk or a large subgraph fits, a flood does not.
pub const FRAME_BYTES_MAX: usize = 16 << 20;

/// Bytes of the length before a frame.
const LENGTH_BYTES: usize = 4;

/// Memory is taken for a frame in steps of this size as its bytes arrive, so that a length alone,
/// which costs a peer four bytes, reserves nothing.
const READ_STEP_BYTES: usize = 64 << 10;

/// How long a peer may take to read anything at all of what it is sent: one that asks and does not
/// read holds memory here.
const UNREAD_MAX: Duration = Duration::from_secs(30);

/// Why a frame was not sent or received.
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
        /// The longest allowed.
        limit: usize,
    },
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

/// A frame as it travels: its length, then its bytes.
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

/// Receives one message, where the peer owes one.
pub async fn receive<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<T, WireError> {
    receive_or_end(stream).await?.ok_or(WireError::Closed)
}

/// Receives one message, or none where the peer has closed the stream between two.
pub async fn receive_or_end<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Option<T>, WireError> {
    match receive_bytes(stream).await? {
        Some(bytes) => Ok(Some(postcard::from_bytes(&bytes)?)),
        None => Ok(None),
    }
}

/// Receives the next message of a peer that owes none, or none at the end of the stream. A peer
/// that says nothing for `idle` is taken to have left: its place is another's.
pub async fn receive_within<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
    idle: Duration,
) -> Result<Option<T>, WireError> {
    let silent = || WireError::Stream(io::ErrorKind::TimedOut.into());
    let received = tokio::time::timeout(idle, receive_or_end(stream)).await;
    received.map_err(|_| silent())?
}

/// Sends one frame of raw bytes.
pub async fn send_bytes(
    stream: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
) -> Result<(), WireError> {
    send_all(stream, [bytes]).await
}

/// Sends several frames of raw bytes with one write: each write of an encrypted stream is a packet
/// of its own, so a length sent by itself would cost as much as what it announces.
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
        match moving(stream.write(unsent)).await? {
            0 => return Err(WireError::Stream(io::ErrorKind::WriteZero.into())),
            sent => unsent = &unsent[sent..],
        }
    }
    moving(stream.flush()).await
}

/// A step of sending, which a peer that reads lets happen soon.
async fn moving<T>(step: impl Future<Output = io::Result<T>>) -> Result<T, WireError> {
    match tokio::time::timeout(UNREAD_MAX, step).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(WireError::Stream(io::ErrorKind::TimedOut.into())),
    }
}

/// Receives one frame of raw bytes, or none at the end of the stream.
pub async fn receive_bytes(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Option<Vec<u8>>, WireError> {
    let mut length = [0; LENGTH_BYTES];
    let first = stream.read(&mut length).await?;
    if first == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut length[first..]).await?;
    let length = u32::from_be_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(WireError::TooLong {
            bytes: length,
            limit: FRAME_BYTES_MAX,
        });
    }
    let mut frame = Vec::with_capacity(length.min(READ_STEP_BYTES));
    let read = stream.take(length as u64).read_to_end(&mut frame).await?;
    if read < length {
        return Err(WireError::Stream(io::ErrorKind::UnexpectedEof.into()));
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
    async fn a_frame_cut_short_is_an_error() {
        let mut bytes = 100_u32.to_be_bytes().to_vec();
        bytes.extend_from_slice(b"only this");
        let cut = receive_bytes(&mut Cursor::new(bytes)).await.unwrap_err();
        assert!(matches!(cut, WireError::Stream(e) if e.kind() == io::ErrorKind::UnexpectedEof));
    }
}
