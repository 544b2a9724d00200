//! Encodes and decodes snapshots. A snapshot is the whole replicated state at one log index, in a
//! file that contains its own hash. The store writes snapshots; replicas start from them and send
//! them to others.
//!
//! A snapshot holds all that a replica needs to continue without the earlier log: the state of the
//! state machine, the membership, the log's clock, the batches already applied, and the part of the
//! history tree (its open tiles) to which a replica appends. The last 32 bytes are the BLAKE3 hash
//! of all bytes before them.

use bytes::Bytes;
use raft::eraftpb::ConfState;

use crate::codec::{Reader, TruncationError, Writer};
use crate::ids::{ReplicaId, Term};
use crate::sessions::Sessions;
use crate::voucher::{Certificate, Statement, Voucher};
use souk_proof::Digest;
use souk_proof::History;
use souk_proof::{LogIndex, LogTime};

/// The first bytes of a snapshot: its name and layout version.
const MAGIC: &[u8; 8] = b"soukSNP4";

/// The part of [`MAGIC`] that all layout versions share.
const NAME: &[u8] = b"soukSNP";

/// The layout version that this release reads and writes.
pub(crate) const LAYOUT: char = MAGIC[7] as char;

/// The number of bytes of the digest at the end.
const DIGEST_BYTES: usize = 32;

/// The lowest bits of a term, which count the elections of a group. The bits above them distinguish
/// groups that were restored from backups.
const ELECTIONS_BITS: u32 = 16;

/// The lowest bit in a term of the number of times that the group was restored from a backup.
/// Between it and the elections are 32 bits of a hash.
const FOUNDING_SHIFT: u32 = ELECTIONS_BITS + 32;

/// The growth of the log since the last snapshot that the members vouched for. It is part of the
/// replicated state, so that all members make the next such snapshot at the same entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogGrowth {
    /// The last entry that the vouched snapshot covers.
    pub since: LogIndex,
    /// The number of bytes of the machine's state at that entry.
    pub state_bytes: u64,
    /// The number of bytes of the entries applied after it.
    pub log_bytes: u64,
}

/// A decoded snapshot and its encoded bytes.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The last entry that it covers.
    pub index: LogIndex,
    /// The term of that entry.
    pub term: Term,
    /// The members as of that entry.
    pub members: ConfState,
    /// The log's clock as of that entry.
    pub time: LogTime,
    /// The batches that have been applied, so that no replica applies one twice.
    pub sessions: Sessions,
    /// The history of everything applied up to that entry.
    pub history: History,
    /// The growth of the log since the last vouched snapshot; see [`LogGrowth`].
    pub growth: LogGrowth,
    /// The digest of the machine's state. A replica must compare it with the digest of the restored
    /// machine.
    pub state: Digest,
    /// The encoded state of the machine.
    pub machine: Bytes,
    /// The encoded snapshot, without the vouchers.
    pub bytes: Bytes,
    /// The members' signatures of the snapshot's statement. A first state and a backup have none;
    /// no replica accepts such a snapshot from another replica.
    pub vouchers: Vec<Voucher>,
}

/// Why bytes are not a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// The bytes do not begin like a snapshot, or are too short.
    #[error("not a snapshot, or cut short: it begins with {0:?}")]
    NotSnapshot(Vec<u8>),
    /// The layout is that of another release of souk.
    #[error("the snapshot has layout {found}, but this release of souk reads layout {LAYOUT}")]
    Layout {
        /// The layout version of the bytes.
        found: char,
    },
    /// The bytes differ from those written.
    #[error("the snapshot is damaged: its content has the digest {found}, but it states {wanted}")]
    Damaged {
        /// The digest that the bytes state: at the end, or in the signed statement.
        wanted: Digest,
        /// The digest of the content.
        found: Digest,
    },
    /// The bytes end early.
    #[error("the snapshot is cut short: {0}")]
    Truncated(#[from] TruncationError),
}

/// The parts from which [`Snapshot::new`] encodes a snapshot.
#[derive(Debug)]
pub struct SnapshotParts<'a> {
    /// See [`Snapshot::index`].
    pub index: LogIndex,
    /// See [`Snapshot::term`].
    pub term: Term,
    /// See [`Snapshot::members`].
    pub members: &'a ConfState,
    /// See [`Snapshot::time`].
    pub time: LogTime,
    /// See [`Snapshot::sessions`].
    pub sessions: &'a Sessions,
    /// See [`Snapshot::history`].
    pub history: &'a History,
    /// See [`Snapshot::growth`].
    pub growth: LogGrowth,
    /// See [`Snapshot::state`].
    pub state: Digest,
    /// See [`Snapshot::machine`].
    pub machine: &'a [u8],
}

