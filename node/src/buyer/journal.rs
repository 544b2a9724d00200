//! The journal of a job: what a buyer must find again after its machine died.
//!
//! ```text
//! FOLDER/JOB/job.json      the record, replaced whole by each change
//! FOLDER/JOB/values/ID     values that were computed, paid for, and are needed still
//! FOLDER/JOB/answers.jsonl the answers of a stream that were given on
//! ```
//! The record is written before anything that depends on it is done: a lease that is bought under
//! a job id which the record does not yet name is found by that id, since ids follow from the
//! journal's own.

mod answers;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, JobId, Receipt, Trade};
use souk_memory::{ContentId, Tensor};

use crate::folder::config::{self, ConfigError, FORMAT};
use crate::protocols::lease::Start;

pub(super) use answers::given_under;
pub use answers::{Noted, request_id};

/// The record's file.
const RECORD_FILE: &str = "job.json";

/// The folder of values.
const VALUES_FOLDER: &str = "values";

/// Jobs kept; beyond them the oldest that are over go.
const JOBS_MAX: usize = 256;

/// A job as its folder tells it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The version of the file.
    pub format: u32,
    /// The job's name: the first digits of its first job id.
    pub name: String,
    /// The id its first leases are bought under; those of later rounds follow from it.
    pub first: JobId,
    /// When it was begun, in milliseconds since 1970.
    pub begun_ms: u64,
    /// What was asked for, by the caller's own words; not looked into here.
    pub command: serde_json::Value,
    /// The model with the shapes of its inputs, and the inputs: a job is resumed with the same.
    pub subject: ContentId,
    /// How it stands.
    pub state: State,
    /// Each time leases were bought for it.
    pub rounds: Vec<Round>,
    /// Ids that third runs were bought under, where two had differed.
    pub others: Vec<JobId>,
    /// Values that are there, by name.
    pub values: BTreeMap<String, ContentId>,
    /// Providers it does without.
    pub excluded: Vec<AccountKey>,
    /// Receipts signed so far.
    pub receipts: Vec<Receipt>,
}

/// How a job stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum State {
    /// It runs, or whoever ran it died.
    Running,
    /// Its outputs are there.
    Done,
    /// It was interrupted and its leases were ended.
    Interrupted,
    /// It ended without its outputs.
    Failed {
        /// The reason as a word.
        code: String,
        /// The reason as a sentence.
        cause: String,
    },
}

/// One purchase of leases.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Round {
    /// The id the leases were bought under.
    pub job: JobId,
    /// The leases.
    pub trades: Vec<Trade>,
    /// What each lease's provider was told.
    pub starts: Vec<Start>,
}

/// A job's folder, open for changes.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    record: Record,
}

/// Why a journal was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The record.
    #[error(transparent)]
    Record(#[from] ConfigError),
    /// The file system refused.
    #[error("cannot use {path}: {source}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A value is not what was written.
    #[error("{path} is damaged: its BLAKE3 is not its name")]
    Value {
        /// The file.
        path: PathBuf,
    },
    /// The model or an input is not the one the job was begun with.
    #[error("the model or an input of job {name} has changed since it was begun")]
    Subject {
        /// The job.
        name: String,
    },
    /// No job of that name.
    #[error("there is no job {name} in {folder}")]
    Unknown {
        /// The name given.
        name: String,
        /// Where it was looked for.
        folder: PathBuf,
    },
}

impl Journal {
    /// Begins a journal below `folder`.
    pub fn create(
        folder: &Path,
        first: JobId,
        begun_ms: u64,
        subject: ContentId,
        command: serde_json::Value,
    ) -> Result<Journal, JournalError> {
        prune(folder);
        let name: String = first.to_string().chars().take(12).collect();
        let record = Record {
            format: FORMAT,
            name: name.clone(),
            first,
            begun_ms,
            command,
            subject,
            state: State::Running,
            rounds: Vec::new(),
            others: Vec::new(),
            values: BTreeMap::new(),
            excluded: Vec::new(),
            receipts: Vec::new(),
        };
        let folder = folder.join(name);
        let values = folder.join(VALUES_FOLDER);
        fs::create_dir_all(&values).map_err(file(&values))?;
        let mut journal = Journal { folder, record };
        journal.change(|_| {})?;
        Ok(journal)
    }

    /// Opens the journal of a job by its name, or by the first digits of it.
    pub fn open(folder: &Path, name: &str) -> Result<Journal, JournalError> {
        let unknown = || JournalError::Unknown {
            name: name.to_owned(),
            folder: folder.to_owned(),
        };
        let mut named = names(folder)
            .into_iter()
            .filter(|known| known.starts_with(name));
        let found = named
            .next()
            .filter(|_| !name.is_empty())
            .ok_or_else(unknown)?;
        if named.next().is_some() {
            return Err(unknown());
        }
        let folder = folder.join(found);
        let record = config::read(&folder.join(RECORD_FILE))?;
        Ok(Journal { folder, record })
    }

    /// The records below a folder, oldest first; those that cannot be read are left out.
    pub fn list(folder: &Path) -> Vec<Record> {
        let read = |name: &String| config::read(&folder.join(name).join(RECORD_FILE)).ok();
        let mut records: Vec<Record> = names(folder).iter().filter_map(read).collect();
        records.sort_by_key(|record| record.begun_ms);
        records
    }

