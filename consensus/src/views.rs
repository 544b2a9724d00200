//! The *views* of a replica: a record of the digests of its state at each checkpoint, in a separate
//! store that may lose or damage data. Audits read it.
//!
//! A replica does not need the views to start, because they follow from snapshots and log.
//! The rows form a chain: each holds a hash of itself and of the row before it. The views delete
//! rows whose chain does not verify or that contradict the log, and write them again as the replica
//! applies the log.

use crate::checkpoint::Checkpoint;
use crate::codec::{Reader, TruncationError, Writer};
use souk_proof::Digest;
use souk_proof::LogIndex;

/// The prefix of the keys of checkpoints.
const PREFIX: &[u8] = b"checkpoint/";

/// The error of a store that failed, or that holds rows which nobody inserted. The views must then
/// delete all rows.
#[derive(Debug, thiserror::Error)]
#[error("the views can't be trusted: {cause}")]
pub struct RowsError {
    /// The store's reason.
    #[source]
    pub cause: Box<dyn std::error::Error + Send + Sync>,
}

/// A key and its value.
pub type Row = (Vec<u8>, Vec<u8>);

/// A store of rows in the order of their keys: sled in production, and in the simulator one that
/// fails on command.
pub trait Rows {
    /// Returns all rows whose key begins with `prefix`, in order.
    ///
    /// # Errors
    /// If the store cannot be read.
    fn scan_prefix(&self, prefix: &[u8]) -> Result<Vec<Row>, RowsError>;

    /// Adds rows. An implementation must add all or none.
    ///
    /// # Errors
    /// If the store cannot be written.
    fn insert(&mut self, rows: Vec<Row>) -> Result<(), RowsError>;

    /// Deletes all rows.
    ///
    /// # Errors
    /// If the store cannot be written.
    fn clear(&mut self) -> Result<(), RowsError>;
}

/// A checkpoint in the views.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenCheckpoint {
    /// The last entry that it covers.
    pub index: LogIndex,
    /// The commands and results in the history.
    pub size: u64,
    /// The root of the history.
    pub history: Digest,
    /// The machine's digest.
    pub state: Digest,
}

impl From<&Checkpoint> for SeenCheckpoint {
    fn from(checkpoint: &Checkpoint) -> Self {
        let Checkpoint {
            index,
            size,
            history,
            state,
            ..
        } = *checkpoint;
        Self {
            index,
            size,
            history,
            state,
        }
    }
}

/// Why rows cannot come from an earlier run of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowDamage {
    /// A row does not have the shape of a checkpoint's.
    #[error("row {0} does not hold a checkpoint")]
    Shape(usize),
    /// A row differs from the one written, or one before it does or is gone.
    #[error("the row of entry {} was changed, or an earlier row was changed or is missing", .0.0)]
    Chain(LogIndex),
}

impl From<RowDamage> for RowsError {
    fn from(damage: RowDamage) -> Self {
        Self {
            cause: Box::new(damage),
        }
    }
}

/// The views, over their store.
#[derive(Debug)]
pub struct Views<R> {
    rows: R,
    seen_checkpoints: Vec<SeenCheckpoint>,
    head: Digest,
    rebuilt: u64,
}

impl<R: Rows> Views<R> {
    /// Reads the views of an earlier run of the process, or deletes them if they are damaged.
    ///
    /// # Errors
    /// If the store cannot even be deleted.
    pub fn open(mut rows: R) -> Result<Self, RowsError> {
        let (mut rebuilt, mut found) = (0, (Vec::new(), Digest::default()));
        match read(&rows) {
            Ok(read) => found = read,
            Err(_) => {
                rows.clear()?;
                rebuilt = 1;
            }
        }
        let (seen, head) = found;
        Ok(Self {
            rows,
            seen_checkpoints: seen,
            head,
            rebuilt,
        })
    }

