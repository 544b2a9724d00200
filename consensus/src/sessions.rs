//! The table of the batches that replicas have applied, so that a batch that its origin proposed
//! twice takes effect once. It also records the ids of removed replicas.
//!
//! It is replicated state: every replica has the same table, and snapshots carry it. An origin
//! must state with each batch for which sequences it no longer waits, so the table holds only
//! batches in flight.

use std::collections::{BTreeMap, BTreeSet};

use crate::batch::{Batch, BatchId};
use crate::codec::{Reader, TruncationError, Writer};
use crate::ids::{Incarnation, ReplicaId};

/// One row for each replica that ever proposed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sessions {
    rows: BTreeMap<ReplicaId, SessionRow>,
    retired: BTreeSet<ReplicaId>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SessionRow {
    incarnation: Incarnation,
    /// The origin waits for no sequence below it: each was applied or given up.
    floor: u64,
    /// The applied sequences at or above the floor.
    applied: BTreeSet<u64>,
}

impl Sessions {
    /// Records a batch. Returns false if replicas must skip it, because it was applied or given up
    /// before.
    pub fn record_batch(&mut self, batch: &Batch) -> bool {
        let BatchId {
            origin,
            incarnation,
            sequence,
        } = batch.id;
        if self.is_retired(origin) {
            return false;
        }
        let row = self.rows.entry(origin).or_default();
        if incarnation < row.incarnation {
            return false;
        }
        if incarnation > row.incarnation {
            *row = SessionRow {
                incarnation,
                ..SessionRow::default()
            };
        }
        let fresh = sequence >= row.floor && row.applied.insert(sequence);
        if batch.floor > row.floor {
            row.floor = batch.floor;
            while row.applied.first().is_some_and(|it| *it < row.floor) {
                row.applied.pop_first();
            }
        }
        assert!(
            row.applied.first().is_none_or(|first| *first >= row.floor),
            "floor holds"
        );
        fresh
    }

    /// Returns whether a replica with this id was removed from the group.
    #[must_use]
    pub fn is_retired(&self, id: ReplicaId) -> bool {
        self.retired.contains(&id)
    }

    /// Retires the id of a removed replica, which can never be used again, and forgets its batches.
    pub fn retire_replica(&mut self, id: ReplicaId) {
        self.rows.remove(&id);
        self.retired.insert(id);
        assert!(!self.rows.contains_key(&id), "nothing is expected of it");
    }

    /// Returns whether a batch was applied.
    #[must_use]
    pub fn has_applied(&self, id: BatchId) -> bool {
        self.rows.get(&id.origin).is_some_and(|row| {
            row.incarnation == id.incarnation
                && (id.sequence < row.floor || row.applied.contains(&id.sequence))
        })
    }

    /// Writes the table.
    pub fn encode(&self, writer: &mut Writer) {
        writer.write_u32(u32::try_from(self.rows.len()).expect("a group is small"));
        for (origin, row) in &self.rows {
            writer.write_u64(origin.get());
            writer.write_u64(row.incarnation.0);
            writer.write_u64(row.floor);
            let applied: Vec<u64> = row.applied.iter().copied().collect();
            writer.write_numbers(&applied);
        }
        self.encode_retired(writer);
    }

    fn encode_retired(&self, writer: &mut Writer) {
        let retired: Vec<u64> = self.retired.iter().map(|id| id.get()).collect();
        writer.write_numbers(&retired);
    }

    /// Reads a table that [`Sessions::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes end early.
    pub fn decode(reader: &mut Reader) -> Result<Self, TruncationError> {
        let mut rows = BTreeMap::new();
        for _ in 0..reader.read_u32()? {
            let origin = ReplicaId::new(reader.read_u64()?);
            let incarnation = Incarnation(reader.read_u64()?);
            let floor = reader.read_u64()?;
            let applied = reader.read_numbers()?.into_iter().collect();
            let row = SessionRow {
                incarnation,
                floor,
                applied,
            };
            if let Some(origin) = origin {
                rows.insert(origin, row);
            }
        }
        let retired = reader
            .read_numbers()?
            .into_iter()
            .filter_map(ReplicaId::new)
            .collect();
        Ok(Self { rows, retired })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use souk_proof::LogTime;

    fn batch(incarnation: u64, sequence: u64, floor: u64) -> Batch {
        let origin = ReplicaId::new(1).unwrap();
        let id = BatchId {
            origin,
            incarnation: Incarnation(incarnation),
            sequence,
        };
        Batch {
            time: LogTime(0),
            id,
            floor,
            commands: Vec::new(),
        }
    }

    #[test]
    fn a_batch_is_admitted_once_in_any_order() {
        let mut sessions = Sessions::default();
        assert!(sessions.record_batch(&batch(1, 2, 1)));
        assert!(sessions.record_batch(&batch(1, 1, 1)));
        assert!(!sessions.record_batch(&batch(1, 2, 1)));
        assert!(!sessions.record_batch(&batch(1, 1, 1)));
    }

    #[test]
    fn what_is_below_the_floor_was_given_up() {
        let mut sessions = Sessions::default();
        assert!(sessions.record_batch(&batch(1, 5, 4)));
        assert!(!sessions.record_batch(&batch(1, 3, 1)));
        assert!(sessions.record_batch(&batch(1, 4, 4)));
    }

    #[test]
    fn an_earlier_life_is_over_once_a_later_one_spoke() {
        let mut sessions = Sessions::default();
        assert!(sessions.record_batch(&batch(1, 7, 1)));
        assert!(sessions.record_batch(&batch(2, 1, 1)));
        assert!(!sessions.record_batch(&batch(1, 8, 1)));
    }

    #[test]
    fn the_table_is_read_as_written() {
        let mut sessions = Sessions::default();
        for (sequence, floor) in [(1, 1), (2, 1), (5, 2)] {
            sessions.record_batch(&batch(3, sequence, floor));
        }
        let mut writer = Writer::default();
        sessions.encode(&mut writer);
        let mut reader = Reader::new(writer.into_bytes().into());
        assert_eq!(Sessions::decode(&mut reader), Ok(sessions));
    }
}
