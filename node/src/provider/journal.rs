//! Stores a provider's journal: the leases that it began, their usage, and their payments. From it,
//! the provider continues after a crash.
//!
//! A fact must be durable before the action that it announces: a lease is in the journal before its
//! work begins, so that after a crash the provider can settle it or give it back, and never runs it
//! twice. If the journal and the market disagree, the market is right: the journal only says which
//! leases to ask the market about.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use souk_folder::fact_writer::FactWriter;
use souk_folder::facts::{FactLog, FactLogError};
use souk_market::{AccountKey, CloseReason, Credits, DeviceMicros, JobId, LeaseId, Millis, Price};
use souk_roles::effect::Ticket;
pub use souk_roles::provider::EarlierLeases;
use souk_roles::provider::{Fact, Past, PastLease, PastState};
use tokio::sync::watch;

/// The journal's file in a provider's folder.
const JOURNAL_FILE: &str = "journal.jsonl";

/// The version of the format of the journal's lines.
pub const JOURNAL_FORMAT: &str = "provider-facts-2";

/// How many of the newest closed leases stay listed one by one. At a start, and whenever there are
/// twice as many, the journal adds older ones to the sums.
const CLOSED_KEPT: usize = 10_000;

/// A lease in the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The account that bought it.
    pub buyer: AccountKey,
    /// The job of the buyer that it is for.
    pub job: JobId,
    /// The price per device-second.
    pub price: Price,
    /// The latest end of the lease.
    pub deadline: Millis,
    /// When the work began.
    pub began: Millis,
    /// The device time that it used: of the answers so far for a tab, otherwise once it was done.
    pub usage: Option<DeviceMicros>,
    /// The end of the lease, if it has ended.
    pub closed: Option<Closing>,
}

/// The end of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closing {
    /// The payment; none if the market has forgotten it.
    pub paid: Option<Credits>,
    /// Why the market closed it.
    pub reason: Option<CloseReason>,
    /// When the provider found it closed.
    pub at: Millis,
}

/// The leases that a journal records.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct History {
    /// Leases that are still listed one by one, by id.
    pub leases: BTreeMap<LeaseId, Entry>,
    /// The sums of older leases.
    pub before: EarlierLeases,
    /// The facts of leases that are not closed.
    #[serde(skip)]
    open: BTreeMap<LeaseId, Vec<Fact>>,
}

/// The result of a write: success if the facts are durable, otherwise the reason why they may not
/// be.
pub(super) type WriteResult = Result<(), String>;

/// The handle with which the shell submits facts and learns when they are durable.
pub(super) type JournalWriter = FactWriter<Ticket, Vec<Fact>, WriteResult>;

/// The counts of a provider's leases, and their payments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sums {
    /// Leases that the market has not closed.
    pub(super) open: usize,
    /// Leases that it has closed.
    pub(super) closed: u64,
    /// The payments for all of them.
    pub(super) earned: Credits,
}

/// An open journal.
#[derive(Debug)]
pub(super) struct Journal {
    log: FactLog,
    history: History,
}

impl History {
    /// Reads the journal of a provider's folder; returns an empty one if there is none.
    ///
    /// # Errors
    /// If the file cannot be read or is not a journal.
    pub fn read(home: &Path) -> Result<History, FactLogError> {
        match FactLog::read(&home.join(JOURNAL_FILE), JOURNAL_FORMAT) {
            Ok(facts) => Ok(History::from_facts(facts)),
            Err(FactLogError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(History::default())
            }
            Err(error) => Err(error),
        }
    }

    fn from_facts(facts: Vec<Fact>) -> History {
        let mut history = History::default();
        facts.into_iter().for_each(|fact| history.apply_fact(fact));
        history
    }

    /// Returns the leases that the provider has not seen closed.
    pub fn open_leases(&self) -> impl Iterator<Item = (LeaseId, &Entry)> {
        let open = self
            .leases
            .iter()
            .filter(|(_, entry)| entry.closed.is_none());
        open.map(|(lease, entry)| (*lease, entry))
    }

    /// Returns the number of closed leases.
    pub fn closed_count(&self) -> u64 {
        let closed = self.leases.values().filter(|entry| entry.closed.is_some());
        self.before.leases + closed.count() as u64
    }

    /// Returns the sum of all payments.
    pub fn total_earned(&self) -> Credits {
        let paid = self.leases.values().filter_map(|entry| entry.closed?.paid);
        let sum = paid.fold(self.before.paid.0, |sum, paid| sum.saturating_add(paid.0));
        Credits(sum)
    }

