//! A TLS connection of a thread of its own: bytes in large buffers, no runtime between.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConfig, ServerConfig};
use serde::Serialize;
use serde::de::DeserializeOwned;
use socket2::SockRef;

use super::handshake::{Handshake, HandshakeResult, receive};
use super::records::{HEAD_BYTES, OpenedRecord, Records, length_of};
use crate::network::wire::{self, FRAME_BYTES_MAX, WireError};

/// Bytes received at once: a dozen records and more, and still in the processor's cache.
const INCOMING_BYTES: usize = 256 << 10;

/// What may lie on its way between two processes of one machine: bytes of which there are more have
/// left the processor's cache before they are read.
const NEAR_BYTES: usize = 256 << 10;

/// The longest message on a direct channel: requests and the hashes of a content's frames.
const MESSAGE_BYTES_MAX: usize = FRAME_BYTES_MAX;

/// One end of a direct channel.
pub(crate) struct Channel {
    stream: TcpStream,
    records: Records,
    incoming: Vec<u8>,
    /// The part of `incoming` that was received and not decrypted.
    waiting: Range<usize>,
    /// What was decrypted beyond what was asked for.
    plain: Vec<u8>,
    taken: usize,
}

impl Channel {
    /// Shakes hands as the end that dialled; each read and write may take `patience`.
    pub(crate) fn dialling(
        stream: TcpStream,
        config: Arc<ClientConfig>,
        patience: Duration,
    ) -> io::Result<Channel> {
        prepare(&stream, patience)?;
        let shaken = Handshake::dialling(&stream, config, INCOMING_BYTES)?.shake()?;
        Ok(Channel::new(stream, shaken))
    }

    /// Shakes hands as the end that was dialled.
    pub(crate) fn dialled(
        stream: TcpStream,
        config: Arc<ServerConfig>,
        patience: Duration,
    ) -> io::Result<Channel> {
        prepare(&stream, patience)?;
        let shaken = Handshake::dialled(&stream, config, INCOMING_BYTES)?.shake()?;
        Ok(Channel::new(stream, shaken))
    }

    fn new(stream: TcpStream, shaken: HandshakeResult) -> Channel {
        Channel {
            stream,
            records: shaken.records,
            incoming: shaken.incoming,
            waiting: shaken.waiting,
            plain: shaken.plain,
            taken: 0,
        }
    }

    /// How long each read and write may take from now on.
    pub(crate) fn set_patience(&self, patience: Duration) -> io::Result<()> {
        set_patience(&self.stream, patience)
    }

    /// A handle by which another thread ends whatever this one waits for.
    pub(crate) fn breaker(&self) -> io::Result<Breaker> {
        Ok(Breaker(Some(self.stream.try_clone()?)))
    }

    /// Sends bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut stream = &self.stream;
        self.records.seal(bytes, |record| stream.write_all(record))
    }

    /// Sends a message in a frame, as on any stream.
    pub(crate) fn send_message<T: Serialize>(&mut self, message: &T) -> Result<(), WireError> {
        let mut frame = Vec::new();
        wire::push_frame(&mut frame, &postcard::to_allocvec(message)?)?;
        Ok(self.send(&frame)?)
    }

    /// Receives a message, or none where the other end has closed between two.
    pub(crate) fn receive_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, WireError> {
        let mut length = Vec::new();
        self.receive_up_to(1, |bytes| length.extend_from_slice(bytes))?;
        if length.is_empty() {
            return Ok(None);
        }
        self.receive(3, |bytes| length.extend_from_slice(bytes))?;
        let length = length.try_into().expect("a byte and three more");
        let bytes = u32::from_be_bytes(length) as usize;
        if bytes > MESSAGE_BYTES_MAX {
            let limit = MESSAGE_BYTES_MAX;
            return Err(WireError::TooLong { bytes, limit });
        }
        let mut frame = Vec::new();
        self.receive(bytes, |bytes| frame.extend_from_slice(bytes))?;
        Ok(Some(postcard::from_bytes(&frame)?))
    }

    /// Receives exactly so many bytes, given on piece by piece.
    pub(crate) fn receive(&mut self, length: usize, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        let mut left = length;
        while left > 0 {
            match self.receive_up_to(left, &mut take)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                taken => left -= taken,
            }
        }
        Ok(())
    }

    /// Receives what has come, `length` bytes at most and one at least; none once the other end has
    /// closed.
    pub(crate) fn receive_up_to(
        &mut self,
        length: usize,
        mut take: impl FnMut(&[u8]),
    ) -> io::Result<usize> {
        loop {
            let over = &self.plain[self.taken..];
            if !over.is_empty() {
                let given = over.len().min(length);
                take(&over[..given]);
                self.taken += given;
                return Ok(given);
            }
            let Some(record) = self.next_record()? else {
                receive(&self.stream, &mut self.incoming, &mut self.waiting)?;
                continue;
            };
            let opened = self.records.open(&mut self.incoming[record]);
            match opened.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {
                OpenedRecord::Bytes([]) | OpenedRecord::NewKeys => {}
                OpenedRecord::Bytes(bytes) => {
                    // What is decrypted goes on at once; only what is over waits.
                    let (now, over) = bytes.split_at(bytes.len().min(length));
                    take(now);
                    over.clone_into(&mut self.plain);
                    self.taken = 0;
                    return Ok(now.len());
                }
                OpenedRecord::Farewell => return Ok(0),
            }
        }
    }

    /// Where the next record lies, behind its head, if all of it has come.
    fn next_record(&mut self) -> io::Result<Option<Range<usize>>> {
        let waiting = &self.incoming[self.waiting.clone()];
        let Some((head, rest)) = waiting.split_first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let length = length_of(*head)?;
        if rest.len() < length {
            return Ok(None);
        }
        let begin = self.waiting.start + HEAD_BYTES;
        self.waiting.start = begin + length;
        Ok(Some(begin..begin + length))
    }
}

fn prepare(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if stream.peer_addr()?.ip() == stream.local_addr()?.ip() {
        let socket = SockRef::from(stream);
        socket.set_recv_buffer_size(NEAR_BYTES)?;
        socket.set_send_buffer_size(NEAR_BYTES)?;
    }
    set_patience(stream, patience)
}

fn set_patience(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))
}

/// Ends a channel when it is dropped, whatever its thread waits for; unless it was disarmed.
pub(crate) struct Breaker(Option<TcpStream>);

impl Breaker {
    /// The work is done: the channel stays.
    pub(crate) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Breaker {
    fn drop(&mut self) {
        if let Some(stream) = self.0.take() {
            // The thread learns it from its next read or write.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
