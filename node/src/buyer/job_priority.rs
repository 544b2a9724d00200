//! Decides which of one buyer's jobs goes first when several want the same devices.
//!
//! Each job announces its demands in a file until it has bought its leases, and a job must step
//! back from devices that a job of a higher priority wants. In the book (the market's list of asks)
//! only the price decides, so this gives no advantage over other buyers. If two jobs lease from one
//! provider at the same time, the buyer sends their priority, and the provider orders only these
//! two by it.
//!
//! A file counts while its writer holds a lock on it. The kernel releases the lock however the
//! process ends, so a dead job can block no other.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use souk_market::Listing;
use souk_network::protocols::demands::Demands;

use super::QuoteError;
use crate::buyer::job::Priority;

/// How many files a job reads; jobs beyond that do not count.
const JOBS_MAX: usize = 1024;

/// The longest file that is read.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The suffix of the files in which jobs announce their demands.
const SUFFIX: &str = ".json";

/// Distinguishes the files of one process.
static MADE: AtomicU32 = AtomicU32::new(0);

/// A job's place among its buyer's jobs. Dropping it withdraws the announcement.
#[derive(Debug, Default)]
pub(super) struct QueuedJob {
    /// The folder of announcements; none if the job has no priority.
    folder: Option<PathBuf>,
    priority: Priority,
    announcement: Mutex<Option<AnnouncementFile>>,
}

/// The announcement of a job, which other processes read.
#[derive(Debug, Serialize, Deserialize)]
struct Announcement {
    priority: Priority,
    demands: Demands,
}

/// A file that holds an announcement.
#[derive(Debug)]
struct AnnouncementFile {
    path: PathBuf,
    /// Holds the lock while it is open.
    _file: File,
}

impl QueuedJob {
    /// Returns a place in `folder`. A job without a priority waits for no job and blocks none.
    pub(super) fn new(folder: Option<&Path>, priority: Option<Priority>) -> QueuedJob {
        QueuedJob {
            folder: folder.filter(|_| priority.is_some()).map(Path::to_owned),
            priority: priority.unwrap_or_default(),
            announcement: Mutex::default(),
        }
    }

    /// Announces the job's demands, unless it did already.
    pub(super) fn announce_demands(&self, demands: &Demands) {
        let Some(folder) = &self.folder else {
            return;
        };
        let mut said = self
            .announcement
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if said.is_some() {
            return;
        }
        let wish = Announcement {
            priority: self.priority,
            demands: demands.clone(),
        };
        match AnnouncementFile::new(folder, &wish) {
            Ok(made) => *said = Some(made),
            Err(error) => {
                let folder = folder.display();
                tracing::warn!(%error, %folder, "the job's demands could not be announced");
            }
        }
    }

    /// Checks that the job may take these devices now.
    ///
    /// # Errors
    /// [`QuoteError::Behind`] if jobs of a higher priority want one of them.
    pub(super) fn check_precedence<'l>(
        &self,
        taken: impl Iterator<Item = &'l Listing> + Clone,
    ) -> Result<(), QuoteError> {
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        let before = live_wishes(folder).filter(|wish| {
            wish.priority > self.priority && taken.clone().any(|ask| wish.demands.is_suitable(ask))
        });
        match before.count() {
            0 => Ok(()),
            jobs => Err(QuoteError::Behind { jobs }),
        }
    }

    /// Withdraws the announcement, because the job has its devices.
    pub(super) fn withdraw_demands(&self) {
        let mut said = self
            .announcement
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *said = None;
    }
}

impl AnnouncementFile {
    fn new(folder: &Path, wish: &Announcement) -> io::Result<AnnouncementFile> {
        fs::create_dir_all(folder)?;
        let (process, made) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let name = format!("{process}-{made}");
        let (new, path) = (folder.join(&name), folder.join(name + SUFFIX));
        let mut file = File::create(&new)?;
        // The file must be locked and complete before it gets its final name.
        file.try_lock()?;
        file.write_all(&serde_json::to_vec(wish)?)?;
        fs::rename(&new, &path)?;
        Ok(AnnouncementFile { path, _file: file })
    }
}

impl Drop for AnnouncementFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            // Without its lock it blocks no job.
            tracing::debug!(%error, path = %self.path.display(), "the file could not be removed");
        }
    }
}

