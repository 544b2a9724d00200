//! Keys that were seen before, unpacked: that takes a square root, an eighth of a check alone and a
//! quarter of one among many.

use std::cell::RefCell;

use curve25519_dalek::edwards::{CompressedEdwardsY, EdwardsPoint};

use crate::ids::AccountKey;

/// Keys kept by each thread that checks signatures: 0.8 MB, and more accounts than are busy at a
/// time. A power of two.
const KNOWN_MAX: usize = 4_096;

/// Each key has one place, which holds the last that needed it.
type Places = Vec<Option<(AccountKey, EdwardsPoint)>>;

thread_local! {
    static KNOWN: RefCell<Places> = const { RefCell::new(Vec::new()) };
}

/// The key's point; none if it is no point, or one of small order.
pub(super) fn unpack(key: &AccountKey) -> Option<EdwardsPoint> {
    // A key is as good as a hash. Who makes many for one place only has them unpacked each time.
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
