//! An allocator that counts, for tests of how much memory something takes: what it counts is the
//! same on every machine, as the figures of an operating system are not.

#![expect(unsafe_code, reason = "an allocator can't be written without")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The system's allocator, which counts the bytes in use. A test makes it its `global_allocator`.
pub struct CountingAllocator {
    in_use: AtomicUsize,
    peak: AtomicUsize,
    /// Held by a test that counts: the tests of a program run at the same time.
    alone: Mutex<()>,
}

impl CountingAllocator {
    /// An allocator that counted nothing yet.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a static needs a constant")]
    pub const fn new() -> Self {
        Self {
            in_use: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            alone: Mutex::new(()),
        }
    }

    /// Waits until no other test counts; a test that counts holds this from its beginning on, so
    /// that what others prepare is not counted with its own.
    pub fn wait_alone(&self) -> MutexGuard<'_, ()> {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs something; gives the most bytes it had at once and the bytes it left in use, both
    /// beyond those in use before.
    pub fn count<T>(&self, run: impl FnOnce() -> T) -> (T, CountedBytes) {
        let before = self.in_use.load(Ordering::SeqCst);
        self.peak.store(before, Ordering::SeqCst);
        let made = run();
        let beyond = |bytes: &AtomicUsize| bytes.load(Ordering::SeqCst).saturating_sub(before);
        let counted = CountedBytes {
            peak: beyond(&self.peak),
            left: beyond(&self.in_use),
        };
        (made, counted)
    }

    fn add(&self, bytes: usize) {
        let in_use = self.in_use.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.peak.fetch_max(in_use, Ordering::SeqCst);
    }
}

/// Bytes that something took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedBytes {
    /// The most at once.
    pub peak: usize,
    /// Those still in use when it ended.
    pub left: usize,
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size());
        // SAFETY: the caller keeps alloc's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size());
        // SAFETY: the caller keeps alloc_zeroed's contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        self.in_use.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller keeps dealloc's contract.
        unsafe { System.dealloc(at, layout) }
    }
}
