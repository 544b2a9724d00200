//! Signs tree heads as a witness and checks such signatures. A witness is anyone who follows the
//! history of a market, and signs only heads that continue all those that it signed before. Keys
//! and signatures have C2SP's formats (`tlog-cosignature`), so that other programs can read them.
//!
//! ```text
//! souk-witness/9f0c…+1b7a2c44+BJ8M…       the key of a witness: name, id, and key in base64
//! — souk-witness/9f0c… Gnos…              its signature, a line below those of the validators
//! ```

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ed25519_dalek::{Signature, Signer as _, VerifyingKey};
use souk_market::{AccountKey, SigningKey};

use crate::note::{
    COSIGNATURE_TYPE, KEY_ID_BYTES, NoteFault, SIGNATURE_BYTES, TIME_BYTES, TreeNote, key_id,
    signed_bytes,
};

/// The longest name of a witness, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// The public key of a witness, and the name under which it signs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WitnessKey {
    name: String,
    account: AccountKey,
}

/// A head with the signatures of its validators and of one witness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WitnessedNote {
    /// The head, and the validators' signatures; you must check each.
    pub note: TreeNote,
    /// When the witness signed, by its own clock, in seconds since 1970.
    pub time_s: u64,
    /// The line with the witness' signature.
    line: String,
}

/// Why text is not the key of a witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a witness' key has the form NAME+ID+KEY, with an Ed25519 key that cosigns in base64")]
pub struct NoWitnessKey;

/// Why bytes are not a head that a witness signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WitnessFault {
    /// They are no note.
    #[error(transparent)]
    Note(#[from] NoteFault),
    /// The witness' signature is missing, or it is of another text.
    #[error("it has no valid signature of {0}")]
    Signature(String),
}

impl WitnessKey {
    /// Returns the key of a witness that has no name of its own: the name has the beginning of the
    /// key.
    #[must_use]
    pub fn from_account(account: AccountKey) -> Self {
        let name = format!("souk-witness/{}", &account.to_string()[..16]);
        Self { name, account }
    }

    /// Returns the name under which the witness signs.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn id(&self) -> [u8; KEY_ID_BYTES] {
        key_id(&self.name, self.account)
    }

    /// Returns the time of a signature line over this note, in seconds since 1970; none if the line
    /// is not this witness' valid signature.
    fn check_line(&self, note: &TreeNote, line: &str) -> Option<u64> {
        let (name, blob) = line.strip_prefix("— ")?.rsplit_once(' ')?;
        let blob = BASE64_STANDARD.decode(blob).ok()?;
        let (id, rest) = blob.split_first_chunk::<KEY_ID_BYTES>()?;
        let (time, signature) = rest.split_first_chunk::<TIME_BYTES>()?;
        let signature = <[u8; SIGNATURE_BYTES]>::try_from(signature).ok()?;
        if name != self.name || *id != self.id() {
            return None;
        }
        let time_s = u64::from_be_bytes(*time);
        let key = VerifyingKey::from_bytes(&self.account.0).ok()?;
        let bytes = signed_bytes(time_s, &note.to_body());
        let signature = Signature::from_bytes(&signature);
        key.verify_strict(&bytes, &signature).ok()?;
        Some(time_s)
    }
}

/// Writes the key as C2SP's verifier key.
impl fmt::Display for WitnessKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = u32::from_be_bytes(self.id());
        let key = [&[COSIGNATURE_TYPE][..], &self.account.0].concat();
        write!(
            out,
            "{}+{id:08x}+{}",
            self.name,
            BASE64_STANDARD.encode(key)
        )
    }
}

impl FromStr for WitnessKey {
    type Err = NoWitnessKey;

    fn from_str(text: &str) -> Result<Self, NoWitnessKey> {
        // The key in base64 can have a plus, and the name must not.
        let mut parts = text.splitn(3, '+');
        let mut next = || parts.next().ok_or(NoWitnessKey);
        let (name, id, key) = (next()?, next()?, next()?);
        let is_name = !name.is_empty()
            && name.len() <= NAME_BYTES_MAX
            && !name.chars().any(char::is_whitespace);
        let key = BASE64_STANDARD.decode(key).map_err(|_| NoWitnessKey)?;
        let (&[COSIGNATURE_TYPE], account) = key.split_first_chunk().ok_or(NoWitnessKey)? else {
            return Err(NoWitnessKey);
        };
        let account = AccountKey(account.try_into().map_err(|_| NoWitnessKey)?);
        let key = Self {
            name: name.to_owned(),
            account,
        };
        let is_id = format!("{:08x}", u32::from_be_bytes(key.id())) == id;
        let is_key = VerifyingKey::from_bytes(&account.0).is_ok();
        (is_name && is_id && is_key)
            .then_some(key)
            .ok_or(NoWitnessKey)
    }
}

