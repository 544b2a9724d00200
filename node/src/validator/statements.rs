//! Every account's statement, kept in sled by a thread of its own: what the market's state forgets
//! and people ask for. It is no part of the replicated state and nothing is needed to start.
//!
//! Lines come from the log as it is applied. What was never seen here (a snapshot took its place,
//! or the thread was far behind) shows as a gap between two lines' balances, never as a wrong sum.
//! Lines lie in generations, of which the oldest goes when there are too many.

use std::iter::once;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use souk_consensus::Position;
use souk_market::{AccountKey, Event, Millis};
use souk_roles::market::statement::{LINES_MAX, LogPlace, Statement, StatementLine, lines};

use super::views;

/// Steps of the log on their way to the thread.
const ON_THE_WAY_MAX: usize = 16_384;

/// Steps written in one batch.
const TOGETHER_MAX: usize = 1_024;

/// Lines of a generation, some 200 bytes each.
const GENERATION_LINES: u64 = 250_000;

/// Generations that are kept.
const GENERATIONS_MAX: usize = 8;

/// How long nothing must have come before sled writes what it has.
const FLUSH_PERIOD: Duration = Duration::from_secs(1);

/// Bytes of lines in one answer.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// The keys of what is no line, in sled's own tree.
const APPLIED: &[u8] = b"applied";
const WRITTEN: &[u8] = b"written";

/// One step of the log that moved credits.
struct Step {
    at: Position,
    time: Millis,
    events: Vec<Event>,
}

/// What the thread is told.
enum WriterInput {
    /// Write this down.
    Step(Step),
    /// Say when all before is written.
    Mark(SyncSender<()>),
}

/// Where steps of the log are told to be written down.
#[derive(Clone, Debug)]
pub(super) struct StatementWriter(Option<SyncSender<WriterInput>>);

impl StatementWriter {
    /// One that keeps nothing: for a state that is only looked at.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// Takes note of a step, or drops it where the thread is far behind.
    pub(super) fn note(&self, at: Position, time: Millis, events: &[Event]) {
        let moved = |event: &Event| matches!(event, Event::Balance { .. } | Event::Decided { .. });
        let Some(steps) = self.0.as_ref().filter(|_| events.iter().any(moved)) else {
            return;
        };
        let events = events.to_vec();
        match steps.try_send(WriterInput::Step(Step { at, time, events })) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                tracing::debug!(index = at.index.0, "a movement is not in the statements");
            }
            Err(TrySendError::Disconnected(_)) => {}
        }
    }
}

/// What is read of statements.
#[derive(Clone, Debug)]
pub(super) struct Statements {
    generations: Arc<Mutex<Generations>>,
    messages: SyncSender<WriterInput>,
}

/// Opens the statements of a folder; where they can't be, there are none.
pub(super) fn open(folder: &Path) -> std::io::Result<(StatementWriter, Statements)> {
    let generations = Arc::new(Mutex::new(Generations::open(folder)?));
    let (messages, inbox) = sync_channel(ON_THE_WAY_MAX);
    let written = generations.clone();
    std::thread::Builder::new()
        .name("statements".to_owned())
        .spawn(move || follow(&written, &inbox))?;
    let statements = Statements {
        generations,
        messages: messages.clone(),
    };
    Ok((StatementWriter(Some(messages)), statements))
}

impl Statements {
    /// Lines of an account before `before`, the newest first: of all that was applied until now.
    pub(super) fn read(
        &self,
        account: AccountKey,
        before: Option<LogPlace>,
    ) -> sled::Result<Statement> {
        let (mark, written) = sync_channel(1);
        if self.messages.send(WriterInput::Mark(mark)).is_ok() {
            // A thread that has ended has written what it will.
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
                // What another version wrote is not shown.
                lines.extend(postcard::from_bytes::<StatementLine>(&row));
            }
        }
        Ok(Statement { lines, more: false })
    }
}

// Each change under this lock is whole before anything can panic.
fn lock(generations: &Mutex<Generations>) -> MutexGuard<'_, Generations> {
    generations.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes what comes until nobody is left to tell of it.
fn follow(generations: &Mutex<Generations>, inbox: &Receiver<WriterInput>) {
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
        // Who no longer waits is told nothing.
        for mark in marks {
            let _gone = mark.try_send(());
        }
    }
    lock(generations).flush();
}

/// The account, then the place, in the order of the log.
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
    /// The oldest first; the last one is written to.
    trees: Vec<(u64, sled::Tree)>,
    /// Lines of the last one.
    written: u64,
    /// The last step that is written.
    applied: Option<(u64, u32)>,
}

impl Generations {
    fn open(folder: &Path) -> std::io::Result<Self> {
        let db = views::open_anew(folder).map_err(std::io::Error::other)?;
        Self::of(db).map_err(std::io::Error::other)
    }

    fn of(db: sled::Db) -> sled::Result<Self> {
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

    /// Writes what was not written: after a start the log is applied again from its snapshot on.
    fn write(&mut self, steps: &[Step]) -> sled::Result<()> {
        let mut batch = sled::Batch::default();
        let mut count = 0;
        for step in steps {
            let at = (step.at.index.0, step.at.offset);
            if self.applied.is_some_and(|applied| at <= applied) {
                continue;
            }
            self.applied = Some(at);
            for (account, line) in lines(at, step.time, &step.events) {
                batch.insert(key(account, line.place), encoded(&line));
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
        self.db.insert(WRITTEN, encoded(&self.written))?;
        self.db.insert(APPLIED, encoded(&self.applied))?;
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

fn encoded(value: &impl serde::Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).expect("plain data in memory always encodes")
}
