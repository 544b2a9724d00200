//! Finds the tool calls in a model's text as it arrives. It holds back text that could be the
//! beginning of a call until that is certain.

use serde_json::{Deserializer, Map, Value};

use super::{ARGUMENTS, BEGIN, CALL_ID, CallForm, END, LIST, Tool, ToolCall};

/// The names of a call's arguments. Some models learned one and write the other.
const KEYS: [&str; 2] = ["arguments", "parameters"];

/// A call without an id: name and arguments.
type NamedCall = (String, Map<String, Value>);

/// Separates text and calls in a model's output.
#[derive(Clone, Debug)]
pub struct CallReader {
    form: CallForm,
    names: Vec<String>,
    /// Whether the reader has returned text.
    is_text: bool,
    pending_text: String,
}

impl CallReader {
    /// Creates a reader for calls of these tools. The first piece must include the part of a call
    /// that the prompt already contains.
    #[must_use]
    pub fn new(form: CallForm, tools: &[Tool]) -> Self {
        Self {
            form,
            names: tools.iter().map(|tool| tool.name.clone()).collect(),
            is_text: false,
            pending_text: String::new(),
        }
    }

    /// Adds a piece and returns the part that is certainly text.
    pub fn push(&mut self, piece: &str) -> String {
        self.pending_text.push_str(piece);
        let rest = self.pending_text.split_off(self.certain_text_length());
        let text = std::mem::replace(&mut self.pending_text, rest);
        self.is_text |= !text.is_empty();
        text
    }

    /// Ends the text and returns its calls, or as an error the rest of the text. `id` makes the id
    /// of each call from its number.
    pub fn finish(self, id: impl Fn(usize) -> String) -> Result<Vec<ToolCall>, String> {
        let calls = match self.form {
            CallForm::Marked => self.parse_marked_calls(),
            CallForm::Listed => self.parse_listed_calls(),
            CallForm::Bare | CallForm::Channels => self.parse_bare_call(),
        };
        let Some(calls) = calls.filter(|calls| !calls.is_empty()) else {
            return Err(self.pending_text);
        };
        let calls = calls.into_iter().enumerate();
        let calls = calls.map(|(at, (name, arguments))| ToolCall {
            id: id(at),
            name,
            arguments,
        });
        Ok(calls.collect())
    }

    /// Returns how many bytes of the held text cannot belong to a call.
    fn certain_text_length(&self) -> usize {
        match self.form {
            CallForm::Bare | CallForm::Channels => {
                match self.is_text || !may_be_bare(&self.pending_text) {
                    true => self.pending_text.len(),
                    false => 0,
                }
            }
            CallForm::Marked | CallForm::Listed => {
                let mark = if self.form == CallForm::Listed {
                    LIST
                } else {
                    BEGIN
                };
                let begin = self.pending_text.find(mark);
                let begin = begin.unwrap_or_else(|| {
                    self.pending_text.len() - partial_mark_length(&self.pending_text, mark)
                });
                self.pending_text[..begin].trim_end().len()
            }
        }
    }

    /// Returns the calls between marks, with only space around them. The last mark may be missing:
    /// the token that ends a text stands for it.
    fn parse_marked_calls(&self) -> Option<Vec<NamedCall>> {
        let (mut rest, mut calls) = (self.pending_text.trim(), Vec::new());
        while !rest.is_empty() {
            let json = rest.strip_prefix(BEGIN)?;
            let mut values = Deserializer::from_str(json).into_iter();
            calls.push(self.to_named_call(values.next()?.ok()?)?);
            rest = json[values.byte_offset()..].trim_start();
            if !rest.is_empty() {
                rest = rest.strip_prefix(END)?.trim_start();
            }
        }
        Some(calls)
    }

    /// Returns the calls after marks: each a list of calls, or a name with its arguments.
    fn parse_listed_calls(&self) -> Option<Vec<NamedCall>> {
        let (mut rest, mut calls) = (self.pending_text.trim(), Vec::new());
        while !rest.is_empty() {
            let call = rest.strip_prefix(LIST)?.trim_start();
            if call.starts_with(['[', '{']) {
                let mut values = Deserializer::from_str(call).into_iter();
                match values.next()?.ok()? {
                    Value::Array(several) => {
                        for call in several {
                            calls.push(self.to_named_call(call.as_object()?.clone())?);
                        }
                    }
                    Value::Object(call) => calls.push(self.to_named_call(call)?),
                    _ => return None,
                }
                rest = call[values.byte_offset()..].trim_start();
                continue;
            }
            let name = &call[..call.find(['[', '{'])?];
            let after = &call[name.len()..];
            let json = match after.strip_prefix(CALL_ID) {
                Some(id) => id.split_once(ARGUMENTS)?.1,
                None => after.strip_prefix(ARGUMENTS).unwrap_or(after),
            };
            let mut values = Deserializer::from_str(json).into_iter();
            let arguments: Map<String, Value> = values.next()?.ok()?;
            let name = name.trim().to_owned();
            calls.push(self.names.contains(&name).then_some((name, arguments))?);
            rest = json[values.byte_offset()..].trim_start();
        }
        Some(calls)
    }

    fn parse_bare_call(&self) -> Option<Vec<NamedCall>> {
        let call = serde_json::from_str(self.pending_text.trim()).ok()?;
        Some(vec![self.to_named_call(call)?])
    }

    fn to_named_call(&self, mut call: Map<String, Value>) -> Option<NamedCall> {
        let arguments = match KEYS.iter().find_map(|key| call.remove(*key)) {
            Some(Value::Object(arguments)) => arguments,
            None => Map::new(),
            Some(_) => return None,
        };
        match call.remove("name") {
            Some(Value::String(name)) if self.names.contains(&name) => Some((name, arguments)),
            _ => None,
        }
    }
}

/// Returns whether a text may be a call alone.
fn may_be_bare(text: &str) -> bool {
    let text = text.trim_start();
    text.is_empty() || text.starts_with('{')
}

/// Returns the length in bytes of the longest ending that begins a mark.
fn partial_mark_length(text: &str, mark: &str) -> usize {
    let most = (mark.len() - 1).min(text.len());
    let mut lengths = (1..=most).rev();
    let ending = |length: &usize| text.as_bytes().ends_with(&mark.as_bytes()[..*length]);
    lengths.find(ending).unwrap_or(0)
}
