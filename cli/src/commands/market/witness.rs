//! `souk market witness`: follows a market's history with its genesis as the only trusted input,
//! and signs each certified head that continues the ones signed before. Somebody new to the market
//! can then tell whether validators show him the history that they showed the witness.
//!
//! The folder holds the witness' key and, in a file of its own, the last head that it signed. That
//! head is on the disk before the signature is published, so a witness whose machine fails never
//! signs another history. For the same reason it does not start without that file.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use souk_api::time::format_rfc3339;
use souk_folder::clock::unix_ms;
use souk_folder::durable_file::write_durably;
use souk_folder::key::NodeKey;
use souk_folder::market_file::MarketFile;
use souk_node::client::broker::Broker;
use souk_node::client::history::{TreeNote, WitnessKey, WitnessedNote};
use souk_node::client::reach;
use souk_node::market::{AccountKey, Genesis};

use super::look::{HistoryLook, Relation};
use super::verify::{Report, check_progress};
use crate::args::{Output, WitnessArgs};
use crate::commands::key::from_key;
use crate::commands::roster;
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{from_config, from_reach};
use crate::show::{format_count, print_json, print_line, print_notice};

/// The file with the witness' secret key.
const KEY_FILE: &str = "witness.key";

/// The file with the last head that the witness signed, from which it goes on.
const SIGNED_FILE: &str = "witness.signed";

/// The content of that file before the first head.
const NOTHING_SIGNED: &str = "nothing is signed yet\n";

/// The copy of that file to publish.
const CHECKPOINT_FILE: &str = "witness.checkpoint";

/// A witness of one market.
struct Witness<'a> {
    folder: &'a Path,
    genesis: &'a Genesis,
    broker: Broker,
    key: NodeKey,
    witness: WitnessKey,
    /// Excludes another witness with the same key.
    _lock: File,
    last: Option<TreeNote>,
}

/// Why a round signed nothing.
struct RoundFault {
    failure: Failure,
    /// Whether the witness must end: validators contradict each other or what it signed, or its
    /// folder does not hold what it signs.
    is_final: bool,
}

impl From<Failure> for RoundFault {
    fn from(failure: Failure) -> Self {
        let is_final = false;
        Self { failure, is_final }
    }
}

/// Follows and signs the history of a market, as the module describes.
pub async fn witness_history(folder: &Path, output: Output, args: &WitnessArgs) -> Outcome {
    let market = MarketFile::read_nearest(folder).map_err(from_config)?;
    let market = market.with_known(folder);
    let (key, lock) = open_key(folder)?;
    let witness = WitnessKey::from_account(AccountKey(key.public_key()));
    let last = read_last(folder, &market.genesis, &witness)?;
    if let Some(signed) = &last {
        publish(folder, signed)?;
    }
    if output == Output::Text {
        print_line(&format!("witness     {witness}"));
    }
    let (broker, _) = reach::connect_read_only(&market)
        .await
        .map_err(from_reach)?;
    let mut witness = Witness {
        folder,
        genesis: &market.genesis,
        broker,
        key,
        witness,
        _lock: lock,
        last: last.map(|signed| signed.note),
    };
    loop {
        match witness.sign_newest().await {
            Ok(Some(signed)) => witness.print(output, Some(&signed)),
            Ok(None) if args.once => witness.print(output, None),
            Ok(None) => {}
            Err(RoundFault { failure, is_final }) if is_final || args.once => return Err(failure),
            Err(RoundFault { failure, .. }) => {
                print_notice(&format!("note: nothing is signed: {}", failure.cause));
            }
        }
        if args.once {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(args.pause.into())).await;
    }
}

/// Reads the key, or makes one, and locks it for this process.
fn open_key(folder: &Path) -> Result<(NodeKey, File), Failure> {
    let [key_path, signed_path] = [KEY_FILE, SIGNED_FILE].map(|name| folder.join(name));
    let state = std::fs::read(&signed_path).ok();
    let has_signed = state.is_some_and(|bytes| bytes != NOTHING_SIGNED.as_bytes());
    if !key_path.exists() && has_signed {
        let cause = format!(
            "{}, the key that signed {SIGNED_FILE}, is missing",
            key_path.display()
        );
        let hint = format!("restore the key, or remove {SIGNED_FILE} to begin as a new witness");
        return Err(Failure::new(Kind::State, cause, hint));
    }
    if !key_path.exists() {
        write_file(&signed_path, NOTHING_SIGNED)?;
    }
    let key = NodeKey::load_or_create(&key_path).map_err(from_key)?;
    let busy = |cause: String| {
        let cause = format!("cannot lock {}: {cause}", key_path.display());
        Failure::new(Kind::State, cause, "stop the other witness of this folder")
    };
    let lock = File::open(&key_path).map_err(|error| busy(error.to_string()))?;
    lock.try_lock().map_err(|error| busy(error.to_string()))?;
    Ok((key, lock))
}

