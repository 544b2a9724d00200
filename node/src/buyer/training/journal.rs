//! Stores what a later process needs to continue a run of training: its facts, and the last kept
//! states (the parameters and the optimiser's state).
//!
//! ```text
//! FOLDER/facts.jsonl   the facts, one per line, appended as the run goes on
//! FOLDER/states/ID     the states that the last of them names, until the result is written
//! FOLDER/rounds/N/LEG  the same for each worker's part of the present round, if there are several
//! ```
//! One thread writes both in the order in which the run asks for it, so that states are on the disk
//! before a fact names them.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use souk_folder::fact_writer::FactWriter;
use souk_folder::facts::{FactLog, FactLogError};
use souk_market::Credits;
use souk_memory::{ContentId, Tensor};
use souk_roles::train::{Checkpoint, Fact, FactError, Past, States};

use crate::buyer::journal::{JournalError, write_durably};

/// The format of the lines of the facts.
const FORMAT: &str = "training-facts-1";

const FACTS_FILE: &str = "facts.jsonl";
const STATES_FOLDER: &str = "states";
const ROUNDS_FOLDER: &str = "rounds";

/// The folder of a run, open for one life of the run.
#[derive(Debug)]
pub struct RunJournal {
    folder: PathBuf,
    log: FactLog,
    past: Option<Past>,
    /// Why a write failed. Nothing is written after it: a fact must not name states that are not
    /// on the disk, nor old states go that the last fact names.
    failed: Option<String>,
}

