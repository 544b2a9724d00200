//! Writes texts with language models, on this machine or in sessions that a market sells.
//!
//! [`open_model`] reads a model and its tokeniser. A [`TextEngine`] computes the model's steps on
//! this machine's processor, or on providers whose sessions it buys, replaces if a provider fails,
//! and pays. [`write()`] writes a text token by token and reports its pieces.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use souk_llm::sampling::Sampling;
//! use souk_texts::{SessionSize, TextEngine, TextRequest, open_model, write};
//!
//! # async fn generate() -> Result<(), souk_texts::TextError> {
//! let (model, text_model) = open_model(Path::new("bundled"), None)?;
//! let size = SessionSize { tokens: 64, sequences: 1, is_embedding: false };
//! let engine = TextEngine::open_local(model, text_model.context_length, size, None)?;
//! let mut sequence = engine.open_sequence(&tokio::runtime::Handle::current())?;
//! let prompt = text_model.encode_text("A market is")?;
//! let sampling = Sampling::default();
//! let request = TextRequest { tokens_max: 16, ..TextRequest::new(&prompt, &sampling) };
//! let written = write(&text_model, &mut sequence, &request, |piece| print!("{}", piece.text))?;
//! println!("\n{} tokens", written.tokens.len());
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod audit_reference;
mod forms;
mod served_decoder;
mod session_journal;
mod session_reports;
mod session_shell;
mod slot_pool;
mod step_conversion;
mod steps;
mod stop_signal;
mod text_engine;
mod text_error;
mod text_sessions;
mod text_writing;

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use souk_llm::adapter::Adapter;
use souk_llm::bundled_model;
use souk_llm::chat::{ChatTemplate, Conversation, Message};
use souk_llm::model::{Card, LanguageModel, ModelError, ModelFolder};
use souk_llm::tokens::{Marks, Tokenizer};
use souk_node::buyer::Quote;
use souk_node::buyer::job::Limits;

use forms::GrammarVocabulary;

pub use audit_reference::{AuditReference, ReadFault};
pub use forms::TextForm;
pub use served_decoder::{DecoderSpeed, ServedDecoder, ServingSize};
pub use stop_signal::StopSignal;
pub use text_engine::{SessionSize, TextEngine, TextMarket};
pub use text_error::{TextError, UsedBudget};
pub use text_sessions::SessionTerms;
pub use text_writing::{
    Piece, PromptLogprobs, TextEnding, TextRequest, TokenLogprobs, WrittenText, embed_tokens, write,
};

/// Receives the plans and notices of a text's sessions, to show them to the user.
pub trait TextObserver: Send + Sync {
    /// Describes a plan in lines, for the user and the journal.
    fn describe_plan(&self, quote: &Quote, limits: &Limits) -> Vec<String>;

    /// Shows the plan of a session that souk is about to buy; `providers` names those that see the
    /// text.
    fn show_plan(&self, plan: &[String], providers: &str);

    /// Shows a notice in one line.
    fn show_notice(&self, notice: &str);
}

/// Default number of positions: a larger cache would fill a small machine's memory.
const POSITIONS_DEFAULT: usize = 4096;

/// A language model's description, with its tokeniser.
#[derive(Clone)]
pub struct TextModel {
    /// The model's description.
    pub card: Card,
    /// Its tokeniser.
    pub tokenizer: Tokenizer,
    /// Positions of a session, including the prompt's.
    pub context_length: usize,
    words: GrammarVocabulary,
}

/// Opens a model of the user, or the bundled model if the path is its name and no such file exists.
pub fn open_model(
    path: &Path,
    context: Option<usize>,
) -> Result<(LanguageModel, TextModel), TextError> {
    open_adapted_model(path, None, context)
}

/// Opens such a model with the adapter in a folder, which souk adds to its weights.
pub fn open_adapted_model(
    path: &Path,
    adapter: Option<&Path>,
    context: Option<usize>,
) -> Result<(LanguageModel, TextModel), TextError> {
    let mut model = open_files(path, LanguageModel::open)?;
    if let Some(folder) = adapter {
        let merged = Adapter::read(folder).and_then(|adapter| model.merge_adapter(&adapter));
        let hint = "give the folder that `souk train` or PEFT wrote, and the model it is for";
        merged.map_err(|error| TextError::input(error, hint))?;
    }
    let text_model = TextModel {
        card: model.card.clone(),
        tokenizer: model.tokenizer.clone(),
        context_length: reserved_positions(&model, context),
        words: GrammarVocabulary::default(),
    };
    Ok((model, text_model))
}

