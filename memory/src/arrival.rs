//! Receives content from other peers: checks each frame (a piece of 512 KiB) against its hash as it
//! arrives, and keeps the correct ones.
//!
//! The frames can come from any peers and over any number of connections: all frames before
//! [`Arrival::next_frame`] are complete and correct.

use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;

use crate::ContentId;
use crate::outline::{FRAME_BYTES, Outline, OutlineError, hasher_of};
use crate::room::{ContentBuffer, SparePages};

/// Content that arrives frame by frame.
#[derive(Debug)]
pub struct Arrival {
    outline: Outline,
    /// The checked frames, then the received part of the next.
    room: ContentBuffer,
    checked: u64,
    spare: Arc<SparePages>,
}

/// Content that arrived whole and is verified: a store need not hash it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedContent {
    outline: Outline,
    bytes: Bytes,
}

/// A frame whose bytes do not match its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("frame {frame} of {id} does not match its hash")]
pub struct CorruptFrame {
    /// The frame's number, from 0.
    pub frame: u64,
    /// The content of the frame.
    pub id: ContentId,
}

impl Arrival {
    /// Creates an empty arrival, which takes no memory before bytes arrive.
    #[must_use]
    pub fn new(outline: Outline) -> Self {
        Self::with_spare(outline, Arc::new(SparePages::new(0)))
    }

    /// Creates an empty arrival that reuses spare pages if there are any.
    pub(crate) fn with_spare(outline: Outline, spare: Arc<SparePages>) -> Self {
        let (room, checked) = (ContentBuffer::new(outline.length(), &spare), 0);
        Self {
            outline,
            room,
            checked,
            spare,
        }
    }

    /// Returns the outline of the content.
    #[must_use]
    pub fn outline(&self) -> &Outline {
        &self.outline
    }

    /// Returns the number of the first frame that is not checked yet.
    #[must_use]
    pub fn next_frame(&self) -> u64 {
        self.checked / FRAME_BYTES as u64
    }

    /// Returns the number of missing bytes.
    #[must_use]
    pub fn missing_bytes(&self) -> u64 {
        self.outline.length() - self.room.filled_bytes().len() as u64
    }

    /// Returns whether all frames have arrived and are checked.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        // Empty content is content too, and its id must match.
        let right = self.checked > 0 || self.outline.is_frame_content(0, &[]);
        self.checked == self.outline.length() && right
    }

    /// Takes the next bytes, which must follow directly on the received ones. They can span several
    /// frames.
    ///
    /// # Errors
    /// [`CorruptFrame`] for the frame that the bytes complete; the arrival drops that frame and
    /// takes none of the bytes after it, so the sender must begin again at [`Arrival::next_frame`].
    ///
    /// # Panics
    /// If there are more bytes than are missing; see [`Arrival::missing_bytes`].
    pub fn push_bytes(&mut self, mut bytes: &[u8]) -> Result<(), CorruptFrame> {
        assert!(
            bytes.len() as u64 <= self.missing_bytes(),
            "no more than is missing is read"
        );
        while !bytes.is_empty() {
            let frame = self.next_frame();
            let have = self.room.filled_bytes().len() as u64 - self.checked;
            let wanted = self.outline.frame_length(frame) - have;
            let (now, later) = bytes.split_at(bytes.len().min(wanted as usize));
            self.room.extend(now);
            bytes = later;
            if now.len() as u64 == wanted {
                self.check_frame(frame)?;
            }
        }
        Ok(())
    }

    /// Iterates over the missing frames, each with the memory for its bytes; drops the received
    /// part of an incomplete frame. Short content has no such frames: use [`Arrival::push_bytes`]
    /// for it.
    pub fn missing_frames(&mut self) -> impl Iterator<Item = Frame<'_>> {
        self.on_interrupted();
        let (first, outline) = (self.next_frame(), &self.outline);
        let rooms = self.room.unfilled_mut().chunks_mut(FRAME_BYTES);
        rooms.zip(first..).map(move |(room, index)| Frame {
            outline,
            index,
            room,
            hasher: hasher_of(index),
        })
    }

    /// Keeps a checked frame of [`Arrival::missing_frames`].
    ///
    /// # Panics
    /// If it is not the next frame of this content.
    pub fn on_checked(&mut self, frame: CheckedFrame) {
        let CheckedFrame { index, id } = frame;
        assert!(
            index == self.next_frame() && id == self.outline.id(),
            "frames are kept in their order"
        );
        let length = self.outline.frame_length(index);
        self.on_interrupted();
        self.room.advance_filled(length as usize);
        self.checked += length;
    }

    /// Replaces the stated length by another party's. The hashes of the frames determine their
    /// number, and the last frame determines its length: until it arrives, the length is only a
    /// claim.
    ///
    /// # Errors
    /// [`OutlineError`] if content of that length has another number of frames.
    pub fn restate_length(&mut self, length: u64) -> Result<(), OutlineError> {
        self.on_interrupted();
        let (id, frames) = (self.outline.id(), self.outline.frames().to_vec());
        let stated = Outline::from_hashes(id, length, frames)?;
        if !self.is_complete() {
            self.room = self.room.copy_with_length(length, &self.spare);
            self.outline = stated;
        }
        Ok(())
    }

    /// Drops the received part of an incomplete frame, because its connection broke.
    pub fn on_interrupted(&mut self) {
        self.room.truncate(self.checked as usize);
    }

    /// Returns the content, or `None` if a part is missing. The received part is then lost, so you
    /// should ask [`Arrival::is_complete`] first.
    #[must_use]
    pub fn finish(self) -> Option<VerifiedContent> {
        self.is_complete().then(|| VerifiedContent {
            bytes: self.room.into_bytes(),
            outline: self.outline,
        })
    }

    fn check_frame(&mut self, frame: u64) -> Result<(), CorruptFrame> {
        let start = self.checked as usize;
        if !self
            .outline
            .is_frame_content(frame, &self.room.filled_bytes()[start..])
        {
            self.room.truncate(start);
            let id = self.outline.id();
            return Err(CorruptFrame { frame, id });
        }
        self.checked = self.room.filled_bytes().len() as u64;
        Ok(())
    }
}

