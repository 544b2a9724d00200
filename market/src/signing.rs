//! Signs bytes and verifies signatures (Ed25519), alone or many at once, by one rule. A signature
//! covers a domain, a name of its use, so that it is valid for no other use.
//!
//! The rule: the key is a point and not of small order, R is the canonical encoding of a point that
//! is not of small order, s is below the group's order, and s·B = R + k·A up to a term of small
//! order. RFC 8032 states the last condition in this form (times 8 on both sides). Because of it,
//! one equation over many signatures gives the same result as an equation for each; otherwise
//! replicas that batch differently could disagree. Compared to the stricter rule, in which the
//! terms of small order must agree too, it accepts no signature that anyone without the key can
//! make.

mod known_keys;

use std::collections::BTreeMap;

use curve25519_dalek::constants::ED25519_BASEPOINT_POINT;
use curve25519_dalek::edwards::{CompressedEdwardsY, EdwardsPoint};
use curve25519_dalek::scalar::Scalar;
use curve25519_dalek::traits::VartimeMultiscalarMul as _;
use ed25519_dalek::SigningKey;
use sha2::{Digest as _, Sha512};

use crate::ids::{AccountKey, Signature};

/// The most signatures in one equation. With more, the tables for their points exceed the
/// processor's fastest caches, and one invalid signature causes more individual checks.
const TOGETHER_MAX: usize = 48;

/// The y coordinates of the points of small order. A signature whose R is one of these points can
/// be valid for more than one message. The test compares them with the curve's own table.
const SMALL_ORDER: [[u8; 32]; 5] = {
    const ZERO: [u8; 32] = [0; 32];
    const ONE: [u8; 32] = {
        let mut one = ZERO;
        one[0] = 1;
        one
    };
    const MINUS_ONE: [u8; 32] = {
        let mut minus_one = [0xff; 32];
        minus_one[0] = 0xec;
        minus_one[31] = 0x7f;
        minus_one
    };
    const EIGHTH: [u8; 32] = [
        0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98,
        0xf0, 0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53,
        0xfc, 0x05,
    ];
    const OTHER_EIGHTH: [u8; 32] = [
        0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67,
        0x0f, 0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac,
        0x03, 0x7a,
    ];
    [ONE, MINUS_ONE, ZERO, EIGHTH, OTHER_EIGHTH]
};

/// A claim that an account signed a message.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The account that supposedly signed.
    pub signer: AccountKey,
    /// The supposedly signed message.
    pub message: &'a [u8],
    /// The signature to check.
    pub signature: Signature,
}

impl Claim<'_> {
    /// Returns whether the claim is true by the module's rule.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        Equation::from_claim(self).is_some_and(|equation| equation.is_satisfied())
    }

    /// Returns [`Self::is_valid`] for each claim. If all are true it takes a third to a half of the
    /// time.
    #[must_use]
    pub fn each_holds(claims: &[Self]) -> Vec<bool> {
        let equations: Vec<_> = claims.iter().map(Equation::from_claim).collect();
        let holds = |together: &[Option<Equation>]| {
            let all = Equation::all_hold(together.iter().flatten());
            let each =
                |it: &Option<Equation>| it.as_ref().is_some_and(|it| all || it.is_satisfied());
            together.iter().map(each).collect::<Vec<_>>()
        };
        equations.chunks(TOGETHER_MAX).flat_map(holds).collect()
    }
}

/// The equation s·B = R + k·A.
struct Equation {
    s: Scalar,
    r: EdwardsPoint,
    k: Scalar,
    a: EdwardsPoint,
    signer: AccountKey,
}

impl Equation {
    /// Returns `None` if the key, R or s breaks the rule.
    fn from_claim(claim: &Claim<'_>) -> Option<Self> {
        let (r_bytes, s_bytes) = claim.signature.0.split_first_chunk::<32>()?;
        let s = Scalar::from_canonical_bytes(*s_bytes.first_chunk()?).into_option()?;
        let r = unpack_r(r_bytes)?;
        let hash = Sha512::new()
            .chain_update(r_bytes)
            .chain_update(claim.signer.0)
            .chain_update(claim.message);
        Some(Self {
            s,
            r,
            k: Scalar::from_bytes_mod_order_wide(&hash.finalize().into()),
            a: known_keys::unpack_key(&claim.signer)?,
            signer: claim.signer,
        })
    }

