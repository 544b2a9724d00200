//! Provides memory for incoming content, and reuses the memory pages of dropped content.
//!
//! Short content grows on the heap as it arrives. Long content has its own pages, large ones if the
//! system has them, because touching a gigabyte page by page costs more than moving it. The system
//! commits a page at the first write to it. So a stated length reserves only addresses, and the
//! receiver can read bytes directly to their final place.
//!
//! Committing a page is still expensive: the system clears it, and under a hypervisor the machine
//! below does too. Therefore pages of dropped content are kept for the next, within a limit, until
//! no content has used them for a while.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use memmap2::{MmapMut, MmapOptions};

/// The least length of content with its own pages; below it they cost more than they save.
const PAGES_BYTES_MIN: u64 = 4 << 20;

/// Content gets spare pages at most this many times its length, because the rest of the pages is
/// unusable while it stays.
const SPARE_TIMES_MAX: u64 = 2;

/// Spare pages, which dropped content left behind.
#[derive(Debug)]
pub(crate) struct SparePages {
    bytes_max: u64,
    /// The pages in the order in which they came, the oldest first.
    left: Mutex<Vec<Spare>>,
}

#[derive(Debug)]
struct Spare {
    pages: MmapMut,
    /// Whether no content has used them since the last round of [`SparePages::age`].
    idle: bool,
}

impl SparePages {
    /// Creates a store of at most `bytes_max` bytes.
    pub(crate) fn new(bytes_max: u64) -> Self {
        let left = Mutex::default();
        Self { bytes_max, left }
    }

    /// Takes the shortest pages into which content of this length fits.
    fn take_fitting(&self, length: u64) -> Option<MmapMut> {
        let longest = length.saturating_mul(SPARE_TIMES_MAX);
        let mut left = self.lock_spares();
        let fits = |spare: &Spare| (length..=longest).contains(&bytes_of(&spare.pages));
        let fitting = left.iter().enumerate().filter(|(_, spare)| fits(spare));
        let (place, _) = fitting.min_by_key(|(_, spare)| spare.pages.len())?;
        Some(left.remove(place).pages)
    }

    /// Keeps pages; drops the oldest if all together exceed the limit.
    fn return_pages(&self, pages: MmapMut) {
        if bytes_of(&pages) > self.bytes_max {
            return;
        }
        let mut left = self.lock_spares();
        left.push(Spare { pages, idle: false });
        let mut over = left.iter().map(|spare| bytes_of(&spare.pages)).sum::<u64>();
        let mut gone = 0;
        while over > self.bytes_max {
            over -= bytes_of(&left[gone].pages);
            gone += 1;
        }
        let gone: Vec<Spare> = left.drain(..gone).collect();
        // The system frees them outside the lock.
        drop(left);
        drop(gone);
    }

    /// Returns the pages to the system that no content has used since the previous call.
    pub(crate) fn drop_idle(&self) {
        let mut left = self.lock_spares();
        let (idle, kept) = left
            .drain(..)
            .partition::<Vec<Spare>, _>(|spare| spare.idle);
        let idler = |spare: Spare| Spare {
            idle: true,
            ..spare
        };
        left.extend(kept.into_iter().map(idler));
        drop(left);
        drop(idle);
    }

    /// Returns the bytes that it keeps.
    pub(crate) fn spare_bytes(&self) -> u64 {
        let left = self.lock_spares();
        left.iter().map(|spare| bytes_of(&spare.pages)).sum()
    }

