//! Computes the bytes that each token of a vocabulary adds to a text. Grammars need them to find
//! the allowed tokens. The module refuses a tokeniser in which the bytes of a token depend on its
//! neighbours.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use tokenizers::{Decoder, DecoderWrapper};

use super::{TokenError, Tokenizer};

/// A token to decode first, so that the decoder does not treat the next one as the first of a text.
const BEFORE: &str = "x";

/// Maximum tokens of a vocabulary: four times those of the largest known one.
pub(super) const TOKENS_MAX: u32 = 1 << 20;

/// The byte of each letter.
static LETTERS: LazyLock<BTreeMap<char, u8>> = LazyLock::new(byte_letters);

impl Tokenizer {
    /// Returns the bytes of each token by its id, as a [`super::TextStream`] converts them. A token
    /// that makes no text has none; a space that the beginning of a text loses is included.
    ///
    /// # Errors
    /// [`TokenError::Spelling`] if the bytes of a token depend on its neighbours.
    pub fn token_spellings(&self) -> Result<Vec<Vec<u8>>, TokenError> {
        let decoder = self.0.get_decoder().ok_or(TokenError::Spelling("none"))?;
        let spelling = Spelling::new(decoder)?;
        let added = self.0.get_added_tokens_decoder();
        let mut spellings = Vec::new();
        for (token, id) in self.0.get_vocab(true) {
            let is_mark = added.get(&id).is_some_and(|it| it.special);
            let id = id as usize;
            if spellings.len() <= id {
                spellings.resize(id + 1, Vec::new());
            }
            if !is_mark {
                spellings[id] = spelling.token_bytes(token)?;
            }
        }
        Ok(spellings)
    }

    /// Returns the bytes of one token within a text, marks included.
    ///
    /// # Errors
    /// [`TokenError::Decode`].
    pub fn bytes_of(&self, token: u32) -> Result<Vec<u8>, TokenError> {
        let Some(word) = self.0.id_to_token(token) else {
            return Ok(Vec::new());
        };
        match self.0.get_decoder().map(Spelling::new) {
            Some(Ok(spelling)) => spelling.token_bytes(word),
            None | Some(Err(_)) => {
                let text = self.0.decode(&[token], false);
                Ok(text.map_err(TokenError::Decode)?.into_bytes())
            }
        }
    }
}

/// How tokens are spelled.
pub(super) enum Spelling<'a> {
    /// One letter for each byte.
    Bytes,
    /// As text, except `<0x0A>` and the like if the decoder supports them.
    Text {
        decoder: &'a DecoderWrapper,
        has_bytes: bool,
    },
}

impl<'a> Spelling<'a> {
    pub(super) fn new(decoder: &'a DecoderWrapper) -> Result<Self, TokenError> {
        let parts = match decoder {
            DecoderWrapper::Sequence(sequence) => sequence.get_decoders(),
            one => std::slice::from_ref(one),
        };
        let mut has_bytes = false;
        for part in parts {
            match part {
                DecoderWrapper::ByteLevel(_) if parts.len() == 1 => return Ok(Self::Bytes),
                DecoderWrapper::ByteFallback(_) => has_bytes = true,
                DecoderWrapper::Strip(strip) if strip.stop > 0 => {
                    return Err(TokenError::Spelling("Strip of an end"));
                }
                DecoderWrapper::Metaspace(_)
                | DecoderWrapper::Replace(_)
                | DecoderWrapper::Fuse(_)
                | DecoderWrapper::Strip(_) => {}
                DecoderWrapper::ByteLevel(_) => return Err(TokenError::Spelling("ByteLevel")),
                DecoderWrapper::Sequence(_) => return Err(TokenError::Spelling("Sequence")),
                DecoderWrapper::BPE(_) => return Err(TokenError::Spelling("BPEDecoder")),
                DecoderWrapper::WordPiece(_) => return Err(TokenError::Spelling("WordPiece")),
                DecoderWrapper::CTC(_) => return Err(TokenError::Spelling("CTC")),
            }
        }
        Ok(Self::Text { decoder, has_bytes })
    }

    /// Returns whether some tokens are a byte each, and the others text.
    pub(super) fn has_bytes(&self) -> bool {
        matches!(
            self,
            Self::Text {
                has_bytes: true,
                ..
            }
        )
    }

    pub(super) fn token_bytes(&self, token: String) -> Result<Vec<u8>, TokenError> {
        match self {
            Self::Bytes => {
                let bytes = token.chars().map(|letter| LETTERS.get(&letter).copied());
                let bytes: Option<Vec<u8>> = bytes.collect();
                // A token that a user added may have other letters.
                Ok(bytes.unwrap_or_else(|| token.into_bytes()))
            }
            Self::Text { has_bytes, .. } => match (has_bytes, parse_byte_token(&token)) {
                (true, Some(byte)) => Ok(vec![byte]),
                _ => Ok(self.decode_text(vec![token], &mut true)?.into_bytes()),
            },
        }
    }

    /// Returns the text of tokens that does not depend on others, at the beginning of a text or
    /// after it.
    pub(super) fn decode_text(
        &self,
        mut tokens: Vec<String>,
        is_begun: &mut bool,
    ) -> Result<String, TokenError> {
        if tokens.is_empty() {
            return Ok(String::new());
        }
        let Self::Text { decoder, .. } = self else {
            return Ok(tokens.concat());
        };
        let decode = |tokens| decoder.decode(tokens).map_err(TokenError::Decode);
        if !std::mem::replace(is_begun, true) {
            return decode(tokens);
        }
        tokens.insert(0, BEFORE.to_owned());
        let text = decode(tokens)?;
        Ok(text.strip_prefix(BEFORE).unwrap_or_default().to_owned())
    }
}

/// Returns the byte of a token such as `<0x0A>`.
pub(super) fn parse_byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_number = digits.len() == 2 && digits.bytes().all(|it| it.is_ascii_hexdigit());
    is_number.then(|| u8::from_str_radix(digits, 16).ok())?
}

/// Returns the letter of each byte, as in GPT-2: itself if it is visible, or the next from 256.
fn byte_letters() -> BTreeMap<char, u8> {
    let mut unseen = 0x100..;
    let letter = |byte: u8| {
        let own = match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => Some(u32::from(byte)),
            _ => unseen.next(),
        };
        (own.and_then(char::from_u32).unwrap_or_default(), byte)
    };
    (0..=u8::MAX).map(letter).collect()
}
