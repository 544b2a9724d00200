//! Runs inside a sandbox, the process that does the work of one lease: it confines itself, opens
//! the devices, and carries out the provider's orders.
//!
//! One thread works, and one more for each request of a stream. One receives orders, and one sends
//! signs of life. The receiving thread ends the process when the channel closes, however busy the
//! others are, so no sandbox outlives its provider.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{ExitCode, abort, exit};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use souk_folder::clock::unix_us;
use souk_folder::config::{DeviceChoice, Fault};
use souk_host::sealed_memory::SealedMemory;
use souk_memory::{ContentId, Store, Tensor};
use souk_registry::warm;
use souk_scheduler::execution::timeline::UnixMicros;
use souk_scheduler::execution::{
    Cancel, Clock, GroupRunError, Moment, Precedence, RunResult, Runner, Stream, Task, TaskError,
};
use souk_vocabulary::profile::Profile;
use souk_vocabulary::taxonomy::ProcessorKind;

use super::shared_content::SharedContent;
use super::{ONLY_INPUT, RunMode, SandboxPolicy};
use crate::channel::SandboxEnd;
use crate::confinement::{Confinement, check_single_thread};
use crate::device::graph_operators::GraphOperators;
use crate::device::graph_work::{GraphWork, shapes_of};
use crate::device::group::{Between, build_runner};
use crate::device::{choose_library, open_known, open_libraries};
use crate::messages::{
    NotReady, Number, OpenAnswer, OpenOrder, RunFault, RunHead, RunOrder, SandboxAnswer,
    SandboxOrder,
};

/// How often a busy sandbox sends a sign of life.
const ALIVE_PERIOD: Duration = Duration::from_secs(1);

/// Orders that can wait: a provider sends content before the order that needs it, and of a stream
/// one request more than there are devices, of which a group has at most 64.
const ORDERS_MAX: usize = 4 + 65;

/// Bytes that a job allocates at a time when a test lets it run out of memory.
const GULP_BYTES: usize = 64 << 20;

/// The largest block that raises the C library's threshold for mapping each block separately and
/// returning it at once: 32 MiB, less the library's header.
const MAPPED_BYTES: usize = 31 << 20;

/// Memory touched before a job arrives: as much as a small job uses.
const TOUCHED_BYTES: usize = 16 << 20;

/// The smallest page of the systems that souk runs on.
const PAGE_BYTES: usize = 4096;

/// Content held for the job: the process's own limit is the effective one.
const CONTENT_BYTES_MAX: u64 = u64::MAX;

/// The owner of a stream's requests: there is only one lease.
const OWNER: u64 = 0;

/// An order with the shared memory that arrived with it.
type InsideOrder = (SandboxOrder, Vec<SealedMemory>);

/// A sandbox that is open.
struct Inside {
    channel: Arc<Mutex<SandboxEnd>>,
    /// Receives true when work begins and false when it ends.
    at_work: SyncSender<bool>,
    store: Arc<Store>,
    runner: Runner,
    stream: Stream,
}

/// Carries out the orders of the provider at the other end of standard input, until it closes the
/// channel.
#[must_use]
pub fn main() -> ExitCode {
    let channel = std::io::stdin().as_fd().try_clone_to_owned();
    let Ok(mut channel) = channel.map(|channel| SandboxEnd::new(UnixStream::from(channel))) else {
        return ExitCode::FAILURE;
    };
    let open = match channel.receive_order() {
        Ok((SandboxOrder::OpenOrder(open), _)) => *open,
        _ => {
            eprintln!("a provider starts this for each job; it is of no use by itself");
            return ExitCode::FAILURE;
        }
    };
    if let Err(why) = choose_library(open.library.as_deref()) {
        eprintln!("{why}");
        return ExitCode::FAILURE;
    }
    // Behind the walls there are no files to load code from.
    open_libraries(&open.device);
    if let Err(why) = check_single_thread() {
        eprintln!("{why}, which no sandbox would hold: name another one at `onnxruntime`");
        return ExitCode::FAILURE;
    }
    // The walls must stand before there is another thread, and before any content of a job is here.
    let (kind, library) = (device_confinement(&open.device), open.library.as_deref());
    let policy = SandboxPolicy::enforce_walls(kind, open.memory_bytes, library);
    match open_devices(channel, &open, policy) {
        Some((inside, orders)) => inside.process_orders(&orders),
        None => ExitCode::FAILURE,
    }
}

