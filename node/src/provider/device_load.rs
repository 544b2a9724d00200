//! Samples the load and the free memory of a provider's devices every few seconds, for the metrics
//! page and, through a file in the folder, for `souk provider status`.
//!
//! If leases run in processes of their own, so do the device drivers. The provider's process then
//! cannot see the devices and reports nothing of them. It can always see the host's CPU and memory.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use souk_folder::clock::unix_ms;
use souk_folder::config;
use souk_host::system;
use souk_sandbox::device::group::member_label;
use souk_sandbox::executor::Executor;
use souk_scheduler::execution::{LostDevice, Runner};
use souk_vocabulary::processor::Processor;
use souk_vocabulary::profile::Profile;
use souk_vocabulary::taxonomy::ProcessorKind;

use super::Provider;

/// How often the devices are sampled.
const PERIOD: Duration = Duration::from_secs(5);

/// A sample older than this no longer counts as current.
const AGE_MAX: Duration = Duration::from_secs(30);

/// The file in a provider's folder.
const LIVE_FILE: &str = "live.json";

/// The last sample of a provider's devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LiveFigures {
    /// The time of the sample, in milliseconds since 1970.
    pub at_ms: u64,
    /// The devices, in the order in which they are sold.
    pub devices: Vec<LiveDevice>,
}

/// The last sample of one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LiveDevice {
    /// The name of the device in reports.
    pub device: String,
    /// The kind of the device.
    pub kind: String,
    /// Whether the device is emulated.
    pub emulated: bool,
    /// The busy part of the time since the sample before, 0 to 1; none if this process cannot see
    /// it.
    pub utilisation: Option<f64>,
    /// Bytes of its memory that are free; none if this process cannot see them.
    pub memory_free_bytes: Option<u64>,
    /// Why the device was lost and gets no work, if so.
    #[serde(default)]
    pub lost: Option<String>,
}

impl LiveFigures {
    /// Reads the sample that a provider wrote into its folder, if it is recent.
    #[must_use]
    pub fn read(home: &Path, now_ms: u64) -> Option<Self> {
        let text = fs::read_to_string(home.join(LIVE_FILE)).ok()?;
        let figures: Self = serde_json::from_str(&text).ok()?;
        let age = Duration::from_millis(now_ms.saturating_sub(figures.at_ms));
        (age <= AGE_MAX).then_some(figures)
    }
}

/// The devices of a provider, and the sources of their figures.
pub(super) struct Live {
    watched: Vec<WatchedDevice>,
    /// The runner of devices in this process, which knows the lost ones.
    runner: Option<Arc<Runner>>,
    last: Mutex<LiveFigures>,
}

struct WatchedDevice {
    device: String,
    profile: Profile,
    source: Source,
}

/// The source of a device's figures.
enum Source {
    /// The device itself, in this process.
    Device(Arc<dyn Processor>),
    /// The host, if the device is its CPU.
    Host(system::Load),
    /// No source in this process.
    Nobody,
}

impl Live {
    /// Begins to watch the devices of the provider `label`.
    pub(super) fn new(executor: &Executor, label: &str, profiles: &[Profile]) -> Self {
        let of_runner = |(device, processor): (&str, &Arc<dyn Processor>)| WatchedDevice {
            device: device.to_owned(),
            profile: processor.profile().clone(),
            source: Source::Device(processor.clone()),
        };
        let of_profile = |(index, profile): (usize, &Profile)| WatchedDevice {
            device: match profiles.len() {
                1 => label.to_owned(),
                _ => member_label(label, index, profile),
            },
            source: match profile.kind {
                ProcessorKind::Cpu { .. } if !profile.emulated => {
                    Source::Host(system::Load::default())
                }
                _ => Source::Nobody,
            },
            profile: profile.clone(),
        };
        let watched = match executor {
            Executor::Here(runner) => runner.devices().into_iter().map(of_runner).collect(),
            Executor::Sandboxed(_) => profiles.iter().enumerate().map(of_profile).collect(),
        };
        let runner = match executor {
            Executor::Here(runner) => Some(runner.clone()),
            Executor::Sandboxed(_) => None,
        };
        Self {
            watched,
            runner,
            last: Mutex::default(),
        }
    }

