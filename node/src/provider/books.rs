//! The provider's books while it runs, and what they make it do after a crash.
//!
//! What was begun and not finished when the process ended is lost: the lease is given back and the
//! buyer refunded. What was finished is owed: a receipt that both signed is settled, usage without
//! one is noted. What was bought and never begun is kept: its buyer may still start it.

use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use souk_market::{Command, Credits, DeviceMicros, Lease, LeaseId, LeaseState, Millis, Receipt};

use super::journal::{Journal, JournalError, Record};
use super::receipts;
use super::{Provider, ProviderError};
use crate::client::reach::ReachError;
use crate::clock::unix_ms;

/// The file that a running provider holds a lock on: two on one folder would sell a device twice.
const LOCK_FILE: &str = "lock";

/// The journal, and the lock on its folder.
#[derive(Debug)]
pub(super) struct Books {
    journal: Mutex<Journal>,
    // Held as long as the provider runs.
    _lock: File,
}

/// What is done about a lease that was open when the process ended.
#[derive(Clone, Debug, PartialEq)]
enum Recovery {
    /// Both have signed: it is paid.
    Settle(Box<Receipt>),
    /// The work was done and nobody signed for it.
    Note(DeviceMicros),
    /// The work was not done.
    GiveBack,
    /// The market has closed it.
    Nothing,
}

impl Books {
    pub(super) fn open(home: &Path) -> Result<Books, ProviderError> {
        let lock = lock(home)?;
        let journal = Mutex::new(Journal::open(home)?);
        let _lock = lock;
        Ok(Books { journal, _lock })
    }

    /// Puts down that a lease's work begins; not before this returns may it.
    pub(super) fn began(&self, lease: &Lease) -> Result<(), JournalError> {
        self.journal()
            .write(Record::began(lease, Millis(unix_ms())))
    }

    /// Puts down what a lease's work has used.
    pub(super) fn ran(&self, lease: LeaseId, usage: DeviceMicros) -> Result<(), JournalError> {
        self.journal().write(Record::Ran { lease, usage })
    }

    /// Whether a lease's work was begun before, in this run or an earlier one.
    pub(super) fn has_begun(&self, lease: LeaseId) -> bool {
        self.journal().history().has_begun(lease)
    }

    /// Leases that the market has not closed, those it has, and what all were paid.
    pub(super) fn sums(&self) -> (usize, u64, Credits) {
        let journal = self.journal();
        let history = journal.history();
        (history.open().count(), history.closed(), history.earned())
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        // A write that panicked has not changed what is known.
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_leases(&self) -> Vec<(LeaseId, Option<DeviceMicros>)> {
        let journal = self.journal();
        let open = journal.history().open();
        open.map(|(lease, entry)| (lease, entry.usage)).collect()
    }
}

/// Whether a provider runs on this folder.
pub fn runs(home: &Path) -> bool {
    matches!(lock(home), Err(ProviderError::Running { .. }))
}

/// Settles, notes or gives back what an earlier run of this provider left open.
pub(super) async fn recover(provider: &Provider) -> Result<(), ProviderError> {
    for (id, usage) in provider.books.open_leases() {
        let lease = provider.trader.broker().lease(id).await;
        let lease = lease.map_err(ReachError::from)?;
        let receipt = receipts::kept(&provider.home, id);
        let commanded = match recovery(lease.as_ref(), usage, receipt) {
            Recovery::Settle(receipt) => Command::Settle(receipt),
            Recovery::Note(usage) => Command::NoteUsage { lease: id, usage },
            Recovery::GiveBack => Command::GiveUp { lease: id },
            Recovery::Nothing => continue,
        };
        match provider.trader.submit_one(commanded.clone()).await {
            Ok(_) => tracing::warn!(lease = %id, ?commanded, "a lease of an earlier run"),
            Err(error) => tracing::warn!(lease = %id, %error, "a lease of an earlier run"),
        }
    }
    close_closed(provider).await
}

/// Puts down which leases the market has closed since.
pub(super) async fn close_closed(provider: &Provider) -> Result<(), ProviderError> {
    for (id, _) in provider.books.open_leases() {
        let lease = provider.trader.broker().lease(id).await;
        let lease = lease.map_err(ReachError::from)?;
        if let Some(record) = Record::closed(id, lease.as_ref(), Millis(unix_ms())) {
            provider.books.journal().write(record)?;
        }
    }
    Ok(())
}

fn recovery(
    lease: Option<&Lease>,
    usage: Option<DeviceMicros>,
    receipt: Option<Receipt>,
) -> Recovery {
    let open = lease.filter(|lease| !matches!(lease.state, LeaseState::Closed { .. }));
    match (open, receipt, usage) {
        (None, ..) => Recovery::Nothing,
        (Some(_), Some(receipt), _) => Recovery::Settle(Box::new(receipt)),
        (Some(_), None, Some(usage)) => Recovery::Note(usage),
        (Some(_), None, None) => Recovery::GiveBack,
    }
}

fn lock(home: &Path) -> Result<File, ProviderError> {
    let path = home.join(LOCK_FILE);
    let failed = |source| {
        ProviderError::Journal(JournalError::File {
            path: path.clone(),
            source,
        })
    };
    fs::create_dir_all(home).map_err(failed)?;
    let file = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(ProviderError::Running {
            home: home.to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}
