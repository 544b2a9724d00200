//! Identifiers of accounts, orders, leases and content, each with its own type.
//!
//! In JSON the 32-byte identifiers are lower-case hex; on the wire they are bytes.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use ed25519_dalek::SigningKey;

macro_rules! bytes32 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(pub [u8; 32]);

        impl Ord for $name {
            /// Orders identifiers by their bytes. Compares the first eight bytes as one integer,
            /// which is nearly always enough.
            #[inline]
            fn cmp(&self, other: &Self) -> Ordering {
                let first = |one: &Self| one.0.first_chunk().copied().map(u64::from_be_bytes);
                first(self).cmp(&first(other)).then_with(|| self.0.cmp(&other.0))
            }
        }

        impl PartialOrd for $name {
            #[inline]
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex::encode(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), &hex::encode(&self.0[..4]))
            }
        }

        impl FromStr for $name {
            type Err = hex::FromHexError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let mut bytes = [0; 32];
                hex::decode_to_slice(text, &mut bytes)?;
                Ok(Self(bytes))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                if to.is_human_readable() {
                    to.collect_str(self)
                } else {
                    to.serialize_bytes(&self.0)
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                if from.is_human_readable() {
                    String::deserialize(from)?.parse().map_err(D::Error::custom)
                } else {
                    from.deserialize_bytes(ByteArrayVisitor::<32>).map(Self)
                }
            }
        }
    };
}

bytes32! {
    /// An account: its Ed25519 public key.
    AccountKey
}
bytes32! {
    /// A market: BLAKE3 of its genesis. Every signature covers it.
    MarketId
}
bytes32! {
    /// BLAKE3 of a tensor, a graph or a subgraph.
    ContentId
}
bytes32! {
    /// The id that a buyer gives a job. The market stores it and does not interpret it.
    JobId
}
bytes32! {
    /// A digest of the exchange's history or state.
    Digest
}

impl From<&SigningKey> for AccountKey {
    fn from(key: &SigningKey) -> Self {
        Self(key.verifying_key().to_bytes())
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize,
            Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.0, f)
            }
        }
    };
}
pub(crate) use number;

number! {
    /// An order. Ids rise in the order of arrival, so a smaller id has time priority.
    OrderId(u64)
}
number! {
    /// A trade, numbered from 1.
    TradeId(u64)
}
number! {
    /// A lease. Its number is that of the trade that opened it.
    LeaseId(u64)
}
number! {
    /// A request for a deposit or a withdrawal, numbered from 1.
    RequestId(u64)
}
number! {
    /// The provider's own number for a device, or for a pool of like devices.
    DeviceId(u64)
}
number! {
    /// A number that an account can use once. The exchange accepts any nonce above the account's
    /// highest used nonce, and each unused one among the 64 up to the highest.
    Nonce(u64)
}

/// Index of an account in the ledger's list of accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Slot(pub(crate) u32);

impl Slot {
    /// Stands for "no account".
    pub(crate) const NONE: Self = Self(u32::MAX);

    /// Returns the index in the list of accounts.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Identifies the order book of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct BookId(pub(crate) u32);

/// Identifies interned terms of orders. Valid while an order or lease refers to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct TermsId(pub(crate) u32);

/// An Ed25519 signature.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature(pub [u8; 64]);

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signature({})", hex::encode(&self.0[..4]))
    }
}

impl Serialize for Signature {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() {
            return to.serialize_str(&hex::encode(self.0));
        }
        to.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Signature {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        if !from.is_human_readable() {
            return from.deserialize_bytes(ByteArrayVisitor::<64>).map(Self);
        }
        let mut bytes = [0; 64];
        let text = String::deserialize(from)?;
        hex::decode_to_slice(text, &mut bytes).map_err(D::Error::custom)?;
        Ok(Self(bytes))
    }
}

/// A visitor that accepts exactly `N` bytes.
struct ByteArrayVisitor<const N: usize>;

impl<const N: usize> Visitor<'_> for ByteArrayVisitor<N> {
    type Value = [u8; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{N} bytes")
    }

    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<[u8; N], E> {
        bytes
            .try_into()
            .map_err(|_| E::invalid_length(bytes.len(), &self))
    }
}

/// Returns the canonical bytes of a value: postcard has one encoding for each value.
pub(crate) fn canonical_bytes<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain data in memory always encodes")
}
