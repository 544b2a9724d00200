//! What a text is to be, where not whatever comes.

use std::sync::{Arc, OnceLock};

use serde_json::Value;
use souk_llm::grammar::{Grammar, GrammarError, Vocabulary};

use super::Voice;

/// What a text is to be.
#[derive(Clone, Debug, PartialEq)]
pub enum TextForm {
    /// Any JSON object.
    Object,
    /// JSON that fulfils a schema.
    Schema(Value),
}

/// A model's tokens as grammars read them, which are read once.
#[derive(Clone, Default)]
pub struct Words(Arc<OnceLock<Vocabulary>>);

impl Voice {
    /// The grammar of texts of a form.
    pub fn grammar(&self, form: &TextForm) -> Result<Grammar, GrammarError> {
        let words = &self.words.0;
        let vocabulary = match words.get() {
            Some(vocabulary) => vocabulary,
            None => {
                let read = Vocabulary::new(&self.tokenizer, &self.card.ends)?;
                words.get_or_init(|| read)
            }
        };
        match form {
            TextForm::Object => vocabulary.object(),
            TextForm::Schema(schema) => vocabulary.schema(schema),
        }
    }
}