    fn apply_fact(&mut self, fact: Fact) {
        let of = match &fact {
            Fact::Before(before) => {
                self.before = *before;
                return;
            }
            Fact::Signed { receipt } => receipt.body.lease,
            Fact::Began { lease, .. }
            | Fact::Answered { lease, .. }
            | Fact::Ran { lease, .. }
            | Fact::Closed { lease, .. } => *lease,
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
            Fact::Answered { lease, usage } | Fact::Ran { lease, usage, .. } => {
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
        let open = self.open.entry(of).or_default();
        // Each answer states the sum, so only the last one is kept.
        open.retain(|fact| !matches!(fact, Fact::Answered { .. }));
        open.push(fact);
    }

    /// Returns the state of each lease, as a restarted provider must know it.
    pub(super) fn fold_past(&self) -> Past {
        let mut past = Past::from_facts(self.open.values().flatten().cloned());
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

    /// Returns the numbers of open and closed leases, and the sum of all payments.
    fn lease_sums(&self) -> Sums {
        Sums {
            open: self.open_leases().count(),
            closed: self.closed_count(),
            earned: self.total_earned(),
        }
    }

    /// Adds the oldest leases to the sums if there are too many, up to the first open one. Returns
    /// whether there were any.
    fn compact_oldest(&mut self) -> bool {
        let before = self.before;
        while self.leases.len() > CLOSED_KEPT {
            let Some(first) = self.leases.first_entry() else {
                break;
            };
            let Some(closing) = first.get().closed else {
                break;
            };
            let paid = closing.paid.unwrap_or_default();
            self.before = EarlierLeases {
                leases: self.before.leases + 1,
                paid: Credits(self.before.paid.0.saturating_add(paid.0)),
                up_to: *first.key(),
            };
            first.remove();
        }
        self.before != before
    }

    /// Returns facts that result in the same history.
    fn to_facts(&self) -> Vec<Fact> {
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
    /// Opens the journal of a folder and sums up old leases.
    pub(super) fn open_folder(home: &Path) -> Result<Journal, FactLogError> {
        let (mut log, facts) = FactLog::open_log(&home.join(JOURNAL_FILE), JOURNAL_FORMAT)?;
        let mut history = History::from_facts(facts);
        if history.compact_oldest() {
            log.replace_facts(&history.to_facts())?;
        }
        Ok(Journal { log, history })
    }

    /// Writes facts; they are durable when this returns.
    fn write(&mut self, facts: Vec<Fact>) -> Result<(), FactLogError> {
        self.log.append_facts(&facts)?;
        facts
            .into_iter()
            .for_each(|fact| self.history.apply_fact(fact));
        if self.history.leases.len() > 2 * CLOSED_KEPT
            && self.history.compact_oldest()
            && let Err(error) = self.log.replace_facts(&self.history.to_facts())
        {
            // The longer file has the same history.
            tracing::warn!(%error, "the journal's file was not shortened");
        }
        Ok(())
    }

    pub(super) fn history(&self) -> &History {
        &self.history
    }

    /// Starts a thread that writes everything that waits with one sync. It ends when its handle is
    /// dropped.
    pub(super) fn start_writer(mut self) -> (JournalWriter, watch::Receiver<Sums>) {
        let (sums, sums_receiver) = watch::channel(self.history.lease_sums());
        let writer = FactWriter::start_thread(move |waiting: Vec<(Ticket, Vec<Fact>)>| {
            let (tickets, facts): (Vec<Ticket>, Vec<Vec<Fact>>) = waiting.into_iter().unzip();
            let done = self.write(facts.concat());
            let written = done.map_err(|error| error.to_string());
            sums.send_replace(self.history.lease_sums());
            let answer = |ticket| (ticket, written.clone());
            tickets.into_iter().map(answer).collect()
        });
        (writer, sums_receiver)
    }
}

#[cfg(test)]
mod tests {
    use souk_folder::facts::format_lines;

    use super::*;

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
        let mut journal = Journal::open_folder(home.path()).unwrap();
        let usage = DeviceMicros(7);
        let ran = Fact::Ran {
            lease: LeaseId(1),
            usage,
            work: None,
        };
        journal
            .write(vec![began(1), ran.clone(), began(2)])
            .unwrap();
        let past = journal.history().fold_past();
        assert_eq!(past, Past::from_facts([began(1), ran, began(2)]));
        journal.write(vec![closed(1, 30)]).unwrap();
        let past = journal.history().fold_past();
        assert_eq!(past.leases[&LeaseId(1)].state, PastState::Closed);
        let history = journal.history().clone();
        drop(journal);
        assert_eq!(
            Journal::open_folder(home.path()).unwrap().history(),
            &history
        );
        let history = History::read(home.path()).unwrap();
        let open: Vec<LeaseId> = history.open_leases().map(|(lease, _)| lease).collect();
        assert_eq!(open, [LeaseId(2)]);
        assert_eq!(
            (history.closed_count(), history.total_earned()),
            (1, Credits(30))
        );
        assert_eq!(history.leases[&LeaseId(1)].usage, Some(usage));
    }

    #[test]
    fn of_the_answers_of_a_tab_the_last_is_kept() {
        let home = tempfile::tempdir().unwrap();
        let mut journal = Journal::open_folder(home.path()).unwrap();
        let answered = |usage| Fact::Answered {
            lease: LeaseId(1),
            usage: DeviceMicros(usage),
        };
        let facts = vec![began(1), answered(4), answered(9)];
        journal.write(facts.clone()).unwrap();
        assert_eq!(journal.history().fold_past(), Past::from_facts(facts));
        assert_eq!(journal.history().open[&LeaseId(1)].len(), 2);
        let usage = journal.history().leases[&LeaseId(1)].usage;
        assert_eq!(usage, Some(DeviceMicros(9)));
    }

    #[tokio::test]
    async fn what_is_said_to_be_put_down_is_on_the_disk_in_its_order() {
        let home = tempfile::tempdir().unwrap();
        let journal = Journal::open_folder(home.path()).unwrap();
        let (mut writer, sums) = journal.start_writer();
        for number in 1..=9 {
            let facts = vec![began(number), closed(number, 5)];
            writer.submit_write(Ticket(number), facts).unwrap();
        }
        for number in 1..=9 {
            assert_eq!(writer.next_answer().await, (Ticket(number), Ok(Ok(()))));
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
    fn a_journal_of_an_older_souk_is_refused_by_name() {
        let home = tempfile::tempdir().unwrap();
        let line = serde_json::to_string(&began(1)).unwrap() + "\n";
        std::fs::write(home.path().join(JOURNAL_FILE), line).unwrap();
        let refused = Journal::open_folder(home.path()).unwrap_err();
        assert!(matches!(refused, FactLogError::Format { found: None, .. }));
    }

    #[test]
    fn old_leases_are_summed_up_and_not_begun_again() {
        let home = tempfile::tempdir().unwrap();
        let leases = 1..=CLOSED_KEPT as u64 + 5;
        let facts = leases.flat_map(|lease| [began(lease), closed(lease, 2)]);
        let text = format_lines(JOURNAL_FORMAT, 1, &facts.collect::<Vec<Fact>>());
        std::fs::write(home.path().join(JOURNAL_FILE), text).unwrap();
        let before = History::read(home.path()).unwrap();
        let journal = Journal::open_folder(home.path()).unwrap();
        assert_eq!(journal.history().leases.len(), CLOSED_KEPT);
        assert_eq!(journal.history().total_earned(), before.total_earned());
        assert_eq!(journal.history().closed_count(), before.closed_count());
        assert_eq!(journal.history().fold_past().up_to, LeaseId(5));
        assert_eq!(&History::read(home.path()).unwrap(), journal.history());
    }

    #[test]
    fn a_journal_is_shortened_while_it_is_open() {
        let home = tempfile::tempdir().unwrap();
        let mut journal = Journal::open_folder(home.path()).unwrap();
        let count = 2 * CLOSED_KEPT as u64;
        let leases = (1..=count).flat_map(|lease| [began(lease), closed(lease, 2)]);
        journal.write(leases.collect()).unwrap();
        assert_eq!(journal.history().leases.len(), 2 * CLOSED_KEPT);
        journal.write(vec![began(count + 1)]).unwrap();
        assert_eq!(journal.history().leases.len(), CLOSED_KEPT);
        assert_eq!(journal.history().closed_count(), count);
        assert_eq!(journal.history().total_earned(), Credits(2 * count));
        assert_eq!(&History::read(home.path()).unwrap(), journal.history());
        journal.write(vec![closed(count + 1, 2)]).unwrap();
        assert_eq!(&History::read(home.path()).unwrap(), journal.history());
    }
}
