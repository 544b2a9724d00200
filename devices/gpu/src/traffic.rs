//! Counts the copies between a GPU's memory and the memory of the host or of another GPU, and their
//! bytes. `context.rs` records copies from and to the host, `memory.rs` records copies from another
//! GPU, and [`TrafficTotals`] reports the sums.

use std::sync::atomic::{AtomicU64, Ordering};

/// The bytes copied into and out of a GPU's memory, and the number of copies, since the device was
/// opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficTotals {
    /// Bytes from the host: tensors, and the parameters of kernels (`p` in the shaders).
    pub from_host: u64,
    /// Bytes to the host.
    pub to_host: u64,
    /// Bytes directly from another GPU, not through the host.
    pub from_peers: u64,
    /// The number of copies in all directions. Several tensors in one transfer count as one copy.
    pub copies: u64,
}

/// The counters of one device. Any thread can add to them.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    from_host: AtomicU64,
    to_host: AtomicU64,
    from_peers: AtomicU64,
    copies: AtomicU64,
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CopyDirection {
    FromHost,
    ToHost,
    FromPeer,
}

impl Traffic {
    /// Adds one copy of `bytes` bytes in this direction.
    pub fn record_transfer(&self, way: CopyDirection, bytes: u64) {
        let counter = match way {
            CopyDirection::FromHost => &self.from_host,
            CopyDirection::ToHost => &self.to_host,
            CopyDirection::FromPeer => &self.from_peers,
        };
        counter.fetch_add(bytes, Ordering::Relaxed);
        self.copies.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the current sums.
    pub fn traffic_totals(&self) -> TrafficTotals {
        TrafficTotals {
            from_host: self.from_host.load(Ordering::Relaxed),
            to_host: self.to_host.load(Ordering::Relaxed),
            from_peers: self.from_peers.load(Ordering::Relaxed),
            copies: self.copies.load(Ordering::Relaxed),
        }
    }
}