/// Opens the devices and reports the result.
fn open_devices(
    channel: SandboxEnd,
    open: &OpenOrder,
    policy: SandboxPolicy,
) -> Option<(Inside, Receiver<InsideOrder>)> {
    let listener = channel.try_clone().ok()?;
    let channel = Arc::new(Mutex::new(channel));
    let (at_work, told) = sync_channel(ORDERS_MAX);
    let (told_line, orders) = (channel.clone(), receive_orders(listener));
    thread::spawn(move || say_alive(&told_line, &told));
    at_work.send(true).ok()?;
    let opened = prepare_runner(open);
    at_work.send(false).ok()?;
    let (answer, furniture) = match opened {
        Err(refused) => (Err(refused), None),
        Ok((store, runner)) => {
            let devices = runner.devices();
            let profiles: Vec<&Profile> = devices.iter().map(|(_, it)| it.profile()).collect();
            let opened = OpenAnswer {
                label: runner.label().to_owned(),
                profiles: serde_json::to_string(&profiles).ok()?,
                stream_ahead: runner.stream_ahead(),
                policy,
            };
            (Ok(opened), Some((store, runner)))
        }
    };
    send_answer(&channel, &SandboxAnswer::OpenAnswer(answer), &[]);
    let (store, runner) = furniture?;
    let inside = Inside {
        channel,
        at_work,
        store,
        runner,
        stream: Stream::default(),
    };
    Some((inside, orders))
}

fn prepare_runner(open: &OpenOrder) -> Result<(Arc<Store>, Runner), String> {
    let profiles: Option<Vec<Profile>> = match &open.profiles {
        None => None,
        Some(text) => Some(serde_json::from_str(text).map_err(|error| error.to_string())?),
    };
    let devices = open_known(&open.device, open.cores, profiles.as_deref());
    let devices = devices.map_err(|error| error.to_string())?;
    let store = Arc::new(Store::in_memory(CONTENT_BYTES_MAX));
    let clock: Arc<Clock> = Arc::new(|| UnixMicros(unix_us()));
    let between = Between::Memory(open.memory_bytes);
    let runner = build_runner(between, open.objective, &open.label, devices, &store, clock);
    let runner = runner.map_err(|error| error.to_string())?;
    runner.load_history(&open.costs);
    warm_up(&runner);
    runner.keep_sessions();
    Ok((store, runner))
}

/// Pays the cost of a process's first run, before a job must wait for it.
fn warm_up(runner: &Runner) {
    let mut mapped = Vec::<u8>::new();
    // If there is no room for this block, a job cannot keep it either.
    let _ = mapped.try_reserve_exact(MAPPED_BYTES);
    drop(black_box(mapped));
    let mut touched = Vec::<u8>::new();
    if touched.try_reserve_exact(TOUCHED_BYTES).is_ok() {
        // A byte of each page is enough for the system to provide the page.
        for byte in touched.spare_capacity_mut().iter_mut().step_by(PAGE_BYTES) {
            byte.write(1);
        }
    }
    drop(black_box(touched));
    for (_, device) in runner.devices() {
        let profile = device.profile();
        // A driver's first run can take long; the provider tried its device at its own start.
        if profile.emulated || matches!(profile.kind, ProcessorKind::Cpu { .. }) {
            // If this fails, the sandbox is no less fit for jobs.
            let _ = warm::warm_up_device(&**device);
        }
    }
}

impl Inside {
    fn process_orders(&self, orders: &Receiver<InsideOrder>) -> ExitCode {
        thread::scope(|scope| {
            while let Ok((order, sealed)) = orders.recv() {
                match order {
                    SandboxOrder::Hold(contents) => {
                        // If a content does not match its id, preparing the model reports it as
                        // missing.
                        let _ = self.hold_contents(contents, sealed);
                    }
                    SandboxOrder::Inspect(number, model, fault) => self.say_what_came(|| {
                        play_fault(fault);
                        let found =
                            GraphOperators::from_model(self.get_content(model).unwrap_or_default());
                        let found = found.map_err(|error| error.to_string());
                        (SandboxAnswer::Inspected(number, found), Vec::new())
                    }),
                    SandboxOrder::Prepare(number, model) => self.say_what_came(|| {
                        let prepared = self.runner.prepare_model(model);
                        let prepared = prepared.map_err(|error| {
                            NotReady::from_task_error(&error, self.get_content(model))
                        });
                        (SandboxAnswer::Prepared(number, prepared), Vec::new())
                    }),
                    SandboxOrder::Run(number, order) => match order.run_mode {
                        RunMode::ByItself => self.answer_run(number, order, sealed),
                        // The provider bounds the number of requests.
                        RunMode::InStream => drop(scope.spawn(move || {
                            self.answer_run(number, order, sealed);
                        })),
                    },
                    SandboxOrder::OpenOrder(_) => return ExitCode::FAILURE,
                }
            }
            ExitCode::SUCCESS
        })
    }

