//! Writes, parses and verifies notes. A note is a tree head of the market's history as text, with
//! the cosignatures of validators. The formats are those of C2SP, so that other programs can read
//! them: `tlog-checkpoint` for the text, `signed-note` for the signatures, `cosignature/v1` for
//! each signature.
//!
//! ```text
//! souk/4be8…c1                       the market
//! 48211                              the number of leaves
//! p6wvHFuBkUFiTbbGjp6l5bg2cGKn…=     the root, in base64
//! index 48105                        the last entry of the log that it covers
//! time 1764428531250                 the log's time there, in milliseconds
//! state 3q2+7wAAAAAAAAAAAAAAAAAA…=   the root of the state there, in base64
//!
//! — souk/4be8…c1/3 SNqk…             a cosignature of validator 3
//! ```
//!
//! The key is the validator's own: one key is its peer id, its account and its signature here.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ed25519_dalek::{Signature, Signer as _, VerifyingKey};
use sha2::{Digest as _, Sha256};
use souk_market::{AccountKey, MarketId, SigningKey};

use crate::digest::Digest;
use crate::place::{LogIndex, LogTime, TreeHead};
pub use crate::quorum::certifying_count;

/// The longest note in bytes: the head, and as many signatures as there can be validators, twice.
pub const NOTE_BYTES_MAX: usize = 16 << 10;

/// The most signatures that a note can have.
pub const SIGNATURES_MAX: usize = 60;

/// The largest tree that a note can state: more leaves than a log will ever have.
const SIZE_MAX: u64 = 1 << 56;

/// The signature type of a cosignature, which its key's id covers.
pub(crate) const COSIGNATURE_TYPE: u8 = 4;

/// The bytes of a key's id, of a cosignature's time, and of its signature.
pub(crate) const KEY_ID_BYTES: usize = 4;
pub(crate) const TIME_BYTES: usize = 8;
pub(crate) const SIGNATURE_BYTES: usize = 64;

/// The validators whose cosignatures count, by raft id.
pub type Cosigners = BTreeMap<u64, AccountKey>;

/// The validators whose cosignatures count, and the number of which more than two thirds must sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CosigningRoster {
    /// The validators whose cosignatures count.
    pub cosigners: Cosigners,
    /// The number of validators. It is larger than that of the cosigners if a validator is known to
    /// be removed since: its signature counts no more, and the others must not need fewer for it.
    pub members: usize,
}

impl CosigningRoster {
    /// Returns how many validators must sign a head to certify it.
    #[must_use]
    pub fn certifying_count(&self) -> usize {
        certifying_count(self.members)
    }
}

impl From<Cosigners> for CosigningRoster {
    fn from(cosigners: Cosigners) -> Self {
        let members = cosigners.len();
        Self { cosigners, members }
    }
}

/// One validator's signature of a tree head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cosignature {
    /// The validator's raft id.
    pub by: u64,
    key_id: [u8; KEY_ID_BYTES],
    /// When it signed, by its own clock, in seconds since 1970.
    pub time_s: u64,
    signature: [u8; SIGNATURE_BYTES],
}

/// A head and its cosignatures, each validator's once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeNote {
    /// The market of the log.
    pub market: MarketId,
    /// The head that the validators sign.
    pub head: TreeHead,
    /// The cosignatures; you must check each.
    pub cosignatures: Vec<Cosignature>,
}

/// Why bytes are not a note.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoteFault {
    /// It is too long.
    #[error("a note of {0} bytes; at most {NOTE_BYTES_MAX} are read")]
    Long(usize),
    /// It is not text.
    #[error("the note is not UTF-8 text")]
    Text,
    /// A line is not as expected.
    #[error("line {line} of the note is not {wanted}")]
    Line {
        /// The line, counted from 1.
        line: usize,
        /// The expected form of the line.
        wanted: &'static str,
    },
    /// It has too many signatures.
    #[error("the note has more than {SIGNATURES_MAX} signatures")]
    Signatures,
}

impl TreeNote {
    /// Creates a note without cosignatures.
    #[must_use]
    pub fn new(market: MarketId, head: TreeHead) -> Self {
        Self {
            market,
            head,
            cosignatures: Vec::new(),
        }
    }

