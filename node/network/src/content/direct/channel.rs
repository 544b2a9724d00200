//! Sends and receives messages and bytes over one direct channel: a TLS connection that a thread of
//! its own reads and writes, with large buffers and no async runtime.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConfig, ServerConfig};
use serde::Serialize;
use serde::de::DeserializeOwned;
use socket2::SockRef;

use super::handshake::{Handshake, HandshakeResult, receive_bytes};
use super::records::{HEAD_BYTES, OpenedRecord, Records, length_of};
use crate::wire::{self, FRAME_BYTES_MAX, WireError};

/// How many bytes are received at once: a dozen records or more that still fit the processor's
/// cache.
const INCOMING_BYTES: usize = 256 << 10;

/// The socket buffers between two processes of one machine: larger ones leave the processor's cache
/// before they are read.
const NEAR_BYTES: usize = 256 << 10;

/// The longest message on a direct channel: a request, or the hashes of a content's frames.
const MESSAGE_BYTES_MAX: usize = FRAME_BYTES_MAX;

/// One end of a direct channel.
pub(crate) struct Channel {
    stream: TcpStream,
    records: Records,
    incoming: Vec<u8>,
    /// The part of `incoming` that was received but not yet decrypted.
    waiting: Range<usize>,
    /// Decrypted bytes that no receiver has read yet.
    plain: Vec<u8>,
    taken: usize,
}

impl Channel {
    /// Performs the handshake as the end that dialled; each read and write must end within
    /// `patience`.
    pub(crate) fn handshake_client(
        stream: TcpStream,
        config: Arc<ClientConfig>,
        patience: Duration,
    ) -> io::Result<Channel> {
        configure_stream(&stream, patience)?;
        let shaken =
            Handshake::new_client(&stream, config, INCOMING_BYTES)?.complete_handshake()?;
        Ok(Channel::new(stream, shaken))
    }

    /// Performs the handshake as the end that was dialled.
    pub(crate) fn handshake_server(
        stream: TcpStream,
        config: Arc<ServerConfig>,
        patience: Duration,
    ) -> io::Result<Channel> {
        configure_stream(&stream, patience)?;
        let shaken =
            Handshake::new_server(&stream, config, INCOMING_BYTES)?.complete_handshake()?;
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

    /// Sets how long each read and write can take.
    pub(crate) fn set_patience(&self, patience: Duration) -> io::Result<()> {
        set_patience(&self.stream, patience)
    }

    /// Returns a handle by which another thread can end a blocked read or write.
    pub(crate) fn new_breaker(&self) -> io::Result<Breaker> {
        Ok(Breaker(Some(self.stream.try_clone()?)))
    }

    /// Sends bytes as encrypted records.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut stream = &self.stream;
        self.records
            .seal_bytes(bytes, |record| stream.write_all(record))
    }

    /// Sends a message in a frame, as other streams do.
    pub(crate) fn send_message<T: Serialize>(&mut self, message: &T) -> Result<(), WireError> {
        let mut frame = Vec::new();
        wire::push_frame(&mut frame, &postcard::to_allocvec(message)?)?;
        Ok(self.send_bytes(&frame)?)
    }

    /// Receives a message; none if the other end closed the channel between two messages.
    pub(crate) fn receive_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, WireError> {
        let mut length = Vec::new();
        self.receive_up_to(1, |bytes| length.extend_from_slice(bytes))?;
        if length.is_empty() {
            return Ok(None);
        }
        self.receive_exact(3, |bytes| length.extend_from_slice(bytes))?;
        let length = length.try_into().expect("a byte and three more");
        let bytes = u32::from_be_bytes(length) as usize;
        if bytes > MESSAGE_BYTES_MAX {
            let limit = MESSAGE_BYTES_MAX;
            return Err(WireError::TooLong { bytes, limit });
        }
        let mut frame = Vec::new();
        self.receive_exact(bytes, |bytes| frame.extend_from_slice(bytes))?;
        Ok(Some(postcard::from_bytes(&frame)?))
    }

    /// Receives exactly `length` bytes and passes them on piece by piece.
    pub(crate) fn receive_exact(
        &mut self,
        length: usize,
        mut take: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let mut left = length;
        while left > 0 {
            match self.receive_up_to(left, &mut take)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                taken => left -= taken,
            }
        }
        Ok(())
    }

    /// Receives at least one and at most `length` bytes; none once the other end has closed.
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
                receive_bytes(&self.stream, &mut self.incoming, &mut self.waiting)?;
                continue;
            };
            let opened = self.records.open_record(&mut self.incoming[record]);
            match opened.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {
                OpenedRecord::Bytes([]) | OpenedRecord::NewKeys => {}
                OpenedRecord::Bytes(bytes) => {
                    // Decrypted bytes are passed on at once; only the excess is stored.
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

    /// Returns the position of the next record behind its head, if it has arrived completely.
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

fn configure_stream(stream: &TcpStream, patience: Duration) -> io::Result<()> {
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

/// Ends a channel when it is dropped, even if its thread waits. You must disarm it to keep the
/// channel.
pub(crate) struct Breaker(Option<TcpStream>);

impl Breaker {
    /// Keeps the channel, because the work is done.
    pub(crate) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Breaker {
    fn drop(&mut self) {
        if let Some(stream) = self.0.take() {
            // The thread notices at its next read or write.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
