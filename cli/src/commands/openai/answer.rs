//! Answers in OpenAI's shapes: whole, or as events piece by piece.

use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, StreamExt};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::calling::{AnswerEnd, AnswerReader};
use super::desk::Event;
use super::refusal::Refusal;
use crate::commands::texts::{TextEnding, WeighedToken, WrittenText};

/// What ends a stream.
const DONE: &str = "[DONE]";

/// Why an answer ended that calls tools.
const CALLS: &str = "tool_calls";

/// What all parts of an answer say.
pub struct Shape {
    is_chat: bool,
    id: String,
    created: u64,
    model: String,
    /// Whether probabilities are told.
    is_weighed: bool,
    /// Letters of the tokens that were told with theirs.
    told: usize,
    /// What reads its calls, where it may make some.
    calls: Option<AnswerReader>,
}

impl Shape {
    /// Of an answer in a conversation (`chat`) or to a text.
    pub fn new((kind, model): (&str, &str), is_weighed: bool, calls: Option<AnswerReader>) -> Self {
        let is_chat = kind == "chat";
        let prefix = if is_chat { "chatcmpl" } else { "cmpl" };
        let created = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            is_chat,
            id: format!("{prefix}-{:016x}", RandomState::new().hash_one(prefix)),
            created: created.map_or(0, |it| it.as_secs()),
            model: model.to_owned(),
            is_weighed,
            told: 0,
            calls,
        }
    }

    /// The probabilities of tokens.
    fn weights(&mut self, tokens: &[WeighedToken]) -> Value {
        if !self.is_weighed {
            return Value::Null;
        }
        if self.is_chat {
            let each: Vec<Value> = tokens.iter().map(weighed).collect();
            return json!({ "content": each, "refusal": null });
        }
        let begins = tokens.iter().map(|token| {
            let begin = self.told;
            self.told += token.text.chars().count();
            begin
        });
        let begins: Vec<usize> = begins.collect();
        let likeliest = tokens.iter().map(|token| {
            let each = token.likeliest.iter();
            each.map(|(text, it)| (text.clone(), json!(it))).collect()
        });
        let likeliest: Vec<Map<String, Value>> = likeliest.collect();
        json!({
            "tokens": tokens.iter().map(|token| &token.text).collect::<Vec<_>>(),
            "token_logprobs": tokens.iter().map(|token| token.logarithm).collect::<Vec<_>>(),
            "top_logprobs": likeliest, "text_offset": begins,
        })
    }

    fn object(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "choices": choices,
        })
    }

    fn whole(&mut self, written: &WrittenText) -> Value {
        let mut text = self.text(&written.text);
        let mut message = json!({ "role": "assistant", "content": null, "refusal": null });
        let mut reason = reason(written.ending);
        match self.end() {
            AnswerEnd::Text(rest) => text.push_str(&rest),
            AnswerEnd::Calls(mut calls) => {
                // Parts of a stream alone say which call they are of.
                for call in calls.iter_mut().filter_map(Value::as_object_mut) {
                    call.remove("index");
                }
                message["tool_calls"] = json!(calls);
                reason = CALLS;
            }
        }
        if reason != CALLS || !text.is_empty() {
            message["content"] = json!(text);
        }
        let weights = self.weights(&written.weighed);
        let (object, choice) = match self.is_chat {
            true => (
                "chat.completion",
                json!({
                    "index": 0, "finish_reason": reason, "logprobs": weights,
                    "message": message,
                }),
            ),
            false => (
                "text_completion",
                json!({
                    "index": 0, "finish_reason": reason, "logprobs": weights,
                    "text": text,
                }),
            ),
        };
        let mut whole = self.object(object, json!([choice]));
        whole["usage"] = usage(written);
        whole
    }

    /// What of a piece is text for sure.
    fn text(&mut self, piece: &str) -> String {
        match &mut self.calls {
            Some(calls) => calls.push(piece),
            None => piece.to_owned(),
        }
    }

    fn end(&mut self) -> AnswerEnd {
        let none = AnswerEnd::Text(String::new());
        self.calls.take().map_or(none, AnswerReader::finish)
    }

    /// A part of a stream.
    fn part(&self, text: Option<&str>, reason: Option<&str>) -> Value {
        let mut choice = json!({ "index": 0, "finish_reason": reason, "logprobs": null });
        if self.is_chat {
            choice["delta"] = text.map_or(json!({}), |text| json!({ "content": text }));
            return self.object("chat.completion.chunk", json!([choice]));
        }
        choice["text"] = json!(text.unwrap_or_default());
        self.object("text_completion", json!([choice]))
    }

    /// What a stream begins with.
    fn first(&self) -> Option<Value> {
        let mut part = self.part(Some(""), None);
        part["choices"][0]["delta"]["role"] = json!("assistant");
        self.is_chat.then_some(part)
    }

    /// The parts that an event makes.
    fn parts(&mut self, event: Event, has_usage: bool) -> Vec<String> {
        match event {
            Event::Piece(piece, tokens) => {
                let text = self.text(&piece);
                if text.is_empty() && tokens.is_empty() {
                    return Vec::new();
                }
                let mut part = self.part(Some(&text), None);
                part["choices"][0]["logprobs"] = self.weights(&tokens);
                vec![part.to_string()]
            }
            Event::Vectors(_) => Vec::new(),
            Event::Failed(refusal) => vec![refusal.object().to_string()],
            Event::Done(written) => {
                let mut parts = Vec::new();
                let mut reason = reason(written.ending);
                match self.end() {
                    AnswerEnd::Text(rest) if rest.is_empty() => {}
                    AnswerEnd::Text(rest) => parts.push(self.part(Some(&rest), None).to_string()),
                    AnswerEnd::Calls(calls) => {
                        let mut part = self.part(None, None);
                        part["choices"][0]["delta"] = json!({ "tool_calls": calls });
                        parts.push(part.to_string());
                        reason = CALLS;
                    }
                }
                parts.push(self.part(None, Some(reason)).to_string());
                if has_usage {
                    let mut last = self.part(None, None);
                    last["choices"] = json!([]);
                    last["usage"] = usage(&written);
                    parts.push(last.to_string());
                }
                parts.push(DONE.to_owned());
                parts
            }
        }
    }
}

