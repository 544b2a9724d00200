//! Messages between the driver and the replicas.

use bytes::Bytes;
use libp2p::swarm::StreamProtocol;
use serde::{Deserialize, Serialize};
use souk_consensus::codec::{Reader, TruncationError, Writer};
use souk_node::folder::contact::Contact;
use souk_node::folder::key::NodeKey;

/// Protocol of commands and their answers, many in a frame.
pub const PUT: StreamProtocol = StreamProtocol::new("/souk/bench/1");

/// Protocol of one question and one answer.
pub const STATUS: StreamProtocol = StreamProtocol::new("/souk/bench-status/1");

/// A client's request.
#[derive(Debug)]
pub struct Put {
    /// The client's number for the request.
    pub number: u64,
    /// The commands. If signed, the first 64 bytes are one signature over the rest.
    pub payload: Bytes,
}

/// The end of a request.
#[derive(Debug)]
pub struct RequestEnd {
    /// The client's number for the request.
    pub number: u64,
    /// Whether the replica applied the request.
    pub applied: bool,
}

impl Put {
    /// Encodes a frame of requests.
    pub fn encode(puts: &[Put]) -> Vec<u8> {
        let size: usize = puts.iter().map(|put| put.payload.len() + 12).sum();
        let mut writer = Writer::with_capacity(size);
        for put in puts {
            writer.u64(put.number);
            writer.block(&put.payload);
        }
        writer.finish()
    }

    /// Decodes the requests of a frame; their payloads share its memory.
    pub fn decode(frame: Bytes) -> Result<Vec<Put>, TruncationError> {
        let mut reader = Reader::new(frame);
        let mut puts = Vec::new();
        while reader.left() > 0 {
            let (number, payload) = (reader.u64()?, reader.block()?);
            puts.push(Put { number, payload });
        }
        Ok(puts)
    }
}

impl RequestEnd {
    /// Encodes a frame of answers.
    pub fn encode(dones: &[RequestEnd]) -> Vec<u8> {
        let mut writer = Writer::with_capacity(dones.len() * 9);
        for done in dones {
            writer.u64(done.number);
            writer.u8(u8::from(done.applied));
        }
        writer.finish()
    }

    /// Decodes the answers of a frame.
    pub fn decode(frame: Bytes) -> Result<Vec<RequestEnd>, TruncationError> {
        let mut reader = Reader::new(frame);
        let mut dones = Vec::new();
        while reader.left() > 0 {
            let (number, applied) = (reader.u64()?, reader.u8()? != 0);
            dones.push(RequestEnd { number, applied });
        }
        Ok(dones)
    }
}

/// A replica's progress.
#[derive(Debug, Serialize, Deserialize)]
pub struct Standing {
    /// The leader's id, or zero if there is none.
    pub leader: u64,
    /// The last entry applied.
    pub applied: u64,
    /// Commands applied.
    pub commands: u64,
    /// The highest number applied, and how many numbers were skipped.
    pub numbers: (u64, u64),
}

/// Derives a replica's key from its id, because the benchmark needs no secrecy.
pub fn key(id: u64) -> NodeKey {
    NodeKey::from_secret(*blake3::hash(format!("souk bench {id}").as_bytes()).as_bytes())
}

/// Returns a replica's address.
pub fn contact(id: u64, port: u16) -> Contact {
    let address = format!("/ip4/127.0.0.1/tcp/{port}");
    let address = address.parse().expect("a well-formed address");
    Contact {
        account: key(id).public(),
        addresses: vec![address],
    }
}