impl WitnessedNote {
    /// Signs a head as the witness of this key, at a time in seconds since 1970.
    #[must_use]
    pub fn sign(note: TreeNote, key: &SigningKey, time_s: u64) -> Self {
        let witness = WitnessKey::from_account(AccountKey::from(key));
        let signature = key.sign(&signed_bytes(time_s, &note.to_body()));
        let mut blob = witness.id().to_vec();
        blob.extend(time_s.to_be_bytes());
        blob.extend(signature.to_bytes());
        let line = format!("— {} {}\n", witness.name, BASE64_STANDARD.encode(blob));
        Self { note, time_s, line }
    }

    /// Encodes the note with all signatures.
    #[must_use]
    pub fn encode(&self) -> String {
        self.note.encode() + &self.line
    }

    /// Reads a note and checks the signature of a witness. Those of validators you must check.
    ///
    /// # Errors
    /// If it is not a note of a souk market, or the witness has not signed it.
    pub fn decode(bytes: &[u8], witness: &WitnessKey) -> Result<Self, WitnessFault> {
        let note = TreeNote::decode(bytes)?;
        let unsigned = || WitnessFault::Signature(witness.name.clone());
        let text = std::str::from_utf8(bytes).map_err(|_| NoteFault::Text)?;
        let mut lines = text.lines();
        let signed = lines.find_map(|line| Some((line, witness.check_line(&note, line)?)));
        let (line, time_s) = signed.ok_or_else(unsigned)?;
        let line = format!("{line}\n");
        Ok(Self { note, time_s, line })
    }
}

#[cfg(test)]
mod tests {
    use souk_market::MarketId;

    use super::*;
    use crate::{Digest, LogIndex, LogTime, TreeHead};

    fn note() -> TreeNote {
        let head = TreeHead {
            index: LogIndex(48_105),
            time: LogTime(1_764_428_531_250),
            size: 48_211,
            root: Digest([7; 32]),
            state: Some(Digest([8; 32])),
        };
        let mut note = TreeNote::new(MarketId([0x4b; 32]), head);
        note.insert(note.cosign(1, 1_764_428_532, &SigningKey::from_bytes(&[1; 32])));
        note
    }

    #[test]
    fn a_witness_signs_a_note_that_its_key_alone_confirms() {
        let key = SigningKey::from_bytes(&[9; 32]);
        let witness = WitnessKey::from_account(AccountKey::from(&key));
        let signed = WitnessedNote::sign(note(), &key, 1_764_428_540);
        let text = signed.encode();
        assert_eq!(WitnessedNote::decode(text.as_bytes(), &witness), Ok(signed));
        // Whoever knows no witness reads the note of the validators.
        assert_eq!(TreeNote::decode(text.as_bytes()), Ok(note()));

        let other = SigningKey::from_bytes(&[8; 32]);
        let other = WitnessKey::from_account(AccountKey::from(&other));
        let unsigned = |text: &str, witness: &WitnessKey| {
            let read = WitnessedNote::decode(text.as_bytes(), witness);
            matches!(read, Err(WitnessFault::Signature(_)))
        };
        assert!(unsigned(&text, &other));
        assert!(unsigned(&note().encode(), &witness));
        for (from, to) in [("index 48105", "index 48106"), ("\n48211\n", "\n48212\n")] {
            assert!(unsigned(&text.replace(from, to), &witness), "{to}");
        }
        // Another witness cannot sign under this one's name.
        let forged = text.replace(witness.name(), other.name());
        assert!(unsigned(&forged, &other));
    }

    #[test]
    fn a_key_is_read_as_written_and_nothing_else_is_one() {
        let key = SigningKey::from_bytes(&[9; 32]);
        let witness = WitnessKey::from_account(AccountKey::from(&key));
        let text = witness.to_string();
        assert_eq!(text.parse(), Ok(witness.clone()));
        let (name, rest) = text.split_once('+').expect("it has three parts");
        let wrong = [
            String::new(),
            name.to_owned(),
            format!("other+{rest}"),
            format!("+{rest}"),
            format!("a name+{rest}"),
            text.replacen("+BP", "+AP", 1).replacen("+BC", "+AC", 1) + "A",
            text[..text.len() - 4].to_owned(),
        ];
        for text in wrong {
            assert_eq!(text.parse::<WitnessKey>(), Err(NoWitnessKey), "{text}");
        }
    }
}