    fn is_satisfied(&self) -> bool {
        let r = EdwardsPoint::vartime_double_scalar_mul_basepoint(&self.k, &-self.a, &self.s);
        (r - self.r).is_small_order()
    }

    /// Returns whether all equations hold: it checks their sum, each times a weight that the
    /// signers could not predict. A false equation passes in one of 2^128 cases, regardless of the
    /// others.
    fn all_hold<'a>(equations: impl Iterator<Item = &'a Self> + Clone) -> bool {
        let mut transcript = blake3::Hasher::new();
        for equation in equations.clone() {
            // k is a hash of R, A and the message.
            transcript.update(equation.k.as_bytes());
            transcript.update(equation.s.as_bytes());
        }
        let mut weights = transcript.finalize_xof();
        let mut s = Scalar::ZERO;
        let (mut scalars, mut points) = (Vec::new(), Vec::new());
        let mut places = BTreeMap::new();
        for equation in equations {
            let mut weight = [0; 16];
            weights.fill(&mut weight);
            let weight = Scalar::from(u128::from_le_bytes(weight));
            s += weight * equation.s;
            scalars.push(weight);
            points.push(equation.r);
            // Signatures of one account share its point.
            let place = *places.entry(equation.signer).or_insert(scalars.len());
            if place == scalars.len() {
                scalars.push(Scalar::ZERO);
                points.push(equation.a);
            }
            scalars[place] += weight * equation.k;
        }
        scalars.push(-s);
        points.push(ED25519_BASEPOINT_POINT);
        EdwardsPoint::vartime_multiscalar_mul(scalars, points).is_small_order()
    }
}

/// Returns R if the bytes are its canonical encoding and it is not of small order.
fn unpack_r(bytes: &[u8; 32]) -> Option<EdwardsPoint> {
    let mut y = *bytes;
    y[31] &= 0x7f;
    // The field's order is 2^255 - 19.
    let is_reduced = y[0] < 0xed || y[31] != 0x7f || y[1..31].iter().any(|byte| *byte != 0xff);
    (is_reduced && !SMALL_ORDER.contains(&y))
        .then(|| CompressedEdwardsY(*bytes).decompress())
        .flatten()
}

/// Signs `domain`, a zero byte and `bytes`.
pub(crate) fn sign_bytes(key: &SigningKey, domain: &str, bytes: &[u8]) -> Signature {
    use ed25519_dalek::Signer;
    Signature(key.sign(&with_domain(domain, bytes)).to_bytes())
}

/// Judges a claim, or records it for later.
pub(crate) type Judge<'a> = dyn FnMut(&Claim<'_>) -> bool + 'a;

/// Judges each claim alone and at once.
pub(crate) fn holds_alone(claim: &Claim<'_>) -> bool {
    claim.is_valid()
}

/// A recorded claim.
pub(crate) struct NotedClaim {
    signer: AccountKey,
    message: Vec<u8>,
    signature: Signature,
}

impl NotedClaim {
    pub(crate) fn new(claim: &Claim<'_>) -> Self {
        Self {
            signer: claim.signer,
            message: claim.message.to_vec(),
            signature: claim.signature,
        }
    }

    pub(crate) fn as_claim(&self) -> Claim<'_> {
        Claim {
            signer: self.signer,
            message: &self.message,
            signature: self.signature,
        }
    }
}

/// Returns the judge's answer: whether `signature` is `signer`'s over `domain`, a zero byte and
/// `bytes`.
pub(crate) fn signed_by(
    judge: &mut Judge<'_>,
    signer: AccountKey,
    domain: &str,
    bytes: &[u8],
    signature: &Signature,
) -> bool {
    judge(&Claim {
        signer,
        message: &with_domain(domain, bytes),
        signature: *signature,
    })
}

