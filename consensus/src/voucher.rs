//! The statements that members sign about a state ("I reached this state myself at this entry"),
//! and the certificate that collects the signatures.
//!
//! Each member makes the whole state at the same entries and signs its digest. A replica accepts a
//! state from another only with the signatures of a majority of the members. Signatures are valid
//! no matter who delivers them, so a member that is gone can still vouch.

use bytes::Bytes;

use std::collections::BTreeSet;

use crate::codec::{Reader, TruncationError, Writer};
use crate::ids::ReplicaId;
use souk_proof::Digest;
use souk_proof::LogIndex;

/// The prefix of the signed bytes, so that no other signature of the same key fits.
const DOMAIN: &[u8] = b"souk state v1";

/// The most signatures in one certificate: more than a group has members.
const VOUCHERS_MAX: u32 = 64;

/// The state of a replica at an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statement {
    /// The last entry that the state covers.
    pub index: LogIndex,
    /// The digest of all its bytes, which include index, term, members, time and the machine's
    /// state.
    pub state: Digest,
}

impl Statement {
    /// Returns the bytes to sign.
    #[must_use]
    pub fn signing_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.write_raw(DOMAIN);
        writer.write_u64(self.index.0);
        writer.write_raw(&self.state.0);
        writer.into_bytes()
    }
}

/// One member's signature under a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Voucher {
    /// The member that signed.
    pub by: ReplicaId,
    /// Its signature; the machine knows the key.
    pub signature: Bytes,
}

/// A statement and its signatures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Certificate {
    /// The signed statement.
    pub statement: Statement,
    /// The members' signatures.
    pub vouchers: Vec<Voucher>,
}

impl Certificate {
    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.write_u64(self.statement.index.0);
        writer.write_raw(&self.statement.state.0);
        writer.write_u32(u32::try_from(self.vouchers.len()).expect("a group is small"));
        for voucher in &self.vouchers {
            writer.write_u64(voucher.by.get());
            writer.write_block(&voucher.signature);
        }
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<Self, TruncationError> {
        let index = LogIndex(reader.read_u64()?);
        let state = Digest(reader.read_digest()?);
        let count = reader.read_u32()?.min(VOUCHERS_MAX);
        let mut vouchers = Vec::new();
        for _ in 0..count {
            let by = ReplicaId::new(reader.read_u64()?);
            let signature = reader.read_block()?;
            vouchers.extend(by.map(|by| Voucher { by, signature }));
        }
        let statement = Statement { index, state };
        Ok(Self {
            statement,
            vouchers,
        })
    }

    /// Returns the number of bytes that [`Certificate::encode`] writes.
    pub(crate) fn encoded_len(&self) -> usize {
        let vouchers = self.vouchers.iter().map(|it| 12 + it.signature.len());
        44 + vouchers.sum::<usize>()
    }
}

/// A state that another replica offers, for the receiver's machine to judge.
#[derive(Clone, Copy, Debug)]
pub struct OfferedState<'a> {
    /// The voters that the receiver knows; none before its first state.
    pub known: &'a BTreeSet<ReplicaId>,
    /// The voters in the offered state.
    pub voters: &'a BTreeSet<ReplicaId>,
    /// The machine's part of the state.
    pub machine: &'a [u8],
    /// The statement about the state, and its signatures.
    pub certificate: &'a Certificate,
}

/// The members that must vouch for a state, and those that do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// The members of which a majority must vouch.
    pub members: usize,
    /// Those of them with a valid signature.
    pub vouched: usize,
}

impl Tally {
    /// Returns whether a majority vouches.
    #[must_use]
    pub fn is_majority(&self) -> bool {
        2 * self.vouched > self.members
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_read_as_written() {
        let certificate = Certificate {
            statement: Statement {
                index: LogIndex(9),
                state: Digest([7; 32]),
            },
            vouchers: [2, 5]
                .map(|by| Voucher {
                    by: ReplicaId::new(by).unwrap(),
                    signature: vec![by as u8; 64].into(),
                })
                .into(),
        };
        let mut writer = Writer::default();
        certificate.encode(&mut writer);
        let bytes = Bytes::from(writer.into_bytes());
        assert_eq!(bytes.len(), certificate.encoded_len());
        let mut reader = Reader::new(bytes.clone());
        assert_eq!(Certificate::decode(&mut reader), Ok(certificate));
        for length in 0..bytes.len() {
            assert!(Certificate::decode(&mut Reader::new(bytes.slice(..length))).is_err());
        }
    }

    #[test]
    fn half_of_the_members_are_no_majority() {
        let tally = |vouched, members| Tally { members, vouched }.is_majority();
        assert!(tally(1, 1) && tally(2, 3) && tally(3, 4) && tally(3, 5));
        assert!(!tally(0, 1) && !tally(1, 2) && !tally(1, 3) && !tally(2, 4) && !tally(2, 5));
        assert!(!tally(0, 0), "nobody vouches for nobody");
    }
}
