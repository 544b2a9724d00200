//! A job: a model, its inputs, and what the buyer will bear.

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

/// How long a run may take of which nobody knows beforehand how long it takes, where its user does
/// not say.
pub const TIME_MAX: Duration = Duration::from_secs(600);

/// What a buyer wants run.
#[derive(Clone, Debug)]
pub struct Job {
    /// The ONNX model.
    pub model: Bytes,
    /// The folder in which the model's external data lies, if it has any.
    pub folder: Option<PathBuf>,
    /// The inputs by name.
    pub inputs: BTreeMap<String, Tensor>,
    /// What the buyer will bear.
    pub limits: Limits,
}

/// What is asked once.
#[derive(Clone, Debug)]
pub struct RequestInputs {
    /// The sequence that it is a step of, of a session.
    pub sequence: u32,
    /// The inputs by name.
    pub tensors: BTreeMap<String, Tensor>,
}

impl From<BTreeMap<String, Tensor>> for RequestInputs {
    fn from(tensors: BTreeMap<String, Tensor>) -> Self {
        let sequence = 0;
        Self { sequence, tensors }
    }
}

/// What a buyer will bear.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The most the job may ever cost, all that failed on the way counted; none for whatever the
    /// account has.
    pub budget: Option<Credits>,
    /// The most per device-second.
    pub price_max: Option<Price>,
    /// The fewest providers, each with real work.
    pub providers_min: usize,
    /// The most providers.
    pub providers_max: usize,
    /// Providers not to buy from.
    pub excluded: Vec<AccountKey>,
    /// Whether devices will do that are only emulated.
    pub emulated: EmulatedDevices,
    /// Kinds of devices, or parts of their models' names, any of which will do; none for all.
    pub devices: Vec<String>,
    /// What devices must go through; none for anything.
    pub backend: Option<Backend>,
    /// What to make small.
    pub objective: Objective,
    /// The most the job may take from its first plan to its last output; none for any time.
    pub deadline: Option<Duration>,
    /// The least notice a provider must give before it takes a device back.
    pub notice_min: Millis,
    /// Where devices may be; the empty set for anywhere.
    pub regions: Regions,
    /// The least reputation of a provider.
    pub reputation_min: Permille,
    /// On how many providers each part is run, 1 or 2: with two, their results are compared.
    pub copies: usize,
    /// Whether providers may take devices back, with the notice they state: what was computed by
    /// then is kept.
    pub spot: bool,
    /// The most that a run may take of which nobody knows beforehand how long it takes, such as a
    /// loop by a count that comes in the run: its leases are made longer until then.
    pub time_max: Duration,
    /// How long to wait for devices that others have leased.
    pub wait: Duration,
    /// Requests that go through the model one behind the other; 1 for a single run.
    pub requests: u32,
    /// Where those are the steps of a session, of how many sequences, else 0: what the model calls
    /// states stays with the providers, for each sequence its own, and the requests may differ in
    /// shape. Such a job ends where its leases do.
    pub sequences: u32,
    /// Its place among this buyer's own jobs that want the same devices; none to stand back for no
    /// job and have none stand back.
    pub priority: Option<Priority>,
}

/// Whether a job may run on devices that are only emulated: their figures are another machine's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EmulatedDevices {
    /// In a testnet yes, as its market's file says, and nowhere else.
    #[default]
    InTestnets,
    /// In any market.
    Accepted,
    /// Nowhere: only devices that are really there.
    Refused,
}

impl EmulatedDevices {
    /// By two flags of a command or a request.
    ///
    /// # Errors
    /// [`EmulatedAndReal`]: when it has both.
    pub fn by_flags(emulated: bool, real: bool) -> Result<Self, EmulatedAndReal> {
        match (emulated, real) {
            (true, true) => Err(EmulatedAndReal),
            (true, false) => Ok(Self::Accepted),
            (false, true) => Ok(Self::Refused),
            (false, false) => Ok(Self::InTestnets),
        }
    }
}

/// Emulated devices are both wanted and not wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`emulated` and `real` exclude each other: leave one out")]
pub struct EmulatedAndReal;

/// Which of a buyer's own jobs goes first where they want the same devices, or are at work at one
/// provider at once; nothing to all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// After all others.
    Low,
    /// Where nothing is said.
    #[default]
    Normal,
    /// Before all others.
    High,
}

impl Limits {
    /// What the core of a job is told of them.
    pub(super) fn told(&self) -> souk_roles::job::Limits {
        let micros = |time: Duration| Micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        souk_roles::job::Limits {
            budget: self.budget,
            deadline: self.deadline.map(micros),
            time_max: micros(self.time_max),
            wait: micros(self.wait),
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
            priority: None,
        }
    }
}
