//! The memory of an emulated device. Its tensors lie in the host's memory and count against the
//! size that the profile states. A copy to the device, back, or from another emulated device takes
//! the time that the profile's links imply.
//!
//! With a paced device, a copy waits for that time, and a run waits for the tensors that cross
//! between the host and the device with it; a virtual device only counts copies.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use souk_memory::paths::{Path, PathKind};
use souk_memory::{DType, Shape, Tensor};
use souk_vocabulary::catalogue::{self, Interconnect};
use souk_vocabulary::links;
use souk_vocabulary::processor::RunError;
use souk_vocabulary::profile::Profile;
use souk_vocabulary::residency::{DeviceMemory, Resident, TensorHandle};
use souk_vocabulary::taxonomy::{MemoryKind, ProcessorKind};

use super::{Pace, State};

/// The memory of an emulated device.
#[derive(Clone)]
pub(super) struct EmulatedMemory(Arc<MemoryInner>);

struct MemoryInner {
    label: String,
    bytes_max: u64,
    host_link: Path,
    /// A link to devices that have one of the same name, and its bytes per second.
    direct: Option<(String, f64)>,
    pace: Pace,
    state: Arc<State>,
}

/// Bytes copied to, from and between emulated devices, and the time of the copies by the profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyTotals {
    /// Bytes from the host.
    pub from_host: u64,
    /// Bytes to the host.
    pub to_host: u64,
    /// Bytes from other devices, without passing the host.
    pub from_peers: u64,
    /// The number of copies; tensors that are copied together count as one.
    pub operations: u64,
    /// Modelled time of all copies.
    pub time: Duration,
}

/// The counters behind [`CopyTotals`].
#[derive(Debug, Default)]
pub(super) struct CopyCounters {
    from_host: AtomicU64,
    to_host: AtomicU64,
    from_peers: AtomicU64,
    operations: AtomicU64,
    nanoseconds: AtomicU64,
}

impl CopyCounters {
    pub fn copy_totals(&self) -> CopyTotals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CopyTotals {
            from_host: read(&self.from_host),
            to_host: read(&self.to_host),
            from_peers: read(&self.from_peers),
            operations: read(&self.operations),
            time: Duration::from_nanos(read(&self.nanoseconds)),
        }
    }
}

impl EmulatedMemory {
    /// Returns the memory of the device that `profile` describes; `None` if it works in the host's.
    pub fn for_profile(profile: &Profile, pace: Pace, state: Arc<State>) -> Option<Self> {
        let stated = catalogue::find_interconnect(&profile.name);
        if stated.is_none() && !is_apart(profile) {
            return None;
        }
        let Interconnect { pcie, direct } = stated.cloned().unwrap_or_default();
        let host_link = pcie.map_or_else(links::host_copy_path, |(generation, lanes)| {
            links::pcie_path(generation, lanes)
        });
        Some(Self(Arc::new(MemoryInner {
            label: format!("{} (emulated)", profile.name),
            bytes_max: profile.memory.bytes,
            host_link,
            direct,
            pace,
            state,
        })))
    }

    /// Keeps a tensor that a run left here: there must be room for it, but it needs no copy.
    pub fn hold_tensor(&self, tensor: Tensor) -> Result<Arc<dyn Resident>, RunError> {
        let inside = &*self.0;
        let bytes = tensor.bytes().len() as u64;
        let loaded = &inside.state.loaded_bytes;
        let room = |used: u64| used.checked_add(bytes).filter(|&it| it <= inside.bytes_max);
        let taken = loaded.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        taken.map_err(|used| RunError::OutOfMemory {
            device: inside.label.clone(),
            bytes,
            free: inside.bytes_max.saturating_sub(used),
        })?;
        Ok(Arc::new(EmulatedResident {
            memory: self.clone(),
            tensor,
            bytes,
        }))
    }

