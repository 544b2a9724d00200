//! Encrypts and decrypts the records of a direct channel after the handshake: TLS 1.3 with rustls's
//! ciphers, in the channel's own buffers.
//!
//! The interface of rustls copies each encrypted byte twice. With its keys, this module copies a
//! byte once when it encrypts, and decrypts it in place.

use std::io;

use rustls::client::ClientConnectionData;
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, Iv, MessageDecrypter, MessageEncrypter, OutboundChunks,
    OutboundPlainMessage,
};
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{
    AlertDescription, ConnectionTrafficSecrets, ContentType, Error, ExtractedSecrets,
    ProtocolVersion, SupportedCipherSuite, Tls13CipherSuite,
};

/// The head of a record: its type, a legacy version, and its length.
pub(super) const HEAD_BYTES: usize = 5;

/// The most bytes that one record carries (RFC 8446, 5.1).
const PLAIN_BYTES_MAX: usize = 1 << 14;

/// The longest record without its head (RFC 8446, 5.2).
const RECORD_BYTES_MAX: usize = PLAIN_BYTES_MAX + 256;

/// The most records in a row without bytes: a peer that sends more of them only wants to cause
/// work.
const EMPTY_MAX: u32 = 32;

/// The message that announces the sender's new keys and asks for none in return.
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];

/// The source of new keys.
pub(super) enum Keys {
    Dialling(KernelConnection<ClientConnectionData>),
    Dialled(KernelConnection<ServerConnectionData>),
}

/// Both directions of a connection.
pub(super) struct Records {
    keys: Keys,
    suite: &'static Tls13CipherSuite,
    encrypter: Box<dyn MessageEncrypter>,
    /// How many records were encrypted with these keys, and how many can be.
    sealed: u64,
    sealed_max: u64,
    decrypter: Box<dyn MessageDecrypter>,
    opened: u64,
    /// How many records came since the last one with bytes.
    empty: u32,
}

/// The contents of a record.
pub(super) enum OpenedRecord<'a> {
    Bytes(&'a [u8]),
    /// The other end encrypts its next records with new keys.
    NewKeys,
    /// The other end closed the channel.
    Farewell,
}

impl Records {
    /// Continues where a handshake ended.
    pub(super) fn new(secrets: ExtractedSecrets, keys: Keys) -> Result<Records, Error> {
        let suite = keys.cipher_suite().tls13();
        let suite = suite.ok_or_else(|| no_place("a version of TLS"))?;
        let ((sealed, sending), (opened, receiving)) = (secrets.tx, secrets.rx);
        Ok(Records {
            encrypter: new_encrypter(suite, sending)?,
            sealed,
            // The last one is for the message that announces new keys.
            sealed_max: suite.common.confidentiality_limit - 1,
            decrypter: new_decrypter(suite, receiving)?,
            opened,
            empty: 0,
            keys,
            suite,
        })
    }

    /// Encrypts bytes record by record and passes each on before the next: a receiver that decrypts
    /// one while the next is encrypted waits less often, and waking it is expensive.
    pub(super) fn seal_bytes(
        &mut self,
        bytes: &[u8],
        mut give: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        for piece in bytes.chunks(PLAIN_BYTES_MAX) {
            if self.sealed >= self.sealed_max {
                give(&self.renew_keys().map_err(io::Error::other)?)?;
            }
            let record = self.seal_record(ContentType::ApplicationData, piece);
            give(&record.map_err(io::Error::other)?)?;
        }
        Ok(())
    }

    /// Takes new keys, and returns the record, under the old keys, that announces them.
    fn renew_keys(&mut self) -> Result<Vec<u8>, Error> {
        let record = self.seal_record(ContentType::Handshake, &KEY_UPDATE)?;
        let (sealed, secrets) = self.keys.for_sending()?;
        self.encrypter = new_encrypter(self.suite, secrets)?;
        self.sealed = sealed;
        Ok(record)
    }

    fn seal_record(&mut self, typ: ContentType, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        let message = OutboundPlainMessage {
            typ,
            version: ProtocolVersion::TLSv1_3,
            payload: OutboundChunks::Single(bytes),
        };
        let record = self.encrypter.encrypt(message, self.sealed)?;
        self.sealed += 1;
        Ok(record.encode())
    }

