//! Checks a stream of bytes against its announced id, frame by frame.
//!
//! The receiver knows the id and the length in advance, so it refuses excess bytes at the first
//! frame that has them, and a changed byte at the end; it hashes each byte once.

use thiserror::Error;

use crate::ContentId;

/// The state of one stream's check.
#[derive(Clone, Debug)]
pub struct Verifier {
    expected: ContentId,
    length: u64,
    received: u64,
    hasher: blake3::Hasher,
}

/// Why a stream does not match its announcement.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VerifyError {
    /// More bytes arrived than announced.
    #[error("content {id}: {length} bytes were announced, at least {received} came")]
    TooLong {
        /// The announced id.
        id: ContentId,
        /// The announced length in bytes.
        length: u64,
        /// The bytes received, including the refused frame.
        received: u64,
    },
    /// The stream ended early.
    #[error("content {id}: {length} bytes were announced, only {received} came")]
    TooShort {
        /// The announced id.
        id: ContentId,
        /// The announced length in bytes.
        length: u64,
        /// The bytes received.
        received: u64,
    },
    /// The bytes have another id.
    #[error("content announced as {expected} arrived as {found}")]
    Changed {
        /// The announced id.
        expected: ContentId,
        /// The id of the received bytes.
        found: ContentId,
    },
}

impl Verifier {
    /// Creates the check of a stream with the announced id and length in bytes.
    #[must_use]
    pub fn new(expected: ContentId, length: u64) -> Self {
        Self {
            expected,
            length,
            received: 0,
            hasher: blake3::Hasher::new(),
        }
    }

    /// Hashes the next frame. Frames must come in order and can have any length.
    ///
    /// # Errors
    /// [`VerifyError::TooLong`] if it exceeds the announced length.
    pub fn feed_frame(&mut self, frame: &[u8]) -> Result<(), VerifyError> {
        let received = self.received.saturating_add(frame.len() as u64);
        if received > self.length {
            let length = self.length;
            return Err(VerifyError::TooLong {
                id: self.expected,
                length,
                received,
            });
        }
        self.received = received;
        self.hasher.update(frame);
        Ok(())
    }

    /// Returns the bytes taken so far, at which an interrupted stream resumes.
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        self.received
    }

    /// Returns whether all announced bytes have arrived.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.received == self.length
    }

    /// Ends the check. You must not use the bytes as this content unless it succeeds.
    ///
    /// # Errors
    /// [`VerifyError::TooShort`] or [`VerifyError::Changed`].
    pub fn finish(self) -> Result<(), VerifyError> {
        assert!(
            self.received <= self.length,
            "feed_frame refuses excess bytes"
        );
        if !self.is_complete() {
            let (id, length, received) = (self.expected, self.length, self.received);
            return Err(VerifyError::TooShort {
                id,
                length,
                received,
            });
        }
        let found = ContentId::from_bytes(*self.hasher.finalize().as_bytes());
        if found != self.expected {
            return Err(VerifyError::Changed {
                expected: self.expected,
                found,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_too_long_is_refused_at_the_frame_that_brings_it() {
        let mut verifier = Verifier::new(ContentId::for_content(b"abc"), 3);
        verifier.feed_frame(b"ab").unwrap();
        assert!(matches!(
            verifier.feed_frame(b"cd"),
            Err(VerifyError::TooLong {
                length: 3,
                received: 4,
                ..
            })
        ));
    }

    #[test]
    fn a_cut_stream_is_too_short() {
        let mut verifier = Verifier::new(ContentId::for_content(b"abc"), 3);
        verifier.feed_frame(b"ab").unwrap();
        assert!(matches!(
            verifier.finish(),
            Err(VerifyError::TooShort { received: 2, .. })
        ));
    }

    proptest! {
        #[test]
        fn frames_of_any_size_verify_and_any_changed_byte_does_not(
            bytes in prop::collection::vec(any::<u8>(), 1..3000),
            frame in 1usize..1024,
            place in any::<prop::sample::Index>(),
        ) {
            let check = |bytes: &[u8], id| {
                let mut verifier = Verifier::new(id, bytes.len() as u64);
                bytes.chunks(frame).try_for_each(|frame| verifier.feed_frame(frame))?;
                verifier.finish()
            };
            let id = ContentId::for_content(&bytes);
            prop_assert_eq!(check(&bytes, id), Ok(()));
            let mut changed = bytes;
            let place = place.index(changed.len());
            changed[place] ^= 1;
            let is_changed = matches!(check(&changed, id), Err(VerifyError::Changed { .. }));
            prop_assert!(is_changed);
        }
    }
}
