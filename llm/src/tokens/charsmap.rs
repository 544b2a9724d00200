//! Refuses a `tokenizer.json` on which the tokeniser library would panic, because the file can come
//! from a stranger.
//!
//! The library assumes that the decoder is JSON, and that a normaliser of the kind `Precompiled`
//! has a character map whose trie (a tree over the bytes of the text) never leads out of itself.
//! Such a map consists of the trie's length in bytes, the trie as 32-bit numbers, and the
//! replacement texts.

use serde::Deserialize;
use serde_json::Value;

/// The kind of normaliser that has a map.
const KIND: &str = "Precompiled";

/// The parts of a file that the check reads.
#[derive(Deserialize)]
struct CheckedParts {
    #[serde(default)]
    normalizer: Value,
    /// The check only requires valid JSON here.
    #[serde(default, rename = "decoder")]
    _decoder: Value,
}

/// Checks a `tokenizer.json` before the library reads it.
///
/// # Errors
/// The reason for the refusal.
pub(super) fn check_tokenizer(json: &[u8]) -> Result<(), String> {
    let parts: CheckedParts = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    check_normalizer(&parts.normalizer)
}

fn check_normalizer(normalizer: &Value) -> Result<(), String> {
    match normalizer {
        Value::Array(inner) => inner.iter().try_for_each(check_normalizer),
        Value::Object(fields) => {
            if fields.get("type").and_then(Value::as_str) == Some(KIND) {
                let map = fields.get("precompiled_charsmap").and_then(Value::as_str);
                let is_sound = map
                    .and_then(decode_base64)
                    .is_some_and(|map| is_sound(&map));
                return match is_sound {
                    true => Ok(()),
                    false => Err("its precompiled_charsmap is no map of letters".to_owned()),
                };
            }
            fields.values().try_for_each(check_normalizer)
        }
        _ => Ok(()),
    }
}

/// Decodes a base 64 text with complete padding.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let is_padded = text.len().is_multiple_of(4) && text.len() - digits.len() <= 2;
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    (is_padded && bits == 0).then_some(bytes)
}

/// Returns whether every search in a map stays within it.
fn is_sound(map: &[u8]) -> bool {
    let Some((length, rest)) = map.split_first_chunk::<4>() else {
        return false;
    };
    let length = u32::from_le_bytes(*length) as usize / 4 * 4;
    let Some((trie, texts)) = rest.split_at_checked(length) else {
        return false;
    };
    let units: Vec<usize> = trie
        .chunks_exact(4)
        .map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]) as usize)
        .collect();
    let Ok(texts) = std::str::from_utf8(texts) else {
        return false;
    };
    // Empty texts have no letters to search with.
    let Some(root) = units.first() else {
        return false;
    };
    let mut seen = vec![false; units.len()];
    let mut open = vec![child_offset(*root)];
    while let Some(node) = open.pop() {
        // A search looks up each byte around the node.
        if node | 0xff >= units.len() {
            return false;
        }
        if std::mem::replace(&mut seen[node], true) {
            continue;
        }
        for byte in 1..=0xff {
            let unit = units[node ^ byte];
            if unit & ((1 << 31) | 0xff) != byte {
                continue;
            }
            let next = node ^ byte ^ child_offset(unit);
            let has_leaf = (unit >> 8) & 1 == 1;
            let text = || units.get(next).map(|unit| unit & ((1 << 31) - 1));
            if has_leaf && !text().is_some_and(|at| texts.is_char_boundary(at)) {
                return false;
            }
            open.push(next);
        }
    }
    true
}

/// Returns the distance from a unit to its children.
fn child_offset(unit: usize) -> usize {
    (unit >> 10) << ((unit & (1 << 9)) >> 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trie of so many units, in base 64.
    fn map(units: &[u32], texts: &[u8]) -> Vec<u8> {
        let length = (units.len() * 4) as u32;
        let units = units.iter().flat_map(|unit| unit.to_le_bytes());
        let head = length.to_le_bytes().into_iter();
        head.chain(units).chain(texts.iter().copied()).collect()
    }

    #[test]
    fn a_map_that_leads_out_of_itself_is_refused() {
        let mut units = vec![0; 512];
        // Below the root, at 256, is `a`, a leaf whose text begins at 2.
        units[0] = 256 << 10;
        units[256 ^ 0x61] = (1 << 8) | 0x61 | ((0x61 ^ 3) << 10);
        let leaf = 256 ^ 0x61 ^ 0x61 ^ 3;
        units[leaf] = (1 << 31) | 2;
        let made = |change: (usize, u32), texts: &[u8]| {
            let mut units = units.clone();
            units[change.0] = change.1;
            is_sound(&map(&units, texts))
        };
        assert!(made((1, 0), b"x\0y\0"));
        assert!(!made((leaf, (1 << 31) | 9), b"x\0y\0"), "behind the texts");
        assert!(
            !made((leaf, (1 << 31) | 1), "ä\0".as_bytes()),
            "within a letter"
        );
        assert!(!made((0, 511 << 11), b"x\0y\0"), "behind the trie");
        assert!(!made((1, 0), b"\xff\xff\xff"), "no text");
        assert!(!is_sound(&map(&units[..300], b"x\0y\0")), "cut off");
        let long = [&u32::MAX.to_le_bytes()[..], &[0; 9]].concat();
        assert!(!is_sound(&long) && !is_sound(&[]) && !is_sound(&map(&[], b"")));
    }

    #[test]
    fn base_64_is_read_as_strictly_as_the_library_reads_it() {
        assert_eq!(decode_base64("QUJDRA=="), Some(b"ABCD".to_vec()));
        assert_eq!(decode_base64(""), Some(Vec::new()));
        for wrong in [
            "QUJDRA", "QUJDRA=", "QUJDRB==", "QUJD=A==", "QUJ DRA=", "====", "Q===",
        ] {
            assert_eq!(decode_base64(wrong), None, "{wrong}");
        }
    }
}
