//! Measures the links between a device's memory and other memories (the host's and other devices'):
//! times small copies for the latency and large ones for the bandwidth, and takes the best of
//! several.
//!
//! A device can report a copy as done before it is. So each timed copy is followed by a small one
//! that is read back, which can only end after it; the time of the small one is subtracted.

use std::time::{Duration, Instant};

use souk_memory::Tensor;
use souk_memory::paths::{Path, PathKind};
use souk_vocabulary::links::Link;
use souk_vocabulary::processor::{Processor, RunError};
use souk_vocabulary::residency::{DeviceMemory, Resident};

/// Bytes of a copy that takes only latency.
const SMALL_BYTES: usize = 4 << 10;
/// Bytes of a copy that takes almost only bandwidth.
const LARGE_BYTES: usize = 64 << 20;
/// Bytes of the large copy for a quick table.
const LARGE_BYTES_QUICK: usize = 16 << 20;
/// A copy can take this fraction of a device's free memory; at most two are there at once.
const ROOM_PART: u64 = 4;
/// Number of copies of each size; the best counts.
const ROUNDS: usize = 5;

/// Measures the links between a device's memory and the host's, in both directions, and from each
/// of `others` that it has a link to. Returns none for a device that works in the host's memory.
///
/// # Errors
/// [`RunError`] if a device failed.
pub fn measure_links(
    device: &dyn Processor,
    others: &[&dyn Processor],
    quick: bool,
) -> Result<Vec<Link>, RunError> {
    let Some(memory) = device.device_memory() else {
        return Ok(Vec::new());
    };
    let room = others.iter().map(|other| other.memory_free_bytes());
    let room = room.fold(device.memory_free_bytes(), u64::min) / ROOM_PART;
    let wanted = if quick {
        LARGE_BYTES_QUICK
    } else {
        LARGE_BYTES
    };
    let large = wanted.min(usize::try_from(room).unwrap_or(usize::MAX));
    if large <= SMALL_BYTES {
        return Ok(Vec::new());
    }
    let [small, large] = [SMALL_BYTES, large].map(zero_tensor);
    let (name, host) = (&device.profile().name, "host");
    let row = |from: &str, to: &str, path: Path, [few, many]: [Duration; 2]| {
        let bytes = (large.bytes().len() - small.bytes().len()) as f64;
        let moving = many.saturating_sub(few).max(Duration::from_nanos(1));
        Link {
            from: from.to_owned(),
            to: to.to_owned(),
            over: describe_path(path.kind),
            bytes_per_second: bytes / moving.as_secs_f64(),
            latency_seconds: few.as_secs_f64(),
            modelled: device.profile().emulated,
        }
    };
    let back = shortest_times([&small, &large], |tensor| {
        read(&*memory.copy_from_host(tensor)?)
    })?;
    let ended = |took: [Duration; 2]| took.map(|it| it.saturating_sub(back[0]));
    let there = ended(shortest_times([&small, &large], |tensor| {
        time_host_copy(memory, tensor)
    })?);
    let mut links = vec![
        row(host, name, memory.host_link(), there),
        row(name, host, memory.host_link(), back),
    ];
    for other in others {
        let Some(from) = other.device_memory() else {
            continue;
        };
        if let Some(path) = memory.peer_link(from) {
            let took = shortest_times([&small, &large], |tensor| {
                time_peer_copy(memory, &*from.copy_from_host(tensor)?)
            })?;
            links.push(row(&other.profile().name, name, path, ended(took)));
        }
    }
    Ok(links)
}

/// Describes a path's kind.
fn describe_path(kind: PathKind) -> String {
    match kind {
        PathKind::Unified | PathKind::Shared => "one memory".to_owned(),
        PathKind::NvLink => "a direct link".to_owned(),
        PathKind::Pcie { generation, lanes } => format!("PCI Express {generation} x{lanes}"),
        PathKind::HostCopy => "a copy by the host".to_owned(),
        PathKind::File => "a file".to_owned(),
        PathKind::Network(_) => "a network".to_owned(),
    }
}

fn zero_tensor(bytes: usize) -> Tensor {
    let count = bytes / size_of::<f32>();
    Tensor::from_vec([count], vec![0f32; count]).expect("as many values as the shape has")
}

/// Returns the shortest time for each of two tensors.
fn shortest_times(
    tensors: [&Tensor; 2],
    once: impl Fn(&Tensor) -> Result<Duration, RunError>,
) -> Result<[Duration; 2], RunError> {
    let mut best = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        for (best, tensor) in best.iter_mut().zip(tensors) {
            *best = once(tensor)?.min(*best);
        }
    }
    Ok(best)
}

