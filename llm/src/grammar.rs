//! Texts of a form: which tokens may come next in JSON of a schema.
//!
//! A vocabulary is read once a model, a grammar is made once a question, and a matcher follows one
//! text. What ends a text is allowed where the JSON may end, and nowhere else.

mod escape;
mod properties;
mod schema;

use std::sync::Arc;

use llguidance::api::{GrammarWithLexer, ParserLimits, StopReason, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{
    ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie,
};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory};
use serde_json::{Value, json};
use thiserror::Error;

use crate::tokens::{TokenError, Tokenizer};
use escape::Escape;

/// What may stand between the parts of JSON: no more than people write, or a model that likes
/// spaces would fill an answer with them.
const SPACE: &str = r" |\n{1,2}[ \t]{0,20}";

/// What stands for all tokens that end texts; no text has this byte.
const END: &[u8] = b"\xff<end>";

/// What a schema may take: a tenth of a second and some tens of megabytes, where a token of its
/// text takes a tenth of that.
fn limits() -> ParserLimits {
    ParserLimits {
        initial_lexer_fuel: LEXER_FUEL,
        step_lexer_fuel: STEP_FUEL,
        max_lexer_states: STATES_MAX,
        max_grammar_size: SYMBOLS_MAX,
        precompute_large_lexemes: false,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Steps for the lexer of a grammar, and for the tokens that may come next.
const LEXER_FUEL: u64 = 200_000;
const STEP_FUEL: u64 = 200_000;
/// States of a lexer, one or two kilobytes each.
const STATES_MAX: usize = 30_000;
/// Symbols of a grammar: a schema of a few thousand properties.
const SYMBOLS_MAX: usize = 200_000;

/// Why there is no grammar.
#[derive(Debug, Error)]
pub enum GrammarError {
    /// The tokens have no bytes of their own.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The tokens cannot be put in order.
    #[error("grammars cannot be made for the model's tokens: {reason}")]
    Vocabulary {
        /// Why.
        reason: String,
    },
    /// The schema asks for what no grammar has.
    #[error("the JSON schema is refused: {reason}")]
    Schema {
        /// Why.
        reason: String,
    },
}

/// Why a text of a grammar goes no further.
#[derive(Debug, Error)]
pub enum MatchError {
    /// No token of the model goes on with it.
    #[error("no token of the model goes on with the text as its JSON schema wants it")]
    DeadEnd,
    /// What follows it gave up.
    #[error("the text is no longer followed by its JSON schema: {reason}")]
    Broken {
        /// Why.
        reason: String,
    },
}

/// A model's tokens, as grammars read them.
#[derive(Clone)]
pub struct Vocabulary {
    factory: Arc<ParserFactory>,
    ends: EndTokens,
    /// The bytes of each token.
    spellings: Arc<[Vec<u8>]>,
}

/// What ends texts.
#[derive(Clone)]
struct EndTokens {
    /// What stands for all of them: the token after the last.
    mark: u32,
    /// Those of the model.
    tokens: Arc<[u32]>,
}

impl Vocabulary {
    /// The tokens of a tokeniser, some of which end a text and are no part of one.
    ///
    /// # Errors
    /// [`GrammarError::Token`] and [`GrammarError::Vocabulary`].
    pub fn new(tokenizer: &Tokenizer, ends: &[u32]) -> Result<Self, GrammarError> {
        let mut words = tokenizer.spellings()?;
        for &end in ends {
            if let Some(word) = words.get_mut(end as usize) {
                word.clear();
            }
        }
        let spellings = words.clone().into();
        words.push(END.to_vec());
        let mark = words.len() as u32 - 1;
        let trie = TokTrie::from(&TokRxInfo::new(mark + 1, mark), &words);
        let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let abilities = InferenceCapabilities::default();
        let slices = SlicedBiasComputer::json_slices();
        let factory = ParserFactory::new(&tokens, abilities, &slices);
        let mut factory = factory.map_err(|error| GrammarError::Vocabulary {
            reason: on_one_line(&error.to_string()),
        })?;
        *factory.quiet().limits_mut() = limits();
        Ok(Self {
            factory: Arc::new(factory),
            ends: EndTokens {
                mark,
                tokens: ends.into(),
            },
            spellings,
        })
    }

    /// JSON that fulfils a schema.
    ///
    /// # Errors
    /// [`GrammarError::Schema`]: it is none, or asks for what no grammar has.
    pub fn schema(&self, schema: &Value) -> Result<Grammar, GrammarError> {
        let refused = |reason: String| GrammarError::Schema { reason };
        let mut schema = match schema {
            Value::Object(_) => {
                let prepared = schema::prepared(schema).map_err(refused)?;
                properties::check(&prepared).map_err(refused)?;
                prepared
            }
            Value::Bool(true) => json!({}),
            _ => return Err(refused("a schema is an object".to_owned())),
        };
        let options = JsonCompileOptions {
            whitespace_pattern: Some(SPACE.to_owned()),
            ..JsonCompileOptions::default()
        };
        options.apply_to(&mut schema);
        let grammar = TopLevelGrammar::from_grammar(GrammarWithLexer::from_json_schema(schema));
        let parser = self.factory.create_parser(grammar);
        let parser = parser.map_err(|error| refused(on_one_line(&error.to_string())))?;
        let matcher = Matcher::new(Ok(parser));
        match matcher.get_error() {
            Some(reason) => Err(refused(on_one_line(&reason))),
            None => Ok(Grammar {
                matcher: Box::new(matcher),
                ends: self.ends.clone(),
                escape: None,
            }),
        }
    }

    /// Texts of a grammar, and all that begin with a mark: one of the model's tokens, or several.
    #[must_use]
    pub fn or_after(&self, grammar: Grammar, mark: &str, token: Option<u32>) -> Grammar {
        Grammar {
            escape: Some(Escape::new(mark, token, self.spellings.clone())),
            ..grammar
        }
    }

    /// Any JSON object.
    ///
    /// # Errors
    /// As [`Self::schema`].
    pub fn object(&self) -> Result<Grammar, GrammarError> {
        self.schema(&json!({ "type": "object" }))
    }
}

/// The texts that fulfil a schema.
pub struct Grammar {
    matcher: Box<Matcher>,
    ends: EndTokens,
    escape: Option<Escape>,
}

impl Clone for Grammar {
    /// What one learns of its tokens the other does not.
    fn clone(&self) -> Self {
        Self {
            matcher: Box::new(self.matcher.deep_clone()),
            ends: self.ends.clone(),
            escape: self.escape.clone(),
        }
    }
}

impl Grammar {
    /// What follows a text from its beginning.
    #[must_use]
    pub fn matcher(&self) -> TextMatcher {
        TextMatcher {
            matcher: self.matcher.deep_clone(),
            ends: self.ends.clone(),
            escape: self.escape.clone(),
        }
    }
}

/// What follows a text, token by token.
pub struct TextMatcher {
    matcher: Matcher,
    ends: EndTokens,
    escape: Option<Escape>,
}

impl TextMatcher {
    /// Whether the text is whole, and nothing may follow.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let is_held = self.escape.as_ref().is_none_or(Escape::holds_grammar);
        is_held && self.matcher.is_stopped()
    }

    /// The tokens that may come next, where the text [`Self::is_over`] not.
    ///
    /// # Errors
    /// [`MatchError`].
    pub fn allowed(&mut self) -> Result<AllowedTokens, MatchError> {
        let is_held = self.escape.as_ref().is_none_or(Escape::holds_grammar);
        let mask = match is_held {
            true => Some(self.matcher.compute_mask().map_err(failed)?),
            false => None,
        };
        let may_end = mask
            .as_ref()
            .is_some_and(|mask| mask.get(self.ends.mark as usize));
        Ok(AllowedTokens {
            may_end: may_end || self.escape.as_ref().is_some_and(Escape::is_free),
            mask,
            ends: self.ends.clone(),
            escape: self.escape.clone(),
        })
    }

    /// Goes on with a token.
    ///
    /// # Errors
    /// [`MatchError::Broken`]: it was not allowed.
    pub fn push(&mut self, token: u32) -> Result<(), MatchError> {
        let Some(escape) = &mut self.escape else {
            return self.matcher.consume_token(token).map_err(failed);
        };
        if escape.is_free() {
            return Ok(());
        }
        let is_of_grammar = escape.holds_grammar() && {
            let mask = self.matcher.compute_mask().map_err(failed)?;
            token < self.ends.mark && mask.is_allowed(token)
        };
        let goes_on = escape.push(token, is_of_grammar);
        match (is_of_grammar, goes_on) {
            (true, _) => self.matcher.consume_token(token).map_err(failed),
            (false, true) => Ok(()),
            (false, false) => Err(MatchError::DeadEnd),
        }
    }
}

/// Tokens that may come next.
pub struct AllowedTokens {
    /// Those of the grammar, where it is not given up.
    mask: Option<SimpleVob>,
    may_end: bool,
    ends: EndTokens,
    escape: Option<Escape>,
}

impl AllowedTokens {
    /// Whether this token may come.
    #[must_use]
    pub fn contains(&self, token: u32) -> bool {
        // What ends a text has no bytes, so it is never in the mask.
        if self.ends.tokens.contains(&token) {
            return self.may_end;
        }
        let is_of_grammar = |mask: &SimpleVob| token < self.ends.mark && mask.is_allowed(token);
        self.mask.as_ref().is_some_and(is_of_grammar)
            || self
                .escape
                .as_ref()
                .is_some_and(|escape| escape.allows(token))
    }

    /// Whether the text may end.
    #[must_use]
    pub fn may_end(&self) -> bool {
        self.may_end
    }
}

fn failed(error: impl ToString) -> MatchError {
    // What is said of the state after it is for those who look for mistakes in the library.
    let reason = error
        .to_string()
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned();
    match reason == StopReason::NoExtensionBias.to_string() {
        true => MatchError::DeadEnd,
        false => MatchError::Broken { reason },
    }
}

fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