    /// Returns the text that validators sign.
    #[must_use]
    pub fn to_body(&self) -> String {
        let TreeHead {
            index,
            time,
            size,
            root,
            state,
        } = self.head;
        let root = BASE64_STANDARD.encode(root.0);
        let origin = origin_of(self.market);
        let mut body = format!(
            "{origin}\n{size}\n{root}\nindex {}\ntime {}\n",
            index.0, time.0
        );
        if let Some(state) = state {
            let state = BASE64_STANDARD.encode(state.0);
            body.push_str(&format!("state {state}\n"));
        }
        body
    }

    /// Encodes the note.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = self.to_body();
        text.push('\n');
        for it in &self.cosignatures {
            let mut blob = it.key_id.to_vec();
            blob.extend(it.time_s.to_be_bytes());
            blob.extend(it.signature);
            let (name, blob) = (key_name(self.market, it.by), BASE64_STANDARD.encode(blob));
            text.push_str(&format!("— {name} {blob}\n"));
        }
        text
    }

    /// Reads a note. It ignores signatures of others than validators, and repeated ones.
    ///
    /// # Errors
    /// If it is not a note of a souk market.
    pub fn decode(bytes: &[u8]) -> Result<Self, NoteFault> {
        if bytes.len() > NOTE_BYTES_MAX {
            return Err(NoteFault::Long(bytes.len()));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| NoteFault::Text)?;
        let mut lines = (1..).zip(text.split('\n'));
        let mut next = |wanted| {
            let (line, text) = lines.next().unwrap_or_default();
            (text, NoteFault::Line { line, wanted })
        };
        let (text, fault) = next("souk/ and the id of a market");
        let market = text.strip_prefix("souk/").and_then(|id| id.parse().ok());
        let market: MarketId = market.ok_or(fault)?;
        let (text, fault) = next("the size of the tree");
        let size = parse_number(text)
            .filter(|size| *size <= SIZE_MAX)
            .ok_or(fault)?;
        let (text, fault) = next("the root of the tree in base64");
        let root = parse_digest(text).ok_or(fault)?;
        let (text, fault) = next("\"index\" and a number");
        let index = text.strip_prefix("index ").and_then(parse_number);
        let index = LogIndex(index.ok_or(fault)?);
        let (text, fault) = next("\"time\" and a number");
        let time = text.strip_prefix("time ").and_then(parse_number);
        let time = LogTime(time.ok_or(fault)?);
        let (mut text, mut fault) = next("\"state\" and the root of the state, or empty");
        // Heads of earlier releases have no state; whoever saved one can still read it.
        let state = text.strip_prefix("state ").and_then(parse_digest);
        if state.is_some() {
            (text, fault) = next("empty");
        }
        if !text.is_empty() {
            return Err(fault);
        }
        let mut note = Self::new(
            market,
            TreeHead {
                index,
                time,
                size,
                root,
                state,
            },
        );
        for (number, (line, text)) in lines.enumerate() {
            if number > SIGNATURES_MAX {
                return Err(NoteFault::Signatures);
            }
            // The last line ends the text.
            if !text.is_empty() {
                let wanted = "a signature";
                let fault = NoteFault::Line { line, wanted };
                let signature = note.parse_signature(text).ok_or(fault)?;
                signature.into_iter().for_each(|it| note.insert(it));
            }
        }
        Ok(note)
    }

    /// Parses a signature line; the inner option is none if the signature is not a validator's
    /// cosignature.
    fn parse_signature(&self, line: &str) -> Option<Option<Cosignature>> {
        let (name, blob) = line.strip_prefix("— ")?.split_once(' ')?;
        let blob = BASE64_STANDARD.decode(blob).ok()?;
        let id = name.strip_prefix(&format!("{}/", origin_of(self.market)));
        let Some(by) = id.and_then(parse_number) else {
            return Some(None);
        };
        let (key_id, rest) = blob.split_first_chunk::<KEY_ID_BYTES>()?;
        let (time, signature) = rest.split_first_chunk::<TIME_BYTES>()?;
        let Ok(signature) = <[u8; SIGNATURE_BYTES]>::try_from(signature) else {
            return Some(None);
        };
        Some(Some(Cosignature {
            by,
            key_id: *key_id,
            time_s: u64::from_be_bytes(*time),
            signature,
        }))
    }

    /// Adds a cosignature, unless the validator has one here.
    pub fn insert(&mut self, cosignature: Cosignature) {
        if self.cosignatures.iter().all(|it| it.by != cosignature.by) {
            self.cosignatures.push(cosignature);
            self.cosignatures.sort_by_key(|it| it.by);
        }
    }

    /// Cosigns the head as a validator.
    #[must_use]
    pub fn cosign(&self, by: u64, time_s: u64, key: &SigningKey) -> Cosignature {
        let signature = key.sign(&signed_bytes(time_s, &self.to_body()));
        Cosignature {
            by,
            key_id: key_id(&key_name(self.market, by), AccountKey::from(key)),
            time_s,
            signature: signature.to_bytes(),
        }
    }

    /// Returns whether a cosignature is that of this key over this head.
    #[must_use]
    pub fn is_cosigned(&self, cosignature: &Cosignature, account: AccountKey) -> bool {
        let holds = || {
            let name = key_name(self.market, cosignature.by);
            if cosignature.key_id != key_id(&name, account) {
                return None;
            }
            let key = VerifyingKey::from_bytes(&account.0).ok()?;
            let signature = Signature::from_bytes(&cosignature.signature);
            let bytes = signed_bytes(cosignature.time_s, &self.to_body());
            key.verify_strict(&bytes, &signature).ok()
        };
        holds().is_some()
    }

    /// Returns the validators whose cosignatures are valid, in order.
    #[must_use]
    pub fn list_signers(&self, members: &Cosigners) -> Vec<u64> {
        let valid = self.cosignatures.iter().filter(|it| {
            let account = members.get(&it.by);
            account.is_some_and(|account| self.is_cosigned(it, *account))
        });
        valid.map(|it| it.by).collect()
    }

    /// Returns the validators whose names are on signatures that are not theirs. Whoever showed the
    /// note forged them, or did not check them.
    #[must_use]
    pub fn list_forged(&self, members: &Cosigners) -> Vec<u64> {
        let forged = self.cosignatures.iter().filter(|it| {
            let account = members.get(&it.by);
            account.is_some_and(|account| !self.is_cosigned(it, *account))
        });
        forged.map(|it| it.by).collect()
    }

    /// Returns the time at which enough of the roster had signed the head to certify it, by their
    /// own clocks, in seconds since 1970; none if too few have signed it.
    #[must_use]
    pub fn certified_s(&self, roster: &CosigningRoster) -> Option<u64> {
        let signers = self.list_signers(&roster.cosigners);
        let valid = self.cosignatures.iter();
        let valid = valid.filter(|it| signers.contains(&it.by));
        let mut times: Vec<u64> = valid.map(|it| it.time_s).collect();
        times.sort_unstable();
        times.get(roster.certifying_count() - 1).copied()
    }
}

