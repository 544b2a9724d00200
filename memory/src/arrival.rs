//! Content on its way here: its frames are checked as they come, and what was checked stays.
//!
//! Whoever sends, and over however many connections: the first byte that is not here yet is always
//! the start of a frame, and everything before it is right.

use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;

use crate::ContentId;
use crate::outline::{FRAME_BYTES, Outline, OutlineError, hasher_of};
use crate::room::{Room, SparePages};

/// Content that comes frame by frame.
#[derive(Debug)]
pub struct Arrival {
    outline: Outline,
    /// Checked frames, then what has come of the next.
    room: Room,
    checked: u64,
    spare: Arc<SparePages>,
}

/// Content that came whole and was checked: a store need not hash it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedContent {
    outline: Outline,
    bytes: Bytes,
}

/// A frame is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("frame {frame} of {id} is not what its hash says")]
pub struct CorruptFrame {
    /// Which frame, from 0.
    pub frame: u64,
    /// Of which content.
    pub id: ContentId,
}

impl Arrival {
    /// Nothing has come yet. No memory is taken before bytes come.
    #[must_use]
    pub fn new(outline: Outline) -> Self {
        Self::with_spare(outline, Arc::new(SparePages::new(0)))
    }

    /// The same, in pages that content left behind where there are any.
    pub(crate) fn with_spare(outline: Outline, spare: Arc<SparePages>) -> Self {
        let (room, checked) = (Room::new(outline.length(), &spare), 0);
        Self {
            outline,
            room,
            checked,
            spare,
        }
    }

    /// What is awaited.
    #[must_use]
    pub fn outline(&self) -> &Outline {
        &self.outline
    }

    /// The number of the first frame that is not here.
    #[must_use]
    pub fn next_frame(&self) -> u64 {
        self.checked / FRAME_BYTES as u64
    }

    /// Bytes that are still to come.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.outline.length() - self.room.filled().len() as u64
    }

    /// Whether everything is here and checked.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        // Nothing is content too, and its id has to be right.
        let right = self.checked > 0 || self.outline.matches(0, &[]);
        self.checked == self.outline.length() && right
    }

    /// Takes the next bytes in order.
    ///
    /// # Errors
    /// [`CorruptFrame`] for the frame that they complete; of it nothing is kept.
    ///
    /// # Panics
    /// If more comes than is missing: whoever reads knows how much that is.
    pub fn take(&mut self, mut bytes: &[u8]) -> Result<(), CorruptFrame> {
        assert!(
            bytes.len() as u64 <= self.missing(),
            "no more than is missing is read"
        );
        while !bytes.is_empty() {
            let frame = self.next_frame();
            let have = self.room.filled().len() as u64 - self.checked;
            let wanted = self.outline.frame_length(frame) - have;
            let (now, later) = bytes.split_at(bytes.len().min(wanted as usize));
            self.room.extend(now);
            bytes = later;
            if now.len() as u64 == wanted {
                self.check(frame)?;
            }
        }
        Ok(())
    }

    /// The frames that are missing, each with the room it comes to; what came of a frame that is
    /// not whole is let go. None where content is so short that [`Arrival::take`] does.
    pub fn frames(&mut self) -> impl Iterator<Item = Frame<'_>> {
        self.interrupted();
        let (first, outline) = (self.next_frame(), &self.outline);
        let rooms = self.room.rest().chunks_mut(FRAME_BYTES);
        rooms.zip(first..).map(move |(room, index)| Frame {
            outline,
            index,
            room,
            hasher: hasher_of(index),
        })
    }

    /// Keeps a frame of [`Arrival::frames`] that was read and is right.
    ///
    /// # Panics
    /// If it is not the next one of this content.
    pub fn on_checked(&mut self, frame: CheckedFrame) {
        let CheckedFrame { index, id } = frame;
        assert!(
            index == self.next_frame() && id == self.outline.id(),
            "frames are kept in their order"
        );
        let length = self.outline.frame_length(index);
        self.interrupted();
        self.room.advance(length as usize);
        self.checked += length;
    }

    /// Another party states another length. The hashes of the frames bind how many there are, and
    /// the last frame how long it is: until it has come, the length is somebody's word.
    ///
    /// # Errors
    /// [`OutlineError`] if content of that length has not as many frames.
    pub fn restate(&mut self, length: u64) -> Result<(), OutlineError> {
        self.interrupted();
        let (id, frames) = (self.outline.id(), self.outline.frames().to_vec());
        let stated = Outline::stated(id, length, frames)?;
        if !self.is_complete() {
            self.room = self.room.resized(length, &self.spare);
            self.outline = stated;
        }
        Ok(())
    }

    /// The connection broke: what has come of a frame that is not whole is let go.
    pub fn interrupted(&mut self) {
        self.room.truncate(self.checked as usize);
    }

    /// The content; none where something is missing.
    #[must_use]
    pub fn finish(self) -> Option<VerifiedContent> {
        self.is_complete().then(|| VerifiedContent {
            bytes: self.room.into_bytes(),
            outline: self.outline,
        })
    }

    fn check(&mut self, frame: u64) -> Result<(), CorruptFrame> {
        let start = self.checked as usize;
        if !self.outline.matches(frame, &self.room.filled()[start..]) {
            self.room.truncate(start);
            let id = self.outline.id();
            return Err(CorruptFrame { frame, id });
        }
        self.checked = self.room.filled().len() as u64;
        Ok(())
    }
}

/// A frame on its way to where it stays.
#[derive(Debug)]
pub struct Frame<'a> {
    outline: &'a Outline,
    index: u64,
    /// Where the bytes go that have not come.
    room: &'a mut [u8],
    /// Of those that have.
    hasher: blake3::Hasher,
}

