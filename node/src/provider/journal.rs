//! A provider's journal: which leases it began, what they used, what they were paid.
//!
//! A line is durable before what it announces: a lease is in the journal before its work begins, so
//! that after a crash it is settled or given back and never run a second time. A line torn by a
//! crash is cut off. Where the market knows better, the market is right: the journal says what to
//! ask it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use souk_market::{
    AccountKey, CloseReason, Credits, DeviceMicros, JobId, Lease, LeaseId, LeaseState, Millis,
    Price,
};

/// The journal's file in a provider's folder.
const JOURNAL_FILE: &str = "journal.jsonl";

/// Closed leases that stay readable one by one; older ones are summed up at the next start.
const CLOSED_KEPT: usize = 10_000;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Record {
    /// The work of a lease is about to begin.
    Began {
        /// The lease.
        lease: LeaseId,
        /// Who bought it.
        buyer: AccountKey,
        /// The buyer's job.
        job: JobId,
        /// Price per device-second.
        price: Price,
        /// When it ends at the latest.
        deadline: Millis,
        /// When the work began, by this machine's clock.
        at: Millis,
    },
    /// The work is done.
    Ran {
        /// The lease.
        lease: LeaseId,
        /// The device time it used.
        usage: DeviceMicros,
    },
    /// The market has closed the lease.
    Closed {
        /// The lease.
        lease: LeaseId,
        /// What was paid for it; unknown where the market has forgotten it.
        paid: Option<Credits>,
        /// Why it was closed.
        reason: Option<CloseReason>,
        /// When it was found closed, by this machine's clock.
        at: Millis,
    },
    /// Leases too old to be kept one by one.
    Before(Before),
}

/// The sum of leases that are not kept one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    /// How many.
    pub leases: u64,
    /// What they were paid.
    pub paid: Credits,
    /// The newest of them: none at or below it is begun again.
    pub up_to: LeaseId,
}

/// A lease as the journal has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Who bought it.
    pub buyer: AccountKey,
    /// The buyer's job.
    pub job: JobId,
    /// Price per device-second.
    pub price: Price,
    /// When it ends at the latest.
    pub deadline: Millis,
    /// When the work began.
    pub began: Millis,
    /// The device time it used, once it was done.
    pub usage: Option<DeviceMicros>,
    /// How it ended, once it did.
    pub closed: Option<Closing>,
}

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closing {
    /// What was paid for it; unknown where the market has forgotten it.
    pub paid: Option<Credits>,
    /// Why it was closed.
    pub reason: Option<CloseReason>,
    /// When it was found closed.
    pub at: Millis,
}

/// Everything a journal says.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct History {
    /// Leases by number.
    pub leases: BTreeMap<LeaseId, Entry>,
    /// Those before them.
    pub before: Before,
}

/// Why a journal was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system refused.
    #[error("cannot read or write the journal {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line is not one of a journal.
    #[error("the journal {} is damaged in line {line}: {source}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What the parser said.
        source: serde_json::Error,
    },
}

/// An open journal.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    /// Bytes of the whole lines in it.
    length: u64,
    /// Whether something may stand behind them.
    is_torn: bool,
    history: History,
}

impl History {
    /// Reads the journal of a provider's folder; an empty one where there is none.
    ///
    /// # Errors
    /// When the file can't be read or holds something else.
    pub fn read(home: &Path) -> Result<History, JournalError> {
        let path = home.join(JOURNAL_FILE);
        match std::fs::read_to_string(&path) {
            Ok(text) => parse(&path, &text).map(|(history, _)| history),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(History::default()),
            Err(source) => Err(JournalError::File { path, source }),
        }
    }

    /// Leases that the market has not been seen to close.
    pub fn open(&self) -> impl Iterator<Item = (LeaseId, &Entry)> {
        let open = self
            .leases
            .iter()
            .filter(|(_, entry)| entry.closed.is_none());
        open.map(|(lease, entry)| (*lease, entry))
    }

    /// How many leases were closed.
    pub fn closed(&self) -> u64 {
        let closed = self.leases.values().filter(|entry| entry.closed.is_some());
        self.before.leases + closed.count() as u64
    }

    /// What all leases were paid.
    pub fn earned(&self) -> Credits {
        let paid = self.leases.values().filter_map(|entry| entry.closed?.paid);
        let sum = paid.fold(self.before.paid.0, |sum, paid| sum.saturating_add(paid.0));
        Credits(sum)
    }

    /// Whether the work of a lease was begun before.
    pub fn has_begun(&self, lease: LeaseId) -> bool {
        lease <= self.before.up_to || self.leases.contains_key(&lease)
    }

