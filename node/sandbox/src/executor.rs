//! Runs the jobs of a provider: each lease in a sandbox, or all of them in this process if the
//! owner chose so.
//!
//! The provider opens its devices here at its start, and each lease gets an executor for its runs.

mod failures;
pub mod meter;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use souk_folder::clock::unix_us;
use souk_folder::config::{DeviceChoice, Fault, Isolation, ProviderFile};
use souk_host::system;
use souk_market::Price;
use souk_memory::{ContentId, Store};
use souk_roles::lease::Failure;
use souk_scheduler::execution::timeline::UnixMicros;
use souk_scheduler::execution::{
    Cancel, Clock, GroupError, GroupRunError, Precedence, RunResult, Runner, Stream, Task,
    TaskError,
};
use souk_vocabulary::processor::Processor;
use souk_vocabulary::profile::Profile;

use self::failures::not_prepared;
pub use self::failures::{NotPrepared, NotRun};
use crate::device::costs::DeviceCosts;
use crate::device::graph_operators::GraphOperators;
use crate::device::graph_work::{GraphWork, shapes_of};
use crate::device::group::{Between, build_runner};
use crate::device::measurement::{self, DeviceMeasurement};
use crate::device::onnxruntime_library::{self, Unusable};
use crate::device::{self, DeviceError};
use crate::{
    Recipe, RunMode, Sandbox, SandboxCounts, SandboxFault, SandboxPolicy, SandboxPool, SandboxRun,
};

/// The file of the isolation that the provider reached at its last start.
const ISOLATION_FILE: &str = "isolation.json";

/// Why the provider cannot run jobs.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// A device did not open.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A device on sale needs a library that is not usable.
    #[error(transparent)]
    Library(#[from] Unusable),
    /// The process for jobs did not open the devices.
    #[error(transparent)]
    Sandbox(#[from] SandboxFault),
    /// The devices cannot work together.
    #[error(transparent)]
    Group(#[from] GroupError),
}

/// The place where jobs run.
pub enum Executor {
    /// All jobs run in this process.
    Here(Arc<Runner>),
    /// Each lease runs in a process of its own.
    Sandboxed(SandboxPool),
}

/// The place where one lease runs. It can run several requests at once.
pub struct LeaseExecutor {
    place: LeaseProcess,
    run_mode: RunMode,
}

enum LeaseProcess {
    /// In this process, with the state that the requests of a stream share.
    Here(Arc<Runner>, Arc<Stream>),
    Sandboxed(Box<Sandbox>, SandboxPool),
}

/// Cancels a run when the task that waits for it is dropped.
#[derive(Default)]
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// How a provider isolates jobs, by its own report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsolationFile {
    /// Where jobs run.
    pub isolation: Isolation,
    /// The barriers between jobs and the machine.
    pub policy: SandboxPolicy,
}

/// An open executor, and the profiles of its devices.
pub struct OpenedDevices {
    /// The place where jobs run.
    pub executor: Executor,
    /// The devices' common name in reports.
    pub label: String,
    /// The profiles of the devices.
    pub profiles: Vec<Profile>,
    /// The share of the profile's peak that mixed work gets, if it is known.
    pub share: Option<f64>,
    /// The learned costs of the devices.
    pub seen: Arc<DeviceCosts>,
}

impl OpenedDevices {
    /// Opens the devices of a provider, here or in a sandbox.
    #[cfg_attr(
        not(target_os = "linux"),
        expect(
            unused_variables,
            reason = "no sandbox starts there, so none is asked what it is"
        )
    )]
    pub async fn new(
        home: &Path,
        file: &ProviderFile,
        program: PathBuf,
        store: &Arc<Store>,
    ) -> Result<OpenedDevices, ExecutorError> {
        let seen = DeviceCosts::load_or_default(home);
        let (choice, cores) = (file.device.clone(), file.limits.cores);
        let driven = device::has_driver(&choice);
        let apart = file.isolation != Isolation::None;
        let library = onnxruntime_library::settle_library(home, file, &program).await?;
        // If leases are isolated, the node's own process loads no foreign code.
        device::choose_library(library.as_deref().filter(|_| !apart))?;
        // A driver that crashes must not stop the node: then only sandboxes open it.
        let (devices, share) = if apart && driven {
            (Vec::new(), None)
        } else {
            open_or_measure(home.to_owned(), choice, cores).await?
        };
        if !apart {
            return OpenedDevices::open_in_process(home, file, devices, share, seen, store);
        }
        let known = (!driven).then(|| device::device_profiles(&devices));
        drop(devices);
        let threads = threads_each(device::threads_of(0, cores).get(), file);
        let mut recipe = Recipe {
            program,
            device: file.device.clone(),
            cores: u32::try_from(threads).ok(),
            label: file.name.clone(),
            profiles: known,
            seen: seen.clone(),
            objective: file.prefer,
            library,
            memory_bytes: 0,
            outputs_bytes: file.limits.outputs_bytes(),
            #[cfg(target_os = "linux")]
            groups: Arc::new(crate::ControlGroups::open_tree()),
        };
        recipe.memory_bytes = match &recipe.profiles {
            Some(profiles) => memory_for_jobs(&device::combine_profiles(profiles), file),
            None => file
                .limits
                .lease_share(never_more_than_there_is(file.limits.memory_bytes())),
        };
        let first = Sandbox::start(&recipe).await?;
        let profiles = first.profiles()?;
        // The first sandbox measures the devices for all later ones.
        recipe.profiles.get_or_insert_with(|| profiles.clone());
        for missing in &first.policy().missing {
            tracing::warn!(%missing, "a rule of the sandbox is missing");
        }
        if let Some(gap) = first
            .policy()
            .missing_wall()
            .filter(|_| file.isolation == Isolation::Process)
        {
            return Err(SandboxFault::Wall(gap.clone()).into());
        }
        store_policy(home, file.isolation, first.policy().clone());
        Ok(OpenedDevices {
            label: first.label().to_owned(),
            executor: Executor::Sandboxed(SandboxPool::new(recipe, first)),
            profiles,
            share,
            seen,
        })
    }
}