    fn lock_spares(&self) -> MutexGuard<'_, Vec<Spare>> {
        // Each change is complete before anything can panic, so a poisoned lock is sound.
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes_of(pages: &MmapMut) -> u64 {
    pages.len() as u64
}

/// Pages in use. Their content is undefined at first, so users must write bytes before they read
/// them. Dropping them makes them spare.
#[derive(Debug)]
pub(crate) struct Pages {
    // `None` only during the drop.
    pages: Option<MmapMut>,
    spare: Weak<SparePages>,
}

impl Pages {
    fn new(length: u64, spare: &Arc<SparePages>) -> Option<Self> {
        let pages = spare.take_fitting(length).or_else(|| map_pages(length))?;
        Some(Self {
            pages: Some(pages),
            spare: Arc::downgrade(spare),
        })
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.pages.as_deref_mut().unwrap_or_default()
    }
}

impl AsRef<[u8]> for Pages {
    fn as_ref(&self) -> &[u8] {
        self.pages.as_deref().unwrap_or_default()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if let (Some(pages), Some(spare)) = (self.pages.take(), self.spare.upgrade()) {
            spare.return_pages(pages);
        }
    }
}

fn map_pages(length: u64) -> Option<MmapMut> {
    let length = usize::try_from(length).ok()?;
    let pages = MmapOptions::new().len(length).map_anon().ok()?;
    #[cfg(target_os = "linux")]
    // A system without large pages uses small ones.
    let _ = pages.advise(memmap2::Advice::HugePage);
    Some(pages)
}

/// Memory for some content, filled from its beginning.
#[derive(Debug)]
pub(crate) enum ContentBuffer {
    /// A vector as long as the received bytes.
    Heap(Vec<u8>),
    /// Pages at least as long as the content.
    Pages {
        pages: Pages,
        /// The length of the content in bytes.
        length: usize,
        /// The received bytes.
        filled: usize,
    },
}

impl ContentBuffer {
    /// Creates memory for `length` bytes; the system commits none of it yet.
    pub(crate) fn new(length: u64, spare: &Arc<SparePages>) -> Self {
        let wanted = (length >= PAGES_BYTES_MIN).then(|| Pages::new(length, spare));
        match (wanted.flatten(), usize::try_from(length)) {
            (Some(pages), Ok(length)) => Self::Pages {
                pages,
                length,
                filled: 0,
            },
            _ => Self::Heap(Vec::new()),
        }
    }

    /// Returns the received bytes.
    pub(crate) fn filled_bytes(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pages { pages, filled, .. } => &pages.as_ref()[..*filled],
        }
    }