    fn take(&mut self, record: Record) {
        match record {
            Record::Began {
                lease,
                buyer,
                job,
                price,
                deadline,
                at,
            } => {
                let entry = Entry {
                    buyer,
                    job,
                    price,
                    deadline,
                    began: at,
                    usage: None,
                    closed: None,
                };
                self.leases.insert(lease, entry);
            }
            Record::Ran { lease, usage } => {
                if let Some(entry) = self.leases.get_mut(&lease) {
                    entry.usage = Some(usage);
                }
            }
            Record::Closed {
                lease,
                paid,
                reason,
                at,
            } => {
                if let Some(entry) = self.leases.get_mut(&lease) {
                    entry.closed = Some(Closing { paid, reason, at });
                }
            }
            Record::Before(before) => self.before = before,
        }
    }

    /// Sums up the oldest leases where there are too many, up to the first that is open.
    fn shorten(&mut self) -> bool {
        let before = self.before;
        while self.leases.len() > CLOSED_KEPT {
            let Some(first) = self.leases.first_entry() else {
                break;
            };
            let Some(closing) = first.get().closed else {
                break;
            };
            let paid = closing.paid.unwrap_or_default();
            self.before = Before {
                leases: self.before.leases + 1,
                paid: Credits(self.before.paid.0.saturating_add(paid.0)),
                up_to: *first.key(),
            };
            first.remove();
        }
        self.before != before
    }

    /// The lines that say the same.
    fn records(&self) -> Vec<Record> {
        let mut records = vec![Record::Before(self.before)];
        for (lease, entry) in &self.leases {
            records.push(Record::Began {
                lease: *lease,
                buyer: entry.buyer,
                job: entry.job,
                price: entry.price,
                deadline: entry.deadline,
                at: entry.began,
            });
            let ran = entry.usage.map(|usage| Record::Ran {
                lease: *lease,
                usage,
            });
            let closed = entry.closed.map(|closing| Record::Closed {
                lease: *lease,
                paid: closing.paid,
                reason: closing.reason,
                at: closing.at,
            });
            records.extend(ran);
            records.extend(closed);
        }
        records
    }
}

impl Journal {
    /// Opens the journal of a folder; a torn last line is cut off, old leases are summed up.
    pub(super) fn open(home: &Path) -> Result<Journal, JournalError> {
        let path = home.join(JOURNAL_FILE);
        let failed = |source| JournalError::File {
            path: path.clone(),
            source,
        };
        let options = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .clone();
        let mut file = options.open(&path).map_err(failed)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed)?;
        let (mut history, whole) = parse(&path, &text)?;
        if whole < text.len() {
            file.set_len(whole as u64).map_err(failed)?;
        }
        if history.shorten() {
            let draft = path.with_extension("jsonl.new");
            let mut out = File::create(&draft).map_err(failed)?;
            for record in history.records() {
                out.write_all(line(&record).as_bytes()).map_err(failed)?;
            }
            out.sync_all().map_err(failed)?;
            std::fs::rename(&draft, &path).map_err(failed)?;
            file = options.open(&path).map_err(failed)?;
        }
        let length = file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok(Journal {
            path,
            file,
            length,
            is_torn: false,
            history,
        })
    }

    /// Writes a line; it is durable when this returns.
    ///
    /// What a full disk took of a line that it did not take whole is cut off before the next one:
    /// else the two would be one that says nothing.
    pub(super) fn write(&mut self, record: Record) -> Result<(), JournalError> {
        let line = line(&record);
        let written = self.append(line.as_bytes());
        self.is_torn = written.is_err();
        written.map_err(|source| JournalError::File {
            path: self.path.clone(),
            source,
        })?;
        self.length += line.len() as u64;
        self.history.take(record);
        Ok(())
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.is_torn {
            self.file.set_len(self.length)?;
            self.file.seek(SeekFrom::Start(self.length))?;
        }
        self.file.write_all(line)?;
        self.file.sync_data()
    }

    pub(super) fn history(&self) -> &History {
        &self.history
    }
}

impl Record {
    /// That the work of a lease is about to begin.
    pub(super) fn began(lease: &Lease, at: Millis) -> Record {
        Record::Began {
            lease: lease.id,
            buyer: lease.buyer,
            job: lease.job,
            price: lease.price,
            deadline: lease.deadline,
            at,
        }
    }

    /// That the market has closed a lease, where it has; `None` is one it has forgotten.
    pub(super) fn closed(id: LeaseId, lease: Option<&Lease>, at: Millis) -> Option<Record> {
        let (paid, reason) = match lease.map(|lease| lease.state) {
            None => (None, None),
            Some(LeaseState::Closed { paid, reason, .. }) => (Some(paid), Some(reason)),
            Some(_) => return None,
        };
        Some(Record::Closed {
            lease: id,
            paid,
            reason,
            at,
        })
    }
}

