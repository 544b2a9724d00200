//! Sandboxes where there are none: no value of these types exists, and starting one says why.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use souk_memory::{ContentId, Store};
use souk_scheduler::execution::RunResult;
use souk_vocabulary::profile::Profile;

use super::{Recipe, SandboxFault, SandboxPolicy, SandboxRun};
use crate::device::graph_operators::GraphOperators;
use crate::device::graph_work::GraphWork;
use crate::folder::config::Fault;

/// A running sandbox, of which there is none.
#[derive(Debug)]
pub enum Sandbox {}

/// A provider's sandboxes, which cannot be.
#[derive(Clone, Debug)]
pub enum SandboxPool {}

impl Sandbox {
    /// Refuses: the rules are those of another system.
    ///
    /// # Errors
    /// [`SandboxFault::NotHere`], always.
    pub async fn start(_recipe: &Recipe) -> Result<Sandbox, SandboxFault> {
        Err(SandboxFault::NotHere {
            system: std::env::consts::OS,
        })
    }

    /// What keeps the work in.
    #[must_use]
    pub fn policy(&self) -> &SandboxPolicy {
        match *self {}
    }

    /// What its devices are called together in reports.
    #[must_use]
    pub fn label(&self) -> &str {
        match *self {}
    }

    /// What its devices are.
    ///
    /// # Errors
    /// None: there is no sandbox to ask.
    pub fn profiles(&self) -> Result<Vec<Profile>, SandboxFault> {
        match *self {}
    }

    /// The process, while it is not known to have ended.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        match *self {}
    }

    /// Requests of a stream that keep its devices at work.
    #[must_use]
    pub fn stream_ahead(&self) -> usize {
        match *self {}
    }

    /// Has the sandbox count so many times as much as others.
    ///
    /// # Errors
    /// None: there is no sandbox to ask.
    pub fn weigh(&self, _times: f64) -> io::Result<()> {
        match *self {}
    }

    /// Lets the sandbox's threads compute for no longer than this in sum.
    ///
    /// # Errors
    /// None: there is no sandbox to ask.
    pub fn limit_cpu(&self, _time: Duration) -> io::Result<()> {
        match *self {}
    }

    /// Waits until the process ends.
    pub fn ending(&self) -> std::future::Pending<()> {
        match *self {}
    }

    /// How the process ended.
    pub async fn fault(&self) -> SandboxFault {
        match *self {}
    }

    /// The operators of a model.
    ///
    /// # Errors
    /// None: there is no sandbox to ask.
    pub(crate) async fn inspect(
        &self,
        _store: &Arc<Store>,
        _shared: &(),
        _model: ContentId,
        _fault: Option<Fault>,
    ) -> Result<GraphOperators, SandboxFault> {
        match *self {}
    }

    /// Gives the sandbox a model and its weights.
    ///
    /// # Errors
    /// None: there is no sandbox to ask.
    pub async fn prepare(
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
    /// None: there is no sandbox to ask.
    pub(crate) async fn run(
        &self,
        _run: SandboxRun,
    ) -> Result<(RunResult, Option<GraphWork>), SandboxFault> {
        match *self {}
    }
}

impl SandboxPool {
    /// The sandboxes after a first one, which cannot be.
    #[must_use]
    pub fn new(_recipe: Recipe, first: Sandbox) -> SandboxPool {
        match first {}
    }

    /// What is shared with them.
    #[must_use]
    pub fn shared(&self) -> &() {
        match *self {}
    }

    /// How many there are.
    #[must_use]
    pub fn counts(&self) -> super::SandboxCounts {
        match *self {}
    }

    /// Lets none wait for a lease any more.
    pub fn retire(&self) {
        match *self {}
    }

    /// A sandbox for a lease.
    ///
    /// # Errors
    /// None: there is nothing to take one from.
    pub async fn take(&self) -> Result<Sandbox, SandboxFault> {
        match *self {}
    }
}
