//! Memory for one content on its way here, and pages of content that went.
//!
//! Short content grows on the heap as it comes. Long content has pages of its own, large ones where
//! the system has them: touching a gigabyte page by page costs more than moving it. A page is taken
//! when its first byte is written, so a length that somebody states reserves addresses and nothing
//! else, and bytes can be read to where they stay.
//!
//! Taking a page is dear all the same: the system clears it, and under a hypervisor the machine
//! below does too. What long content leaves behind is therefore kept for the next, within a limit,
//! until nobody has wanted it for a while.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use memmap2::{MmapMut, MmapOptions};

/// Content this long has pages of its own: below it they cost more than they save.
const PAGES_BYTES_MIN: u64 = 4 << 20;

/// A content is not given spare pages that are longer than so many of it: what lies behind it
/// would be lost to others as long as it stays.
const SPARE_TIMES_MAX: u64 = 2;

/// Pages that content left behind.
#[derive(Debug)]
pub(crate) struct SparePages {
    bytes_max: u64,
    /// In the order in which they were left, the oldest first.
    left: Mutex<Vec<Spare>>,
}

#[derive(Debug)]
struct Spare {
    pages: MmapMut,
    /// Nobody has wanted them for a round of [`SparePages::age`].
    idle: bool,
}

impl SparePages {
    /// Keeps at most so many bytes.
    pub(crate) fn new(bytes_max: u64) -> Self {
        let left = Mutex::default();
        Self { bytes_max, left }
    }

    /// The shortest that content of this length fits in.
    fn take(&self, length: u64) -> Option<MmapMut> {
        let longest = length.saturating_mul(SPARE_TIMES_MAX);
        let mut left = self.left();
        let fits = |spare: &Spare| (length..=longest).contains(&bytes_of(&spare.pages));
        let fitting = left.iter().enumerate().filter(|(_, spare)| fits(spare));
        let (place, _) = fitting.min_by_key(|(_, spare)| spare.pages.len())?;
        Some(left.remove(place).pages)
    }

    /// Keeps pages, in place of the oldest if there is not room for all.
    fn leave(&self, pages: MmapMut) {
        if bytes_of(&pages) > self.bytes_max {
            return;
        }
        let mut left = self.left();
        left.push(Spare { pages, idle: false });
        let mut over = left.iter().map(|spare| bytes_of(&spare.pages)).sum::<u64>();
        let mut gone = 0;
        while over > self.bytes_max {
            over -= bytes_of(&left[gone].pages);
            gone += 1;
        }
        let gone: Vec<Spare> = left.drain(..gone).collect();
        // The system takes them back without the lock.
        drop(left);
        drop(gone);
    }

    /// Gives back to the system what nobody has wanted since this was called before.
    pub(crate) fn age(&self) {
        let mut left = self.left();
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

    /// How many bytes are kept.
    pub(crate) fn bytes(&self) -> u64 {
        let left = self.left();
        left.iter().map(|spare| bytes_of(&spare.pages)).sum()
    }

    fn left(&self) -> MutexGuard<'_, Vec<Spare>> {
        // Each change is whole before anything can panic, so a poisoned lock is sound.
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes_of(pages: &MmapMut) -> u64 {
    pages.len() as u64
}

/// Pages in use; what they held before is whatever it was. They are left to the next content when
/// this is dropped.
#[derive(Debug)]
pub(crate) struct Pages {
    // None only while this is dropped.
    pages: Option<MmapMut>,
    spare: Weak<SparePages>,
}

impl Pages {
    fn new(length: u64, spare: &Arc<SparePages>) -> Option<Self> {
        let pages = spare.take(length).or_else(|| mapped(length))?;
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
            spare.leave(pages);
        }
    }
}

fn mapped(length: u64) -> Option<MmapMut> {
    let length = usize::try_from(length).ok()?;
    let pages = MmapOptions::new().len(length).map_anon().ok()?;
    #[cfg(target_os = "linux")]
    // A system without large pages gives small ones.
    let _ = pages.advise(memmap2::Advice::HugePage);
    Some(pages)
}

/// Room for a content, filled from its beginning.
#[derive(Debug)]
pub(crate) enum Room {
    /// As long as what has come.
    Heap(Vec<u8>),
    /// As long as the content or longer.
    Pages {
        pages: Pages,
        /// The length of the content.
        length: usize,
        /// How much of it has come.
        filled: usize,
    },
}

impl Room {
    /// Room for so many bytes; of the system none of them is taken yet.
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