fn reason(ending: TextEnding) -> &'static str {
    match ending {
        TextEnding::Stop | TextEnding::Token | TextEnding::Grammar => "stop",
        TextEnding::Length | TextEnding::Room | TextEnding::Unwanted => "length",
    }
}

/// A token with its probability, and the likeliest ones, in a conversation.
fn weighed(token: &WeighedToken) -> Value {
    let one = |text: &str, logarithm: f64| {
        // Of a token that ends within a character the bytes are not known.
        let is_whole = !text.contains(char::REPLACEMENT_CHARACTER);
        let bytes = is_whole.then_some(text.as_bytes());
        json!({ "token": text, "logprob": logarithm, "bytes": bytes })
    };
    let likeliest = token.likeliest.iter();
    let likeliest: Vec<Value> = likeliest.map(|(text, it)| one(text, *it)).collect();
    let mut made = one(&token.text, token.logarithm);
    made["top_logprobs"] = json!(likeliest);
    made
}

fn usage(written: &WrittenText) -> Value {
    let (prompt, made) = (written.prompt, written.tokens.len());
    json!({
        "prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made,
        "prompt_tokens_details": { "cached_tokens": written.kept },
    })
}

/// An answer that is told once all of it is there.
pub async fn whole(
    mut shape: Shape,
    mut events: mpsc::Receiver<Event>,
) -> Result<Response, Refusal> {
    while let Some(event) = events.recv().await {
        match event {
            Event::Piece(..) | Event::Vectors(_) => {}
            Event::Done(written) => return Ok(Json(shape.whole(&written)).into_response()),
            Event::Failed(refusal) => return Err(refusal),
        }
    }
    Err(Refusal::stopping())
}

/// An answer that is told as it comes. What fails before its first piece is refused as such.
pub async fn stream(
    mut shape: Shape,
    mut events: mpsc::Receiver<Event>,
    has_usage: bool,
) -> Result<Response, Refusal> {
    let first = match events.recv().await {
        Some(Event::Failed(refusal)) => return Err(refusal),
        Some(event) => event,
        None => return Err(Refusal::stopping()),
    };
    let mut begin: Vec<String> = shape.first().iter().map(Value::to_string).collect();
    begin.extend(shape.parts(first, has_usage));
    let rest = stream::poll_fn(move |context| events.poll_recv(context));
    let rest = rest.flat_map(move |event| stream::iter(shape.parts(event, has_usage)));
    let parts = stream::iter(begin).chain(rest);
    let parts = parts.map(|part| Ok::<_, Infallible>(sse::Event::default().data(part)));
    let kept = Sse::new(parts).keep_alive(KeepAlive::default());
    Ok(kept.into_response())
}
