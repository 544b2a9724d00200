//! Runs tasks on one device, or on a group of several.
//!
//! A subgraph is content: its model and its weights are fetched from the store by id, so whoever
//! sent them, what runs is what was named. Compiled programs are kept, since the same subgraph is
//! mostly run again.

use std::sync::{Arc, OnceLock};

use souk_memory::holdings::PoolUse;
use souk_memory::space::MoveTotals;
use souk_memory::transfers::TransferCounts;
use souk_memory::{ContentId, Store};
use souk_vocabulary::processor::Processor;

use super::cancel::Cancel;
use super::error::{GroupError, GroupRunError, TaskError};
use super::group::{DeviceGroup, GroupConfig, GroupDevice, LostDevice, Request, Stream};
use super::metering;
use super::programs::Programs;
use super::sessions::Sessions;
use super::single_device::SingleDevice;
use super::single_history::SingleHistory;
use super::task::{Clock, Precedence, RunResult, Task, weights_of};
use super::turns::Turns;
use crate::learning::CostHistory;

/// Runs tasks on one device, or on several. Threads share it by reference; what runs at once
/// competes for the devices.
pub struct Runner {
    pub(super) store: Arc<Store>,
    label: String,
    pub(super) engine: Engine,
}

pub(super) enum Engine {
    /// The caller's thread runs the device, or owners take turns.
    One(Arc<SingleDevice>, Turns),
    /// Each device has a thread. A run goes on for a while where its caller left.
    Group(Arc<DeviceGroup>),
}

impl Runner {
    /// A runner of `processor`, called `label` in reports; `emulated` is added to it where due.
    #[must_use]
    pub fn new(
        label: &str,
        processor: Arc<dyn Processor>,
        store: Arc<Store>,
        clock: Arc<Clock>,
    ) -> Self {
        let label = metering::label(label, &*processor);
        let one = SingleDevice {
            seen: SingleHistory::new(&label, processor.clone()),
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
            engine: Engine::One(Arc::new(one), Turns::default()),
        }
    }

    /// A runner of several devices, which share each task as its plan says. `label` is what they
    /// are called together.
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn group(
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

    /// What the devices are called together; one device's name as reports show it.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The devices by the names that reports show.
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

    /// Bytes that several devices moved between memories so far, and what host memory holds of
    /// their tensors now. One device's tensors stay with its caller.
    #[must_use]
    pub fn memory(&self) -> Option<(MoveTotals, PoolUse)> {
        match &self.engine {
            Engine::One(..) => None,
            Engine::Group(device_group) => Some(device_group.memory()),
        }
    }

    /// Sets how many bytes of tensors between several devices host memory may hold. It grows, or
    /// shrinks and writes to disk what is over; one device's tensors stay with its caller.
    ///
    /// # Errors
    /// [`GroupRunError::Space`]: more than that is in use, or the disk is full or failed. What
    /// could go has gone.
    pub fn resize(&self, host_bytes_max: u64) -> Result<(), GroupRunError> {
        match &self.engine {
            Engine::One(..) => Ok(()),
            Engine::Group(device_group) => device_group.resize(host_bytes_max),
        }
    }

    /// Has the devices go on from what they were seen to take before.
    pub fn recall(&self, costs: &CostHistory) {
        match &self.engine {
            Engine::One(one, _) => one.seen.recall(costs),
            Engine::Group(device_group) => device_group.recall(costs),
        }
    }

    /// What the devices were seen to take.
    #[must_use]
    pub fn costs(&self) -> CostHistory {
        match &self.engine {
            Engine::One(one, _) => one.seen.costs(),
            Engine::Group(device_group) => device_group.costs(),
        }
    }

    /// Devices of several that were lost in a run and are given no work: each is tried again until
    /// it works or was tried often enough. One device by itself has each run anew.
    #[must_use]
    pub fn lost(&self) -> Vec<LostDevice> {
        match &self.engine {
            Engine::One(..) => Vec::new(),
            Engine::Group(device_group) => device_group.lost(),
        }
    }

    /// Transfers that several devices asked for ahead of need so far.
    #[must_use]
    pub fn transfers(&self) -> Option<TransferCounts> {
        match &self.engine {
            Engine::One(..) => None,
            Engine::Group(device_group) => Some(device_group.transfers()),
        }
    }

    /// Content that must be in the store before a model can run: its weights by name.
    ///
    /// # Errors
    /// [`TaskError::ModelMissing`], [`TaskError::Model`] or [`TaskError::Store`].
    pub fn weights_of(&self, model: ContentId) -> Result<Vec<(String, ContentId)>, TaskError> {
        weights_of(&self.store, model)
    }

    /// Makes a model ready, if it is not yet: what a provider does before it says it can run it.
    ///
    /// # Errors
    /// [`TaskError`]: what is missing or refused, by name.
    pub fn prepare(&self, model: ContentId) -> Result<(), TaskError> {
        match &self.engine {
            Engine::One(one, _) => one.program(model).map(|_| ()),
            Engine::Group(device_group) => device_group.prepare(model),
        }
    }

    /// Has one device keep the states of models whose tasks do not bring them: for a process that
    /// is one lease's own. Steps of several sequences may be run at once. A group keeps none.
    pub fn keep_sessions(&self) {
        if let Engine::One(one, _) = &self.engine {
            one.sessions.get_or_init(Sessions::default);
        }
    }

    /// Runs a task and says what it took.
    ///
    /// # Errors
    /// [`TaskError`]: what is missing, refused or failed, by name.
    pub fn run(&self, task: &Task) -> Result<RunResult, TaskError> {
        self.run_as(task, Precedence::default())
    }

    /// Runs a task that shares the devices with others by its precedence. What nobody owns shares
    /// one device as the threads of its callers do.
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

    /// Runs a task until somebody cancels it: then the caller is answered at once. What a device is
    /// at is let finish, and what it gives is thrown away.
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
            // A plan is made and inputs are held before any device has work that could be ended:
            // either may take long.
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

    /// Requests of a stream that keep every device at work: of several devices one more than there
    /// are, so that who ends one has the next; of one device, which runs them one by one, one.
    #[must_use]
    pub fn stream_ahead(&self) -> usize {
        match &self.engine {
            Engine::One(..) => 1,
            Engine::Group(device_group) => device_group.stream_ahead(),
        }
    }

    /// Runs a task as one of a stream, until somebody cancels it. Callers run several at a time,
    /// [`stream_ahead`](Self::stream_ahead) of them and no more: several devices are then each at
    /// work on another one, where that answers sooner than one by one. [`RunResult::busy`] is
    /// without what other requests of the stream were told before: together they have the time in
    /// which any device was at work. All else is each request's own.
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
