//! Reads the requests of OpenAI's clients. It refuses a field that it does not know, because the
//! field could change the answer, and ignores those that change nothing.

mod messages;
mod tools;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use souk_llm::chat::Message;
use souk_llm::sampling::Sampling;

use crate::refusal::Refusal;
use crate::request_queue::REQUESTS_MAX;
use messages::message_at;
use souk_texts::TextForm;

pub use tools::ToolUse;

/// Largest number of stop strings, as in OpenAI's API.
const STOPS_MAX: usize = 4;

/// Default number of tokens of a continued text, as in OpenAI's API.
const TEXT_TOKENS_DEFAULT: usize = 16;

/// Largest number of the most likely tokens reported for each drawn one: in a conversation, and for
/// a continued text.
const TOP_LOGPROBS_MAX: usize = 20;
const TEXT_LIKELIEST_MAX: usize = 5;

/// The value that limits a model's reasoning, if its chat template knows it.
pub const REASONING_EFFORT: &str = "reasoning_effort";

/// Fields that change no answer.
const HARMLESS: [&str; 6] = [
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "service_tier",
];

/// A request.
#[derive(Debug)]
pub struct ApiRequest {
    pub model: String,
    /// The inputs to continue: one conversation, or texts.
    pub inputs: Vec<Input>,
    /// Number of answers to each input.
    pub choices: usize,
    /// Whether an answer begins with its input.
    pub is_echoed: bool,
    /// Documents for the conversation.
    pub documents: Vec<Value>,
    /// Further values for the chat template.
    pub template_values: Map<String, Value>,
    pub sampling: Sampling,
    /// The sampling that the request gives, for an engine with defaults of its own.
    pub given: GivenSampling,
    pub stops: Vec<String>,
    /// Form that the answer must have, if any.
    pub form: Option<TextForm>,
    /// Tools that the answer may call.
    pub tools: Option<ToolUse>,
    /// Largest number of tokens; as many as fit if `None`.
    pub tokens_max: Option<usize>,
    /// Number of the most likely tokens to report with each token's probability; `None` reports
    /// none.
    pub top_logprobs: Option<usize>,
    pub is_streamed: bool,
    /// Whether a stream reports its token counts.
    pub has_usage: bool,
}

/// The values of sampling whose defaults differ by engine and model, and the seed as written;
/// none where the request gives none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GivenSampling {
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub seed: Option<i64>,
}

/// An input to continue.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    Messages(Vec<Message>),
    Text(String),
    Tokens(Vec<u32>),
}

impl ApiRequest {
    /// Reads the body of `POST /v1/chat/completions`.
    pub fn from_chat(body: Map<String, Value>) -> Result<Self, Refusal> {
        let mut fields = Fields::new(body);
        let given: Option<Vec<Value>> = fields.take_field("messages", "a list of messages")?;
        let given = given.unwrap_or_default();
        if given.is_empty() {
            return Err(Refusal::invalid_field("messages", "there is no message"));
        }
        let messages = given.into_iter().enumerate();
        let messages: Result<_, _> = messages.map(|(at, it)| message_at(at, it)).collect();
        let tokens: Option<usize> =
            fields.take_field("max_completion_tokens", "a number of tokens")?;
        let older: Option<usize> = fields.take_field("max_tokens", "a number of tokens")?;
        let (form, tools) = (fields.take_form()?, fields.tool_use()?);
        let documents: Option<Vec<Value>> = fields.take_field("documents", "a list of objects")?;
        let template_values = fields.template_values()?;
        let top_logprobs = fields.take_likeliest()?;
        fields.refuse_unless_default("modalities", &[json!(["text"])])?;
        fields.refuse_unless_default("functions", &[json!([])])?;
        fields.refuse_unless_default("store", &[json!(false)])?;
        if tokens.or(older) == Some(0) {
            return Err(Refusal::invalid_field(
                "max_tokens",
                "an answer has at least one token",
            ));
        }
        let inputs = vec![Input::Messages(messages?)];
        let request = fields.into_request(inputs, tokens.or(older), top_logprobs)?;
        Ok(Self {
            form,
            tools,
            documents: documents.unwrap_or_default(),
            template_values,
            ..request
        })
    }