    /// Returns an input of a run as the CPU computes with it; first copies it here if it lies
    /// elsewhere.
    pub fn run_input(&self, held: &TensorHandle) -> Result<Tensor, RunError> {
        let TensorHandle::Device(resident) = held else {
            return held.to_host();
        };
        let any: &dyn Any = &**resident;
        let emulated = any.downcast_ref::<EmulatedResident>();
        if let Some(emulated) = emulated {
            if Arc::ptr_eq(&emulated.memory.0, &self.0) {
                return Ok(emulated.tensor.clone());
            }
            if self.peer_link(&emulated.memory).is_some() {
                self.copy_from_peer(&**resident)?;
                return Ok(emulated.tensor.clone());
            }
        }
        let tensor = resident.to_host()?;
        self.copy_from_host(&tensor)?;
        Ok(tensor)
    }

    /// Reserves room here for a tensor in another such device's memory, and returns the link
    /// between them, which must exist.
    fn reserve_from_peer(
        &self,
        from: &dyn Resident,
    ) -> Result<(Arc<dyn Resident>, Path), RunError> {
        let there = as_emulated(from);
        let link = there.and_then(|there| self.peer_link(&there.memory));
        let (there, link) = there.zip(link).ok_or_else(|| self.unlinked_error(&from))?;
        Ok((self.hold_tensor(there.tensor.clone())?, link))
    }

    fn unlinked_error(&self, from: &dyn fmt::Debug) -> RunError {
        RunError::Engine {
            engine: "emulated",
            reason: format!("nothing links {from:?} to {}", self.0.label),
        }
    }

    /// Counts the tensors among these that are on the host as one crossing.
    pub fn pace_crossing<'a>(&self, all: impl Iterator<Item = &'a TensorHandle>) {
        let on_host = all.filter_map(|held| match held {
            TensorHandle::Host(tensor) => Some(tensor.bytes().len() as u64),
            TensorHandle::Device(_) => None,
        });
        let bytes: u64 = on_host.sum();
        if self.0.pace == Pace::Paced && bytes > 0 {
            std::thread::sleep(self.0.host_link.transfer_time(bytes));
        }
    }

    fn record_copy(&self, link: &Path, counter: &AtomicU64, bytes: u64) {
        let start = Instant::now();
        let time = link.transfer_time(bytes);
        let copies = &self.0.state.copies;
        counter.fetch_add(bytes, Ordering::Relaxed);
        copies.operations.fetch_add(1, Ordering::Relaxed);
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        copies.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        if self.0.pace == Pace::Paced {
            std::thread::sleep(time.saturating_sub(start.elapsed()));
        }
    }
}

fn as_emulated(resident: &dyn Resident) -> Option<&EmulatedResident> {
    let any: &dyn Any = resident;
    any.downcast_ref()
}

fn bytes_of(residents: &[Arc<dyn Resident>]) -> u64 {
    residents.iter().map(|resident| resident.bytes()).sum()
}

/// Returns whether a device whose links no catalogue states has memory of its own: a kind that is
/// made for devices and never for hosts.
fn is_apart(profile: &Profile) -> bool {
    use MemoryKind::{Gddr6, Gddr6x, Gddr7, Hbm2, Hbm2e, Hbm3, Hbm3e};
    let kind = profile.memory.kind;
    let own = matches!(kind, Hbm2 | Hbm2e | Hbm3 | Hbm3e | Gddr6 | Gddr6x | Gddr7);
    own && !matches!(
        profile.kind,
        ProcessorKind::Cpu { .. } | ProcessorKind::Wasm
    )
}

impl DeviceMemory for EmulatedMemory {
    fn host_link(&self) -> Path {
        self.0.host_link
    }

    fn peer_link(&self, other: &dyn DeviceMemory) -> Option<Path> {
        let other: &dyn Any = other;
        let other = &other.downcast_ref::<Self>()?.0;
        let ((own, rate), (others, other_rate)) = (self.0.direct.as_ref()?, other.direct.as_ref()?);
        let linked = own == others && !Arc::ptr_eq(&self.0, other);
        linked.then(|| Path {
            kind: PathKind::NvLink,
            bytes_per_second: rate.min(*other_rate),
            ..self.0.host_link
        })
    }