    /// Watches nothing, because no device is sold.
    pub(super) fn without_devices() -> Self {
        Self {
            watched: Vec::new(),
            runner: None,
            last: Mutex::default(),
        }
    }

    /// Returns the last sample.
    pub(super) fn last_figures(&self) -> LiveFigures {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone()
    }

    /// Samples each device.
    fn sample_devices(&self, now_ms: u64) -> LiveFigures {
        let mut devices: Vec<LiveDevice> = self
            .watched
            .iter()
            .map(WatchedDevice::sample_device)
            .collect();
        let lost = self.runner.as_ref().map(|runner| runner.lost_devices());
        for lost in lost.unwrap_or_default() {
            let known = devices.iter_mut().find(|it| it.device == lost.device);
            if let Some(device) = known {
                device.lost = Some(describe_lost(&lost));
            }
        }
        let figures = LiveFigures {
            at_ms: now_ms,
            devices,
        };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        tell_changes(&last, &figures);
        last.clone_from(&figures);
        figures
    }
}

impl WatchedDevice {
    fn sample_device(&self) -> LiveDevice {
        let (utilisation, free) = match &self.source {
            Source::Device(device) => {
                // If the size of a memory is unknown, so is its free part.
                let is_known = self.profile.memory.bytes > 0;
                let free = is_known.then(|| device.memory_free_bytes());
                (Some(device.utilisation()), free)
            }
            Source::Host(load) => (Some(load.utilisation()), system::memory_free_bytes()),
            Source::Nobody => (None, None),
        };
        LiveDevice {
            device: self.device.clone(),
            kind: self.profile.kind.name().to_owned(),
            emulated: self.profile.emulated,
            utilisation,
            memory_free_bytes: free,
            lost: None,
        }
    }
}

/// Describes a lost device to the owner.
fn describe_lost(lost: &LostDevice) -> String {
    let next = match lost.is_out {
        true => "it stays out until the provider starts again",
        false => "it is tried again",
    };
    format!("{} (tried {} times; {next})", lost.cause, lost.trials)
}

/// Logs the devices that were lost or have returned.
fn tell_changes(before: &LiveFigures, now: &LiveFigures) {
    for device in &now.devices {
        let mut known = before.devices.iter();
        let known = known.find(|known| known.device == device.device);
        let before = known.and_then(|known| known.lost.as_ref());
        match &device.lost {
            Some(cause) if before != Some(cause) => {
                tracing::warn!(device = device.device, cause, "a device was lost");
            }
            None if before.is_some() => {
                tracing::info!(device = device.device, "a lost device works again");
            }
            _ => {}
        }
    }
}

