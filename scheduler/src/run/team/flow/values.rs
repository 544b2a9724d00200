//! The values of a run by name, and who has still to read them.

use std::collections::{BTreeMap, BTreeSet};

use super::super::laid::Laid;
use super::super::memories::Kept;

/// Who reads a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::run) enum Reader {
    /// A piece.
    Piece(usize),
    /// Whoever puts it together with other parts.
    Join,
    /// The job.
    Job,
}

/// Who reads each value, by its name.
pub(in crate::run) type Readers = BTreeMap<String, BTreeSet<Reader>>;

/// Values that are held, and pieces that have run.
#[derive(Default)]
pub(super) struct Values {
    readers: std::sync::Arc<Readers>,
    done: Vec<bool>,
    held: BTreeMap<String, Kept>,
}

impl Values {
    pub fn new(laid: &Laid) -> Self {
        Self {
            readers: laid.readers.clone(),
            done: vec![false; laid.pieces.len()],
            held: BTreeMap::new(),
        }
    }

    /// Whether somebody has still to read it.
    pub fn is_wanted(&self, name: &str) -> bool {
        let mut readers = self.readers.get(name).into_iter().flatten();
        readers.any(|reader| match *reader {
            Reader::Piece(piece) => !self.done[piece],
            Reader::Join | Reader::Job => true,
        })
    }

    /// Pieces that have still to read it.
    pub fn pieces_for(&self, name: &str) -> impl Iterator<Item = usize> + '_ {
        let readers = self.readers.get(name).into_iter().flatten();
        readers.filter_map(|reader| match *reader {
            Reader::Piece(piece) if !self.done[piece] => Some(piece),
            _ => None,
        })
    }

    pub fn get(&self, name: &str) -> Option<&Kept> {
        self.held.get(name)
    }

    /// Holds it; gives what was held by its name before.
    pub fn put(&mut self, kept: Kept) -> Option<Kept> {
        self.held.insert(kept.name.to_string(), kept)
    }

    /// A piece has run: gives what nobody has to read any more of what it read.
    pub fn read_by<'a>(
        &mut self,
        piece: usize,
        names: impl Iterator<Item = &'a String>,
    ) -> Vec<Kept> {
        self.done[piece] = true;
        let over = names.filter(|name| !self.is_wanted(name));
        let over: Vec<&String> = over.collect();
        let held = over.into_iter().filter_map(|name| self.held.remove(name));
        held.collect()
    }

    /// A piece is to run, maybe again.
    pub fn again(&mut self, piece: usize) {
        self.done[piece] = false;
    }

    /// All of these, if all are held.
    pub fn take_all(&mut self, names: &[String]) -> Option<Vec<Kept>> {
        let all = names.iter().all(|name| self.held.contains_key(name));
        let take = |name| self.held.remove(name);
        all.then(|| names.iter().filter_map(take).collect())
    }

    /// Everything.
    pub fn take(&mut self) -> Vec<Kept> {
        std::mem::take(&mut self.held).into_values().collect()
    }
}

/// Who reads each value of a layout.
pub(in crate::run) fn readers(laid: &Laid) -> Readers {
    let mut readers = Readers::new();
    let mut add = |name: &String, reader| {
        readers.entry(name.clone()).or_default().insert(reader);
    };
    for (index, piece) in laid.pieces.iter().enumerate() {
        for read in &piece.reads {
            add(&read.value, Reader::Piece(index));
        }
    }
    for part in laid.joins.iter().flat_map(|join| &join.parts) {
        add(part, Reader::Join);
    }
    for output in &laid.outputs {
        add(output, Reader::Job);
    }
    readers
}
