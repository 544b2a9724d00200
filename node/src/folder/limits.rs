//! What a provider does not do, whatever is paid: leases, hours, classes, operators, cores, memory,
//! price.
//!
//! Pure decisions, each with a named refusal. The shelf and the sessions ask them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use souk_onnx::custom::Custom;
use souk_vocabulary::profile::Profile;
use souk_vocabulary::taxonomy::Kind;

/// Minutes of a day.
const DAY: u16 = 24 * 60;

/// Notice before a spot lease ends: what a part of a usual job takes, and more than a provider
/// needs to hear of it.
pub const NOTICE_SECONDS: u32 = 5;

/// What one lease may make where nothing is said, in mebibytes: a quarter of the folder for
/// contents.
pub(crate) const OUTPUTS_MIB: u64 = 4_096;

/// The most leases that are sold at once: each has a process, and as many may be at work.
pub const LEASES_MAX: u32 = 16;

/// A provider's limits. The default has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProviderLimits {
    /// Leases that are sold at once: each is of one such part of the devices and of the memory.
    #[serde(skip_serializing_if = "is_one")]
    pub leases: u32,
    /// Threads that jobs may use at most, all together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Mebibytes that jobs' graphs, weights and inputs may have at most, all together, and that are
    /// offered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Mebibytes that what one lease makes may have, outputs and what lies between its parts
    /// together; 4,096 if none is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outputs_mib: Option<u64>,
    /// Times of the day, in UTC, at which the device is sold; none for all day.
    pub hours: Vec<Hours>,
    /// Kinds of device that may be sold, such as `cpu`; none for all.
    pub classes: Vec<String>,
    /// Operators that graphs may use, such as `MatMul`; none for all that the device runs.
    pub operators: Vec<String>,
    /// Whether buyers' own kernels in WebAssembly are run.
    pub wasm: bool,
    /// Whether buyers' own kernels in WGSL are run.
    pub wgsl: bool,
    /// The least price in micro-credits per device-second, whatever the pricing says.
    pub price_min: u64,
    /// Per cent of its price that a second costs in which a buyer holds the device and does not use
    /// it; the market's reserve where that is more.
    #[serde(skip_serializing_if = "is_zero")]
    pub idle_percent: u16,
    /// The least reputation of a buyer, 0 to 1000; one that is new has 500.
    #[serde(skip_serializing_if = "is_zero")]
    pub buyer_reputation_min: u16,
    /// Seconds of notice before a spot lease is taken back or displaced; 5 if none
    /// is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notice_seconds: Option<u32>,
    /// Watts that power domains may draw while this provider runs, by the names that `souk device
    /// power` shows; they are set when it starts and given back when it stops.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub power_watts: BTreeMap<String, u32>,
}

/// A span of the day, from one minute to another; over midnight where the second is earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hours {
    from: u16,
    to: u16,
}

/// A text that is no span of the day.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no span of the day like 08:00-18:30 (UTC)")]
pub struct NoHours(String);

/// What a limit forbids.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitRefusal {
    /// The kind of device.
    #[error("a {kind} is not sold here: limits.classes has {}", allowed.join(", "))]
    Class {
        /// The device's kind.
        kind: String,
        /// Those that are.
        allowed: Vec<String>,
    },
    /// An operator.
    #[error("the operator {operator} is not run here: limits.operators has {}", allowed.join(", "))]
    Operator {
        /// The operator.
        operator: String,
        /// Those that are.
        allowed: Vec<String>,
    },
    /// Kernels of a buyer's own.
    #[error("buyers' own kernels in {language} are not run here: limits.{language} is false")]
    Kernel {
        /// Their language.
        language: &'static str,
    },
    /// A device of which nobody knows how much memory it has.
    #[error(
        "how much memory {model} has is not known: limits.memory_mib states what is sold of it"
    )]
    MemoryUnknown {
        /// The device.
        model: String,
    },
}

