//! Defines [`ContentId`], the id of some content: the BLAKE3 hash of its bytes.
//!
//! Anyone with the id can check the bytes, no matter which peer sent them, so an id also proves
//! that a transfer arrived whole.

use std::fmt;
use std::io;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// A BLAKE3 hash of some bytes, displayed as 64 lowercase hexadecimal digits.
///
/// In formats for people (JSON) it is that text; in binary formats it is the 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentId([u8; ContentId::BYTES]);

/// Why a text is not a content id.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ContentIdError {
    /// The text has the wrong length.
    #[error("a content id has 64 hexadecimal digits, not {found}")]
    Length {
        /// The length of the text in bytes.
        found: usize,
    },
    /// The text has a character that is not a hexadecimal digit.
    #[error("a content id has only hexadecimal digits, not {found:?} at {index}")]
    Digit {
        /// The first such character.
        found: char,
        /// Its offset in the text, in bytes.
        index: usize,
    },
}

impl ContentId {
    /// The length of an id in bytes.
    pub const BYTES: usize = 32;

    /// Computes the id of `bytes`.
    #[must_use]
    pub fn for_content(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// Computes the id of a reader's bytes, which can be more than fit in memory.
    ///
    /// # Errors
    /// The reader's error.
    pub fn of_reader(reader: impl io::Read) -> io::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(reader)?;
        Ok(Self(*hasher.finalize().as_bytes()))
    }

    /// Creates an id from its 32 bytes, for example as another party stated them.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the 32 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// Returns the first ten hexadecimal digits: enough for a person to tell ids apart. Code must
    /// compare whole ids.
    #[must_use]
    pub fn short_hex(&self) -> String {
        hex::encode(&self.0[..5])
    }
}

impl fmt::Display for ContentId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ContentId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ContentId({})", self.short_hex())
    }
}

impl FromStr for ContentId {
    type Err = ContentIdError;

    fn from_str(text: &str) -> Result<Self, ContentIdError> {
        let mut bytes = [0; Self::BYTES];
        match hex::decode_to_slice(text, &mut bytes) {
            Ok(()) => Ok(Self(bytes)),
            Err(hex::FromHexError::InvalidHexCharacter { c, index }) => {
                Err(ContentIdError::Digit { found: c, index })
            }
            Err(_) => Err(ContentIdError::Length { found: text.len() }),
        }
    }
}

impl Serialize for ContentId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            self.0.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for ContentId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            let text = String::deserialize(deserializer)?;
            text.parse().map_err(serde::de::Error::custom)
        } else {
            <[u8; Self::BYTES]>::deserialize(deserializer).map(Self)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_text_and_json() {
        let id = ContentId::for_content(b"souk");
        assert_eq!(id.to_string().parse::<ContentId>().unwrap(), id);
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(json, format!("\"{id}\""));
        assert_eq!(serde_json::from_str::<ContentId>(&json).unwrap(), id);
    }

    #[test]
    fn the_id_of_nothing_is_the_published_blake3_vector() {
        assert_eq!(
            ContentId::for_content(b"").to_string(),
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        );
    }

    #[test]
    fn a_wrong_text_says_what_is_wrong() {
        assert_eq!(
            "ab".parse::<ContentId>(),
            Err(ContentIdError::Length { found: 2 })
        );
        let text = format!("{}g", "0".repeat(63));
        assert_eq!(
            text.parse::<ContentId>(),
            Err(ContentIdError::Digit {
                found: 'g',
                index: 63
            })
        );
    }
}
