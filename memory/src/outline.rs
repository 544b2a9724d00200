//! The outline of some content: the hashes of its frames (pieces of 512 KiB), from which its id
//! follows.
//!
//! BLAKE3 is a tree, and a frame of a power of two of bytes is one branch of it. With the hashes of
//! all frames a receiver can verify that they belong to an id before it has a byte of the content.
//! It can then check each frame alone: only a frame that does not match must be sent again.

use blake3::Hasher;
use blake3::hazmat::{self, HasherExt, Mode};
use thiserror::Error;

use crate::ContentId;

/// The bytes of a frame; the last can be shorter. They must be a power of two, so that a frame is a
/// branch of BLAKE3's tree.
pub const FRAME_BYTES: usize = 512 << 10;

/// The hash of one frame, as in the tree.
pub type FrameHash = [u8; 32];

/// The structure of some content: its id, its length, and the hashes of its frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    id: ContentId,
    length: u64,
    /// Empty if one frame holds the whole content, because the id is then its hash.
    frames: Vec<FrameHash>,
}

/// Why hashes do not belong to an id.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OutlineError {
    /// Their number does not match the length.
    #[error("content {id} of {length} bytes has {expected} hashes of frames, not {found}")]
    Count {
        /// The content's id.
        id: ContentId,
        /// The stated length in bytes.
        length: u64,
        /// The number of hashes for that length.
        expected: u64,
        /// The number of hashes found.
        found: usize,
    },
    /// They produce another id.
    #[error("the hashes of the frames of {id} combine to {found}")]
    Changed {
        /// The stated id.
        id: ContentId,
        /// The id that they produce.
        found: ContentId,
    },
}

impl Outline {
    /// Computes the outline of `bytes`, at the cost of their id alone.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let length = bytes.len() as u64;
        if bytes.len() <= FRAME_BYTES {
            let frames = Vec::new();
            let id = ContentId::for_content(bytes);
            return Self { id, length, frames };
        }
        let hash = |(index, frame)| hash_of(index, frame);
        let frames: Vec<FrameHash> = bytes.chunks(FRAME_BYTES).enumerate().map(hash).collect();
        let id = hash_root(&frames, length);
        Self { id, length, frames }
    }

    /// Creates the outline that another party states for `id`, if its hashes produce that id.
    /// Content of one frame has no hashes; its length is only a claim until the frame arrives.
    ///
    /// # Errors
    /// [`OutlineError`] if the hashes do not match.
    pub fn from_hashes(
        id: ContentId,
        length: u64,
        frames: Vec<FrameHash>,
    ) -> Result<Self, OutlineError> {
        let expected = hashes_of(length);
        if frames.len() as u64 != expected {
            let found = frames.len();
            return Err(OutlineError::Count {
                id,
                length,
                expected,
                found,
            });
        }
        if expected > 0 {
            let found = hash_root(&frames, length);
            if found != id {
                return Err(OutlineError::Changed { id, found });
            }
        }
        Ok(Self { id, length, frames })
    }

    /// Returns the content's id.
    #[must_use]
    pub fn id(&self) -> ContentId {
        self.id
    }

    /// Returns the content's length in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the hashes of the frames; none if one frame holds the whole content.
    #[must_use]
    pub fn frames(&self) -> &[FrameHash] {
        &self.frames
    }

    /// Returns the length of a frame in bytes; 0 beyond the end.
    #[must_use]
    pub fn frame_length(&self, index: u64) -> u64 {
        let start = index.saturating_mul(FRAME_BYTES as u64);
        self.length.saturating_sub(start).min(FRAME_BYTES as u64)
    }

    /// Returns whether `bytes` are the frame with this number.
    #[must_use]
    pub fn is_frame_content(&self, index: u64, bytes: &[u8]) -> bool {
        if bytes.len() as u64 != self.frame_length(index) {
            return false;
        }
        match usize::try_from(index).map(|index| self.frames.get(index)) {
            Ok(Some(hash)) => hash_of(index as usize, bytes) == *hash,
            _ => self.frames.is_empty() && index == 0 && ContentId::for_content(bytes) == self.id,
        }
    }

    /// Returns whether the bytes fed to a hasher from [`hasher_of`] are the frame with this number.
    /// The content must have several frames.
    pub(crate) fn is_frame(&self, index: u64, hasher: &Hasher) -> bool {
        let index = usize::try_from(index).ok();
        let frame = index.and_then(|index| self.frames.get(index));
        frame.is_some_and(|hash| hasher.finalize_non_root() == *hash)
    }
}