/// Opens devices, from their last measurement if it is still valid. Also returns the share of their
/// peak that mixed work gets, if a measurement exists.
async fn open_or_measure(
    home: PathBuf,
    choice: DeviceChoice,
    cores: Option<u32>,
) -> Result<(Vec<Arc<dyn Processor>>, Option<f64>), DeviceError> {
    let opening = move || {
        if !measurement::is_kept(&choice) {
            return Ok((device::open_devices(&choice, cores)?, None));
        }
        let now_seconds = unix_us() / 1_000_000;
        let known = DeviceMeasurement::read_or_measure(&home, &choice, cores, now_seconds)?;
        let devices = device::open_measured(&choice, cores, &known.profiles)?;
        Ok((devices, Some(known.share)))
    };
    let opened = tokio::task::spawn_blocking(opening).await;
    opened.expect("opening a device does not panic")
}

impl OpenedDevices {
    /// Opens the executor in this process.
    fn open_in_process(
        home: &Path,
        file: &ProviderFile,
        devices: Vec<Arc<dyn Processor>>,
        share: Option<f64>,
        seen: Arc<DeviceCosts>,
        store: &Arc<Store>,
    ) -> Result<OpenedDevices, ExecutorError> {
        tracing::warn!("jobs run in the provider's own process: isolation = \"none\"");
        let profiles = device::device_profiles(&devices);
        let clock: Arc<Clock> = Arc::new(|| UnixMicros(unix_us()));
        let runner = build_runner(
            Between::Folder(home),
            file.prefer,
            &file.name,
            devices,
            store,
            clock,
        )?;
        runner.load_history(&seen.current_costs());
        let label = runner.label().to_owned();
        store_policy(home, file.isolation, SandboxPolicy::default());
        Ok(OpenedDevices {
            executor: Executor::Here(Arc::new(runner)),
            label,
            profiles,
            share,
            seen,
        })
    }
}

impl IsolationFile {
    /// Reads what the provider of a folder reported at its last start.
    #[must_use]
    pub fn read(home: &Path) -> Option<IsolationFile> {
        let text = fs::read_to_string(home.join(ISOLATION_FILE)).ok()?;
        serde_json::from_str(&text).ok()
    }
}

