//! Defines the limits that a provider's owner sets, which hold at any price: leases (sold device
//! time), hours, classes, operators, cores, memory, price. A provider checks them when it describes
//! its device, when it offers it in an ask, and before it runs a graph.
//!
//! The checks depend only on their arguments, and each refusal names its limit.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use souk_onnx::custom::Custom;
use souk_vocabulary::profile::Profile;
use souk_vocabulary::taxonomy::ProcessorKind;

/// Minutes of a day.
const DAY: u16 = 24 * 60;

/// Notice before a spot lease ends: the time of one part of a typical job, and more than a provider
/// needs to learn of it.
pub const NOTICE_SECONDS: u32 = 5;

/// Default limit of the outputs of one lease, in mebibytes: a quarter of the folder for contents.
pub const OUTPUTS_MIB: u64 = 4_096;

/// The most leases that a provider can sell at once: each has a process, and all can run together.
pub const LEASES_MAX: u32 = 16;

/// A provider's limits. The default has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProviderLimits {
    /// Leases sold at once: each gets an equal part of the devices and of the memory.
    #[serde(skip_serializing_if = "is_one")]
    pub leases: u32,
    /// The most threads that all jobs together can use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// The mebibytes that all jobs together can use for graphs, weights and inputs; the provider's
    /// asks offer this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// The mebibytes that the outputs of one lease, including those between its parts, can take;
    /// 4,096 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outputs_mib: Option<u64>,
    /// Times of the day, in UTC, at which the device is for sale; none for all day.
    pub hours: Vec<Hours>,
    /// Kinds of device that can be sold, such as `cpu`; none for all.
    pub classes: Vec<String>,
    /// Operators that graphs can use, such as `MatMul`; none for all that the device runs.
    pub operators: Vec<String>,
    /// Whether the provider runs buyers' own kernels in WebAssembly.
    pub wasm: bool,
    /// Whether the provider runs buyers' own kernels in WGSL.
    pub wgsl: bool,
    /// The least price in micro-credits per device-second, whatever the pricing computes.
    pub price_min: u64,
    /// The price of a second in which a buyer holds the device idle, in per cent of the full price;
    /// the market's reserve if that is more.
    #[serde(skip_serializing_if = "is_zero")]
    pub idle_percent: u16,
    /// The least reputation of a buyer, 0 to 1000; a new one has 500.
    #[serde(skip_serializing_if = "is_zero")]
    pub buyer_reputation_min: u16,
    /// Seconds of notice before the provider takes back or displaces a spot lease; 5 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notice_seconds: Option<u32>,
    /// The watts that power domains can draw while this provider runs, by the names that `souk
    /// device power` shows; the provider sets them at its start and restores them when it stops.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub power_watts: BTreeMap<String, u32>,
}

/// A span of the day, from one minute to another; across midnight if the second is earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hours {
    from: u16,
    to: u16,
}

/// A text that is not a span of the day.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a span of the day like 08:00-18:30 (UTC)")]
pub struct NoHours(String);