    /// Reads the body of `POST /v1/completions`.
    pub fn from_completion(body: Map<String, Value>) -> Result<Self, Refusal> {
        let mut fields = Fields::new(body);
        let what = "a text, tokens, or a list of either";
        let inputs = match fields.take_field::<Prompt>("prompt", what)? {
            None => Vec::new(),
            Some(Prompt::Text(text)) => vec![Input::Text(text)],
            Some(Prompt::Tokens(tokens)) => vec![Input::Tokens(tokens)],
            Some(Prompt::Texts(texts)) => texts.into_iter().map(Input::Text).collect(),
            Some(Prompt::TokenLists(lists)) => lists.into_iter().map(Input::Tokens).collect(),
        };
        if inputs.is_empty() {
            return Err(Refusal::invalid_field("prompt", "there is no prompt"));
        }
        let tokens = fields.take_field("max_tokens", "a number of tokens")?;
        let is_echoed: Option<bool> = fields.take_field("echo", "true or false")?;
        let is_echoed = is_echoed.unwrap_or_default();
        if tokens == Some(0) && !is_echoed {
            let message = "an answer has at least one token, unless the prompt is echoed";
            return Err(Refusal::invalid_field("max_tokens", message));
        }
        let same = fields.0.get("n").cloned().unwrap_or(json!(1));
        fields.refuse_unless_default("best_of", &[json!(1), same])?;
        fields.refuse_unless_default("suffix", &[json!("")])?;
        let top_logprobs = fields.take_bounded("logprobs", TEXT_LIKELIEST_MAX)?;
        let tokens = tokens.or(Some(TEXT_TOKENS_DEFAULT));
        let request = fields.into_request(inputs, tokens, top_logprobs)?;
        if is_echoed && request.is_streamed && top_logprobs.is_some() {
            let message = "the probabilities of an echoed prompt come with a whole answer only";
            return Err(Refusal::invalid_field("stream", message));
        }
        Ok(Self {
            is_echoed,
            ..request
        })
    }
}

/// The types of a prompt.
#[derive(Deserialize)]
#[serde(untagged)]
enum Prompt {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

/// One stop string or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Stops {
    One(String),
    Several(Vec<String>),
}

/// The form of an answer, as in OpenAI's API.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ResponseFormat {
    Text,
    JsonObject,
    JsonSchema { json_schema: NamedSchema },
}

/// A schema. Its name and `strict` change nothing, because answers always fulfil their schema.
#[derive(Deserialize)]
struct NamedSchema {
    schema: Option<Value>,
}

/// Options of a stream.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: bool,
}