    /// What has come.
    pub(crate) fn filled(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pages { pages, filled, .. } => &pages.as_ref()[..*filled],
        }
    }

    /// Takes in what comes next.
    ///
    /// # Panics
    /// If there is no room for it.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        if let Self::Heap(held) = self {
            held.extend_from_slice(bytes);
            return;
        }
        self.rest()[..bytes.len()].copy_from_slice(bytes);
        self.advance(bytes.len());
    }

    /// Lets go of what came behind the first `length` bytes.
    pub(crate) fn truncate(&mut self, length: usize) {
        match self {
            Self::Heap(bytes) => bytes.truncate(length),
            Self::Pages { filled, .. } => *filled = length.min(*filled),
        }
    }

    /// The same bytes in room for another length.
    pub(crate) fn resized(&self, length: u64, spare: &Arc<SparePages>) -> Self {
        let mut room = Self::new(length, spare);
        room.extend(self.filled());
        room
    }

    /// The room behind what has come; none on the heap, where it grows.
    pub(crate) fn rest(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(_) => &mut [],
            Self::Pages {
                pages,
                length,
                filled,
            } => &mut pages.bytes_mut()[*filled..*length],
        }
    }

    /// So many bytes more have been written to the rest.
    ///
    /// # Panics
    /// If the rest has not as many.
    pub(crate) fn advance(&mut self, bytes: usize) {
        assert!(
            bytes <= self.rest().len(),
            "no more is written than there is room for"
        );
        if let Self::Pages { filled, .. } = self {
            *filled += bytes;
        }
    }

    /// What has come, for good.
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
        let mut room = Room::new(length, spare);
        let bytes = room.rest().len();
        room.rest().fill(1);
        room.advance(bytes);
        room.into_bytes()
    }

    #[test]
    fn either_kind_holds_what_came_and_no_more() {
        let spare = spare(8);
        for length in [10, PAGES_BYTES_MIN] {
            let mut room = Room::new(length, &spare);
            room.extend(b"abcdef");
            room.truncate(4);
            room.truncate(9);
            room.extend(b"g");
            assert_eq!(room.filled(), b"abcdg");
            let room = room.resized(length * 2, &spare);
            assert_eq!(&room.into_bytes()[..], b"abcdg");
        }
    }

    #[test]
    fn long_content_is_written_where_it_stays() {
        let mut room = Room::new(PAGES_BYTES_MIN, &spare(1));
        room.extend(b"ab");
        assert_eq!(room.rest().len() as u64, PAGES_BYTES_MIN - 2);
        room.rest()[..2].copy_from_slice(b"cd");
        room.advance(2);
        assert_eq!(&room.into_bytes()[..], b"abcd");
        assert!(Room::new(3, &spare(1)).rest().is_empty());
    }

    #[test]
    fn pages_of_content_that_went_are_those_of_the_next() {
        let spare = spare(8);
        let first = content(2 * PAGES_BYTES_MIN, &spare);
        let (at, part) = (first.as_ptr(), first.slice(..5));
        drop(first);
        assert_eq!(spare.bytes(), 0, "a part of it is still wanted");
        drop(part);
        assert_eq!(spare.bytes(), 2 * PAGES_BYTES_MIN);
        // What was there before is not seen: nothing has come yet.
        let room = Room::new(PAGES_BYTES_MIN, &spare);
        assert!(room.filled().is_empty());
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
        assert_eq!(spare.bytes(), 0, "alone it is over the limit");
        drop((short, middle));
        drop(other);
        assert_eq!(spare.bytes(), 4 * PAGES_BYTES_MIN, "the oldest went");
        // Far too long for it.
        assert!(spare.take(PAGES_BYTES_MIN / 2).is_none());
        spare.age();
        let wanted = content(2 * PAGES_BYTES_MIN, &spare);
        spare.age();
        assert_eq!(spare.bytes(), 0);
        drop(wanted);
        assert_eq!(spare.bytes(), 2 * PAGES_BYTES_MIN);
        spare.age();
        assert_eq!(spare.bytes(), 2 * PAGES_BYTES_MIN);
    }

    #[test]
    fn pages_outlive_whoever_keeps_spare_ones() {
        let spare = spare(4);
        let bytes = content(PAGES_BYTES_MIN, &spare);
        drop(spare);
        assert_eq!(bytes[0], 1);
    }
}
