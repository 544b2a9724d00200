//! Chooses the devices and prices of a new testnet's providers for `souk testnet up`: those of a
//! named profile such as `mixed`, or those of the user's file.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use souk_folder::config::{DeviceChoice, Fault};
use souk_testnet::layout::ProviderChoice;
use souk_vocabulary::catalogue;

use crate::failure::{Failure, Kind};

/// Largest number of providers, each of which is a process.
pub const PROVIDERS_MAX: usize = 64;

/// Micro-credits in a credit.
const MICRO: f64 = 1e6;

/// Name of this machine's CPU.
const CPU: &str = "cpu";

/// The word for this machine's CPU with exact results.
const EXACT: &str = "exact";

/// A device and its price, in micro-credits for each device-second.
type Offer = (&'static str, u64);

/// This machine's CPU and three unlike devices.
const MIXED: &[Offer] = &[
    (CPU, 40_000),
    ("nvidia-h100-sxm", 900_000),
    ("amd-epyc-9654", 250_000),
    ("apple-m3-max-gpu", 120_000),
];
/// Processors of phones.
const PHONES: &[Offer] = &[
    ("qualcomm-adreno-750", 9_000),
    ("qualcomm-hexagon-8gen3", 12_000),
    ("arm-mali-g715", 8_000),
    ("qualcomm-kryo-8gen3", 4_000),
];
/// Processors of data centres.
const DATACENTER: &[Offer] = &[
    ("nvidia-h100-sxm", 900_000),
    ("nvidia-a100-sxm-80", 450_000),
    ("amd-mi300x", 850_000),
    ("nvidia-l4", 110_000),
    ("google-tpu-v5e", 300_000),
    ("amd-epyc-9654", 250_000),
];

/// The profiles with names.
const NAMED: &[(&str, &[Offer])] = &[
    ("mixed", MIXED),
    ("phones", PHONES),
    ("datacenter", DATACENTER),
];

/// A file with providers.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileFile {
    provider: Vec<Entry>,
}

/// Providers with one kind of device.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    device: String,
    price: f64,
    #[serde(default = "one")]
    count: usize,
    /// Whether an emulated device promises exact results.
    #[serde(default)]
    exact: bool,
    /// The fault that an emulated device plays.
    #[serde(default)]
    fault: Option<Fault>,
}

fn one() -> usize {
    1
}

fn profile_names() -> String {
    let words: Vec<&str> = NAMED.iter().map(|(word, _)| *word).collect();
    words.join(", ")
}

/// Returns the providers of a named profile or of a file: `count` of them, starting over if the
/// profile has fewer.
///
/// # Errors
/// Fails if the profile is not usable.
pub fn profile_providers(name: &str, count: Option<usize>) -> Result<Vec<ProviderChoice>, Failure> {
    let known = NAMED.iter().find(|(word, _)| *word == name);
    let listed = match known {
        Some((_, offered)) => {
            let offered = offered.iter();
            offered
                .map(|(device, price)| provider_choice(device, *price))
                .collect()
        }
        None => of_file(name)?,
    };
    let count = count.unwrap_or(listed.len());
    match listed.is_empty() || !(1..=PROVIDERS_MAX).contains(&count) {
        true => Err(no_count(count)),
        false => Ok(listed.iter().cycle().take(count).cloned().collect()),
    }
}

