//! Runs the jobs of a provider: opens its devices, and does the work of each lease in a process of
//! its own, a *sandbox*.
//!
//! A buyer's job runs neither in the node's process nor in another buyer's. A sandbox is this same
//! program, started again under the kernel's rules ([`SandboxPolicy`]), with one channel to its
//! provider and nothing else. Graphs, inputs and results cross that channel; large content crosses
//! as sealed memory, of which there is one copy however many sandboxes there are. A sandbox ends
//! with its lease. However it ends, the node continues and can report the cause.
//!
//! The rules are Linux's. Other systems have no sandboxes: there [`Sandbox::start`] fails, and a
//! provider must run jobs in its own process or not at all.
//!
//! Beside the sandbox are [`device`], which opens the devices that a provider's file names and
//! computes what an ask states of them, and [`executor`], which runs leases in sandboxes or in the
//! provider's own process. The crate knows no peers, so a change of the network does not compile it
//! anew.
//!
//! ```
//! use souk_folder::config::DeviceChoice;
//! use souk_folder::limits::ProviderLimits;
//! use souk_sandbox::device;
//!
//! let choice = DeviceChoice::new_emulated("nvidia-t4");
//! let devices = device::open_devices(&choice, None)?;
//! let whole = device::combine_profiles(&device::device_profiles(&devices));
//! let stated = device::stated_resources(&choice, &whole, &ProviderLimits::default());
//! assert!(stated.emulated && stated.class().emulated);
//! # Ok::<(), device::DeviceError>(())
//! ```

#![forbid(unsafe_code)]

#[cfg(not(target_os = "linux"))]
mod absent;
#[cfg(target_os = "linux")]
mod channel;
#[cfg(target_os = "linux")]
mod confinement;
pub mod device;
pub mod executor;
mod fault;
#[cfg(target_os = "linux")]
mod group;
#[cfg(target_os = "linux")]
pub mod inside;
#[cfg(target_os = "linux")]
mod judging;
#[cfg(target_os = "linux")]
pub mod leaving;
#[cfg(target_os = "linux")]
mod messages;
mod policy;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod shared_content;

use std::path::PathBuf;
use std::time::Duration;

use souk_folder::config::{DeviceChoice, Fault};
use souk_scheduler::execution::{Moment, Task};
use souk_scheduler::planning::Objective;
use souk_vocabulary::profile::Profile;

#[cfg(not(target_os = "linux"))]
pub use absent::{Sandbox, SandboxPool, compute_outputs};
pub use fault::SandboxFault;
#[cfg(target_os = "linux")]
pub use group::{ControlGroupError, ControlGroups};
#[cfg(target_os = "linux")]
pub use judging::compute_outputs;
pub use policy::{MissingRule, SandboxPolicy};
#[cfg(target_os = "linux")]
pub use process::{Sandbox, pool::SandboxPool};

/// The first argument of a process that is a sandbox.
pub const COMMAND: &str = "__sandbox";

/// A busy sandbox must send a sign of life within this time, or the provider treats it as stopped.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// In place of the name of an input: the only one that the graph has. A judge does not decode
/// graphs itself, and no value of ONNX has this name.
const ONLY_INPUT: &str = "";

/// Why a judge could not compute a disputed graph.
#[derive(Debug, thiserror::Error)]
pub enum JudgingFault {
    /// The sandbox, the graph or a run failed.
    #[error(transparent)]
    Sandbox(#[from] SandboxFault),
    /// A content is not in the store, or is no tensor.
    #[error("{id} is not there as a tensor")]
    Missing {
        /// The content.
        id: souk_memory::ContentId,
    },
    /// The runs took too long.
    #[error("the work takes longer than a judge may compute")]
    Late,
}

/// How a run relates to others of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum RunMode {
    /// It runs alone.
    ByItself,
    /// It is one run of a stream, of which several can overlap.
    InStream,
}

/// A run for a sandbox.
pub(crate) struct SandboxRun {
    /// The part with its inputs.
    pub(crate) task: Task,
    /// How it relates to others of the lease.
    pub(crate) run_mode: RunMode,
    /// The latest end of the run, if that is known.
    pub(crate) deadline: Option<Moment>,
    /// Whether the result must state the work of the part.
    pub(crate) is_weighed: bool,
    /// A fault to play, for tests.
    pub(crate) fault: Option<Fault>,
}

#[cfg(target_os = "linux")]
impl SandboxRun {
    /// Returns a run that runs alone, without a deadline.
    fn by_itself(task: Task) -> SandboxRun {
        SandboxRun {
            task,
            run_mode: RunMode::ByItself,
            deadline: None,
            is_weighed: false,
            fault: None,
        }
    }
}

/// The sandboxes of a provider that do not work for a lease yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SandboxCounts {
    /// Spare sandboxes that wait for a lease.
    pub ready: usize,
    /// Sandboxes that are starting.
    pub starting: usize,
    /// Leases that wait for a sandbox.
    pub wanted: usize,
}

/// The configuration of a provider's sandboxes.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The path of this program, which becomes a sandbox if its first argument is [`COMMAND`].
    pub program: PathBuf,
    /// The devices to open.
    pub device: DeviceChoice,
    /// The most threads that they can use.
    pub cores: Option<u32>,
    /// Their common name in reports.
    pub label: String,
    /// Their profiles, if known; a sandbox with GPUs determines them.
    pub profiles: Option<Vec<Profile>>,
    /// Their measured costs.
    pub(crate) seen: std::sync::Arc<device::costs::DeviceCosts>,
    /// Their objective.
    pub objective: Objective,
    /// The library of ONNX Runtime that they use.
    pub library: Option<PathBuf>,
    /// Bytes of memory that a job can use.
    pub memory_bytes: u64,
    /// The most bytes of outputs in one run.
    pub outputs_bytes: u64,
    /// The control groups of this process, or why there are none.
    #[cfg(target_os = "linux")]
    pub groups: std::sync::Arc<Result<ControlGroups, ControlGroupError>>,
}