impl Default for ProviderLimits {
    fn default() -> Self {
        Self {
            leases: 1,
            cores: None,
            memory_mib: None,
            outputs_mib: None,
            hours: Vec::new(),
            classes: Vec::new(),
            operators: Vec::new(),
            wasm: true,
            wgsl: true,
            price_min: 0,
            idle_percent: 0,
            buyer_reputation_min: 0,
            notice_seconds: None,
            power_watts: BTreeMap::new(),
        }
    }
}

impl ProviderLimits {
    /// The limit that leaves jobs nothing, if there is one.
    #[must_use]
    pub fn nothing(&self) -> Option<&'static str> {
        if self.cores == Some(0) {
            return Some("cores");
        }
        if self.leases == 0 {
            return Some("leases");
        }
        if self.outputs_mib == Some(0) {
            return Some("outputs_mib");
        }
        (self.memory_mib == Some(0)).then_some("memory_mib")
    }

    /// The most leases that may be sold at once, if these are more: each has a core at least.
    #[must_use]
    pub fn leases_over(&self) -> Option<u32> {
        let most = LEASES_MAX.min(self.cores.unwrap_or(LEASES_MAX));
        (self.leases > most).then_some(most)
    }

    /// What one lease has of something that all of them share.
    #[must_use]
    pub fn each(&self, whole: u64) -> u64 {
        whole / u64::from(self.leases.max(1))
    }

    /// Whether a device of this kind may be sold.
    pub fn check_class(&self, kind: &str) -> Result<(), LimitRefusal> {
        match allows(&self.classes, kind) {
            true => Ok(()),
            false => Err(LimitRefusal::Class {
                kind: kind.to_owned(),
                allowed: self.classes.clone(),
            }),
        }
    }

    /// Whether a graph may use this operator.
    pub fn check_operator(&self, operator: &str) -> Result<(), LimitRefusal> {
        match allows(&self.operators, operator) {
            true => Ok(()),
            false => Err(LimitRefusal::Operator {
                operator: operator.to_owned(),
                allowed: self.operators.clone(),
            }),
        }
    }

    /// Whether a graph may bring kernels of its own in this language.
    pub fn check_kernel(&self, kernel: Custom) -> Result<(), LimitRefusal> {
        let allowed = match kernel {
            Custom::Wasm => self.wasm,
            Custom::Wgsl => self.wgsl,
        };
        match allowed {
            true => Ok(()),
            false => Err(LimitRefusal::Kernel {
                language: kernel.name(),
            }),
        }
    }

    /// Whether everything may be run that a graph could have.
    pub fn allows_all_operators(&self) -> bool {
        self.operators.is_empty() && self.wasm && self.wgsl
    }

    /// Bytes of graphs, weights and inputs that one lease may have.
    #[must_use]
    pub fn memory_bytes_each(&self) -> u64 {
        match self.memory_mib {
            None => u64::MAX,
            Some(_) => self.each(self.memory_bytes()),
        }
    }

    /// Bytes that what one lease makes may have in sum.
    #[must_use]
    pub fn outputs_bytes(&self) -> u64 {
        self.outputs_mib
            .unwrap_or(OUTPUTS_MIB)
            .saturating_mul(1 << 20)
    }

    /// Bytes that jobs may have, all together.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_mib
            .map_or(u64::MAX, |mib| mib.saturating_mul(1 << 20))
    }

    /// Whether a device may be sold, and it is known what of it.
    pub fn check_device(&self, device: &Profile) -> Result<(), LimitRefusal> {
        self.check_class(device.kind.name())?;
        self.memory_sold(device).map(drop)
    }

    /// Bytes that are sold of a device: what it has, if that is known, and what is allowed.
    pub fn memory_sold(&self, device: &Profile) -> Result<u64, LimitRefusal> {
        // Beyond Linux nobody says what the machine has, and its CPU is sold all the same.
        let is_known = device.memory.bytes > 0 || matches!(device.kind, Kind::Cpu { .. });
        match self.memory_mib {
            None if !is_known => Err(LimitRefusal::MemoryUnknown {
                model: device.model.clone(),
            }),
            _ if !is_known => Ok(self.memory_bytes()),
            _ => Ok(device.memory.bytes.min(self.memory_bytes())),
        }
    }

    /// Minutes for which the device is still sold at this minute of the day; none where it is
    /// not, [`u64::MAX`] where it always is.
    pub fn minutes_left(&self, minute: u16) -> Option<u64> {
        if self.hours.is_empty() {
            return Some(u64::MAX);
        }
        let mut passed = 0;
        while passed < DAY {
            let at = (minute + passed) % DAY;
            let span = self.hours.iter().find(|hours| hours.contains(at));
            let Some(span) = span else {
                break;
            };
            passed += (span.to + DAY - at - 1) % DAY + 1;
        }
        match passed {
            0 => None,
            DAY.. => Some(u64::MAX),
            minutes => Some(u64::from(minutes)),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &u16) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_one(number: &u32) -> bool {
    *number == 1
}

impl Hours {
    /// Whether a minute of the day is in it.
    pub fn contains(self, minute: u16) -> bool {
        if self.from < self.to {
            (self.from..self.to).contains(&minute)
        } else {
            minute >= self.from || minute < self.to
        }
    }
}

impl FromStr for Hours {
    type Err = NoHours;

    fn from_str(text: &str) -> Result<Hours, NoHours> {
        let minute = |text: &str| {
            let (hours, minutes) = text.trim().split_once(':')?;
            let (hours, minutes): (u16, u16) = (hours.parse().ok()?, minutes.parse().ok()?);
            let minute = hours.checked_mul(60)?.checked_add(minutes)?;
            (minutes < 60 && minute <= DAY).then_some(minute)
        };
        let parse = || {
            let (from, to) = text.split_once('-')?;
            let (from, to) = (minute(from)?, minute(to)?);
            (from < DAY && from != to).then_some(Hours { from, to })
        };
        parse().ok_or_else(|| NoHours(text.to_owned()))
    }
}

impl TryFrom<String> for Hours {
    type Error = NoHours;

    fn try_from(text: String) -> Result<Hours, NoHours> {
        text.parse()
    }
}

impl From<Hours> for String {
    fn from(hours: Hours) -> String {
        hours.to_string()
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.from, self.to);
        write!(
            f,
            "{:02}:{:02}-{:02}:{:02}",
            from / 60,
            from % 60,
            to / 60,
            to % 60
        )
    }
}