/// Returns the memory that each job can use: its part of the offer, and never more than the machine
/// has.
fn memory_for_jobs(sold: &Profile, file: &ProviderFile) -> u64 {
    let all = never_more_than_there_is(sold.memory.bytes.min(file.limits.memory_bytes()));
    file.limits.lease_share(all)
}

/// Returns the threads of each lease's process. Leases share the cores according to their prices,
/// and each can use the idle ones. If the owner reserves cores, each lease gets an equal part of
/// the rest.
fn threads_each(threads: usize, file: &ProviderFile) -> usize {
    match file.limits.cores {
        None => threads,
        Some(_) => (threads / file.limits.leases.max(1) as usize).max(1),
    }
}

fn never_more_than_there_is(bytes: u64) -> u64 {
    bytes.min(system::memory_bytes().unwrap_or(u64::MAX))
}

fn store_policy(home: &Path, isolation: Isolation, policy: SandboxPolicy) {
    let kept = IsolationFile { isolation, policy };
    let text = serde_json::to_string_pretty(&kept).expect("it has only named fields");
    if let Err(error) = fs::write(home.join(ISOLATION_FILE), text + "\n") {
        tracing::warn!(%error, "`souk provider status` cannot show how jobs are isolated");
    }
}

impl Executor {
    /// Stops keeping spare processes for future leases.
    pub fn retire_spares(&self) {
        if let Executor::Sandboxed(pool) = self {
            pool.retire_spares();
        }
    }

    /// Returns the counts of the processes for leases, if there are any.
    pub fn sandbox_counts(&self) -> Option<SandboxCounts> {
        match self {
            Executor::Here(_) => None,
            Executor::Sandboxed(pool) => Some(pool.sandbox_counts()),
        }
    }

    /// Limits the bytes of tensors between the devices of this process: `limit` maps the bytes that
    /// they hold now to the most that they can hold. A lease's own process can use all the memory
    /// that the lease bought.
    pub fn fit_memory_limit(&self, limit: impl Fn(u64) -> u64) {
        let Executor::Here(runner) = self else { return };
        let Some((_, host)) = runner.memory_stats() else {
            return;
        };
        let limit = limit(host.used);
        if limit == host.limit {
            return;
        }
        if let Err(error) = runner.set_host_limit(limit) {
            tracing::debug!(%error, "the devices' memory limit could not be changed for now");
        }
    }

    /// Starts the place of a lease. A sandbox gets a share of the cores by the ratio of `price` to
    /// the provider's `own` price, and core time for the rest of the lease, which `left` returns
    /// once the sandbox runs.
    pub async fn for_lease(
        &self,
        price: Price,
        left: impl FnOnce() -> Duration,
        own: u64,
    ) -> Result<LeaseExecutor, Failure> {
        let pool = match self {
            Executor::Here(runner) => {
                return Ok(LeaseExecutor::new(LeaseProcess::Here(
                    runner.clone(),
                    Arc::default(),
                )));
            }
            Executor::Sandboxed(pool) => pool,
        };
        let sandbox = pool.take_sandbox().await.map_err(run_failed)?;
        if let Err(error) = sandbox.set_weight(price.0 as f64 / own.max(1) as f64) {
            tracing::warn!(%error, "could not set the CPU weight: leases share the cores equally");
        }
        let threads = device::threads_of(0, None).get();
        let all = left().saturating_mul(u32::try_from(threads).unwrap_or(u32::MAX));
        if let Err(error) = sandbox.limit_cpu(all) {
            tracing::warn!(%error, "a job's CPU time could not be limited");
        }
        let place = LeaseProcess::Sandboxed(Box::new(sandbox), pool.clone());
        Ok(LeaseExecutor::new(place))
    }
}

/// A task, and how to run it.
pub struct TaskRun {
    /// The task.
    pub task: Task,
    /// Its precedence over tasks of other leases.
    pub precedence: Precedence,
    /// Whether the result must include the work of the subgraph.
    pub is_weighed: bool,
    /// A fault that the sandbox simulates, for tests.
    pub fault: Option<Fault>,
}

