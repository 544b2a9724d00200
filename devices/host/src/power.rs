//! Reads counters of energy and reads or changes limits of power, where the system gives a program
//! access.
//!
//! A domain has a counter or a limit of its own: a package of the CPU (Linux's powercap) or an
//! NVIDIA card (NVML). This module changes a limit only on request; the caller must restore the
//! former limit afterwards.

#[cfg(feature = "cuda")]
mod nvml;
mod powercap;

use std::path::Path;

use serde::{Deserialize, Serialize};
use thiserror::Error;

#[cfg(feature = "cuda")]
pub use nvml::Card;
pub use powercap::Meter;

/// Folder in which Linux lists the domains that can be capped.
const POWERCAP: &str = "/sys/class/powercap";

/// A device, or a part of one, with an energy counter or a power limit of its own.
pub trait PowerDomain: Send + Sync {
    /// Returns the domain's name, such as `intel-rapl:0`, which stays the same over restarts.
    fn name(&self) -> &str;

    /// Returns a description in words.
    fn title(&self) -> &str;

    /// Returns the joules used since an unknown start; `None` where the domain has no counter or
    /// this process may not read it.
    fn energy_joules(&self) -> Option<f64>;

    /// Returns the part of recent time that the domain worked, for all processes, 0 to 1; `None`
    /// where nothing counts it.
    fn busy_fraction(&self) -> Option<f64> {
        None
    }

    /// Returns the present limit, and the range of limits that the domain accepts.
    ///
    /// # Errors
    /// Returns a [`PowerError`] where the domain has no limit or this process may not read it.
    fn power_limit(&self) -> Result<Limit, PowerError>;

    /// Changes the limit. The caller must restore the former limit afterwards.
    ///
    /// # Errors
    /// Returns a [`PowerError`] if `watts` is out of range or the system refuses. The system can
    /// refuse a process that is not root.
    fn set_limit(&self, watts: f64) -> Result<(), PowerError>;

    /// Sets a limit again that was in force earlier, which can be above the stated maximum.
    ///
    /// # Errors
    /// As [`PowerDomain::set_limit`].
    fn restore_limit(&self, watts: f64) -> Result<(), PowerError>;
}

/// A limit on a domain's power, averaged over a time that the maker chose.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// The present limit in watts.
    pub watts: f64,
    /// The least that can be set, where the system says.
    pub watts_min: Option<f64>,
    /// The most that can be set, where the system says; at least the present limit.
    pub watts_max: Option<f64>,
}

/// Why a domain was not found, or its limit was not read or not changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PowerError {
    /// There is no such domain.
    #[error("no power domain is called \"{name}\"; {}", known_names(known))]
    Unknown {
        /// The requested name.
        name: String,
        /// Names of the existing domains.
        known: Vec<String>,
    },
    /// The domain has no limit.
    #[error("{domain} has no power limit")]
    Unlimited {
        /// Name of the domain.
        domain: String,
    },
    /// The value is outside the range that the domain accepts.
    #[error("{watts} W is not a limit for {domain}: it accepts {range}")]
    Range {
        /// Name of the domain.
        domain: String,
        /// The requested limit in watts.
        watts: String,
        /// The range that the domain accepts.
        range: String,
    },
    /// The system refuses.
    #[error("the power limit of {domain} cannot be accessed: {cause}")]
    Refused {
        /// Name of the domain.
        domain: String,
        /// The system's message.
        cause: String,
    },
}

fn known_names(known: &[String]) -> String {
    match known {
        [] => "this system shows none (powercap on Linux; NVML with the feature `cuda`)".to_owned(),
        known => format!("there are: {}", known.join(", ")),
    }
}

/// Returns the domains of this machine, CPU packages first.
#[must_use]
pub fn list_domains() -> Vec<Box<dyn PowerDomain>> {
    let packages = powercap::list_packages(Path::new(POWERCAP)).into_iter();
    let packages = packages.map(|package| Box::new(package) as Box<dyn PowerDomain>);
    #[cfg(feature = "cuda")]
    let packages = packages.chain(
        nvml::find_cards()
            .into_iter()
            .map(|card| Box::new(card) as Box<dyn PowerDomain>),
    );
    packages.collect()
}

/// Returns the domain with this name.
///
/// # Errors
/// Returns [`PowerError::Unknown`] with the names of the existing domains.
pub fn find_domain(name: &str) -> Result<Box<dyn PowerDomain>, PowerError> {
    let mut all = list_domains();
    match all.iter().position(|domain| domain.name() == name) {
        Some(place) => Ok(all.swap_remove(place)),
        None => Err(PowerError::Unknown {
            name: name.to_owned(),
            known: all.iter().map(|it| it.name().to_owned()).collect(),
        }),
    }
}

/// Refuses a limit outside the domain's range before the system sees it.
fn check_range(domain: &str, watts: f64, limit: &Limit) -> Result<(), PowerError> {
    let least = limit.watts_min.unwrap_or(1.0);
    let most = limit.watts_max.unwrap_or(f64::from(u32::MAX) / 1e6);
    if (least..=most).contains(&watts) {
        return Ok(());
    }
    Err(PowerError::Range {
        domain: domain.to_owned(),
        watts: watts.to_string(),
        range: format!("{least} to {most} W"),
    })
}
