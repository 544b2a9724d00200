//! Keeps what a buyer's tabs said, if it wants to audit its providers later: a file for each tab,
//! in a folder that only its owner can read, the newest so many.
//!
//! A transcript has the tab's receipt, which both sides signed. The receipt names the answers by
//! their hash, and not the requests.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use souk_folder::clock::unix_ms;
use souk_market::{AccountKey, LeaseId, Receipt, ReceiptFault};
use souk_memory::{ContentId, Tensor};
use souk_roles::lease::transcript;
use souk_roles::tokens::card::TextCard;
use souk_roles::tokens::text::{TextAnswer, TextRequest};

/// The folder of the transcripts, relative to the folder of the market.
pub const TRANSCRIPTS_FOLDER: &str = "buyer/transcripts";

/// The format of a file.
const TRANSCRIPT_FORMAT: &str = "souk-transcript-1";

/// The most exchanges of one tab that are kept, and the most bytes of their texts: later ones of
/// the tab are left out.
const EXCHANGES_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 4 << 20;

/// The most bytes of a file: JSON can take six for one.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// A request and its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextExchange {
    /// When the request was sent, in Unix seconds.
    pub at: u64,
    /// The request.
    pub request: TextRequest,
    /// The answer.
    pub answer: TextAnswer,
}

/// The texts of one tab.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TabTranscript {
    format: String,
    /// The model that was bought.
    pub model: String,
    /// The provider that sold it.
    pub provider: AccountKey,
    /// The lease, if it is known.
    pub lease: Option<LeaseId>,
    /// The exchanges, the first one first.
    pub exchanges: Vec<TextExchange>,
    /// The hashes of all answers of the tab, which those of the exchanges are among.
    pub answers: Vec<ContentId>,
    /// The receipt, if the tab has one.
    pub receipt: Option<Box<Receipt>>,
}

/// Why a receipt does not prove that a provider gave the answers of a transcript.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsignedText {
    /// The tab has no receipt.
    #[error("the tab has no receipt")]
    NoReceipt,
    /// The receipt is not valid.
    #[error("the receipt is not valid: {0}")]
    Receipt(#[from] ReceiptFault),
    /// The receipt is of another provider or model.
    #[error("the receipt is of another provider or model")]
    Other,
    /// The receipt names other answers.
    #[error("the receipt names other answers")]
    Answers,
}

/// What a tab has said so far, if it is to be kept.
#[derive(Clone, Debug, Default)]
pub(super) struct TabLog(Arc<Mutex<LoggedTab>>);

#[derive(Debug, Default)]
struct LoggedTab {
    lease: Option<LeaseId>,
    exchanges: Vec<TextExchange>,
    answers: Vec<ContentId>,
    bytes: usize,
}

/// The folder of a buyer's transcripts.
#[derive(Clone, Debug)]
pub struct TranscriptFolder {
    path: PathBuf,
    most: usize,
}

impl TabTranscript {
    /// Checks whether the receipt proves that the provider gave the answers under the model's name:
    /// its signature, the card, and the hash of all answers.
    ///
    /// # Errors
    /// Why it does not.
    pub fn check_signed(&self) -> Result<(), UnsignedText> {
        let receipt = self.receipt.as_ref().ok_or(UnsignedText::NoReceipt)?;
        receipt.verify()?;
        let card = TextCard::new(&self.model).map_err(|_| UnsignedText::Other)?;
        let body = &receipt.body;
        if body.provider != self.provider || body.graph.0 != *card.id().as_bytes() {
            return Err(UnsignedText::Other);
        }
        let named = body.outputs.iter().map(|id| ContentId::from_bytes(id.0));
        let is_of_all = named.eq(transcript(&self.answers));
        let is_among = |it: &TextExchange| self.answers.contains(&hash_answer(&it.answer));
        match is_of_all && self.exchanges.iter().all(is_among) {
            true => Ok(()),
            false => Err(UnsignedText::Answers),
        }
    }
}

/// Returns the hash by which the provider named an answer.
fn hash_answer(answer: &TextAnswer) -> ContentId {
    let bytes = answer.to_bytes();
    let tensor = Tensor::from_vec(vec![bytes.len()], bytes);
    tensor.expect("its length is its shape").id()
}

