//! Lists the runs of training that users began from a market's folder, wherever their results are.
//!
//! ```text
//! FOLDER/buyer/trainings/NAME   the path of the folder of a run
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use souk_memory::ContentId;
use souk_roles::train::{End, Past};

use super::{RunJournal, RunJournalError};

/// The folder that names the runs, in the folder of the market.
const LIST_FOLDER: &str = "buyer/trainings";

/// How many digits of a hash name a run.
const NAME_DIGITS: usize = 12;

/// The name of the folder of a run in its result's, and its ending beside a result that is a file.
const RUN_FOLDER: &str = "run";

/// A run, and what it did.
#[derive(Clone, Debug)]
pub struct ListedRun {
    /// The digits by which it is named.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// The state that the facts of its journal add up to.
    pub past: Past,
}

/// How a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// A process is at work on it.
    Running,
    /// All its steps are done, and its result is written.
    Done,
    /// All its steps are done, and a later life must write the result.
    NotWritten,
    /// Its process is gone.
    Killed,
    /// Its user stopped it.
    Stopped,
    /// A step made an infinite number or no number.
    NotFinite,
    /// No provider offered a lease.
    NoDevice,
    /// The budget does not pay the next lease.
    NoMoney,
    /// Several leases in a row brought no states.
    DevicesLost,
    /// Two providers made different states in the same steps, and no third one could be asked.
    Disputed,
    /// Its journal could not be written.
    DiskFailed,
}

impl RunState {
    /// Returns the state in words for people.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            RunState::Running => "running",
            RunState::Done => "done",
            RunState::NotWritten => "not written",
            RunState::Killed => "killed",
            RunState::Stopped => "stopped",
            RunState::NotFinite => "not finite",
            RunState::NoDevice => "no device",
            RunState::NoMoney => "no money",
            RunState::DevicesLost => "devices lost",
            RunState::Disputed => "disputed",
            RunState::DiskFailed => "disk failed",
        }
    }
}

impl ListedRun {
    /// Returns how it stands.
    #[must_use]
    pub fn state(&self) -> RunState {
        match self.past.how {
            _ if RunJournal::is_busy(&self.folder) => RunState::Running,
            _ if RunJournal::is_finished(&self.folder, &self.past) => RunState::Done,
            Some(End::Done) => RunState::NotWritten,
            None => RunState::Killed,
            Some(End::Stopped) => RunState::Stopped,
            Some(End::NotFinite { .. }) => RunState::NotFinite,
            Some(End::NoLease) => RunState::NoDevice,
            Some(End::NoMoney | End::AuditUnpaid { .. }) => RunState::NoMoney,
            Some(End::Lost) => RunState::DevicesLost,
            Some(End::Disputed { .. }) => RunState::Disputed,
            Some(End::Journal) => RunState::DiskFailed,
        }
    }

    /// Returns the path of its result, as its folder tells it.
    #[must_use]
    pub fn result(&self) -> PathBuf {
        match self
            .folder
            .file_name()
            .is_some_and(|name| name == RUN_FOLDER)
        {
            true => self.folder.parent().unwrap_or(&self.folder).to_owned(),
            false => self.folder.with_extension(""),
        }
    }
}

/// Returns the folder of the run whose result goes to `out`, which is a folder or a file.
#[must_use]
pub fn run_folder(out: &Path, is_folder: bool) -> PathBuf {
    match is_folder {
        true => out.join(RUN_FOLDER),
        false => {
            let mut name = out.as_os_str().to_owned();
            name.push(".");
            name.push(RUN_FOLDER);
            PathBuf::from(name)
        }
    }
}

/// Enters a run in the list of a market's folder.
///
/// # Errors
/// [`RunJournalError::File`]
pub fn list_run(market: &Path, run: &Path) -> Result<(), RunJournalError> {
    let run = std::path::absolute(run).unwrap_or_else(|_| run.to_owned());
    let hash = ContentId::for_content(run.as_os_str().as_encoded_bytes()).to_string();
    let name: String = hash.chars().take(NAME_DIGITS).collect();
    let list = market.join(LIST_FOLDER);
    let path = list.join(name);
    let written = fs::create_dir_all(&list);
    let written = written.and_then(|()| fs::write(&path, run.display().to_string()));
    written.map_err(|source: io::Error| RunJournalError::File { path, source })
}

/// Reads the runs that were begun from a market's folder, the oldest first. It leaves out those of
/// which nothing is left, or nothing that can be read.
#[must_use]
pub fn read_runs(market: &Path) -> Vec<ListedRun> {
    read_runs_named(market, "")
}

/// Reads the runs whose names begin so, as [`read_runs`] does. It opens no journal of another run.
#[must_use]
pub fn read_runs_named(market: &Path, begins: &str) -> Vec<ListedRun> {
    let entries = fs::read_dir(market.join(LIST_FOLDER));
    let entries = entries.into_iter().flatten().flatten();
    let runs = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        if !name.starts_with(begins) {
            return None;
        }
        let folder = PathBuf::from(fs::read_to_string(entry.path()).ok()?);
        let past = RunJournal::read(&folder).ok()?;
        Some(ListedRun { name, folder, past })
    });
    let mut runs: Vec<ListedRun> = runs.collect();
    runs.sort_by(|a, b| (a.past.at, &a.name).cmp(&(b.past.at, &b.name)));
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_stands_beside_its_result_under_a_name_of_its_own() {
        let run = |out: &str| run_folder(Path::new(out), false);
        assert_eq!(run("a/tuned.onnx"), Path::new("a/tuned.onnx.run"));
        assert_eq!(run("tuned.run"), Path::new("tuned.run.run"));
        assert_ne!(run("a.onnx"), run("a.bin"));
        assert_eq!(run_folder(Path::new("a"), true), Path::new("a/run"));
    }

    #[test]
    fn a_list_names_no_run_of_which_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read_runs(folder.path()).is_empty());
        list_run(folder.path(), &folder.path().join("gone.onnx.run")).unwrap();
        assert!(read_runs(folder.path()).is_empty());
        let list = fs::read_dir(folder.path().join(LIST_FOLDER)).unwrap();
        assert_eq!(list.count(), 1);
    }
}
