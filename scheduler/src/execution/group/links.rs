//! Computes the links between the devices of a group, with their latency and bandwidth as plans use
//! them, from the present paths between the memories.

use std::time::Duration;

use souk_memory::location::Location;
use souk_memory::paths::{Path, PathKind, Paths, Route};
use souk_vocabulary::taxonomy::ProcessorKind;

use super::GroupDevice;
use super::offers::all_emulated;
use crate::execution::worker_pool::WorkerPool;
use crate::planning::offer::{Link, Links};

/// Assumed handover time between emulated devices: mostly the wake-up of a thread. It is constant,
/// because the time of emulated devices must not depend on this machine's load.
pub(super) const HAND_OVER: Duration = Duration::from_micros(20);
/// Upper limit of a measured handover time, because a machine that is busy during the measurement
/// will not always be.
const HAND_OVER_MAX: Duration = Duration::from_micros(200);
/// Length of the tensor for which plans choose the path between two devices: an activation of a
/// batch of a small transformer. The run chooses by the length of each tensor.
const WAY_BYTES: u64 = 1 << 20;

pub(super) fn device_place(device: usize) -> Location {
    Location::device(u16::try_from(device).expect("devices are few"))
}

/// Returns the handover time to another device's thread: measured, unless all devices are emulated.
pub(super) fn hand_over(members: &[GroupDevice], pool: &WorkerPool) -> Duration {
    if all_emulated(members) {
        return HAND_OVER;
    }
    let measured = pool.measure_hand_over().ok().flatten();
    measured.map_or(HAND_OVER, |measured| measured.min(HAND_OVER_MAX))
}

/// Returns the links between devices by the present paths: see [`link`]. The host replaces the
/// buyer, because a job's inputs and outputs are there.
pub(super) fn build_links(members: &[GroupDevice], hand_over: Duration, paths: &Paths) -> Links {
    let devices = 0..members.len();
    let row = |from: usize| -> Vec<Link> {
        let to = 0..members.len();
        to.map(|to| link(members, hand_over, paths, [from, to]))
            .collect()
    };
    let host = |device: usize| {
        let way = paths.fastest_route(Location::Host, device_place(device), WAY_BYTES);
        let way = way.and_then(|route| sum(paths, &route));
        way.unwrap_or(Link {
            latency_seconds: 0.0,
            bytes_per_second: f64::INFINITY,
        })
    };
    Links {
        buyer: devices.clone().map(host).collect(),
        between: devices.map(row).collect(),
    }
}

/// Returns the link between two devices. Devices that use tensors in host memory exchange only a
/// signal, and the slower of the two reads or writes the tensor once. If one has a memory of its
/// own, the link adds the path to it.
fn link(
    members: &[GroupDevice],
    hand_over: Duration,
    paths: &Paths,
    [from, to]: [usize; 2],
) -> Link {
    let rate = |device: usize| members[device].processor.profile().memory.bytes_per_second;
    let word = Link {
        latency_seconds: hand_over.as_secs_f64(),
        bytes_per_second: rate(from).min(rate(to)),
    };
    if from == to {
        return word;
    }
    let way = paths.fastest_route(device_place(from), device_place(to), WAY_BYTES);
    let way = way.and_then(|route| sum(paths, &route));
    way.map_or(word, |way| Link {
        latency_seconds: word.latency_seconds + way.latency_seconds,
        bytes_per_second: way.bytes_per_second,
    })
}

/// Combines a route into one link; none if its hops move no bytes.
fn sum(paths: &Paths, route: &Route) -> Option<Link> {
    let (mut latency, mut seconds_per_byte) = (0.0, 0.0);
    for hop in &route.hops {
        let path = paths.direct_path(hop.from, hop.to, WAY_BYTES)?;
        if !matches!(path.kind, PathKind::Unified | PathKind::Shared) {
            latency += path.latency.as_secs_f64();
            seconds_per_byte += 1.0 / path.bytes_per_second;
        }
    }
    (seconds_per_byte > 0.0).then(|| Link {
        latency_seconds: latency,
        bytes_per_second: 1.0 / seconds_per_byte,
    })
}

/// Returns whether plans for some links remain valid for others.
pub(super) fn are_links_alike(one: &Links, other: &Links, factor: f64) -> bool {
    let all = |links: &Links| {
        let between = links.between.iter().flatten();
        let each = links.buyer.iter().chain(between);
        each.map(|link| link.transfer_seconds(WAY_BYTES))
            .collect::<Vec<f64>>()
    };
    let mut pairs = all(one).into_iter().zip(all(other));
    pairs.all(|(one, other)| one == other || (1.0 / factor..=factor).contains(&(one / other)))
}

/// Returns the maximum bytes of a device: the free bytes of its own memory, or the bytes of host
/// memory that it can address.
pub(super) fn limit_of(member: &GroupDevice, host_bytes_max: u64) -> u64 {
    match member.processor.device_memory() {
        Some(_) => member.processor.memory_free_bytes(),
        None => host_bytes_max.min(member.processor.profile().memory.bytes),
    }
}

/// Returns the path of a processor that uses tensors in this process's memory: a CPU by its
/// addresses, other devices as part of the same chip.
pub(super) fn shared_memory_path(member: &GroupDevice) -> Path {
    let kind = match member.processor.profile().kind {
        ProcessorKind::Cpu { .. } | ProcessorKind::Wasm => PathKind::Shared,
        _ => PathKind::Unified,
    };
    Path {
        kind,
        latency: Duration::ZERO,
        bytes_per_second: member.processor.profile().memory.bytes_per_second.max(1.0),
    }
}
