//! Counts the bytes that are copied between a GPU's memory and the host's or another GPU's, and the
//! number of copies. The context counts copies from and to the host, the module for resident
//! tensors those from another GPU, and [`TrafficTotals`] reports the sums.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that moved between a GPU's memory and others since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficTotals {
    /// From the host: tensors, and the sizes that kernels read.
    pub from_host: u64,
    /// To the host.
    pub to_host: u64,
    /// From another device, without passing the host.
    pub from_peers: u64,
    /// Number of copies; tensors that move together count as one.
    pub operations: u64,
}

/// The running counts of copies, which any thread can add to.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    from_host: AtomicU64,
    to_host: AtomicU64,
    from_peers: AtomicU64,
    operations: AtomicU64,
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CopyDirection {
    FromHost,
    ToHost,
    FromPeer,
}

impl Traffic {
    pub fn record_transfer(&self, way: CopyDirection, bytes: u64) {
        let counter = match way {
            CopyDirection::FromHost => &self.from_host,
            CopyDirection::ToHost => &self.to_host,
            CopyDirection::FromPeer => &self.from_peers,
        };
        counter.fetch_add(bytes, Ordering::Relaxed);
        self.operations.fetch_add(1, Ordering::Relaxed);
    }

    pub fn traffic_totals(&self) -> TrafficTotals {
        TrafficTotals {
            from_host: self.from_host.load(Ordering::Relaxed),
            to_host: self.to_host.load(Ordering::Relaxed),
            from_peers: self.from_peers.load(Ordering::Relaxed),
            operations: self.operations.load(Ordering::Relaxed),
        }
    }
}