    /// Appends the next bytes.
    ///
    /// # Panics
    /// If there is no space for them.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        if let Self::Heap(held) = self {
            held.extend_from_slice(bytes);
            return;
        }
        self.unfilled_mut()[..bytes.len()].copy_from_slice(bytes);
        self.advance_filled(bytes.len());
    }

    /// Drops the bytes beyond the first `length`.
    pub(crate) fn truncate(&mut self, length: usize) {
        match self {
            Self::Heap(bytes) => bytes.truncate(length),
            Self::Pages { filled, .. } => *filled = length.min(*filled),
        }
    }

    /// Copies the received bytes to memory for another length, into which they must fit.
    pub(crate) fn copy_with_length(&self, length: u64, spare: &Arc<SparePages>) -> Self {
        let mut room = Self::new(length, spare);
        room.extend(self.filled_bytes());
        room
    }

    /// Returns the memory after the received bytes; empty on the heap, which grows instead.
    pub(crate) fn unfilled_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(_) => &mut [],
            Self::Pages {
                pages,
                length,
                filled,
            } => &mut pages.bytes_mut()[*filled..*length],
        }
    }

    /// Counts `bytes` more as received, which the caller must have written to the rest.
    ///
    /// # Panics
    /// If the rest is shorter.
    pub(crate) fn advance_filled(&mut self, bytes: usize) {
        assert!(
            bytes <= self.unfilled_mut().len(),
            "no more is written than there is room for"
        );
        if let Self::Pages { filled, .. } = self {
            *filled += bytes;
        }
    }

    /// Converts the received bytes without a copy.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self {
            Self::Heap(bytes) => Bytes::from(bytes),
            Self::Pages { pages, filled, .. } => Bytes::from_owner(pages).slice(..filled),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spare(pages: u64) -> Arc<SparePages> {
        Arc::new(SparePages::new(pages * PAGES_BYTES_MIN))
    }

    fn content(length: u64, spare: &Arc<SparePages>) -> Bytes {
        let mut room = ContentBuffer::new(length, spare);
        let bytes = room.unfilled_mut().len();
        room.unfilled_mut().fill(1);
        room.advance_filled(bytes);
        room.into_bytes()
    }

    #[test]
    fn either_kind_holds_what_came_and_no_more() {
        let spare = spare(8);
        for length in [10, PAGES_BYTES_MIN] {
            let mut room = ContentBuffer::new(length, &spare);
            room.extend(b"abcdef");
            room.truncate(4);
            room.truncate(9);
            room.extend(b"g");
            assert_eq!(room.filled_bytes(), b"abcdg");
            let room = room.copy_with_length(length * 2, &spare);
            assert_eq!(&room.into_bytes()[..], b"abcdg");
        }
    }

    #[test]
    fn long_content_is_written_where_it_stays() {
        let mut room = ContentBuffer::new(PAGES_BYTES_MIN, &spare(1));
        room.extend(b"ab");
        assert_eq!(room.unfilled_mut().len() as u64, PAGES_BYTES_MIN - 2);
        room.unfilled_mut()[..2].copy_from_slice(b"cd");
        room.advance_filled(2);
        assert_eq!(&room.into_bytes()[..], b"abcd");
        assert!(ContentBuffer::new(3, &spare(1)).unfilled_mut().is_empty());
    }

    #[test]
    fn pages_of_content_that_went_are_those_of_the_next() {
        let spare = spare(8);
        let first = content(2 * PAGES_BYTES_MIN, &spare);
        let (at, part) = (first.as_ptr(), first.slice(..5));
        drop(first);
        assert_eq!(spare.spare_bytes(), 0, "a part of it is still wanted");
        drop(part);
        assert_eq!(spare.spare_bytes(), 2 * PAGES_BYTES_MIN);
        // What was there before is not seen: nothing has come yet.
        let room = ContentBuffer::new(PAGES_BYTES_MIN, &spare);
        assert!(room.filled_bytes().is_empty());
        let again = content(PAGES_BYTES_MIN + 1, &spare);
        assert_ne!(again.as_ptr(), at, "they are another's now");
        drop(room);
        let again = content(PAGES_BYTES_MIN + 1, &spare);
        assert_eq!(again.as_ptr(), at);
        assert_eq!(again.len() as u64, PAGES_BYTES_MIN + 1);
    }

    #[test]
    fn spare_pages_are_bounded_and_go_back_when_nobody_wants_them() {
        let spare = spare(4);
        let short = content(PAGES_BYTES_MIN, &spare);
        let middle = content(2 * PAGES_BYTES_MIN, &spare);
        let other = content(2 * PAGES_BYTES_MIN, &spare);
        let long = content(5 * PAGES_BYTES_MIN, &spare);
        drop(long);
        assert_eq!(spare.spare_bytes(), 0, "alone it is over the limit");
        drop((short, middle));
        drop(other);
        assert_eq!(spare.spare_bytes(), 4 * PAGES_BYTES_MIN, "the oldest went");
        // Far too long for it.
        assert!(spare.take_fitting(PAGES_BYTES_MIN / 2).is_none());
        spare.drop_idle();
        let wanted = content(2 * PAGES_BYTES_MIN, &spare);
        spare.drop_idle();
        assert_eq!(spare.spare_bytes(), 0);
        drop(wanted);
        assert_eq!(spare.spare_bytes(), 2 * PAGES_BYTES_MIN);
        spare.drop_idle();
        assert_eq!(spare.spare_bytes(), 2 * PAGES_BYTES_MIN);
    }

    #[test]
    fn pages_outlive_whoever_keeps_spare_ones() {
        let spare = spare(4);
        let bytes = content(PAGES_BYTES_MIN, &spare);
        drop(spare);
        assert_eq!(bytes[0], 1);
    }
}
