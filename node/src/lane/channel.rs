//! A TLS connection of a thread of its own: bytes in large buffers, no runtime between.
//!
//! rustls is used without its buffers: records are decrypted where they were received and encrypted
//! into the buffer that is written, so a byte is copied as seldom as it can be.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus,
};
use rustls::{ClientConfig, ServerConfig, pki_types::ServerName};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::wire::{self, FRAME_BYTES_MAX, WireError};

/// Bytes received at once: a dozen records and more, and still in the processor's cache.
const INCOMING_BYTES: usize = 256 << 10;

/// The longest message on a lane: requests and the hashes of a content's frames.
const MESSAGE_BYTES_MAX: usize = FRAME_BYTES_MAX;

enum Connection {
    Dialling(UnbufferedClientConnection),
    Dialled(UnbufferedServerConnection),
}

/// What to do after TLS went on as far as it could.
enum Next {
    /// Go on at once.
    Again,
    /// More bytes must come first.
    Receive,
    /// The handshake is over and nothing waits to be read.
    Ready,
    /// The other end has closed.
    Closed,
}

/// One end of a lane.
pub(crate) struct Channel {
    connection: Connection,
    stream: TcpStream,
    incoming: Vec<u8>,
    /// The part of `incoming` that was received and not processed.
    start: usize,
    end: usize,
    outgoing: Vec<u8>,
    /// How much of `outgoing` waits to be written.
    unsent: usize,
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
        let name = ServerName::try_from("souk").expect("a constant name");
        let connection = UnbufferedClientConnection::new(config, name).map_err(io::Error::other)?;
        Channel::shake(Connection::Dialling(connection), stream, patience)
    }

    /// Shakes hands as the end that was dialled.
    pub(crate) fn dialled(
        stream: TcpStream,
        config: Arc<ServerConfig>,
        patience: Duration,
    ) -> io::Result<Channel> {
        let connection = UnbufferedServerConnection::new(config).map_err(io::Error::other)?;
        Channel::shake(Connection::Dialled(connection), stream, patience)
    }

    fn shake(connection: Connection, stream: TcpStream, patience: Duration) -> io::Result<Channel> {
        stream.set_nodelay(true)?;
        let mut channel = Channel {
            connection,
            stream,
            incoming: vec![0; INCOMING_BYTES],
            start: 0,
            end: 0,
            outgoing: Vec::new(),
            unsent: 0,
            plain: Vec::new(),
            taken: 0,
        };
        channel.set_patience(patience)?;
        loop {
            match channel.advance()? {
                Next::Again => {}
                Next::Receive => channel.fill()?,
                Next::Ready => return Ok(channel),
                Next::Closed => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }

    /// How long each read and write may take from now on.
    pub(crate) fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(patience))?;
        self.stream.set_write_timeout(Some(patience))
    }

    /// A handle by which another thread ends whatever this one waits for.
    pub(crate) fn breaker(&self) -> io::Result<Breaker> {
        Ok(Breaker(Some(self.stream.try_clone()?)))
    }

    /// Sends bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.until_ready()?;
        self.encrypt(bytes)?;
        self.write()
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
            let waiting = &self.plain[self.taken..];
            if !waiting.is_empty() {
                let given = waiting.len().min(length);
                take(&waiting[..given]);
                self.taken += given;
                return Ok(given);
            }
            // What is decrypted goes on at once; only what is over waits.
            let mut over = std::mem::take(&mut self.plain);
            over.clear();
            self.taken = 0;
            let mut given = 0;
            let advanced = self.advance_into(&mut |payload| {
                let (now, later) = payload.split_at(payload.len().min(length - given));
                if !now.is_empty() {
                    take(now);
                }
                given += now.len();
                over.extend_from_slice(later);
            });
            self.plain = over;
            match advanced? {
                _ if given > 0 => return Ok(given),
                Next::Again => {}
                Next::Closed => return Ok(0),
                Next::Receive | Next::Ready => self.fill()?,
            }
        }
    }

    fn until_ready(&mut self) -> io::Result<()> {
        loop {
            match self.advance()? {
                Next::Again => {}
                Next::Ready => return Ok(()),
                Next::Receive => self.fill()?,
                Next::Closed => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        // What is left is a part of one record, far shorter than the buffer.
        self.incoming.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        match self.stream.read(&mut self.incoming[self.end..])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                self.end += read;
                Ok(())
            }
        }
    }

    fn write(&mut self) -> io::Result<()> {
        let unsent = std::mem::take(&mut self.unsent);
        self.stream.write_all(&self.outgoing[..unsent])
    }

    /// Goes on by one step of TLS with what has come; what was said is kept.
    fn advance(&mut self) -> io::Result<Next> {
        let mut plain = std::mem::take(&mut self.plain);
        let advanced = self.advance_into(&mut |payload| plain.extend_from_slice(payload));
        self.plain = plain;
        advanced
    }

    fn advance_into(&mut self, plain: &mut dyn FnMut(&[u8])) -> io::Result<Next> {
        let incoming = &mut self.incoming[self.start..self.end];
        let (outgoing, unsent) = (&mut self.outgoing, &mut self.unsent);
        let (discard, next) = match &mut self.connection {
            Connection::Dialling(connection) => step(
                connection.process_tls_records(incoming),
                outgoing,
                unsent,
                plain,
            ),
            Connection::Dialled(connection) => step(
                connection.process_tls_records(incoming),
                outgoing,
                unsent,
                plain,
            ),
        };
        self.start += discard;
        let next = next?;
        if matches!(next, Next::Receive | Next::Ready) && self.unsent > 0 {
            self.write()?;
        }
        Ok(next)
    }

    fn encrypt(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (outgoing, unsent) = (&mut self.outgoing, &mut self.unsent);
        match &mut self.connection {
            Connection::Dialling(connection) => sealed(
                connection.process_tls_records(&mut []),
                bytes,
                outgoing,
                unsent,
            ),
            Connection::Dialled(connection) => sealed(
                connection.process_tls_records(&mut []),
                bytes,
                outgoing,
                unsent,
            ),
        }
    }
}

fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    outgoing: &mut Vec<u8>,
    unsent: &mut usize,
    plain: &mut dyn FnMut(&[u8]),
) -> (usize, io::Result<Next>) {
    let UnbufferedStatus { mut discard, state } = status;
    let next = match state {
        Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => {
            let mut read = Ok(Next::Again);
            while let Some(record) = traffic.next_record() {
                match record {
                    Ok(record) => {
                        discard += record.discard;
                        plain(record.payload);
                    }
                    Err(error) => read = Err(io::Error::new(io::ErrorKind::InvalidData, error)),
                }
            }
            read
        }
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            let encoded = grown(outgoing, *unsent, |room| {
                data.encode(room).map_err(|error| match error {
                    EncodeError::InsufficientSize(size) => Ok(size),
                    EncodeError::AlreadyEncoded => Err(io::Error::other("encoded twice")),
                })
            });
            encoded.map(|written| {
                *unsent += written;
                Next::Again
            })
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            // It is written before anything is waited for.
            data.done();
            Ok(Next::Again)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Next::Receive),
        Ok(ConnectionState::WriteTraffic(_)) => Ok(Next::Ready),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Next::Closed),
        Ok(_) => Err(io::Error::other("a state of TLS that a lane does not know")),
    };
    (discard, next)
}

fn sealed<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    bytes: &[u8],
    outgoing: &mut Vec<u8>,
    unsent: &mut usize,
) -> io::Result<()> {
    let Ok(ConnectionState::WriteTraffic(mut traffic)) = status.state else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    *unsent += grown(outgoing, *unsent, |room| {
        traffic.encrypt(bytes, room).map_err(|error| match error {
            EncryptError::InsufficientSize(size) => Ok(size),
            EncryptError::EncryptExhausted => Err(io::Error::other("the lane's keys are used up")),
        })
    })?;
    Ok(())
}

/// Writes behind what waits in `outgoing`, with as much room as it takes.
fn grown(
    outgoing: &mut Vec<u8>,
    unsent: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, io::Result<InsufficientSizeError>>,
) -> io::Result<usize> {
    loop {
        match write(&mut outgoing[unsent..]) {
            Ok(written) => return Ok(written),
            Err(wanted) => outgoing.resize(unsent + wanted?.required_size, 0),
        }
    }
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
