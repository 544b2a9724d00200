//! Replaces the sandbox's types on systems other than Linux, where no sandbox can exist: to start
//! one returns the reason, and no value of these types is ever created.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use souk_folder::config::Fault;
use souk_memory::{ContentId, Store};
use souk_scheduler::execution::RunResult;
use souk_vocabulary::profile::Profile;

use super::{JudgingFault, Recipe, SandboxFault, SandboxPolicy, SandboxRun};
use crate::device::graph_operators::GraphOperators;
use crate::device::graph_work::GraphWork;

/// A running sandbox; none can exist here.
#[derive(Debug)]
pub enum Sandbox {}

/// A provider's sandboxes; none can exist here.
#[derive(Clone, Debug)]
pub enum SandboxPool {}

/// Refuses, because a stranger's graph is computed behind walls only.
///
/// # Errors
/// [`SandboxFault::NotHere`], always.
pub async fn compute_outputs(
    _program: PathBuf,
    _store: &Arc<Store>,
    _graph: (ContentId, &[ContentId]),
    _inputs: &[ContentId],
) -> Result<BTreeSet<ContentId>, JudgingFault> {
    Err(SandboxFault::NotHere {
        system: std::env::consts::OS,
    }
    .into())
}

impl Sandbox {
    /// Refuses, because the walls need another system.
    ///
    /// # Errors
    /// [`SandboxFault::NotHere`], always.
    pub async fn start(_recipe: &Recipe) -> Result<Sandbox, SandboxFault> {
        Err(SandboxFault::NotHere {
            system: std::env::consts::OS,
        })
    }

    /// Returns the walls around the job.
    #[must_use]
    pub fn policy(&self) -> &SandboxPolicy {
        match *self {}
    }

    /// Returns the common name of its devices in reports.
    #[must_use]
    pub fn label(&self) -> &str {
        match *self {}
    }

    /// Returns the profiles of its devices.
    ///
    /// # Errors
    /// None: no sandbox exists.
    pub fn profiles(&self) -> Result<Vec<Profile>, SandboxFault> {
        match *self {}
    }

    /// Returns the id of the process, while it is not known to have ended.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        match *self {}
    }

    /// Returns how many requests of a stream keep its devices busy.
    #[must_use]
    pub fn stream_ahead(&self) -> usize {
        match *self {}
    }

    /// Sets the sandbox's weight, relative to others.
    ///
    /// # Errors
    /// None: no sandbox exists.
    pub fn set_weight(&self, _times: f64) -> io::Result<()> {
        match *self {}
    }

    /// Limits the CPU time of the sandbox's threads in sum.
    ///
    /// # Errors
    /// None: no sandbox exists.
    pub fn limit_cpu(&self, _time: Duration) -> io::Result<()> {
        match *self {}
    }

    /// Waits until the process ends.
    pub fn wait_for_end(&self) -> std::future::Pending<()> {
        match *self {}
    }

    /// Returns how the process ended.
    pub async fn end_fault(&self) -> SandboxFault {
        match *self {}
    }

    /// Returns the operators of a model.
    ///
    /// # Errors
    /// None: no sandbox exists.
    pub(crate) async fn inspect_model(
        &self,
        _store: &Arc<Store>,
        _shared: &(),
        _model: ContentId,
        _fault: Option<Fault>,
    ) -> Result<GraphOperators, SandboxFault> {
        match *self {}
    }

    /// Sends the sandbox a model and its weights to prepare.
    ///
    /// # Errors
    /// None: no sandbox exists.
    pub async fn prepare_model(
        &self,
        _store: &Arc<Store>,
        _shared: &(),
        _model: ContentId,
        _weights: &[ContentId],
    ) -> Result<(), SandboxFault> {
        match *self {}
    }

    /// Runs a part.
    ///
    /// # Errors
    /// None: no sandbox exists.
    pub(crate) async fn run(
        &self,
        _run: SandboxRun,
    ) -> Result<(RunResult, Option<GraphWork>), SandboxFault> {
        match *self {}
    }
}

impl SandboxPool {
    /// Returns a pool with a first sandbox, which cannot exist.
    #[must_use]
    pub fn new(_recipe: Recipe, first: Sandbox) -> SandboxPool {
        match first {}
    }

    /// Returns the content shared with all of them.
    #[must_use]
    pub fn shared_contents(&self) -> &() {
        match *self {}
    }

    /// Returns the number of sandboxes.
    #[must_use]
    pub fn sandbox_counts(&self) -> super::SandboxCounts {
        match *self {}
    }

    /// Ends the spare sandboxes, and keeps none from now on.
    pub fn retire_spares(&self) {
        match *self {}
    }

    /// Returns a sandbox for a lease.
    ///
    /// # Errors
    /// None: no pool exists.
    pub async fn take_sandbox(&self) -> Result<Sandbox, SandboxFault> {
        match *self {}
    }
}
