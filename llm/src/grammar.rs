//! Determines the tokens that can come next in a text that must match a grammar: JSON of a given
//! schema.
//!
//! There is one [`Vocabulary`] per model and one [`Grammar`] per question; a [`TextMatcher`]
//! follows one text. A token that ends the text is allowed only where the JSON can end.

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

/// Space allowed between the parts of JSON: as much as people write. Without this limit, a model
/// that prefers spaces would fill an answer with them.
const SPACE: &str = r" |\n{1,2}[ \t]{0,20}";

/// Stands for all tokens that end texts; no text contains this byte.
const END: &[u8] = b"\xff<end>";

/// Returns the limits of a schema's cost: a tenth of a second and some tens of megabytes, and a
/// tenth of that time for a token of its text.
fn parser_limits() -> ParserLimits {
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

/// Steps for a grammar's lexer, and for the tokens that may come next.
const LEXER_FUEL: u64 = 200_000;
const STEP_FUEL: u64 = 200_000;
/// Maximum states of a lexer; each takes one or two kilobytes.
const STATES_MAX: usize = 30_000;
/// Maximum symbols of a grammar: a schema of a few thousand properties.
const SYMBOLS_MAX: usize = 200_000;

/// Why no grammar could be made.
#[derive(Debug, Error)]
pub enum GrammarError {
    /// The tokens have no bytes of their own.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The library refuses the tokens.
    #[error("grammars cannot be made for the model's tokens: {reason}")]
    Vocabulary {
        /// The library's reason.
        reason: String,
    },
    /// The schema needs a feature that grammars lack.
    #[error("the JSON schema is refused: {reason}")]
    Schema {
        /// The library's reason, or souk's own.
        reason: String,
    },
}

/// Why a text cannot continue by its grammar.
#[derive(Debug, Error)]
pub enum MatchError {
    /// No token of the model continues the text.
    #[error("no token of the model can continue the text as its JSON schema requires")]
    DeadEnd,
    /// The matcher gave up.
    #[error("the text can no longer be checked against its JSON schema: {reason}")]
    Broken {
        /// The library's reason.
        reason: String,
    },
}

/// A model's tokens in the form that grammars need.
#[derive(Clone)]
pub struct Vocabulary {
    factory: Arc<ParserFactory>,
    ends: EndTokens,
    /// The bytes of each token.
    spellings: Arc<[Vec<u8>]>,
}

/// The tokens that end texts.
#[derive(Clone)]
struct EndTokens {
    /// One token that stands for all of them: the one after the last.
    mark: u32,
    /// The model's own tokens that end texts.
    tokens: Arc<[u32]>,
}

impl Vocabulary {
    /// Creates the vocabulary of a tokeniser, in which `ends` end a text and are no part of it.
    ///
    /// # Errors
    /// [`GrammarError::Token`] and [`GrammarError::Vocabulary`].
    pub fn new(tokenizer: &Tokenizer, ends: &[u32]) -> Result<Self, GrammarError> {
        let mut words = tokenizer.token_spellings()?;
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
        *factory.quiet().limits_mut() = parser_limits();
        Ok(Self {
            factory: Arc::new(factory),
            ends: EndTokens {
                mark,
                tokens: ends.into(),
            },
            spellings,
        })
    }

    /// Compiles a grammar of JSON that fulfils a schema.
    ///
    /// # Errors
    /// [`GrammarError::Schema`] if the schema is invalid, or needs a feature that grammars lack.
    pub fn compile_schema(&self, schema: &Value) -> Result<Grammar, GrammarError> {
        let refused = |reason: String| GrammarError::Schema { reason };
        let mut schema = match schema {
            Value::Object(_) => {
                let prepared = schema::prepare_schema(schema).map_err(refused)?;
                properties::check_properties(&prepared).map_err(refused)?;
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

    /// Extends a grammar to texts that begin with a mark, which can be one or several of the
    /// model's tokens.
    #[must_use]
    pub fn or_after(&self, grammar: Grammar, mark: &str, token: Option<u32>) -> Grammar {
        Grammar {
            escape: Some(Escape::new(mark, token, self.spellings.clone())),
            ..grammar
        }
    }

    /// Compiles a grammar of any JSON object.
    ///
    /// # Errors
    /// As [`Self::compile_schema`].
    pub fn compile_object(&self) -> Result<Grammar, GrammarError> {
        self.compile_schema(&json!({ "type": "object" }))
    }
}

/// A compiled schema: the set of JSON texts that match it.
pub struct Grammar {
    matcher: Box<Matcher>,
    ends: EndTokens,
    escape: Option<Escape>,
}

impl Clone for Grammar {
    /// The clone shares nothing that the original learns about its tokens.
    fn clone(&self) -> Self {
        Self {
            matcher: Box::new(self.matcher.deep_clone()),
            ends: self.ends.clone(),
            escape: self.escape.clone(),
        }
    }
}

impl Grammar {
    /// Returns a matcher at the beginning of a text.
    #[must_use]
    pub fn matcher(&self) -> TextMatcher {
        TextMatcher {
            matcher: self.matcher.deep_clone(),
            ends: self.ends.clone(),
            escape: self.escape.clone(),
        }
    }
}

/// Matches a text token by token.
pub struct TextMatcher {
    matcher: Matcher,
    ends: EndTokens,
    escape: Option<Escape>,
}

impl TextMatcher {
    /// Returns whether the text is complete and nothing may follow.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let is_held = self.escape.as_ref().is_none_or(Escape::holds_grammar);
        is_held && self.matcher.is_stopped()
    }

    /// Returns the tokens that may come next, unless the text [`Self::is_over`].
    ///
    /// # Errors
    /// [`MatchError`].
    pub fn allowed_tokens(&mut self) -> Result<AllowedTokens, MatchError> {
        let is_held = self.escape.as_ref().is_none_or(Escape::holds_grammar);
        let mask = match is_held {
            true => Some(self.matcher.compute_mask().map_err(to_match_error)?),
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

    /// Continues the text with a token.
    ///
    /// # Errors
    /// [`MatchError::Broken`] if the token was not allowed.
    pub fn push(&mut self, token: u32) -> Result<(), MatchError> {
        let Some(escape) = &mut self.escape else {
            return self.matcher.consume_token(token).map_err(to_match_error);
        };
        if escape.is_free() {
            return Ok(());
        }
        let is_of_grammar = escape.holds_grammar() && {
            let mask = self.matcher.compute_mask().map_err(to_match_error)?;
            token < self.ends.mark && mask.is_allowed(token)
        };
        let goes_on = escape.push(token, is_of_grammar);
        match (is_of_grammar, goes_on) {
            (true, _) => self.matcher.consume_token(token).map_err(to_match_error),
            (false, true) => Ok(()),
            (false, false) => Err(MatchError::DeadEnd),
        }
    }
}

/// The tokens that may come next.
pub struct AllowedTokens {
    /// The grammar's tokens, unless the text has left the grammar.
    mask: Option<SimpleVob>,
    may_end: bool,
    ends: EndTokens,
    escape: Option<Escape>,
}

impl AllowedTokens {
    /// Returns whether this token may come next.
    #[must_use]
    pub fn contains(&self, token: u32) -> bool {
        // A token that ends texts has no bytes, so the mask never contains it.
        if self.ends.tokens.contains(&token) {
            return self.may_end;
        }
        let is_of_grammar = |mask: &SimpleVob| token < self.ends.mark && mask.is_allowed(token);
        self.mask.as_ref().is_some_and(is_of_grammar)
            || self
                .escape
                .as_ref()
                .is_some_and(|escape| escape.can_accept(token))
    }

    /// Returns whether the text may end here.
    #[must_use]
    pub fn may_end(&self) -> bool {
        self.may_end
    }
}

fn to_match_error(error: impl ToString) -> MatchError {
    // The rest of the message is the library's internal state, which only its developers need.
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
