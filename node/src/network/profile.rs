//! What a provider says of itself to the network: who, where, what device, measured how fast.
//!
//! A profile is signed by the account it is about and expires; peers pass on only what they have
//! checked. It says nothing that an ask does not have to say again: a buyer that sees none loses
//! speed of planning, not safety.

use ed25519_dalek::{Signature as EdSignature, Signer, VerifyingKey};
use libp2p::Multiaddr;
use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, Resources};

use crate::folder::contact::{self, Contact};
use crate::folder::key::NodeKey;

/// What is signed begins with this, so that a signature on a profile is none on anything else.
const DOMAIN: &[u8] = b"souk profile 1";

/// The longest a profile may hold; a provider says it again long before.
pub const LIFE_MS: u64 = 30 * 60_000;

/// How far ahead of this node's clock another's may be.
const CLOCK_SKEW_MS: u64 = 60_000;

/// The longest encoded profile: some addresses, one device, its figures.
pub const BYTES_MAX: usize = 4096;

/// What a provider says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// Who.
    pub account: AccountKey,
    /// Where it is reached.
    pub addresses: Vec<Multiaddr>,
    /// Its device, as its asks state it.
    pub resources: Resources,
    /// When it was said, in milliseconds since 1970.
    pub issued_ms: u64,
    /// When it no longer holds; at most [`LIFE_MS`] later.
    pub expires_ms: u64,
}

/// A profile as it travels: its bytes and the account's signature over them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedProfile {
    bytes: Vec<u8>,
    signature: Vec<u8>,
}

/// Why a profile is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileFault {
    /// It does not decode.
    #[error("it is no profile of this version: {0}")]
    Malformed(#[from] postcard::Error),
    /// It is longer than a profile is.
    #[error("it has {0} bytes, a profile has at most {BYTES_MAX}")]
    Long(usize),
    /// Its signature is not that of the account it is about.
    #[error("it is not signed by the account it is about")]
    Forged,
    /// It holds for longer than any.
    #[error("its times do not hold: issued {issued_ms}, expires {expires_ms}")]
    Times {
        /// When it says it was issued.
        issued_ms: u64,
        /// When it says it expires.
        expires_ms: u64,
    },
    /// It is of the future: whoever passed it on may have another clock.
    #[error("it is issued {0} ms from now")]
    Early(u64),
    /// It has expired.
    #[error("it expired {0} ms ago")]
    Expired(u64),
}

impl Profile {
    /// Signs it.
    pub fn sign(&self, key: &NodeKey) -> Result<SignedProfile, ProfileFault> {
        let bytes = postcard::to_allocvec(self)?;
        let signature = key
            .signing()
            .sign(&signed_bytes(&bytes))
            .to_bytes()
            .to_vec();
        Ok(SignedProfile { bytes, signature })
    }

    /// Where the peer is.
    pub fn contact(&self) -> Contact {
        let addresses = contact::kept(self.addresses.clone());
        Contact {
            account: self.account.0,
            addresses,
        }
    }
}

impl SignedProfile {
    /// The profile, if all about it holds at `now_ms`.
    pub fn verify(&self, now_ms: u64) -> Result<Profile, ProfileFault> {
        if self.bytes.len() > BYTES_MAX {
            return Err(ProfileFault::Long(self.bytes.len()));
        }
        let profile: Profile = postcard::from_bytes(&self.bytes)?;
        let Profile {
            issued_ms,
            expires_ms,
            ..
        } = profile;
        let life = expires_ms
            .checked_sub(issued_ms)
            .filter(|life| *life <= LIFE_MS);
        if life.is_none() {
            return Err(ProfileFault::Times {
                issued_ms,
                expires_ms,
            });
        }
        if issued_ms > now_ms.saturating_add(CLOCK_SKEW_MS) {
            return Err(ProfileFault::Early(issued_ms - now_ms));
        }
        if expires_ms <= now_ms {
            return Err(ProfileFault::Expired(now_ms - expires_ms));
        }
        let key = VerifyingKey::from_bytes(&profile.account.0);
        let signature = EdSignature::from_slice(&self.signature);
        let (Ok(key), Ok(signature)) = (key, signature) else {
            return Err(ProfileFault::Forged);
        };
        let verified = key.verify_strict(&signed_bytes(&self.bytes), &signature);
        verified.map_err(|_| ProfileFault::Forged)?;
        Ok(profile)
    }
}

fn signed_bytes(bytes: &[u8]) -> Vec<u8> {
    [DOMAIN, bytes].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000_000;

    fn profile(key: &NodeKey) -> Profile {
        Profile {
            account: AccountKey(key.public()),
            addresses: vec!["/ip4/127.0.0.1/tcp/4001".parse().unwrap()],
            resources: Resources::default(),
            issued_ms: NOW,
            expires_ms: NOW + LIFE_MS,
        }
    }

    #[test]
    fn a_signed_profile_holds_until_it_expires() {
        let key = NodeKey::generate();
        let signed = profile(&key).sign(&key).unwrap();
        assert_eq!(signed.verify(NOW), Ok(profile(&key)));
        let expired = signed.verify(NOW + LIFE_MS + 5);
        assert_eq!(expired, Err(ProfileFault::Expired(5)));
    }

    #[test]
    fn a_profile_in_anothers_name_is_forged() {
        let (key, other) = (NodeKey::generate(), NodeKey::generate());
        let forged = profile(&key).sign(&other).unwrap();
        assert_eq!(forged.verify(NOW), Err(ProfileFault::Forged));
        let mut changed = profile(&key).sign(&key).unwrap();
        changed.signature[7] ^= 1;
        assert_eq!(changed.verify(NOW), Err(ProfileFault::Forged));
    }

    #[test]
    fn a_profile_of_the_future_or_for_ever_is_not_believed() {
        let key = NodeKey::generate();
        let late = Profile {
            issued_ms: NOW + CLOCK_SKEW_MS + 1,
            expires_ms: NOW + CLOCK_SKEW_MS + 2,
            ..profile(&key)
        };
        let long = Profile {
            expires_ms: NOW + LIFE_MS + 1,
            ..profile(&key)
        };
        let verified = |profile: &Profile| profile.sign(&key).unwrap().verify(NOW);
        assert_eq!(verified(&late), Err(ProfileFault::Early(CLOCK_SKEW_MS + 1)));
        assert!(matches!(verified(&long), Err(ProfileFault::Times { .. })));
    }
}
