//! Measures the devices that a provider will sell, and stores the figures in the provider's folder.
//! `souk provider init` and `souk order ask` use it to state an offer, and `souk provider measure`
//! to replace the figures before the provider's next start.

use std::path::Path;

use serde_json::json;
use souk_api::class_name;
use souk_folder::clock::unix_ms;
use souk_folder::config::ProviderFile;
use souk_node::market::Resources;
use souk_node::memory::DType;
use souk_sandbox::device::measurement::{self, DeviceMeasurement};
use souk_vocabulary::profile::Profile;

use super::super::device::{check_driver, check_library};
use super::super::node;
use crate::args::Output;
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::from_config;
use crate::show;

/// Measures the devices of a folder's provider again, for its next start.
pub async fn measure_provider(folder: &Path, output: Output) -> Outcome {
    let file = ProviderFile::read_folder(folder).map_err(from_config)?;
    if !measurement::is_kept(&file.device) {
        let cause = "no measurement of this device is stored: it is emulated, or its driver \
                     measures it at each start";
        let hint = "`souk device bench` measures it operator by operator";
        return Err(Failure::new(Kind::State, cause, hint));
    }
    let known = open_devices(folder, &file, Source::Now).await?;
    store_measurement(folder, &file, &known)?;
    let (profile, resources) = describe_offer(&file, &known.profiles);
    let class = class_name::format_class(&resources.class());
    let speed = profile.operations_per_second(DType::F32).unwrap_or(0.0);
    let facts = json!({
        "device": profile.model, "emulated": profile.emulated, "class": class,
        "operations_per_second": speed, "bytes_per_second": profile.memory.bytes_per_second,
        "share_of_mixed_work": known.share, "measured_at": known.at,
    });
    let text = format!(
        "{}: {} in f32, {} of memory, of which mixed work gets {:.0} %\n\
         class {class} at full speed; the provider uses it from its next start",
        show::device_label(&profile.model, profile.emulated),
        show::format_scaled(speed, "op/s"),
        show::format_scaled(profile.memory.bytes_per_second, "B/s"),
        known.share * 100.0,
    );
    show::print_result(output, &facts, &text);
    Ok(())
}

/// The source of a device's figures.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The stored figures if they are still valid, otherwise new ones, which are then stored.
    Folder,
    /// New measurements.
    Now,
}

/// Returns a provider's device and the resources that it offers within its limits.
pub async fn measure_offer(
    folder: &Path,
    file: &ProviderFile,
) -> Result<(Profile, Resources), Failure> {
    let known = open_devices(folder, file, Source::Folder).await?;
    Ok(describe_offer(file, &known.profiles))
}

/// Opens and measures the devices of a provider, within its limits.
pub async fn open_devices(
    folder: &Path,
    file: &ProviderFile,
    source: Source,
) -> Result<DeviceMeasurement, Failure> {
    let library = file.library_path(folder);
    check_library(library.as_deref())?;
    check_driver(&file.device, library.as_deref())?;
    let (home, choice) = (folder.to_owned(), file.device.clone());
    let (cores, now) = (file.limits.cores, unix_ms() / 1_000);
    let is_kept = source == Source::Folder && measurement::is_kept(&choice);
    let opening = move || match is_kept {
        true => DeviceMeasurement::read_or_measure(&home, &choice, cores, now),
        false => DeviceMeasurement::measure_devices(&choice, cores, now),
    };
    let opened = tokio::task::spawn_blocking(opening).await;
    let opened = opened.map_err(|panicked| Failure::new(Kind::Unexpected, panicked, ""))?;
    let hint = "`souk device list` shows the names";
    let known = opened.map_err(|error| Failure::new(Kind::Input, error, hint))?;
    for profile in &known.profiles {
        let sold = file.limits.check_device(profile);
        sold.map_err(|error| node::from_provider(error.into()))?;
    }
    Ok(known)
}

/// Stores the figures for the provider's next start.
pub fn store_measurement(folder: &Path, file: &ProviderFile, known: &DeviceMeasurement) -> Outcome {
    match measurement::is_kept(&file.device) {
        true => known.store_measurement(folder).map_err(from_config),
        false => Ok(()),
    }
}

/// Returns the devices as the single one that is sold, and the resources that an ask states.
pub fn describe_offer(file: &ProviderFile, profiles: &[Profile]) -> (Profile, Resources) {
    let profile = souk_sandbox::device::combine_profiles(profiles);
    let resources = souk_sandbox::device::provider_resources(file, &profile);
    (profile, resources)
}
