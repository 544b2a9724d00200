//! Reads the messages of a conversation in the format of OpenAI's API.

use serde_json::{Map, Value, json};
use souk_llm::chat::Message;
use souk_llm::tools::ToolCall;

use super::Fields;
use crate::refusal::Refusal;

/// Path of a field within the request, for refusals.
struct FieldPath(String);

impl FieldPath {
    fn join_field(&self, field: &str) -> Self {
        Self(format!("{}{field}", self.0))
    }

    fn type_refusal(&self, what: &str) -> Refusal {
        Refusal::invalid_field(&self.0, format!("{} should be {what}", self.0))
    }
}

/// Reads the message at this index of the list.
pub fn message_at(at: usize, given: Value) -> Result<Message, Refusal> {
    let place = FieldPath(format!("messages[{at}]"));
    let Value::Object(given) = given else {
        return Err(place.type_refusal("an object"));
    };
    let mut fields = Fields::new(given);
    let role = match fields.0.remove("role") {
        Some(Value::String(role)) => role,
        _ => return Err(place.join_field(".role").type_refusal("the name of a role")),
    };
    let role = match role.as_str() {
        "developer" => "system",
        known @ ("system" | "user" | "assistant" | "tool") => known,
        _ => {
            let what = "system, developer, user, assistant or tool";
            return Err(place.join_field(".role").type_refusal(what));
        }
    };
    let calls = match role {
        "assistant" => read_calls(&place, fields.0.remove("tool_calls"))?,
        _ => Vec::new(),
    };
    let call_id = match (role, fields.0.remove("tool_call_id")) {
        ("tool", Some(Value::String(id))) => Some(id),
        (role, None) if role != "tool" => None,
        _ => {
            let what = "the id of the call that a message of role tool answers";
            return Err(place.join_field(".tool_call_id").type_refusal(what));
        }
    };
    let content = match fields.0.remove("content") {
        // An assistant's message can lack content, because it calls tools or because the template
        // needs an empty text.
        None if role == "assistant" => String::new(),
        content => read_text(&place, content)?,
    };
    let mut said = |name: &str| match fields.0.remove(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(place.join_field(&format!(".{name}")).type_refusal("a text")),
    };
    let name = said("name")?;
    let reasoning = match role {
        "assistant" => said("reasoning_content")?.or(said("reasoning")?),
        _ => None,
    };
    for (name, same) in [("tool_calls", json!([])), ("annotations", json!([]))] {
        fields.refuse_unless_default(name, &[same])?;
    }
    match fields.0.keys().next() {
        Some(name) => Err(Refusal::unsupported_field(
            &place.join_field(&format!(".{name}")).0,
        )),
        None => Ok(Message {
            role: role.to_owned(),
            content,
            name,
            reasoning,
            calls,
            call_id,
        }),
    }
}

fn read_text(place: &FieldPath, content: Option<Value>) -> Result<String, Refusal> {
    match content {
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(parts)) => {
            let parts = parts.iter().enumerate();
            let texts = parts.map(|(at, part)| match (&part["type"], &part["text"]) {
                (Value::String(kind), Value::String(text)) if kind == "text" => Ok(text.as_str()),
                _ => {
                    let part = place.join_field(&format!(".content[{at}]"));
                    Err(part.type_refusal("a part of type text"))
                }
            });
            texts.collect()
        }
        _ => Err(place
            .join_field(".content")
            .type_refusal("a text, or parts of type text")),
    }
}

/// Reads the model's earlier calls.
fn read_calls(place: &FieldPath, given: Option<Value>) -> Result<Vec<ToolCall>, Refusal> {
    let place = place.join_field(".tool_calls");
    let given = match given {
        None => return Ok(Vec::new()),
        Some(Value::Array(given)) => given,
        Some(_) => return Err(place.type_refusal("a list of calls")),
    };
    let calls = given.iter().enumerate().map(|(at, call)| {
        let place = place.join_field(&format!("[{at}]"));
        let function = &call["function"];
        let kind = call.get("type").map_or(Some("function"), Value::as_str);
        let named = [&call["id"], &function["name"]].map(Value::as_str);
        let (Some("function"), [Some(id), Some(name)]) = (kind, named) else {
            let what = "a call of type function, with an id and a name";
            return Err(place.type_refusal(what));
        };
        let arguments = read_arguments(&function["arguments"]).ok_or_else(|| {
            let place = place.join_field(".function.arguments");
            place.type_refusal("the text of a JSON object")
        })?;
        Ok(ToolCall {
            id: id.to_owned(),
            name: name.to_owned(),
            arguments,
        })
    });
    calls.collect()
}

/// Reads the arguments of a call. For a call without arguments, clients can send an empty text or
/// nothing.
fn read_arguments(given: &Value) -> Option<Map<String, Value>> {
    match given {
        Value::Null => Some(Map::new()),
        Value::Object(arguments) => Some(arguments.clone()),
        Value::String(text) if text.trim().is_empty() => Some(Map::new()),
        Value::String(text) => serde_json::from_str(text).ok(),
        _ => None,
    }
}
