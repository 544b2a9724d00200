//! Records, in a journal next to the operator's key, the payments that an operator asks its program
//! to make, and the program's answers. `souk operator decide` must write to it before it starts the
//! program and after the program answers.
//!
//! A withdrawal must not be paid twice. So the operator asks the program again only after the
//! answer that nothing is paid yet. If an earlier question has no answer, because of a crash, the
//! operator leaves the decision to a person.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use souk_node::market::{MarketId, RequestId};

/// Name of the journal, in the folder of the operator's key.
const FILE: &str = "payouts.jsonl";

/// The state of one payment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub(super) enum Payout {
    /// The program was started, and its answer is not known.
    Asked,
    /// The program answered that it has paid nothing yet.
    Waits,
    /// The program answered that it has paid.
    Paid,
    /// The program answered that it will not pay.
    Refused {
        /// The program's reason.
        reason: String,
    },
}

/// A line of the journal.
#[derive(Serialize, Deserialize)]
struct JournalLine {
    payment: String,
    #[serde(flatten)]
    payout: Payout,
}

/// All payments that began with one operator's key.
pub(super) struct Payouts {
    file: PathBuf,
    known: BTreeMap<String, Payout>,
}

impl Payouts {
    /// Reads the journal in the folder of a key. It drops an incomplete last line, on which the
    /// operator cannot have acted.
    pub(super) fn open_journal(key_file: &Path) -> io::Result<Payouts> {
        let file = key_file.with_file_name(FILE);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        if !text.is_empty() && !text.ends_with('\n') {
            let length = if whole.is_empty() { 0 } else { whole.len() + 1 };
            OpenOptions::new()
                .write(true)
                .open(&file)?
                .set_len(length as u64)?;
        }
        let lines = whole.lines().map(serde_json::from_str::<JournalLine>);
        let lines: Result<Vec<JournalLine>, _> = lines.collect();
        let known = lines?.into_iter().map(|line| (line.payment, line.payout));
        let known = known.collect();
        Ok(Payouts { file, known })
    }

    /// Returns the state of a payment, if it began.
    pub(super) fn find_payout(&self, payment: &str) -> Option<&Payout> {
        self.known.get(payment)
    }

    /// Writes the state of a payment, which is on disk when this returns.
    pub(super) fn record_payout(&mut self, payment: &str, payout: Payout) -> io::Result<()> {
        let line = JournalLine {
            payment: payment.to_owned(),
            payout: payout.clone(),
        };
        let mut text = serde_json::to_string(&line)?;
        text.push('\n');
        let mut options = OpenOptions::new();
        let mut file: File = options
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.file)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        self.known.insert(payment.to_owned(), payout);
        Ok(())
    }
}

/// Returns the id of a payment, unique among all markets and for ever: a program that sees the same
/// id twice must pay once.
pub(super) fn payment_id(market: MarketId, request: RequestId) -> String {
    format!("{market}-{request}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_says_after_a_crash_what_was_put_down() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        let mut payouts = Payouts::open_journal(&key).unwrap();
        assert_eq!(payouts.find_payout("a-1"), None);
        payouts.record_payout("a-1", Payout::Asked).unwrap();
        payouts.record_payout("a-2", Payout::Asked).unwrap();
        payouts.record_payout("a-2", Payout::Paid).unwrap();
        let file = folder.path().join(FILE);
        let mut text = fs::read_to_string(&file).unwrap();
        text.push_str("{\"payment\":\"a-3\",\"is\":\"as");
        fs::write(&file, text).unwrap();
        let mut again = Payouts::open_journal(&key).unwrap();
        assert_eq!(again.find_payout("a-1"), Some(&Payout::Asked));
        assert_eq!(again.find_payout("a-2"), Some(&Payout::Paid));
        assert_eq!(again.find_payout("a-3"), None);
        let reason = "closed".to_owned();
        again
            .record_payout(
                "a-1",
                Payout::Refused {
                    reason: reason.clone(),
                },
            )
            .unwrap();
        let last = Payouts::open_journal(&key).unwrap();
        assert_eq!(last.find_payout("a-1"), Some(&Payout::Refused { reason }));
    }
}
