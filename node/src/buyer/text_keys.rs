//! Stores the API keys that an organisation issues for its programs, and how much each has spent.
//! [`souk_roles::tokens::keys`] is the core that decides what a key can still spend.
//!
//! ```text
//! FOLDER/buyer/openai-keys.jsonl     the keys: their terms and hashes, one line for each change
//! FOLDER/buyer/openai-usage.jsonl    what was reserved and charged, one line each
//! ```
//! Commands write the first file while a server reads it. One server at a time holds the second: it
//! writes a reservation there before it sends the request, and reservations of one moment share a
//! sync. After a crash, the server charges all open reservations in full when it starts again.

mod request;
mod terms_file;
mod usage_file;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use souk_folder::clock::{LogClock, unix_ms};
use souk_folder::facts::{FactLog, FactLogError};
use souk_market::Millis;
use souk_memory::ContentId;
use souk_roles::tokens::keys::{KeyBook, KeyFact};
use souk_roles::tokens::text::TextRequest;
use tokio::sync::{oneshot, watch};

use terms_file::FileStamp;
use usage_file::UsageWriter;

pub use souk_roles::tokens::keys::{
    BudgetPeriod, KeyAccount, KeyBudget, KeyId, KeyName, KeyRefusal, KeyTerms, MODELS_MAX,
    ModelPattern, REQUESTS_AT_ONCE,
};

pub use request::{BillSender, CoverError, KeyedRequest, PendingBill, TextBill};
pub use terms_file::{IssueError, NewKey, issue_key, read_terms, revoke_key};

/// The file of what keys have spent, relative to the folder of the market.
pub const USAGE_FILE: &str = "buyer/openai-usage.jsonl";

/// The format of its lines.
const USAGE_FORMAT: &str = "openai-usage-1";

/// How often a server looks for changed keys.
const TERMS_PERIOD: Duration = Duration::from_millis(250);

/// The number of facts after which the server rewrites the usage file with one line for each key.
const FACTS_MAX: usize = 65_536;

