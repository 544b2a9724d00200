//! Defines [`Contact`], the account of a peer with the network addresses that reach it, and
//! converts it to and from the text of an address that ends in `/p2p/ID`. Invitations and the
//! market's file list validators by it.

use libp2p_identity::PeerId;
pub use multiaddr::Multiaddr;
use multiaddr::Protocol;
use serde::{Deserialize, Serialize};
use souk_market::AccountKey;
use souk_roles::lease;

use crate::key::{self, NotAKey};

/// The most addresses kept of one peer; more would say nothing new about it.
pub const ADDRESSES_MAX: usize = 8;

/// The longest address kept: a host name with the ids of a relay and a peer.
pub const ADDRESS_BYTES_MAX: usize = 512;

/// Returns the addresses to keep of those that a peer states.
pub fn limit_addresses(mut addresses: Vec<Multiaddr>) -> Vec<Multiaddr> {
    addresses.truncate(ADDRESSES_MAX);
    addresses.retain(|address| address.len() <= ADDRESS_BYTES_MAX);
    addresses
}

/// A peer's account and the addresses it listens on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact {
    /// The peer's public key, which is its account in the market.
    pub account: [u8; 32],
    /// Multiaddresses, the best known first; at most [`ADDRESSES_MAX`].
    pub addresses: Vec<Multiaddr>,
}

/// Why a text is not a contact.
#[derive(Debug, thiserror::Error)]
pub enum ContactError {
    /// The text is not a multiaddress.
    #[error("\"{text}\" is not an address like /ip4/127.0.0.1/tcp/4001/p2p/12D3…: {source}")]
    Address {
        /// The text that was parsed.
        text: String,
        /// The parser's error.
        source: multiaddr::Error,
    },
    /// The text does not end in the id of a souk peer.
    #[error("\"{text}\" does not end in /p2p/ and the id of an ed25519 peer")]
    NoPeer {
        /// The text that was parsed.
        text: String,
    },
}

impl From<&Contact> for lease::Contact {
    fn from(contact: &Contact) -> lease::Contact {
        lease::Contact {
            account: AccountKey(contact.account),
            addresses: contact.addresses.iter().map(Multiaddr::to_string).collect(),
        }
    }
}

/// Leaves out addresses that this souk does not understand.
impl From<&lease::Contact> for Contact {
    fn from(said: &lease::Contact) -> Contact {
        Contact {
            account: said.account.0,
            addresses: parse_addresses(&said.addresses),
        }
    }
}

/// Parses addresses, and leaves out those that this souk does not understand.
pub fn parse_addresses(said: &[String]) -> Vec<Multiaddr> {
    said.iter()
        .filter_map(|address| address.parse().ok())
        .collect()
}

impl Contact {
    /// Returns the peer id that belongs to the account.
    pub fn peer_id(&self) -> Result<PeerId, NotAKey> {
        key::peer_of(&self.account)
    }

    /// Reads a multiaddress, which must end in `/p2p/<peer id>`.
    pub fn parse(text: &str) -> Result<Contact, ContactError> {
        let mut address: Multiaddr = text.parse().map_err(|source| ContactError::Address {
            text: text.to_owned(),
            source,
        })?;
        let account = match address.pop() {
            Some(Protocol::P2p(peer)) => key::account_of(&peer),
            _ => None,
        };
        let account = account.ok_or_else(|| ContactError::NoPeer {
            text: text.to_owned(),
        })?;
        Ok(Contact {
            account,
            addresses: vec![address],
        })
    }

    /// Returns the first address with the peer id at its end, as [`Contact::parse`] reads it.
    pub fn to_text(&self) -> Option<String> {
        let peer = self.peer_id().ok()?;
        let address = self.addresses.first()?.clone().with_p2p(peer).ok()?;
        Some(address.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::NodeKey;

    #[test]
    fn a_contact_reads_back_from_its_text() {
        let account = NodeKey::generate().public_key();
        let addresses = vec!["/ip4/127.0.0.1/tcp/4001".parse().unwrap()];
        let contact = Contact { account, addresses };
        assert_eq!(
            Contact::parse(&contact.to_text().unwrap()).unwrap(),
            contact
        );
    }

    #[test]
    fn few_addresses_are_kept_and_none_that_is_very_long() {
        let short: Multiaddr = "/ip4/127.0.0.1/tcp/4001".parse().unwrap();
        assert_eq!(
            limit_addresses(vec![short.clone(); 20]).len(),
            ADDRESSES_MAX
        );
        let host = "a".repeat(ADDRESS_BYTES_MAX);
        let long: Multiaddr = format!("/dns4/{host}/tcp/4001").parse().unwrap();
        assert_eq!(limit_addresses(vec![long, short.clone()]), [short]);
    }

    #[test]
    fn an_address_without_a_peer_is_refused_by_name() {
        let refused = Contact::parse("/ip4/127.0.0.1/tcp/4001").unwrap_err();
        assert!(refused.to_string().contains("/p2p/"));
    }
}