    fn copy_from_host(&self, tensor: &Tensor) -> Result<Arc<dyn Resident>, RunError> {
        let resident = self.hold_tensor(tensor.clone())?;
        let counter = &self.0.state.copies.from_host;
        self.record_copy(&self.0.host_link, counter, resident.bytes());
        Ok(resident)
    }

    fn put_all(&self, tensors: &[Tensor]) -> Result<Vec<Arc<dyn Resident>>, RunError> {
        let kept = tensors
            .iter()
            .map(|tensor| self.hold_tensor(tensor.clone()));
        let residents = kept.collect::<Result<Vec<_>, _>>()?;
        let counter = &self.0.state.copies.from_host;
        self.record_copy(&self.0.host_link, counter, bytes_of(&residents));
        Ok(residents)
    }

    fn read_all(&self, residents: &[Arc<dyn Resident>]) -> Result<Vec<Tensor>, RunError> {
        let own = residents.iter().filter_map(|resident| {
            let there = as_emulated(&**resident)?;
            let is_here = Arc::ptr_eq(&there.memory.0, &self.0);
            is_here.then(|| there.tensor.clone())
        });
        let tensors: Vec<Tensor> = own.collect();
        if tensors.len() < residents.len() {
            return Err(self.unlinked_error(&residents));
        }
        let counter = &self.0.state.copies.to_host;
        self.record_copy(&self.0.host_link, counter, bytes_of(residents));
        Ok(tensors)
    }

    fn copy_from_peer(&self, from: &dyn Resident) -> Result<Arc<dyn Resident>, RunError> {
        let (resident, link) = self.reserve_from_peer(from)?;
        let counter = &self.0.state.copies.from_peers;
        self.record_copy(&link, counter, resident.bytes());
        Ok(resident)
    }

    fn take_all(&self, from: &[Arc<dyn Resident>]) -> Result<Vec<Arc<dyn Resident>>, RunError> {
        let each = from
            .iter()
            .map(|resident| self.reserve_from_peer(&**resident));
        let (residents, links): (Vec<_>, Vec<Path>) = each
            .collect::<Result<Vec<_>, RunError>>()?
            .into_iter()
            .unzip();
        if let Some(link) = links.first() {
            let counter = &self.0.state.copies.from_peers;
            self.record_copy(link, counter, bytes_of(&residents));
        }
        Ok(residents)
    }
}

/// A tensor that counts as on an emulated device.
struct EmulatedResident {
    memory: EmulatedMemory,
    tensor: Tensor,
    bytes: u64,
}

impl Resident for EmulatedResident {
    fn dtype(&self) -> DType {
        self.tensor.dtype()
    }