    /// What it says.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Changes the record, on disk before this returns.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Record)) -> Result<(), JournalError> {
        change(&mut self.record);
        let path = self.folder.join(RECORD_FILE);
        let text = serde_json::to_vec(&self.record).map_err(|source| {
            let path = path.clone();
            ConfigError::Damaged { path, source }
        })?;
        write_durably(&path, &text)
    }

    /// Sets how the job stands; a job that is done keeps no values.
    pub fn conclude(&mut self, state: State) -> Result<(), JournalError> {
        let over = state == State::Done;
        self.change(|record| record.state = state)?;
        if over {
            // Left behind, they only take room.
            let _ = fs::remove_dir_all(self.folder.join(VALUES_FOLDER));
            self.forget_answers();
        }
        Ok(())
    }

    /// Keeps values, on disk before the record names them.
    pub(super) fn keep(&mut self, values: &BTreeMap<String, Tensor>) -> Result<(), JournalError> {
        let mut ids = BTreeMap::new();
        for (name, tensor) in values {
            let (id, path) = (tensor.id(), self.value_path(&tensor.id()));
            if !path.exists() {
                write_durably(&path, &tensor.to_blob())?;
            }
            ids.insert(name.clone(), id);
        }
        self.change(|record| record.values.extend(ids))
    }

    /// The values that are there.
    pub(super) fn values(&self) -> Result<BTreeMap<String, Tensor>, JournalError> {
        let read = |(name, id): (&String, &ContentId)| {
            let path = self.value_path(id);
            let blob = Bytes::from(fs::read(&path).map_err(file(&path))?);
            let tensor = Tensor::from_blob(&blob)
                .ok()
                .filter(|tensor| tensor.id() == *id);
            Ok((name.clone(), tensor.ok_or(JournalError::Value { path })?))
        };
        self.record.values.iter().map(read).collect()
    }

    fn value_path(&self, id: &ContentId) -> PathBuf {
        self.folder.join(VALUES_FOLDER).join(id.to_string())
    }
}

fn file(path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_owned();
    move |source| JournalError::File { path, source }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

/// Writes a file whole or not at all, also when the power goes.
fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), JournalError> {
    let draft = path.with_extension("new");
    let mut out = File::create(&draft).map_err(file(&draft))?;
    out.write_all(bytes).map_err(file(&draft))?;
    out.sync_data().map_err(file(&draft))?;
    fs::rename(&draft, path).map_err(file(path))?;
    match path.parent() {
        Some(parent) => File::open(parent)
            .and_then(|dir| dir.sync_all())
            .map_err(file(parent)),
        None => Ok(()),
    }
}

/// Removes the oldest jobs that are over, so that a new one has room.
fn prune(folder: &Path) {
    if names(folder).len() < JOBS_MAX {
        return;
    }
    let over = |record: &Record| record.state != State::Running;
    for record in Journal::list(folder)
        .iter()
        .filter(|record| over(record))
        .take(JOBS_MAX / 4)
    {
        // What stays is removed another time.
        let _ = fs::remove_dir_all(folder.join(&record.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal(folder: &Path, first: u8) -> Journal {
        let id = JobId([first; 32]);
        let subject = ContentId::of(b"model");
        Journal::create(folder, id, u64::from(first), subject, serde_json::json!({})).unwrap()
    }

    #[test]
    fn values_come_back_as_they_were_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut written = journal(folder.path(), 7);
        let tensor = Tensor::from_vec([2], vec![1.0_f32, 2.0]).unwrap();
        written
            .keep(&[("x".to_owned(), tensor.clone())].into())
            .unwrap();
        let opened = Journal::open(folder.path(), "0707").unwrap();
        assert_eq!(opened.values().unwrap()["x"], tensor);
        assert_eq!(opened.record().state, State::Running);
    }

    #[test]
    fn a_damaged_value_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = journal(folder.path(), 7);
        let tensor = Tensor::from_vec([2], vec![1.0_f32, 2.0]).unwrap();
        journal
            .keep(&[("x".to_owned(), tensor.clone())].into())
            .unwrap();
        let path = journal.value_path(&tensor.id());
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(matches!(journal.values(), Err(JournalError::Value { .. })));
    }

    #[test]
    fn jobs_are_listed_oldest_first_and_found_by_their_first_digits() {
        let folder = tempfile::tempdir().unwrap();
        for first in [9, 3] {
            journal(folder.path(), first);
        }
        let begun: Vec<u64> = Journal::list(folder.path())
            .iter()
            .map(|r| r.begun_ms)
            .collect();
        assert_eq!(begun, [3, 9]);
        let refused = Journal::open(folder.path(), "0").unwrap_err();
        assert!(
            matches!(refused, JournalError::Unknown { .. }),
            "two begin so"
        );
    }

    #[test]
    fn only_jobs_that_are_over_make_room() {
        let folder = tempfile::tempdir().unwrap();
        let mut over = journal(folder.path(), 1);
        over.conclude(State::Interrupted).unwrap();
        for n in 0..JOBS_MAX {
            fs::create_dir_all(folder.path().join(format!("z{n}"))).unwrap();
        }
        let running = journal(folder.path(), 2);
        journal(folder.path(), 3);
        assert!(Journal::open(folder.path(), &over.record.name).is_err());
        assert!(Journal::open(folder.path(), &running.record.name).is_ok());
    }
}
