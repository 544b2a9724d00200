//! Opens the engine that does the work of a provider's leases: devices, which run graphs, or an
//! endpoint, which answers requests of buyers with a language model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use souk_memory::Store;
use souk_vocabulary::profile::Profile;

use super::ProviderError;
use super::device_load::Live;
use super::pace::Pace;
use crate::endpoint::Endpoint;
use crate::endpoint::own_engine::OwnEngine;
use souk_folder::config::{DeviceChoice, ProviderFile};
use souk_market::Resources;
use souk_sandbox::device::costs::DeviceCosts;
use souk_sandbox::device::{self, combine_profiles, provider_resources};
use souk_sandbox::executor::{Executor, OpenedDevices};

/// The engine that does the work of a provider's leases.
pub(super) enum Engine {
    /// Devices that souk drives.
    Devices(Executor),
    /// An inference engine that souk calls.
    Endpoint(Arc<Endpoint>),
}

/// An engine that is ready, and the values that the provider's ask states about it.
pub(super) struct OpenedEngine {
    pub(super) engine: Engine,
    pub(super) label: String,
    /// The best performance that was measured.
    pub(super) peak: Resources,
    pub(super) pace: Pace,
    pub(super) live: Live,
    /// The measured costs of its devices.
    pub(super) seen: Arc<DeviceCosts>,
}

impl Engine {
    /// Returns the endpoint, if it is one.
    pub(super) fn as_endpoint(&self) -> Option<&Arc<Endpoint>> {
        match self {
            Engine::Devices(_) => None,
            Engine::Endpoint(endpoint) => Some(endpoint),
        }
    }

    /// Returns the executor of devices, if it is one.
    pub(super) fn as_executor(&self) -> Option<&Executor> {
        match self {
            Engine::Devices(executor) => Some(executor),
            Engine::Endpoint(_) => None,
        }
    }
}

impl OpenedEngine {
    /// Opens the engine that the provider's file names.
    pub(super) async fn open(
        home: &Path,
        file: &ProviderFile,
        program: PathBuf,
        own_engine: Option<Arc<dyn OwnEngine>>,
        store: &Arc<Store>,
    ) -> Result<OpenedEngine, ProviderError> {
        let slots = file.limits.leases;
        let endpoint = match &file.device {
            DeviceChoice::Endpoint(choice) => Endpoint::new(choice, slots)?,
            DeviceChoice::Serve(choice) => Endpoint::of_own_engine(choice, slots, own_engine)?,
            _ => return OpenedEngine::open_devices(home, file, program, store).await,
        };
        let endpoint = endpoint.with_counts_of(home);
        let endpoint = endpoint.with_terms(file.pricing.tokens.to_terms());
        OpenedEngine::open_endpoint(home, file, endpoint, store).await
    }

    async fn open_endpoint(
        home: &Path,
        file: &ProviderFile,
        endpoint: Endpoint,
        store: &Arc<Store>,
    ) -> Result<OpenedEngine, ProviderError> {
        endpoint.check_engine().await?;
        let card = endpoint.card();
        // Buyers name the card as the graph, and nobody has to send it.
        let kept = store.put_as(card.id(), card.to_bytes().into());
        if let Err(error) = kept {
            tracing::warn!(%error, "buyers must send the endpoint's card");
        }
        let peak = Resources {
            region: file.region.0,
            ..endpoint.resources()
        };
        Ok(OpenedEngine {
            label: endpoint.label(),
            engine: Engine::Endpoint(Arc::new(endpoint)),
            peak,
            pace: Pace::new(1.0),
            live: Live::without_devices(),
            seen: DeviceCosts::load_or_default(home),
        })
    }

    async fn open_devices(
        home: &Path,
        file: &ProviderFile,
        program: PathBuf,
        store: &Arc<Store>,
    ) -> Result<OpenedEngine, ProviderError> {
        let opened = OpenedDevices::new(home, file, program, store).await?;
        let mut profiles = opened.profiles.iter();
        profiles.try_for_each(|profile| file.limits.check_device(profile))?;
        let peak = peak_of(file, &opened.profiles);
        let pace = measured_pace(file, &opened, peak.model.as_str()).await;
        Ok(OpenedEngine {
            live: Live::new(&opened.executor, &opened.label, &opened.profiles),
            engine: Engine::Devices(opened.executor),
            label: opened.label,
            peak,
            pace,
            seen: opened.seen,
        })
    }
}

/// Returns the best measured performance of the provider's devices, as its ask combines them.
fn peak_of(provider: &ProviderFile, profiles: &[Profile]) -> Resources {
    provider_resources(provider, &combine_profiles(profiles))
}

/// Returns the pace of a provider's devices: as the last ask stated it or, before the first job, as
/// measured.
async fn measured_pace(provider: &ProviderFile, opened: &OpenedDevices, model: &str) -> Pace {
    let (choice, cores) = (provider.device.clone(), provider.limits.cores);
    let (known, share) = (opened.profiles.clone(), opened.share);
    let sharing = move || share.unwrap_or_else(|| device::peak_share(&choice, cores, &known));
    let share = tokio::task::spawn_blocking(sharing).await;
    Pace::new(share.expect("measuring does not panic"))
        .with_devices(&opened.profiles, provider.prefer)
        .begin_with(opened.seen.stated_speed(model))
}