/// The keys that a server knows. Clones share them.
#[derive(Clone, Debug)]
pub struct TextKeys(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    /// The clock of the market's log, by which periods begin.
    clock: LogClock,
    state: Mutex<State>,
    open: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct State {
    book: KeyBook,
    /// The file of the terms in `book`.
    stamp: FileStamp,
    /// Writes the usage; none if no key is issued, or another server holds the file.
    writer: Option<UsageWriter>,
    /// The facts since the usage was written anew.
    facts: usize,
}

impl TextKeys {
    /// Opens the keys of a market's folder. The market's clock determines their days and months,
    /// because this machine's clock may run ahead and would begin a period too early.
    ///
    /// # Errors
    /// When a file is damaged or cannot be read.
    pub fn open(folder: &Path, clock: LogClock) -> Result<TextKeys, FactLogError> {
        let keys = TextKeys(Arc::new(Inner {
            folder: folder.to_owned(),
            clock,
            state: Mutex::default(),
            open: watch::Sender::new(0),
        }));
        keys.refresh()?;
        Ok(keys)
    }

    /// Returns whether another server of this folder holds the keys, so that this one has none.
    #[must_use]
    pub fn is_held_elsewhere(&self) -> bool {
        let state = self.lock_state();
        state.book.has_keys() && state.writer.is_none()
    }

    /// Checks periodically whether the keys have changed; it never returns.
    pub async fn follow_changes(&self) {
        loop {
            tokio::time::sleep(TERMS_PERIOD).await;
            if let Err(error) = self.refresh() {
                tracing::warn!(%error, "the changed keys are not read; the former ones hold");
            }
        }
    }

    /// Returns the terms of a key that a program sent; none if it is not issued.
    #[must_use]
    pub fn find_key(&self, sent: &str) -> Option<KeyTerms> {
        let hash = ContentId::for_content(sent.as_bytes());
        let find = || {
            let state = self.lock_state();
            let terms = state.book.find_key(hash).cloned();
            terms.filter(|_| state.writer.is_some())
        };
        find().or_else(|| {
            // It may have been issued just now.
            self.refresh().ok()?;
            find()
        })
    }

    /// Returns whether a key that a program sent is issued, and another server of this folder
    /// takes it.
    #[must_use]
    pub fn is_taken_elsewhere(&self, sent: &str) -> bool {
        let hash = ContentId::for_content(sent.as_bytes());
        let state = self.lock_state();
        state.writer.is_none() && state.book.find_key(hash).is_some()
    }

    /// Admits a request by the rates of its key. The key pays for it as long as the result lives.
    ///
    /// # Errors
    /// When the key was revoked, nothing is left of its budget, too many of its requests are open,
    /// or its rates do not allow the request now.
    pub fn admit(&self, key: KeyId, request: &TextRequest) -> Result<KeyedRequest, KeyRefusal> {
        let count = request.count_max();
        let tokens = count.input.saturating_add(count.output);
        let id = self.lock_state().book.admit(self.now(), key, tokens)?;
        self.0.open.send_modify(|open| *open += 1);
        Ok(KeyedRequest::new(self.clone(), id))
    }

    /// Returns the terms of a key and what it has spent.
    #[must_use]
    pub fn find_account(&self, key: KeyId) -> Option<(KeyTerms, KeyAccount)> {
        let state = self.lock_state();
        let mut accounts = state.book.accounts(self.now()).into_iter();
        let (terms, account) = accounts.find(|(terms, _)| terms.id() == key)?;
        Some((terms.clone(), account))
    }

    /// Waits until all requests are charged and on disk.
    pub async fn close(&self) {
        let mut open = self.0.open.subscribe();
        // The sender lives as long as this.
        let _ = open.wait_for(|open| *open == 0).await;
        let writer = self.lock_state().writer.take();
        if let Some(writer) = writer {
            writer.close().await;
        }
    }

    /// Reads the keys if they changed, and takes the usage over once there is a key.
    fn refresh(&self) -> Result<(), FactLogError> {
        let mut state = self.lock_state();
        let stamp = FileStamp::of(&self.0.folder);
        if stamp != state.stamp {
            let terms = read_terms(&self.0.folder)?;
            state.book.set_terms(terms);
            state.stamp = stamp;
        }
        if state.writer.is_some() || !state.book.has_keys() {
            return Ok(());
        }
        let path = self.0.folder.join(USAGE_FILE);
        let (mut log, facts) = match FactLog::open_log(&path, USAGE_FORMAT) {
            Err(FactLogError::Busy { .. }) => return Ok(()),
            opened => opened?,
        };
        state.book = KeyBook::restore(read_terms(&self.0.folder)?, &facts);
        let abandoned = state.book.charge_abandoned().len();
        if abandoned > 0 {
            tracing::warn!(
                abandoned,
                "requests of a server that was killed count in full"
            );
        }
        log.replace_facts(&state.book.to_facts())?;
        state.writer = Some(UsageWriter::start(log));
        Ok(())
    }

    fn now(&self) -> Millis {
        self.0.clock.log_time()
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Writes a fact; the answer comes when it is on disk.
    fn write_fact(&mut self, fact: KeyFact) -> oneshot::Receiver<Result<(), String>> {
        let (written, answer) = oneshot::channel();
        if let Some(writer) = &self.writer {
            writer.write(fact, written);
            self.facts += 1;
            if self.facts >= FACTS_MAX && writer.replace(self.book.to_facts()) {
                self.facts = 0;
            }
        }
        answer
    }
}

/// Returns what all keys of a folder have spent, even while a server uses them.
///
/// # Errors
/// When a file is damaged or cannot be read.
pub fn read_book(folder: &Path) -> Result<KeyBook, FactLogError> {
    let path = folder.join(USAGE_FILE);
    let facts = match path.exists() {
        true => FactLog::read(&path, USAGE_FORMAT)?,
        false => Vec::new(),
    };
    Ok(KeyBook::restore(read_terms(folder)?, &facts))
}

/// Returns this machine's time.
#[must_use]
pub fn now() -> Millis {
    Millis(unix_ms())
}

#[cfg(test)]
mod tests;
