//! Stores every account's *statement*, the history of its credits that people ask for and the
//! market's state forgets. A thread writes it into sled. It is not part of the replicated state,
//! and a validator can start without it.
//!
//! Lines come from the log as the validator applies it. If the thread missed a step (because a
//! snapshot replaced it, or the thread was far behind), a gap between the balances of two lines
//! shows it; the sums are never wrong. Lines are stored in generations; if there are too many, the
//! thread deletes the oldest.

use std::iter::once;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use souk_consensus::Position;
use souk_market::{AccountKey, Event, Millis};
use souk_roles::market::statement::{
    LINES_MAX, LogPlace, Statement, StatementLine, statement_lines,
};

use super::views;

/// Steps of the log that can wait for the thread.
const ON_THE_WAY_MAX: usize = 16_384;

/// Steps written in one batch.
const TOGETHER_MAX: usize = 1_024;

/// Lines of a generation, some 200 bytes each.
const GENERATION_LINES: u64 = 250_000;

/// The number of generations.
const GENERATIONS_MAX: usize = 8;

/// After this time without input, sled flushes.
const FLUSH_PERIOD: Duration = Duration::from_secs(1);

/// Bytes of lines in one answer.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// The keys in sled's own tree that do not hold lines.
const APPLIED: &[u8] = b"applied";
const WRITTEN: &[u8] = b"written";

/// One step of the log that moved credits.
struct Step {
    at: Position,
    time: Millis,
    events: Vec<Event>,
}

/// The inputs of the thread.
enum WriterInput {
    /// Write this step.
    Step(Step),
    /// Answer once everything before is written.
    Mark(SyncSender<()>),
}

/// Submits steps of the log to the thread that writes statements.
#[derive(Clone, Debug)]
pub(super) struct StatementWriter(Option<SyncSender<WriterInput>>);

impl StatementWriter {
    /// Returns a writer that discards everything: for a state that is only inspected.
    pub(super) fn new_discarding() -> Self {
        Self(None)
    }

    /// Submits a step, or drops it if the thread is far behind.
    pub(super) fn submit_step(&self, at: Position, time: Millis, events: &[Event]) {
        let moved = |event: &Event| matches!(event, Event::Balance { .. } | Event::Decided { .. });
        let Some(steps) = self.0.as_ref().filter(|_| events.iter().any(moved)) else {
            return;
        };
        let events = events.to_vec();
        match steps.try_send(WriterInput::Step(Step { at, time, events })) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                tracing::debug!(index = at.index.0, "a step was dropped from the statements");
            }
            Err(TrySendError::Disconnected(_)) => {}
        }
    }
}

/// Reads the statements of accounts.
#[derive(Clone, Debug)]
pub(super) struct Statements {
    generations: Arc<Mutex<Generations>>,
    messages: SyncSender<WriterInput>,
}

/// Opens the statements of a folder and starts their thread.
pub(super) fn open_folder(folder: &Path) -> std::io::Result<(StatementWriter, Statements)> {
    let generations = Arc::new(Mutex::new(Generations::open_folder(folder)?));
    let (messages, inbox) = sync_channel(ON_THE_WAY_MAX);
    let written = generations.clone();
    std::thread::Builder::new()
        .name("statements".to_owned())
        .spawn(move || write_steps(&written, &inbox))?;
    let statements = Statements {
        generations,
        messages: messages.clone(),
    };
    Ok((StatementWriter(Some(messages)), statements))
}

impl Statements {
    /// Returns lines of an account before `before`, the newest first, from everything applied until
    /// now.
    pub(super) fn read(
        &self,
        account: AccountKey,
        before: Option<LogPlace>,
    ) -> sled::Result<Statement> {
        let (mark, written) = sync_channel(1);
        if self.messages.send(WriterInput::Mark(mark)).is_ok() {
            // A thread that has ended has written all it can.
            let _ = written.recv();
        }
        let trees = lock(&self.generations).trees.clone();
        let begin = account.0.to_vec();
        let end = key(account, before.unwrap_or(LogPlace::LAST));
        let (mut lines, mut bytes) = (Vec::new(), 0);
        for (_, tree) in trees.iter().rev() {
            for row in tree.range(begin.clone()..end.clone()).rev() {
                let (_, row) = row?;
                bytes += row.len();
                if lines.len() == LINES_MAX || bytes > ANSWER_BYTES_MAX {
                    return Ok(Statement { lines, more: true });
                }
                // A line of another version does not decode and is left out.
                lines.extend(postcard::from_bytes::<StatementLine>(&row));
            }
        }
        Ok(Statement { lines, more: false })
    }
}