    /// Decrypts a record without its head in place. You must pass records in the order in which
    /// they came.
    pub(super) fn open_record<'a>(
        &mut self,
        record: &'a mut [u8],
    ) -> Result<OpenedRecord<'a>, Error> {
        let (typ, version) = (ContentType::ApplicationData, ProtocolVersion::TLSv1_2);
        let message = InboundOpaqueMessage::new(typ, version, record);
        let message = self.decrypter.decrypt(message, self.opened)?;
        self.opened += 1;
        self.empty += 1;
        match (message.typ, message.payload) {
            (ContentType::ApplicationData, bytes @ [_, ..]) => {
                self.empty = 0;
                Ok(OpenedRecord::Bytes(bytes))
            }
            _ if self.empty > EMPTY_MAX => Err(no_place("a run of empty records")),
            (ContentType::ApplicationData, []) => Ok(OpenedRecord::Bytes(&[])),
            (ContentType::Handshake, message) if *message == KEY_UPDATE => {
                let (opened, secrets) = self.keys.for_receiving()?;
                self.decrypter = new_decrypter(self.suite, secrets)?;
                self.opened = opened;
                Ok(OpenedRecord::NewKeys)
            }
            (ContentType::Alert, [_, 0]) => Ok(OpenedRecord::Farewell),
            (ContentType::Alert, [_, why]) => {
                Err(Error::AlertReceived(AlertDescription::from(*why)))
            }
            _ => Err(no_place("a record")),
        }
    }
}

/// The version in every head since TLS 1.2. The cipher does not cover it, and TLS requires
/// receivers to ignore it. Both ends of a direct channel run souk, so another version means that a
/// byte changed on the way.
const HEAD_VERSION: [u8; 2] = [3, 3];

/// Returns the length of the record behind the head.
pub(super) fn length_of(head: [u8; HEAD_BYTES]) -> io::Result<usize> {
    let [typ, major, minor, high, low] = head;
    let length = usize::from(u16::from_be_bytes([high, low]));
    if ContentType::from(typ) != ContentType::ApplicationData
        || [major, minor] != HEAD_VERSION
        || length > RECORD_BYTES_MAX
    {
        let what = "what came is no record of a direct channel";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(length)
}

impl Keys {
    fn cipher_suite(&self) -> SupportedCipherSuite {
        match self {
            Keys::Dialling(connection) => connection.negotiated_cipher_suite(),
            Keys::Dialled(connection) => connection.negotiated_cipher_suite(),
        }
    }

    fn for_sending(&mut self) -> Result<(u64, ConnectionTrafficSecrets), Error> {
        match self {
            Keys::Dialling(connection) => connection.update_tx_secret(),
            Keys::Dialled(connection) => connection.update_tx_secret(),
        }
    }

    fn for_receiving(&mut self) -> Result<(u64, ConnectionTrafficSecrets), Error> {
        match self {
            Keys::Dialling(connection) => connection.update_rx_secret(),
            Keys::Dialled(connection) => connection.update_rx_secret(),
        }
    }
}

fn new_encrypter(
    suite: &Tls13CipherSuite,
    secrets: ConnectionTrafficSecrets,
) -> Result<Box<dyn MessageEncrypter>, Error> {
    let (key, iv) = key_and_iv(secrets)?;
    Ok(suite.aead_alg.encrypter(key, iv))
}

fn new_decrypter(
    suite: &Tls13CipherSuite,
    secrets: ConnectionTrafficSecrets,
) -> Result<Box<dyn MessageDecrypter>, Error> {
    let (key, iv) = key_and_iv(secrets)?;
    Ok(suite.aead_alg.decrypter(key, iv))
}

fn key_and_iv(secrets: ConnectionTrafficSecrets) -> Result<(AeadKey, Iv), Error> {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv } => Ok((key, iv)),
        _ => Err(no_place("a cipher")),
    }
}