/// Waits until a device has completed all operations: copies a small tensor there and back.
fn wait_until_idle(memory: &dyn DeviceMemory) -> Result<(), RunError> {
    let little = Tensor::from_vec([1], vec![0f32]).expect("one value");
    memory.copy_from_host(&little)?.to_host().map(|_| ())
}

fn time_host_copy(memory: &dyn DeviceMemory, tensor: &Tensor) -> Result<Duration, RunError> {
    let start = Instant::now();
    let _there = memory.copy_from_host(tensor)?;
    wait_until_idle(memory)?;
    Ok(start.elapsed())
}

fn read(there: &dyn Resident) -> Result<Duration, RunError> {
    // Read it once before, because it may not have arrived.
    there.to_host()?;
    let start = Instant::now();
    there.to_host()?;
    Ok(start.elapsed())
}

fn time_peer_copy(memory: &dyn DeviceMemory, from: &dyn Resident) -> Result<Duration, RunError> {
    from.to_host()?;
    let start = Instant::now();
    let _here = memory.copy_from_peer(from)?;
    wait_until_idle(memory)?;
    Ok(start.elapsed())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use souk_cpu::Cpu;
    use souk_emulated::{EmulatedConfig, EmulatedDevice};
    use souk_vocabulary::catalogue::find_processor;

    use super::*;

    /// The CPU that results are held against.
    fn cpu() -> Cpu {
        Cpu::new(souk_testing::cpu_profile(), std::num::NonZeroUsize::MIN)
    }

    fn emulated(name: &str) -> EmulatedDevice {
        let profile = find_processor(name).unwrap().clone();
        EmulatedDevice::new(profile, Arc::new(cpu()), EmulatedConfig::default()).unwrap()
    }

    fn are_figures(links: &[Link]) {
        for link in links {
            let is_figure = link.bytes_per_second.is_finite() && link.bytes_per_second > 0.0;
            assert!(is_figure && link.latency_seconds >= 0.0, "{link:?}");
        }
    }

    #[test]
    fn both_ways_to_the_host_and_those_from_linked_devices_are_timed() {
        let (one, two) = (emulated("nvidia-h100-sxm"), emulated("nvidia-h200-sxm"));
        let (free, apart) = (one.memory_free_bytes(), emulated("nvidia-t4"));
        let found = measure_links(&one, &[&two, &apart], true).unwrap();
        let ends = |link: &Link| (link.from.clone(), link.to.clone(), link.over.clone());
        let expected = [
            ("host", "nvidia-h100-sxm", "PCI Express 5 x16"),
            ("nvidia-h100-sxm", "host", "PCI Express 5 x16"),
            ("nvidia-h200-sxm", "nvidia-h100-sxm", "a direct link"),
        ];
        let expected = expected.map(|(from, to, over)| (from.into(), to.into(), over.into()));
        assert_eq!(found.iter().map(ends).collect::<Vec<_>>(), expected);
        are_figures(&found);
        assert!(found.iter().all(|link| link.modelled));
        assert_eq!(one.memory_free_bytes(), free);
    }

    #[test]
    fn what_works_in_the_hosts_memory_has_no_links() {
        assert!(measure_links(&cpu(), &[], true).unwrap().is_empty());
        assert!(
            measure_links(&emulated("apple-m1-gpu"), &[], true)
                .unwrap()
                .is_empty()
        );
    }

    #[cfg(feature = "wgpu")]
    #[test]
    fn the_links_of_a_gpu_are_timed() {
        use souk_gpu::{Gpu, GpuConfig, list_adapters};
        let adapters = list_adapters();
        let Some(adapter) = adapters.first() else {
            eprintln!("SKIPPED: no GPU adapter");
            return;
        };
        let gpu = Gpu::open_unmeasured(adapter, GpuConfig::default()).unwrap();
        let found = measure_links(&gpu, &[], true).unwrap();
        assert_eq!(found.len(), 2);
        are_figures(&found);
        assert!(found.iter().all(|link| !link.modelled));
        let slowest = found.iter().map(|link| link.bytes_per_second);
        let slowest = slowest.fold(f64::INFINITY, f64::min);
        let noted = gpu
            .with_link_timings(&found)
            .device_memory()
            .unwrap()
            .host_link();
        assert_eq!(noted.bytes_per_second, slowest);
    }
}
