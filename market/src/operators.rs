//! Defines [`Operators`], the set of ONNX operators (such as `Conv`) that a device runs or a bid
//! needs, as bits; the devices' own taxonomy numbers them. The set has a bound, so that commands
//! cannot fill the exchange's memory. (The people who operate the market are in `governing`.)

use std::fmt;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The operators that a device runs or a bid needs, as the devices' own taxonomy numbers them.
///
/// Its bytes must have no zero at the end, so that equal sets have equal bytes. A clone copies no
/// bytes, because every lease carries a set. In JSON the bytes are hex.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Operators(Arc<[u8]>);

/// Why bytes are not a valid set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperatorsFault {
    /// There are more than [`Operators::BYTES_MAX`] bytes.
    #[error(
        "{bytes} bytes of operators, at most {} are read",
        Operators::BYTES_MAX
    )]
    TooLong {
        /// The number of bytes.
        bytes: usize,
    },
    /// The last byte is zero.
    #[error("a set of operators ends with a zero byte")]
    Padded,
}

impl Operators {
    /// The most bytes of a set; there are about 200 operators.
    pub const BYTES_MAX: usize = 64;

    /// Returns the set of these numbers, without those that are too large for it.
    pub fn from_numbers(numbers: impl IntoIterator<Item = usize>) -> Self {
        let mut bytes = [0; Self::BYTES_MAX];
        for number in numbers {
            if let Some(byte) = bytes.get_mut(number / 8) {
                *byte |= 1 << (number % 8);
            }
        }
        let used = bytes.iter().rposition(|byte| *byte != 0);
        let set = Self(bytes[..used.map_or(0, |last| last + 1)].into());
        debug_assert!(set.0.last() != Some(&0), "its last byte says something");
        set
    }

    /// Returns whether the set has no operator.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the set has this operator.
    pub fn has_operator(&self, number: usize) -> bool {
        let byte = self.0.get(number / 8).copied().unwrap_or(0);
        byte & (1 << (number % 8)) != 0
    }

    /// Returns whether the set has every operator of `needed`.
    pub fn is_superset_of(&self, needed: &Self) -> bool {
        let have = self.0.iter().copied().chain(std::iter::repeat(0));
        needed
            .0
            .iter()
            .zip(have)
            .all(|(need, have)| need & !have == 0)
    }

    /// Iterates over the operators' numbers in order.
    pub fn numbers(&self) -> impl Iterator<Item = usize> {
        (0..self.0.len() * 8).filter(|number| self.has_operator(*number))
    }
}

impl TryFrom<Vec<u8>> for Operators {
    type Error = OperatorsFault;

    fn try_from(bytes: Vec<u8>) -> Result<Self, OperatorsFault> {
        if bytes.len() > Self::BYTES_MAX {
            return Err(OperatorsFault::TooLong { bytes: bytes.len() });
        }
        match bytes.last() {
            Some(0) => Err(OperatorsFault::Padded),
            _ => Ok(Self(bytes.into())),
        }
    }
}

impl fmt::Debug for Operators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operators({})", hex::encode(&self.0))
    }
}

impl Serialize for Operators {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match to.is_human_readable() {
            true => to.serialize_str(&hex::encode(&self.0)),
            false => self.0[..].serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Operators {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let bytes = match from.is_human_readable() {
            true => hex::decode(String::deserialize(from)?).map_err(D::Error::custom)?,
            false => Vec::deserialize(from)?,
        };
        bytes.try_into().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_covers_what_it_has_all_of() {
        let (few, many) = (
            Operators::from_numbers([3, 20]),
            Operators::from_numbers([3, 9, 20, 200]),
        );
        assert!(many.is_superset_of(&few) && !few.is_superset_of(&many));
        assert!(
            few.is_superset_of(&Operators::default()) && !Operators::default().is_superset_of(&few)
        );
        assert_eq!(many.numbers().collect::<Vec<_>>(), [3, 9, 20, 200]);
        assert_eq!(Operators::from_numbers([usize::MAX]), Operators::default());
    }

    #[test]
    fn a_set_survives_the_wire_and_json_and_no_long_or_padded_one_is_read() {
        let set = Operators::from_numbers([0, 190]);
        let wire = postcard::to_allocvec(&set).unwrap();
        assert_eq!(wire.len(), 25, "24 bytes and their number");
        assert_eq!(postcard::from_bytes::<Operators>(&wire).unwrap(), set);
        let text = serde_json::to_string(&set).unwrap();
        assert_eq!(serde_json::from_str::<Operators>(&text).unwrap(), set);
        let read = Operators::try_from;
        assert_eq!(
            read(vec![1; 65]),
            Err(OperatorsFault::TooLong { bytes: 65 })
        );
        assert_eq!(read(vec![1, 0]), Err(OperatorsFault::Padded));
    }
}
