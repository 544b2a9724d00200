//! Performs the TLS handshake by which the two ends of a direct channel agree on keys. It uses
//! rustls without rustls's buffers, so that `records` can then encrypt in the channel's own
//! buffers.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{ClientConfig, ServerConfig, pki_types::ServerName};

use super::records::{Keys, Records};

enum Connection {
    Dialling(UnbufferedClientConnection),
    Dialled(UnbufferedServerConnection),
}

/// The next step after TLS has advanced as far as it can.
enum HandshakeStep {
    /// Advance again at once.
    Again,
    /// Receive more bytes first.
    Receive,
    /// The handshake is complete, and no bytes wait.
    Ready,
    /// The other end closed the connection.
    Closed,
}

/// A handshake in progress.
pub(super) struct Handshake<'s> {
    connection: Connection,
    stream: &'s TcpStream,
    incoming: Vec<u8>,
    /// The part of `incoming` that was received but not yet processed.
    waiting: Range<usize>,
    /// Bytes that wait to be written.
    outgoing: Vec<u8>,
    plain: Vec<u8>,
}

/// The result of a handshake.
pub(super) struct HandshakeResult {
    pub(super) records: Records,
    pub(super) incoming: Vec<u8>,
    /// The part of `incoming` that was received but not yet decrypted.
    pub(super) waiting: Range<usize>,
    /// Decrypted bytes that came with the last message of the handshake.
    pub(super) plain: Vec<u8>,
}

impl<'s> Handshake<'s> {
    /// Begins as the end that dialled, with a receive buffer of `bytes` bytes.
    pub(super) fn new_client(
        stream: &'s TcpStream,
        config: Arc<ClientConfig>,
        bytes: usize,
    ) -> io::Result<Handshake<'s>> {
        let name = ServerName::try_from("souk").expect("a constant name");
        let connection = UnbufferedClientConnection::new(config, name).map_err(io::Error::other)?;
        Ok(Handshake::new(
            Connection::Dialling(connection),
            stream,
            bytes,
        ))
    }

    /// Begins as the end that was dialled.
    pub(super) fn new_server(
        stream: &'s TcpStream,
        config: Arc<ServerConfig>,
        bytes: usize,
    ) -> io::Result<Handshake<'s>> {
        let connection = UnbufferedServerConnection::new(config).map_err(io::Error::other)?;
        Ok(Handshake::new(
            Connection::Dialled(connection),
            stream,
            bytes,
        ))
    }

    fn new(connection: Connection, stream: &'s TcpStream, bytes: usize) -> Handshake<'s> {
        Handshake {
            connection,
            stream,
            incoming: vec![0; bytes],
            waiting: 0..0,
            outgoing: Vec::new(),
            plain: Vec::new(),
        }
    }

    /// Performs the handshake to its end.
    pub(super) fn complete_handshake(mut self) -> io::Result<HandshakeResult> {
        loop {
            match self.advance_tls()? {
                HandshakeStep::Again => {}
                HandshakeStep::Receive => {
                    receive_bytes(self.stream, &mut self.incoming, &mut self.waiting)?
                }
                HandshakeStep::Ready => break,
                HandshakeStep::Closed => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        let agreed = match self.connection {
            Connection::Dialling(connection) => connection
                .dangerous_into_kernel_connection()
                .map(|(secrets, keys)| (secrets, Keys::Dialling(keys))),
            Connection::Dialled(connection) => connection
                .dangerous_into_kernel_connection()
                .map(|(secrets, keys)| (secrets, Keys::Dialled(keys))),
        };
        let records = agreed.and_then(|(secrets, keys)| Records::new(secrets, keys));
        Ok(HandshakeResult {
            records: records.map_err(io::Error::other)?,
            incoming: self.incoming,
            waiting: self.waiting,
            plain: self.plain,
        })
    }

    /// Advances TLS by one step with the received bytes. It must write all outgoing bytes before it
    /// waits for more.
    fn advance_tls(&mut self) -> io::Result<HandshakeStep> {
        let incoming = &mut self.incoming[self.waiting.clone()];
        let (outgoing, plain) = (&mut self.outgoing, &mut self.plain);
        let (discard, next) = match &mut self.connection {
            Connection::Dialling(connection) => {
                process_status(connection.process_tls_records(incoming), outgoing, plain)
            }
            Connection::Dialled(connection) => {
                process_status(connection.process_tls_records(incoming), outgoing, plain)
            }
        };
        self.waiting.start += discard;
        let next = next?;
        if matches!(next, HandshakeStep::Receive | HandshakeStep::Ready) {
            self.stream.write_all(&std::mem::take(&mut self.outgoing))?;
        }
        Ok(next)
    }
}

/// Reads bytes behind the waiting ones, which must be part of one record and far shorter than the
/// buffer.
pub(super) fn receive_bytes(
    mut stream: &TcpStream,
    incoming: &mut [u8],
    waiting: &mut Range<usize>,
) -> io::Result<()> {
    incoming.copy_within(waiting.clone(), 0);
    *waiting = 0..waiting.len();
    match stream.read(&mut incoming[waiting.end..]) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(read) => {
            waiting.end += read;
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        Err(error) => Err(error),
    }
}

fn process_status<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    outgoing: &mut Vec<u8>,
    plain: &mut Vec<u8>,
) -> (usize, io::Result<HandshakeStep>) {
    let UnbufferedStatus { mut discard, state } = status;
    let next = match state {
        Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => {
            let mut read = Ok(HandshakeStep::Again);
            while let Some(record) = traffic.next_record() {
                match record {
                    Ok(record) => {
                        discard += record.discard;
                        plain.extend_from_slice(record.payload);
                    }
                    Err(error) => read = Err(io::Error::new(io::ErrorKind::InvalidData, error)),
                }
            }
            read
        }
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            encode_outgoing(outgoing, |room| data.encode(room)).map(|()| HandshakeStep::Again)
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            // `advance` writes it before it waits.
            data.done();
            Ok(HandshakeStep::Again)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(HandshakeStep::Receive),
        Ok(ConnectionState::WriteTraffic(_)) => Ok(HandshakeStep::Ready),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(HandshakeStep::Closed),
        Ok(_) => Err(io::Error::other(
            "a state of TLS that a direct channel does not know",
        )),
    };
    (discard, next)
}

/// Appends to the outgoing bytes, and enlarges the buffer as needed.
fn encode_outgoing(
    outgoing: &mut Vec<u8>,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
) -> io::Result<()> {
    let before = outgoing.len();
    loop {
        match write(&mut outgoing[before..]) {
            Ok(written) => {
                outgoing.truncate(before + written);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(size)) => {
                outgoing.resize(before + size.required_size, 0);
            }
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}
