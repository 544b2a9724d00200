//! Formats one choice of an answer (OpenAI's word for one of several alternatives) as it is
//! written, whole or in pieces.

use std::hash::{BuildHasher, RandomState};

use serde_json::{Map, Value, json};
use souk_llm::answer::{AnswerPiece, AnswerReader};
use souk_llm::tools::CallForm;

use crate::tool_calls::format_call;
use souk_texts::{TextEnding, TokenLogprobs, WrittenText};

/// Finish reason of a choice that calls tools.
const CALLS: &str = "tool_calls";

/// The reader of a choice in a conversation.
pub struct ChatChoice {
    pub reader: AnswerReader,
    /// Form of the calls, if the choice can make any.
    pub calls: Option<CallForm>,
    /// Largest number of calls.
    pub calls_max: usize,
}

/// One choice of an answer.
pub struct Choice {
    index: usize,
    /// Number of choices for the same prompt.
    siblings: usize,
    /// Whether the choice reports probabilities.
    has_logprobs: bool,
    /// Characters of the tokens whose probabilities the choice has reported.
    told: usize,
    /// The prompt, if the choice begins with it.
    echo: Option<String>,
    /// `None` if the choice continues a text.
    chat: Option<ChatChoice>,
}

/// The rest of a choice, and the reason why it ended.
struct ChoiceEnd {
    piece: AnswerPiece,
    calls: Vec<Value>,
    reason: &'static str,
}

impl Choice {
    /// Creates a choice of a conversation.
    pub fn for_chat(index: usize, siblings: usize, has_logprobs: bool, chat: ChatChoice) -> Self {
        Self {
            index,
            siblings,
            has_logprobs,
            told: 0,
            echo: None,
            chat: Some(chat),
        }
    }

    /// Creates a choice that continues a text, which it repeats first if `echo` holds it.
    pub fn for_text(
        index: usize,
        siblings: usize,
        has_logprobs: bool,
        echo: Option<String>,
    ) -> Self {
        Self {
            index,
            siblings,
            has_logprobs,
            told: 0,
            echo,
            chat: None,
        }
    }

    /// Returns whether this is the first choice for its prompt.
    pub fn is_first(&self) -> bool {
        self.index.is_multiple_of(self.siblings.max(1))
    }

    /// Formats the whole choice.
    pub fn format_whole(mut self, written: &WrittenText) -> Value {
        let tokens = [&written.prompt_logprobs[..], &written.logprobs[..]].concat();
        let weights = self.format_weights(&tokens);
        let mut piece = self.read(&written.text);
        let end = self.finish_reading(written);
        piece.thought.push_str(&end.piece.thought);
        piece.text.push_str(&end.piece.text);
        let mut choice = json!({
            "index": self.index, "finish_reason": end.reason, "logprobs": weights,
        });
        if self.chat.is_none() {
            let echo = self.echo.unwrap_or_default();
            choice["text"] = json!(echo + &piece.text);
            return choice;
        }
        let mut message = json!({ "role": "assistant", "content": null, "refusal": null });
        if !piece.thought.is_empty() {
            message["reasoning_content"] = json!(piece.thought);
        }
        if !end.calls.is_empty() {
            let mut calls = end.calls;
            // Only parts of a stream name the index of their call.
            for call in calls.iter_mut().filter_map(Value::as_object_mut) {
                call.remove("index");
            }
            message["tool_calls"] = json!(calls);
        }
        if end.reason != CALLS || !piece.text.is_empty() {
            message["content"] = json!(piece.text);
        }
        choice["message"] = message;
        choice
    }

    /// Returns the first part of its stream, if it has one.
    pub fn first_part(&mut self) -> Option<Value> {
        if self.chat.is_some() {
            return Some(self.format_part(json!({ "role": "assistant", "content": "" }), None));
        }
        let echo = self.echo.take()?;
        Some(self.format_part(json!(echo), None))
    }

    /// Returns the parts for a piece of text.
    pub fn piece_parts(&mut self, piece: &str, tokens: &[TokenLogprobs]) -> Vec<Value> {
        let read = self.read(piece);
        let weights = self.format_weights(tokens);
        let mut parts = self.content_parts(&read);
        if parts.is_empty() && !tokens.is_empty() {
            parts.push(self.format_part(self.format_content(""), None));
        }
        if let Some(last) = parts.last_mut() {
            last["logprobs"] = weights;
        }
        parts
    }

