//! Chat templates: what a model was taught a conversation looks like.
//!
//! A template is a program of whoever made the model. It runs in a language without files or
//! network, and with so much fuel.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::{Deserialize, Serialize};
use thiserror::Error as ThisError;

/// Instructions a template may take; the longest that were seen take some thousands a message.
const FUEL: u64 = 10_000_000;

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`; what else, the template says.
    pub role: String,
    /// Its text.
    pub content: String,
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
#[error("the model's chat template fails: {0:#}")]
pub struct ChatError(#[from] Error);

impl ChatTemplate {
    /// The text of a conversation, up to where the model is to answer.
    ///
    /// # Errors
    /// [`ChatError`]: the template is none, refuses the messages, or does not end.
    pub fn render(&self, messages: &[Message]) -> Result<String, ChatError> {
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        environment.set_syntax(syntax.trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_function("raise_exception", refused);
        environment.add_template("chat", &self.source)?;
        let values = context! {
            messages => messages.iter().map(value).collect::<Vec<Value>>(),
            bos_token => self.begin.as_str(),
            eos_token => self.end.as_str(),
            add_generation_prompt => true,
        };
        Ok(environment.get_template("chat")?.render(values)?)
    }
}

/// A message as templates read it.
fn value(message: &Message) -> Value {
    context! { role => message.role.as_str(), content => message.content.as_str() }
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
        };
        let template = ChatTemplate {
            source: source.to_owned(),
            begin: "<s>".to_owned(),
            end: "</s>".to_owned(),
        };
        template.render(&messages.iter().map(message).collect::<Vec<_>>())
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
