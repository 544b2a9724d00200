//! Answers in OpenAI's shapes: whole, or as events piece by piece.

use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, StreamExt};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::desk::Event;
use super::refusal::Refusal;
use crate::commands::texts::{TextEnding, WrittenText};

/// What ends a stream.
const DONE: &str = "[DONE]";

/// What all parts of an answer say.
pub struct Shape {
    is_chat: bool,
    id: String,
    created: u64,
    model: String,
}

impl Shape {
    /// Of an answer in a conversation (`chat`) or to a text.
    pub fn new(kind: &str, model: &str) -> Self {
        let is_chat = kind == "chat";
        let prefix = if is_chat { "chatcmpl" } else { "cmpl" };
        let created = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            is_chat,
            id: format!("{prefix}-{:016x}", RandomState::new().hash_one(prefix)),
            created: created.map_or(0, |it| it.as_secs()),
            model: model.to_owned(),
        }
    }

    fn object(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "choices": choices,
        })
    }

    fn whole(&self, written: &WrittenText) -> Value {
        let reason = reason(written.ending);
        let (object, choice) = match self.is_chat {
            true => (
                "chat.completion",
                json!({
                    "index": 0, "finish_reason": reason, "logprobs": null,
                    "message": {
                        "role": "assistant", "content": written.text, "refusal": null,
                    },
                }),
            ),
            false => (
                "text_completion",
                json!({
                    "index": 0, "finish_reason": reason, "logprobs": null,
                    "text": written.text,
                }),
            ),
        };
        let mut whole = self.object(object, json!([choice]));
        whole["usage"] = usage(written);
        whole
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
    fn parts(&self, event: Event, has_usage: bool) -> Vec<String> {
        match event {
            Event::Piece(piece) => vec![self.part(Some(&piece), None).to_string()],
            Event::Failed(refusal) => vec![refusal.object().to_string()],
            Event::Done(written) => {
                let last = self.part(None, Some(reason(written.ending)));
                let mut parts = vec![last.to_string()];
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
        TextEnding::Stop | TextEnding::Token => "stop",
        TextEnding::Length | TextEnding::Room | TextEnding::Unwanted => "length",
    }
}

fn usage(written: &WrittenText) -> Value {
    let (prompt, made) = (written.prompt, written.tokens.len());
    json!({
        "prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made,
        "prompt_tokens_details": { "cached_tokens": written.kept },
    })
}

/// An answer that is told once all of it is there.
pub async fn whole(shape: &Shape, mut events: mpsc::Receiver<Event>) -> Result<Response, Refusal> {
    while let Some(event) = events.recv().await {
        match event {
            Event::Piece(_) => {}
            Event::Done(written) => return Ok(Json(shape.whole(&written)).into_response()),
            Event::Failed(refusal) => return Err(refusal),
        }
    }
    Err(Refusal::stopping())
}

/// An answer that is told as it comes. What fails before its first piece is refused as such.
pub async fn stream(
    shape: Shape,
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
