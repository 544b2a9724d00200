//! The shared parts of the commands that continue texts: a model, a place that computes its steps,
//! and a text that is written piece by piece.

mod forms;
mod market_session;
mod panel;
mod place;
mod sequence_tokens;
mod session_journal;
mod session_sellers;
mod session_sequence;
mod steps;
mod stop_signal;
mod text_budget;
mod writing;

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use souk_llm::bundled;
use souk_llm::chat::{ChatTemplate, Conversation, Message};
use souk_llm::model::{Card, LanguageModel, ModelError};
use souk_llm::sampling::Sampling;
use souk_llm::tokens::{Marks, Tokenizer};
use souk_node::market::Receipt;

use crate::args::SamplingArgs;
use crate::failure::{Failure, Kind};
use crate::show;
use forms::Words;

pub use forms::TextForm;
pub use place::{Place, SessionSize};
pub use stop_signal::StopSignal;
pub use writing::{
    PromptLogprobs, TextEnding, TokenLogprobs, Wish, WrittenText, embed_tokens, write,
};

/// Default number of positions: a larger cache would fill a small machine's memory.
const POSITIONS_DEFAULT: usize = 4096;

/// A model's description, and its tokeniser.
#[derive(Clone)]
pub struct TextModel {
    pub card: Card,
    pub tokenizer: Tokenizer,
    /// Positions of a session, including the prompt's.
    pub context_length: usize,
    words: Words,
}

/// Opens a model of the user, or the bundled model if the path is its name and no such file exists.
pub fn open_model(
    path: &Path,
    context: Option<usize>,
) -> Result<(LanguageModel, TextModel), Failure> {
    let model = match path == Path::new(bundled::NAME) && !path.exists() {
        true => bundled::open_bundled(crate::folder::create_temp_folder("souk-model-")?.path()),
        false => LanguageModel::open(path),
    };
    let model = model.map_err(model_failure)?;
    let text_model = TextModel {
        card: model.card.clone(),
        tokenizer: model.tokenizer.clone(),
        context_length: reserved_positions(&model, context),
        words: Words::default(),
    };
    Ok((model, text_model))
}

/// Returns the number of positions to reserve.
pub fn reserved_positions(model: &LanguageModel, wanted: Option<usize>) -> usize {
    wanted.unwrap_or(model.positions().min(POSITIONS_DEFAULT))
}

/// Converts a failure to use a model.
pub fn model_failure(error: ModelError) -> Failure {
    let hint = "a folder with config.json, tokenizer.json and .safetensors; a GGUF file; `bundled`";
    Failure::new(Kind::Input, error, hint)
}

impl TextModel {
    /// Returns the tokens of a text that stands alone.
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>, Failure> {
        self.encode(text, Marks::Added)
    }

    /// Returns the tokens of a conversation, up to the beginning of the model's answer.
    pub fn encode_conversation(&self, messages: &[Message]) -> Result<Vec<u32>, Failure> {
        let conversation = Conversation {
            messages,
            ..Conversation::default()
        };
        self.encode(&self.render_conversation(&conversation)?, Marks::Own)
    }

    /// Renders a conversation with the template and the current time.
    pub fn render_conversation(&self, conversation: &Conversation<'_>) -> Result<String, Failure> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let text = self.chat_template()?.render(&Conversation {
            now: now.map_or(0, |it| it.as_secs()),
            ..*conversation
        });
        text.map_err(|error| Failure::new(Kind::Input, error, ""))
    }

    /// Returns the chat template, which a model must have for conversations.
    pub fn chat_template(&self) -> Result<&ChatTemplate, Failure> {
        let cause = "the model has no chat template";
        let hint = "it continues texts: souk generate MODEL TEXT, without --chat";
        let none = || Failure::new(Kind::Input, cause, hint);
        self.card.template.as_ref().ok_or_else(none)
    }

    /// Returns the tokens of a text. The model must know all of them.
    pub fn encode(&self, text: &str, marks: Marks) -> Result<Vec<u32>, Failure> {
        let failed = |error| Failure::new(Kind::Input, error, "");
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
        Err(Failure::new(Kind::Input, cause, hint))
    }

    /// Checks tokens: the model must know each of them.
    pub fn check_tokens(&self, tokens: &[u32]) -> Result<(), Failure> {
        let rows = self.card.vocabulary;
        match tokens.iter().find(|id| **id as usize >= rows) {
            None => Ok(()),
            Some(id) => {
                let cause = format!("token id {id} is out of vocabulary: the model has {rows}");
                let hint = format!("give ids from 0 to {}", rows.saturating_sub(1));
                Err(Failure::new(Kind::Input, cause, hint))
            }
        }
    }
}

/// Creates a message of a conversation.
pub fn new_message(role: &str, content: &str) -> Message {
    Message {
        role: role.to_owned(),
        content: content.to_owned(),
        ..Message::default()
    }
}

/// Returns the sampling that the arguments describe.
pub fn sampling_from_args(args: &SamplingArgs) -> Result<Sampling, Failure> {
    let sampling = Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        repetition: args.repetition_penalty,
        frequency: args.frequency_penalty,
        presence: args.presence_penalty,
        bias: args.logit_bias.iter().copied().collect(),
        seed: args.seed,
    };
    let checked = sampling.check_ranges();
    checked.map_err(|error| Failure::new(Kind::Usage, error, ""))
}

/// Prints the payments.
pub fn tell_paid(receipts: &[Receipt]) {
    for receipt in receipts {
        let body = &receipt.body;
        let (lease, amount) = (body.lease, show::format_credits(body.amount.0));
        show::print_notice(&format!(
            "  lease {lease}: {amount} credits, signed by both sides"
        ));
    }
}
