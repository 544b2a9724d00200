//! Converts the lines of a file of examples to rows of tokens and labels for training.
//!
//! A line is a JSON object with `text`, with `prompt` and `completion`, or with `messages`. Only
//! what the model has to answer gets labels: all of a text, the completion, or the assistant's
//! messages. Each example is a row of its own, padded at its end to the length of the longest.

mod example;

use souk_memory::Tensor;
use thiserror::Error;

pub use example::ExampleReader;

use crate::chat::ChatError;
use crate::tokens::TokenError;

/// The label of a token that does not count in the loss.
pub const IGNORED: i64 = -100;

/// An example as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// The numbers of its tokens, in their order.
    pub tokens: Vec<u32>,
    /// For each token, whether it belongs to an answer, which the model must learn.
    pub is_answer: Vec<bool>,
}

/// Examples as rows of equal length.
#[derive(Clone, Debug)]
pub struct ExampleRows {
    /// The tokens, filled up with token 0: `[examples, length]`.
    pub tokens: Tensor,
    /// At each token the one that follows it, or [`IGNORED`]: `[examples, length]`.
    pub labels: Tensor,
    /// Number of tokens without the filling.
    pub token_count: u64,
    /// Number of labels that count.
    pub answer_count: u64,
}

/// Why examples cannot be read.
#[derive(Debug, Error)]
pub enum ExampleError {
    /// The file has no example.
    #[error("there is no example in it")]
    Empty,
    /// A line is not JSON.
    #[error("line {line} is no JSON object: {cause}")]
    Json {
        /// The line, from 1.
        line: usize,
        /// The parser's error.
        cause: serde_json::Error,
    },
    /// A line has none of the known forms.
    #[error("line {line} {why}")]
    Form {
        /// The line, from 1.
        line: usize,
        /// The reason, as the end of a sentence that begins with the line.
        why: &'static str,
    },
    /// The model has no template for messages.
    #[error("line {line} has messages, and the model has no chat template")]
    NoTemplate {
        /// The line, from 1.
        line: usize,
    },
    /// The template refuses the messages.
    #[error("line {line}: {cause}")]
    Chat {
        /// The line, from 1.
        line: usize,
        /// The template's error.
        cause: ChatError,
    },
    /// The tokeniser fails.
    #[error("line {line}: {cause}")]
    Token {
        /// The line, from 1.
        line: usize,
        /// The tokeniser's error.
        cause: TokenError,
    },
    /// The model has no row of numbers for a token.
    #[error("line {line} has the token {token}, and the model knows {vocabulary} tokens")]
    Vocabulary {
        /// The line, from 1.
        line: usize,
        /// The number that is too large.
        token: u32,
        /// Number of tokens of the model.
        vocabulary: usize,
    },
    /// An example is too long.
    #[error("line {line} has {found} tokens, at most {limit} are allowed")]
    Long {
        /// The line, from 1.
        line: usize,
        /// Number of tokens.
        found: usize,
        /// Largest number of tokens.
        limit: usize,
    },
    /// An example has nothing to learn.
    #[error("line {line} has no token to answer")]
    NoAnswer {
        /// The line, from 1.
        line: usize,
    },
}

impl ExampleRows {
    /// Lays examples out in rows as long as the longest one.
    ///
    /// # Errors
    /// [`ExampleError::Empty`].
    pub fn from_examples(examples: &[Example]) -> Result<Self, ExampleError> {
        let longest = examples.iter().map(|it| it.tokens.len()).max();
        // The last token is only a label.
        let length = longest.ok_or(ExampleError::Empty)?.saturating_sub(1).max(1);
        Ok(Self::with_length(examples, length))
    }

    /// Lays examples out in rows of this length.
    ///
    /// # Panics
    /// If an example has more than `length + 1` tokens.
    #[must_use]
    pub fn with_length(examples: &[Example], length: usize) -> Self {
        let (mut tokens, mut labels) = (Vec::new(), Vec::new());
        let (mut token_count, mut answer_count) = (0, 0);
        for example in examples {
            let read = &example.tokens[..example.tokens.len() - 1];
            assert!(read.len() <= length, "no example is cut");
            token_count += read.len() as u64;
            let filled = read.iter().map(|token| i64::from(*token));
            tokens.extend(filled.chain(std::iter::repeat(0)).take(length));
            let next = example.tokens.iter().zip(&example.is_answer).skip(1);
            let next = next.map(|(token, is_answer)| match is_answer {
                true => i64::from(*token),
                false => IGNORED,
            });
            let start = labels.len();
            labels.extend(next.chain(std::iter::repeat(IGNORED)).take(length));
            let counted = labels[start..].iter().filter(|label| **label != IGNORED);
            answer_count += counted.count() as u64;
        }
        let rows = |all| Tensor::from_vec([examples.len(), length], all);
        Self {
            tokens: rows(tokens).expect("each row has the length"),
            labels: rows(labels).expect("each row has the length"),
            token_count,
            answer_count,
        }
    }
}

#[cfg(test)]
mod tests;