fn of_file(name: &str) -> Result<Vec<ProviderChoice>, Failure> {
    let path = Path::new(name);
    if !path.exists() {
        let cause = format!("`{name}` is neither a profile nor a file");
        let hint = format!("the profiles are {}", profile_names());
        return Err(Failure::new(Kind::Input, cause, hint));
    }
    let text =
        fs::read_to_string(path).map_err(|error| profile_failure(name, &error.to_string()))?;
    let file: ProfileFile =
        toml::from_str(&text).map_err(|error| profile_failure(name, error.message()))?;
    let mut providers = Vec::new();
    for Entry {
        device,
        price,
        count,
        exact,
        fault,
    } in file.provider
    {
        let is_emulated = device != CPU && device != EXACT;
        if (exact || fault.is_some()) && !is_emulated {
            let why = format!(
                "`{device}` is a real device: only an emulated one plays a fault or \
                               takes `exact`; the real one with exact results is `{EXACT}`"
            );
            return Err(profile_failure(name, &why));
        }
        if is_emulated && catalogue::find_processor(&device).is_none() {
            let why = format!("no device is called `{device}`; `souk device list` names them all");
            return Err(profile_failure(name, &why));
        }
        if !(1.0..=MICRO * MICRO).contains(&(price * MICRO)) {
            let why = format!("the price of `{device}` is more than 0 and at most 1000000 credits");
            return Err(profile_failure(name, &why));
        }
        if providers.len().saturating_add(count) > PROVIDERS_MAX {
            return Err(no_count(providers.len().saturating_add(count)));
        }
        let mut one = provider_choice(&device, (price * MICRO).round() as u64);
        one.fault = fault;
        if let DeviceChoice::Emulated { manner, .. } = &mut one.device {
            manner.exact = exact;
        }
        providers.extend(std::iter::repeat_n(one, count));
    }
    Ok(providers)
}

/// Returns the failure for an invalid file.
fn profile_failure(file: &str, why: &str) -> Failure {
    let hint = "docs/cli.md shows such a file";
    Failure::new(Kind::Input, format!("{file}: {why}"), hint)
}

fn no_count(count: usize) -> Failure {
    let cause = format!("a testnet has 1 to {PROVIDERS_MAX} providers, not {count}");
    Failure::new(Kind::Input, cause, "give another number with --providers")
}

fn provider_choice(device: &str, price: u64) -> ProviderChoice {
    let device = match device {
        CPU => DeviceChoice::Cpu { threads: 0 },
        EXACT => DeviceChoice::Exact { threads: 0 },
        name => DeviceChoice::new_emulated(name),
    };
    ProviderChoice {
        device,
        price,
        fault: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the providers of a file with this text, or the failure.
    fn read(text: &str) -> Result<Vec<ProviderChoice>, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("providers.toml");
        fs::write(&path, text).unwrap();
        profile_providers(&path.to_string_lossy(), None)
    }

    #[test]
    fn each_word_names_devices_that_are_known() {
        for (word, offered) in NAMED {
            for (device, _) in *offered {
                let is_known = catalogue::find_processor(device).is_some();
                assert!(*device == CPU || is_known, "{word}: {device}");
            }
            let found = profile_providers(word, Some(offered.len() + 1)).unwrap();
            assert_eq!(found.len(), offered.len() + 1);
            let (first, last) = (found.first(), found.last());
            assert_eq!(
                first.map(|it| it.price),
                last.map(|it| it.price),
                "begun again"
            );
        }
    }

    #[test]
    fn a_file_says_what_how_many_and_for_how_much() {
        let text = "[[provider]]\ndevice = \"nvidia-l4\"\nprice = 0.11\ncount = 2\n\
                    [[provider]]\ndevice = \"cpu\"\nprice = 0.04\n";
        let prices: Vec<u64> = read(text).unwrap().iter().map(|it| it.price).collect();
        assert_eq!(prices, [110_000, 110_000, 40_000]);
    }

    #[test]
    fn a_file_that_is_wrong_is_refused_by_what_is_wrong_in_it() {
        let entry = |device: &str, price: f64, count: usize| {
            format!("[[provider]]\ndevice = \"{device}\"\nprice = {price}\ncount = {count}\n")
        };
        let refused = |text: &str, word: &str| {
            let error = read(text).map(|them| them.len()).unwrap_err();
            assert!(error.cause.contains(word), "{error:?}");
        };
        refused(&entry("nvidia-h9", 0.1, 1), "nvidia-h9");
        refused(&entry("cpu", 0.0, 1), "price");
        refused(&entry("cpu", f64::INFINITY, 1), "price");
        refused(&entry("cpu", 0.1, PROVIDERS_MAX + 1), "1 to 64");
        refused(&entry("cpu", 0.1, 0), "not 0");
        refused("provider = []", "not 0");
        refused("[[provider]]\ndevise = \"cpu\"", "devise");
        let error = profile_providers("huge", None)
            .map(|them| them.len())
            .unwrap_err();
        assert!(
            error.hint.contains("mixed, phones, datacenter"),
            "{error:?}"
        );
    }
}