/// A frame in transfer to its final memory.
#[derive(Debug)]
pub struct Frame<'a> {
    outline: &'a Outline,
    index: u64,
    /// The memory of the missing bytes.
    room: &'a mut [u8],
    /// The hash state of the received bytes.
    hasher: blake3::Hasher,
}

/// A frame that matches its hash.
#[derive(Debug)]
pub struct CheckedFrame {
    index: u64,
    id: ContentId,
}

impl Frame<'_> {
    /// Returns the number of missing bytes.
    #[must_use]
    pub fn missing_bytes(&self) -> usize {
        self.room.len()
    }

    /// Takes the frame's next bytes. It hashes them where they are, which should be the processor's
    /// cache: pass at least 16 KiB at a time to fill all lanes of its vectors. `copy` must copy
    /// them to the given memory.
    ///
    /// # Panics
    /// If there are more bytes than are missing; see [`Frame::missing_bytes`].
    pub fn push_bytes(&mut self, bytes: &[u8], copy: impl FnOnce(&mut [u8], &[u8])) {
        self.hasher.update(bytes);
        let room = self.room.split_off_mut(..bytes.len());
        copy(room.expect("no more than is missing is read"), bytes);
    }

    /// Checks the received frame.
    ///
    /// # Errors
    /// [`CorruptFrame`] if the frame is incomplete or does not match its hash.
    pub fn into_checked(self) -> Result<CheckedFrame, CorruptFrame> {
        let (index, id) = (self.index, self.outline.id());
        let is_whole = self.room.is_empty();
        if !is_whole || !self.outline.is_frame(index, &self.hasher) {
            return Err(CorruptFrame { frame: index, id });
        }
        Ok(CheckedFrame { index, id })
    }
}

impl VerifiedContent {
    /// Returns the content's id.
    #[must_use]
    pub fn id(&self) -> ContentId {
        self.outline.id()
    }

