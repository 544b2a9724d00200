//! Stands in for the sled database in which a validator stores its views, the digests of its state
//! that it can always rebuild. A power loss can drop writes since the last sync, and a fault can
//! delete or corrupt the rest before the replica restarts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use serde::Serialize;
use souk_consensus::views::{Row, Rows, RowsError};

use super::random::Random;

/// Keys and their values.
type Table = BTreeMap<Vec<u8>, Vec<u8>>;

/// Harm to the folder while its replica is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Harm {
    /// The folder is deleted.
    Deleted,
    /// A bit of a row flips.
    Flipped,
    /// A row disappears.
    RowLost,
    /// Two rows are swapped.
    Swapped,
    /// The folder cannot be opened.
    Unreadable,
}

/// All kinds of harm.
pub const HARMS: [Harm; 5] = [
    Harm::Deleted,
    Harm::Flipped,
    Harm::RowLost,
    Harm::Swapped,
    Harm::Unreadable,
];

/// A handle to the folder, which outlives the replica that uses it.
#[derive(Clone, Debug, Default)]
pub struct SimRows {
    state: Rc<RefCell<RowsState>>,
}

#[derive(Debug, Default)]
struct RowsState {
    rows: Table,
    /// The rows that survive any crash, and later writes in order.
    durable: Table,
    pending: Vec<Change>,
    unreadable: bool,
}

#[derive(Clone, Debug)]
enum Change {
    Insert(Vec<Row>),
    Clear,
}

fn apply_change(table: &mut Table, change: Change) {
    match change {
        Change::Insert(rows) => table.extend(rows),
        Change::Clear => table.clear(),
    }
}

impl SimRows {
    /// Makes all writes durable.
    pub fn sync(&self) {
        let state = &mut *self.state.borrow_mut();
        for change in state.pending.drain(..) {
            apply_change(&mut state.durable, change);
        }
    }

    /// Loses power: keeps some of the first writes since the last sync.
    pub fn crash(&self, random: &mut Random) {
        let state = &mut *self.state.borrow_mut();
        let kept = random.draw_index(state.pending.len() + 1);
        for change in state.pending.drain(..).take(kept) {
            apply_change(&mut state.durable, change);
        }
        state.rows.clone_from(&state.durable);
    }

    /// Harms durable rows. Returns false if no row can be harmed in this way.
    pub fn harm_rows(&self, harm: Harm, random: &mut Random) -> bool {
        let state = &mut *self.state.borrow_mut();
        if state.durable.len() < 2 {
            return false;
        }
        let keys: Vec<Vec<u8>> = state.durable.keys().cloned().collect();
        // The last row can be missing for good reasons, so this never removes it.
        let place = random.draw_index(keys.len() - 1);
        match harm {
            Harm::Deleted => state.durable.clear(),
            Harm::Unreadable => state.unreadable = true,
            Harm::RowLost => drop(state.durable.remove(&keys[place])),
            Harm::Flipped => {
                let row = state.durable.get_mut(&keys[place]).expect("its key is");
                let byte = random.draw_index(row.len());
                row[byte] ^= 1 << random.draw_below(8);
            }
            Harm::Swapped => {
                let (one, other) = (&keys[place], &keys[place + 1]);
                let row = state.durable[one].clone();
                let row = state
                    .durable
                    .insert(other.clone(), row)
                    .expect("its key is");
                state.durable.insert(one.clone(), row);
            }
        }
        state.rows.clone_from(&state.durable);
        true
    }

    /// Removes all rows, as with a new disk in the same machine.
    pub fn wipe(&self) {
        *self.state.borrow_mut() = RowsState::default();
    }

    /// Returns a copy of the rows, as a reader without an earlier life's memory sees them.
    pub fn copy_rows(&self) -> Self {
        let rows = self.state.borrow().rows.clone();
        let state = RowsState {
            rows,
            ..RowsState::default()
        };
        Self {
            state: Rc::new(RefCell::new(state)),
        }
    }
}

impl Rows for SimRows {
    fn scan_prefix(&self, prefix: &[u8]) -> Result<Vec<Row>, RowsError> {
        let state = &mut *self.state.borrow_mut();
        if std::mem::take(&mut state.unreadable) {
            return Err(RowsError {
                cause: "the folder does not open".into(),
            });
        }
        let rows = state.rows.iter().filter(|(key, _)| key.starts_with(prefix));
        Ok(rows.map(|(key, row)| (key.clone(), row.clone())).collect())
    }

    fn insert(&mut self, rows: Vec<Row>) -> Result<(), RowsError> {
        let state = &mut *self.state.borrow_mut();
        let change = Change::Insert(rows);
        apply_change(&mut state.rows, change.clone());
        state.pending.push(change);
        Ok(())
    }

    fn clear(&mut self) -> Result<(), RowsError> {
        let state = &mut *self.state.borrow_mut();
        state.rows.clear();
        state.pending.push(Change::Clear);
        Ok(())
    }
}
