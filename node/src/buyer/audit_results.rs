//! Stores the results of a buyer's audits of its providers (tests whether answers came from the
//! stated model): for each audit a small file with the result and one with the evidence, in a
//! folder that only its owner can read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use souk_folder::clock::unix_ms;
use souk_market::AccountKey;
use souk_memory::ContentId;

use super::transcripts::{
    TabTranscript, create_private_folder, list_files, read_bounded, remove_partial_files,
    write_private,
};

pub use souk_roles::tokens::audit::{AuditCore, AuditTally, TokenReading, Verdict};

/// The folder of the results, relative to the folder of the market.
pub const AUDITS_FOLDER: &str = "buyer/audits";

/// The folder of the evidence in it.
const EVIDENCE_FOLDER: &str = "evidence";

/// The formats of the files.
const RESULT_FORMAT: &str = "souk-audit-1";
const EVIDENCE_FORMAT: &str = "souk-audit-evidence-2";

/// The most results that are kept, but for the verdicts that hold: see [`latest_audits`].
const RESULTS_MAX: usize = 256;

/// The most bytes of a result.
const RESULT_BYTES_MAX: u64 = 1 << 20;
/// The most bytes of a file with evidence.
pub const EVIDENCE_BYTES_MAX: u64 = 1 << 30;

/// The result of one audit of a provider.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditResult {
    format: String,
    /// When it was made, in Unix milliseconds.
    pub at: u64,
    /// The model that was bought.
    pub model: String,
    /// The provider that sold it.
    pub provider: AccountKey,
    /// The hash of the reference: its weights, tokeniser and chat template.
    pub reference: ContentId,
    /// The noise that an honest engine may have, in logits.
    pub noise: f64,
    /// What it found.
    pub tally: AuditTally,
    /// The answers that were read.
    pub answers: u64,
    /// The answers that were not, by cause.
    pub unread: BTreeMap<String, u64>,
    /// The tabs whose answers the provider signed, and all tabs.
    pub signed_tabs: u64,
    /// All tabs.
    pub tabs: u64,
    /// Whether a server of this folder buys nothing more from a provider that does not fit.
    pub leaves: bool,
    /// The file with the evidence, relative to the folder of the market; none if it is in hand.
    pub evidence: Option<PathBuf>,
}

/// The evidence of an audit: the texts with their receipts, and how the reference read them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditEvidence {
    format: String,
    /// The result.
    pub result: AuditResult,
    /// The texts, with the receipts.
    pub tabs: Vec<TabTranscript>,
    /// What the reference read of each exchange of each tab; none of an exchange that it did not
    /// read.
    pub readings: Vec<Vec<Option<Vec<TokenReading>>>>,
}

impl AuditResult {
    /// Creates the result of an audit of a provider that sold a model, as of now.
    #[must_use]
    pub fn new(
        model: &str,
        provider: AccountKey,
        (reference, noise): (ContentId, f64),
        tally: AuditTally,
    ) -> AuditResult {
        AuditResult {
            format: RESULT_FORMAT.to_owned(),
            at: unix_ms(),
            model: model.to_owned(),
            provider,
            reference,
            noise,
            tally,
            answers: 0,
            unread: BTreeMap::new(),
            signed_tabs: 0,
            tabs: 0,
            leaves: true,
            evidence: None,
        }
    }

    /// Returns the name by which `souk audit forget` knows it: that of its file.
    #[must_use]
    pub fn id(&self) -> String {
        let provider = self.provider.to_string();
        let short = provider.get(..8).unwrap_or(&provider);
        format!("{:015}-{short}", self.at)
    }

    /// Returns the answers that were not read.
    #[must_use]
    pub fn unread_answers(&self) -> u64 {
        self.unread.values().sum()
    }
}

impl AuditEvidence {
    /// Joins a result and what it rests on.
    #[must_use]
    pub fn new(
        result: AuditResult,
        tabs: Vec<TabTranscript>,
        readings: Vec<Vec<Option<Vec<TokenReading>>>>,
    ) -> AuditEvidence {
        AuditEvidence {
            format: EVIDENCE_FORMAT.to_owned(),
            result,
            tabs,
            readings,
        }
    }

    /// Reads evidence; none if the bytes are none, or of another format.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<AuditEvidence> {
        let read: AuditEvidence = serde_json::from_slice(bytes).ok()?;
        let is_known = read.format == EVIDENCE_FORMAT && read.result.format == RESULT_FORMAT;
        is_known.then_some(read)
    }
}