fn allows(list: &[String], name: &str) -> bool {
    list.is_empty()
        || list
            .iter()
            .any(|allowed| allowed.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(hours: &[&str]) -> ProviderLimits {
        ProviderLimits {
            hours: hours.iter().map(|text| text.parse().unwrap()).collect(),
            ..ProviderLimits::default()
        }
    }

    #[test]
    fn hours_are_read_and_written_alike() {
        for text in ["08:00-18:30", "22:00-06:00", "00:00-24:00"] {
            assert_eq!(text.parse::<Hours>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "8-18",
            "08:00",
            "24:00-08:00",
            "08:00-08:00",
            "08:60-09:00",
            "1:-2:3",
        ] {
            assert!(text.parse::<Hours>().is_err(), "{text}");
        }
    }

    #[test]
    fn leases_share_what_there_is_and_each_has_a_core() {
        let limits = ProviderLimits {
            leases: 3,
            cores: Some(2),
            memory_mib: Some(300),
            ..ProviderLimits::default()
        };
        assert_eq!(limits.each(10), 3);
        assert_eq!(limits.memory_bytes_each(), 100 << 20);
        assert_eq!(limits.leases_over(), Some(2));
        let all = ProviderLimits {
            cores: None,
            ..limits
        };
        assert_eq!(all.leases_over(), None);
        let many = ProviderLimits {
            leases: LEASES_MAX + 1,
            ..all
        };
        assert_eq!(many.leases_over(), Some(LEASES_MAX));
        let none = ProviderLimits { leases: 0, ..many };
        assert_eq!(none.nothing(), Some("leases"));
    }

    #[test]
    fn the_device_is_sold_in_its_hours_and_no_longer() {
        let day = limits(&["08:00-18:00"]);
        assert_eq!(day.minutes_left(8 * 60), Some(600));
        assert_eq!(day.minutes_left(18 * 60 - 1), Some(1));
        assert_eq!(day.minutes_left(18 * 60), None);
        assert_eq!(day.minutes_left(7 * 60 + 59), None);
        let night = limits(&["22:00-06:00"]);
        assert_eq!(night.minutes_left(23 * 60), Some(7 * 60));
        assert_eq!(night.minutes_left(0), Some(6 * 60));
        assert_eq!(night.minutes_left(12 * 60), None);
    }

    #[test]
    fn spans_that_touch_are_one() {
        let both = limits(&["08:00-12:00", "12:00-13:00"]);
        assert_eq!(both.minutes_left(11 * 60), Some(120));
        assert_eq!(limits(&["00:00-24:00"]).minutes_left(77), Some(u64::MAX));
        assert_eq!(
            limits(&["00:00-12:00", "12:00-24:00"]).minutes_left(5),
            Some(u64::MAX)
        );
        assert_eq!(ProviderLimits::default().minutes_left(5), Some(u64::MAX));
    }

    #[test]
    fn what_is_not_allowed_is_refused_by_name() {
        let limits = ProviderLimits {
            memory_mib: Some(1),
            classes: vec!["gpu".to_owned()],
            operators: vec!["MatMul".to_owned(), "Relu".to_owned()],
            ..ProviderLimits::default()
        };
        assert!(limits.check_class("GPU").is_ok());
        let refused = limits.check_class("cpu").unwrap_err().to_string();
        assert!(
            refused.contains("cpu") && refused.contains("gpu"),
            "{refused}"
        );
        assert!(limits.check_operator("Relu").is_ok());
        let refused = limits.check_operator("Conv").unwrap_err().to_string();
        assert!(
            refused.contains("Conv") && refused.contains("MatMul, Relu"),
            "{refused}"
        );
        let bare: ProviderLimits = toml::from_str("wasm = false").unwrap();
        assert!(bare.check_kernel(Custom::Wgsl).is_ok() && !bare.allows_all_operators());
        let refused = bare.check_kernel(Custom::Wasm).unwrap_err().to_string();
        assert!(refused.contains("limits.wasm"), "{refused}");
        assert_eq!(limits.memory_bytes_each(), 1 << 20);
        assert_eq!(bare.memory_bytes_each(), u64::MAX);
    }

    #[test]
    fn of_a_device_whose_memory_is_not_known_its_owner_says_what_is_sold() {
        let mut card = souk_vocabulary::catalogue::find("nvidia-t4")
            .unwrap()
            .clone();
        let stated = ProviderLimits {
            memory_mib: Some(512),
            ..ProviderLimits::default()
        };
        assert_eq!(
            ProviderLimits::default().memory_sold(&card),
            Ok(card.memory.bytes)
        );
        assert_eq!(stated.memory_sold(&card), Ok(512 << 20));
        card.memory.bytes = 0;
        assert_eq!(stated.memory_sold(&card), Ok(512 << 20));
        let refused = ProviderLimits::default()
            .memory_sold(&card)
            .unwrap_err()
            .to_string();
        assert!(ProviderLimits::default().check_device(&card).is_err());
        assert!(
            refused.contains(&card.model) && refused.contains("limits.memory_mib"),
            "{refused}"
        );
    }

    #[test]
    fn a_limit_nobody_knows_is_refused_rather_than_ignored() {
        let refused = toml::from_str::<ProviderLimits>("price_minimum = 3").unwrap_err();
        assert!(refused.to_string().contains("price_minimum"), "{refused}");
    }
}
