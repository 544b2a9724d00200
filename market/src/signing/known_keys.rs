//! Caches the public keys of accounts in unpacked form for the signature checks of one thread.
//! Unpacking a key takes a square root, which is an eighth of a single check and a quarter of a
//! check among many.

use std::cell::RefCell;

use curve25519_dalek::edwards::{CompressedEdwardsY, EdwardsPoint};

use crate::ids::AccountKey;

/// Keys that each checking thread caches: 0.8 MB, and more accounts than are active at a time. A
/// power of two.
const KNOWN_MAX: usize = 4_096;

/// Each key has one entry, which holds the last key that used it.
type CachedPoints = Vec<Option<(AccountKey, EdwardsPoint)>>;

thread_local! {
    static KNOWN: RefCell<CachedPoints> = const { RefCell::new(Vec::new()) };
}

/// Returns the key's point, or `None` if the key is no point or has small order.
pub(super) fn unpack_key(key: &AccountKey) -> Option<EdwardsPoint> {
    // A key is as good as a hash. An attacker that makes many keys for one entry can only make them
    // miss.
    let place = usize::from(u16::from_le_bytes([key.0[0], key.0[1]])) % KNOWN_MAX;
    KNOWN.with_borrow_mut(|known| {
        if known.is_empty() {
            known.resize(KNOWN_MAX, None);
        }
        if let Some((_, point)) = known[place].filter(|(known, _)| known == key) {
            return Some(point);
        }
        let point = CompressedEdwardsY(key.0).decompress()?;
        if point.is_small_order() {
            return None;
        }
        known[place] = Some((*key, point));
        Some(point)
    })
}