/// Why a limit forbids a device or a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitRefusal {
    /// The limits exclude this kind of device.
    #[error("a {kind} is not sold here: limits.classes has {}", allowed.join(", "))]
    Class {
        /// The device's kind.
        kind: String,
        /// The kinds that can be sold.
        allowed: Vec<String>,
    },
    /// The limits exclude an operator.
    #[error("the operator {operator} is not run here: limits.operators has {}", allowed.join(", "))]
    Operator {
        /// The operator that the graph uses.
        operator: String,
        /// The operators that graphs can use.
        allowed: Vec<String>,
    },
    /// The limits exclude buyers' own kernels.
    #[error("buyers' own kernels in {language} are not run here: limits.{language} is false")]
    Kernel {
        /// The language of the kernels.
        language: &'static str,
    },
    /// The memory size of the device is unknown.
    #[error(
        "the memory of {model} is not known: state in limits.memory_mib how much of it is sold"
    )]
    MemoryUnknown {
        /// The model of the device.
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
    /// Returns the name of a limit of 0 that leaves jobs nothing, if there is one.
    #[must_use]
    pub fn zero_limit(&self) -> Option<&'static str> {
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

    /// Returns the most leases that the provider may sell at once, if the limits state more: each
    /// needs at least one core.
    #[must_use]
    pub fn leases_over(&self) -> Option<u32> {
        let most = LEASES_MAX.min(self.cores.unwrap_or(LEASES_MAX));
        (self.leases > most).then_some(most)
    }

    /// Returns one lease's share of a resource that all of them share.
    #[must_use]
    pub fn lease_share(&self, whole: u64) -> u64 {
        whole / u64::from(self.leases.max(1))
    }

    /// Checks that a device of this kind can be sold.
    pub fn check_class(&self, kind: &str) -> Result<(), LimitRefusal> {
        match is_allowed(&self.classes, kind) {
            true => Ok(()),
            false => Err(LimitRefusal::Class {
                kind: kind.to_owned(),
                allowed: self.classes.clone(),
            }),
        }
    }

    /// Checks that a graph can use this operator.
    pub fn check_operator(&self, operator: &str) -> Result<(), LimitRefusal> {
        match is_allowed(&self.operators, operator) {
            true => Ok(()),
            false => Err(LimitRefusal::Operator {
                operator: operator.to_owned(),
                allowed: self.operators.clone(),
            }),
        }
    }

    /// Checks that a graph may bring its own kernels in this language.
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

    /// Returns whether every graph can run, whatever operators it has.
    pub fn allows_all_operators(&self) -> bool {
        self.operators.is_empty() && self.wasm && self.wgsl
    }

    /// Returns the bytes of graphs, weights and inputs that one lease can have.
    #[must_use]
    pub fn memory_bytes_each(&self) -> u64 {
        match self.memory_mib {
            None => u64::MAX,
            Some(_) => self.lease_share(self.memory_bytes()),
        }
    }

    /// Returns the bytes that all outputs of one lease can take.
    #[must_use]
    pub fn outputs_bytes(&self) -> u64 {
        self.outputs_mib
            .unwrap_or(OUTPUTS_MIB)
            .saturating_mul(1 << 20)
    }

    /// Returns the bytes that all jobs together can have.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_mib
            .map_or(u64::MAX, |mib| mib.saturating_mul(1 << 20))
    }

    /// Checks that a device can be sold, and that the memory for sale is known.
    pub fn check_device(&self, device: &Profile) -> Result<(), LimitRefusal> {
        self.check_class(device.kind.name())?;
        self.memory_sold(device).map(drop)
    }

    /// Returns the bytes of a device for sale: its memory, if known, within the limit.
    pub fn memory_sold(&self, device: &Profile) -> Result<u64, LimitRefusal> {
        // Outside Linux the machine's memory is unknown, but its CPU is for sale all the same.
        let is_known = device.memory.bytes > 0 || matches!(device.kind, ProcessorKind::Cpu { .. });
        match self.memory_mib {
            None if !is_known => Err(LimitRefusal::MemoryUnknown {
                model: device.model.clone(),
            }),
            _ if !is_known => Ok(self.memory_bytes()),
            _ => Ok(device.memory.bytes.min(self.memory_bytes())),
        }
    }

    /// Returns the minutes for which the device is still for sale at this minute of the day; none
    /// if it is not, [`u64::MAX`] if it always is.
    pub fn minutes_left(&self, minute: u16) -> Option<u64> {
        if self.hours.is_empty() {
            return Some(u64::MAX);
        }
        let mut passed = 0;
        while passed < DAY {
            let at = (minute + passed) % DAY;
            let span = self.hours.iter().find(|hours| hours.contains_minute(at));
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
    /// Returns whether the span contains a minute of the day.
    pub fn contains_minute(self, minute: u16) -> bool {
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

fn is_allowed(list: &[String], name: &str) -> bool {
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
        assert_eq!(limits.lease_share(10), 3);
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
        assert_eq!(none.zero_limit(), Some("leases"));
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
        let mut card = souk_vocabulary::catalogue::find_processor("nvidia-t4")
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