impl TabLog {
    pub(super) fn on_bought(&self, lease: LeaseId) {
        self.lock().lease = Some(lease);
    }

    pub(super) fn on_answer(&self, id: ContentId) {
        self.lock().answers.push(id);
    }

    /// Notes a whole answer that was counted.
    pub(super) fn on_delivered(&self, at: u64, request: &TextRequest, answer: &TextAnswer) {
        let mut log = self.lock();
        let asked = request.messages.iter().map(|it| it.content.len());
        let bytes = asked.sum::<usize>() + answer.text.byte_length();
        let has_room = log.exchanges.len() < EXCHANGES_MAX
            && log.bytes.saturating_add(bytes) <= TEXT_BYTES_MAX;
        if has_room && !answer.text.is_empty() {
            log.bytes += bytes;
            log.exchanges.push(TextExchange {
                at,
                request: request.clone(),
                answer: answer.clone(),
            });
        }
    }

    /// Takes the transcript of the tab that ended; none if it has no text.
    pub(super) fn take_transcript(
        &self,
        model: &str,
        provider: AccountKey,
        receipt: Option<Box<Receipt>>,
    ) -> Option<TabTranscript> {
        let log = std::mem::take(&mut *self.lock());
        (!log.exchanges.is_empty()).then(|| TabTranscript {
            format: TRANSCRIPT_FORMAT.to_owned(),
            model: model.to_owned(),
            provider,
            lease: log.lease,
            exchanges: log.exchanges,
            answers: log.answers,
            receipt,
        })
    }

    fn lock(&self) -> MutexGuard<'_, LoggedTab> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TranscriptFolder {
    /// Opens the transcripts of a market's folder, and keeps the newest so many from now on.
    ///
    /// # Errors
    /// When the folder cannot be created for its owner alone.
    pub fn open(market: &Path, most: usize) -> io::Result<TranscriptFolder> {
        let path = market.join(TRANSCRIPTS_FOLDER);
        create_private_folder(&path)?;
        Ok(TranscriptFolder { path, most })
    }

    /// Keeps a transcript, and removes the oldest ones beyond the limit.
    ///
    /// # Errors
    /// When the files cannot be written or removed.
    pub fn keep(&self, transcript: &TabTranscript) -> io::Result<()> {
        let lease = transcript.lease.map_or(0, |lease| lease.0);
        let name = format!("{:015}-{lease}.json", unix_ms());
        let bytes = serde_json::to_vec(transcript).map_err(io::Error::other)?;
        write_private(&self.path.join(name), &bytes)?;
        let files = list_files(&self.path)?;
        let over = files.len().saturating_sub(self.most);
        for old in &files[..over] {
            match fs::remove_file(old) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the transcripts of a model that a market's folder has, the oldest first, and the number
/// of files that are none.
///
/// # Errors
/// When the folder cannot be read; a folder that is not there has none.
pub fn read_transcripts(market: &Path, model: &str) -> io::Result<(Vec<TabTranscript>, usize)> {
    let (mut found, mut damaged) = (Vec::new(), 0);
    for path in list_files(&market.join(TRANSCRIPTS_FOLDER))? {
        match read_transcript(&path) {
            Some(transcript) if transcript.model == model => found.push(transcript),
            Some(_) => {}
            None => damaged += 1,
        }
    }
    Ok((found, damaged))
}

fn read_transcript(path: &Path) -> Option<TabTranscript> {
    let is_small = fs::metadata(path).ok()?.len() <= FILE_BYTES_MAX;
    let bytes = is_small.then(|| fs::read(path).ok()).flatten()?;
    let read: TabTranscript = serde_json::from_slice(&bytes).ok()?;
    (read.format == TRANSCRIPT_FORMAT).then_some(read)
}

/// Returns the JSON files of a folder by name; none if there is no such folder.
pub(super) fn list_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

pub(super) fn create_private_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Writes a file that only its owner can read, whole or not at all.
pub(super) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("partial");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(&partial)?.write_all(bytes)?;
    fs::rename(partial, path)
}

#[cfg(test)]
mod tests;