/// Returns the announcements of live jobs, and removes the files of dead ones.
fn live_wishes(folder: &Path) -> impl Iterator<Item = Announcement> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let said = paths.filter(|path| path.to_string_lossy().ends_with(SUFFIX));
    said.take(JOBS_MAX).filter_map(|path| read_wish(&path))
}

fn read_wish(path: &Path) -> Option<Announcement> {
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {}
        // No process holds the lock, so the writer is gone.
        Ok(()) => {
            let _ = fs::remove_file(path);
            return None;
        }
        Err(TryLockError::Error(_)) => return None,
    }
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use souk_market::{
        AccountKey, BuyerFilter, Credits, DeviceId, Features, Millis, Operators, OrderId,
    };
    use souk_market::{Name, Permille, Price, Regions, Resources, Units};

    use super::*;

    /// An ask of one unit.
    pub fn listing(provider: u8, price: u64) -> Listing {
        let resources = Resources::default();
        Listing {
            order: OrderId(u64::from(provider)),
            provider: AccountKey([provider; 32]),
            name: Name::default(),
            reputation: Permille(500),
            stake: Credits(0),
            device: DeviceId(1),
            class: resources.class(),
            resources,
            price: Price(price),
            quantity: Units(1),
            duration_min: Millis(1),
            duration_max: Millis(1_000),
            notice: Millis(0),
            spot: Vec::new(),
            idle: Permille(100),
            accepts: BuyerFilter::default(),
            resale: None,
        }
    }

    fn demands(price_max: u64) -> Demands {
        Demands {
            buyer: AccountKey([255; 32]),
            excluded: Vec::new(),
            real_only: false,
            price_max: Some(Price(price_max)),
            notice_min: Millis(0),
            spot: false,
            regions: Regions(0),
            reputation_min: Permille(0),
            power_known: false,
            features: Features(0),
            operators: Operators::default(),
            nodes: Vec::new(),
            in_parts: true,
            devices: Vec::new(),
            text_model: None,
        }
    }

    fn turn(folder: &Path, priority: Priority) -> QueuedJob {
        let turn = QueuedJob::new(Some(folder), Some(priority));
        turn.announce_demands(&demands(10));
        turn
    }

    #[test]
    fn who_wants_what_a_higher_priority_wants_stands_back_until_it_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let asks = [listing(1, 5)];
        let low = turn(folder.path(), Priority::Low);
        let normal = turn(folder.path(), Priority::Normal);
        let high = turn(folder.path(), Priority::High);
        let behind = |turn: &QueuedJob| match turn.check_precedence(asks.iter()) {
            Ok(()) => 0,
            Err(QuoteError::Behind { jobs }) => jobs,
            Err(other) => panic!("{other}"),
        };
        assert_eq!([&low, &normal, &high].map(behind), [2, 1, 0]);
        let equal = turn(folder.path(), Priority::Normal);
        assert_eq!(behind(&normal), 1, "equals go as they come");
        high.withdraw_demands();
        assert_eq!([&low, &normal].map(behind), [2, 0]);
        drop((normal, equal));
        assert_eq!(behind(&low), 0);
    }

    #[test]
    fn what_does_not_suit_a_higher_priority_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let _high = turn(folder.path(), Priority::High);
        let low = turn(folder.path(), Priority::Low);
        assert!(
            low.check_precedence([listing(1, 11)].iter()).is_ok(),
            "it is too dear"
        );
        assert!(
            low.check_precedence([listing(1, 11), listing(2, 9)].iter())
                .is_err()
        );
        let none = QueuedJob::new(Some(folder.path()), None);
        assert!(none.check_precedence([listing(1, 5)].iter()).is_ok());
    }

    #[test]
    fn a_job_that_died_and_a_file_of_nobody_hold_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let wish = Announcement {
            priority: Priority::High,
            demands: demands(10),
        };
        let left = folder.path().join("77-0.json");
        fs::write(&left, serde_json::to_vec(&wish).unwrap()).unwrap();
        let low = turn(folder.path(), Priority::Low);
        assert!(low.check_precedence([listing(1, 5)].iter()).is_ok());
        assert!(!left.exists(), "it is swept away");
        let locked = File::create(folder.path().join("78-0.json")).unwrap();
        locked.try_lock().unwrap();
        (&locked).write_all(b"{\"priority\":\"first\"}").unwrap();
        assert!(low.check_precedence([listing(1, 5)].iter()).is_ok());
    }
}
