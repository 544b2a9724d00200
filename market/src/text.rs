//! A short name with a bounded length, for accounts, devices and markets. The bound stops commands
//! from filling the exchange's memory.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// At most 64 bytes of UTF-8, such as a model's name or a peer id. A name must not hold a control
/// character.
///
/// A clone copies no bytes, because every lease carries a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Arc<str>);

/// Why a string is not a valid [`Name`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameFault {
    /// The string is longer than [`Name::BYTES_MAX`].
    #[error("{bytes} bytes, at most {} fit", Name::BYTES_MAX)]
    TooLong {
        /// The string's length in bytes.
        bytes: usize,
    },
    /// The string holds a control character.
    #[error("holds a control character")]
    Control,
}

impl Name {
    /// The greatest length in bytes; a libp2p peer id has 52.
    pub const BYTES_MAX: usize = 64;

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = NameFault;
    fn try_from(text: String) -> Result<Self, NameFault> {
        if text.len() > Self::BYTES_MAX {
            return Err(NameFault::TooLong { bytes: text.len() });
        }
        if text.chars().any(char::is_control) {
            return Err(NameFault::Control);
        }
        Ok(Self(text.into()))
    }
}

impl TryFrom<&str> for Name {
    type Error = NameFault;
    fn try_from(text: &str) -> Result<Self, NameFault> {
        text.to_owned().try_into()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0.as_ref().to_owned()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
