//! What members sign about a state: "at this entry I came to this one myself".
//!
//! Each member makes the whole state at the same entries, and signs its digest there. A state that
//! one replica hands to another is taken only with the signatures of a majority of the members. The
//! signatures are valid whoever brings them, so a member that is gone still vouches.

use bytes::Bytes;

use std::collections::BTreeSet;

use crate::codec::{Reader, TruncationError, Writer};
use crate::history::Digest;
use crate::ids::{LogIndex, ReplicaId};

/// The signed bytes begin with this, so that no other signature of the same key fits.
const DOMAIN: &[u8] = b"souk state v1";

/// Signatures in one certificate: more than a group has members.
const VOUCHERS_MAX: u32 = 64;

/// Which state a replica has at which entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statement {
    /// The last entry that the state covers.
    pub index: LogIndex,
    /// Digest of all its bytes: index, term, members, time and the machine's state are in them.
    pub state: Digest,
}

impl Statement {
    /// The bytes to sign.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.raw(DOMAIN);
        writer.u64(self.index.0);
        writer.raw(&self.state.0);
        writer.finish()
    }
}

/// One member's signature under a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Voucher {
    /// The member.
    pub by: ReplicaId,
    /// Its signature; the machine knows the key.
    pub signature: Bytes,
}

/// A statement and its signatures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Certificate {
    /// What is signed.
    pub statement: Statement,
    /// By whom.
    pub vouchers: Vec<Voucher>,
}

impl Certificate {
    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.u64(self.statement.index.0);
        writer.raw(&self.statement.state.0);
        writer.u32(u32::try_from(self.vouchers.len()).expect("a group is small"));
        for voucher in &self.vouchers {
            writer.u64(voucher.by.get());
            writer.block(&voucher.signature);
        }
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<Self, TruncationError> {
        let index = LogIndex(reader.u64()?);
        let state = Digest(reader.digest()?);
        let count = reader.u32()?.min(VOUCHERS_MAX);
        let mut vouchers = Vec::new();
        for _ in 0..count {
            let by = ReplicaId::new(reader.u64()?);
            let signature = reader.block()?;
            vouchers.extend(by.map(|by| Voucher { by, signature }));
        }
        let statement = Statement { index, state };
        Ok(Self {
            statement,
            vouchers,
        })
    }

    /// Bytes that [`Certificate::encode`] writes.
    pub(crate) fn room(&self) -> usize {
        let vouchers = self.vouchers.iter().map(|it| 12 + it.signature.len());
        44 + vouchers.sum::<usize>()
    }
}

/// A state that another replica offers, as the receiver's machine judges it.
#[derive(Clone, Copy, Debug)]
pub struct OfferedState<'a> {
    /// The voters that the receiver knows; none before its first state.
    pub known: &'a BTreeSet<ReplicaId>,
    /// The voters that the state names.
    pub voters: &'a BTreeSet<ReplicaId>,
    /// The machine's part of the state.
    pub machine: &'a [u8],
    /// The statement about the state, and its signatures.
    pub certificate: &'a Certificate,
}

/// Who must vouch for a state, and who has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Members of whom a majority must vouch.
    pub members: usize,
    /// Of them, those with a valid signature.
    pub vouched: usize,
}

impl Tally {
    /// Whether a majority vouches.
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
        let bytes = Bytes::from(writer.finish());
        assert_eq!(bytes.len(), certificate.room());
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