/// Returns the number of hashes for content of this length.
fn hashes_of(length: u64) -> u64 {
    match length.div_ceil(FRAME_BYTES as u64) {
        0 | 1 => 0,
        frames => frames,
    }
}

/// Creates the hasher for the frame with this number.
pub(crate) fn hasher_of(index: u64) -> Hasher {
    let mut hasher = Hasher::new();
    hasher.set_input_offset(index * FRAME_BYTES as u64);
    hasher
}

fn hash_of(index: usize, frame: &[u8]) -> FrameHash {
    hasher_of(index as u64).update(frame).finalize_non_root()
}

/// Computes the id from the hashes of two or more frames.
fn hash_root(frames: &[FrameHash], length: u64) -> ContentId {
    let (left, right) = hash_halves(frames, length);
    let hash = hazmat::merge_subtrees_root(&left, &right, Mode::Hash);
    ContentId::from_bytes(*hash.as_bytes())
}

fn hash_branch(frames: &[FrameHash], length: u64) -> FrameHash {
    match frames {
        [only] => *only,
        _ => {
            let (left, right) = hash_halves(frames, length);
            hazmat::merge_subtrees_non_root(&left, &right, Mode::Hash)
        }
    }
}

/// Computes the hashes of the two branches of a node; the left has a power of two of bytes and is
/// the larger. There must be at least two frames.
fn hash_halves(frames: &[FrameHash], length: u64) -> (FrameHash, FrameHash) {
    assert!(frames.len() > 1, "one frame has no branches");
    let left = hazmat::left_subtree_len(length);
    let count = (left / FRAME_BYTES as u64) as usize;
    let (ours, theirs) = frames.split_at(count);
    (hash_branch(ours, left), hash_branch(theirs, length - left))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn content(length: usize, seed: u8) -> Vec<u8> {
        (0..length).map(|n| (n / 7) as u8 ^ seed).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn frames_make_the_id_that_the_whole_has(frames in 0..9_usize, rest in 0..3_000_usize) {
            let bytes = content(frames * FRAME_BYTES + rest, 3);
            let outline = Outline::from_bytes(&bytes);
            prop_assert_eq!(outline.id(), ContentId::for_content(&bytes));
            let frames = outline.frames().to_vec();
            let stated = Outline::from_hashes(outline.id(), outline.length(), frames).unwrap();
            for (index, frame) in bytes.chunks(FRAME_BYTES).enumerate() {
                prop_assert!(stated.is_frame_content(index as u64, frame));
            }
        }

        #[test]
        fn a_changed_byte_is_found_in_its_frame(
            place in 0..5 * FRAME_BYTES - 7, bit in 0..8_u32,
        ) {
            let mut bytes = content(5 * FRAME_BYTES - 7, 9);
            let outline = Outline::from_bytes(&bytes);
            bytes[place] ^= 1 << bit;
            for (index, frame) in bytes.chunks(FRAME_BYTES).enumerate() {
                let right = index != place / FRAME_BYTES;
                prop_assert_eq!(outline.is_frame_content(index as u64, frame), right);
            }
        }
    }

    #[test]
    fn hashes_of_something_else_are_refused() {
        let bytes = content(3 * FRAME_BYTES, 1);
        let outline = Outline::from_bytes(&bytes);
        let (id, length, mut frames) = (outline.id(), outline.length(), outline.frames().to_vec());
        let fewer = Outline::from_hashes(id, length, frames[..2].to_vec());
        assert!(matches!(
            fewer,
            Err(OutlineError::Count {
                expected: 3,
                found: 2,
                ..
            })
        ));
        let longer = Outline::from_hashes(id, length + 1, frames.clone());
        assert!(matches!(
            longer,
            Err(OutlineError::Count { expected: 4, .. })
        ));
        frames.swap(0, 1);
        let swapped = Outline::from_hashes(id, length, frames);
        assert!(matches!(swapped, Err(OutlineError::Changed { .. })));
        assert!(
            !outline.is_frame_content(3, &[]),
            "nothing is behind the end"
        );
    }
}
