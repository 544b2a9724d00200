//! Stores the texts that a buyer bought, as evidence for a later audit of their providers: one
//! file, a *transcript*, for each tab (a lease in which a provider answers requests with a language
//! model). Only the owner can read the folder, and only the newest transcripts stay.
//!
//! Of a long tab, the transcript has some requests and answers, drawn at random, so the provider
//! cannot know which. It also has the tab's receipt, which both sides signed and which contains the
//! hashes of the answers, but not of the requests.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use souk_folder::clock::unix_ms;
use souk_market::{AccountKey, LeaseId, Receipt, ReceiptFault};
use souk_memory::{ContentId, Tensor};
use souk_roles::lease::transcript;
use souk_roles::tokens::card::TextCard;
use souk_roles::tokens::text::{TextAnswer, TextRequest};

/// The folder of the transcripts, relative to the folder of the market.
pub const TRANSCRIPTS_FOLDER: &str = "buyer/transcripts";

/// The format that each transcript file states.
const TRANSCRIPT_FORMAT: &str = "souk-transcript-1";

/// The most exchanges of a tab in its transcript, and the most bytes of their texts. If there are
/// more, they are drawn at random.
const EXCHANGES_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 4 << 20;

/// The most bytes of a file: JSON can take six for one.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// If a partial file is older than this, the process that wrote it no longer runs.
const PARTIAL_AGE_MAX: Duration = Duration::from_secs(60);

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

/// The transcript of one tab.
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

/// The exchanges of an open tab, from which its transcript will be written.
#[derive(Clone, Debug, Default)]
pub(super) struct TabLog(Arc<Mutex<LoggedTab>>);

#[derive(Debug, Default)]
struct LoggedTab {
    lease: Option<LeaseId>,
    exchanges: Vec<DrawnExchange>,
    answers: Vec<ContentId>,
    /// The message of the latest answer as the provider hashed it.
    message: String,
    bytes: usize,
    /// The smallest lot of the exchanges that were left out. An exchange with a greater lot is left
    /// out too.
    lot_end: Option<u64>,
    lots: RandomState,
    delivered: u64,
}

/// An exchange with its lot, a random number: the exchanges with the smallest lots are kept.
#[derive(Debug)]
struct DrawnExchange {
    lot: u64,
    bytes: usize,
    exchange: TextExchange,
}

/// The folder with the transcripts of a buyer's tabs.
#[derive(Clone, Debug)]
pub struct TranscriptFolder {
    path: PathBuf,
    most: usize,
}

impl TabTranscript {
    /// Checks whether the receipt proves that the provider gave answers of these hashes under the
    /// model's name: its signature, the card, and the hash of all answers.
    /// [`TabTranscript::drop_unnamed`] leaves out the exchanges with other answers.
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
        match named.eq(transcript(&self.answers)) {
            true => Ok(()),
            false => Err(UnsignedText::Answers),
        }
    }

    /// Leaves out the exchanges whose answers are not among those that the receipt names, if it
    /// names all [`TabTranscript::answers`]. Returns their number.
    pub fn drop_unnamed(&mut self) -> usize {
        let before = self.exchanges.len();
        let answers = &self.answers;
        let is_named = |it: &TextExchange| answers.contains(&hash_answer(&it.answer));
        self.exchanges.retain(is_named);
        before - self.exchanges.len()
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

    /// Notes an answer that arrived, with its message before it is cut.
    pub(super) fn on_answer(&self, id: ContentId, message: String) {
        let mut log = self.lock();
        log.answers.push(id);
        log.message = message;
    }

    /// Notes that the latest answer is whole and was counted.
    pub(super) fn on_delivered(&self, at: u64, request: &TextRequest, answer: &TextAnswer) {
        let mut log = self.lock();
        log.delivered += 1;
        let lot = log.lots.hash_one(log.delivered);
        let answer = TextAnswer {
            message: std::mem::take(&mut log.message),
            ..answer.clone()
        };
        let request = request.clone();
        log.draw(
            lot,
            TextExchange {
                at,
                request,
                answer,
            },
        );
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
            exchanges: log.exchanges.into_iter().map(|it| it.exchange).collect(),
            answers: log.answers,
            receipt,
        })
    }

    fn lock(&self) -> MutexGuard<'_, LoggedTab> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoggedTab {
    /// Adds an exchange if its lot is among the smallest, and removes exchanges with greater lots
    /// to make room.
    fn draw(&mut self, lot: u64, exchange: TextExchange) {
        let TextExchange {
            request, answer, ..
        } = &exchange;
        let asked = request.messages.iter().map(|it| it.content.len());
        let bytes = asked.sum::<usize>() + answer.text.byte_length() + answer.message.len();
        let is_late = self.lot_end.is_some_and(|end| lot >= end);
        if answer.text.is_empty() || bytes > TEXT_BYTES_MAX || is_late {
            return;
        }
        self.bytes += bytes;
        self.exchanges.push(DrawnExchange {
            lot,
            bytes,
            exchange,
        });
        while self.exchanges.len() > EXCHANGES_MAX || self.bytes > TEXT_BYTES_MAX {
            let lots = self.exchanges.iter().enumerate();
            let Some((at, _)) = lots.max_by_key(|(_, it)| it.lot) else {
                return;
            };
            let left_out = self.exchanges.remove(at);
            self.bytes -= left_out.bytes;
            self.lot_end = Some(left_out.lot);
        }
    }
}

impl TranscriptFolder {
    /// Opens the transcripts of a market's folder. From now on only the given number of the newest
    /// transcripts stay.
    ///
    /// # Errors
    /// When the folder cannot be created for its owner alone.
    pub fn open(market: &Path, most: usize) -> io::Result<TranscriptFolder> {
        let path = market.join(TRANSCRIPTS_FOLDER);
        create_private_folder(&path)?;
        remove_partial_files(&path)?;
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

/// Returns the transcripts of a model in a market's folder, the oldest first, and the number of
/// files that are not valid transcripts.
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
    let bytes = read_bounded(path, FILE_BYTES_MAX)?;
    let read: TabTranscript = serde_json::from_slice(&bytes).ok()?;
    (read.format == TRANSCRIPT_FORMAT).then_some(read)
}

/// Reads a file of at most this many bytes; returns none if it is larger or cannot be read.
pub(super) fn read_bounded(path: &Path, bytes_max: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).ok()?;
    file.take(bytes_max + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= bytes_max).then_some(bytes)
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
    builder.create(path)?;
    // The folder can be there already, with the mode of somebody's umask.
    #[cfg(unix)]
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    Ok(())
}

/// Writes a file that only its owner can read. After a crash or a power loss the file is complete
/// or missing.
pub(super) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("partial");
    let written = write_synced(&partial, bytes).and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        // The first error says more.
        let _ = fs::remove_file(&partial);
    }
    written?;
    fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Removes the partial files that interrupted writes left in a folder some time ago.
pub(super) fn remove_partial_files(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let is_partial = path.extension().is_some_and(|it| it == "partial");
        let age = entry.metadata().and_then(|it| it.modified());
        let is_old = age.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > PARTIAL_AGE_MAX));
        if is_partial && is_old {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
