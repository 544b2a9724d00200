//! What the driver and the replicas say to each other.

use bytes::Bytes;
use libp2p::swarm::StreamProtocol;
use serde::{Deserialize, Serialize};
use souk_consensus::codec::{Reader, TruncationError, Writer};
use souk_node::folder::contact::Contact;
use souk_node::folder::key::NodeKey;

/// Commands in, answers out: many to a frame.
pub const PUT: StreamProtocol = StreamProtocol::new("/souk/bench/1");

/// One question, one answer.
pub const STATUS: StreamProtocol = StreamProtocol::new("/souk/bench-status/1");

/// One request of a client.
#[derive(Debug)]
pub struct Put {
    /// The client's name for it.
    pub number: u64,
    /// The commands; with signatures, the first 64 bytes are one over the rest.
    pub payload: Bytes,
}

/// How a request ended.
#[derive(Debug)]
pub struct RequestEnd {
    /// The client's name for it.
    pub number: u64,
    /// Whether it was applied.
    pub applied: bool,
}

impl Put {
    /// A frame of requests.
    pub fn encode(puts: &[Put]) -> Vec<u8> {
        let size: usize = puts.iter().map(|put| put.payload.len() + 12).sum();
        let mut writer = Writer::with_capacity(size);
        for put in puts {
            writer.u64(put.number);
            writer.block(&put.payload);
        }
        writer.finish()
    }

    /// The requests of a frame; their payloads share its memory.
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
    /// A frame of answers.
    pub fn encode(dones: &[RequestEnd]) -> Vec<u8> {
        let mut writer = Writer::with_capacity(dones.len() * 9);
        for done in dones {
            writer.u64(done.number);
            writer.u8(u8::from(done.applied));
        }
        writer.finish()
    }

    /// The answers of a frame.
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

/// Where a replica stands.
#[derive(Debug, Serialize, Deserialize)]
pub struct Standing {
    /// Who leads, zero if nobody.
    pub leader: u64,
    /// The last entry applied.
    pub applied: u64,
    /// Commands applied.
    pub commands: u64,
    /// The highest number applied, and how many were skipped.
    pub numbers: (u64, u64),
}

/// A replica's key: made from its id, for nothing is at stake.
pub fn key(id: u64) -> NodeKey {
    NodeKey::from_secret(*blake3::hash(format!("souk bench {id}").as_bytes()).as_bytes())
}

/// Where a replica listens.
pub fn contact(id: u64, port: u16) -> Contact {
    let address = format!("/ip4/127.0.0.1/tcp/{port}");
    let address = address.parse().expect("a well-formed address");
    Contact {
        account: key(id).public(),
        addresses: vec![address],
    }
}