    /// Records all checkpoints of one round at once. If one differs from an earlier run's record,
    /// deletes all rows and starts again.
    ///
    /// # Errors
    /// If the store fails: a later run will then record these checkpoints again.
    pub fn on_checkpoints(&mut self, checkpoints: &[Checkpoint]) -> Result<(), RowsError> {
        if !checkpoints
            .iter()
            .all(|checkpoint| self.is_consistent(checkpoint))
        {
            self.rows.clear()?;
            (self.seen_checkpoints, self.head) = (Vec::new(), Digest::default());
            self.rebuilt += 1;
        }
        let mut rows = Vec::new();
        for seen in checkpoints.iter().map(SeenCheckpoint::from) {
            if self
                .seen_checkpoints
                .last()
                .is_none_or(|last| last.index < seen.index)
            {
                let (key, row, head) = encode_row(self.head, &seen);
                rows.push((key, row));
                self.head = head;
                self.seen_checkpoints.push(seen);
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        self.rows.insert(rows)
    }

    fn is_consistent(&self, checkpoint: &Checkpoint) -> bool {
        match self
            .seen_checkpoints
            .binary_search_by_key(&checkpoint.index, |seen| seen.index)
        {
            Ok(place) => self.seen_checkpoints[place] == SeenCheckpoint::from(checkpoint),
            Err(place) => place == self.seen_checkpoints.len(),
        }
    }

    /// Returns all recorded checkpoints, oldest first.
    #[must_use]
    pub fn recorded_checkpoints(&self) -> &[SeenCheckpoint] {
        &self.seen_checkpoints
    }

    /// Returns how often this run deleted all rows.
    #[must_use]
    pub fn rebuild_count(&self) -> u64 {
        self.rebuilt
    }

    /// Returns the store.
    #[must_use]
    pub fn rows(&self) -> &R {
        &self.rows
    }
}

/// Reads all checkpoints in a store and the end of their chain.
///
/// # Errors
/// If the store cannot be read, or a row differs from the one written.
pub fn read(rows: &impl Rows) -> Result<(Vec<SeenCheckpoint>, Digest), RowsError> {
    let (mut seen, mut head) = (Vec::new(), Digest::default());
    for (place, (key, bytes)) in rows.scan_prefix(PREFIX)?.into_iter().enumerate() {
        let found = decode_row(&key, &bytes).ok_or(RowDamage::Shape(place))?;
        let (_, wanted, next) = encode_row(head, &found);
        if wanted != bytes {
            return Err(RowDamage::Chain(found.index).into());
        }
        seen.push(found);
        head = next;
    }
    Ok((seen, head))
}

/// Returns the key and value of a checkpoint's row, and the chain's new end.
fn encode_row(head: Digest, seen: &SeenCheckpoint) -> (Vec<u8>, Vec<u8>, Digest) {
    let key = [PREFIX, &seen.index.0.to_be_bytes()].concat();
    let mut writer = Writer::with_capacity(104);
    writer.write_u64(seen.size);
    writer.write_raw(&seen.history.0);
    writer.write_raw(&seen.state.0);
    let mut row = writer.into_bytes();
    let mut hasher = blake3::Hasher::new();
    hasher.update(&head.0);
    hasher.update(&key);
    hasher.update(&row);
    let head = Digest(*hasher.finalize().as_bytes());
    row.extend_from_slice(&head.0);
    (key, row, head)
}

fn decode_row(key: &[u8], bytes: &[u8]) -> Option<SeenCheckpoint> {
    let index = key.strip_prefix(PREFIX)?.try_into().ok()?;
    let mut reader = Reader::new(bytes.to_vec().into());
    let fields = |reader: &mut Reader| -> Result<SeenCheckpoint, TruncationError> {
        Ok(SeenCheckpoint {
            index: LogIndex(u64::from_be_bytes(index)),
            size: reader.read_u64()?,
            history: Digest(reader.read_digest()?),
            state: Digest(reader.read_digest()?),
        })
    };
    fields(&mut reader).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::ids::Term;

    #[derive(Clone, Debug, Default)]
    struct Plain(BTreeMap<Vec<u8>, Vec<u8>>);

    impl Rows for Plain {
        fn scan_prefix(&self, prefix: &[u8]) -> Result<Vec<Row>, RowsError> {
            let rows = self.0.iter().filter(|(key, _)| key.starts_with(prefix));
            Ok(rows.map(|(key, row)| (key.clone(), row.clone())).collect())
        }

        fn insert(&mut self, rows: Vec<Row>) -> Result<(), RowsError> {
            self.0.extend(rows);
            Ok(())
        }

        fn clear(&mut self) -> Result<(), RowsError> {
            self.0.clear();
            Ok(())
        }
    }

    fn checkpoint(index: u64, state: u8) -> Checkpoint {
        Checkpoint {
            index: LogIndex(index),
            term: Term(1),
            size: 3 * index,
            history: Digest([2; 32]),
            state: Digest([state; 32]),
        }
    }

    fn filled() -> Plain {
        let mut views = Views::open(Plain::default()).unwrap();
        let all = [8, 16, 24, 32].map(|index| checkpoint(index, 1));
        views.on_checkpoints(&all[..1]).unwrap();
        views.on_checkpoints(&all[1..]).unwrap();
        views.rows
    }

    #[test]
    fn what_was_noted_is_there_in_the_next_life_and_noted_once() {
        let mut views = Views::open(filled()).unwrap();
        assert_eq!(views.recorded_checkpoints().len(), 4);
        views.on_checkpoints(&[checkpoint(24, 1)]).unwrap();
        views
            .on_checkpoints(&[checkpoint(32, 1), checkpoint(40, 1)])
            .unwrap();
        assert_eq!(
            (views.recorded_checkpoints().len(), views.rebuild_count()),
            (5, 0)
        );
        assert_eq!(read(views.rows()).unwrap().0, views.recorded_checkpoints());
    }

    #[test]
    fn a_flipped_bit_in_any_row_and_any_lost_row_but_the_last_ones_is_found() {
        let whole = filled();
        let keys: Vec<Vec<u8>> = whole.0.keys().cloned().collect();
        for (place, key) in keys.iter().enumerate() {
            for byte in 0..whole.0[key].len() {
                let mut spoiled = whole.clone();
                spoiled.0.get_mut(key).unwrap()[byte] ^= 1;
                let views = Views::open(spoiled).unwrap();
                assert_eq!(
                    (views.recorded_checkpoints().len(), views.rebuild_count()),
                    (0, 1),
                    "{place} {byte}"
                );
            }
            let mut shorter = whole.clone();
            shorter.0.remove(key);
            let left = Views::open(shorter).unwrap().recorded_checkpoints().len();
            assert_eq!(
                left,
                if place + 1 == keys.len() { place } else { 0 },
                "{place}"
            );
        }
    }

    #[test]
    fn rows_that_say_something_else_than_the_log_are_begun_anew() {
        let mut views = Views::open(filled()).unwrap();
        views.on_checkpoints(&[checkpoint(24, 9)]).unwrap();
        assert_eq!(
            (views.recorded_checkpoints().len(), views.rebuild_count()),
            (1, 1)
        );
        views.on_checkpoints(&[checkpoint(32, 1)]).unwrap();
        assert_eq!(read(views.rows()).unwrap().0, views.recorded_checkpoints());
    }
}
