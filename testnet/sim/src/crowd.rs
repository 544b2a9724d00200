//! Simulates a *crowd*: a market of thousands of providers and their buyers in virtual time. `souk
//! testnet sim --providers N` runs it.
//!
//! It drives the cores (the state machines that decide) of real nodes:
//! [`souk_roles::provider::ProviderCore`], [`souk_roles::job::JobCore`], the market's client and
//! the exchange of a validator. It does not run consensus, which the other simulator of this crate
//! tests: a commit takes the measured time of real replicas, and each validator is a queue with the
//! costs in `costs`. A core that waits costs no processor time.

mod costs;
mod counts;
mod numbered;
mod supply;
#[cfg(test)]
mod tests;
mod wheel;
mod world;

pub use supply::DeviceModel;
pub use world::report::CrowdReport;

use world::Crowd;

/// The hour of the day at which a run begins: demand is then as high as in the mean of a day.
const FIRST_HOUR: u64 = 6;

/// The share of time for which a provider is present: after each presence it is away for an eighth
/// of its length.
const PRESENT: (u64, u64) = (8, 9);

/// Configuration of a crowd.
#[derive(Clone, Debug)]
pub struct CrowdConfig {
    /// Determines the whole run.
    pub seed: u64,
    /// The number of accounts that sell a device, and of those that buy.
    pub providers: usize,
    /// The number of buying accounts.
    pub buyers: usize,
    /// The length of the run in virtual minutes; leases can end after it.
    pub minutes: u64,
    /// The mean time for which a provider stays, in microseconds.
    pub churn_us: u64,
    /// Providers that vanish or bill too much, per thousand.
    pub liars_permille: u64,
    /// The number of validators, which must be one at least.
    pub replicas: usize,
    /// The devices that providers can sell.
    pub models: Vec<DeviceModel>,
}

impl CrowdConfig {
    /// Returns the virtual time at which demand ends.
    fn end_us(&self) -> u64 {
        self.minutes * 60_000_000
    }

    /// Returns the time of the day at a moment of the run, in microseconds.
    fn hour_us(&self, now: u64) -> u64 {
        now + FIRST_HOUR * 3_600_000_000
    }

    /// Returns the devices that are present in the mean.
    fn present_mean(&self) -> u64 {
        self.providers as u64 * PRESENT.0 / PRESENT.1
    }
}

/// Plays a crowd. Equal configurations will give equal reports.
///
/// # Panics
/// If there are no providers, buyers, validators or models.
#[must_use]
pub fn run(config: &CrowdConfig) -> CrowdReport {
    let counts = [config.providers, config.buyers, config.replicas];
    assert!(
        counts.iter().all(|count| *count > 0) && !config.models.is_empty(),
        "a crowd has providers, buyers, validators and models"
    );
    let mut world = Crowd::new(config);
    world.play();
    CrowdReport::from_world(&mut world)
}
