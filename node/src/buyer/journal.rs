//! Stores what a buyer needs to resume a job after its process or its machine fails: the journal of
//! the job. Its main content is facts, the recorded steps of the job's core.
//!
//! ```text
//! FOLDER/JOB/facts.jsonl   the facts, one per line, appended as the job runs
//! FOLDER/JOB/values/ID     computed and checked values that the job still needs
//! ```
//! Each fact must be durable before the job does anything that depends on it. A buyer can find
//! leases without a fact by their ids, because those follow from the job's id.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::Serialize;
use souk_folder::durable_file;
use souk_folder::fact_writer::FactWriter;
use souk_folder::facts::{FactLog, FactLogError};
use souk_market::{JobId, Listing, Receipt};
use souk_memory::{ContentId, Tensor};
use souk_roles::effect::Ticket;
use souk_roles::job::{Answer, End, Fact, Past, attempt_id};

/// The folder of job journals, in the folder of the market.
pub const JOBS_FOLDER: &str = "buyer/jobs";

/// The key in the command of a job that marks a session of a language model.
pub const SESSION_KEY: &str = "session";

const FACTS_FILE: &str = "facts.jsonl";

/// The format of the lines of the facts.
const FORMAT: &str = "job-facts-2";

/// The file of a job in souk up to version 4 of its journals.
const OLD_FILE: &str = "job.json";

const VALUES_FOLDER: &str = "values";

/// How many jobs are kept. Beyond that, the oldest finished ones are removed.
const JOBS_MAX: usize = 256;

/// How many digits of a job's id name its folder.
const NAME_DIGITS: usize = 12;

/// A job, as its journal describes it.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// The job's name: the first digits of its id.
    pub name: String,
    /// The id of the job; its first leases are bought under it.
    pub id: JobId,
    /// When the job began, in milliseconds since 1970.
    pub begun_ms: u64,
    /// The caller's own command; the journal does not interpret it.
    pub command: serde_json::Value,
    /// The id of the model, the shapes of its inputs, and the inputs if there is one request.
    pub subject: ContentId,
    /// The current state.
    #[serde(flatten)]
    pub state: JobState,
    /// The ids of the attempts that the journal names.
    pub attempts: Vec<JobId>,
    /// All ids under which the job may have bought leases.
    #[serde(skip)]
    pub ids: Vec<JobId>,
    /// The asks from which the job bought its leases.
    #[serde(skip)]
    pub providers: Vec<Listing>,
    /// The names of the kept values.
    pub kept_values: Vec<String>,
    /// How many requests have an answer.
    pub requests_answered: usize,
    /// Receipts for correct results, each signed by its provider.
    pub receipts: Vec<Receipt>,
}

impl Record {
    /// Returns whether the job is a session of a language model.
    #[must_use]
    pub fn is_session(&self) -> bool {
        self.command[SESSION_KEY] == true
    }
}

/// The state of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum JobState {
    /// The job runs, or its process died.
    Running,
    /// All answers are there.
    Done,
    /// The user interrupted it, and its leases ended.
    Interrupted,
    /// The job ended without all its answers.
    Failed {
        /// The reason as a code.
        reason: String,
        /// The reason as a sentence.
        cause: String,
    },
}

/// A job's folder, open for one life of the job.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    name: String,
    job: JobId,
    log: FactLog,
    facts: Vec<Fact>,
}

/// Why the buyer could not read or write a journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system refused.
    #[error("cannot use {path}: {source}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Reading or writing the facts failed.
    #[error(transparent)]
    Facts(#[from] FactLogError),
    /// An older souk wrote the journal.
    #[error("{path} is the journal of an older souk, which this version cannot resume")]
    Old {
        /// The path of the old journal.
        path: PathBuf,
    },
    /// Another process runs the job.
    #[error("job {name} is being run by another process")]
    Busy {
        /// The name of the job.
        name: String,
    },
    /// The hash of a value's file is not its name.
    #[error("{path} is damaged: its BLAKE3 differs from its name")]
    Value {
        /// The path of the damaged file.
        path: PathBuf,
    },
    /// The model or an input differs from the one with which the job began.
    #[error("the model or an input of job {name} has changed since it was begun")]
    Subject {
        /// The name of the job.
        name: String,
    },
    /// There is not exactly one job of that name.
    #[error("there is no job {name} in {folder}")]
    Unknown {
        /// The name that the caller passed.
        name: String,
        /// The folder that was searched.
        folder: PathBuf,
    },
}

pub(super) enum JournalWrite {
    Facts(Vec<Fact>),
    Values(Vec<(ContentId, Bytes)>),
}

/// Queues writes for the journal's thread, which answers when they are on the disk.
pub(super) type JournalWriter = FactWriter<Ticket, JournalWrite, Answer>;

