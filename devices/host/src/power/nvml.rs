//! Reads energy counters, and reads and changes power limits, of NVIDIA cards through NVML. The
//! library comes with the driver; souk loads it at run time.

use std::ffi::OsStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::{Limit, PowerDomain, PowerError, check_range};

/// The library, by the name that a driver alone brings.
const LIBRARY: &str = if cfg!(windows) {
    "nvml.dll"
} else {
    "libnvidia-ml.so.1"
};

/// Shortest time between two reads of a card's counter.
const READ_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// One card.
pub struct Card {
    nvml: Arc<Nvml>,
    uuid: String,
    name: String,
    title: String,
    last: Mutex<Option<Reading>>,
}

/// A reading of a card's counter.
#[derive(Clone, Copy)]
struct Reading {
    at: Instant,
    counted: f64,
    /// Joules as this module reports them: they must never decrease.
    joules: f64,
    /// Mean watts between the reading before and this one, to estimate the joules since then.
    watts: f64,
}

/// Returns the cards of this machine; none if NVML is not installed.
pub(super) fn find_cards() -> Vec<Card> {
    cards_of(OsStr::new(LIBRARY))
}

fn cards_of(library: &OsStr) -> Vec<Card> {
    let Ok(nvml) = Nvml::builder().lib_path(library).init() else {
        return Vec::new();
    };
    let nvml = Arc::new(nvml);
    let count = nvml.device_count().unwrap_or(0);
    let opened = (0..count).filter_map(|number| {
        let device = nvml.device_by_index(number).ok()?;
        let uuid = device.uuid().ok()?;
        Some(Card {
            nvml: nvml.clone(),
            name: format!("nvidia:{uuid}"),
            title: device.name().unwrap_or_else(|_| "NVIDIA".to_owned()),
            uuid,
            last: Mutex::default(),
        })
    });
    opened.collect()
}

impl Card {
    /// Finds the card with this UUID, as the CUDA driver states it.
    pub fn with_identity(bytes: [u8; 16]) -> Option<Self> {
        let wanted = format_uuid(bytes);
        find_cards().into_iter().find(|card| card.uuid == wanted)
    }

    fn refusal_error(&self, cause: &NvmlError) -> PowerError {
        let domain = self.name.clone();
        match cause {
            NvmlError::NotSupported => PowerError::Unlimited { domain },
            NvmlError::NoPermission => PowerError::Refused {
                domain,
                cause: format!("{cause}; this needs root"),
            },
            cause => PowerError::Refused {
                domain,
                cause: cause.to_string(),
            },
        }
    }

    /// Reads the card's counter. The result must not be less than the joules reported since the
    /// `earlier` reading.
    fn read_counter(&self, at: Instant, earlier: Option<Reading>) -> Option<Reading> {
        let device = self.nvml.device_by_uuid(self.uuid.as_str()).ok()?;
        let counted = device.total_energy_consumption().ok()? as f64 / 1e3;
        let Some(earlier) = earlier else {
            let watts = device.power_usage().map_or(0.0, |it| f64::from(it) / 1e3);
            return Some(Reading {
                at,
                counted,
                joules: counted,
                watts,
            });
        };
        let seconds = (at - earlier.at).as_secs_f64();
        let reported =
            earlier.joules + earlier.watts * seconds.min(READ_INTERVAL_MIN.as_secs_f64());
        Some(Reading {
            at,
            counted,
            joules: counted.max(reported),
            watts: (counted - earlier.counted).max(0.0) / seconds,
        })
    }

    fn read_limit(&self) -> Result<Limit, NvmlError> {
        let device = self.nvml.device_by_uuid(self.uuid.as_str())?;
        let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
        let range = device.power_management_limit_constraints().ok();
        Ok(Limit {
            watts: watts(device.power_management_limit()?),
            watts_min: range.as_ref().map(|range| watts(range.min_limit)),
            watts_max: range.as_ref().map(|range| watts(range.max_limit)),
        })
    }

    fn write_limit(&self, watts: f64) -> Result<(), NvmlError> {
        let mut device = self.nvml.device_by_uuid(self.uuid.as_str())?;
        device.set_power_management_limit((watts * 1e3).round() as u32)
    }
}

