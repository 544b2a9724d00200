//! Converts one line of a file of training examples to tokens, with a model's tokeniser and chat
//! template.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Example, ExampleError};
use crate::chat::{Conversation, Message};
use crate::model::Card;
use crate::tokens::{Marks, Tokenizer};

/// Reads examples with a model's tokeniser and chat template.
#[derive(Clone, Copy)]
pub struct ExampleReader<'a> {
    /// The model's metadata, with its chat template.
    pub card: &'a Card,
    /// The model's tokeniser.
    pub tokenizer: &'a Tokenizer,
    /// The most tokens of an example.
    pub tokens_max: usize,
    /// Unix time in seconds, for a template that prints the date.
    pub now: u64,
}

/// A line in any of the forms. Other keys, such as an id, have no meaning for training.
#[derive(Deserialize)]
struct Line {
    text: Option<String>,
    prompt: Option<Value>,
    completion: Option<Value>,
    messages: Option<Vec<MessageLine>>,
    tools: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MessageLine {
    role: String,
    content: String,
    name: Option<String>,
}

/// A part of the text of an example.
struct TextPart {
    text: String,
    is_answer: bool,
}

impl ExampleReader<'_> {
    /// Reads the examples of a file, one from each line that is not empty.
    ///
    /// # Errors
    /// [`ExampleError`] with the number of the line.
    pub fn read_lines(&self, lines: &str) -> Result<Vec<Example>, ExampleError> {
        let lines = lines.lines().enumerate();
        let filled = lines.filter(|(_, line)| !line.trim().is_empty());
        let examples = filled.map(|(place, line)| self.read_line(place + 1, line));
        let examples = examples.collect::<Result<Vec<Example>, _>>()?;
        match examples.is_empty() {
            true => Err(ExampleError::Empty),
            false => Ok(examples),
        }
    }

    fn read_line(&self, line: usize, json: &str) -> Result<Example, ExampleError> {
        let read = serde_json::from_str::<Map<String, Value>>(json)
            .and_then(|object| serde_json::from_value::<Line>(Value::Object(object)))
            .map_err(|cause| ExampleError::Json { line, cause })?;
        let form = |why| Err(ExampleError::Form { line, why });
        if read.tools.is_some_and(|tools| !tools.is_null()) {
            return form("has tools, which training does not support");
        }
        let text = |value: Option<Value>| value.and_then(|it| it.as_str().map(str::to_owned));
        let is_pair = read.prompt.is_some() || read.completion.is_some();
        let example = match (read.text, read.messages, is_pair) {
            (Some(text), None, false) => {
                let is_answer = true;
                self.encode_parts(line, &[TextPart { text, is_answer }], Marks::Added)?
            }
            (None, None, true) => {
                let (Some(prompt), Some(completion)) = (text(read.prompt), text(read.completion))
                else {
                    return form("does not have both prompt and completion as texts");
                };
                let parts = [(prompt, false), (completion, true)];
                let parts = parts.map(|(text, is_answer)| TextPart { text, is_answer });
                self.encode_parts(line, &parts, Marks::Added)?
            }
            (None, Some(messages), false) => {
                let parts = self.render_messages(line, messages)?;
                self.encode_parts(line, &parts, Marks::Own)?
            }
            _ => {
                return form("has not just one of text, prompt with completion, and messages");
            }
        };
        self.check_example(line, example)
    }

    fn check_example(&self, line: usize, example: Example) -> Result<Example, ExampleError> {
        let vocabulary = self.card.vocabulary;
        let mut tokens = example.tokens.iter();
        if let Some(token) = tokens.find(|it| **it as usize >= vocabulary).copied() {
            return Err(ExampleError::Vocabulary {
                line,
                token,
                vocabulary,
            });
        }
        let (found, limit) = (example.tokens.len(), self.tokens_max);
        if found > limit {
            return Err(ExampleError::Long { line, found, limit });
        }
        if !example.is_answer.iter().skip(1).any(|it| *it) {
            return Err(ExampleError::NoAnswer { line });
        }
        Ok(example)
    }

    /// Splits a conversation into what the template gives the model and the assistant's answers.
    fn render_messages(
        &self,
        line: usize,
        messages: Vec<MessageLine>,
    ) -> Result<Vec<TextPart>, ExampleError> {
        let template = self.card.template.as_ref();
        let template = template.ok_or(ExampleError::NoTemplate { line })?;
        let messages: Vec<Message> = messages
            .into_iter()
            .map(|it| Message {
                role: it.role,
                content: it.content,
                name: it.name,
                ..Message::default()
            })
            .collect();
        let render = |count: usize, is_prompt: bool| {
            let values = Map::from_iter([("add_generation_prompt".to_owned(), is_prompt.into())]);
            let text = template.render(&Conversation {
                messages: &messages[..count],
                values: Some(&values),
                now: self.now,
                ..Conversation::default()
            });
            text.map_err(|cause| ExampleError::Chat { line, cause })
        };
        let mut parts = Vec::new();
        let mut rendered = String::new();
        for (place, message) in messages.iter().enumerate() {
            if message.role != "assistant" {
                continue;
            }
            let (before, after) = (render(place, true)?, render(place + 1, false)?);
            let given = before.strip_prefix(&rendered);
            let (Some(given), Some(answer)) = (given, after.strip_prefix(&before)) else {
                let why = "has messages that the chat template does not render one after the \
                           other: leave one answer, the last";
                return Err(ExampleError::Form { line, why });
            };
            let pair = [(given, false), (answer, true)];
            parts.extend(pair.map(|(text, is_answer)| TextPart {
                text: text.to_owned(),
                is_answer,
            }));
            rendered = after;
        }
        Ok(parts)
    }

    /// Returns the tokens of all parts together. A token is an answer if it begins in one.
    fn encode_parts(
        &self,
        line: usize,
        parts: &[TextPart],
        marks: Marks,
    ) -> Result<Example, ExampleError> {
        let whole: String = parts.iter().map(|part| part.text.as_str()).collect();
        let encoded = self.tokenizer.encode_places(&whole, marks);
        let encoded = encoded.map_err(|cause| ExampleError::Token { line, cause })?;
        let is_answer = |start: usize| {
            let mut end = 0;
            let mut parts = parts.iter();
            let found = parts.find(|part| {
                end += part.text.len();
                start < end
            });
            found.is_some_and(|part| part.is_answer)
        };
        let mut example = Example {
            is_answer: encoded.iter().map(|it| is_answer(it.start)).collect(),
            tokens: encoded.iter().map(|it| it.id).collect(),
        };
        // A template has its own marks after an answer. Other texts end with the model's.
        let end = self.card.ends.first().filter(|_| marks == Marks::Added);
        if let Some(end) = end {
            // The tokeniser may have added it already, at no place in the text.
            if example.tokens.last() == Some(end) {
                example.tokens.pop();
                example.is_answer.pop();
            }
            example.tokens.push(*end);
            example.is_answer.push(true);
        }
        Ok(example)
    }
}