impl Journal {
    /// Begins the journal of a job below `folder`.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn create(folder: &Path, job: JobId) -> Result<Journal, JournalError> {
        prune_finished(folder);
        let name: String = job.to_string().chars().take(NAME_DIGITS).collect();
        let folder = folder.join(&name);
        let values = folder.join(VALUES_FOLDER);
        fs::create_dir_all(&values).map_err(file_error(&values))?;
        Journal::open_folder(folder, name, Some(job))
    }

    /// Opens the journal of a job by its name, or the first digits of it, to resume the job.
    ///
    /// # Errors
    /// When there is none, or another process has it open.
    pub fn open_by_name(folder: &Path, name: &str) -> Result<Journal, JournalError> {
        let found = find_name(folder, name)?;
        Journal::open_folder(folder.join(&found), found, None)
    }

    fn open_folder(
        folder: PathBuf,
        name: String,
        job: Option<JobId>,
    ) -> Result<Journal, JournalError> {
        let path = folder.join(FACTS_FILE);
        refuse_old(&folder)?;
        let (log, facts) = match FactLog::open_log(&path, FORMAT) {
            Err(FactLogError::Busy { .. }) => return Err(JournalError::Busy { name }),
            opened => opened?,
        };
        // A journal whose job never began belongs to no job.
        let begun = record_from_facts(&name, &facts).map(|record| record.id);
        let Some(job) = job.or(begun) else {
            return Err(JournalError::Unknown { name, folder });
        };
        Ok(Journal {
            folder,
            name,
            job,
            log,
            facts,
        })
    }

    /// Returns the records below a folder, oldest first, without those that it cannot read.
    #[must_use]
    pub fn list_records(folder: &Path) -> Vec<Record> {
        let read = |name: &String| Journal::read(folder, name).ok();
        let mut records: Vec<Record> = journal_names(folder).iter().filter_map(read).collect();
        records.sort_by_key(|record| record.begun_ms);
        records
    }

    /// Reads the record of a job by its name, or the first digits of it.
    ///
    /// # Errors
    /// When there is no such job, or its journal is not readable.
    pub fn read(folder: &Path, name: &str) -> Result<Record, JournalError> {
        let found = find_name(folder, name)?;
        let path = folder.join(&found).join(FACTS_FILE);
        refuse_old(&folder.join(&found))?;
        record_from_facts(&found, &FactLog::read(&path, FORMAT)?).ok_or_else(|| {
            JournalError::Unknown {
                name: found,
                folder: folder.to_owned(),
            }
        })
    }

    /// Reads the outputs of each answer of a job, by name, in no order.
    ///
    /// # Errors
    /// When there is no such job, or its journal is not readable.
    pub fn read_answers(
        folder: &Path,
        name: &str,
    ) -> Result<Vec<Vec<(String, ContentId)>>, JournalError> {
        let path = folder.join(find_name(folder, name)?).join(FACTS_FILE);
        let past = Past::from_facts(FactLog::read::<Fact>(&path, FORMAT)?);
        let answered = past.answered.into_values();
        Ok(answered.map(|answer| answer.outputs).collect())
    }

    /// Returns whether some process runs the job of this full name now.
    #[must_use]
    pub fn is_busy(folder: &Path, name: &str) -> bool {
        let file = File::open(folder.join(name).join(FACTS_FILE));
        let locked = file.map(|file| file.try_lock_shared());
        matches!(locked, Ok(Err(TryLockError::WouldBlock)))
    }

    /// Records that the user stopped the job after its process died.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn record_cancel(mut self) -> Result<(), JournalError> {
        self.put_down(vec![Fact::Over {
            how: End::Cancelled,
        }])
    }

    /// Returns the job's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the job's id.
    #[must_use]
    pub fn job(&self) -> JobId {
        self.job
    }

    /// Returns the record of the job, once it began.
    #[must_use]
    pub fn job_record(&self) -> Option<Record> {
        record_from_facts(&self.name, &self.facts)
    }

    /// Returns what the job did in its earlier lives.
    #[must_use]
    pub fn fold_past(&self) -> Past {
        Past::from_facts(self.facts.iter().cloned())
    }

    /// Reads the kept values of earlier lives and checks their ids.
    pub(super) fn read_values(&self) -> Result<Vec<Tensor>, JournalError> {
        let kept = self.facts.iter().filter_map(|fact| match fact {
            Fact::Kept { id, .. } => Some(*id),
            _ => None,
        });
        let read = |id: ContentId| {
            let path = self.value_path(&id);
            let blob = Bytes::from(fs::read(&path).map_err(file_error(&path))?);
            let tensor = Tensor::from_blob(&blob).ok();
            let tensor = tensor.filter(|tensor| tensor.id() == id);
            tensor.ok_or(JournalError::Value { path })
        };
        kept.map(read).collect()
    }

    fn value_path(&self, id: &ContentId) -> PathBuf {
        self.folder.join(VALUES_FOLDER).join(id.to_string())
    }

    /// Starts a thread that writes everything that waits with one sync. It ends when all senders
    /// are dropped.
    pub(super) fn start_writer(mut self) -> JournalWriter {
        FactWriter::start_thread(move |waiting| self.write(waiting))
    }

    /// Writes the waiting items: values first, then all facts with one sync. Answers each ticket.
    fn write(&mut self, waiting: Vec<(Ticket, JournalWrite)>) -> Vec<(Ticket, Answer)> {
        let mut told = Vec::with_capacity(waiting.len());
        let (mut tickets, mut facts) = (Vec::new(), Vec::new());
        for (ticket, write) in waiting {
            match write {
                JournalWrite::Facts(more) => {
                    facts.extend(more);
                    tickets.push(ticket);
                }
                JournalWrite::Values(values) => {
                    let kept = match self.write_values(&values) {
                        Ok(()) => Answer::Kept,
                        Err(error) => Answer::NotWritten(error.to_string()),
                    };
                    told.push((ticket, kept));
                }
            }
        }
        if !tickets.is_empty() {
            let recorded = match self.put_down(facts) {
                Ok(()) => Answer::Recorded,
                Err(error) => Answer::NotWritten(error.to_string()),
            };
            told.extend(tickets.into_iter().map(|ticket| (ticket, recorded.clone())));
        }
        told
    }

    /// Appends facts; they are durable when this returns.
    fn put_down(&mut self, facts: Vec<Fact>) -> Result<(), JournalError> {
        self.log.append_facts(&facts)?;
        let is_done = |fact: &Fact| matches!(fact, Fact::Over { how: End::Done });
        if facts.iter().any(is_done) {
            // A finished job does not need them; if this fails, they only take room.
            let _ = fs::remove_dir_all(self.folder.join(VALUES_FOLDER));
        }
        self.facts.extend(facts);
        Ok(())
    }

    /// Writes values to the disk; this must happen before a fact names them.
    fn write_values(&self, values: &[(ContentId, Bytes)]) -> Result<(), JournalError> {
        for (id, blob) in values {
            let path = self.value_path(id);
            if !path.exists() {
                write_durably(&path, blob)?;
            }
        }
        Ok(())
    }
}

