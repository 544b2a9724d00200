//! Chat templates: what a model was taught a conversation looks like.
//!
//! A template is a program of whoever made the model. It runs in a language without files or
//! network, and with so much fuel.

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use thiserror::Error as ThisError;

use crate::tools::{self, Tool, ToolCall};

/// Instructions a template may take; the longest that were seen take some thousands a message.
const FUEL: u64 = 10_000_000;

/// A message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`; what else, the template says.
    pub role: String,
    /// Its text.
    pub content: String,
    /// The calls that it makes.
    pub calls: Vec<ToolCall>,
    /// The id of the call that it answers.
    pub call_id: Option<String>,
}

/// A template, and the marks it puts around a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatTemplate {
    /// Its source, in Jinja.
    pub source: String,
    /// What a text begins with.
    pub begin: String,
    /// What a text ends with.
    pub end: String,
}

/// Why a conversation could not be written.
#[derive(Debug, ThisError)]
pub enum ChatError {
    /// The template is none, refuses the messages, or does not end.
    #[error("the model's chat template fails: {0:#}")]
    Template(#[from] Error),
    /// The template says the same with tools and without.
    #[error("the model was not taught to call tools: its chat template does not know them")]
    Tools,
}

impl ChatTemplate {
    /// The text of a conversation, up to where the model is to answer, by calls of these tools if
    /// it likes.
    ///
    /// # Errors
    /// [`ChatError`].
    pub fn render(&self, messages: &[Message], tools: &[Tool]) -> Result<String, ChatError> {
        let text = self.text(messages, tools)?;
        let is_known = tools.is_empty() || self.text(messages, &[]).ok().as_ref() != Some(&text);
        is_known.then_some(text).ok_or(ChatError::Tools)
    }

    fn text(&self, messages: &[Message], tools: &[Tool]) -> Result<String, Error> {
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        environment.set_syntax(syntax.trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_function("raise_exception", refused);
        environment.add_filter("tojson", json_text);
        environment.add_template("chat", &self.source)?;
        let tools = match tools {
            [] => Value::UNDEFINED,
            tools => Value::from(Serde(
                tools.iter().map(tools::described).collect::<Vec<_>>(),
            )),
        };
        let values = context! {
            messages => messages.iter().map(value).collect::<Vec<Value>>(),
            tools => tools,
            bos_token => self.begin.as_str(),
            eos_token => self.end.as_str(),
            add_generation_prompt => true,
        };
        environment.get_template("chat")?.render(values)
    }
}

/// A message as templates read it: the arguments of a call are an object, not a text.
fn value(message: &Message) -> Value {
    let mut value = json!({ "role": message.role, "content": message.content });
    if !message.calls.is_empty() {
        let calls = message.calls.iter().map(|call| {
            let function = json!({ "name": call.name, "arguments": call.arguments });
            json!({ "id": call.id, "type": "function", "function": function })
        });
        value["tool_calls"] = calls.collect();
    }
    if let Some(id) = &message.call_id {
        value["tool_call_id"] = json!(id);
    }
    Value::from(Serde(value))
}

/// The filter `tojson` as Hugging Face's tools have it: Python's `json.dumps` that leaves letters
/// as they are.
fn json_text(value: &Value, indent: Option<usize>, options: Kwargs) -> Result<String, Error> {
    let named: Option<usize> = options.get("indent")?;
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let mut bytes = Vec::new();
    let written = match indent.or(named) {
        Some(width) => {
            let indent = " ".repeat(width);
            let form = PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut bytes, form))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut bytes, PythonForm)),
    };
    let failed =
        |error| Error::new(ErrorKind::BadSerialization, "a value is no JSON").with_source(error);
    written.map_err(failed)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// JSON on one line as Python writes it: with a space after each comma and colon.
struct PythonForm;

impl Formatter for PythonForm {
    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.begin_array_value(out, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

fn refused(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(source: &str, messages: &[(&str, &str)]) -> Result<String, ChatError> {
        let message = |(role, content): &(&str, &str)| Message {
            role: (*role).to_owned(),
            content: (*content).to_owned(),
            ..Message::default()
        };
        let template = ChatTemplate {
            source: source.to_owned(),
            begin: "<s>".to_owned(),
            end: "</s>".to_owned(),
        };
        template.render(&messages.iter().map(message).collect::<Vec<_>>(), &[])
    }

    #[test]
    fn a_conversation_is_written_as_jinja2_writes_it() {
        // The form that ChatML took on, with blocks on lines of their own and a Python method.
        let source = "{{ bos_token }}\n{%- for message in messages %}\n    \
            {{- '<|im_start|>' + message['role'] + '\\n' + message.content.strip() }}\n    \
            {%- if not loop.last %}\n        {{- '<|im_end|>\\n' }}\n    {%- endif %}\n\
            {%- endfor %}\n{%- if add_generation_prompt %}\n    \
            {{- '<|im_end|>\\n<|im_start|>assistant\\n' }}\n{%- endif %}\n";
        let text = rendered(source, &[("system", " be kind "), ("user", "hello")]).unwrap();
        assert_eq!(
            text,
            "<s><|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n\
             <|im_start|>assistant\n"
        );
    }

    /// Gemma's: the system's words are the user's, the assistant is the model, turns alternate.
    #[test]
    fn a_conversation_is_written_as_gemma_writes_it() {
        let source = "{{ bos_token }}\n{%- if messages[0]['role'] == 'system' -%}\n    \
            {%- if messages[0]['content'] is string -%}\n        \
            {%- set first = messages[0]['content'] + '\n\n' -%}\n    {%- endif -%}\n    \
            {%- set others = messages[1:] -%}\n{%- else -%}\n    {%- set first = '' -%}\n    \
            {%- set others = messages -%}\n{%- endif -%}\n{%- for message in others -%}\n    \
            {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}\n        \
            {{ raise_exception('Conversation roles must alternate') }}\n    {%- endif -%}\n    \
            {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}\n    \
            {{ '<start_of_turn>' + role + '\n' + (first if loop.first else '') }}\n    \
            {{- message['content'] | trim }}{{ '<end_of_turn>\n' }}\n{%- endfor -%}\n\
            {%- if add_generation_prompt -%}\n    {{'<start_of_turn>model\n'}}\n{%- endif -%}\n";
        let said = [
            ("system", "be kind"),
            ("user", " hello "),
            ("assistant", "hi"),
        ];
        let text = rendered(source, &[&said[..], &[("user", "bye")]].concat()).unwrap();
        assert_eq!(
            text,
            "<s><start_of_turn>user\nbe kind\n\nhello<end_of_turn>\n<start_of_turn>model\n\
             hi<end_of_turn>\n<start_of_turn>user\nbye<end_of_turn>\n<start_of_turn>model\n"
        );
        assert!(rendered(source, &said[2..]).is_err());
    }

    #[test]
    fn a_template_refuses_and_does_not_run_for_ever() {
        let refusing = "{{ raise_exception('roles must alternate') }}";
        let error = rendered(refusing, &[]).unwrap_err().to_string();
        assert!(error.contains("roles must alternate"), "{error}");
        let endless = "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}\
            {% endfor %}";
        let error = rendered(endless, &[]).unwrap_err().to_string();
        assert!(error.contains("fuel"), "{error}");
    }
}
