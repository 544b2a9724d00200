//! Formats a model's answers as OpenAI's API does: whole, or as a stream of server-sent events.

use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, StreamExt};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::choice::Choice;
use crate::refusal::Refusal;
use crate::request_queue::Event;
use souk_texts::WrittenText;

/// The last event of a stream.
pub const DONE: &str = "[DONE]";

/// The kind of request that an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// A conversation.
    Chat,
    /// A text to continue.
    Text,
}

/// A choice and its events.
pub struct ChoiceEvents {
    pub choice: Choice,
    pub events: mpsc::Receiver<Event>,
}

/// The fields that all parts of an answer share.
pub struct AnswerFields {
    kind: AnswerKind,
    id: String,
    created: u64,
    model: String,
}

impl AnswerFields {
    /// Creates the fields for an answer of a model.
    pub fn new(kind: AnswerKind, model: &str) -> Self {
        let prefix = match kind {
            AnswerKind::Chat => "chatcmpl",
            AnswerKind::Text => "cmpl",
        };
        let created = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            kind,
            id: format!("{prefix}-{:016x}", RandomState::new().hash_one(prefix)),
            created: created.map_or(0, |it| it.as_secs()),
            model: model.to_owned(),
        }
    }

    fn to_object(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "choices": choices,
        })
    }

    fn format_whole(&self, choices: Vec<Value>, usage: &Usage) -> Value {
        let object = match self.kind {
            AnswerKind::Chat => "chat.completion",
            AnswerKind::Text => "text_completion",
        };
        let mut whole = self.to_object(object, json!(choices));
        whole["usage"] = usage.to_json();
        whole
    }

    /// Formats a whole conversation's answer.
    pub fn format_chat(&self, choices: Value, usage: Value) -> Value {
        let mut whole = self.to_object("chat.completion", choices);
        whole["usage"] = usage;
        whole
    }

    /// Formats the part of a conversation's stream that states its tokens.
    pub fn format_usage(&self, usage: Value) -> String {
        let mut last = self.to_object("chat.completion.chunk", json!([]));
        last["usage"] = usage;
        last.to_string()
    }

    /// Formats a part of a stream.
    pub fn format_part(&self, choices: Value) -> String {
        let object = match self.kind {
            AnswerKind::Chat => "chat.completion.chunk",
            AnswerKind::Text => "text_completion",
        };
        self.to_object(object, choices).to_string()
    }
}

/// Token counts of all choices. The tokens of a prompt count once, however many answers it gets.
#[derive(Default)]
struct Usage {
    prompt: usize,
    kept: usize,
    made: usize,
}

impl Usage {
    fn add(&mut self, choice: &Choice, written: &WrittenText) {
        if choice.is_first() {
            self.prompt += written.prompt;
            self.kept += written.kept;
        }
        self.made += written.tokens.len();
    }

    fn to_json(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt, "completion_tokens": self.made,
            "total_tokens": self.prompt + self.made,
            "prompt_tokens_details": { "cached_tokens": self.kept },
        })
    }
}

/// Returns the whole answer once all its choices are complete.
pub async fn collect_answer(
    shape: AnswerFields,
    choices: Vec<ChoiceEvents>,
) -> Result<Response, Refusal> {
    let (mut told, mut usage) = (Vec::with_capacity(choices.len()), Usage::default());
    for ChoiceEvents { choice, mut events } in choices {
        let written = loop {
            match events.recv().await {
                Some(Event::Piece(..) | Event::Vectors(_)) => {}
                Some(Event::Done(written)) => break written,
                Some(Event::Failed(refusal)) => return Err(refusal),
                None => return Err(Refusal::server_stopping()),
            }
        };
        usage.add(&choice, &written);
        told.push(choice.format_whole(&written));
    }
    Ok(Json(shape.format_whole(told, &usage)).into_response())
}

/// The state of a streamed answer.
struct AnswerStream {
    shape: AnswerFields,
    choices: Vec<Choice>,
    usage: Usage,
    has_usage: bool,
    /// Number of choices that are not complete.
    left: usize,
}

impl AnswerStream {
    /// Returns the first part of each choice.
    fn first_parts(&mut self) -> Vec<String> {
        let shape = &self.shape;
        let first = self.choices.iter_mut().filter_map(Choice::first_part);
        first.map(|part| shape.format_part(json!([part]))).collect()
    }

    /// Returns the parts for an event of a choice.
    fn event_parts(&mut self, at: usize, event: Event) -> Vec<String> {
        let choice = &mut self.choices[at];
        let mut parts: Vec<String> = match event {
            Event::Piece(piece, tokens) => {
                let parts = choice.piece_parts(&piece, &tokens).into_iter();
                parts
                    .map(|part| self.shape.format_part(json!([part])))
                    .collect()
            }
            Event::Vectors(_) => Vec::new(),
            // A client can do nothing with the rest.
            Event::Failed(refusal) => {
                self.left = usize::MAX;
                vec![refusal.to_object().to_string()]
            }
            Event::Done(written) => {
                self.left = self.left.saturating_sub(1);
                self.usage.add(choice, &written);
                let parts = choice.last_parts(&written).into_iter();
                parts
                    .map(|part| self.shape.format_part(json!([part])))
                    .collect()
            }
        };
        if self.left == 0 {
            if self.has_usage {
                let mut last = self.shape.to_object("", json!([]));
                last["usage"] = self.usage.to_json();
                last["object"] = match self.shape.kind {
                    AnswerKind::Chat => json!("chat.completion.chunk"),
                    AnswerKind::Text => json!("text_completion"),
                };
                parts.push(last.to_string());
            }
            parts.push(DONE.to_owned());
        }
        parts
    }
}

/// Streams the answer as its events arrive. If it fails before the first piece, returns that
/// refusal.
pub async fn stream_answer(
    shape: AnswerFields,
    choices: Vec<ChoiceEvents>,
    has_usage: bool,
) -> Result<Response, Refusal> {
    let left = choices.len();
    let (choices, events): (Vec<_>, Vec<_>) =
        choices.into_iter().map(|it| (it.choice, it.events)).unzip();
    let events = events.into_iter().enumerate().map(|(at, mut events)| {
        let events = stream::poll_fn(move |context| events.poll_recv(context));
        events.map(move |event| (at, event))
    });
    let mut events = stream::select_all(events);
    let (at, first) = match events.next().await {
        Some((_, Event::Failed(refusal))) => return Err(refusal),
        Some(first) => first,
        None => return Err(Refusal::server_stopping()),
    };
    let mut telling = AnswerStream {
        shape,
        choices,
        usage: Usage::default(),
        has_usage,
        left,
    };
    let mut begin = telling.first_parts();
    begin.extend(telling.event_parts(at, first));
    let rest = events.flat_map(move |(at, event)| stream::iter(telling.event_parts(at, event)));
    let parts = stream::iter(begin).chain(rest);
    let parts = parts.map(|part| Ok::<_, Infallible>(sse::Event::default().data(part)));
    let kept = Sse::new(parts).keep_alive(KeepAlive::default());
    Ok(kept.into_response())
}
