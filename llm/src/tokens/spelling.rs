//! The bytes that each token adds to a text, where they do not depend on its neighbours.

use std::collections::BTreeMap;

use tokenizers::{Decoder, DecoderWrapper};

use super::{TokenError, Tokenizer};

/// What a token is decoded after, so that what is done to the first of a text is not done to it.
const BEFORE: &str = "x";

impl Tokenizer {
    /// The bytes of each token by its id: those that a [`super::TextStream`] makes text of. None
    /// for one that makes no text; a space that the beginning of a text loses is among them.
    ///
    /// # Errors
    /// [`TokenError::Spelling`]: the bytes of a token depend on its neighbours.
    pub fn spellings(&self) -> Result<Vec<Vec<u8>>, TokenError> {
        let decoder = self.0.get_decoder().ok_or(TokenError::Spelling("none"))?;
        let spelling = Spelling::new(decoder)?;
        let added = self.0.get_added_tokens_decoder();
        let mut spellings = Vec::new();
        for (token, id) in self.0.get_vocab(true) {
            let id = id as usize;
            if spellings.len() <= id {
                spellings.resize(id + 1, Vec::new());
            }
            let is_mark = added.get(&(id as u32)).is_some_and(|it| it.special);
            if !is_mark {
                spellings[id] = spelling.bytes(token)?;
            }
        }
        Ok(spellings)
    }
}

/// How tokens are spelled.
enum Spelling<'a> {
    /// A letter a byte.
    Bytes(BTreeMap<char, u8>),
    /// As text, but for `<0x0A>` and the like where the decoder has them.
    Text {
        decoder: &'a DecoderWrapper,
        has_bytes: bool,
    },
}

impl<'a> Spelling<'a> {
    fn new(decoder: &'a DecoderWrapper) -> Result<Self, TokenError> {
        let parts = match decoder {
            DecoderWrapper::Sequence(sequence) => sequence.get_decoders(),
            one => std::slice::from_ref(one),
        };
        let mut has_bytes = false;
        for part in parts {
            match part {
                DecoderWrapper::ByteLevel(_) if parts.len() == 1 => {
                    return Ok(Self::Bytes(letters()));
                }
                DecoderWrapper::ByteFallback(_) => has_bytes = true,
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

    fn bytes(&self, token: String) -> Result<Vec<u8>, TokenError> {
        match self {
            Self::Bytes(letters) => {
                let bytes = token.chars().map(|letter| letters.get(&letter).copied());
                let bytes: Option<Vec<u8>> = bytes.collect();
                // One that somebody added may have others.
                Ok(bytes.unwrap_or_else(|| token.into_bytes()))
            }
            Self::Text { decoder, has_bytes } => {
                if let (true, Some(byte)) = (has_bytes, numbered(&token)) {
                    return Ok(vec![byte]);
                }
                let tokens = vec![BEFORE.to_owned(), token];
                let text = decoder.decode(tokens).map_err(TokenError::Decode)?;
                let own = text.strip_prefix(BEFORE).unwrap_or_default();
                Ok(own.as_bytes().to_vec())
            }
        }
    }
}

/// The byte that a token such as `<0x0A>` is.
fn numbered(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_number = digits.len() == 2 && digits.bytes().all(|it| it.is_ascii_hexdigit());
    is_number.then(|| u8::from_str_radix(digits, 16).ok())?
}

/// The letter of each byte, as GPT-2 has them: itself where it can be seen, or the next from 256.
fn letters() -> BTreeMap<char, u8> {
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
