//! Defines what a buyer asks for: a [`Job`] is an ONNX model, its inputs, and the buyer's
//! [`Limits`] on price, providers and time. `souk submit` fills it in from its arguments; the buyer
//! quotes and runs it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, Credits, Millis, Permille, Price, Regions};
use souk_memory::Tensor;
use souk_roles::clock::Micros;
use souk_scheduler::planning::Objective;
use souk_vocabulary::profile::Backend;

/// The longest run of a model whose time is not known before it runs, unless the user sets another
/// limit.
pub const TIME_MAX: Duration = Duration::from_secs(600);

/// The job of a buyer.
#[derive(Clone, Debug)]
pub struct Job {
    /// The ONNX model.
    pub model: Bytes,
    /// The folder of the model's external data, if it has any.
    pub folder: Option<PathBuf>,
    /// The inputs by name.
    pub inputs: BTreeMap<String, Tensor>,
    /// The buyer's limits.
    pub limits: Limits,
}

/// The inputs of one request.
#[derive(Clone, Debug)]
pub struct RequestInputs {
    /// The sequence of a session of which this request is a step.
    pub sequence: u32,
    /// The inputs by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// Whether you want the outputs that feed the next request too; answers without them are
    /// smaller.
    pub keep: bool,
}

impl From<BTreeMap<String, Tensor>> for RequestInputs {
    fn from(tensors: BTreeMap<String, Tensor>) -> Self {
        Self {
            sequence: 0,
            tensors,
            keep: true,
        }
    }
}

/// The limits of a job.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The most the job may ever cost, failed attempts included; none: the account's whole balance.
    pub budget: Option<Credits>,
    /// The highest price per device-second.
    pub price_max: Option<Price>,
    /// The fewest providers, each of which must have real work.
    pub providers_min: usize,
    /// The most providers that the job can use.
    pub providers_max: usize,
    /// Providers from which the job must not buy.
    pub excluded: Vec<AccountKey>,
    /// Whether the job may run on emulated devices.
    pub emulated: EmulatedDevices,
    /// Kinds of devices, or parts of their models' names, any of which suits; none for all.
    pub devices: Vec<String>,
    /// The backend that devices must use; none for any.
    pub backend: Option<Backend>,
    /// Whether devices must promise results that are the same bits on every machine, so that the
    /// buyer can dispute them.
    pub exact: bool,
    /// What the plan minimises.
    pub objective: Objective,
    /// The most time from the job's first plan to its last output; none for no limit.
    pub deadline: Option<Duration>,
    /// The least notice a provider must give before it takes a device back.
    pub notice_min: Millis,
    /// The allowed regions of devices; the empty set for anywhere.
    pub regions: Regions,
    /// The least reputation of a provider.
    pub reputation_min: Permille,
    /// On how many providers each part runs, 1 or 2: with two, the job compares their results.
    pub copies: usize,
    /// Whether providers can take devices back, with the notice they state. The job keeps the
    /// values that were computed by then.
    pub spot: bool,
    /// The longest run of a model whose time is not known before it runs, for example because of a
    /// loop whose count comes in the run: until then the buyer will extend its leases.
    pub time_max: Duration,
    /// How long to wait for devices that others have leased.
    pub wait: Duration,
    /// Requests that go through the model one after the other; 1 for a single run.
    pub requests: u32,
    /// How many sequences a session has; 0 if the job is no session. The providers of a session
    /// keep the model's states of each sequence, and the shapes of its requests can differ. Such a
    /// job ends with its leases.
    pub sequences: u32,
    /// How long a request of the session took at an earlier lease; none if there was none. The plan
    /// expects at least that, whatever asks state.
    pub request_time: Option<Duration>,
    /// The priority among this buyer's own jobs that want the same devices; none: the job waits for
    /// no other job and makes none wait.
    pub priority: Option<Priority>,
}

/// Whether a job may run on emulated devices, whose figures are another machine's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EmulatedDevices {
    /// In a testnet yes, as the market's file says; elsewhere no.
    #[default]
    InTestnets,
    /// In any market.
    Accepted,
    /// Nowhere: only on real devices.
    Refused,
}

impl EmulatedDevices {
    /// Returns the choice that two flags of a command or a request make.
    ///
    /// # Errors
    /// [`EmulatedAndReal`] if both are set.
    pub fn by_flags(emulated: bool, real: bool) -> Result<Self, EmulatedAndReal> {
        match (emulated, real) {
            (true, true) => Err(EmulatedAndReal),
            (true, false) => Ok(Self::Accepted),
            (false, true) => Ok(Self::Refused),
            (false, false) => Ok(Self::InTestnets),
        }
    }
}

/// A request sets both `emulated` and `real`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`emulated` and `real` exclude each other: leave one out")]
pub struct EmulatedAndReal;

/// The order of a buyer's own jobs that want the same devices, or run at the same provider at the
/// same time. It has no effect on other buyers' jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// After all others.
    Low,
    /// The priority of a job that states none.
    #[default]
    Normal,
    /// Before all others.
    High,
}

impl Limits {
    /// Converts the limits into those of the job's core.
    pub(super) fn to_core_limits(&self) -> souk_roles::job::Limits {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        souk_roles::job::Limits {
            budget: self.budget,
            deadline: self.deadline.map(Micros::from),
            time_max: self.time_max.into(),
            wait: self.wait.into(),
            providers_min: count(self.providers_min),
            providers_max: count(self.providers_max),
            excluded: self.excluded.clone(),
            regions: self.regions,
            reputation_min: self.reputation_min,
            notice_min: self.notice_min,
            copies: count(self.copies),
            spot: self.spot,
            priority: self.priority.unwrap_or_default() as u8,
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            budget: None,
            price_max: None,
            providers_min: 1,
            providers_max: 4,
            excluded: Vec::new(),
            emulated: EmulatedDevices::default(),
            devices: Vec::new(),
            backend: None,
            exact: false,
            objective: Objective::Fastest,
            deadline: None,
            notice_min: Millis(0),
            regions: Regions(0),
            reputation_min: Permille(0),
            copies: 1,
            spot: false,
            time_max: TIME_MAX,
            wait: Duration::ZERO,
            requests: 1,
            sequences: 0,
            request_time: None,
            priority: None,
        }
    }
}
