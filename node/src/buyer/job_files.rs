//! Stores the files that show users how a job goes: its plan, its events, and the timeline of its
//! devices. `souk submit` writes them and `souk job` reads them; `souk job cancel` leaves a file
//! for the process that runs the job.
//!
//! ```text
//! buyer/jobs/NAME/plan.json       the plan as the user saw it
//! buyer/jobs/NAME/events.jsonl    the events, one per line, appended as they happen
//! buyer/jobs/NAME/timeline.json   the devices' work, lease by lease, once the job ended
//! buyer/jobs/NAME/cancel          exists once a user cancelled the job
//! ```
//! The job itself needs only the facts in its journal: it can resume without these files.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use souk_api::event::JobEventView;
use souk_folder::clock::unix_ms;
use souk_market::{AccountKey, Receipt};
use souk_roles::job::JobEvent;
use souk_scheduler::execution::timeline::{Span, SpanKind, Timeline, UnixMicros};

use super::JournalError;
use super::names::{self, Names};

/// How often a job checks whether a user cancelled it.
const CANCEL_PERIOD: Duration = Duration::from_millis(200);

/// The files of a job.
#[derive(Clone, Debug)]
pub struct JobFiles {
    folder: PathBuf,
}

/// A plan as the user saw it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SavedPlan {
    /// The plan as JSON.
    pub plan: Value,
    /// The plan as lines of text.
    pub text: Vec<String>,
    /// The display names of the providers on offer.
    pub names: Names,
}

/// An event of a job, with its time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TimedEvent {
    /// The time of the event, in milliseconds since 1970.
    pub at_ms: u64,
    /// The event itself.
    pub event: JobEvent,
}

impl TimedEvent {
    /// Returns an event that happens now.
    #[must_use]
    pub fn new_now(event: JobEvent) -> TimedEvent {
        TimedEvent {
            at_ms: unix_ms(),
            event,
        }
    }

    /// Describes the event, which has this number, as users see it.
    #[must_use]
    pub fn describe(&self, number: usize) -> JobEventView {
        JobEventView::new(number, self.at_ms, &self.event)
    }

    /// Describes events as users see them; their numbers begin at 0.
    #[must_use]
    pub fn describe_all(events: &[TimedEvent]) -> Vec<JobEventView> {
        let events = events.iter().enumerate();
        events
            .map(|(number, happened)| happened.describe(number))
            .collect()
    }
}

impl JobFiles {
    /// Returns the files of the job of this name in the folder of jobs.
    #[must_use]
    pub fn new(jobs: &Path, name: &str) -> JobFiles {
        JobFiles {
            folder: jobs.join(name),
        }
    }

    /// Stores a plan.
    pub fn keep_plan(&self, plan: &SavedPlan) {
        self.write("plan.json", &serde_json::to_vec(plan).unwrap_or_default());
    }

    /// Appends an event.
    pub fn add(&self, happened: &TimedEvent) {
        if let Err(error) = self.append_event(happened) {
            tracing::debug!(%error, "an event of the job could not be stored");
        }
    }

    /// Stores the timeline of the devices, merged with those of the job's earlier lives.
    pub fn keep_timeline(&self, timeline: &Timeline) {
        let mut all = self.read_timeline();
        all.merge(timeline.clone());
        self.write(
            "timeline.json",
            &serde_json::to_vec(&all).unwrap_or_default(),
        );
    }

    /// Returns the plan, if it is stored.
    #[must_use]
    pub fn read_plan(&self) -> Option<SavedPlan> {
        self.read("plan.json")
    }

    /// Returns the stored timeline of the devices.
    #[must_use]
    pub fn read_timeline(&self) -> Timeline {
        self.read("timeline.json").unwrap_or_default()
    }

    /// Returns the events, oldest first, without incomplete lines.
    #[must_use]
    pub fn read_events(&self) -> Vec<TimedEvent> {
        let bytes = fs::read(self.events_path()).unwrap_or_default();
        let whole = bytes
            .split_inclusive(|byte| *byte == b'\n')
            .filter(|line| line.ends_with(b"\n"));
        whole
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect()
    }

    /// Returns the receipts with both signatures, by lease. A lease that was signed for in two
    /// lives has the same receipt in both.
    #[must_use]
    pub fn read_receipts(&self) -> Vec<Receipt> {
        let signed = |happened: TimedEvent| match happened.event {
            JobEvent::Signed { receipt, .. } => Some((receipt.body.lease, *receipt)),
            _ => None,
        };
        let all: BTreeMap<_, _> = self.read_events().into_iter().filter_map(signed).collect();
        all.into_values().collect()
    }

