//! Converts the request of a tab (a lease in which a buyer sends requests to a language model) to
//! the tokens that the model reads, with the model's own chat template. It refuses requests that
//! the model cannot answer.

use serde_json::{Map, Value};
use souk_llm::answer::{AnswerForm, AnswerReader};
use souk_llm::chat::{Conversation, Message};
use souk_llm::sampling::Sampling;
use souk_llm::tokens::Marks;
use souk_node::endpoint::own_engine::OwnFault;
use souk_roles::tokens::text::{Role, TextRequest};

use crate::{TextError, TextModel, new_message, unix_seconds};

/// Sampling of a request that does not state it, as with OpenAI's API.
const TEMPERATURE_DEFAULT: f64 = 1.0;
const TOP_P_DEFAULT: f64 = 1.0;

/// A lower temperature counts as zero.
const TEMPERATURE_MIN: f64 = 1e-4;

/// A request that the model can answer.
#[derive(Debug)]
pub(crate) struct PreparedRequest {
    /// The prompt as text, and its tokens.
    pub(crate) text: String,
    pub(crate) tokens: Vec<u32>,
    pub(crate) sampling: Sampling,
    pub(crate) stops: Vec<String>,
    pub(crate) tokens_max: usize,
    /// Marks that belong to the text although the tokeniser leaves them out.
    pub(crate) marks: &'static [&'static str],
    /// Separates the thought from the answer.
    pub(crate) reader: AnswerReader,
}

impl PreparedRequest {
    /// Renders and checks a request, at this moment.
    pub(crate) fn new(
        text_model: &TextModel,
        request: &TextRequest,
    ) -> Result<PreparedRequest, OwnFault> {
        PreparedRequest::new_at(text_model, request, unix_seconds())
    }

    /// Renders and checks a request. `now`, in Unix seconds, is the time that the template sees.
    pub(crate) fn new_at(
        text_model: &TextModel,
        request: &TextRequest,
        now: u64,
    ) -> Result<PreparedRequest, OwnFault> {
        let sampling = to_sampling(request)?;
        let template = text_model.chat_template().map_err(refused)?;
        let form = AnswerForm::from_template(&template.source);
        if request.continues && form == AnswerForm::Channels {
            let cause = "it answers in channels, so another's answer cannot be continued";
            return Err(OwnFault::Refused(cause.to_owned()));
        }
        let text = render_prompt(text_model, request, now)?;
        let tokens = text_model.encode(&text, Marks::Own).map_err(refused)?;
        let (length, room) = (tokens.len(), text_model.context_length);
        if length == 0 || length >= room {
            let cause = format!(
                "the messages have {length} of the model's tokens, and its context of {room} must \
                 have room for an answer too"
            );
            return Err(OwnFault::Refused(cause));
        }
        Ok(PreparedRequest {
            tokens,
            sampling,
            stops: request.stop.clone(),
            tokens_max: request.tokens_max as usize,
            marks: form.marks_to_keep(None),
            reader: AnswerReader::new(form, &text, None),
            text,
        })
    }
}

/// Renders the conversation up to the place where the model must answer, or continue the answer in
/// the last message.
fn render_prompt(
    text_model: &TextModel,
    request: &TextRequest,
    now: u64,
) -> Result<String, OwnFault> {
    // The template closes the last message. A mark stands for the end of an answer to continue,
    // because what the template adds can have the same letters as the answer.
    let mark = choose_end_mark(request);
    let last = request.messages.len().saturating_sub(1);
    let messages = request
        .messages
        .iter()
        .enumerate()
        .map(|(number, message)| {
            let role = match message.role {
                Role::System => "system",
                Role::User => "user",
                Role::Assistant => "assistant",
            };
            match request.continues && number == last {
                true => new_message(role, &format!("{}{mark}", message.content.trim_end())),
                false => new_message(role, &message.content),
            }
        });
    let messages: Vec<Message> = messages.collect();
    let mut values = Map::new();
    if request.continues {
        values.insert("add_generation_prompt".to_owned(), Value::Bool(false));
    }
    let conversation = Conversation {
        messages: &messages,
        values: Some(&values),
        now,
        ..Conversation::default()
    };
    let mut text = text_model
        .render_conversation_at(&conversation)
        .map_err(refused)?;
    if request.continues {
        let begun = request.messages.last().map_or("", |it| it.content.trim());
        let at = text.rfind(&mark).filter(|_| !begun.is_empty());
        let Some(at) = at else {
            let cause = "its template leaves out the answer to continue".to_owned();
            return Err(OwnFault::Refused(cause));
        };
        text.truncate(at);
    }
    Ok(text)
}

/// Returns a string that does not occur in the request.
fn choose_end_mark(request: &TextRequest) -> String {
    let is_new = |mark: &String| !request.messages.iter().any(|it| it.content.contains(mark));
    let mut marks = (0u64..).map(|number| format!("ENDOFANSWER{number}X"));
    marks
        .find(is_new)
        .expect("a request has fewer letters than there are marks")
}

fn to_sampling(request: &TextRequest) -> Result<Sampling, OwnFault> {
    let asked = request.temperature.unwrap_or(TEMPERATURE_DEFAULT);
    let top_p = request.top_p.unwrap_or(TOP_P_DEFAULT);
    // Both mean the likeliest token: other engines accept a top-p of zero, and a temperature near
    // zero would turn the quotients of logits into infinities.
    let is_likeliest = top_p == 0.0 || (0.0..TEMPERATURE_MIN).contains(&asked);
    let (temperature, top_p) = match is_likeliest {
        true => (0.0, TOP_P_DEFAULT),
        false => (asked, top_p),
    };
    let sampling = Sampling {
        temperature,
        top_p,
        frequency: request.frequency_penalty.unwrap_or_default(),
        presence: request.presence_penalty.unwrap_or_default(),
        // Buyers always send one.
        seed: request.seed.unwrap_or_default().cast_unsigned(),
        ..Sampling::default()
    };
    let checked = sampling.check_ranges();
    checked.map_err(|error| OwnFault::Refused(error.to_string()))
}

#[expect(clippy::needless_pass_by_value, reason = "it converts errors")]
fn refused(error: TextError) -> OwnFault {
    OwnFault::Refused(error.to_string())
}

#[cfg(test)]
mod tests;