impl LeaseExecutor {
    fn new(place: LeaseProcess) -> LeaseExecutor {
        let run_mode = RunMode::ByItself;
        LeaseExecutor { place, run_mode }
    }

    /// Returns the id of the lease's own process, if it has one.
    pub(crate) fn process_id(&self) -> Option<u32> {
        match &self.place {
            LeaseProcess::Here(..) => None,
            LeaseProcess::Sandboxed(sandbox, _) => sandbox.process_id(),
        }
    }

    /// Waits until the lease's own process ends by itself, and returns the failure. Returns none if
    /// the lease has no such process, or ends first.
    pub async fn wait_for_loss(place: Weak<LeaseExecutor>) -> Option<Failure> {
        let ending = match &place.upgrade()?.place {
            LeaseProcess::Here(..) => return None,
            LeaseProcess::Sandboxed(sandbox, _) => sandbox.wait_for_end(),
        };
        ending.await;
        match &place.upgrade()?.place {
            LeaseProcess::Here(..) => None,
            LeaseProcess::Sandboxed(sandbox, _) => Some(run_failed(sandbox.end_fault().await)),
        }
    }

    /// Changes the mode to that of a stream's requests.
    pub fn of_stream(self) -> LeaseExecutor {
        let run_mode = RunMode::InStream;
        LeaseExecutor { run_mode, ..self }
    }

    /// Returns how many runs keep the devices busy: one, except for a stream on several devices.
    pub fn runs_ahead(&self) -> usize {
        let of_stream = match &self.place {
            LeaseProcess::Here(runner, _) => runner.stream_ahead(),
            LeaseProcess::Sandboxed(sandbox, _) => sandbox.stream_ahead(),
        };
        match self.run_mode {
            RunMode::ByItself => 1,
            RunMode::InStream => of_stream.max(1),
        }
    }

    /// Reads the operators of a subgraph in the place where the lease runs.
    pub async fn inspect_model(
        &self,
        store: &Arc<Store>,
        model: ContentId,
        fault: Option<Fault>,
    ) -> Result<GraphOperators, Failure> {
        match &self.place {
            LeaseProcess::Here(..) => {
                let store = store.clone();
                let looking = tokio::task::spawn_blocking(move || {
                    let model = store.get(&model).ok().flatten();
                    GraphOperators::from_model(model.unwrap_or_default())
                });
                let found = looking.await;
                let found = found.map_err(|panicked| Failure::Compile(panicked.to_string()))?;
                found.map_err(|error| Failure::Limit(error.to_string()))
            }
            LeaseProcess::Sandboxed(sandbox, pool) => {
                let found = sandbox
                    .inspect_model(store, pool.shared_contents(), model, fault)
                    .await;
                found.map_err(|fault| match fault {
                    SandboxFault::Refused(reason) => Failure::Limit(reason),
                    fault => run_failed(fault),
                })
            }
        }
    }

    /// Compiles a subgraph, unless it is ready.
    pub async fn prepare_model(
        &self,
        store: &Arc<Store>,
        model: ContentId,
        weights: &[ContentId],
    ) -> Result<(), NotPrepared> {
        match &self.place {
            LeaseProcess::Here(runner, _) => {
                let (runner, given, store) = (runner.clone(), weights.to_vec(), store.clone());
                // The store also has other buyers' weights, so the model must use only these.
                let preparing = move || {
                    let named = runner.weights_of(model);
                    let named = named.map_err(|error| not_prepared(&error, &store, model))?;
                    let named = named.into_iter();
                    let mut others = named.filter(|(_, id)| !given.contains(id));
                    let prepared = match others.next() {
                        Some((name, id)) => Err(TaskError::WeightMissing { name, id }),
                        None => runner.prepare_model(model),
                    };
                    prepared.map_err(|error| not_prepared(&error, &store, model))
                };
                let prepared = tokio::task::spawn_blocking(preparing).await;
                prepared.map_err(|panicked| Failure::Compile(panicked.to_string()))?
            }
            LeaseProcess::Sandboxed(sandbox, pool) => {
                let prepared = sandbox
                    .prepare_model(store, pool.shared_contents(), model, weights)
                    .await;
                prepared.map_err(|fault| match fault {
                    SandboxFault::Refused(reason) => Failure::Compile(reason).into(),
                    SandboxFault::RefusedNode(node, reason) => NotPrepared {
                        failure: Failure::Compile(reason),
                        node: Some(node),
                    },
                    fault => run_failed(fault).into(),
                })
            }
        }
    }

