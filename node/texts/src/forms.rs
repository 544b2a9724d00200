//! Builds the grammars that force a language model's text into a form: any JSON object, or JSON
//! that conforms to a schema. It caches the latest grammars for later requests.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::{Value, json};
use souk_llm::grammar::{Grammar, GrammarError, Vocabulary};

use super::TextModel;

/// The form that a text must have.
#[derive(Clone, Debug, PartialEq)]
pub enum TextForm {
    /// Any JSON object.
    Object,
    /// JSON that fulfils a schema.
    Schema(Value),
}

impl TextForm {
    /// Returns the schema of the form.
    pub fn to_schema(&self) -> Value {
        match self {
            Self::Object => json!({ "type": "object" }),
            Self::Schema(schema) => schema.clone(),
        }
    }
}

/// Grammars to keep for later requests with the same schema: each takes at most some megabytes.
const GRAMMARS_MAX: usize = 16;

/// A model's vocabulary for grammars, which is read once, and the latest grammars.
#[derive(Clone, Default)]
pub struct GrammarVocabulary(Arc<GrammarCache>);

#[derive(Default)]
struct GrammarCache {
    vocabulary: OnceLock<Vocabulary>,
    /// Grammars by their schemas as JSON, the latest last.
    grammars: Mutex<Vec<(String, Grammar)>>,
}

impl TextModel {
    /// Returns the grammar for texts of a form and, with a mark, also for texts that begin with it.
    pub fn build_grammar(
        &self,
        form: &TextForm,
        mark: Option<&str>,
    ) -> Result<Grammar, GrammarError> {
        let words = &self.words.0;
        let schema = form.to_schema();
        let key = format!("{}{schema}", mark.unwrap_or_default());
        let kept = || {
            words
                .grammars
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if let Some((_, grammar)) = kept().iter().find(|(schema, _)| *schema == key) {
            return Ok(grammar.clone());
        }
        let vocabulary = match words.vocabulary.get() {
            Some(vocabulary) => vocabulary,
            None => {
                let read = Vocabulary::new(&self.tokenizer, &self.card.ends)?;
                words.vocabulary.get_or_init(|| read)
            }
        };
        let mut grammar = vocabulary.compile_schema(&schema)?;
        if let Some(mark) = mark {
            grammar = vocabulary.or_after(grammar, mark, self.tokenizer.id(mark));
        }
        let mut kept = kept();
        if kept.len() == GRAMMARS_MAX {
            kept.remove(0);
        }
        kept.push((key, grammar.clone()));
        Ok(grammar)
    }
}