/// Returns `domain`, a zero byte and `bytes`. The domain must not hold a zero byte itself.
fn with_domain(domain: &str, bytes: &[u8]) -> Vec<u8> {
    debug_assert!(!domain.contains('\0'), "the zero byte ends the domain");
    let mut message = Vec::with_capacity(domain.len() + 1 + bytes.len());
    message.extend_from_slice(domain.as_bytes());
    message.push(0);
    message.extend_from_slice(bytes);
    message
}

impl AccountKey {
    /// Returns whether the key is a point of small order or no point: signatures of such a key
    /// prove nothing.
    pub fn is_weak(&self) -> bool {
        known_keys::unpack_key(self).is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use curve25519_dalek::constants::EIGHT_TORSION;
    use ed25519_dalek::{Signer, VerifyingKey};

    use super::*;

    const MESSAGE: &[u8] = b"sell one H100 for an hour";

    fn key(number: u8) -> SigningKey {
        SigningKey::from_bytes(&[number; 32])
    }

    fn claim(signer: [u8; 32], signature: [u8; 64]) -> Claim<'static> {
        Claim {
            signer: AccountKey(signer),
            message: MESSAGE,
            signature: Signature(signature),
        }
    }

    fn honest(number: u8) -> Claim<'static> {
        let key = key(number);
        claim(key.verifying_key().to_bytes(), key.sign(MESSAGE).to_bytes())
    }

    /// What is said of it alone and among others, which must be the same.
    fn agreed(claim: Claim<'_>) -> bool {
        let alone = claim.is_valid();
        let together = [honest(1), claim, honest(2), claim, honest(1)];
        let wanted = [true, alone, true, alone, true];
        assert_eq!(Claim::each_holds(&together), wanted, "{claim:?}");
        assert_eq!(Claim::each_holds(&[claim]), [alone], "{claim:?}");
        let key = VerifyingKey::from_bytes(&claim.signer.0);
        let strict = ed25519_dalek::Signature::from_bytes(&claim.signature.0);
        if key.is_ok_and(|key| key.verify_strict(MESSAGE, &strict).is_ok()) {
            assert!(alone, "what holds strictly holds: {claim:?}");
        }
        alone
    }

    fn challenge(r: &[u8; 32], key: &[u8; 32]) -> Scalar {
        let hash = Sha512::new()
            .chain_update(r)
            .chain_update(key)
            .chain_update(MESSAGE);
        Scalar::from_bytes_mod_order_wide(&hash.finalize().into())
    }

    fn signature(r: [u8; 32], s: Scalar) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&r);
        bytes[32..].copy_from_slice(s.as_bytes());
        bytes
    }

    #[test]
    fn the_points_of_small_order_are_those_of_the_curve() {
        let y = |point: &EdwardsPoint| {
            let mut y = point.compress().to_bytes();
            y[31] &= 0x7f;
            y
        };
        let wanted: BTreeSet<[u8; 32]> = EIGHT_TORSION.iter().map(y).collect();
        assert_eq!(BTreeSet::from(SMALL_ORDER), wanted);
    }

    #[test]
    fn honest_signatures_hold_and_damaged_ones_do_not() {
        let honest = honest(7);
        assert!(agreed(honest));
        for bit in 0..honest.signature.0.len() * 8 {
            let mut damaged = honest;
            damaged.signature.0[bit / 8] ^= 1 << (bit % 8);
            assert!(!agreed(damaged), "bit {bit}");
        }
    }

    #[test]
    fn an_s_beyond_the_order_is_refused() {
        let mut order = (-Scalar::ONE).to_bytes();
        order[0] += 1;
        let mut larger = honest(7);
        let mut carry = 0;
        for (byte, more) in larger.signature.0[32..].iter_mut().zip(order) {
            let sum = u16::from(*byte) + u16::from(more) + carry;
            *byte = sum.to_le_bytes()[0];
            carry = sum >> 8;
        }
        assert!(!agreed(larger), "the same number modulo the order");
    }

    /// Made by the key's owner so that a verifier that looks at the equation alone is satisfied.
    #[test]
    fn an_r_of_small_order_is_refused_though_the_equation_holds() {
        let account = key(7).verifying_key().to_bytes();
        for point in EIGHT_TORSION {
            let packed = point.compress().to_bytes();
            let mut other_sign = packed;
            other_sign[31] ^= 0x80;
            for r in [packed, other_sign] {
                let s = challenge(&r, &account) * key(7).to_scalar();
                assert!(!agreed(claim(account, signature(r, s))));
            }
        }
    }

    #[test]
    fn an_r_in_another_encoding_is_refused() {
        // The field's order and a little more: the second coordinates 0 to 18 once again.
        for more in 0xed..=0xff {
            for last in [0x7f, 0xff] {
                let mut r = [0xff; 32];
                (r[0], r[31]) = (more, last);
                assert!(unpack_r(&r).is_none());
                r[0] = 0xec - (more - 0xed);
                let same = |point: EdwardsPoint| point.compress().to_bytes() == r;
                assert!(unpack_r(&r).is_none_or(same));
            }
        }
    }

    #[test]
    fn a_key_of_small_order_signs_nothing() {
        for point in EIGHT_TORSION {
            let key = point.compress().to_bytes();
            let nonce = Scalar::from_bytes_mod_order([9; 32]);
            let r = EdwardsPoint::mul_base(&nonce).compress().to_bytes();
            assert!(!agreed(claim(key, signature(r, nonce))));
            assert!(AccountKey(key).is_weak());
        }
    }

    /// Keys and points with a part of small order, for which lax verifiers disagree, and so would
    /// one equation over many without the rule.
    #[test]
    fn parts_of_small_order_change_nothing() {
        let secret = key(7).to_scalar();
        let nonce = Scalar::from_bytes_mod_order([9; 32]);
        for in_key in EIGHT_TORSION {
            for in_r in EIGHT_TORSION {
                let key = (EdwardsPoint::mul_base(&secret) + in_key)
                    .compress()
                    .to_bytes();
                let r = (EdwardsPoint::mul_base(&nonce) + in_r)
                    .compress()
                    .to_bytes();
                let k = challenge(&r, &key);
                assert!(agreed(claim(key, signature(r, nonce + k * secret))));
                let other = nonce + k * secret + Scalar::ONE;
                assert!(!agreed(claim(key, signature(r, other))));
            }
        }
    }

    #[test]
    fn two_that_would_cancel_out_are_both_refused() {
        let (mut more, mut less) = (honest(7), honest(7));
        let mut s = [0; 32];
        s.copy_from_slice(&more.signature.0[32..]);
        let s = Scalar::from_canonical_bytes(s).unwrap();
        more.signature.0[32..].copy_from_slice((s + Scalar::ONE).as_bytes());
        less.signature.0[32..].copy_from_slice((s - Scalar::ONE).as_bytes());
        assert_eq!(Claim::each_holds(&[more, less]), [false, false]);
    }

    #[test]
    fn one_forged_among_many_is_found_wherever_it_is() {
        let count = TOGETHER_MAX + 40;
        let claims: Vec<Claim<'_>> = (0..count)
            .map(|number| honest(u8::try_from(number % 50).unwrap()))
            .collect();
        assert_eq!(Claim::each_holds(&claims), vec![true; count]);
        for place in [0, 30, TOGETHER_MAX - 1, TOGETHER_MAX, count - 1] {
            let mut claims = claims.clone();
            claims[place].signer = AccountKey(key(99).verifying_key().to_bytes());
            let judged = Claim::each_holds(&claims);
            let refused: Vec<usize> = (0..count).filter(|it| !judged[*it]).collect();
            assert_eq!(refused, [place]);
        }
        assert_eq!(Claim::each_holds(&[]), [false; 0]);
    }
}
