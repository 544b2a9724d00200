//! Defines the profile that a provider publishes by gossip: its account, addresses and device with
//! its figures. Nodes learn from it how to reach the provider.
//!
//! The account that a profile describes must sign it, and it expires; peers should forward only
//! profiles that they have checked. A buyer needs no profile: it plans from asks, and validators
//! tell it the addresses.

use ed25519_dalek::{Signature as EdSignature, Signer, VerifyingKey};
use libp2p::Multiaddr;
use serde::{Deserialize, Serialize};
use souk_folder::contact::{self, Contact};
use souk_folder::key::NodeKey;
use souk_market::{AccountKey, Resources};

/// The prefix of the signed bytes, so that a profile's signature is valid for nothing else.
const DOMAIN: &[u8] = b"souk profile 1";

/// The longest validity of a profile, in milliseconds; a provider publishes the next one long
/// before.
pub const LIFE_MS: u64 = 30 * 60_000;

/// How far ahead of this node's clock another's can be, in milliseconds.
const CLOCK_SKEW_MS: u64 = 60_000;

/// The longest encoded profile: some addresses, one device, its figures.
pub const BYTES_MAX: usize = 4096;

/// The description that a provider publishes of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// The provider's account.
    pub account: AccountKey,
    /// The provider's addresses.
    pub addresses: Vec<Multiaddr>,
    /// Its device, as its asks state it.
    pub resources: Resources,
    /// When it was issued, in milliseconds since 1970.
    pub issued_ms: u64,
    /// When it expires, which must be at most [`LIFE_MS`] later.
    pub expires_ms: u64,
}

/// A profile in transit: its bytes and the account's signature over them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedProfile {
    bytes: Vec<u8>,
    signature: Vec<u8>,
}

/// Why a node rejects a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileFault {
    /// The bytes do not decode.
    #[error("it is not a profile of this version: {0}")]
    Malformed(#[from] postcard::Error),
    /// It exceeds the length limit.
    #[error("it has {0} bytes, a profile has at most {BYTES_MAX}")]
    Long(usize),
    /// The account that it describes did not sign it.
    #[error("it is not signed by the account it is about")]
    Forged,
    /// Its validity is too long, or ends before it begins.
    #[error("its times are not valid: issued {issued_ms}, expires {expires_ms}")]
    Times {
        /// The time of issue that it states.
        issued_ms: u64,
        /// The time of expiry that it states.
        expires_ms: u64,
    },
    /// Its time of issue is in the future: the forwarder can have another clock.
    #[error("it is issued {0} ms from now")]
    Early(u64),
    /// It has expired.
    #[error("it expired {0} ms ago")]
    Expired(u64),
}

impl Profile {
    /// Signs the profile.
    pub fn sign(&self, key: &NodeKey) -> Result<SignedProfile, ProfileFault> {
        let bytes = postcard::to_allocvec(self)?;
        let signature = key
            .signing_key()
            .sign(&signed_bytes(&bytes))
            .to_bytes()
            .to_vec();
        Ok(SignedProfile { bytes, signature })
    }

    /// Returns the provider's contact.
    pub fn to_contact(&self) -> Contact {
        let addresses = contact::limit_addresses(self.addresses.clone());
        Contact {
            account: self.account.0,
            addresses,
        }
    }
}

impl SignedProfile {
    /// Returns the profile, if it is valid at `now_ms`.
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
            account: AccountKey(key.public_key()),
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