    /// Runs a task. Also returns the work of its subgraph, if the task asks for it and it is known.
    /// You can drop the future to end the run: the sandbox ends with its lease, while a device in
    /// this process will finish only its current operation.
    pub async fn run(
        &self,
        store: &Arc<Store>,
        run: TaskRun,
    ) -> Result<(RunResult, Option<GraphWork>), NotRun> {
        match &self.place {
            LeaseProcess::Here(runner, stream) => {
                let weigh = {
                    let (store, model) = (store.clone(), run.task.model);
                    let shapes = shapes_of(&run.task.inputs);
                    move || GraphWork::from_model(store.get(&model).ok()??, &shapes)
                };
                let weigh_aside = || tokio::task::spawn_blocking(weigh.clone());
                let weighing = run.is_weighed.then(weigh_aside);
                let TaskRun {
                    task, precedence, ..
                } = run;
                let (runner, leaving) = (runner.clone(), CancelOnDrop::default());
                let (stream, run_mode) = (stream.clone(), self.run_mode);
                let cancel = leaving.0.clone();
                let running = move || match run_mode {
                    RunMode::ByItself => runner.run_until(&task, precedence, &cancel),
                    RunMode::InStream => runner.run_in_stream(&stream, &task, precedence, &cancel),
                };
                let ran = tokio::task::spawn_blocking(running).await;
                let ran = ran.map_err(|panicked| Failure::Run(panicked.to_string()))?;
                // The work bounds what the buyer owes for a run that its inputs made fail.
                let is_bad = matches!(&ran, Err(error) if error.is_bad_input());
                let work = match weighing.or_else(|| is_bad.then(weigh_aside)) {
                    Some(weighing) => weighing.await.ok().flatten(),
                    None => None,
                };
                match ran {
                    Ok(ran) => Ok((ran, work)),
                    Err(TaskError::Group(GroupRunError::Deadline)) => Err(Failure::Expired.into()),
                    Err(error) => match error.to_string() {
                        text if is_bad => Err(NotRun::bad_input(text, work)),
                        text => Err(Failure::Run(text).into()),
                    },
                }
            }
            LeaseProcess::Sandboxed(sandbox, _) => {
                let run = SandboxRun {
                    task: run.task,
                    run_mode: self.run_mode,
                    deadline: run.precedence.deadline,
                    is_weighed: run.is_weighed,
                    fault: run.fault,
                };
                sandbox.run(run).await.map_err(|fault| match fault {
                    SandboxFault::BadInput(text, work) => NotRun::bad_input(text, work),
                    fault => run_failed(fault).into(),
                })
            }
        }
    }
}

/// Converts a fault of a sandbox into the failure that the buyer receives.
fn run_failed(fault: SandboxFault) -> Failure {
    match fault {
        SandboxFault::OutOfMemory { limit_bytes } => Failure::Memory(limit_bytes),
        SandboxFault::OutOfTime => Failure::Expired,
        SandboxFault::Refused(reason) | SandboxFault::RefusedNode(_, reason) => {
            Failure::Run(reason)
        }
        SandboxFault::BadInput(reason, _) => Failure::BadInput(reason),
        SandboxFault::TooMuch { .. } => Failure::Limit(format!("{fault}: see limits.outputs_mib")),
        SandboxFault::Store(_) | SandboxFault::Memory(_) => Failure::Run(fault.to_string()),
        SandboxFault::NotHere { .. }
        | SandboxFault::Wall(_)
        | SandboxFault::Start(_)
        | SandboxFault::Device(_)
        | SandboxFault::Ended(_)
        | SandboxFault::Silent
        | SandboxFault::Confused => Failure::Crashed(fault.to_string()),
    }
}