/// A frame that is what its hash says.
#[derive(Debug)]
pub struct CheckedFrame {
    index: u64,
    id: ContentId,
}

impl Frame<'_> {
    /// How many of its bytes have not come.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.room.len()
    }

    /// Takes its next bytes: they are hashed where they are, which should be the processor's
    /// cache, by 16 KiB and more at a time, so that all lanes of its vectors are full; `copy`
    /// brings them to where they stay.
    ///
    /// # Panics
    /// If more comes than is missing: whoever reads knows how much that is.
    pub fn take(&mut self, bytes: &[u8], copy: impl FnOnce(&mut [u8], &[u8])) {
        self.hasher.update(bytes);
        let room = self.room.split_off_mut(..bytes.len());
        copy(room.expect("no more than is missing is read"), bytes);
    }

    /// Checks what has come.
    ///
    /// # Errors
    /// [`CorruptFrame`] if it is something else, or not all.
    pub fn check(self) -> Result<CheckedFrame, CorruptFrame> {
        let (index, id) = (self.index, self.outline.id());
        let is_whole = self.room.is_empty();
        if !is_whole || !self.outline.is_frame(index, &self.hasher) {
            return Err(CorruptFrame { frame: index, id });
        }
        Ok(CheckedFrame { index, id })
    }
}

impl VerifiedContent {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> ContentId {
        self.outline.id()
    }

    /// The bytes.
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
            let mut arrival = Arrival::new(Outline::of(&bytes));
            bytes
                .chunks(piece)
                .for_each(|piece| arrival.take(piece).unwrap());
            let arrived = arrival.finish().unwrap();
            assert_eq!(arrived.id(), ContentId::of(&bytes));
            assert_eq!(arrived.bytes()[..], bytes);
        }
    }

    #[test]
    fn a_corrupt_frame_is_named_and_comes_again_alone() {
        let bytes = content();
        let mut arrival = Arrival::new(Outline::of(&bytes));
        let mut wrong = bytes.clone();
        wrong[FRAME_BYTES + 17] ^= 1;
        let corrupt = arrival.take(&wrong).unwrap_err();
        assert_eq!(corrupt.frame, 1);
        assert_eq!(arrival.next_frame(), 1);
        arrival.take(&bytes[FRAME_BYTES..]).unwrap();
        assert!(arrival.finish().is_some());
    }

    #[test]
    fn what_is_checked_outlives_a_broken_connection() {
        let bytes = content();
        let mut arrival = Arrival::new(Outline::of(&bytes));
        arrival.take(&bytes[..2 * FRAME_BYTES + 9]).unwrap();
        arrival.interrupted();
        assert_eq!(arrival.next_frame(), 2);
        assert!(!arrival.is_complete());
        arrival.take(&bytes[2 * FRAME_BYTES..]).unwrap();
        assert!(arrival.is_complete());
    }

    #[test]
    fn a_lie_about_the_length_costs_one_frame() {
        let bytes = content();
        let right = Outline::of(&bytes);
        let frames = right.frames().to_vec();
        let lie = Outline::stated(right.id(), right.length() - 2, frames).unwrap();
        let mut arrival = Arrival::new(lie);
        let corrupt = arrival.take(&bytes[..bytes.len() - 2]).unwrap_err();
        assert_eq!(corrupt.frame, 3);
        assert!(
            arrival
                .restate(right.length() + FRAME_BYTES as u64)
                .is_err()
        );
        arrival.restate(right.length()).unwrap();
        arrival.take(&bytes[3 * FRAME_BYTES..]).unwrap();
        assert!(arrival.finish().is_some());
    }

    #[test]
    fn frames_are_read_where_they_stay_and_kept_once_they_are_right() {
        let bytes: Vec<u8> = (0..9 * FRAME_BYTES + 5).map(|n| (n / 3) as u8).collect();
        let mut arrival = Arrival::new(Outline::of(&bytes));
        arrival.take(&bytes[..2 * FRAME_BYTES + 9]).unwrap();
        let mut checked = Vec::new();
        let sent = bytes.chunks(FRAME_BYTES).skip(2);
        for (n, (mut frame, sent)) in arrival.frames().zip(sent).enumerate() {
            sent.chunks(1 + n * 30_011)
                .for_each(|piece| frame.take(piece, <[u8]>::copy_from_slice));
            assert_eq!(frame.missing(), 0);
            checked.push(frame.check().unwrap());
        }
        assert_eq!(checked.len(), 8);
        checked
            .into_iter()
            .take(3)
            .for_each(|frame| arrival.on_checked(frame));
        assert_eq!(arrival.next_frame(), 5);
        // What was not kept comes again, and a wrong frame is named.
        let mut frame = arrival.frames().next().unwrap();
        frame.take(&vec![7; frame.missing()], <[u8]>::copy_from_slice);
        assert_eq!(frame.check().unwrap_err().frame, 5);
        let mut frame = arrival.frames().next().unwrap();
        let most = &bytes[5 * FRAME_BYTES..6 * FRAME_BYTES - 1];
        frame.take(most, <[u8]>::copy_from_slice);
        assert!(frame.check().is_err(), "a byte is missing");
        arrival.take(&bytes[5 * FRAME_BYTES..]).unwrap();
        assert_eq!(&arrival.finish().unwrap().bytes()[..], &bytes[..]);
    }

    #[test]
    fn nothing_is_content_only_under_its_own_id() {
        let nothing = Arrival::new(Outline::of(&[]));
        assert_eq!(nothing.finish().unwrap().id(), ContentId::of(&[]));
        let other = Outline::stated(ContentId::of(b"x"), 0, Vec::new()).unwrap();
        assert!(Arrival::new(other).finish().is_none());
    }
}