impl Snapshot {
    /// Encodes a snapshot from its parts, without vouchers, and appends its digest.
    #[must_use]
    pub fn new(parts: &SnapshotParts<'_>) -> Self {
        let mut writer = Writer::with_capacity(parts.machine.len() + 1024);
        writer.write_raw(MAGIC);
        writer.write_u64(parts.index.0);
        writer.write_u64(parts.term.0);
        encode_members(parts.members, &mut writer);
        writer.write_u64(parts.time.0);
        parts.sessions.encode(&mut writer);
        encode_history(parts.history, &mut writer);
        writer.write_u64(parts.growth.since.0);
        writer.write_u64(parts.growth.state_bytes);
        writer.write_u64(parts.growth.log_bytes);
        writer.write_raw(&parts.state.0);
        writer.write_block(parts.machine);
        let mut bytes = writer.into_bytes();
        let digest = blake3::hash(&bytes);
        bytes.extend_from_slice(digest.as_bytes());
        Self::read(bytes.into()).expect("what was just encoded is a snapshot")
    }

    /// Creates the snapshot of a new replica: index zero, no members, no state.
    #[must_use]
    pub fn new_empty() -> Self {
        Self::new(&SnapshotParts {
            index: LogIndex(0),
            term: Term(0),
            members: &ConfState::default(),
            time: LogTime(0),
            sessions: &Sessions::default(),
            history: &History::default(),
            growth: LogGrowth::default(),
            state: Digest::default(),
            machine: &[],
        })
    }

    /// Creates the first snapshot of a new group with this state and these members, for disaster
    /// recovery from a backup. It does not contain the list of batches that the old group applied.
    ///
    /// The new group starts in a term of its own, above all terms of the old group and different
    /// from the terms of groups that start from other backups. So no two of their logs can have an
    /// entry with the same index and term. All replicas that you restore from one backup with one
    /// list of members get the same term.
    #[must_use]
    pub fn start_group(&self, members: &[ReplicaId]) -> Self {
        self.start_group_with_machine(members, self.state, &self.machine)
    }

    /// Like [`Snapshot::start_group`], with another state of the machine, given by its digest and
    /// bytes.
    #[must_use]
    pub fn start_group_with_machine(
        &self,
        members: &[ReplicaId],
        state: Digest,
        machine: &[u8],
    ) -> Self {
        let voters: Vec<u64> = members.iter().map(|member| member.get()).collect();
        Self::new(&SnapshotParts {
            index: self.index,
            term: self.first_term_of_group(&voters),
            members: &ConfState::from((voters, Vec::new())),
            time: self.time,
            sessions: &Sessions::default(),
            history: &self.history,
            growth: self.growth,
            state,
            machine,
        })
    }

    /// Returns the statement that members sign about this snapshot: its index and its digest.
    #[must_use]
    pub fn statement(&self) -> Statement {
        let closing = self.bytes.last_chunk::<DIGEST_BYTES>();
        Statement {
            index: self.index,
            state: Digest(*closing.expect("a snapshot ends in its digest")),
        }
    }

    /// Encodes the snapshot with its vouchers.
    #[must_use]
    pub fn encode_with_vouchers(&self) -> Vec<u8> {
        [&self.bytes[..], &self.encode_vouchers()].concat()
    }

    /// Encodes the part that [`Snapshot::encode_with_vouchers`] appends to the snapshot: the
    /// certificate, its length and its digest.
    pub(crate) fn encode_vouchers(&self) -> Vec<u8> {
        let certificate = Certificate {
            statement: self.statement(),
            vouchers: self.vouchers.clone(),
        };
        let mut writer = Writer::default();
        certificate.encode(&mut writer);
        let length = writer.len() as u64;
        writer.write_u64(length);
        let mut bytes = writer.into_bytes();
        let digest = blake3::hash(&bytes);
        bytes.extend_from_slice(digest.as_bytes());
        bytes
    }