    /// Returns the content's bytes.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub(crate) fn into_parts(self) -> (Outline, Bytes) {
        (self.outline, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content() -> Vec<u8> {
        (0..3 * FRAME_BYTES + 5).map(|n| (n / 11) as u8).collect()
    }

    #[test]
    fn pieces_of_any_size_arrive() {
        let bytes = content();
        for piece in [1 << 10, 100_003, FRAME_BYTES, 2 * FRAME_BYTES + 1] {
            let mut arrival = Arrival::new(Outline::from_bytes(&bytes));
            bytes
                .chunks(piece)
                .for_each(|piece| arrival.push_bytes(piece).unwrap());
            let arrived = arrival.finish().unwrap();
            assert_eq!(arrived.id(), ContentId::for_content(&bytes));
            assert_eq!(arrived.bytes()[..], bytes);
        }
    }

    #[test]
    fn a_corrupt_frame_is_named_and_comes_again_alone() {
        let bytes = content();
        let mut arrival = Arrival::new(Outline::from_bytes(&bytes));
        let mut wrong = bytes.clone();
        wrong[FRAME_BYTES + 17] ^= 1;
        let corrupt = arrival.push_bytes(&wrong).unwrap_err();
        assert_eq!(corrupt.frame, 1);
        assert_eq!(arrival.next_frame(), 1);
        arrival.push_bytes(&bytes[FRAME_BYTES..]).unwrap();
        assert!(arrival.finish().is_some());
    }

    #[test]
    fn what_is_checked_outlives_a_broken_connection() {
        let bytes = content();
        let mut arrival = Arrival::new(Outline::from_bytes(&bytes));
        arrival.push_bytes(&bytes[..2 * FRAME_BYTES + 9]).unwrap();
        arrival.on_interrupted();
        assert_eq!(arrival.next_frame(), 2);
        assert!(!arrival.is_complete());
        arrival.push_bytes(&bytes[2 * FRAME_BYTES..]).unwrap();
        assert!(arrival.is_complete());
    }

    #[test]
    fn a_lie_about_the_length_costs_one_frame() {
        let bytes = content();
        let right = Outline::from_bytes(&bytes);
        let frames = right.frames().to_vec();
        let lie = Outline::from_hashes(right.id(), right.length() - 2, frames).unwrap();
        let mut arrival = Arrival::new(lie);
        let corrupt = arrival.push_bytes(&bytes[..bytes.len() - 2]).unwrap_err();
        assert_eq!(corrupt.frame, 3);
        assert!(
            arrival
                .restate_length(right.length() + FRAME_BYTES as u64)
                .is_err()
        );
        arrival.restate_length(right.length()).unwrap();
        arrival.push_bytes(&bytes[3 * FRAME_BYTES..]).unwrap();
        assert!(arrival.finish().is_some());
    }

    #[test]
    fn frames_are_read_where_they_stay_and_kept_once_they_are_right() {
        let bytes: Vec<u8> = (0..9 * FRAME_BYTES + 5).map(|n| (n / 3) as u8).collect();
        let mut arrival = Arrival::new(Outline::from_bytes(&bytes));
        arrival.push_bytes(&bytes[..2 * FRAME_BYTES + 9]).unwrap();
        let mut checked = Vec::new();
        let sent = bytes.chunks(FRAME_BYTES).skip(2);
        for (n, (mut frame, sent)) in arrival.missing_frames().zip(sent).enumerate() {
            sent.chunks(1 + n * 30_011)
                .for_each(|piece| frame.push_bytes(piece, <[u8]>::copy_from_slice));
            assert_eq!(frame.missing_bytes(), 0);
            checked.push(frame.into_checked().unwrap());
        }
        assert_eq!(checked.len(), 8);
        checked
            .into_iter()
            .take(3)
            .for_each(|frame| arrival.on_checked(frame));
        assert_eq!(arrival.next_frame(), 5);
        // What was not kept comes again, and a wrong frame is named.
        let mut frame = arrival.missing_frames().next().unwrap();
        frame.push_bytes(&vec![7; frame.missing_bytes()], <[u8]>::copy_from_slice);
        assert_eq!(frame.into_checked().unwrap_err().frame, 5);
        let mut frame = arrival.missing_frames().next().unwrap();
        let most = &bytes[5 * FRAME_BYTES..6 * FRAME_BYTES - 1];
        frame.push_bytes(most, <[u8]>::copy_from_slice);
        assert!(frame.into_checked().is_err(), "a byte is missing");
        arrival.push_bytes(&bytes[5 * FRAME_BYTES..]).unwrap();
        assert_eq!(&arrival.finish().unwrap().bytes()[..], &bytes[..]);
    }

    #[test]
    fn nothing_is_content_only_under_its_own_id() {
        let nothing = Arrival::new(Outline::from_bytes(&[]));
        assert_eq!(nothing.finish().unwrap().id(), ContentId::for_content(&[]));
        let other = Outline::from_hashes(ContentId::for_content(b"x"), 0, Vec::new()).unwrap();
        assert!(Arrival::new(other).finish().is_none());
    }
}
