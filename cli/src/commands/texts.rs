//! What the commands have in common that go on with texts: a model, a place where its steps are
//! computed, and a text told piece by piece.

mod forms;
mod market_session;
mod panel;
mod place;
mod purse;
mod session_sellers;
mod session_sequence;
mod steps;
mod stop_sign;
mod told_tokens;
mod writing;

use std::path::Path;

use souk_llm::bundled;
use souk_llm::chat::{ChatTemplate, Message};
use souk_llm::model::{Card, LanguageModel, ModelError};
use souk_llm::sampling::Sampling;
use souk_llm::tokens::{Marks, Tokenizer};
use souk_llm::tools::Tool;
use souk_node::market::Receipt;

use crate::args::SamplingArgs;
use crate::failure::{Failure, Kind};
use crate::show;
use forms::Words;

pub use forms::TextForm;
pub use place::{Place, SessionSize};
pub use stop_sign::StopSign;
pub use writing::{TextEnding, WeighedToken, Wish, WrittenText, embed, write};

/// Positions unless others are asked for: a cache of more is most of a small machine's memory.
const POSITIONS_DEFAULT: usize = 4096;

/// What is said of a model, and makes tokens of texts.
#[derive(Clone)]
pub struct Voice {
    pub card: Card,
    pub tokenizer: Tokenizer,
    /// Positions of a session, the prompt's among them.
    pub room: usize,
    words: Words,
}

/// Opens a model: one of the user's, or where it is called so the one that comes with souk.
pub fn open(path: &Path, context: Option<usize>) -> Result<(LanguageModel, Voice), Failure> {
    let model = match path == Path::new(bundled::NAME) && !path.exists() {
        true => bundled::open(crate::folder::scratch("souk-model-")?.path()),
        false => LanguageModel::open(path),
    };
    let model = model.map_err(refused)?;
    let voice = Voice {
        card: model.card.clone(),
        tokenizer: model.tokenizer.clone(),
        room: room(&model, context),
        words: Words::default(),
    };
    Ok((model, voice))
}

/// Positions to have room for.
pub fn room(model: &LanguageModel, wanted: Option<usize>) -> usize {
    wanted.unwrap_or(model.positions().min(POSITIONS_DEFAULT))
}

/// A model that cannot be used.
pub fn refused(error: ModelError) -> Failure {
    let hint = "a folder with config.json, tokenizer.json and .safetensors; a GGUF file; `bundled`";
    Failure::new(Kind::Input, error, hint)
}

impl Voice {
    /// The tokens of a text that stands alone.
    pub fn text(&self, text: &str) -> Result<Vec<u32>, Failure> {
        self.encoded(text, Marks::Added)
    }

    /// The tokens of a conversation, up to where the model is to answer.
    pub fn conversation(&self, messages: &[Message]) -> Result<Vec<u32>, Failure> {
        self.conversation_with(messages, &[], "")
    }

    /// The same for an answer that may call tools, and begins in these words.
    pub fn conversation_with(
        &self,
        messages: &[Message],
        tools: &[Tool],
        opening: &str,
    ) -> Result<Vec<u32>, Failure> {
        let text = self.template()?.render(messages, tools);
        let text = text.map_err(|error| Failure::new(Kind::Input, error, ""))?;
        self.encoded(&(text + opening), Marks::Own)
    }

    /// What the model was taught a conversation looks like.
    pub fn template(&self) -> Result<&ChatTemplate, Failure> {
        let cause = "the model has no chat template";
        let hint = "it goes on with texts: souk generate MODEL TEXT, without --chat";
        let none = || Failure::new(Kind::Input, cause, hint);
        self.card.template.as_ref().ok_or_else(none)
    }

    fn encoded(&self, text: &str, marks: Marks) -> Result<Vec<u32>, Failure> {
        let encoded = self.tokenizer.encode(text, marks);
        encoded.map_err(|error| Failure::new(Kind::Input, error, ""))
    }
}

/// A message of a conversation.
pub fn message(role: &str, content: &str) -> Message {
    Message {
        role: role.to_owned(),
        content: content.to_owned(),
        ..Message::default()
    }
}

/// How tokens are drawn.
pub fn sampling(args: &SamplingArgs) -> Result<Sampling, Failure> {
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
    let checked = sampling.checked();
    checked.map_err(|error| Failure::new(Kind::Usage, error, ""))
}

/// Tells people what was paid.
pub fn tell_paid(receipts: &[Receipt]) {
    for receipt in receipts {
        let body = &receipt.body;
        let (lease, amount) = (body.lease, show::credits(body.amount.0));
        show::tell(&format!(
            "  lease {lease}: {amount} credits, signed by both sides"
        ));
    }
}
