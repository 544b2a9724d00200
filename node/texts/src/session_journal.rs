//! Writes a journal for each session that a text buys in the market (a text can have several,
//! because failed providers are replaced). With these journals, `souk job` lists a session, and
//! ends its leases even if the process that bought them has died.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use souk_node::buyer::job_files::{JobFiles, SavedPlan, TimedEvent};
use souk_node::buyer::journal::{JOBS_FOLDER, SESSION_KEY};
use souk_node::buyer::{Buyer, JobEvent, Journal, JournalError, Quote, names, plan_json};
use tokio::sync::{Notify, mpsc};

/// Creates the journals of a model's sessions in the folder of a market.
pub struct SessionJournals {
    folder: PathBuf,
    /// The name of the model.
    model: String,
}

impl SessionJournals {
    /// Returns the place for the sessions of a model in a market's folder.
    pub fn new(folder: &Path, model: String) -> Self {
        let folder = folder.join(JOBS_FOLDER);
        let folder = std::path::absolute(&folder).unwrap_or(folder);
        Self { folder, model }
    }

    /// Begins the journal of a session, and stores its plan.
    pub fn create_journal(
        &self,
        buyer: &Buyer,
        quote: &Quote,
        text: Vec<String>,
    ) -> Result<(Journal, JobFiles), JournalError> {
        let journal = buyer.create_journal(&self.folder)?;
        let files = JobFiles::new(&self.folder, journal.name());
        files.keep_plan(&SavedPlan {
            plan: plan_json::to_json(quote),
            text,
            names: names::provider_names(&quote.listings),
        });
        Ok((journal, files))
    }

    /// Returns the command that the journals store.
    pub fn command(&self) -> Value {
        json!({ "job": { "model": self.model }, SESSION_KEY: true })
    }
}

/// Stores the events of a session until it ends, and stops it if a user cancels it.
pub async fn store_events(
    files: JobFiles,
    mut events: mpsc::Receiver<JobEvent>,
    cancel: Arc<Notify>,
) {
    let mut cancelled = std::pin::pin!(files.wait_for_cancel());
    let mut is_cancelled = false;
    // Each token runs each part once more.
    let mut running = BTreeSet::new();
    loop {
        tokio::select! {
            event = events.recv() => match event {
                Some(JobEvent::Running { provider, part })
                    if !running.insert((provider, part.clone())) => {}
                Some(event) => files.add(&TimedEvent::new_now(event)),
                None => return,
            },
            () = &mut cancelled, if !is_cancelled => {
                is_cancelled = true;
                cancel.notify_one();
            }
        }
    }
}
