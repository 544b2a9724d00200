//! Records the timeline of one run on a group: what each device and each path between memories did
//! when. All threads of the run write to it.

use std::sync::{Arc, Mutex};

use souk_memory::location::{DeviceIndex, Location};
use souk_memory::paths::{Hop, PathKind};

use super::GroupDevice;
use crate::execution::lock::lock;
use crate::execution::task::Clock;
use crate::execution::timeline::{Span, SpanKind, Timeline, UnixMicros};

/// The timeline of a run in progress.
pub(super) struct RunLog {
    clock: Arc<Clock>,
    labels: Vec<String>,
    timeline: Mutex<Timeline>,
    /// Whether the log records moves by this machine's clock; false if all devices are emulated,
    /// because they have their own time.
    tells_moves: bool,
}

impl RunLog {
    pub fn new(members: &[GroupDevice], clock: Arc<Clock>, tells_moves: bool) -> Self {
        Self {
            clock,
            labels: members.iter().map(|member| member.label.clone()).collect(),
            timeline: Mutex::default(),
            tells_moves,
        }
    }

    pub fn now(&self) -> UnixMicros {
        (self.clock)()
    }

    /// Records a device's activity from one moment to another on its own lane.
    pub fn record_activity(&self, device: usize, name: &str, kind: SpanKind, at: [UnixMicros; 2]) {
        self.push(device, "run", name, kind, at);
    }

    /// Records a move from `begin` until now, on the lanes of the memories at both ends.
    pub fn record_move(&self, name: Option<&str>, hop: Hop, begin: UnixMicros) {
        if !self.tells_moves {
            return;
        }
        let at = [begin, self.now()];
        let name = name.unwrap_or("making room");
        let name = format!("{name} over {}", name_of(hop.kind));
        let ends = [
            (hop.from, SpanKind::TransferOut),
            (hop.to, SpanKind::TransferIn),
        ];
        for (end, kind) in ends {
            if let Location::Device(DeviceIndex(device)) = end {
                self.push(usize::from(device), "memory", &name, kind, at);
            }
        }
    }

    fn push(&self, device: usize, lane: &str, name: &str, kind: SpanKind, at: [UnixMicros; 2]) {
        let [start, end] = at;
        lock(&self.timeline).push(Span {
            device: self.labels[device].clone(),
            lane: lane.to_owned(),
            name: name.to_owned(),
            kind,
            start,
            end,
        });
    }

    /// Removes and returns the timeline so far.
    pub fn take_timeline(&self) -> Timeline {
        std::mem::take(&mut lock(&self.timeline))
    }
}

/// Returns the name of a path in traces.
fn name_of(kind: PathKind) -> &'static str {
    match kind {
        PathKind::NvLink => "NVLink",
        PathKind::Pcie { .. } => "PCIe",
        PathKind::Unified => "unified memory",
        PathKind::Shared => "shared memory",
        PathKind::HostCopy => "a copy by the host",
        PathKind::File => "a file",
        PathKind::Network(_) => "the network",
    }
}