    /// Decodes bytes that [`Snapshot::encode_with_vouchers`] wrote, and checks the digests. It does
    /// not verify the signatures: the caller must verify them before it relies on them.
    ///
    /// # Errors
    /// Returns an error if the bytes have another layout, or if any byte was changed or is missing.
    pub fn decode_with_vouchers(bytes: Bytes) -> Result<Self, SnapshotError> {
        let missing = || explain_bad_start(&bytes);
        if !bytes.starts_with(MAGIC) {
            return Err(missing());
        }
        let (content, closing) = bytes
            .split_last_chunk::<DIGEST_BYTES>()
            .ok_or_else(missing)?;
        let (_, length) = content.split_last_chunk::<8>().ok_or_else(missing)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let end = content.len() - 8;
        let begin = end.checked_sub(length).ok_or_else(missing)?;
        let found = Digest(*blake3::hash(&content[begin..]).as_bytes());
        let wanted = Digest(*closing);
        if wanted != found {
            return Err(SnapshotError::Damaged { wanted, found });
        }
        let certificate = Certificate::decode(&mut Reader::new(bytes.slice(begin..end)))?;
        let mut snapshot = Self::decode(bytes.slice(..begin))?;
        if certificate.statement != snapshot.statement() {
            let (wanted, found) = (certificate.statement.state, snapshot.statement().state);
            return Err(SnapshotError::Damaged { wanted, found });
        }
        snapshot.vouchers = certificate.vouchers;
        Ok(snapshot)
    }

    /// Returns the first term of the new group. The highest bits count the restores from a backup,
    /// the next 32 bits are a hash of the snapshot and the voters, and the lowest bits count
    /// elections, from zero.
    fn first_term_of_group(&self, voters: &[u64]) -> Term {
        let mut writer = Writer::default();
        writer.write_numbers(voters);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.bytes);
        hasher.update(&writer.into_bytes());
        let hash = hasher.finalize();
        let apart = hash
            .as_bytes()
            .first_chunk()
            .map_or(0, |it| u32::from_le_bytes(*it));
        let founding = (self.term.0 >> FOUNDING_SHIFT) + 1;
        let term = Term((founding << FOUNDING_SHIFT) | (u64::from(apart) << ELECTIONS_BITS));
        assert!(
            term > self.term,
            "a new group's terms come after the old one's"
        );
        term
    }

    /// Checks the digest of a snapshot without vouchers, and decodes it.
    ///
    /// # Errors
    /// Returns an error if the bytes have another layout, or if any byte was changed or is missing.
    pub fn decode(bytes: Bytes) -> Result<Self, SnapshotError> {
        let Some((content, closing)) = bytes.split_last_chunk::<DIGEST_BYTES>() else {
            return Err(explain_bad_start(&bytes));
        };
        if !content.starts_with(MAGIC) {
            return Err(explain_bad_start(content));
        }
        let (wanted, found) = (Digest(*closing), Digest(*blake3::hash(content).as_bytes()));
        if wanted != found {
            return Err(SnapshotError::Damaged { wanted, found });
        }
        Ok(Self::read(bytes)?)
    }

    /// Decodes bytes whose start and digest the caller has checked.
    fn read(bytes: Bytes) -> Result<Self, TruncationError> {
        let mut reader = Reader::new(bytes.slice(MAGIC.len()..bytes.len() - DIGEST_BYTES));
        Ok(Self {
            index: LogIndex(reader.read_u64()?),
            term: Term(reader.read_u64()?),
            members: decode_members(&mut reader)?,
            time: LogTime(reader.read_u64()?),
            sessions: Sessions::decode(&mut reader)?,
            history: decode_history(&mut reader)?,
            growth: LogGrowth {
                since: LogIndex(reader.read_u64()?),
                state_bytes: reader.read_u64()?,
                log_bytes: reader.read_u64()?,
            },
            state: Digest(reader.read_digest()?),
            machine: reader.read_block()?,
            bytes,
            vouchers: Vec::new(),
        })
    }
}

/// Writes the size of the history and the hashes in its open tiles, from which a replica can
/// continue it.
fn encode_history(history: &History, writer: &mut Writer) {
    writer.write_u64(history.size());
    for digest in history.open_tiles().iter().flatten() {
        writer.write_raw(&digest.0);
    }
}

fn decode_history(reader: &mut Reader) -> Result<History, TruncationError> {
    let size = reader.read_u64()?;
    let open_tiles = History::open_widths(size).map(|width| {
        let hashes = (0..width).map(|_| reader.read_digest().map(Digest));
        hashes.collect::<Result<Vec<_>, _>>()
    });
    let open_tiles = open_tiles.collect::<Result<Vec<_>, _>>()?;
    Ok(History::from_open_tiles(size, open_tiles))
}

/// Returns the error for bytes that are too short or do not begin with [`MAGIC`].
fn explain_bad_start(bytes: &[u8]) -> SnapshotError {
    let begin = bytes.iter().take(MAGIC.len()).copied().collect();
    match bytes.strip_prefix(NAME) {
        Some([found, ..]) if *found != MAGIC[7] => SnapshotError::Layout {
            found: char::from(*found),
        },
        _ => SnapshotError::NotSnapshot(begin),
    }
}

