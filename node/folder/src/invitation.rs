//! Parses and prints an invitation, the line that lets others join a market: the market's id, and
//! the addresses of validators.
//!
//! ```text
//! souk:MARKET@/ip4/192.0.2.7/tcp/4001/p2p/12D3…[,ADDRESS…]
//! ```
//!
//! If you have this line, you need not trust the validators: souk will check their statement of the
//! market's genesis against the id.

use std::fmt;
use std::str::FromStr;

use souk_market::MarketId;

use super::contact::{Contact, ContactError};

const SCHEME: &str = "souk:";

/// A market's id, and validators to ask about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// The hash of the market's genesis.
    pub market: MarketId,
    /// The contacts of validators, at least one.
    pub contacts: Vec<Contact>,
}

/// Why a text is not an invitation.
#[derive(Debug, thiserror::Error)]
pub enum InvitationError {
    /// It does not have the form of an invitation.
    #[error("\"{0}\" is no invitation to a market, souk:ID@ADDRESS")]
    Form(String),
    /// The id is not valid.
    #[error("\"{0}\" is not a market's id: 64 hexadecimal digits")]
    Market(String),
    /// An address is not valid.
    #[error(transparent)]
    Contact(#[from] ContactError),
}

impl FromStr for Invitation {
    type Err = InvitationError;

    fn from_str(text: &str) -> Result<Invitation, InvitationError> {
        let parts = text.trim().strip_prefix(SCHEME);
        let parts = parts.and_then(|rest| rest.split_once('@'));
        let (id, addresses) = parts.ok_or_else(|| InvitationError::Form(text.to_owned()))?;
        let market = id
            .parse()
            .map_err(|_| InvitationError::Market(id.to_owned()))?;
        let contacts = addresses.split(',').map(Contact::parse);
        Ok(Invitation {
            market,
            contacts: contacts.collect::<Result<_, _>>()?,
        })
    }
}

impl fmt::Display for Invitation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<String> = self.contacts.iter().flat_map(Contact::to_text).collect();
        write!(out, "{SCHEME}{}@{}", self.market, addresses.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::NodeKey;

    #[test]
    fn a_line_reads_back_and_what_is_none_is_refused_by_name() {
        let contact = |port: u16| Contact {
            account: NodeKey::generate().public_key(),
            addresses: vec![format!("/ip4/192.0.2.7/tcp/{port}").parse().unwrap()],
        };
        let invitation = Invitation {
            market: MarketId([7; 32]),
            contacts: vec![contact(4001), contact(4002)],
        };
        let line = invitation.to_string();
        assert_eq!(
            format!(" {line}\n").parse::<Invitation>().unwrap(),
            invitation
        );
        let refused = |text: &str| text.parse::<Invitation>().unwrap_err().to_string();
        assert!(refused("market").contains("souk:ID@ADDRESS"));
        assert!(refused("souk:07@/ip4/192.0.2.7/tcp/1").contains("64 hexadecimal"));
        assert!(refused(&line.replace("/p2p/", "/p3p/")).contains("/p2p/"));
    }
}
