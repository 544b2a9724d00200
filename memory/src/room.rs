//! Memory for one content on its way here.
//!
//! Short content grows on the heap as it comes. Long content has pages of its own, large ones where
//! the system has them: touching a gigabyte page by page costs more than moving it. A page is taken
//! when its first byte is written, so a length that somebody states reserves addresses and nothing
//! else, and bytes can be read to where they stay.

use bytes::Bytes;
use memmap2::{MmapMut, MmapOptions};

/// Content this long has pages of its own: below it they cost more than they save.
const PAGES_BYTES_MIN: u64 = 4 << 20;

/// Room for a content, filled from its beginning.
#[derive(Debug)]
pub(crate) enum Room {
    /// As long as what has come.
    Heap(Vec<u8>),
    /// As long as the content, of which so much has come.
    Pages(MmapMut, usize),
}

impl Room {
    /// Room for so many bytes; none of them is taken yet.
    pub(crate) fn new(length: u64) -> Self {
        let wanted = usize::try_from(length).ok();
        let wanted = wanted.filter(|_| length >= PAGES_BYTES_MIN);
        let pages = wanted.and_then(|length| MmapOptions::new().len(length).map_anon().ok());
        let Some(pages) = pages else {
            return Self::Heap(Vec::new());
        };
        #[cfg(target_os = "linux")]
        // A system without large pages gives small ones.
        let _ = pages.advise(memmap2::Advice::HugePage);
        Self::Pages(pages, 0)
    }

    /// What has come.
    pub(crate) fn filled(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pages(pages, filled) => &pages[..*filled],
        }
    }

    /// Takes in what comes next.
    ///
    /// # Panics
    /// If there is no room for it.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        match self {
            Self::Heap(held) => held.extend_from_slice(bytes),
            Self::Pages(pages, filled) => {
                let end = *filled + bytes.len();
                pages[*filled..end].copy_from_slice(bytes);
                *filled = end;
            }
        }
    }

    /// Lets go of what came behind the first `length` bytes.
    pub(crate) fn truncate(&mut self, length: usize) {
        match self {
            Self::Heap(bytes) => bytes.truncate(length),
            Self::Pages(_, filled) => *filled = length.min(*filled),
        }
    }

    /// The same bytes in room for another length.
    pub(crate) fn resized(&self, length: u64) -> Self {
        let mut room = Self::new(length);
        room.extend(self.filled());
        room
    }

    /// The room behind what has come; none on the heap, where it grows.
    pub(crate) fn rest(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(_) => &mut [],
            Self::Pages(pages, filled) => &mut pages[*filled..],
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
        if let Self::Pages(_, filled) = self {
            *filled += bytes;
        }
    }

    /// What has come, for good.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self {
            Self::Heap(bytes) => Bytes::from(bytes),
            Self::Pages(pages, filled) => Bytes::from_owner(pages).slice(..filled),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_kind_holds_what_came_and_no_more() {
        for length in [10, PAGES_BYTES_MIN] {
            let mut room = Room::new(length);
            room.extend(b"abcdef");
            room.truncate(4);
            room.truncate(9);
            room.extend(b"g");
            assert_eq!(room.filled(), b"abcdg");
            let room = room.resized(length * 2);
            assert_eq!(&room.into_bytes()[..], b"abcdg");
        }
    }

    #[test]
    fn long_content_is_written_where_it_stays() {
        let mut room = Room::new(PAGES_BYTES_MIN);
        room.extend(b"ab");
        assert_eq!(room.rest().len() as u64, PAGES_BYTES_MIN - 2);
        room.rest()[..2].copy_from_slice(b"cd");
        room.advance(2);
        assert_eq!(&room.into_bytes()[..], b"abcd");
        assert!(Room::new(3).rest().is_empty());
    }
}
