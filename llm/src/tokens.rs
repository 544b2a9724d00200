//! Text as tokens and back.

mod spelling;

use thiserror::Error;

/// Why text cannot be made into tokens, or tokens into text.
#[derive(Debug, Error)]
pub enum TokenError {
    /// The file is no tokeniser.
    #[error("tokenizer.json is refused: {0}")]
    File(tokenizers::Error),
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
    /// Reads `tokenizer.json`.
    ///
    /// # Errors
    /// [`TokenError::File`].
    pub fn read(json: &[u8]) -> Result<Self, TokenError> {
        let inner = tokenizers::Tokenizer::from_bytes(json);
        Ok(Self(inner.map_err(TokenError::File)?))
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

    /// The text of one token by itself; where it ends within a character, with what stands for
    /// one that is not whole.
    ///
    /// # Errors
    /// [`TokenError::Decode`].
    pub fn text_of(&self, token: u32) -> Result<String, TokenError> {
        self.0.decode(&[token], false).map_err(TokenError::Decode)
    }

    /// Text as tokens come; a token that ends within a character gives none yet.
    #[must_use]
    pub fn stream(&self) -> TextStream<'_> {
        TextStream(self.0.decode_stream(true))
    }
}

/// Text of tokens that come one by one.
pub struct TextStream<'a>(
    tokenizers::tokenizer::DecodeStream<
        'a,
        tokenizers::ModelWrapper,
        tokenizers::NormalizerWrapper,
        tokenizers::PreTokenizerWrapper,
        tokenizers::PostProcessorWrapper,
        tokenizers::DecoderWrapper,
    >,
);

impl TextStream<'_> {
    /// What a token adds to the text.
    ///
    /// # Errors
    /// [`TokenError::Decode`].
    pub fn push(&mut self, token: u32) -> Result<String, TokenError> {
        let text = self.0.step(token).map_err(TokenError::Decode)?;
        Ok(text.unwrap_or_default())
    }
}
