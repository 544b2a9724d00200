//! What a buyer's audits of its providers found: a small file for each audit, and one with the
//! evidence, in a folder that only its owner can read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use souk_folder::clock::unix_ms;
use souk_market::AccountKey;
use souk_memory::ContentId;

use super::transcripts::{TabTranscript, create_private_folder, list_files, write_private};

pub use souk_roles::tokens::audit::{AuditCore, AuditTally, TokenReading, Verdict};

/// The folder of the results, relative to the folder of the market.
pub const AUDITS_FOLDER: &str = "buyer/audits";

/// The folder of the evidence in it.
const EVIDENCE_FOLDER: &str = "evidence";

/// The formats of the files.
const RESULT_FORMAT: &str = "souk-audit-1";
const EVIDENCE_FORMAT: &str = "souk-audit-evidence-1";

/// The most results that are kept.
const RESULTS_MAX: usize = 256;

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
    /// The file with the evidence, relative to the folder of the market; none if it is in hand.
    pub evidence: Option<PathBuf>,
}

/// What an audit rests on.
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
            evidence: None,
        }
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
/// [`RESULTS_MAX`]. Returns the result with the path of its evidence.
///
/// # Errors
/// When the files cannot be written.
pub fn save_audit(market: &Path, mut evidence: AuditEvidence) -> io::Result<AuditResult> {
    let folder = market.join(AUDITS_FOLDER);
    create_private_folder(&folder.join(EVIDENCE_FOLDER))?;
    let result = &evidence.result;
    let provider = result.provider.to_string();
    let short = provider.get(..8).unwrap_or(&provider);
    let name = format!("{:015}-{short}.json", result.at);
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
    let files = list_files(&folder)?;
    for old in &files[..files.len().saturating_sub(RESULTS_MAX)] {
        let name = old.file_name().unwrap_or_default();
        fs::remove_file(old)?;
        // It can have been moved to somebody else.
        let _ = fs::remove_file(folder.join(EVIDENCE_FOLDER).join(name));
    }
    Ok(result)
}

/// Returns the results that a market's folder has, the oldest first. Files that are none are left
/// out.
///
/// # Errors
/// When the folder cannot be read; a folder that is not there has none.
pub fn read_audits(market: &Path) -> io::Result<Vec<AuditResult>> {
    let files = list_files(&market.join(AUDITS_FOLDER))?;
    let read = files.iter().filter_map(|path| {
        let read: AuditResult = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        (read.format == RESULT_FORMAT).then_some(read)
    });
    Ok(read.collect())
}

/// Returns the latest result of each provider of each model that says whether it fits, or how far
/// the audit came.
#[must_use]
pub fn latest_audits(results: Vec<AuditResult>) -> BTreeMap<(String, AccountKey), AuditResult> {
    let mut latest: BTreeMap<(String, AccountKey), AuditResult> = BTreeMap::new();
    for result in results {
        let key = (result.model.clone(), result.provider);
        let before = latest.get(&key).map(|before| before.tally.verdict);
        // A short audit does not clear a provider.
        let says_less = result.tally.verdict == Verdict::NotEnough && before.is_some();
        if !(says_less && before != Some(Verdict::NotEnough)) {
            latest.insert(key, result);
        }
    }
    latest
}

/// Returns the providers whose answers were not those of a model, by the latest audits of a
/// market's folder, as pairs of model and provider.
///
/// # Errors
/// When the folder cannot be read.
pub fn read_distrusted(market: &Path) -> io::Result<BTreeSet<(String, AccountKey)>> {
    let latest = latest_audits(read_audits(market)?).into_iter();
    let is_cheat = |result: &AuditResult| result.tally.verdict == Verdict::DoesNotFit;
    let cheats = latest.filter(|(_, result)| is_cheat(result));
    Ok(cheats.map(|(key, _)| key).collect())
}

#[cfg(test)]
mod tests;