fn line(record: &Record) -> String {
    serde_json::to_string(record).expect("plain data in memory always encodes") + "\n"
}

/// Reads the lines of a journal, and how many bytes the whole ones take.
fn parse(path: &Path, text: &str) -> Result<(History, usize), JournalError> {
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    let mut history = History::default();
    for (number, text) in (1..).zip(text[..whole].lines()) {
        let record = serde_json::from_str(text).map_err(|source| JournalError::Damaged {
            path: path.to_owned(),
            line: number,
            source,
        })?;
        history.take(record);
    }
    Ok((history, whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_full_disk_took_of_a_line_is_cut_off_before_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(folder.path()).unwrap();
        journal.write(began(1)).unwrap();
        let path = journal.path.clone();
        // A disk that is full takes a part of a line and fails.
        let good = std::mem::replace(&mut journal.file, File::open(&path).unwrap());
        assert!(journal.write(began(2)).is_err());
        journal.file = good;
        let half = &line(&began(2))[..20];
        journal.file.write_all(half.as_bytes()).unwrap();
        journal.write(began(3)).unwrap();
        drop(journal);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, line(&began(1)) + &line(&began(3)));
        assert!(Journal::open(folder.path()).is_ok());
    }

    #[test]
    fn damaged_journals_are_read_or_refused() {
        let whole: String = (1..20).map(|lease| line(&began(lease))).collect();
        let mut damage = crate::protocols::fuzzed::Damage::new(20);
        let mut refused = 0;
        for _ in 0..2_000 {
            let damaged = damage.of(whole.as_bytes());
            let text = String::from_utf8_lossy(&damaged);
            refused += u32::from(parse(Path::new("journal.jsonl"), &text).is_err());
        }
        assert!(refused > 1_000, "{refused} of 2,000 are refused");
    }

    fn began(lease: u64) -> Record {
        Record::Began {
            lease: LeaseId(lease),
            buyer: AccountKey([1; 32]),
            job: JobId([2; 32]),
            price: Price(40_000),
            deadline: Millis(9_000),
            at: Millis(1_000),
        }
    }

    fn closed(lease: u64, paid: u64) -> Record {
        Record::Closed {
            lease: LeaseId(lease),
            paid: Some(Credits(paid)),
            reason: None,
            at: Millis(2_000),
        }
    }

    #[test]
    fn what_was_written_is_known_at_the_next_start() {
        let home = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(home.path()).unwrap();
        let usage = DeviceMicros(7);
        let ran = Record::Ran {
            lease: LeaseId(1),
            usage,
        };
        for record in [began(1), ran, began(2), closed(1, 30)] {
            journal.write(record).unwrap();
        }
        let again = Journal::open(home.path()).unwrap();
        assert_eq!(again.history(), journal.history());
        let history = History::read(home.path()).unwrap();
        let open: Vec<LeaseId> = history.open().map(|(lease, _)| lease).collect();
        assert_eq!(open, [LeaseId(2)]);
        assert_eq!((history.closed(), history.earned()), (1, Credits(30)));
        assert_eq!(history.leases[&LeaseId(1)].usage, Some(usage));
        assert!(history.has_begun(LeaseId(2)) && !history.has_begun(LeaseId(3)));
    }

    #[test]
    fn a_torn_line_is_cut_off_and_a_wrong_one_is_named() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(JOURNAL_FILE);
        let whole = line(&began(1));
        std::fs::write(&path, whole.clone() + &line(&began(2))[..20]).unwrap();
        let mut journal = Journal::open(home.path()).unwrap();
        assert_eq!(journal.history().leases.len(), 1);
        journal.write(began(3)).unwrap();
        assert_eq!(History::read(home.path()).unwrap().leases.len(), 2);
        std::fs::write(&path, whole + "no record\n").unwrap();
        let damaged = Journal::open(home.path()).unwrap_err();
        assert!(matches!(damaged, JournalError::Damaged { line: 2, .. }));
    }

    #[test]
    fn old_leases_are_summed_up_and_not_begun_again() {
        let home = tempfile::tempdir().unwrap();
        let leases = 1..=CLOSED_KEPT as u64 + 5;
        let text: String = leases
            .flat_map(|lease| [line(&began(lease)), line(&closed(lease, 2))])
            .collect();
        std::fs::write(home.path().join(JOURNAL_FILE), text).unwrap();
        let before = History::read(home.path()).unwrap();
        let journal = Journal::open(home.path()).unwrap();
        assert_eq!(journal.history().leases.len(), CLOSED_KEPT);
        assert_eq!(journal.history().earned(), before.earned());
        assert_eq!(journal.history().closed(), before.closed());
        assert!(journal.history().has_begun(LeaseId(3)));
        assert_eq!(&History::read(home.path()).unwrap(), journal.history());
    }
}
