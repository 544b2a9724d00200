//! A validator's verdict in a dispute, as a signed command of the log.
//!
//! It is not a command of an account, because validators need no account. It names the dispute, and
//! the market counts it once for each validator, so a repeated verdict has no effect.

use ed25519_dalek::{Signer, VerifyingKey};
use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, DisputeId, MarketId, Signature, SigningKey, Verdict};

/// The prefix of a verdict in the log. No batch of commands begins so, because a batch begins with
/// the length of the hash that is the market's id.
const MAGIC: &[u8; 8] = b"soukVRD1";

/// The prefix of the signed bytes, so that no other signature of the same key is valid here.
const DOMAIN: &[u8] = b"souk verdict v1";

/// The signed content of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerdictBody {
    /// The market of the dispute.
    pub market: MarketId,
    /// The dispute.
    pub dispute: DisputeId,
    /// The validator's key.
    pub juror: AccountKey,
    /// What it found.
    pub verdict: Verdict,
}

/// A verdict with its validator's signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedVerdict {
    /// The signed content.
    pub body: VerdictBody,
    /// The validator's ed25519 signature.
    pub signature: Signature,
}

/// The signature is not the validator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the signature is not that of {0} over this verdict")]
pub struct VerdictForged(pub AccountKey);

impl SignedVerdict {
    /// Signs a verdict with the key of `body.juror`.
    #[must_use]
    pub fn sign(body: VerdictBody, key: &SigningKey) -> SignedVerdict {
        let signature = Signature(key.sign(&signed_bytes(&body)).to_bytes());
        SignedVerdict { body, signature }
    }

    /// Checks strictly that the signature is the validator's.
    ///
    /// # Errors
    /// If it is not.
    pub fn verify(&self) -> Result<(), VerdictForged> {
        let holds = || {
            let key = VerifyingKey::from_bytes(&self.body.juror.0).ok()?;
            let signature = ed25519_dalek::Signature::from_bytes(&self.signature.0);
            key.verify_strict(&signed_bytes(&self.body), &signature)
                .ok()
        };
        holds().ok_or(VerdictForged(self.body.juror))
    }

    /// Encodes the verdict as the log holds it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(postcard::to_allocvec(self).expect("plain data in memory always encodes"));
        bytes
    }

    /// Decodes a command of the log; returns none if it is no verdict.
    #[must_use]
    pub fn decode(command: &[u8]) -> Option<Result<SignedVerdict, postcard::Error>> {
        let body = command.strip_prefix(MAGIC)?;
        Some(postcard::from_bytes(body))
    }
}

fn signed_bytes(body: &VerdictBody) -> Vec<u8> {
    let body = postcard::to_allocvec(body).expect("plain data in memory always encodes");
    [DOMAIN, &body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(signer: u8) -> SignedVerdict {
        let body = VerdictBody {
            market: MarketId([1; 32]),
            dispute: DisputeId(3),
            juror: AccountKey::from(&SigningKey::from_bytes(&[7; 32])),
            verdict: Verdict::Guilty,
        };
        SignedVerdict::sign(body, &SigningKey::from_bytes(&[signer; 32]))
    }

    #[test]
    fn a_verdict_comes_back_as_it_was_signed_and_a_changed_one_does_not_hold() {
        let signed = verdict(7);
        let decoded = SignedVerdict::decode(&signed.encode()).unwrap().unwrap();
        assert_eq!(decoded, signed);
        assert_eq!(decoded.verify(), Ok(()));
        assert!(verdict(8).verify().is_err(), "another key signed it");
        let mut turned = signed.clone();
        turned.body.verdict = Verdict::Innocent;
        assert!(turned.verify().is_err());
        let mut elsewhere = signed;
        elsewhere.body.market = MarketId([2; 32]);
        assert!(elsewhere.verify().is_err());
        assert!(SignedVerdict::decode(b"soukRST2").is_none());
    }
}
