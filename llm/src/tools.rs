//! Tools that a model may call: what it is told of them, and its calls in what it writes.
//!
//! Models were taught different forms of a call. Which one, their chat template says.

mod reading;

use serde::Serialize;
use serde_json::{Map, Value, json};

pub use reading::CallReader;

/// What a call stands between, as Hermes and Qwen write one.
const BEGIN: &str = "<tool_call>";
const END: &str = "</tool_call>";

/// A function that may be called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tool {
    /// What it is called.
    pub name: String,
    /// What it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The JSON schema of what it is given.
    pub parameters: Value,
}

/// A call of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// What the answer to it names.
    pub id: String,
    /// The function.
    pub name: String,
    /// What it is given.
    pub arguments: Map<String, Value>,
}

/// How a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallForm {
    /// Each as `{"name", "arguments"}` between marks, as Hermes and Qwen do.
    Marked,
    /// One as `{"name", "parameters"}` and nothing else, as Llama 3 does.
    Bare,
}

impl CallForm {
    /// The form that a chat template speaks of, if it is a known one.
    #[must_use]
    pub fn of(template: &str) -> Option<Self> {
        if template.contains(BEGIN) {
            return Some(Self::Marked);
        }
        let is_bare = template.contains("\"name\"") && template.contains("\"parameters\"");
        is_bare.then_some(Self::Bare)
    }

    /// What a call begins with, before its JSON.
    #[must_use]
    pub fn opening(self) -> &'static str {
        match self {
            Self::Marked => "<tool_call>\n",
            Self::Bare => "",
        }
    }

    fn arguments_key(self) -> &'static str {
        match self {
            Self::Marked => "arguments",
            Self::Bare => "parameters",
        }
    }

    /// The JSON schema of a call of one of these.
    #[must_use]
    pub fn schema(self, tools: &[Tool]) -> Value {
        let key = self.arguments_key();
        let calls = tools.iter().enumerate().map(|(at, tool)| {
            let mut arguments = tool.parameters.clone();
            move_references(&mut arguments, &format!("#/anyOf/{at}/properties/{key}"));
            json!({
                "type": "object", "additionalProperties": false, "required": ["name", key],
                "properties": { "name": { "const": tool.name }, key: arguments },
            })
        });
        json!({ "anyOf": calls.collect::<Vec<_>>() })
    }
}

/// What templates are told of a tool, as OpenAI has it.
#[must_use]
pub fn described(tool: &Tool) -> Value {
    json!({ "type": "function", "function": tool })
}

/// Lets references within a schema find what they name once it is part of a larger one.
fn move_references(schema: &mut Value, home: &str) {
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (name.as_str(), &mut *value) {
                    ("$ref", Value::String(target)) if target.starts_with('#') => {
                        *target = format!("{home}{}", &target[1..]);
                    }
                    _ => move_references(value, home),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|it| move_references(it, home)),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