/// Opens the folder of a model in the layout of Hugging Face's tools, or that of the bundled model.
pub fn open_model_folder(path: &Path) -> Result<ModelFolder, TextError> {
    open_files(path, ModelFolder::open)
}

/// Opens the files of a model of the user, or those of the bundled model if the path is its name
/// and no such file exists.
fn open_files<T>(
    path: &Path,
    open: impl Fn(&Path) -> Result<T, ModelError>,
) -> Result<T, TextError> {
    if path != Path::new(bundled_model::NAME) || path.exists() {
        return Ok(open(path)?);
    }
    let folder = tempfile::Builder::new().prefix("souk-model-").tempdir();
    let folder = folder.map_err(TextError::unexpected)?;
    let files = bundled_model::write_files(folder.path())?;
    Ok(open(&files)?)
}

/// Returns the number of positions to reserve.
pub fn reserved_positions(model: &LanguageModel, wanted: Option<usize>) -> usize {
    wanted.unwrap_or(model.positions().min(POSITIONS_DEFAULT))
}

impl TextModel {
    /// Returns the tokens of a text, without a chat template.
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.encode(text, Marks::Added)
    }

    /// Returns the tokens of a conversation, up to the beginning of the model's answer.
    pub fn encode_conversation(&self, messages: &[Message]) -> Result<Vec<u32>, TextError> {
        let conversation = Conversation {
            messages,
            ..Conversation::default()
        };
        self.encode(&self.render_conversation(&conversation)?, Marks::Own)
    }

    /// Renders a conversation with the template and the current time.
    pub fn render_conversation(
        &self,
        conversation: &Conversation<'_>,
    ) -> Result<String, TextError> {
        self.render_conversation_at(&Conversation {
            now: unix_seconds(),
            ..*conversation
        })
    }

    /// Renders a conversation with the template and the time that the conversation states.
    fn render_conversation_at(&self, conversation: &Conversation<'_>) -> Result<String, TextError> {
        let text = self.chat_template()?.render(conversation);
        text.map_err(|error| TextError::input(error, ""))
    }

    /// Returns the chat template, which a model must have for conversations.
    pub fn chat_template(&self) -> Result<&ChatTemplate, TextError> {
        let cause = "the model has no chat template";
        let hint = "it continues texts: souk generate MODEL TEXT, without --chat";
        let none = || TextError::input(cause, hint);
        self.card.template.as_ref().ok_or_else(none)
    }

    /// Returns the tokens of a text. The model must know all of them.
    pub fn encode(&self, text: &str, marks: Marks) -> Result<Vec<u32>, TextError> {
        let failed = |error| TextError::input(error, "");
        let tokens = self.tokenizer.encode(text, marks).map_err(failed)?;
        let rows = self.card.vocabulary;
        let Some(unknown) = tokens.iter().find(|id| **id as usize >= rows) else {
            return Ok(tokens);
        };
        let word = self.tokenizer.bytes_of(*unknown).map_err(failed)?;
        let word = String::from_utf8_lossy(&word).into_owned();
        let cause = format!(
            "the text has the token {word:?} ({unknown}), which the model has no numbers for: \
             it knows {rows} tokens, and its tokeniser more"
        );
        let hint = "leave it out, or ask the model's author to enlarge its embedding";
        Err(TextError::input(cause, hint))
    }

    /// Checks tokens: the model must know each of them.
    pub fn check_tokens(&self, tokens: &[u32]) -> Result<(), TextError> {
        let rows = self.card.vocabulary;
        match tokens.iter().find(|id| **id as usize >= rows) {
            None => Ok(()),
            Some(id) => {
                let cause = format!("token id {id} is out of vocabulary: the model has {rows}");
                let hint = format!("give ids from 0 to {}", rows.saturating_sub(1));
                Err(TextError::input(cause, hint))
            }
        }
    }
}

/// Returns the time of this machine's clock.
fn unix_seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |it| it.as_secs())
}

/// Creates a message of a conversation.
pub fn new_message(role: &str, content: &str) -> Message {
    Message {
        role: role.to_owned(),
        content: content.to_owned(),
        ..Message::default()
    }
}
