//! Reports the contents of a group's memories, and the moves between them since the last report.

use std::collections::BTreeMap;

use souk_memory::holdings::PoolUse;
use souk_memory::location::Location;
use souk_memory::paths::PathBytes;
use souk_memory::space::MoveTotals;

use super::DeviceGroup;
use super::links::device_place;
use crate::execution::report::MemoryReport;

/// The total moves so far, and the bytes in and out of each device.
pub(super) type MovedBytes = (MoveTotals, Vec<PathBytes>);

impl DeviceGroup {
    /// Returns the total moves so far, and the bytes in and out of each device.
    pub(super) fn moved_bytes(&self) -> MovedBytes {
        let space = self.memories.lock();
        let devices = (0..self.members.len()).map(device_place);
        (
            space.move_totals(),
            devices.map(|place| space.path_bytes(place)).collect(),
        )
    }

    /// Returns the state of the memories and the moves since `since`, which it sets to now.
    pub(super) fn memory_report(&self, since: &mut MovedBytes) -> BTreeMap<String, MemoryReport> {
        let now = self.moved_bytes();
        let (since, over) = std::mem::replace(since, now.clone());
        let (moved, now) = now;
        let space = self.memories.lock();
        let host = space.pool_use(Location::Host);
        let of_devices = (0..).zip(&self.members).map(|(index, member)| {
            let place = Location::device(index);
            let over = now[usize::from(index)].bytes_since(&over[usize::from(index)]);
            let held = build_memory_report(space.pool_use(place), over);
            (member.label.clone(), held)
        });
        let whole = MemoryReport {
            copied_bytes: moved.copied_bytes - since.copied_bytes,
            shared_bytes: moved.shared_bytes - since.shared_bytes,
            spilled_bytes: moved.spilled_bytes - since.spilled_bytes,
            restored_bytes: moved.restored_bytes - since.restored_bytes,
            ..build_memory_report(host, moved.over.bytes_since(&since.over))
        };
        of_devices.chain([(self.label.clone(), whole)]).collect()
    }
}

fn build_memory_report(pool: PoolUse, over: PathBytes) -> MemoryReport {
    MemoryReport {
        nvlink_bytes: over.nvlink,
        pcie_bytes: over.pcie,
        host_bytes: over.host,
        unified_bytes: over.unified,
        limit_bytes: pool.limit,
        used_bytes: pool.used,
        peak_bytes: pool.peak,
        ..MemoryReport::default()
    }
}
