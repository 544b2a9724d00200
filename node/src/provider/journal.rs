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
use souk_market::{AccountKey, CloseReason, Credits, DeviceMicros, JobId, LeaseId, Millis, Price};
use souk_roles::effect::Ticket;
pub use souk_roles::provider::Before;
use souk_roles::provider::{Fact, Past, PastLease, PastState};
use tokio::sync::{mpsc, watch};

/// The journal's file in a provider's folder.
const JOURNAL_FILE: &str = "journal.jsonl";

/// Facts that wait to be written: a few of each lease.
const WAITING_MAX: usize = 4_096;

/// So many of those that wait are written with one sync.
const TOGETHER_MAX: usize = 256;

/// Closed leases that stay readable one by one; older ones are summed up at the next start.
const CLOSED_KEPT: usize = 10_000;

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
    /// What was put down of those that are not closed.
    #[serde(skip)]
    open: BTreeMap<LeaseId, Vec<Fact>>,
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

/// That facts are on the disk, or why they may not be.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) ticket: Ticket,
    pub(super) written: Result<(), String>,
}

/// Where facts are put for the writer, and where it says that they are on the disk.
pub(super) type Writer = (mpsc::Sender<(Ticket, Vec<Fact>)>, mpsc::Receiver<Written>);

/// What a provider's leases come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sums {
    /// Leases that the market has not closed.
    pub(super) open: usize,
    /// Leases that it has.
    pub(super) closed: u64,
    /// What all were paid.
    pub(super) earned: Credits,
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

    fn take(&mut self, fact: Fact) {
        let of = match &fact {
            Fact::Before(before) => {
                self.before = *before;
                return;
            }
            Fact::Signed { receipt } => receipt.body.lease,
            Fact::Began { lease, .. } | Fact::Ran { lease, .. } | Fact::Closed { lease, .. } => {
                *lease
            }
        };
        match &fact {
            Fact::Began {
                lease,
                buyer,
                job,
                price,
                deadline,
                at,
            } => {
                let entry = Entry {
                    buyer: *buyer,
                    job: *job,
                    price: *price,
                    deadline: *deadline,
                    began: *at,
                    usage: None,
                    closed: None,
                };
                self.leases.insert(*lease, entry);
            }
            Fact::Ran { lease, usage, .. } => {
                if let Some(entry) = self.leases.get_mut(lease) {
                    entry.usage = Some(*usage);
                }
            }
            Fact::Closed {
                lease,
                paid,
                reason,
                at,
            } => {
                if let Some(entry) = self.leases.get_mut(lease) {
                    let (paid, reason, at) = (*paid, *reason, *at);
                    entry.closed = Some(Closing { paid, reason, at });
                }
                self.open.remove(lease);
                return;
            }
            Fact::Signed { .. } | Fact::Before(_) => {}
        }
        self.open.entry(of).or_default().push(fact);
    }

    /// What a provider that starts again has to know.
    pub(super) fn past(&self) -> Past {
        let mut past = Past::fold(self.open.values().flatten().cloned());
        past.up_to = self.before.up_to;
        for (lease, entry) in &self.leases {
            let closed = PastLease {
                buyer: entry.buyer,
                state: PastState::Closed,
            };
            past.leases.entry(*lease).or_insert(closed);
        }
        past
    }

    /// Leases that are open, those that are closed, and what all were paid.
    fn sums(&self) -> Sums {
        Sums {
            open: self.open().count(),
            closed: self.closed(),
            earned: self.earned(),
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
    fn facts(&self) -> Vec<Fact> {
        let mut facts = vec![Fact::Before(self.before)];
        for (lease, entry) in &self.leases {
            if let Some(open) = self.open.get(lease) {
                facts.extend(open.iter().cloned());
                continue;
            }
            facts.push(Fact::Began {
                lease: *lease,
                buyer: entry.buyer,
                job: entry.job,
                price: entry.price,
                deadline: entry.deadline,
                at: entry.began,
            });
            let ran = entry.usage.map(|usage| Fact::Ran {
                lease: *lease,
                usage,
                work: None,
            });
            let closed = entry.closed.map(|closing| Fact::Closed {
                lease: *lease,
                paid: closing.paid,
                reason: closing.reason,
                at: closing.at,
            });
            facts.extend(ran);
            facts.extend(closed);
        }
        facts
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
            for fact in history.facts() {
                out.write_all(line(&fact).as_bytes()).map_err(failed)?;
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

    /// Writes facts; they are durable when this returns.
    ///
    /// What a full disk took of lines that it did not take whole is cut off before the next ones:
    /// else the two would be one that says nothing.
    fn write(&mut self, facts: Vec<Fact>) -> Result<(), JournalError> {
        let lines: String = facts.iter().map(line).collect();
        let written = self.append(lines.as_bytes());
        self.is_torn = written.is_err();
        written.map_err(|source| JournalError::File {
            path: self.path.clone(),
            source,
        })?;
        self.length += lines.len() as u64;
        facts.into_iter().for_each(|fact| self.history.take(fact));
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

impl Journal {
    /// Has a thread of its own write: all that waits with one sync. It ends with who sends.
    pub(super) fn start(mut self) -> (Writer, watch::Receiver<Sums>) {
        let (put, mut facts) = mpsc::channel::<(Ticket, Vec<Fact>)>(WAITING_MAX);
        let (tell, written) = mpsc::channel(WAITING_MAX);
        let (sums, told) = watch::channel(self.history.sums());
        tokio::task::spawn_blocking(move || {
            while let Some(first) = facts.blocking_recv() {
                let rest = std::iter::from_fn(|| facts.try_recv().ok());
                let waiting: Vec<(Ticket, Vec<Fact>)> = std::iter::once(first)
                    .chain(rest)
                    .take(TOGETHER_MAX)
                    .collect();
                let all = waiting.iter().flat_map(|(_, facts)| facts.iter().cloned());
                let done = self.write(all.collect()).map_err(|error| error.to_string());
                sums.send_replace(self.history.sums());
                for (ticket, _) in waiting {
                    let written = done.clone();
                    if tell.blocking_send(Written { ticket, written }).is_err() {
                        return;
                    }
                }
            }
        });
        ((put, written), told)
    }
}

fn line(fact: &Fact) -> String {
    serde_json::to_string(fact).expect("plain data in memory always encodes") + "\n"
}

/// Reads the lines of a journal, and how many bytes the whole ones take.
fn parse(path: &Path, text: &str) -> Result<(History, usize), JournalError> {
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    let mut history = History::default();
    for (number, text) in (1..).zip(text[..whole].lines()) {
        let fact = serde_json::from_str(text).map_err(|source| JournalError::Damaged {
            path: path.to_owned(),
            line: number,
            source,
        })?;
        history.take(fact);
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
        journal.write(vec![began(1)]).unwrap();
        let path = journal.path.clone();
        // A disk that is full takes a part of a line and fails.
        let good = std::mem::replace(&mut journal.file, File::open(&path).unwrap());
        assert!(journal.write(vec![began(2)]).is_err());
        journal.file = good;
        let half = &line(&began(2))[..20];
        journal.file.write_all(half.as_bytes()).unwrap();
        journal.write(vec![began(3)]).unwrap();
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

    fn began(lease: u64) -> Fact {
        Fact::Began {
            lease: LeaseId(lease),
            buyer: AccountKey([1; 32]),
            job: JobId([2; 32]),
            price: Price(40_000),
            deadline: Millis(9_000),
            at: Millis(1_000),
        }
    }

    fn closed(lease: u64, paid: u64) -> Fact {
        Fact::Closed {
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
        let ran = Fact::Ran {
            lease: LeaseId(1),
            usage,
            work: None,
        };
        journal
            .write(vec![began(1), ran.clone(), began(2)])
            .unwrap();
        let past = journal.history().past();
        assert_eq!(past, Past::fold([began(1), ran, began(2)]));
        journal.write(vec![closed(1, 30)]).unwrap();
        let past = journal.history().past();
        assert_eq!(past.leases[&LeaseId(1)].state, PastState::Closed);
        let again = Journal::open(home.path()).unwrap();
        assert_eq!(again.history(), journal.history());
        let history = History::read(home.path()).unwrap();
        let open: Vec<LeaseId> = history.open().map(|(lease, _)| lease).collect();
        assert_eq!(open, [LeaseId(2)]);
        assert_eq!((history.closed(), history.earned()), (1, Credits(30)));
        assert_eq!(history.leases[&LeaseId(1)].usage, Some(usage));
    }

    #[tokio::test]
    async fn what_is_said_to_be_put_down_is_on_the_disk_in_its_order() {
        let home = tempfile::tempdir().unwrap();
        let journal = Journal::open(home.path()).unwrap();
        let ((put, mut written), sums) = journal.start();
        for number in 1..=9 {
            let facts = vec![began(number), closed(number, 5)];
            put.send((Ticket(number), facts)).await.unwrap();
        }
        for number in 1..=9 {
            let Written { ticket, written } = written.recv().await.unwrap();
            assert_eq!((ticket, written), (Ticket(number), Ok(())));
            let history = History::read(home.path()).unwrap();
            assert!(history.leases.contains_key(&LeaseId(number)));
        }
        let all = Sums {
            open: 0,
            closed: 9,
            earned: Credits(45),
        };
        assert_eq!(*sums.borrow(), all);
    }

    #[test]
    fn a_torn_line_is_cut_off_and_a_wrong_one_is_named() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(JOURNAL_FILE);
        let whole = line(&began(1));
        std::fs::write(&path, whole.clone() + &line(&began(2))[..20]).unwrap();
        let mut journal = Journal::open(home.path()).unwrap();
        assert_eq!(journal.history().leases.len(), 1);
        journal.write(vec![began(3)]).unwrap();
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
        assert_eq!(journal.history().past().up_to, LeaseId(5));
        assert_eq!(&History::read(home.path()).unwrap(), journal.history());
    }
}