/// The fields of a request that are still unread.
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// Returns the fields of a request's body. A null field counts as absent.
    pub(super) fn new(mut body: Map<String, Value>) -> Self {
        body.retain(|_, value| !value.is_null());
        Self(body)
    }

    pub(super) fn take_field<T: DeserializeOwned>(
        &mut self,
        name: &str,
        what: &str,
    ) -> Result<Option<T>, Refusal> {
        let Some(value) = self.0.remove(name) else {
            return Ok(None);
        };
        let wrong = |_| Refusal::invalid_field(name, format!("{name} should be {what}"));
        serde_json::from_value(value).map(Some).map_err(wrong)
    }

    /// Removes a field. Its value must be one of those that change nothing, or this refuses the
    /// request.
    fn refuse_unless_default(&mut self, name: &str, same: &[Value]) -> Result<(), Refusal> {
        match self.0.remove(name) {
            Some(value) if !same.contains(&value) => Err(Refusal::unsupported_field(name)),
            _ => Ok(()),
        }
    }

    /// Reads for a conversation whether to report probabilities, and for how many of the most
    /// likely tokens.
    fn take_likeliest(&mut self) -> Result<Option<usize>, Refusal> {
        let wanted: Option<bool> = self.take_field("logprobs", "true or false")?;
        let most = self.take_bounded("top_logprobs", TOP_LOGPROBS_MAX)?;
        match (wanted.unwrap_or_default(), most) {
            (true, most) => Ok(Some(most.unwrap_or_default())),
            (false, None | Some(0)) => Ok(None),
            (false, Some(_)) => {
                let message = "top_logprobs wants logprobs to be true";
                Err(Refusal::invalid_field("top_logprobs", message))
            }
        }
    }

    /// Reads the form of the answer for a conversation.
    fn take_form(&mut self) -> Result<Option<TextForm>, Refusal> {
        let what = "an object of type text, json_object or json_schema";
        let given: Option<ResponseFormat> = self.take_field("response_format", what)?;
        Ok(match given {
            None | Some(ResponseFormat::Text) => None,
            Some(ResponseFormat::JsonObject) => Some(TextForm::Object),
            Some(ResponseFormat::JsonSchema { json_schema }) => Some(match json_schema.schema {
                Some(schema) => TextForm::Schema(schema),
                None => TextForm::Object,
            }),
        })
    }

    /// Reads the values for the chat template of a conversation, including the reasoning effort.
    fn template_values(&mut self) -> Result<Map<String, Value>, Refusal> {
        let values: Option<_> = self.take_field("chat_template_kwargs", "an object")?;
        let mut values: Map<String, Value> = values.unwrap_or_default();
        let effort: Option<String> = self.take_field(REASONING_EFFORT, "low, medium or high")?;
        if let Some(effort) = effort {
            values.insert(REASONING_EFFORT.to_owned(), json!(effort));
        }
        Ok(values)
    }

    fn take_bounded(&mut self, name: &str, most: usize) -> Result<Option<usize>, Refusal> {
        let given: Option<usize> = self.take_field(name, "a number of tokens")?;
        match given {
            Some(wanted) if wanted > most => {
                let message = format!("{name} is at most {most}");
                Err(Refusal::invalid_field(name, message))
            }
            given => Ok(given),
        }
    }

    fn into_request(
        mut self,
        inputs: Vec<Input>,
        tokens_max: Option<usize>,
        top_logprobs: Option<usize>,
    ) -> Result<ApiRequest, Refusal> {
        let is_streamed = self.take_field("stream", "true or false")?;
        let options: Option<StreamOptions> = self.take_field("stream_options", "an object")?;
        let number = |name: &str| self.0.get(name).and_then(Value::as_f64);
        let given = GivenSampling {
            temperature: number("temperature"),
            top_p: number("top_p"),
            seed: self.0.get("seed").and_then(Value::as_i64),
        };
        let sampling = self.take_sampling()?;
        let stops = match self.take_field("stop", "a text or a list of texts")? {
            None => Vec::new(),
            Some(Stops::One(stop)) => vec![stop],
            Some(Stops::Several(stops)) => stops,
        };
        if stops.len() > STOPS_MAX {
            let message = format!("at most {STOPS_MAX} strings stop a text");
            return Err(Refusal::invalid_field("stop", message));
        }
        let choices = self.take_bounded("n", REQUESTS_MAX)?.unwrap_or(1);
        if choices == 0 || choices * inputs.len() > REQUESTS_MAX {
            let message = format!("1 to {REQUESTS_MAX} answers are given at a time");
            let name = if inputs.len() > REQUESTS_MAX {
                "prompt"
            } else {
                "n"
            };
            return Err(Refusal::invalid_field(name, message));
        }
        Ok(ApiRequest {
            model: self.finish_with_model()?,
            inputs,
            choices,
            is_echoed: false,
            documents: Vec::new(),
            template_values: Map::new(),
            sampling,
            given,
            stops,
            form: None,
            tools: None,
            tokens_max,
            top_logprobs,
            is_streamed: is_streamed.unwrap_or_default(),
            has_usage: options.unwrap_or_default().include_usage,
        })
    }

    /// Returns the model's name; refuses the request if a field that can change the answer is left.
    pub(super) fn finish_with_model(mut self) -> Result<String, Refusal> {
        let model = self.take_field("model", "the name of a model")?;
        let model = model.ok_or_else(|| Refusal::invalid_field("model", "there is no model"))?;
        for name in HARMLESS {
            self.0.remove(name);
        }
        match self.0.keys().next() {
            Some(name) => Err(Refusal::unsupported_field(name)),
            None => Ok(model),
        }
    }

    fn take_sampling(&mut self) -> Result<Sampling, Refusal> {
        let mut number = |name, default: f64| -> Result<f64, Refusal> {
            Ok(self.take_field(name, "a number")?.unwrap_or(default))
        };
        let (temperature, top_p) = (number("temperature", 1.0)?, number("top_p", 1.0)?);
        let (min_p, repetition) = (number("min_p", 0.0)?, number("repetition_penalty", 1.0)?);
        let frequency = number("frequency_penalty", 0.0)?;
        let presence = number("presence_penalty", 0.0)?;
        let top_k = self.take_field("top_k", "a number of tokens")?;
        let bias: Option<BTreeMap<u32, f64>> =
            self.take_field("logit_bias", "an object of numbers by token")?;
        let seed: Option<i64> = self.take_field("seed", "a whole number")?;
        let sampling = Sampling {
            temperature,
            top_k: top_k.unwrap_or_default(),
            top_p,
            min_p,
            repetition,
            frequency,
            presence,
            bias: bias.unwrap_or_default(),
            // A request without a seed gets another text each time.
            seed: seed.map_or_else(|| RandomState::new().hash_one(0), i64::cast_unsigned),
        };
        let named = |name: &str| name.replace(['-', ' '], "_");
        let checked = sampling.check_ranges();
        checked.map_err(|error| Refusal::invalid_field(named(error.name), error.to_string()))
    }
}

#[cfg(test)]
mod tests;