/// Writes a result and its evidence to a market's folder, and removes the oldest ones beyond
/// `RESULTS_MAX`. Returns the result with the path of its evidence.
///
/// # Errors
/// When the files cannot be written.
pub fn save_audit(market: &Path, mut evidence: AuditEvidence) -> io::Result<AuditResult> {
    let folder = market.join(AUDITS_FOLDER);
    for folder in [&folder, &folder.join(EVIDENCE_FOLDER)] {
        create_private_folder(folder)?;
        remove_partial_files(folder)?;
    }
    let name = format!("{}.json", evidence.result.id());
    let path = Path::new(EVIDENCE_FOLDER).join(&name);
    evidence.result.evidence = None;
    let bytes = serde_json::to_vec(&evidence).map_err(io::Error::other)?;
    write_private(&folder.join(&path), &bytes)?;
    let result = AuditResult {
        evidence: Some(Path::new(AUDITS_FOLDER).join(path)),
        ..evidence.result
    };
    let bytes = serde_json::to_vec(&result).map_err(io::Error::other)?;
    write_private(&folder.join(&name), &bytes)?;
    remove_old(&folder)?;
    Ok(result)
}

/// Removes the oldest results beyond [`RESULTS_MAX`], but for the verdicts that hold.
fn remove_old(folder: &Path) -> io::Result<()> {
    let files = list_files(folder)?;
    let over = files.len().saturating_sub(RESULTS_MAX);
    if over == 0 {
        return Ok(());
    }
    let results = files.iter().filter_map(|path| read_result(path));
    let holding: BTreeSet<String> = latest_audits(results.collect())
        .values()
        .map(AuditResult::id)
        .collect();
    for old in &files[..over] {
        let stem = old.file_stem().unwrap_or_default().to_string_lossy();
        if !holding.contains(stem.as_ref()) {
            remove_result(folder, &stem)?;
        }
    }
    Ok(())
}

fn remove_result(folder: &Path, id: &str) -> io::Result<()> {
    let name = format!("{id}.json");
    fs::remove_file(folder.join(&name))?;
    // It can have been moved to somebody else.
    let _ = fs::remove_file(folder.join(EVIDENCE_FOLDER).join(name));
    Ok(())
}

/// Forgets the audit with an id, and its evidence. Returns whether there is one.
///
/// # Errors
/// When the folder cannot be read or changed.
pub fn forget_audit(market: &Path, id: &str) -> io::Result<bool> {
    let folder = market.join(AUDITS_FOLDER);
    let files = list_files(&folder)?;
    // Only names of the folder itself will do.
    let is_there = files
        .iter()
        .any(|path| path.file_stem() == Some(id.as_ref()));
    if is_there {
        remove_result(&folder, id)?;
    }
    Ok(is_there)
}

/// Returns the results that a market's folder has, the oldest first, and the number of files that
/// are none.
///
/// # Errors
/// When the folder cannot be read; a folder that is not there has none.
pub fn read_audits(market: &Path) -> io::Result<(Vec<AuditResult>, usize)> {
    let files = list_files(&market.join(AUDITS_FOLDER))?;
    let read: Vec<AuditResult> = files.iter().filter_map(|path| read_result(path)).collect();
    let damaged = files.len() - read.len();
    Ok((read, damaged))
}

fn read_result(path: &Path) -> Option<AuditResult> {
    let bytes = read_bounded(path, RESULT_BYTES_MAX)?;
    let read: AuditResult = serde_json::from_slice(&bytes).ok()?;
    (read.format == RESULT_FORMAT).then_some(read)
}

/// Returns the latest result of each provider of each model that says whether it fits, or how far
/// the audit came. A provider that was left stays so until it fits.
#[must_use]
pub fn latest_audits(results: Vec<AuditResult>) -> BTreeMap<(String, AccountKey), AuditResult> {
    let mut latest: BTreeMap<(String, AccountKey), AuditResult> = BTreeMap::new();
    for result in results {
        let key = (result.model.clone(), result.provider);
        let verdict = result.tally.verdict;
        let says_less = latest.get(&key).is_some_and(|before| {
            let was = before.tally.verdict;
            // A short audit does not clear a provider, nor does one that leaves nobody.
            verdict == Verdict::NotEnough && was != Verdict::NotEnough
                || verdict == was && before.leaves && !result.leaves
        });
        if !says_less {
            latest.insert(key, result);
        }
    }
    latest
}

/// Returns the providers whose answers were not those of a model, by the latest audits of a
/// market's folder that leave them, as pairs of model and provider. Also returns the number of
/// files that are no results.
///
/// # Errors
/// When the folder cannot be read.
pub fn read_distrusted(market: &Path) -> io::Result<(BTreeSet<(String, AccountKey)>, usize)> {
    let (results, damaged) = read_audits(market)?;
    let latest = latest_audits(results).into_iter();
    let is_left =
        |result: &AuditResult| result.leaves && result.tally.verdict == Verdict::DoesNotFit;
    let left = latest.filter(|(_, result)| is_left(result));
    Ok((left.map(|(key, _)| key).collect(), damaged))
}

#[cfg(test)]
mod tests;
