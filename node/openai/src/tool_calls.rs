//! Determines how a model calls the tools (functions of the client) of a request: which form its
//! calls have, how many one answer can contain, and how an answer that must be a call begins. It
//! also formats calls as OpenAI's API does.

use serde_json::{Value, json};
use souk_llm::tools::{CallForm, Tool, ToolCall};

use crate::api_request::{ApiRequest, ToolUse};
use crate::refusal::Refusal;
use souk_texts::{TextForm, TextModel};

/// The tool calls that an answer can contain.
#[derive(Clone, Copy)]
pub struct AllowedToolCalls<'a> {
    wanted: &'a ToolUse,
    pub form: CallForm,
}

impl<'a> AllowedToolCalls<'a> {
    /// Returns the calls that an answer can contain. Refuses the request if the model writes no
    /// calls of a known form.
    pub fn new(text_model: &TextModel, wanted: &'a ToolUse) -> Result<Self, Refusal> {
        let form = CallForm::from_template(text_model.chat_template()?.source_with_tools());
        let refused =
            || Refusal::invalid_field("tools", "the model was taught no calls of a known form");
        Ok(Self {
            wanted,
            form: form.ok_or_else(refused)?,
        })
    }

    /// Returns the tools that the model may call.
    pub fn tools(&self) -> &'a [Tool] {
        &self.wanted.tools
    }

    /// Returns the largest number of calls in one answer.
    pub fn calls_max(&self) -> usize {
        if self.wanted.is_parallel {
            usize::MAX
        } else {
            1
        }
    }

    /// Returns the beginning of an answer that must be a call, or an empty text.
    pub fn answer_opening(&self) -> Result<String, Refusal> {
        if self.wanted.forced.is_empty() {
            return Ok(String::new());
        }
        let message = "this model is made to call one function at a time: name it";
        let opening = self.form.call_opening(&self.wanted.forced);
        opening.ok_or_else(|| Refusal::invalid_field("tool_choice", message))
    }
}

/// The form that an answer must have.
#[derive(Clone)]
pub struct WantedForm {
    pub form: TextForm,
    /// Mark that frees an answer from the form: the answer then calls a tool.
    pub mark: Option<&'static str>,
    /// The field of the request that asks for the form.
    pub field: &'static str,
}

impl WantedForm {
    /// Returns the form that a request asks for, if any.
    pub fn from_request(
        request: &ApiRequest,
        calls: Option<&AllowedToolCalls<'_>>,
    ) -> Result<Option<Self>, Refusal> {
        let (form, mark, field) = match (calls, &request.form) {
            (Some(calls), _) if !calls.wanted.forced.is_empty() => {
                let schema = calls.form.call_schema(&calls.wanted.forced);
                (TextForm::Schema(schema), None, "tools")
            }
            (_, None) => return Ok(None),
            (None, Some(form)) => (form.clone(), None, "response_format"),
            (Some(calls), Some(form)) => {
                let form = form.clone();
                let (form, mark) = match calls.form {
                    CallForm::Marked => (form, Some("<tool_call>")),
                    CallForm::Listed => (form, Some("[TOOL_CALLS]")),
                    CallForm::Bare => {
                        let answer = form.to_schema();
                        let either = calls.form.schema_or(calls.tools(), answer);
                        (TextForm::Schema(either), None)
                    }
                    CallForm::Channels => {
                        let message = "this model's answer is JSON, or calls tools: leave one out";
                        return Err(Refusal::invalid_field("response_format", message));
                    }
                };
                (form, mark, "response_format")
            }
        };
        Ok(Some(Self { form, mark, field }))
    }
}

/// Formats a call as OpenAI's API does; streams use its index among the calls.
pub fn format_call((at, call): (usize, &ToolCall)) -> Value {
    let arguments = Value::Object(call.arguments.clone()).to_string();
    json!({
        "index": at, "id": call.id, "type": "function",
        "function": { "name": call.name, "arguments": arguments },
    })
}
