//! Messages of a conversation as OpenAI's clients send them.

use serde_json::{Value, json};
use souk_llm::chat::Message;
use souk_llm::tools::ToolCall;

use super::Fields;
use crate::commands::openai::refusal::Refusal;

/// Where something is within a question, as a refusal names it.
struct FieldPath(String);

impl FieldPath {
    fn within(&self, field: &str) -> Self {
        Self(format!("{}{field}", self.0))
    }

    fn refused(&self, what: &str) -> Refusal {
        Refusal::field(&self.0, format!("{} should be {what}", self.0))
    }
}

/// The message that stands at this place of the list.
pub fn message_at(at: usize, given: Value) -> Result<Message, Refusal> {
    let place = FieldPath(format!("messages[{at}]"));
    let Value::Object(given) = given else {
        return Err(place.refused("an object"));
    };
    let mut fields = Fields::new(given);
    let role = match fields.0.remove("role") {
        Some(Value::String(role)) => role,
        _ => return Err(place.within(".role").refused("the name of a role")),
    };
    let role = match role.as_str() {
        "developer" => "system",
        known @ ("system" | "user" | "assistant" | "tool") => known,
        _ => {
            let what = "system, developer, user, assistant or tool";
            return Err(place.within(".role").refused(what));
        }
    };
    let calls = match role {
        "assistant" => calls(&place, fields.0.remove("tool_calls"))?,
        _ => Vec::new(),
    };
    let call_id = match (role, fields.0.remove("tool_call_id")) {
        ("tool", Some(Value::String(id))) => Some(id),
        (role, None) if role != "tool" => None,
        _ => {
            let what = "the id of the call that a message of role tool answers";
            return Err(place.within(".tool_call_id").refused(what));
        }
    };
    let content = match fields.0.remove("content") {
        // Who calls may say nothing beside.
        None if !calls.is_empty() => String::new(),
        content => text(&place, content)?,
    };
    for (name, same) in [("tool_calls", json!([])), ("annotations", json!([]))] {
        fields.only(name, &[same])?;
    }
    match fields.0.keys().next() {
        Some(name) => Err(Refusal::unsupported(&place.within(&format!(".{name}")).0)),
        None => Ok(Message {
            role: role.to_owned(),
            content,
            calls,
            call_id,
        }),
    }
}

fn text(place: &FieldPath, content: Option<Value>) -> Result<String, Refusal> {
    match content {
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(parts)) => {
            let parts = parts.iter().enumerate();
            let texts = parts.map(|(at, part)| match (&part["type"], &part["text"]) {
                (Value::String(kind), Value::String(text)) if kind == "text" => Ok(text.as_str()),
                _ => {
                    let part = place.within(&format!(".content[{at}]"));
                    Err(part.refused("a part of type text"))
                }
            });
            texts.collect()
        }
        _ => Err(place
            .within(".content")
            .refused("a text, or parts of type text")),
    }
}

/// Calls that the model made before.
fn calls(place: &FieldPath, given: Option<Value>) -> Result<Vec<ToolCall>, Refusal> {
    let place = place.within(".tool_calls");
    let given = match given {
        None => return Ok(Vec::new()),
        Some(Value::Array(given)) => given,
        Some(_) => return Err(place.refused("a list of calls")),
    };
    let calls = given.iter().enumerate().map(|(at, call)| {
        let place = place.within(&format!("[{at}]"));
        let function = &call["function"];
        let named = [
            &call["type"],
            &call["id"],
            &function["name"],
            &function["arguments"],
        ];
        let [Some("function"), Some(id), Some(name), Some(arguments)] = named.map(Value::as_str)
        else {
            let what = "a call of type function, with an id, a name and arguments as texts";
            return Err(place.refused(what));
        };
        let parsed = serde_json::from_str(arguments);
        let wrong = |_| {
            place
                .within(".function.arguments")
                .refused("the text of a JSON object")
        };
        Ok(ToolCall {
            id: id.to_owned(),
            name: name.to_owned(),
            arguments: parsed.map_err(wrong)?,
        })
    });
    calls.collect()
}