    /// Returns the last parts.
    pub fn last_parts(&mut self, written: &WrittenText) -> Vec<Value> {
        let end = self.finish_reading(written);
        let mut parts = self.content_parts(&end.piece);
        if !end.calls.is_empty() {
            parts.push(self.format_part(json!({ "tool_calls": end.calls }), None));
        }
        let nothing = match self.chat {
            Some(_) => json!({}),
            None => json!(""),
        };
        parts.push(self.format_part(nothing, Some(end.reason)));
        parts
    }

    fn read(&mut self, piece: &str) -> AnswerPiece {
        match &mut self.chat {
            Some(chat) => chat.reader.push(piece),
            None => AnswerPiece {
                text: piece.to_owned(),
                ..AnswerPiece::default()
            },
        }
    }

    fn finish_reading(&mut self, written: &WrittenText) -> ChoiceEnd {
        let mut end = ChoiceEnd {
            piece: AnswerPiece::default(),
            calls: Vec::new(),
            reason: finish_reason(written.ending),
        };
        if let Some(chat) = &mut self.chat {
            let seed = RandomState::new().hash_one("call");
            let form = chat.calls.unwrap_or(CallForm::Marked);
            let id = |at: usize| form.id(seed.wrapping_add(at as u64));
            let (piece, mut calls) = chat.reader.clone().finish(id);
            calls.truncate(chat.calls_max);
            end.piece = piece;
            end.calls = calls.iter().enumerate().map(format_call).collect();
        }
        if !end.calls.is_empty() {
            end.reason = CALLS;
        }
        end
    }

    /// Formats text for a part of a stream.
    fn format_content(&self, text: &str) -> Value {
        match self.chat {
            Some(_) => json!({ "content": text }),
            None => json!(text),
        }
    }

    fn content_parts(&self, piece: &AnswerPiece) -> Vec<Value> {
        let mut parts = Vec::new();
        if !piece.thought.is_empty() {
            let thought = json!({ "reasoning_content": piece.thought });
            parts.push(self.format_part(thought, None));
        }
        if !piece.text.is_empty() {
            parts.push(self.format_part(self.format_content(&piece.text), None));
        }
        parts
    }

    /// Formats a part of a stream.
    fn format_part(&self, content: Value, reason: Option<&str>) -> Value {
        let mut part = json!({ "index": self.index, "finish_reason": reason, "logprobs": null });
        let name = if self.chat.is_some() { "delta" } else { "text" };
        part[name] = content;
        part
    }

    /// Formats the probabilities of tokens.
    fn format_weights(&mut self, tokens: &[TokenLogprobs]) -> Value {
        if !self.has_logprobs {
            return Value::Null;
        }
        if self.chat.is_some() {
            let each: Vec<Value> = tokens.iter().map(format_token).collect();
            return json!({ "content": each, "refusal": null });
        }
        let begins = tokens.iter().map(|token| {
            let begin = self.told;
            self.told += token.to_text().chars().count();
            begin
        });
        let begins: Vec<usize> = begins.collect();
        let top_logprobs = tokens.iter().map(|token| {
            let each = token.top_logprobs.iter();
            let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
            let each: Map<_, _> = each.map(|(bytes, it)| (text(bytes), json!(it))).collect();
            token.logarithm.map(|_| each)
        });
        let top_logprobs: Vec<Option<Map<String, Value>>> = top_logprobs.collect();
        json!({
            "tokens": tokens.iter().map(TokenLogprobs::to_text).collect::<Vec<_>>(),
            "token_logprobs": tokens.iter().map(|token| token.logarithm).collect::<Vec<_>>(),
            "top_logprobs": top_logprobs, "text_offset": begins,
        })
    }
}

fn finish_reason(ending: TextEnding) -> &'static str {
    match ending {
        TextEnding::Stop | TextEnding::Token | TextEnding::Grammar => "stop",
        TextEnding::Length | TextEnding::Room | TextEnding::Unwanted => "length",
    }
}

/// Formats a token of a conversation with its probability and the most likely tokens.
fn format_token(token: &TokenLogprobs) -> Value {
    let one = |bytes: &[u8], logarithm: Option<f64>| {
        let text = String::from_utf8_lossy(bytes);
        json!({ "token": text, "logprob": logarithm, "bytes": bytes })
    };
    let top_logprobs = token.top_logprobs.iter();
    let top_logprobs: Vec<Value> = top_logprobs
        .map(|(bytes, it)| one(bytes, Some(*it)))
        .collect();
    let mut made = one(&token.bytes, token.logarithm);
    made["top_logprobs"] = json!(top_logprobs);
    made
}