    fn shape(&self) -> &Shape {
        self.tensor.shape()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn to_host(&self) -> Result<Tensor, RunError> {
        let memory = &self.memory;
        let counter = &memory.0.state.copies.to_host;
        memory.record_copy(&memory.0.host_link, counter, self.bytes);
        Ok(self.tensor.clone())
    }
}

impl Drop for EmulatedResident {
    fn drop(&mut self) {
        let loaded = &self.memory.0.state.loaded_bytes;
        loaded.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for EmulatedResident {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dtype, shape) = (self.dtype(), self.shape());
        write!(formatter, "{dtype} {shape} in {}", self.memory.0.label)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use souk_cpu::Cpu;
    use souk_testing::{model, node, noise_tensor, subgraph};
    use souk_vocabulary::catalogue::find_processor;
    use souk_vocabulary::processor::Processor;

    use super::*;
    use crate::{EmulatedConfig, EmulatedDevice};

    /// The CPU that results are held against.
    fn cpu() -> Cpu {
        Cpu::new(souk_testing::cpu_profile(), std::num::NonZeroUsize::MIN)
    }

    fn device(name: &str, pace: Pace) -> EmulatedDevice {
        let config = EmulatedConfig {
            pace,
            ..EmulatedConfig::default()
        };
        EmulatedDevice::new(
            find_processor(name).unwrap().clone(),
            Arc::new(cpu()),
            config,
        )
        .unwrap()
    }

    #[test]
    fn a_profile_says_what_lies_between_memories() {
        let [sxm, h200, pcie, amd, tpu] = [
            "nvidia-h100-sxm",
            "nvidia-h200-sxm",
            "nvidia-h100-pcie",
            "amd-mi300x",
            "google-tpu-v5p",
        ]
        .map(|name| device(name, Pace::Virtual));
        let other = device("google-tpu-v5p", Pace::Virtual);
        let [sxm, h200, pcie, amd, tpu, other] =
            [&sxm, &h200, &pcie, &amd, &tpu, &other].map(|device| device.device_memory().unwrap());
        let (generation, lanes) = (5, 16);
        let kind = PathKind::Pcie { generation, lanes };
        assert_eq!(sxm.host_link().kind, kind);
        assert!((sxm.host_link().bytes_per_second / 63.0e9 - 1.0).abs() < 0.01);
        let rate = |to: &dyn DeviceMemory, from| to.peer_link(from).map(|it| it.bytes_per_second);
        assert_eq!(rate(sxm, h200), Some(450e9));
        assert_eq!(rate(sxm, pcie), None, "a bridge is no switch");
        assert_eq!(rate(sxm, amd), None);
        assert_eq!(rate(sxm, sxm), None, "one memory");
        assert_eq!(rate(tpu, other), Some(100e9));
        assert_eq!(tpu.host_link().kind, PathKind::HostCopy);
        for shares in ["apple-m3-max-gpu", "qualcomm-adreno-750", "amd-epyc-9654"] {
            assert!(
                device(shares, Pace::Virtual).device_memory().is_none(),
                "{shares}"
            );
        }
    }

    #[test]
    fn copies_take_the_links_time_and_room_for_as_long_as_they_stay() {
        let (one, two) = (
            device("nvidia-h100-sxm", Pace::Virtual),
            device("nvidia-h100-sxm", Pace::Virtual),
        );
        let (memory, peer) = (one.device_memory().unwrap(), two.device_memory().unwrap());
        let (all, tensor) = (one.memory_free_bytes(), noise_tensor(&[1 << 18], 3));
        let there = memory.copy_from_host(&tensor).unwrap();
        assert!(format!("{there:?}").ends_with("in nvidia-h100-sxm (emulated)"));
        assert_eq!(one.memory_free_bytes(), all - (1 << 20));
        assert_eq!(one.copy_totals().from_host, 1 << 20);
        assert_eq!(
            one.copy_totals().time,
            memory.host_link().transfer_time(1 << 20)
        );
        let copy = peer.copy_from_peer(&*there).unwrap();
        let link = peer.peer_link(memory).unwrap();
        assert_eq!(two.copy_totals().time, link.transfer_time(1 << 20));
        assert_eq!(copy.to_host().unwrap().bytes(), tensor.bytes());
        assert_eq!(two.copy_totals().to_host, 1 << 20);
        drop(there);
        assert_eq!(one.memory_free_bytes(), all);
        let refused = memory
            .copy_from_host(&noise_tensor(&[2], 1))
            .and_then(|it| {
                device("nvidia-t4", Pace::Virtual)
                    .device_memory()
                    .unwrap()
                    .copy_from_peer(&*it)
            });
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("nothing links"), "{refused}");
    }

    #[test]
    fn tensors_that_go_together_take_what_one_of_their_bytes_takes() {
        let (one, two) = (
            device("nvidia-h100-sxm", Pace::Virtual),
            device("nvidia-h100-sxm", Pace::Virtual),
        );
        let (memory, peer) = (one.device_memory().unwrap(), two.device_memory().unwrap());
        let tensors: Vec<Tensor> = (0..8).map(|seed| noise_tensor(&[256], seed)).collect();
        let there = memory.put_all(&tensors).unwrap();
        let (bytes, link) = (8 * 1024, memory.host_link());
        assert_eq!(
            (one.copy_totals().from_host, one.copy_totals().operations),
            (bytes, 1)
        );
        assert_eq!(one.copy_totals().time, link.transfer_time(bytes));
        assert_eq!(memory.read_all(&there).unwrap(), tensors);
        assert_eq!(one.copy_totals().time, 2 * link.transfer_time(bytes));
        let copies = peer.take_all(&there).unwrap();
        let direct = peer.peer_link(memory).unwrap();
        assert_eq!(
            (two.copy_totals().from_peers, two.copy_totals().operations),
            (bytes, 1)
        );
        assert_eq!(two.copy_totals().time, direct.transfer_time(bytes));
        assert_eq!(peer.read_all(&copies).unwrap(), tensors);
        let elsewhere = peer.read_all(&there).unwrap_err().to_string();
        assert!(elsewhere.contains("nothing links"), "{elsewhere}");
    }