fn refuse_old(folder: &Path) -> Result<(), JournalError> {
    let path = folder.join(OLD_FILE);
    match path.exists() {
        true => Err(JournalError::Old { path }),
        false => Ok(()),
    }
}

/// Returns the record that facts describe; none if the job never began.
fn record_from_facts(name: &str, facts: &[Fact]) -> Option<Record> {
    let Some(Fact::Began {
        job,
        subject,
        command,
        at,
    }) = facts.first()
    else {
        return None;
    };
    let past = Past::from_facts(facts.iter().cloned());
    let state = match facts.last() {
        Some(Fact::Over { how }) => JobState::from(how),
        _ => JobState::Running,
    };
    let values = past.kept.values().flat_map(|values| values.keys().cloned());
    let mut kept_values: Vec<String> = values.collect();
    kept_values.sort_unstable();
    kept_values.dedup();
    let id = |n: u32| attempt_id(*job, n);
    let attempts = past.attempts.values();
    let legs = attempts.flat_map(|attempt| &attempt.plan.legs);
    Some(Record {
        name: name.to_owned(),
        id: *job,
        begun_ms: at.0,
        command: serde_json::from_str(command).unwrap_or_default(),
        subject: *subject,
        state,
        attempts: past.attempts.keys().map(|n| id(*n)).collect(),
        ids: (0..past.next_attempt()).map(id).collect(),
        kept_values,
        providers: legs.map(|leg| (*leg.listing).clone()).collect(),
        requests_answered: past.answered.len(),
        receipts: past.right.into_values().collect(),
    })
}

impl From<&End> for JobState {
    fn from(how: &End) -> JobState {
        match how {
            End::Done => JobState::Done,
            End::Cancelled => JobState::Interrupted,
            End::Failed(reason) => JobState::Failed {
                reason: reason.code().to_owned(),
                cause: reason.to_string(),
            },
        }
    }
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> JournalError + use<> {
    let path = path.to_owned();
    move |source| JournalError::File { path, source }
}

/// Returns the name of the one job that begins with these digits.
fn find_name(folder: &Path, name: &str) -> Result<String, JournalError> {
    let known = journal_names(folder).into_iter();
    let mut named = known.filter(|known| known.starts_with(name));
    match (named.next(), named.next()) {
        (Some(found), None) if !name.is_empty() => Ok(found),
        _ => Err(JournalError::Unknown {
            name: name.to_owned(),
            folder: folder.to_owned(),
        }),
    }
}

fn journal_names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

/// Writes a file as a whole or not at all, even if the power fails.
///
/// # Errors
/// When the file system refuses.
pub fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), JournalError> {
    durable_file::write_durably(path, bytes).map_err(file_error(path))
}

