//! Text as tokens and back.

mod charsmap;
mod spelling;
mod stream;

use thiserror::Error;

use spelling::TOKENS_MAX;
pub use stream::TextStream;

/// Why text cannot be made into tokens, or tokens into text.
#[derive(Debug, Error)]
pub enum TokenError {
    /// The file is no tokeniser.
    #[error("tokenizer.json is refused: {0}")]
    File(tokenizers::Error),
    /// The file is larger than any that is known, or its ids are.
    #[error("tokenizer.json is refused: it has {what}, at most {most} are read")]
    Size {
        /// What is too many.
        what: String,
        /// How many are read.
        most: usize,
    },
    /// The text cannot be encoded.
    #[error("the text cannot be made into tokens: {0}")]
    Encode(tokenizers::Error),
    /// The tokens cannot be decoded.
    #[error("tokens cannot be made into text: {0}")]
    Decode(tokenizers::Error),
    /// The bytes of a token depend on its neighbours.
    #[error(
        "what a token stands for depends on its neighbours: the tokeniser's decoder is {0}, and \
         grammars know ByteLevel, Metaspace, and Replace with ByteFallback"
    )]
    Spelling(&'static str),
}

/// Bytes of a `tokenizer.json` at most: twice those of the largest that is known.
const FILE_BYTES_MAX: usize = 64 << 20;

/// A model's tokeniser.
#[derive(Clone, Debug)]
pub struct Tokenizer(tokenizers::Tokenizer);

/// Whether a model's own marks are put around a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// As the tokeniser does for a text that stands alone.
    Added,
    /// The text has its own.
    Own,
}

impl Tokenizer {
    /// Reads `tokenizer.json`. What it says of cutting and filling texts up is for batches that
    /// models are trained with, and not done.
    ///
    /// # Errors
    /// [`TokenError::File`] and [`TokenError::Size`].
    pub fn read(json: &[u8]) -> Result<Self, TokenError> {
        let too_large = |what: String, most| Err(TokenError::Size { what, most });
        if json.len() > FILE_BYTES_MAX {
            return too_large(format!("{} bytes", json.len()), FILE_BYTES_MAX);
        }
        charsmap::check(json).map_err(|why| TokenError::File(why.into()))?;
        let inner = tokenizers::Tokenizer::from_bytes(json);
        let mut inner = inner.map_err(TokenError::File)?;
        let highest = inner.get_vocab(true).into_values().max();
        if let Some(id) = highest.filter(|id| *id >= TOKENS_MAX) {
            return too_large(format!("a token with the id {id}"), TOKENS_MAX as usize);
        }
        inner.with_truncation(None).map_err(TokenError::File)?;
        inner.with_padding(None);
        Ok(Self(inner))
    }

    /// As `tokenizer.json` says it.
    ///
    /// # Errors
    /// [`TokenError::File`].
    pub fn json(&self) -> Result<String, TokenError> {
        self.0.to_string(false).map_err(TokenError::File)
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// [`TokenError::Encode`].
    pub fn encode(&self, text: &str, marks: Marks) -> Result<Vec<u32>, TokenError> {
        let encoded = self.0.encode(text, marks == Marks::Added);
        let encoded = encoded.map_err(TokenError::Encode)?;
        Ok(encoded.get_ids().to_vec())
    }

    /// The id of a token by its text.
    #[must_use]
    pub fn id(&self, token: &str) -> Option<u32> {
        self.0.token_to_id(token)
    }

    /// Text as tokens come; a token that ends within a character gives none yet.
    #[must_use]
    pub fn stream(&self) -> TextStream<'_> {
        self.stream_with(&[])
    }

    /// The same, with these marks as part of the text.
    #[must_use]
    pub fn stream_with(&self, marks: &[&str]) -> TextStream<'_> {
        let marks = marks.iter().filter_map(|mark| self.id(mark));
        TextStream::new(self, marks.collect())
    }

    /// A token as a decoder reads it; none of one that is no part of a text.
    fn told_token(&self, token: u32, marks: &[u32]) -> Option<String> {
        let word = self.0.id_to_token(token)?;
        let added = self.0.get_added_vocabulary();
        (marks.contains(&token) || !added.is_special_token(&word)).then_some(word)
    }
}

#[cfg(test)]
mod tests;
