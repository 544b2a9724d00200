//! Signatures: made over a domain and bytes, and verified strictly.

use ed25519_dalek::{SigningKey, VerifyingKey};

use crate::ids::{AccountKey, Signature};

/// The points of small order, each in the one encoding that `compress` gives it.
///
/// A signature whose R is one of them may hold for more than one message. The test compares them
/// with the curve's own table.
const SMALL_ORDER: [[u8; 32]; 8] = {
    const fn ends(first: [u8; 31], last: u8) -> [u8; 32] {
        let mut point = [0; 32];
        let mut place = 0;
        while place < first.len() {
            point[place] = first[place];
            place += 1;
        }
        point[place] = last;
        point
    }
    const ZERO: [u8; 31] = [0; 31];
    const ONE: [u8; 31] = {
        let mut one = ZERO;
        one[0] = 1;
        one
    };
    const MINUS_ONE: [u8; 31] = {
        let mut minus_one = [0xff; 31];
        minus_one[0] = 0xec;
        minus_one
    };
    const EIGHTH: [u8; 31] = [
        0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98,
        0xf0, 0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53,
        0xfc,
    ];
    const OTHER_EIGHTH: [u8; 31] = [
        0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67,
        0x0f, 0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac,
        0x03,
    ];
    [
        ends(ONE, 0x00),
        ends(MINUS_ONE, 0x7f),
        ends(ZERO, 0x00),
        ends(ZERO, 0x80),
        ends(EIGHTH, 0x05),
        ends(EIGHTH, 0x85),
        ends(OTHER_EIGHTH, 0x7a),
        ends(OTHER_EIGHTH, 0xfa),
    ]
};

/// Signs `domain`, a zero byte and `bytes`.
pub(crate) fn sign(key: &SigningKey, domain: &str, bytes: &[u8]) -> Signature {
    use ed25519_dalek::Signer;
    Signature(key.sign(&with_domain(domain, bytes)).to_bytes())
}

/// Whether `signature` is `key`'s over `domain`, a zero byte and `bytes`, strictly.
pub(crate) fn signed_by(
    key: AccountKey,
    domain: &str,
    bytes: &[u8],
    signature: &Signature,
) -> bool {
    let signed = with_domain(domain, bytes);
    VerifyingKey::from_bytes(&key.0).is_ok_and(|key| verifies_strictly(&key, &signed, signature))
}

/// What [`VerifyingKey::verify_strict`] says, a tenth sooner.
///
/// That unpacks R to see whether it is of small order, which takes a square root. But a signature
/// holds only if R is, byte for byte, the encoding that `compress` gives, and so it is enough to
/// look for it among eight.
#[must_use]
pub fn verifies_strictly(key: &VerifyingKey, message: &[u8], signature: &Signature) -> bool {
    use ed25519_dalek::Verifier;
    let signature = ed25519_dalek::Signature::from_bytes(&signature.0);
    !SMALL_ORDER.contains(signature.r_bytes())
        && !key.is_weak()
        && key.verify(message, &signature).is_ok()
}

fn with_domain(domain: &str, bytes: &[u8]) -> Vec<u8> {
    debug_assert!(!domain.contains('\0'), "the zero byte ends the domain");
    let mut message = Vec::with_capacity(domain.len() + 1 + bytes.len());
    message.extend_from_slice(domain.as_bytes());
    message.push(0);
    message.extend_from_slice(bytes);
    message
}

impl AccountKey {
    /// Whether this is a point of small order or no point at all: such a key signs anything.
    pub fn is_weak(&self) -> bool {
        VerifyingKey::from_bytes(&self.0).map_or(true, |key| key.is_weak())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use curve25519_dalek::constants::EIGHT_TORSION;
    use curve25519_dalek::edwards::EdwardsPoint;
    use curve25519_dalek::scalar::Scalar;
    use ed25519_dalek::{Signer, Verifier};
    use sha2::{Digest, Sha512};

    use super::*;

    const MESSAGE: &[u8] = b"sell one H100 for an hour";

    /// What both say, which must be the same.
    fn agreed(key: &[u8; 32], signature: &Signature) -> bool {
        let Ok(key) = VerifyingKey::from_bytes(key) else {
            return false;
        };
        let strict = ed25519_dalek::Signature::from_bytes(&signature.0);
        let strict = key.verify_strict(MESSAGE, &strict).is_ok();
        assert_eq!(
            verifies_strictly(&key, MESSAGE, signature),
            strict,
            "{signature:?}"
        );
        strict
    }

    fn challenge(r: &[u8; 32], key: &[u8; 32]) -> Scalar {
        let hash = Sha512::new()
            .chain_update(r)
            .chain_update(key)
            .chain_update(MESSAGE);
        Scalar::from_bytes_mod_order_wide(&hash.finalize().into())
    }

    fn signature(r: [u8; 32], s: Scalar) -> Signature {
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&r);
        bytes[32..].copy_from_slice(s.as_bytes());
        Signature(bytes)
    }

    #[test]
    fn the_points_of_small_order_are_those_of_the_curve() {
        let wanted: BTreeSet<[u8; 32]> = EIGHT_TORSION
            .iter()
            .map(|point| point.compress().to_bytes())
            .collect();
        assert_eq!(BTreeSet::from(SMALL_ORDER), wanted);
    }

    #[test]
    fn honest_and_damaged_signatures_are_judged_as_by_verify_strict() {
        let key = SigningKey::from_bytes(&[7; 32]);
        let account = key.verifying_key().to_bytes();
        let honest = key.sign(MESSAGE).to_bytes();
        assert!(agreed(&account, &Signature(honest)));
        for bit in 0..honest.len() * 8 {
            let mut damaged = honest;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!agreed(&account, &Signature(damaged)), "bit {bit}");
        }
    }

    /// Made by the key's owner so that a verifier that looks at the equation alone is satisfied.
    #[test]
    fn an_r_of_small_order_is_refused_though_the_equation_holds() {
        let key = SigningKey::from_bytes(&[7; 32]);
        let account = key.verifying_key().to_bytes();
        let identity = SMALL_ORDER[0];
        let made = signature(identity, challenge(&identity, &account) * key.to_scalar());
        let plain = ed25519_dalek::Signature::from_bytes(&made.0);
        assert!(key.verifying_key().verify(MESSAGE, &plain).is_ok());
        assert!(!agreed(&account, &made));
    }

    /// Keys and points with a part of small order, for which lax verifiers disagree.
    #[test]
    fn mixed_orders_are_judged_as_by_verify_strict() {
        let secret = SigningKey::from_bytes(&[7; 32]).to_scalar();
        let nonce = Scalar::from_bytes_mod_order([9; 32]);
        let mut accepted = 0;
        for in_key in EIGHT_TORSION {
            for in_r in EIGHT_TORSION {
                for (secret, nonce) in [
                    (secret, nonce),
                    (Scalar::ZERO, nonce),
                    (secret, Scalar::ZERO),
                ] {
                    let key = (EdwardsPoint::mul_base(&secret) + in_key)
                        .compress()
                        .to_bytes();
                    let r = (EdwardsPoint::mul_base(&nonce) + in_r)
                        .compress()
                        .to_bytes();
                    let made = signature(r, nonce + challenge(&r, &key) * secret);
                    accepted += usize::from(agreed(&key, &made));
                }
            }
        }
        assert!(accepted > 0, "the plain ones hold");
    }
}