/// Writes a UUID as NVML does.
fn format_uuid(bytes: [u8; 16]) -> String {
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..4], &hex[4..6], &hex[6..8], &hex[8..10], &hex[10..]];
    format!("GPU-{}", parts.map(<[String]>::concat).join("-"))
}

impl PowerDomain for Card {
    fn name(&self) -> &str {
        &self.name
    }

    fn title(&self) -> &str {
        &self.title
    }

    /// Counts since the driver was loaded; cards before Volta have no counter. A read takes
    /// milliseconds, and the card itself counts every tenth of a second. Between reads, this method
    /// extrapolates with the last known power.
    fn energy_joules(&self) -> Option<f64> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let reading = match *last {
            Some(reading) if now - reading.at < READ_INTERVAL_MIN => reading,
            earlier => {
                let reading = self.read_counter(now, earlier)?;
                *last.insert(reading)
            }
        };
        Some(reading.joules + reading.watts * (now - reading.at).as_secs_f64())
    }

    /// Of the last second or less, as the driver counts.
    fn busy_fraction(&self) -> Option<f64> {
        let device = self.nvml.device_by_uuid(self.uuid.as_str()).ok()?;
        let percent = device.utilization_rates().ok()?.gpu;
        Some((f64::from(percent) / 100.0).min(1.0))
    }

    fn power_limit(&self) -> Result<Limit, PowerError> {
        self.read_limit()
            .map_err(|cause| self.refusal_error(&cause))
    }

    fn set_limit(&self, watts: f64) -> Result<(), PowerError> {
        check_range(&self.name, watts, &self.power_limit()?)?;
        self.write_limit(watts)
            .map_err(|cause| self.refusal_error(&cause))
    }

    /// The driver enforces the card's range, so an earlier limit was within it.
    fn restore_limit(&self, watts: f64) -> Result<(), PowerError> {
        self.set_limit(watts)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

    /// A library with two cards, of which the second has no limit and no counter. It stands in for
    /// NVML on machines without a card.
    const FAKE: &str = include_str!("nvml/fake.c");

    fn fake(folder: &tempfile::TempDir) -> PathBuf {
        let (source, made) = (folder.path().join("n.c"), folder.path().join("n.so"));
        std::fs::write(&source, FAKE).unwrap();
        let mut compiler = Command::new("cc");
        let options = ["-shared", "-fPIC", "-Werror", "-o"];
        let ended = compiler.args(options).arg(&made).arg(&source).output();
        let ended = ended.unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{said}");
        made
    }

    #[test]
    fn cards_count_and_take_limits_within_their_range() {
        let folder = tempfile::tempdir().unwrap();
        let cards = cards_of(fake(&folder).as_os_str());
        let names: Vec<&str> = cards.iter().map(PowerDomain::name).collect();
        assert_eq!(names, ["nvidia:GPU-0a", "nvidia:GPU-0b"]);
        let card = &cards[0];
        assert_eq!(card.title(), "Fake H100");
        assert_eq!(card.energy_joules(), Some(12.345));
        assert_eq!(card.busy_fraction(), Some(0.37));
        let limit = Limit {
            watts: 700.0,
            watts_min: Some(200.0),
            watts_max: Some(700.0),
        };
        assert_eq!(card.power_limit(), Ok(limit));
        card.set_limit(350.0).unwrap();
        assert_eq!(card.power_limit().unwrap().watts, 350.0);
        let refused = card.set_limit(150.0).unwrap_err().to_string();
        assert!(refused.contains("200 to 700 W"), "{refused}");
    }

    #[test]
    fn what_a_card_does_not_have_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let cards = cards_of(fake(&folder).as_os_str());
        assert_eq!(cards[1].energy_joules(), None);
        assert_eq!(cards[1].busy_fraction(), None);
        let refused = cards[1].power_limit().unwrap_err().to_string();
        assert_eq!(refused, "nvidia:GPU-0b has no power limit");
    }

    #[test]
    fn without_a_library_there_are_no_cards() {
        assert!(cards_of(OsStr::new("libno-such-thing.so")).is_empty());
    }

    #[test]
    fn an_identity_is_spelt_as_nvml_spells_it() {
        let bytes: [u8; 16] = std::array::from_fn(|at| at as u8 * 17);
        assert_eq!(
            format_uuid(bytes),
            "GPU-00112233-4455-6677-8899-aabbccddeeff"
        );
    }
}