/// Encodes the membership. The order of the members in raft's lists varies, so this sorts each
/// list: equal states must have equal bytes.
fn encode_members(members: &ConfState, writer: &mut Writer) {
    let lists = [
        members.get_voters(),
        members.get_learners(),
        members.get_voters_outgoing(),
        members.get_learners_next(),
    ];
    for list in lists {
        let mut sorted = list.to_vec();
        sorted.sort_unstable();
        writer.write_numbers(&sorted);
    }
    writer.write_u8(u8::from(members.auto_leave));
}

fn decode_members(reader: &mut Reader) -> Result<ConfState, TruncationError> {
    let mut members = ConfState::default();
    members.set_voters(reader.read_numbers()?);
    members.set_learners(reader.read_numbers()?);
    members.set_voters_outgoing(reader.read_numbers()?);
    members.set_learners_next(reader.read_numbers()?);
    members.auto_leave = reader.read_u8()? != 0;
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        let members = ConfState::from((vec![1, 2, 3], vec![4]));
        Snapshot::new(&SnapshotParts {
            index: LogIndex(9),
            term: Term(2),
            members: &members,
            time: LogTime(1_000),
            sessions: &Sessions::default(),
            history: &History::default(),
            growth: LogGrowth::default(),
            state: Digest([7; 32]),
            machine: b"books and balances",
        })
    }

    #[test]
    fn a_snapshot_is_read_as_written() {
        let snapshot = snapshot();
        assert_eq!(snapshot.index, LogIndex(9));
        assert_eq!(snapshot.members.get_voters(), [1, 2, 3]);
        assert_eq!(snapshot.members.get_learners(), [4]);
        assert_eq!(&snapshot.machine[..], b"books and balances");
    }

    #[test]
    fn a_snapshot_of_another_release_is_refused_by_its_layout() {
        let mut bytes = snapshot().encode_with_vouchers();
        bytes[7] = b'2';
        let wanted = SnapshotError::Layout { found: '2' };
        assert_eq!(
            Snapshot::decode_with_vouchers(bytes.into()).unwrap_err(),
            wanted
        );
        assert!(wanted.to_string().ends_with("reads layout 4"), "{wanted}");
    }

    #[test]
    fn groups_founded_on_different_backups_share_no_term() {
        let members = [1, 2, 3].map(|number| ReplicaId::new(number).unwrap());
        let one = snapshot();
        let other = Snapshot::new(&SnapshotParts {
            index: one.index,
            term: one.term,
            members: &one.members,
            time: one.time,
            sessions: &one.sessions,
            history: &one.history,
            growth: one.growth,
            state: one.state,
            machine: b"books and balances of another branch",
        });
        let elections = 1_000;
        let first = one.start_group(&members).term.0;
        assert_eq!(
            first,
            one.start_group(&members).term.0,
            "one file, one group"
        );
        assert!(
            first > one.term.0 + (1 << 40),
            "no election of the old group comes here"
        );
        for apart in [other.start_group(&members), one.start_group(&members[..2])] {
            assert!(
                first.abs_diff(apart.term.0) > elections,
                "{first} {}",
                apart.term
            );
        }
        let again = one.start_group(&members).start_group(&members).term.0;
        assert!(again > first + (1 << 40), "{again}");
        assert!(again < u64::MAX >> 1, "an audit's own term stays above");
    }

    #[test]
    fn members_in_another_order_are_the_same_bytes() {
        let mut writers = [Writer::default(), Writer::default()];
        encode_members(&ConfState::from((vec![3, 1, 2], vec![])), &mut writers[0]);
        encode_members(&ConfState::from((vec![2, 3, 1], vec![])), &mut writers[1]);
        let [one, other] = writers.map(Writer::into_bytes);
        assert_eq!(one, other);
    }

    #[test]
    fn one_flipped_bit_anywhere_is_found() {
        let vouchers = vec![Voucher {
            by: ReplicaId::new(2).unwrap(),
            signature: Bytes::from_static(b"signed"),
        }];
        let snapshot = Snapshot {
            vouchers,
            ..snapshot()
        };
        let bytes = snapshot.encode_with_vouchers();
        let read = Snapshot::decode_with_vouchers(bytes.clone().into()).unwrap();
        assert_eq!(read.vouchers, snapshot.vouchers);
        for place in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1;
            let read = Snapshot::decode_with_vouchers(damaged.into());
            assert!(read.is_err(), "byte {place}");
        }
        let bytes = snapshot.bytes;
        for place in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[place] ^= 1;
            assert!(Snapshot::decode(damaged.into()).is_err(), "byte {place}");
        }
    }
}