    #[test]
    fn a_paced_copy_makes_wait() {
        let device = device("google-tpu-v5p", Pace::Paced);
        let memory = device.device_memory().unwrap();
        let start = Instant::now();
        let _there = memory.copy_from_host(&noise_tensor(&[1 << 21], 3)).unwrap();
        assert!(start.elapsed() >= memory.host_link().transfer_time(8 << 20));
    }

    #[test]
    fn a_paced_run_makes_wait_for_what_comes_from_the_host_and_goes_there() {
        let device = device("google-tpu-v5p", Pace::Paced);
        let (x, y) = (("x", DType::F32), ("y", DType::F32));
        let graph = subgraph(&model(vec![node("Relu", &["x"], &["y"])], &[x], &[y], &[]));
        let program = device.compile(&graph).unwrap();
        let (memory, x) = (device.device_memory().unwrap(), noise_tensor(&[1 << 21], 3));
        let way = memory.host_link().transfer_time(8 << 20);
        let there = TensorHandle::Device(memory.copy_from_host(&x).unwrap());
        let run = |x: &TensorHandle, kept: &[&str]| {
            let kept = kept.iter().map(|name| (*name).to_owned()).collect();
            let inputs = BTreeMap::from([("x".to_owned(), x.clone())]);
            let start = Instant::now();
            let busy = program.run_held(&inputs, &kept).unwrap().busy;
            (start.elapsed(), busy)
        };
        let given = TensorHandle::Host(x);
        for (input, kept, ways) in [(&given, &["y"][..], 1), (&there, &[], 1), (&given, &[], 2)] {
            let (took, busy) = run(input, kept);
            assert!(
                took >= busy + ways * way,
                "{took:?} of {busy:?} and {ways} times {way:?}"
            );
        }
        assert_eq!(
            device.copy_totals().operations,
            1,
            "nothing was copied but before"
        );
    }

    #[test]
    fn what_a_run_leaves_is_not_copied_and_may_be_too_much() {
        let mut profile = find_processor("nvidia-t4").unwrap().clone();
        profile.memory.bytes = 100_000;
        let config = EmulatedConfig {
            pace: Pace::Virtual,
            ..EmulatedConfig::default()
        };
        let device = EmulatedDevice::new(profile, Arc::new(cpu()), config).unwrap();
        let (x, y) = (("x", DType::F32), ("y", DType::F32));
        let graph = subgraph(&model(vec![node("Relu", &["x"], &["y"])], &[x], &[y], &[]));
        let program = device.compile(&graph).unwrap();
        let x = noise_tensor(&[100, 100], 4);
        let alone = program.run(&BTreeMap::from([("x".to_owned(), x.clone())]));
        let alone = alone.unwrap().outputs["y"].clone();
        let kept = BTreeSet::from(["y".to_owned()]);
        let run = |x| program.run_held(&BTreeMap::from([("x".to_owned(), x)]), &kept);
        let first = run(TensorHandle::Host(x))
            .unwrap()
            .outputs
            .remove("y")
            .unwrap();
        let second = run(first.clone()).unwrap().outputs.remove("y").unwrap();
        assert_eq!(device.copy_totals(), CopyTotals::default());
        let error = run(first.clone()).unwrap_err();
        let RunError::OutOfMemory {
            device: named,
            bytes,
            ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!((named.as_str(), *bytes), ("nvidia-t4 (emulated)", 40_000));
        drop(first);
        assert!(run(second.clone()).is_ok());
        assert_eq!(second.to_host().unwrap().bytes(), alone.bytes());
        assert_eq!(device.copy_totals().to_host, 40_000);
    }
}
