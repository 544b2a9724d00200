//! Runs tasks on one device, or on a group of several.
//!
//! A subgraph is content: the runner reads its model and its weights from the store by content id,
//! so it runs exactly the requested content, no matter which peer sent it. The runner keeps
//! compiled programs, because most subgraphs run again.

use std::sync::{Arc, OnceLock};

use souk_memory::holdings::PoolUse;
use souk_memory::space::MoveTotals;
use souk_memory::transfers::TransferCounts;
use souk_memory::{ContentId, Store};
use souk_vocabulary::processor::Processor;

use super::cancel::Cancel;
use super::device_queue::RunQueue;
use super::error::{GroupError, GroupRunError, TaskError};
use super::group::{DeviceGroup, GroupConfig, GroupDevice, LostDevice, Request, Stream};
use super::programs::Programs;
use super::run_figures;
use super::sessions::Sessions;
use super::single_device::SingleDevice;
use super::single_history::SingleHistory;
use super::task::{Clock, Precedence, RunResult, Task, weights_of};
use crate::learning::CostHistory;

/// Runs tasks on one device or on several. Threads share it by reference; concurrent runs compete
/// for the devices.
pub struct Runner {
    pub(super) store: Arc<Store>,
    label: String,
    pub(super) engine: Engine,
}

pub(super) enum Engine {
    /// The caller's thread runs the device, or owners take turns.
    One(Arc<SingleDevice>, RunQueue),
    /// Each device has its own thread. A run continues for a while after its caller has left.
    Group(Arc<DeviceGroup>),
}

impl Runner {
    /// Creates a runner of `processor` with the name `label` in reports. For an emulated device the
    /// name gets the suffix ` (emulated)`.
    #[must_use]
    pub fn new(
        label: &str,
        processor: Arc<dyn Processor>,
        store: Arc<Store>,
        clock: Arc<Clock>,
    ) -> Self {
        let label = run_figures::report_label(label, &*processor);
        let one = SingleDevice {
            history: SingleHistory::new(&label, processor.clone()),
            label: label.clone(),
            processor,
            store: store.clone(),
            clock,
            programs: Programs::default(),
            sessions: OnceLock::new(),
        };
        Self {
            store,
            label,
            engine: Engine::One(Arc::new(one), RunQueue::default()),
        }
    }

    /// Creates a runner of several devices that divide each task by a plan. `label` is the name of
    /// the group.
    ///
    /// # Errors
    /// [`GroupError`] if there are no devices, or the system refuses threads or memory.
    pub fn new_group(
        label: &str,
        members: Vec<GroupDevice>,
        store: Arc<Store>,
        clock: Arc<Clock>,
        config: GroupConfig,
    ) -> Result<Self, GroupError> {
        let device_group = DeviceGroup::new(label, members, store.clone(), clock, config)?;
        Ok(Self {
            store,
            label: label.to_owned(),
            engine: Engine::Group(Arc::new(device_group)),
        })
    }

    /// Returns the name of the group, or the name of the single device in reports.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the devices with their names in reports.
    #[must_use]
    pub fn devices(&self) -> Vec<(&str, &Arc<dyn Processor>)> {
        match &self.engine {
            Engine::One(one, _) => vec![(&one.label, &one.processor)],
            Engine::Group(device_group) => {
                let members = device_group.members().iter();
                members
                    .map(|member| (member.label.as_str(), &member.processor))
                    .collect()
            }
        }
    }

    /// Returns the bytes that a group has moved between memories, and the bytes of its tensors that
    /// host memory holds now. A single device returns none, because its tensors stay with its
    /// caller.
    #[must_use]
    pub fn memory_stats(&self) -> Option<(MoveTotals, PoolUse)> {
        match &self.engine {
            Engine::One(..) => None,
            Engine::Group(device_group) => Some(device_group.memory_stats()),
        }
    }

    /// Sets the maximum bytes of host memory for tensors between several devices. If you lower it,
    /// the group writes excess tensors to disk. A single device has no limit, because its tensors
    /// stay with its caller.
    ///
    /// # Errors
    /// [`GroupRunError::Space`] if the group uses more than that, or the disk is full or fails. The
    /// group has then evicted all that it can.
    pub fn set_host_limit(&self, host_bytes_max: u64) -> Result<(), GroupRunError> {
        match &self.engine {
            Engine::One(..) => Ok(()),
            Engine::Group(device_group) => device_group.set_host_limit(host_bytes_max),
        }
    }

    /// Loads the devices' cost history, so that estimates start from it.
    pub fn load_history(&self, costs: &CostHistory) {
        match &self.engine {
            Engine::One(one, _) => one.history.load_history(costs),
            Engine::Group(device_group) => device_group.load_history(costs),
        }
    }

    /// Returns the devices' cost history, which you can pass to [`recall`](Self::load_history)
    /// later.
    #[must_use]
    pub fn cost_history(&self) -> CostHistory {
        match &self.engine {
            Engine::One(one, _) => one.history.cost_history(),
            Engine::Group(device_group) => device_group.cost_history(),
        }
    }

    /// Returns the devices of a group that runs have lost and that get no work. The group retries
    /// each until it works, or until its retries are used up. A single device is never listed,
    /// because every run can try it again.
    #[must_use]
    pub fn lost_devices(&self) -> Vec<LostDevice> {
        match &self.engine {
            Engine::One(..) => Vec::new(),
            Engine::Group(device_group) => device_group.lost_devices(),
        }
    }

