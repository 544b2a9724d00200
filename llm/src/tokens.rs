//! Converts text to tokens and back with a model's tokeniser, its file `tokenizer.json`. It refuses
//! a file that exceeds its limits.

mod charsmap;
mod spelling;
mod stream;

use thiserror::Error;

use spelling::TOKENS_MAX;
pub use stream::TextStream;

/// Why text cannot be converted to tokens, or tokens to text.
#[derive(Debug, Error)]
pub enum TokenError {
    /// The file is not a valid tokeniser.
    #[error("tokenizer.json is refused: {0}")]
    File(tokenizers::Error),
    /// The file or its ids exceed a limit.
    #[error("tokenizer.json is refused: it has {what}, at most {most} are read")]
    Size {
        /// The quantity that is too large.
        what: String,
        /// Maximum that the reader accepts.
        most: usize,
    },
    /// The text cannot be encoded.
    #[error("the text cannot be split into tokens: {0}")]
    Encode(tokenizers::Error),
    /// The tokens cannot be decoded.
    #[error("the tokens cannot be converted to text: {0}")]
    Decode(tokenizers::Error),
    /// The bytes of a token depend on its neighbours.
    #[error(
        "the text of a token depends on its neighbours: the tokeniser's decoder is {0}, and \
         grammars support ByteLevel, Metaspace, and Replace with ByteFallback"
    )]
    Spelling(&'static str),
}

/// Maximum bytes of a `tokenizer.json`: twice those of the largest known one.
const FILE_BYTES_MAX: usize = 64 << 20;

/// A model's tokeniser.
#[derive(Clone, Debug)]
pub struct Tokenizer(tokenizers::Tokenizer);

/// Whether the tokeniser adds the model's own marks around a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// The tokeniser adds the marks, as for a text that stands alone.
    Added,
    /// The text contains its own marks.
    Own,
}

/// A token of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenPlace {
    /// Its number in the vocabulary.
    pub id: u32,
    /// Its first byte in the text. A mark that the tokeniser added has 0.
    pub start: usize,
}

impl Tokenizer {
    /// Reads `tokenizer.json`. Ignores its truncation and padding, which are for training batches.
    ///
    /// # Errors
    /// [`TokenError::File`] and [`TokenError::Size`].
    pub fn read(json: &[u8]) -> Result<Self, TokenError> {
        let too_large = |what: String, most| Err(TokenError::Size { what, most });
        if json.len() > FILE_BYTES_MAX {
            return too_large(format!("{} bytes", json.len()), FILE_BYTES_MAX);
        }
        charsmap::check_tokenizer(json).map_err(|why| TokenError::File(why.into()))?;
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

    /// Returns the tokeniser as `tokenizer.json`.
    ///
    /// # Errors
    /// [`TokenError::File`].
    pub fn to_json(&self) -> Result<String, TokenError> {
        self.0.to_string(false).map_err(TokenError::File)
    }

    /// Returns the tokens of a text.
    ///
    /// # Errors
    /// [`TokenError::Encode`].
    pub fn encode(&self, text: &str, marks: Marks) -> Result<Vec<u32>, TokenError> {
        let encoded = self.0.encode(text, marks == Marks::Added);
        let encoded = encoded.map_err(TokenError::Encode)?;
        Ok(encoded.get_ids().to_vec())
    }

    /// Returns the tokens of a text with their places in it.
    ///
    /// # Errors
    /// [`TokenError::Encode`].
    pub fn encode_places(&self, text: &str, marks: Marks) -> Result<Vec<TokenPlace>, TokenError> {
        let encoded = self.0.encode(text, marks == Marks::Added);
        let encoded = encoded.map_err(TokenError::Encode)?;
        let all = encoded.get_ids().iter().zip(encoded.get_offsets());
        let places = all.map(|(&id, &(start, _))| TokenPlace { id, start });
        Ok(places.collect())
    }

    /// Returns the id of a token by its text.
    #[must_use]
    pub fn id(&self, token: &str) -> Option<u32> {
        self.0.token_to_id(token)
    }

    /// Returns a stream that converts tokens to text as they come. A token that ends within a
    /// character adds no text yet.
    #[must_use]
    pub fn stream(&self) -> TextStream<'_> {
        self.stream_with(&[])
    }

    /// Returns such a stream that keeps these marks as part of the text.
    #[must_use]
    pub fn stream_with(&self, marks: &[&str]) -> TextStream<'_> {
        let marks = marks.iter().filter_map(|mark| self.id(mark));
        TextStream::new(self, marks.collect())
    }

    /// Returns a token's text for the decoder, or none if the token is no part of a text.
    fn visible_token(&self, token: u32, marks: &[u32]) -> Option<String> {
        let word = self.0.id_to_token(token)?;
        let added = self.0.get_added_vocabulary();
        (marks.contains(&token) || !added.is_special_token(&word)).then_some(word)
    }
}

#[cfg(test)]
mod tests;
