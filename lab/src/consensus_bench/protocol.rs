//! Defines the messages between the driver of `souk bench consensus` and its replicas: commands and
//! their answers, and a question for a replica's state.

use bytes::Bytes;
use libp2p::swarm::StreamProtocol;
use serde::{Deserialize, Serialize};
use souk_consensus::codec::{Reader, TruncationError, Writer};
use souk_folder::contact::Contact;
use souk_folder::key::NodeKey;

/// Protocol of commands and their answers; a frame can hold many of either.
pub const PUT: StreamProtocol = StreamProtocol::new("/souk/bench/1");

/// Protocol of [`ReplicaProgress`]: the replica sends one message when the stream opens.
pub const STATUS: StreamProtocol = StreamProtocol::new("/souk/bench-status/1");

/// A client's request.
#[derive(Debug)]
pub struct PutRequest {
    /// The client's number for the request.
    pub number: u64,
    /// The commands. If they are signed, the signature and the client's key must precede them.
    pub payload: Bytes,
}

/// The result of a [`PutRequest`].
#[derive(Debug)]
pub struct PutResult {
    /// The client's number for the request.
    pub number: u64,
    /// Whether the replica applied the request.
    pub applied: bool,
}

impl PutRequest {
    /// Encodes a frame of requests.
    pub fn encode(puts: &[PutRequest]) -> Vec<u8> {
        let size: usize = puts.iter().map(|put| put.payload.len() + 12).sum();
        let mut writer = Writer::with_capacity(size);
        for put in puts {
            writer.write_u64(put.number);
            writer.write_block(&put.payload);
        }
        writer.into_bytes()
    }

    /// Decodes the requests of a frame; their payloads share its memory.
    pub fn decode(frame: Bytes) -> Result<Vec<PutRequest>, TruncationError> {
        let mut reader = Reader::new(frame);
        let mut puts = Vec::new();
        while reader.remaining_len() > 0 {
            let (number, payload) = (reader.read_u64()?, reader.read_block()?);
            puts.push(PutRequest { number, payload });
        }
        Ok(puts)
    }
}

impl PutResult {
    /// Encodes a frame of answers.
    pub fn encode(results: &[PutResult]) -> Vec<u8> {
        let mut writer = Writer::with_capacity(results.len() * 9);
        for result in results {
            writer.write_u64(result.number);
            writer.write_u8(u8::from(result.applied));
        }
        writer.into_bytes()
    }

    /// Decodes the answers of a frame.
    pub fn decode(frame: Bytes) -> Result<Vec<PutResult>, TruncationError> {
        let mut reader = Reader::new(frame);
        let mut results = Vec::new();
        while reader.remaining_len() > 0 {
            let (number, applied) = (reader.read_u64()?, reader.read_u8()? != 0);
            results.push(PutResult { number, applied });
        }
        Ok(results)
    }
}

/// A replica's progress.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReplicaProgress {
    /// The leader's id, or zero if there is none.
    pub leader: u64,
    /// The index of the last entry applied.
    pub applied: u64,
    /// The number of commands applied.
    pub commands: u64,
    /// The highest number applied, and the count of the numbers below it that were skipped.
    pub numbers: (u64, u64),
}

/// Derives a replica's key from its id, because the benchmark needs no secrecy. Anyone can derive
/// such a key, so it must never own credits.
pub fn key(id: u64) -> NodeKey {
    NodeKey::from_secret(*blake3::hash(format!("souk bench {id}").as_bytes()).as_bytes())
}

/// Returns a replica's address.
pub fn replica_contact(id: u64, port: u16) -> Contact {
    let address = format!("/ip4/127.0.0.1/tcp/{port}");
    let address = address.parse().expect("a well-formed address");
    Contact {
        account: key(id).public_key(),
        addresses: vec![address],
    }
}