    /// Returns the number of transfers that a group has requested ahead of need.
    #[must_use]
    pub fn transfer_counts(&self) -> Option<TransferCounts> {
        match &self.engine {
            Engine::One(..) => None,
            Engine::Group(device_group) => Some(device_group.transfer_counts()),
        }
    }

    /// Returns the content that you must put into the store before a model can run: its weights by
    /// name.
    ///
    /// # Errors
    /// [`TaskError::ModelMissing`], [`TaskError::Model`] or [`TaskError::Store`].
    pub fn weights_of(&self, model: ContentId) -> Result<Vec<(String, ContentId)>, TaskError> {
        weights_of(&self.store, model)
    }

    /// Prepares a model, unless it is ready. A provider should do this before it offers to run the
    /// model.
    ///
    /// # Errors
    /// [`TaskError`] names the missing content or the refused node.
    pub fn prepare_model(&self, model: ContentId) -> Result<(), TaskError> {
        match &self.engine {
            Engine::One(one, _) => one.load_program(model).map(|_| ()),
            Engine::Group(device_group) => device_group.prepare_model(model),
        }
    }

    /// Makes a single device hold the states of models whose tasks do not bring them, for a process
    /// that serves one lease only. Steps of several sequences can then run together. A group
    /// ignores it.
    pub fn keep_sessions(&self) {
        if let Engine::One(one, _) = &self.engine {
            one.sessions.get_or_init(Sessions::default);
        }
    }

    /// Runs a task and returns its outputs and its costs.
    ///
    /// # Errors
    /// [`TaskError`] names the missing content, the refused node or the failed fragment.
    pub fn run(&self, task: &Task) -> Result<RunResult, TaskError> {
        self.run_as(task, Precedence::default())
    }

    /// Runs a task that shares the devices with others by its precedence. Tasks without an owner
    /// share a single device like the threads of their callers.
    ///
    /// # Errors
    /// As [`Runner::run`], and [`GroupRunError::Deadline`].
    pub fn run_as(&self, task: &Task, precedence: Precedence) -> Result<RunResult, TaskError> {
        match &self.engine {
            Engine::One(one, turns) => match precedence.owner {
                None => one.run(task),
                Some(_) => turns.run(one, task, precedence, None),
            },
            Engine::Group(device_group) => device_group.run(task, precedence, None),
        }
    }

    /// Runs a task until you cancel it from another thread, and then returns at once. The device
    /// finishes its current operation, and the runner discards the result.
    ///
    /// # Errors
    /// As [`Runner::run_as`], and [`GroupRunError::Cancelled`].
    pub fn run_until(
        &self,
        task: &Task,
        precedence: Precedence,
        cancel: &Cancel,
    ) -> Result<RunResult, TaskError> {
        match &self.engine {
            Engine::One(one, turns) if precedence.owner.is_some() && !one.is_step(task) => {
                turns.run(one, task, precedence, Some(cancel))
            }
            Engine::One(one, _) => {
                let (one, task) = (one.clone(), task.clone());
                let ran = cancel
                    .run(move || one.run(&task))
                    .map_err(GroupRunError::Thread)?;
                ran.unwrap_or(Err(GroupRunError::Cancelled.into()))
            }
            // Planning and loading of inputs come before any device has work to cancel, and both
            // can take long.
            Engine::Group(device_group) => {
                let (device_group, task, own) =
                    (device_group.clone(), task.clone(), cancel.clone());
                let ran = cancel
                    .run(move || device_group.run(&task, precedence, Some(&own)))
                    .map_err(GroupRunError::Thread)?;
                ran.unwrap_or(Err(GroupRunError::Cancelled.into()))
            }
        }
    }

    /// Returns the number of concurrent requests of a stream that keeps every device busy: one more
    /// than the devices of a group, so that a device that ends one can start the next; one for a
    /// single device.
    #[must_use]
    pub fn stream_ahead(&self) -> usize {
        match &self.engine {
            Engine::One(..) => 1,
            Engine::Group(device_group) => device_group.stream_ahead(),
        }
    }

    /// Runs a task as one of a stream, until another thread cancels it. You should run
    /// [`stream_ahead`](Self::stream_ahead) requests at a time and no more: each device of a group
    /// then works on a different request, if that answers sooner than one request at a time.
    /// [`RunResult::busy`] omits time that other requests of the stream report, so that their sum
    /// is the time in which any device worked. All other figures belong to this request alone.
    ///
    /// # Errors
    /// As [`Runner::run_until`].
    pub fn run_in_stream(
        &self,
        stream: &Stream,
        task: &Task,
        precedence: Precedence,
        cancel: &Cancel,
    ) -> Result<RunResult, TaskError> {
        let begun = &|| ();
        self.run_request(Request { stream, begun }, task, precedence, cancel)
    }

    pub(super) fn run_request(
        &self,
        request: Request<'_>,
        task: &Task,
        precedence: Precedence,
        cancel: &Cancel,
    ) -> Result<RunResult, TaskError> {
        match &self.engine {
            Engine::One(..) => self.run_until(task, precedence, cancel),
            Engine::Group(device_group) => {
                device_group.run_in_stream(request, task, precedence, Some(cancel))
            }
        }
    }
}