/// Reads the head that the witness signed last; none if it has signed nothing.
fn read_last(
    folder: &Path,
    genesis: &Genesis,
    witness: &WitnessKey,
) -> Result<Option<WitnessedNote>, Failure> {
    let path = folder.join(SIGNED_FILE);
    let damaged = |cause: String| {
        let cause = format!(
            "{}, the last head that this witness signed: {cause}",
            path.display()
        );
        let hint = format!(
            "restore it from {CHECKPOINT_FILE} if that is the newest; to begin as a new witness, \
             remove both and {KEY_FILE}"
        );
        Failure::new(Kind::Verification, cause, hint)
    };
    let bytes = std::fs::read(&path).map_err(|error| damaged(error.to_string()))?;
    if bytes == NOTHING_SIGNED.as_bytes() {
        return Ok(None);
    }
    let signed = WitnessedNote::decode(&bytes, witness).map_err(|it| damaged(it.to_string()))?;
    if signed.note.market != genesis.market_id() {
        return Err(damaged("it is of another market".to_owned()));
    }
    Ok(Some(signed))
}

fn publish(folder: &Path, signed: &WitnessedNote) -> Outcome {
    write_file(&folder.join(CHECKPOINT_FILE), &signed.encode())
}

fn write_file(path: &Path, text: &str) -> Outcome {
    write_durably(path, text.as_bytes()).map_err(|error| {
        let cause = format!("cannot write {}: {error}", path.display());
        let hint = "give a folder that you can write with --dir, on a disk that has room";
        Failure::new(Kind::State, cause, hint)
    })
}

impl Witness<'_> {
    /// Signs the newest certified head. Returns none if it is the one that was signed last.
    async fn sign_newest(&mut self) -> Result<Option<WitnessedNote>, RoundFault> {
        let known = self.last.clone().into_iter().collect();
        let mut look = HistoryLook::take(&self.broker, self.genesis, known).await;
        self.check_look(&look)?;
        check_progress(&look.history)?;
        roster::keep_orders(self.folder, &look.history.orders)?;
        let Some(certified) = look.history.check.find_certified().cloned() else {
            unreachable!("a look without a certified head fails");
        };
        if let Some(last) = &self.last {
            let sizes = (last.head.size, certified.head().size);
            if sizes.0 == sizes.1 && !last.head.contradicts(&certified.head()) {
                return Ok(None);
            }
            self.check_last(&mut look, last, sizes.1).await?;
        }
        let note = certified.note;
        let signed = WitnessedNote::sign(note, self.key.signing_key(), unix_ms() / 1_000);
        // After a failed write nobody knows which head the disk holds.
        let written = write_file(&self.folder.join(SIGNED_FILE), &signed.encode());
        written.map_err(|failure| RoundFault {
            failure,
            is_final: true,
        })?;
        self.last = Some(signed.note.clone());
        publish(self.folder, &signed)?;
        Ok(Some(signed))
    }

    /// Fails if validators contradict each other, whose heads it saves as evidence, or if nothing
    /// is certified.
    fn check_look(&self, look: &HistoryLook<'_>) -> Result<(), RoundFault> {
        let report = Report {
            genesis: self.genesis,
            check: &look.history.check,
            answers: Some(&look.history),
            counted: None,
            proofs: &look.proofs,
            witnessed: &[],
        };
        let is_final = !report.check.forks.is_empty() || report.contradictions().next().is_some();
        let saved = report.save_evidence(self.folder);
        let judged = saved.and_then(|evidence| report.judge(&evidence));
        judged.map_err(|failure| RoundFault { failure, is_final })
    }

    /// Fails unless the certified head, of `size` steps, continues the one that was signed last.
    async fn check_last(
        &self,
        look: &mut HistoryLook<'_>,
        last: &TreeNote,
        size: u64,
    ) -> Result<(), RoundFault> {
        let signed = last.head.size;
        let relation = match size < signed {
            true => Relation::Unproven,
            false => look.relate_head(last).await,
        };
        let what = match relation {
            Relation::OneHistory => return Ok(()),
            Relation::Contradicts => "does not continue",
            Relation::Unproven => "is not shown to continue",
        };
        let cause = format!(
            "the certified history of {size} steps {what} the {signed} steps that this witness \
             signed"
        );
        let hint = "try again; if it stays so, show the operators the witness' checkpoint";
        Err(RoundFault {
            failure: Failure::new(Kind::Verification, cause, hint),
            is_final: relation == Relation::Contradicts,
        })
    }

    fn print(&self, output: Output, signed: Option<&WitnessedNote>) {
        let size = self.last.as_ref().map_or(0, |last| last.head.size);
        let path = self.folder.join(CHECKPOINT_FILE);
        match (output, signed) {
            (Output::Json, _) => print_json(&json!({
                "witness": self.witness.name(),
                "key": self.witness.to_string(),
                "checkpoint": path,
                "size": size,
                "signed_at": signed.map(|it| format_rfc3339(it.time_s.saturating_mul(1_000))),
            })),
            (Output::Text, Some(_)) => print_line(&format!(
                "signed      {} of the history: {}",
                format_count(size, "step"),
                path.display()
            )),
            (Output::Text, None) => {}
        }
    }
}