/// Removes the oldest finished jobs, so that a new one has room.
fn prune_finished(folder: &Path) {
    if journal_names(folder).len() < JOBS_MAX {
        return;
    }
    let over = |record: &Record| record.state != JobState::Running;
    for record in Journal::list_records(folder)
        .iter()
        .filter(|record| over(record))
        .take(JOBS_MAX / 4)
    {
        // A later call removes a folder that this one could not.
        let _ = fs::remove_dir_all(folder.join(&record.name));
    }
}

#[cfg(test)]
mod tests {
    use souk_market::Millis;

    use super::*;

    fn began(job: u8) -> Fact {
        Fact::Began {
            job: JobId([job; 32]),
            subject: ContentId::for_content(b"model"),
            command: "{\"out\":\"here\"}".to_owned(),
            at: Millis(u64::from(job)),
        }
    }

    fn journal(folder: &Path, job: u8) -> Journal {
        let mut journal = Journal::create(folder, JobId([job; 32])).unwrap();
        journal.put_down(vec![began(job)]).unwrap();
        journal
    }

    fn kept(tensor: &Tensor) -> Fact {
        Fact::Kept {
            request: ContentId::for_content(b"asked"),
            name: "x".to_owned(),
            id: tensor.id(),
        }
    }

    #[test]
    fn values_come_back_as_they_were_kept_and_a_damaged_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut written = journal(folder.path(), 7);
        let tensor = Tensor::from_vec([2], vec![1.0_f32, 2.0]).unwrap();
        written
            .write_values(&[(tensor.id(), tensor.to_blob())])
            .unwrap();
        written.put_down(vec![kept(&tensor)]).unwrap();
        let path = written.value_path(&tensor.id());
        drop(written);
        let opened = Journal::open_by_name(folder.path(), "0707").unwrap();
        assert_eq!(opened.read_values().unwrap(), [tensor]);
        let record = opened.job_record().unwrap();
        assert_eq!(record.state, JobState::Running);
        assert_eq!(
            (record.kept_values, record.command["out"].as_str()),
            (vec!["x".to_owned()], Some("here"))
        );
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(matches!(
            opened.read_values(),
            Err(JournalError::Value { .. })
        ));
    }

    #[test]
    fn jobs_are_listed_oldest_first_and_found_by_their_first_digits() {
        let folder = tempfile::tempdir().unwrap();
        for first in [9, 3] {
            journal(folder.path(), first);
        }
        let begun: Vec<u64> = Journal::list_records(folder.path())
            .iter()
            .map(|r| r.begun_ms)
            .collect();
        assert_eq!(begun, [3, 9]);
        let refused = Journal::open_by_name(folder.path(), "0").unwrap_err();
        assert!(
            matches!(refused, JournalError::Unknown { .. }),
            "two begin so"
        );
    }

    #[test]
    fn a_job_is_gone_on_with_by_one_process_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = journal(folder.path(), 7);
        let second = Journal::open_by_name(folder.path(), "07").unwrap_err();
        assert!(matches!(second, JournalError::Busy { .. }));
        assert_eq!(Journal::read(folder.path(), "07").unwrap().begun_ms, 7);
        drop(first);
        assert!(Journal::open_by_name(folder.path(), "07").is_ok());
    }

    #[test]
    fn a_journal_of_an_older_souk_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = journal(folder.path(), 7).folder.join(FACTS_FILE);
        let line = serde_json::to_string(&began(7)).unwrap() + "\n";
        fs::write(&path, line).unwrap();
        let old = Journal::open_by_name(folder.path(), "07").unwrap_err();
        let JournalError::Facts(FactLogError::Format { found: None, .. }) = old else {
            panic!("{old}");
        };
        fs::write(path.with_file_name(OLD_FILE), b"{}").unwrap();
        let old = Journal::open_by_name(folder.path(), "07").unwrap_err();
        assert!(matches!(old, JournalError::Old { .. }));
    }

    #[test]
    fn only_jobs_that_are_over_make_room() {
        let folder = tempfile::tempdir().unwrap();
        let mut over = journal(folder.path(), 1);
        let how = End::Cancelled;
        over.put_down(vec![Fact::Over { how }]).unwrap();
        for n in 0..JOBS_MAX {
            fs::create_dir_all(folder.path().join(format!("z{n}"))).unwrap();
        }
        let running = journal(folder.path(), 2);
        journal(folder.path(), 3);
        assert!(Journal::read(folder.path(), &over.name).is_err());
        assert!(Journal::read(folder.path(), &running.name).is_ok());
    }
}