    /// Asks the process that runs the job to cancel it; the process will see this at its next
    /// check.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn request_cancel(&self) -> Result<(), JournalError> {
        let path = self.cancel_path();
        fs::write(&path, b"").map_err(|source| JournalError::File { path, source })
    }

    /// Removes an earlier request to cancel. You must call this before the job begins a new life,
    /// because the request would otherwise cancel it at once.
    pub fn clear_cancel_request(&self) {
        // Usually there is none.
        let _ = fs::remove_file(self.cancel_path());
    }

    /// Waits until a user cancels the job.
    pub async fn wait_for_cancel(&self) {
        while !self.cancel_path().exists() {
            tokio::time::sleep(CANCEL_PERIOD).await;
        }
    }

    /// Returns the timeline of the devices, with the buyer's events around it.
    #[must_use]
    pub fn whole_timeline(&self, names: &Names) -> Timeline {
        let mut all = self.read_timeline();
        all.merge(provider_timeline(&self.read_events(), names));
        all
    }

    /// Appends an event on a line of its own, even after a line that a process left incomplete.
    fn append_event(&self, happened: &TimedEvent) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .open(self.events_path())?;
        let mut line = Vec::new();
        if is_torn(&mut file)? {
            line.push(b'\n');
        }
        serde_json::to_writer(&mut line, happened)?;
        line.push(b'\n');
        file.write_all(&line)
    }

    fn events_path(&self) -> PathBuf {
        self.folder.join("events.jsonl")
    }

    fn cancel_path(&self) -> PathBuf {
        self.folder.join("cancel")
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        if let Err(error) = fs::write(self.folder.join(name), bytes) {
            tracing::debug!(%error, name, "a file of the job could not be written");
        }
    }

    fn read<T: serde::de::DeserializeOwned>(&self, name: &str) -> Option<T> {
        let bytes = fs::read(self.folder.join(name)).ok()?;
        serde_json::from_slice(&bytes).ok()
    }
}

/// Returns whether a file's last line is incomplete.
fn is_torn(file: &mut fs::File) -> io::Result<bool> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

/// Returns what each provider did by the buyer's clock: fetch, prepare, run.
fn provider_timeline(events: &[TimedEvent], names: &Names) -> Timeline {
    let mut timeline = Timeline::default();
    let mut since = BTreeMap::<AccountKey, u64>::new();
    for TimedEvent { at_ms, event } in events {
        let (provider, name, kind) = match event {
            JobEvent::Leased { leases, .. } => {
                since.extend(leases.iter().map(|(provider, ..)| (*provider, *at_ms)));
                continue;
            }
            JobEvent::Fetched { provider, .. } => (provider, "upload", SpanKind::TransferIn),
            JobEvent::Ready { provider } => (provider, "get ready", SpanKind::Wait),
            JobEvent::Running { provider, .. } => (provider, "wait", SpanKind::Wait),
            JobEvent::Finished { provider } => (provider, "run", SpanKind::Compute),
            _ => continue,
        };
        let start = since.insert(*provider, *at_ms).unwrap_or(*at_ms);
        timeline.push(Span {
            device: names::account_name(provider, names),
            lane: "as the buyer saw it".to_owned(),
            name: name.to_owned(),
            kind,
            start: UnixMicros(start * 1_000),
            end: UnixMicros(at_ms * 1_000),
        });
    }
    timeline
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_is_read_back_and_a_torn_line_is_left_out() {
        let home = tempfile::tempdir().unwrap();
        let files = JobFiles::new(home.path(), "");
        let provider = AccountKey([7; 32]);
        files.add(&TimedEvent::new_now(JobEvent::Ready { provider }));
        files.add(&TimedEvent::new_now(JobEvent::Finished { provider }));
        let mut torn = OpenOptions::new()
            .append(true)
            .open(files.events_path())
            .unwrap();
        torn.write_all(b"{\"at_ms\":1,\"ev").unwrap();
        let events = files.read_events();
        assert_eq!(events.len(), 2);
        assert_eq!(events[1].event, JobEvent::Finished { provider });
        let spans = files.whole_timeline(&Names::new());
        assert_eq!(spans.spans()[1].name, "run");
    }

    #[test]
    fn what_happens_after_a_torn_line_is_kept_on_a_line_of_its_own() {
        let home = tempfile::tempdir().unwrap();
        let files = JobFiles::new(home.path(), "");
        let provider = AccountKey([7; 32]);
        files.add(&TimedEvent::new_now(JobEvent::Ready { provider }));
        // Cut in the middle of a letter of two bytes.
        let torn = "{\"at_ms\":1,\"event\":{\"Said\":\"é";
        let mut file = OpenOptions::new()
            .append(true)
            .open(files.events_path())
            .unwrap();
        file.write_all(&torn.as_bytes()[..torn.len() - 1]).unwrap();
        files.clear_cancel_request();
        files.add(&TimedEvent::new_now(JobEvent::Finished { provider }));
        files.add(&TimedEvent::new_now(JobEvent::Ready { provider }));
        let kept: Vec<_> = files
            .read_events()
            .into_iter()
            .map(|kept| kept.event)
            .collect();
        let (ready, finished) = (
            JobEvent::Ready { provider },
            JobEvent::Finished { provider },
        );
        assert_eq!(kept, [ready.clone(), finished, ready]);
        let lines = fs::read(files.events_path()).unwrap();
        assert_eq!(
            lines.split(|byte| *byte == b'\n').count(),
            5,
            "no empty line"
        );
    }

    #[tokio::test]
    async fn a_job_hears_that_it_is_to_end_and_a_new_life_does_not() {
        let home = tempfile::tempdir().unwrap();
        let files = JobFiles::new(home.path(), "");
        files.request_cancel().unwrap();
        files.wait_for_cancel().await;
        files.clear_cancel_request();
        assert!(!files.cancel_path().exists());
    }
}