    fn answer_run(&self, number: Number, order: RunOrder, sealed: Vec<SealedMemory>) {
        self.say_what_came(|| run_answer(number, self.run(order, sealed)));
    }

    /// Does some work and sends the answer; meanwhile the sandbox sends signs of life.
    fn say_what_came(&self, does: impl FnOnce() -> (SandboxAnswer, Vec<Bytes>)) {
        self.tell_at_work(true);
        let (answer, blobs) = does();
        self.tell_at_work(false);
        send_answer(&self.channel, &answer, &blobs);
    }

    fn tell_at_work(&self, begins: bool) {
        if self.at_work.send(begins).is_err() {
            // The provider no longer receives signs of life.
            exit(1);
        }
    }

    fn hold_contents(
        &self,
        contents: Vec<(ContentId, SharedContent)>,
        sealed: Vec<SealedMemory>,
    ) -> Option<()> {
        let mut sealed = sealed.into_iter();
        for (id, given) in contents {
            let bytes = given.into_bytes(&mut sealed).ok()?;
            self.store.put_as(id, bytes).ok()?;
        }
        Some(())
    }

    /// Returns a content of the job.
    fn get_content(&self, content: ContentId) -> Option<Bytes> {
        self.store.get(&content).ok().flatten()
    }

    /// Returns the outputs of a run and, if the provider wants it, the work of its model, which is
    /// computed in parallel.
    fn run(
        &self,
        order: RunOrder,
        sealed: Vec<SealedMemory>,
    ) -> Result<(RunResult, Option<GraphWork>), RunFault> {
        let deadline = order.left.map(|left| Moment::now().saturating_add(left));
        play_fault(order.fault);
        let failed = |error: String| RunFault::Failed(error);
        let mut sealed = sealed.into_iter();
        let mut inputs = BTreeMap::new();
        for (name, given) in order.inputs {
            let blob = given
                .into_bytes(&mut sealed)
                .map_err(|error| failed(error.to_string()))?;
            let tensor = Tensor::from_blob(&blob);
            let tensor = tensor.map_err(|error| failed(error.to_string()))?;
            inputs.insert(name, tensor);
        }
        if let Some(tensor) = inputs.remove(ONLY_INPUT) {
            let name = self.only_input(order.model).map_err(failed)?;
            inputs.insert(name, tensor);
        }
        let task = Task {
            name: order.name,
            model: order.model,
            sequence: order.sequence,
            inputs,
        };
        thread::scope(|scope| {
            let weigh =
                || GraphWork::from_model(self.get_content(task.model)?, &shapes_of(&task.inputs));
            let weighing = order.is_weighed.then(|| scope.spawn(weigh));
            let ran = self.run_task(&task, order.run_mode, deadline);
            let weighed = weighing.map(|weighing| weighing.join().ok().flatten());
            match ran {
                Ok(ran) => Ok((ran, weighed.flatten())),
                Err(TaskError::Group(GroupRunError::Deadline)) => Err(RunFault::Late),
                Err(error) if error.is_bad_input() => {
                    // The work bounds what the buyer owes for the run.
                    let work = weighed.unwrap_or_else(weigh);
                    Err(RunFault::BadInput(error.to_string(), work))
                }
                Err(error) => Err(failed(error.to_string())),
            }
        })
    }

    /// Returns the name of the only input of a model.
    fn only_input(&self, model: ContentId) -> Result<String, String> {
        let bytes = self.get_content(model).unwrap_or_default();
        let decoded = souk_onnx::decode_model(bytes).map_err(|error| error.to_string())?;
        let graph = decoded.graph.unwrap_or_default();
        let is_weight = |name: &str| graph.initializer.iter().any(|it| it.name() == name);
        let names = graph.input.iter().map(|input| input.name());
        let inputs: Vec<&str> = names.filter(|name| !is_weight(name)).collect();
        match &inputs[..] {
            [only] => Ok((*only).to_owned()),
            inputs => Err(format!("the graph has {} inputs, not one", inputs.len())),
        }
    }