/// Why a run's journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RunJournalError {
    /// The file system refused.
    #[error("cannot use {}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Writing states failed.
    #[error(transparent)]
    States(#[from] JournalError),
    /// Reading or writing the facts failed.
    #[error(transparent)]
    Facts(#[from] FactLogError),
    /// A fact does not follow from those before it.
    #[error("{} is damaged: {cause}", path.display())]
    Fact {
        /// The folder of the run.
        path: PathBuf,
        /// What does not follow.
        cause: FactError,
    },
    /// Another process is at work on the run.
    #[error("another process is at work on the run in {}", path.display())]
    Busy {
        /// The folder of the run, which that process locks.
        path: PathBuf,
    },
    /// The folder holds no run.
    #[error("there is no run in {}", path.display())]
    Unknown {
        /// The folder in which a run was expected.
        path: PathBuf,
    },
    /// The content of a state's file is not what its name says.
    #[error("{} is damaged: its BLAKE3 differs from its name", path.display())]
    State {
        /// The file whose content is another one.
        path: PathBuf,
    },
}

/// What a run writes.
pub(super) enum RunWrite {
    Fact(Box<Fact>),
    States(Vec<(ContentId, Bytes)>),
    Forget(Vec<ContentId>),
}

/// The answer to a write.
pub(super) enum RunWritten {
    Fact,
    Other,
    Failed(String),
}

/// Queues writes for the journal's thread.
pub(super) type RunWriter = FactWriter<u64, RunWrite, RunWritten>;

impl RunJournal {
    /// Begins the journal of a run in a folder. The journal of an earlier run there is removed.
    ///
    /// # Errors
    /// When the file system refuses, or another process is at work on that run.
    pub fn create(folder: &Path) -> Result<RunJournal, RunJournalError> {
        let states = folder.join(STATES_FOLDER);
        fs::create_dir_all(&states).map_err(file_error(&states))?;
        let (mut log, old) = open_log(folder)?;
        if !old.is_empty() {
            log.replace_facts::<Fact>(&[])?;
            fs::remove_dir_all(&states).map_err(file_error(&states))?;
            fs::create_dir_all(&states).map_err(file_error(&states))?;
        }
        let journal = RunJournal {
            folder: folder.to_owned(),
            log,
            past: None,
            failed: None,
        };
        journal.remove_rounds(None)?;
        Ok(journal)
    }

    /// Opens the journal of a run to continue it.
    ///
    /// # Errors
    /// When there is none, it is damaged, or another process is at work on the run.
    pub fn open(folder: &Path) -> Result<RunJournal, RunJournalError> {
        let path = folder.to_owned();
        if !folder.join(FACTS_FILE).exists() {
            return Err(RunJournalError::Unknown { path });
        }
        let (log, facts) = open_log(folder)?;
        let past = to_past(folder, facts)?;
        let journal = RunJournal {
            folder: path,
            log,
            past: Some(past.clone()),
            failed: None,
        };
        journal.prune_states(&past.needed_states());
        journal.remove_rounds(Some(past.rounds))?;
        Ok(journal)
    }

    /// Opens the journal of a worker's part of the present round, or begins it.
    pub(super) fn open_leg(&self, name: &str) -> Result<RunJournal, RunJournalError> {
        let round = self.past.as_ref().map_or(0, |past| past.rounds);
        let folder = self.rounds_folder().join(round.to_string()).join(name);
        match RunJournal::open(&folder) {
            Err(RunJournalError::Unknown { .. }) => RunJournal::create(&folder),
            opened => opened,
        }
    }

    /// Reads what the run in a folder did, even while another process is at work on it. The workers
    /// of the present round add their costs.
    ///
    /// # Errors
    /// When there is none, or its journal is damaged.
    pub fn read(folder: &Path) -> Result<Past, RunJournalError> {
        let path = folder.join(FACTS_FILE);
        if !path.exists() {
            let path = folder.to_owned();
            return Err(RunJournalError::Unknown { path });
        }
        let mut past = to_past(folder, FactLog::read(&path, FORMAT)?)?;
        let round = folder.join(ROUNDS_FOLDER).join(past.rounds.to_string());
        for leg in fs::read_dir(round).into_iter().flatten().flatten() {
            if let Ok(leg) = RunJournal::read(&leg.path()) {
                past.spent = Credits(past.spent.0.saturating_add(leg.spent.0));
                past.receipts.extend(leg.receipts);
                past.open_lease = past.open_lease.or(leg.open_lease);
            }
        }
        Ok(past)
    }

    /// Returns whether some process is at work on the run in a folder.
    #[must_use]
    pub fn is_busy(folder: &Path) -> bool {
        let file = File::open(folder.join(FACTS_FILE));
        let locked = file.map(|file| file.try_lock_shared());
        matches!(locked, Ok(Err(TryLockError::WouldBlock)))
    }

    /// Returns whether a run needs no further life: all its steps are done, and its result is
    /// written ([`RunJournal::finish_run`]).
    #[must_use]
    pub fn is_finished(folder: &Path, past: &Past) -> bool {
        past.is_done() && !folder.join(STATES_FOLDER).exists()
    }

    /// Removes the states of a run whose result is written. Until then a later life can write it.
    ///
    /// # Errors
    /// When the file system refuses; the states then only take room.
    pub fn finish_run(folder: &Path) -> Result<(), RunJournalError> {
        let remove = |name| {
            let path = folder.join(name);
            match fs::remove_dir_all(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed.map_err(file_error(&path)),
            }
        };
        remove(ROUNDS_FOLDER)?;
        remove(STATES_FOLDER)
    }

    /// Returns the folder of the run.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns what the run did in its earlier lives; none if it begins.
    #[must_use]
    pub fn past(&self) -> Option<&Past> {
        self.past.as_ref()
    }

    /// Appends a fact to those before it; it is durable when this returns.
    pub(super) fn append_fact(&mut self, fact: Fact) -> Result<(), RunJournalError> {
        self.append_facts(vec![fact])
    }

    /// Appends facts to those before them: all of them or, if this fails, none.
    fn append_facts(&mut self, facts: Vec<Fact>) -> Result<(), RunJournalError> {
        self.log.append_facts(&facts)?;
        match &mut self.past {
            Some(past) => facts
                .into_iter()
                .try_for_each(|fact| past.apply(fact))
                .map_err(fact_error(&self.folder))?,
            None => self.past = Some(to_past(&self.folder, facts)?),
        }
        Ok(())
    }

    /// Reads the states at a checkpoint, and checks that each is the content that the facts name.
    pub(super) fn read_states(
        &self,
        kept: &Checkpoint,
    ) -> Result<BTreeMap<String, Tensor>, RunJournalError> {
        read_states(&self.folder, &kept.states)
    }

    fn state_path(&self, id: &ContentId) -> PathBuf {
        state_path(&self.folder, id)
    }

    /// Starts the thread that writes. It ends when the writer is dropped.
    pub(super) fn start_writer(mut self) -> RunWriter {
        FactWriter::start_thread(move |waiting| {
            let written = waiting.into_iter();
            let written = written.map(|(ticket, write)| (ticket, self.write(write)));
            written.collect()
        })
    }

    fn write(&mut self, write: RunWrite) -> RunWritten {
        if let Some(why) = &self.failed {
            return RunWritten::Failed(why.clone());
        }
        let (done, written) = match write {
            RunWrite::Fact(fact) => {
                let appended = self.log.append_facts(&[*fact]);
                (RunWritten::Fact, appended.map_err(RunJournalError::from))
            }
            RunWrite::States(states) => (RunWritten::Other, self.write_states(&states)),
            RunWrite::Forget(ids) => {
                for id in ids {
                    // If this fails, the file only takes room.
                    let _ = fs::remove_file(self.state_path(&id));
                }
                (RunWritten::Other, Ok(()))
            }
        };
        match written {
            Ok(()) => done,
            Err(error) => RunWritten::Failed(self.failed.insert(error.to_string()).clone()),
        }
    }

    fn write_states(&self, states: &[(ContentId, Bytes)]) -> Result<(), RunJournalError> {
        for (id, blob) in states {
            write_durably(&self.state_path(id), blob)?;
        }
        Ok(())
    }

    /// Appends facts of which the last names these states, and removes all others with the workers'
    /// parts of earlier rounds.
    pub(super) fn append_states(
        &mut self,
        states: &BTreeMap<String, Tensor>,
        facts: Vec<Fact>,
    ) -> Result<(), RunJournalError> {
        let is_there = |state: &&Tensor| self.state_path(&state.id()).exists();
        let new = states.values().filter(|state| !is_there(state));
        let blobs: Vec<_> = new.map(|it| (it.id(), it.to_blob())).collect();
        self.write_states(&blobs)?;
        self.append_facts(facts)?;
        let past = self.past.as_ref().expect("a fact was appended");
        self.prune_states(&past.needed_states());
        self.remove_rounds(Some(past.rounds))
    }

    fn rounds_folder(&self) -> PathBuf {
        self.folder.join(ROUNDS_FOLDER)
    }

    /// Removes the workers' parts of all rounds but one: their facts are in the run's own journal.
    fn remove_rounds(&self, but: Option<u64>) -> Result<(), RunJournalError> {
        let but = but.map(|round| round.to_string());
        let rounds = fs::read_dir(self.rounds_folder());
        for round in rounds.into_iter().flatten().flatten() {
            if but.as_ref().is_none_or(|but| round.file_name() != **but) {
                let path = round.path();
                fs::remove_dir_all(&path).map_err(file_error(&path))?;
            }
        }
        Ok(())
    }

    /// Removes states that are not needed: those before the last kept ones, or of steps that a dead
    /// process did not record.
    fn prune_states(&self, needed: &States) {
        let files = fs::read_dir(self.folder.join(STATES_FOLDER));
        for file in files.into_iter().flatten().flatten() {
            let name = file.file_name();
            let mut named = needed.iter().map(|(_, id)| id.to_string());
            if !named.any(|id| name == *id) {
                // If this fails, the file only takes room.
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

/// Reads states of the run in a folder, and checks that each is the content that its id names.
pub(super) fn read_states(
    folder: &Path,
    states: &States,
) -> Result<BTreeMap<String, Tensor>, RunJournalError> {
    let read = |(name, id): &(String, ContentId)| {
        let path = state_path(folder, id);
        let blob = Bytes::from(fs::read(&path).map_err(file_error(&path))?);
        let tensor = Tensor::from_blob(&blob).ok();
        let tensor = tensor.filter(|tensor| tensor.id() == *id);
        let tensor = tensor.ok_or(RunJournalError::State { path })?;
        Ok((name.clone(), tensor))
    };
    states.iter().map(read).collect()
}

fn state_path(folder: &Path, id: &ContentId) -> PathBuf {
    folder.join(STATES_FOLDER).join(id.to_string())
}

fn open_log(folder: &Path) -> Result<(FactLog, Vec<Fact>), RunJournalError> {
    match FactLog::open_log(&folder.join(FACTS_FILE), FORMAT) {
        Err(FactLogError::Busy { .. }) => Err(RunJournalError::Busy {
            path: folder.to_owned(),
        }),
        opened => Ok(opened?),
    }
}

/// Adds up the facts. The folder of a run that never began holds none.
fn to_past(folder: &Path, facts: Vec<Fact>) -> Result<Past, RunJournalError> {
    if facts.is_empty() {
        let path = folder.to_owned();
        return Err(RunJournalError::Unknown { path });
    }
    Past::from_facts(facts).map_err(fact_error(folder))
}

fn fact_error(folder: &Path) -> impl FnOnce(FactError) -> RunJournalError + use<> {
    let path = folder.to_owned();
    move |cause| RunJournalError::Fact { path, cause }
}

fn file_error(path: &Path) -> impl Fn(io::Error) -> RunJournalError + use<> {
    let path = path.to_owned();
    move |source| RunJournalError::File {
        path: path.clone(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use souk_market::{AccountKey, MarketId, Millis};
    use souk_roles::train::{Blame, End, LossBits, Payer, next_link};

    use super::*;

    fn state(value: f32) -> Tensor {
        Tensor::from_vec([2], vec![value; 2]).unwrap()
    }

    fn named(state: &Tensor) -> Vec<(String, ContentId)> {
        vec![("parameters".to_owned(), state.id())]
    }

    fn subject() -> ContentId {
        ContentId::for_content(b"subject")
    }

    /// The begin of a run, and one kept step.
    fn facts() -> [Fact; 2] {
        let (first, second) = (named(&state(0.0)), named(&state(1.0)));
        let losses = vec![LossBits(7)];
        let link = next_link(subject(), 0, &losses, &second);
        let began = Fact::Began {
            subject: subject(),
            payer: Payer {
                market: MarketId([1; 32]),
                account: AccountKey([2; 32]),
            },
            steps: 3,
            states: first,
            command: "{}".to_owned(),
            at: Millis(1),
            audits: None,
        };
        let kept = Fact::Kept {
            from: 0,
            losses,
            states: second,
            link,
            by: None,
        };
        [began, kept]
    }

    /// Writes a run of one step, as its thread would.
    fn write_run(folder: &Path) {
        write_facts(folder, facts());
    }

    fn write_facts(folder: &Path, facts: [Fact; 2]) {
        let mut journal = RunJournal::create(folder).unwrap();
        for (fact, value) in facts.into_iter().zip([0.0, 1.0]) {
            let tensor = state(value);
            let states = vec![(tensor.id(), tensor.to_blob())];
            let written = journal.write(RunWrite::States(states));
            assert!(matches!(written, RunWritten::Other));
            let written = journal.write(RunWrite::Fact(Box::new(fact)));
            assert!(matches!(written, RunWritten::Fact));
        }
    }

    #[test]
    fn a_run_comes_back_with_its_last_states_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        write_run(folder.path());
        let journal = RunJournal::open(folder.path()).unwrap();
        let past = journal.past().unwrap().clone();
        assert_eq!((past.kept.position, past.losses.len()), (1, 1));
        let states = journal.read_states(&past.kept).unwrap();
        assert_eq!(states["parameters"], state(1.0));
        let files = fs::read_dir(folder.path().join(STATES_FOLDER)).unwrap();
        assert_eq!(files.count(), 1, "those before are removed");
        fs::write(journal.state_path(&state(1.0).id()), b"damaged").unwrap();
        let refused = journal.read_states(&past.kept).unwrap_err();
        assert!(
            matches!(refused, RunJournalError::State { .. }),
            "{refused}"
        );
    }

    /// Returns a round of one step and what it cost.
    fn round(past: &Past, states: &BTreeMap<String, Tensor>) -> Fact {
        let (from, losses) = (past.kept.position, vec![LossBits(7)]);
        let states: Vec<_> = states
            .iter()
            .map(|(name, it)| (name.clone(), it.id()))
            .collect();
        Fact::Round {
            from,
            link: next_link(past.link, from, &losses, &states),
            losses,
            states,
            cost: Credits(5),
            receipts: Vec::new(),
        }
    }

    #[test]
    fn a_round_replaces_the_parts_of_its_workers_with_their_costs() {
        let folder = tempfile::tempdir().unwrap();
        let states = |value| BTreeMap::from([("parameters".to_owned(), state(value))]);
        let mut journal = RunJournal::create(folder.path()).unwrap();
        let [began, _] = facts();
        journal
            .append_states(&states(0.0), vec![began.clone()])
            .unwrap();
        let mut leg = journal.open_leg("worker-1").unwrap();
        leg.append_states(&states(0.0), vec![began.clone()])
            .unwrap();
        let over = Fact::LeaseOver {
            provider: AccountKey([7; 32]),
            cost: Credits(5),
            receipts: Vec::new(),
            blame: Blame::Nothing,
        };
        leg.append_fact(over).unwrap();
        drop(leg);
        // A later life finds the part of the present round, and a list counts its cost.
        let spent = |folder: &Path| RunJournal::read(folder).unwrap().spent;
        assert_eq!(spent(folder.path()), Credits(5));
        drop(journal);
        let mut journal = RunJournal::open(folder.path()).unwrap();
        let leg = journal.open_leg("worker-1").unwrap();
        assert_eq!(leg.past().unwrap().spent, Credits(5));
        drop(leg);
        let fact = round(journal.past().unwrap(), &states(1.0));
        journal.append_states(&states(1.0), vec![fact]).unwrap();
        assert_eq!(spent(folder.path()), Credits(5), "it counts once");
        let leg = journal.open_leg("worker-1").unwrap();
        assert_eq!(leg.past(), None, "another round is another part");
        drop((leg, journal));
        let journal = RunJournal::open(folder.path()).unwrap();
        let past = journal.past().unwrap().clone();
        assert_eq!((past.kept.position, past.rounds), (1, 1));
        assert_eq!(journal.read_states(&past.kept).unwrap(), states(1.0));
        let files = fs::read_dir(folder.path().join(STATES_FOLDER)).unwrap();
        assert_eq!(files.count(), 1, "those before are removed");
        // A new run in its place has no part of it.
        drop(journal);
        drop(RunJournal::create(folder.path()).unwrap());
        let rounds = fs::read_dir(folder.path().join(ROUNDS_FOLDER)).unwrap();
        assert_eq!(rounds.count(), 0);
    }

    #[test]
    fn the_states_of_a_run_that_is_done_stay_until_its_result_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut facts = facts();
        let Fact::Began { steps, .. } = &mut facts[0] else {
            panic!("a run begins");
        };
        *steps = 1;
        write_facts(folder.path(), facts);
        let mut journal = RunJournal::open(folder.path()).unwrap();
        let over = Fact::Over { how: End::Done };
        let written = journal.write(RunWrite::Fact(Box::new(over)));
        assert!(matches!(written, RunWritten::Fact));
        let past = RunJournal::read(folder.path()).unwrap();
        assert!(past.is_done() && !RunJournal::is_finished(folder.path(), &past));
        let states = journal.read_states(&past.kept).unwrap();
        assert_eq!(
            states["parameters"],
            state(1.0),
            "its result can be written"
        );
        RunJournal::finish_run(folder.path()).unwrap();
        assert!(RunJournal::is_finished(folder.path(), &past));
        RunJournal::finish_run(folder.path()).unwrap();
    }

    #[test]
    fn after_a_write_that_failed_nothing_is_written_and_nothing_goes() {
        let folder = tempfile::tempdir().unwrap();
        write_run(folder.path());
        let mut journal = RunJournal::open(folder.path()).unwrap();
        let kept = state(1.0).id();
        let next = state(2.0);
        // A folder at the path of the states stands for a disk that is full.
        let path = journal.state_path(&next.id());
        fs::create_dir_all(path.join("full")).unwrap();
        let fact = Fact::Over { how: End::Stopped };
        for write in [
            RunWrite::States(vec![(next.id(), next.to_blob())]),
            RunWrite::Fact(Box::new(fact)),
            RunWrite::Forget(vec![kept]),
        ] {
            let written = journal.write(write);
            assert!(matches!(written, RunWritten::Failed(_)));
        }
        let past = RunJournal::read(folder.path()).unwrap();
        assert_eq!(past.how, None, "no fact follows states that are not there");
        assert!(journal.read_states(&past.kept).is_ok(), "the old ones stay");
    }

    #[test]
    fn one_process_at_a_time_goes_on_with_a_run_and_others_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let unknown = RunJournal::open(folder.path()).unwrap_err();
        assert!(matches!(unknown, RunJournalError::Unknown { .. }));
        write_run(folder.path());
        let journal = RunJournal::open(folder.path()).unwrap();
        for busy in [
            RunJournal::open(folder.path()),
            RunJournal::create(folder.path()),
        ] {
            assert!(matches!(busy, Err(RunJournalError::Busy { .. })));
        }
        assert!(RunJournal::is_busy(folder.path()));
        assert_eq!(RunJournal::read(folder.path()).unwrap().steps, 3);
        drop(journal);
        assert!(!RunJournal::is_busy(folder.path()));
    }

    #[test]
    fn a_settled_lease_is_in_the_journal_and_a_new_run_has_none_of_the_old() {
        let folder = tempfile::tempdir().unwrap();
        write_run(folder.path());
        let mut journal = RunJournal::open(folder.path()).unwrap();
        let settled = Fact::LeaseOver {
            provider: AccountKey([7; 32]),
            cost: Credits(5),
            receipts: Vec::new(),
            blame: Blame::Nothing,
        };
        journal.append_fact(settled).unwrap();
        drop(journal);
        assert_eq!(RunJournal::read(folder.path()).unwrap().spent, Credits(5));
        drop(RunJournal::create(folder.path()).unwrap());
        let begun = RunJournal::read(folder.path()).unwrap_err();
        assert!(matches!(begun, RunJournalError::Unknown { .. }));
        let files = fs::read_dir(folder.path().join(STATES_FOLDER)).unwrap();
        assert_eq!(files.count(), 0);
    }
}