fn no_place(what: &str) -> Error {
    Error::General(format!("{what} that has no place on a direct channel"))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use souk_folder::key::NodeKey;

    use super::*;
    use crate::content::direct::handshake::Handshake;
    use crate::content::direct::identity;

    /// Both ends' records after a handshake.
    fn shaken() -> (Records, Records) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let (ours, theirs) = (NodeKey::generate(), NodeKey::generate());
        let config = identity::dialled(&theirs, ours.public_key()).unwrap();
        let other = thread::spawn(move || {
            let handshake = Handshake::new_server(&far, config, 1 << 16).unwrap();
            handshake.complete_handshake().unwrap().records
        });
        let config = identity::dialling(&ours, theirs.public_key()).unwrap();
        let handshake = Handshake::new_client(&near, config, 1 << 16).unwrap();
        (
            handshake.complete_handshake().unwrap().records,
            other.join().unwrap(),
        )
    }

    fn sealed(records: &mut Records, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let given = records.seal_bytes(bytes, |record| {
            all.push(record.to_vec());
            Ok(())
        });
        given.unwrap();
        all
    }

    /// What is behind the head, which has to say how much that is.
    fn behind_head(record: &mut [u8]) -> &mut [u8] {
        let (head, record) = record.split_first_chunk_mut().unwrap();
        assert_eq!(length_of(*head).unwrap(), record.len());
        record
    }

    #[test]
    fn keys_are_renewed_before_they_are_used_up() {
        let (mut near, mut far) = shaken();
        let bytes: Vec<u8> = (0..20 * PLAIN_BYTES_MAX).map(|n| (n / 7) as u8).collect();
        for way in [0, 1] {
            let (from, to) = match way {
                0 => (&mut near, &mut far),
                _ => (&mut far, &mut near),
            };
            from.sealed_max = 6;
            let mut records = sealed(from, &bytes);
            assert!(from.sealed <= 6, "no key is used longer");
            let (mut came, mut renewed) = (Vec::new(), 0);
            for record in &mut records {
                match to.open_record(behind_head(record)).unwrap() {
                    OpenedRecord::Bytes(bytes) => came.extend_from_slice(bytes),
                    OpenedRecord::NewKeys => renewed += 1,
                    OpenedRecord::Farewell => panic!("nobody leaves"),
                }
            }
            assert_eq!(came, bytes);
            assert_eq!(renewed, records.len() - 20);
            assert!(renewed >= 3);
        }
    }

    #[test]
    fn records_out_of_order_or_changed_or_of_no_use_here_are_refused() {
        let (mut near, mut far) = shaken();
        let mut records = sealed(&mut near, &[7; 3 * PLAIN_BYTES_MAX]);
        assert!(
            far.open_record(behind_head(&mut records[1].clone()))
                .is_err()
        );
        assert!(
            far.open_record(behind_head(&mut records[0].clone()))
                .is_ok()
        );
        assert!(
            far.open_record(behind_head(&mut records[0])).is_err(),
            "twice"
        );
        behind_head(&mut records[1])[100] ^= 1;
        assert!(far.open_record(behind_head(&mut records[1])).is_err());
        assert!(far.open_record(&mut []).is_err());
        for (typ, message) in [
            (ContentType::Handshake, &[4, 0, 0, 1, 0][..]),
            (ContentType::Handshake, &[24, 0, 0, 1, 1]),
            (ContentType::Alert, &[2, 40]),
            (ContentType::Alert, &[]),
            (ContentType::Heartbeat, &[1]),
        ] {
            let (mut near, mut far) = shaken();
            let mut record = near.seal_record(typ, message).unwrap();
            assert!(
                far.open_record(behind_head(&mut record)).is_err(),
                "{typ:?}"
            );
        }
        let (mut near, mut far) = shaken();
        let mut farewell = near.seal_record(ContentType::Alert, &[1, 0]).unwrap();
        let opened = far.open_record(behind_head(&mut farewell));
        assert!(matches!(opened, Ok(OpenedRecord::Farewell)));
    }

    #[test]
    fn who_sends_records_of_no_bytes_for_ever_is_left() {
        let (mut near, mut far) = shaken();
        let mut send = |bytes: Option<&[u8]>| {
            let mut record = match bytes {
                Some(bytes) => near.seal_record(ContentType::ApplicationData, bytes),
                None => near.renew_keys(),
            };
            let record = record.as_mut().unwrap();
            far.open_record(behind_head(record)).map(drop)
        };
        for _ in 0..3 {
            for _ in 0..EMPTY_MAX / 2 {
                send(Some(&[])).unwrap();
                send(None).unwrap();
            }
            send(Some(&[7])).unwrap();
        }
        let refused = (0..=EMPTY_MAX).find(|_| send(None).is_err());
        assert_eq!(refused, Some(EMPTY_MAX));
    }

    #[test]
    fn what_is_no_record_is_refused_by_its_head() {
        assert!(length_of([22, 3, 3, 0, 5]).is_err());
        assert!(length_of([23, 2, 3, 0, 5]).is_err());
        assert!(length_of([23, 3, 2, 0, 5]).is_err());
        assert!(length_of([23, 3, 3, 0xff, 0xff]).is_err());
        assert_eq!(length_of([23, 3, 3, 0x40, 0x11]).unwrap(), 0x4011);
    }
}
