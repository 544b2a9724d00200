//! An allocator that counts the bytes in use, for tests of memory use. Its counts are the same on
//! every machine, unlike an operating system's figures.

#![expect(unsafe_code, reason = "an allocator can't be written without")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The system's allocator with a count of the bytes in use. A test must make it its
/// `global_allocator`.
pub struct CountingAllocator {
    in_use: AtomicUsize,
    peak: AtomicUsize,
    /// A test must hold this lock while it counts, because the tests of a program run concurrently.
    alone: Mutex<()>,
}

impl CountingAllocator {
    /// Creates an allocator with zero counts.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a static needs a constant")]
    pub const fn new() -> Self {
        Self {
            in_use: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            alone: Mutex::new(()),
        }
    }

    /// Waits until no other test counts. You should hold the guard from the beginning of your test,
    /// so that the preparations of other tests do not count.
    pub fn wait_alone(&self) -> MutexGuard<'_, ()> {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a closure, and returns its peak bytes and the bytes that it left in use, both in
    /// addition to those in use before.
    pub fn count_bytes<T>(&self, run: impl FnOnce() -> T) -> (T, CountedBytes) {
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

/// Bytes that a closure used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedBytes {
    /// Peak bytes in use.
    pub peak: usize,
    /// Bytes still in use at the end.
    pub left: usize,
}

// SAFETY: every call passes its arguments unchanged to the system's allocator.
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