// No code under this lock panics half-way through a change.
fn lock(generations: &Mutex<Generations>) -> MutexGuard<'_, Generations> {
    generations.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes steps until every sender is gone.
fn write_steps(generations: &Mutex<Generations>, inbox: &Receiver<WriterInput>) {
    loop {
        let first = match inbox.recv_timeout(FLUSH_PERIOD) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => {
                lock(generations).flush();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let (mut steps, mut marks) = (Vec::new(), Vec::new());
        for message in once(first).chain(inbox.try_iter().take(TOGETHER_MAX - 1)) {
            match message {
                WriterInput::Step(step) => steps.push(step),
                WriterInput::Mark(mark) => marks.push(mark),
            }
        }
        if let Err(error) = lock(generations).write(&steps) {
            tracing::warn!(%error, "movements could not be written to the statements");
        }
        // The send fails only if the reader no longer waits.
        for mark in marks {
            let _gone = mark.try_send(());
        }
    }
    lock(generations).flush();
}

/// Returns the key of a line: the account, then the place in the log, so that lines sort in the
/// order of the log.
fn key(account: AccountKey, place: LogPlace) -> Vec<u8> {
    let mut key = account.0.to_vec();
    key.extend(place.index.to_be_bytes());
    key.extend(place.offset.to_be_bytes());
    key.extend(place.part.to_be_bytes());
    key
}

/// The lines, by generation.
#[derive(Debug)]
struct Generations {
    db: sled::Db,
    /// Trees with their numbers, the oldest first; new lines go to the last.
    trees: Vec<(u64, sled::Tree)>,
    /// The number of lines in the last tree.
    written: u64,
    /// The last step that was written.
    applied: Option<(u64, u32)>,
}

impl Generations {
    fn open_folder(folder: &Path) -> std::io::Result<Self> {
        let db = views::open_anew(folder).map_err(std::io::Error::other)?;
        Self::from_db(db).map_err(std::io::Error::other)
    }

    fn from_db(db: sled::Db) -> sled::Result<Self> {
        let names = db.tree_names();
        let numbers = names.iter().filter_map(|name| {
            let name = std::str::from_utf8(name).ok()?;
            name.strip_prefix("lines/")?.parse::<u64>().ok()
        });
        let mut numbers: Vec<u64> = numbers.collect();
        numbers.sort_unstable();
        if numbers.is_empty() {
            numbers.push(0);
        }
        let open = |number: u64| Ok((number, db.open_tree(format!("lines/{number}"))?));
        let trees = numbers.into_iter().map(open).collect::<sled::Result<_>>()?;
        let number = |row: Option<sled::IVec>| row.and_then(|row| postcard::from_bytes(&row).ok());
        let written = number(db.get(WRITTEN)?).unwrap_or(0);
        let applied = db.get(APPLIED)?;
        let applied = applied.and_then(|row| postcard::from_bytes(&row).ok());
        Ok(Self {
            db,
            trees,
            written,
            applied,
        })
    }

    /// Writes the steps that are new: after a start the validator applies the log again from its
    /// snapshot.
    fn write(&mut self, steps: &[Step]) -> sled::Result<()> {
        let mut batch = sled::Batch::default();
        let mut count = 0;
        for step in steps {
            let at = (step.at.index.0, step.at.offset);
            if self.applied.is_some_and(|applied| at <= applied) {
                continue;
            }
            self.applied = Some(at);
            for (account, line) in statement_lines(at.0, at.1, step.time, &step.events) {
                batch.insert(key(account, line.place), encode_value(&line));
                count += 1;
            }
        }
        if count == 0 {
            return Ok(());
        }
        if self.written >= GENERATION_LINES {
            self.begin_generation()?;
        }
        self.written += count;
        let (_, tree) = self.trees.last().expect("there is one to write to");
        tree.apply_batch(batch)?;
        self.db.insert(WRITTEN, encode_value(&self.written))?;
        self.db.insert(APPLIED, encode_value(&self.applied))?;
        Ok(())
    }

    fn flush(&self) {
        if let Err(error) = self.db.flush() {
            tracing::warn!(%error, "the statements could not be written");
        }
    }

    fn begin_generation(&mut self) -> sled::Result<()> {
        let number = self.trees.last().map_or(0, |(number, _)| number + 1);
        let name = format!("lines/{number}");
        self.trees.push((number, self.db.open_tree(name)?));
        self.written = 0;
        while self.trees.len() > GENERATIONS_MAX {
            let (oldest, _) = self.trees.remove(0);
            self.db.drop_tree(format!("lines/{oldest}"))?;
        }
        Ok(())
    }
}

fn encode_value(value: &impl serde::Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).expect("plain data in memory always encodes")
}