/// Samples the devices every few seconds, for ever.
pub(super) async fn sample_forever(provider: &Arc<Provider>) {
    loop {
        let provider = provider.clone();
        let sampled = tokio::task::spawn_blocking(move || {
            if provider.seen.begin_anew_if_asked() {
                provider.pace.begin_anew();
                tracing::info!("the devices' costs were reset at the owner's request");
            }
            provider.seen.save();
            if let Some(endpoint) = provider.engine.as_endpoint() {
                endpoint.store_figures(&provider.home);
            }
            let figures = provider.live.sample_devices(unix_ms());
            config::write(&provider.home.join(LIVE_FILE), &figures)
        });
        if let Err(error) = sampled.await.expect("asking a device does not panic") {
            tracing::debug!(%error, "`souk provider status` cannot show the devices' state");
        }
        tokio::time::sleep(PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use souk_folder::config::{DeviceChoice, EmulationSettings};
    use souk_memory::{Store, npy};
    use souk_sandbox::device::group::{Between, build_runner};
    use souk_sandbox::device::open_devices;
    use souk_scheduler::execution::timeline::UnixMicros;
    use souk_scheduler::execution::{Clock, Task};
    use souk_scheduler::planning::Objective;

    use super::*;

    fn live(choice: &DeviceChoice) -> Live {
        let device = open_devices(choice, Some(1)).unwrap().remove(0);
        let store = Arc::new(Store::in_memory(1 << 20));
        let runner = Runner::new("p", device, store, Arc::new(|| UnixMicros(0)));
        Live::new(&Executor::Here(Arc::new(runner)), "p", &[])
    }

    #[test]
    fn a_device_that_does_nothing_is_idle_and_all_its_memory_is_free() {
        let live = live(&DeviceChoice::new_emulated("nvidia-h100-sxm"));
        assert_eq!(
            live.last_figures(),
            LiveFigures::default(),
            "nobody has asked"
        );
        let figures = live.sample_devices(7);
        assert_eq!(live.last_figures(), figures);
        let memory = live.watched[0].profile.memory.bytes;
        assert!(memory > 1 << 30);
        assert_eq!(
            figures.devices,
            [LiveDevice {
                device: "p (emulated)".to_owned(),
                kind: "gpu".to_owned(),
                emulated: true,
                utilisation: Some(0.0),
                memory_free_bytes: Some(memory),
                lost: None,
            }]
        );
    }

    #[test]
    fn what_was_lost_is_told_with_why_and_whether_it_is_tried_again() {
        let home = tempfile::tempdir().unwrap();
        let choice = |failures| DeviceChoice::Emulated {
            profile: "amd-epyc-9654".to_owned(),
            manner: EmulationSettings {
                failures: Some(failures),
                ..EmulationSettings::default()
            },
        };
        let group = DeviceChoice::Group(vec![choice(1.0), choice(1.0)]);
        let devices = open_devices(&group, Some(1)).unwrap();
        let store = Arc::new(Store::in_memory(1 << 20));
        let (between, clock): (_, Arc<Clock>) =
            (Between::Folder(home.path()), Arc::new(|| UnixMicros(0)));
        let runner =
            build_runner(between, Objective::Fastest, "p", devices, &store, clock).unwrap();
        let model = include_bytes!("../../../testnet/models/digits/digits.onnx");
        let images = include_bytes!("../../../testnet/models/digits/images.npy");
        let images = npy::read(&Bytes::from_static(images)).unwrap();
        let task = Task {
            name: "job".to_owned(),
            model: store.put(Bytes::from_static(model)).unwrap(),
            sequence: 0,
            inputs: BTreeMap::from([("images".to_owned(), images)]),
        };
        let executor = Executor::Here(Arc::new(runner));
        let live = Live::new(&executor, "p", &[]);
        assert!(
            live.sample_devices(7)
                .devices
                .iter()
                .all(|it| it.lost.is_none())
        );
        let Executor::Here(runner) = &executor else {
            unreachable!("it was just made");
        };
        runner.run(&task).unwrap_err();
        let figures = live.sample_devices(8);
        let lost: Vec<&String> = figures.devices.iter().flat_map(|it| &it.lost).collect();
        assert!(!lost.is_empty(), "{figures:?}");
        let is_told = |lost: &&String| lost.contains("as configured") && lost.contains("again");
        assert!(lost.iter().all(is_told), "{lost:?}");
    }

    #[test]
    fn of_a_memory_of_unknown_size_nothing_is_said() {
        let mut live = live(&DeviceChoice::new_emulated("nvidia-h100-sxm"));
        live.watched[0].profile.memory.bytes = 0;
        assert_eq!(live.sample_devices(7).devices[0].memory_free_bytes, None);
        live.watched[0].source = Source::Nobody;
        assert_eq!(live.sample_devices(8).devices[0].utilisation, None);
    }

    #[test]
    fn what_was_told_long_ago_is_told_no_more() {
        let home = tempfile::tempdir().unwrap();
        let figures =
            live(&DeviceChoice::new_emulated("nvidia-h100-sxm")).sample_devices(1_000_000);
        config::write(&home.path().join(LIVE_FILE), &figures).unwrap();
        let read = |now_ms| LiveFigures::read(home.path(), now_ms);
        assert_eq!(read(1_030_000), Some(figures));
        assert_eq!(read(1_030_001), None);
    }
}
