//! The process in which the work of one lease is done: a *sandbox*.
//!
//! What a buyer sends is run neither in the node's process nor in another buyer's. A sandbox is
//! this same program, started again under the kernel's rules ([`SandboxPolicy`]), with one channel
//! to its provider and nothing else. Graphs, inputs and results cross that channel; large content
//! crosses as sealed memory, of which there is one copy whatever the number of sandboxes. A sandbox
//! ends with its lease. However it ends, the node goes on and can say how.
//!
//! The rules are Linux's. Elsewhere there are no sandboxes: [`Sandbox::start`] says so, and a
//! provider runs jobs in its own process or not at all.

#[cfg(not(target_os = "linux"))]
mod absent;
#[cfg(target_os = "linux")]
mod channel;
#[cfg(target_os = "linux")]
mod confinement;
mod fault;
#[cfg(target_os = "linux")]
mod group;
#[cfg(target_os = "linux")]
pub mod inside;
#[cfg(target_os = "linux")]
pub mod leaving;
#[cfg(target_os = "linux")]
mod messages;
mod policy;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod shared;

use std::path::PathBuf;
use std::time::Duration;

use souk_scheduler::execution::{Moment, Task};
use souk_scheduler::planning::Objective;
use souk_vocabulary::profile::Profile;

use crate::folder::config::{DeviceChoice, Fault};

#[cfg(not(target_os = "linux"))]
pub use absent::{Sandbox, SandboxPool};
pub use fault::SandboxFault;
#[cfg(target_os = "linux")]
pub use group::{ControlGroupError, ControlGroups};
pub use policy::{MissingRule, SandboxPolicy};
#[cfg(target_os = "linux")]
pub use process::{Sandbox, pool::SandboxPool};

/// The first argument of a process that is a sandbox.
pub const COMMAND: &str = "__sandbox";

/// A sandbox that does not say for so long that it lives is taken for stopped.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// How a run stands to others of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum RunMode {
    /// It is the only one at a time.
    ByItself,
    /// It is one of a stream, of which several may be at work.
    InStream,
}

/// A run that a sandbox is asked for.
pub(crate) struct SandboxRun {
    /// The part, and its inputs.
    pub(crate) task: Task,
    /// How it stands to others of the lease.
    pub(crate) run_mode: RunMode,
    /// When it is over at the latest, where that is known.
    pub(crate) deadline: Option<Moment>,
    /// Whether what the part takes is to be told too.
    pub(crate) is_weighed: bool,
    /// A fault to play, for tests.
    pub(crate) fault: Option<Fault>,
}

#[cfg(target_os = "linux")]
impl SandboxRun {
    /// A run that is the only one at a time and may take as long as it does.
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

/// How many processes a provider has for leases that are not at work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SandboxCounts {
    /// Those that wait for a lease.
    pub ready: usize,
    /// Those that start.
    pub starting: usize,
    /// Leases that wait for one.
    pub wanted: usize,
}

/// What the sandboxes of a provider are made from.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// This program, which becomes a sandbox when its first argument is [`COMMAND`].
    pub program: PathBuf,
    /// The devices.
    pub device: DeviceChoice,
    /// Threads that they may use at most.
    pub cores: Option<u32>,
    /// What they are called in reports.
    pub label: String,
    /// What they are, where that is known; a sandbox with GPUs finds out.
    pub profiles: Option<Vec<Profile>>,
    /// What they were seen to take.
    pub(crate) seen: std::sync::Arc<crate::device::costs::DeviceCosts>,
    /// What they make small.
    pub objective: Objective,
    /// The library of ONNX Runtime that they use.
    pub library: Option<PathBuf>,
    /// Bytes of memory that a job may use.
    pub memory_bytes: u64,
    /// Bytes that one run may give.
    pub outputs_bytes: u64,
    /// The control groups of this process, or why there are none.
    #[cfg(target_os = "linux")]
    pub groups: std::sync::Arc<Result<ControlGroups, ControlGroupError>>,
}