    fn run_task(
        &self,
        task: &Task,
        run_mode: RunMode,
        deadline: Option<Moment>,
    ) -> Result<RunResult, TaskError> {
        let precedence = Precedence {
            deadline,
            ..Precedence::default()
        };
        match run_mode {
            RunMode::ByItself => self.runner.run_as(task, precedence),
            RunMode::InStream => {
                let owner = Some(OWNER);
                let precedence = Precedence {
                    owner,
                    ..precedence
                };
                // If the provider no longer wants the result, it ends the process.
                let never = Cancel::default();
                let stream = &self.stream;
                self.runner.run_in_stream(stream, task, precedence, &never)
            }
        }
    }
}

/// Returns the answer to a run, and the blobs that follow it.
fn run_answer(
    number: Number,
    ran: Result<(RunResult, Option<GraphWork>), RunFault>,
) -> (SandboxAnswer, Vec<Bytes>) {
    let (ran, work) = match ran {
        Ok(ran) => ran,
        Err(failed) => {
            return (
                SandboxAnswer::Ran(number, Box::new(Err(failed))),
                Vec::new(),
            );
        }
    };
    let blobs: Vec<(String, Bytes)> = ran
        .outputs
        .into_iter()
        .map(|(name, tensor)| (name, tensor.to_blob()))
        .collect();
    let lengths = blobs
        .iter()
        .map(|(name, blob)| (name.clone(), blob.len() as u64));
    let head = RunHead {
        outputs: lengths.collect(),
        report: ran.report,
        timeline: ran.timeline,
        busy: ran.busy,
        makespan: ran.makespan,
        learned: ran.learned,
        work,
    };
    let blobs = blobs.into_iter().map(|(_, blob)| blob).collect();
    (SandboxAnswer::Ran(number, Box::new(Ok(head))), blobs)
}

/// Returns the kind of walls that these devices can work behind.
fn device_confinement(device: &DeviceChoice) -> Confinement {
    let driven = |device| device_confinement(device) == Confinement::Driver;
    match device {
        DeviceChoice::Gpu { .. } | DeviceChoice::Cuda { .. } | DeviceChoice::Onnxruntime { .. } => {
            Confinement::Driver
        }
        DeviceChoice::Group(devices) if devices.iter().any(driven) => Confinement::Driver,
        DeviceChoice::Cpu { .. }
        | DeviceChoice::Exact { .. }
        | DeviceChoice::Emulated { .. }
        | DeviceChoice::Endpoint(_)
        | DeviceChoice::Serve(_)
        | DeviceChoice::Group(_) => Confinement::Processor,
    }
}

/// Receives orders from the channel in a thread, which notices at once when the channel closes.
fn receive_orders(mut channel: SandboxEnd) -> Receiver<InsideOrder> {
    let (hand_on, orders) = sync_channel(ORDERS_MAX);
    thread::spawn(move || {
        while let Ok(received) = channel.receive_order() {
            if hand_on.send(received).is_err() {
                break;
            }
        }
        exit(0)
    });
    orders
}

/// Sends signs of life while the sandbox is busy.
fn say_alive(channel: &Mutex<SandboxEnd>, told: &Receiver<bool>) {
    let mut at_work = 0_usize;
    loop {
        let word = match at_work {
            0 => told.recv().map_err(|_| RecvTimeoutError::Disconnected),
            _ => told.recv_timeout(ALIVE_PERIOD),
        };
        match word {
            Ok(true) => at_work += 1,
            Ok(false) => at_work -= 1,
            Err(RecvTimeoutError::Timeout) => send_answer(channel, &SandboxAnswer::Alive, &[]),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn send_answer(channel: &Mutex<SandboxEnd>, answer: &SandboxAnswer, blobs: &[Bytes]) {
    // A thread that panicked in the middle of a frame has ended the process.
    let mut channel = channel.lock().unwrap_or_else(PoisonError::into_inner);
    if channel.send_answer(answer, blobs).is_err() {
        exit(0);
    }
}

/// Plays a fault that a test requested of an emulated device.
fn play_fault(fault: Option<Fault>) {
    match fault {
        Some(Fault::Crash | Fault::Choke) => abort(),
        Some(Fault::Hoard) => {
            let mut hoard: Vec<Vec<u8>> = Vec::new();
            loop {
                hoard.push(vec![1; GULP_BYTES]);
            }
        }
        Some(Fault::Stall) => loop {
            thread::park();
        },
        Some(
            Fault::Lie | Fault::Skip | Fault::LieOnce | Fault::Die | Fault::Deaf | Fault::Shut,
        )
        | None => {}
    }
}