/// Returns the name of a market's log.
#[must_use]
pub fn origin_of(market: MarketId) -> String {
    format!("souk/{market}")
}

fn key_name(market: MarketId, by: u64) -> String {
    format!("{}/{by}", origin_of(market))
}

/// Returns the id of a key that cosigns under a name.
pub(crate) fn key_id(name: &str, account: AccountKey) -> [u8; KEY_ID_BYTES] {
    let mut hasher = Sha256::new();
    hasher.update(name);
    hasher.update([b'\n', COSIGNATURE_TYPE]);
    hasher.update(account.0);
    let hash: [u8; 32] = hasher.finalize().into();
    *hash.first_chunk().expect("a hash is longer")
}

/// Returns the bytes that a cosignature signs.
pub(crate) fn signed_bytes(time_s: u64, body: &str) -> Vec<u8> {
    format!("cosignature/v1\ntime {time_s}\n{body}").into_bytes()
}

/// Reads a hash in base64.
fn parse_digest(text: &str) -> Option<Digest> {
    let bytes = BASE64_STANDARD.decode(text).ok()?;
    Some(Digest(bytes.try_into().ok()?))
}

/// Reads a decimal number without sign and leading zeros: each number has one form.
fn parse_number(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note() -> TreeNote {
        let head = TreeHead {
            index: LogIndex(48_105),
            time: LogTime(1_764_428_531_250),
            size: 48_211,
            root: Digest([7; 32]),
            state: Some(Digest([8; 32])),
        };
        let mut note = TreeNote::new(MarketId([0x4b; 32]), head);
        for by in [3, 1] {
            let key = SigningKey::from_bytes(&[by as u8; 32]);
            let signature = note.cosign(by, 1_764_428_532, &key);
            note.insert(signature);
        }
        note
    }

    fn members() -> Cosigners {
        let key = |by: u64| AccountKey::from(&SigningKey::from_bytes(&[by as u8; 32]));
        (1..=4).map(|by| (by, key(by))).collect()
    }

    #[test]
    fn a_note_is_read_as_written_and_its_signers_are_known() {
        let note = note();
        let text = note.encode();
        assert_eq!(TreeNote::decode(text.as_bytes()), Ok(note.clone()));
        assert_eq!(note.list_signers(&members()), [1, 3]);
        assert!(text.starts_with("souk/4b4b4b"), "{text}");
        assert!(
            text.contains("\n48211\nBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=\nindex 48105\n")
        );
        assert!(
            text.contains("\nstate CAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAg=\n\n"),
            "{text}"
        );
    }

    #[test]
    fn a_note_of_an_earlier_release_has_no_state_and_is_still_read() {
        let mut head = note().head;
        head.state = None;
        let mut old = TreeNote::new(MarketId([0x4b; 32]), head);
        old.insert(old.cosign(1, 9, &SigningKey::from_bytes(&[1; 32])));
        let text = old.encode();
        assert!(text.contains("\ntime 1764428531250\n\n— "), "{text}");
        assert_eq!(TreeNote::decode(text.as_bytes()), Ok(old.clone()));
        assert_eq!(old.list_signers(&members()), [1]);
        // Nobody can add a state to it.
        old.head.state = Some(Digest([8; 32]));
        assert_eq!(old.list_signers(&members()), [] as [u64; 0]);
        let twice = note().encode().replace("\nstate ", "\nstate AA==\nstate ");
        assert!(TreeNote::decode(twice.as_bytes()).is_err());
    }

    #[test]
    fn heads_of_one_size_contradict_each_other_by_root_or_by_state() {
        let head = note().head;
        let with = |state| TreeHead { state, ..head };
        assert!(head.contradicts(&with(Some(Digest([1; 32])))));
        assert!(!head.contradicts(&with(None)) && !head.contradicts(&head));
        let root = Digest([1; 32]);
        assert!(head.contradicts(&TreeHead { root, ..head }));
        let size = head.size + 1;
        assert!(!head.contradicts(&TreeHead { root, size, ..head }));
    }

    #[test]
    fn a_signature_counts_only_for_its_own_text_time_and_key() {
        let signed = note();
        let mut other = signed.clone();
        other.head.size += 1;
        assert_eq!(other.list_signers(&members()), [] as [u64; 0]);
        assert_eq!(other.list_forged(&members()), [1, 3]);
        let mut later = signed.clone();
        later.cosignatures[0].time_s += 1;
        assert_eq!(later.list_signers(&members()), [3]);
        assert_eq!(later.list_forged(&members()), [1]);
        let mut renamed = signed.clone();
        renamed.cosignatures[0].by = 2;
        assert_eq!(renamed.list_signers(&members()), [3]);
        let strangers = members().into_iter().filter(|(by, _)| *by != 3);
        assert_eq!(signed.list_signers(&strangers.collect()), [1]);
    }

    #[test]
    fn a_changed_note_is_refused_or_signed_by_fewer() {
        let text = note().encode();
        for place in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[place] ^= 1;
            if let Ok(read) = TreeNote::decode(&bytes) {
                assert!(read.list_signers(&members()).len() < 2, "byte {place}");
            }
        }
    }

    #[test]
    fn signatures_of_others_are_passed_over_and_repeated_ones_count_once() {
        let note = note();
        let text = note.encode();
        let first = text.lines().find(|line| line.starts_with('—')).unwrap();
        let more = format!("{text}{first}\n— witness.example/w1 AAAAAAAA\n");
        assert_eq!(TreeNote::decode(more.as_bytes()), Ok(note));
        let many = format!("{text}{}", format!("{first}\n").repeat(SIGNATURES_MAX));
        assert!(TreeNote::decode(many.as_bytes()).is_err());
    }
}
