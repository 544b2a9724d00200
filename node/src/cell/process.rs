//! A cell as its provider sees it: started, asked, ended.

use std::env;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use souk_devices::profile::Profile;
use souk_memory::{ContentId, Store, Tensor};
use souk_scheduler::executor::Moment;
use souk_scheduler::run::{Ran, Task};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use super::group::{Group, NoGroups, Share};
use super::line::Line;
use super::shared::{self, Given, Parcel, Shared};
use super::words::{self, Answer, Open, Order, RunOrder, Unrun};
use super::{COMMAND, CellFault, Recipe, SILENCE_MAX, Walls, pool};
use crate::config::Fault;

/// How long a cell may take to open its devices; a GPU's driver may take seconds.
const OPENING_MAX: Duration = Duration::from_secs(60);

/// What a cell is told of the provider's environment: where libraries of its devices lie.
const ENVIRONMENT: [&str; 1] = ["SOUK_ONNXRUNTIME"];

/// What a cell's environment says beside: a library of ONNX Runtime starts a thread that reports to
/// its maker unless it is told not to, and that one would stand outside the walls.
const TOLD: [(&str, &str); 1] = [("ORT_DISABLE_TELEMETRY", "1")];

/// What a cell's group is called where it is told what keeps jobs in.
const GROUP: &str = "a control group: memory, processors and threads of the whole (cgroup v2)";

/// What the whole process may hold beside what a job may use; a GPU's driver compiles programs.
const BESIDE_BYTES: u64 = 1 << 30;

/// What a cell last printed is kept for the reason of its end, so many bytes of it.
const LAST_WORDS_BYTES: usize = 4096;

/// How long the last words and the exit of a cell whose line is closed are waited for.
const END_MAX: Duration = Duration::from_secs(2);

/// A running cell. Dropping it ends its process.
#[derive(Debug)]
pub struct Cell {
    process: Child,
    line: Line,
    last_words: Option<JoinHandle<String>>,
    memory_bytes: u64,
    opened: words::Opened,
    group: Option<Group>,
    /// Told when this cell is gone.
    pub(super) vacated: Option<pool::Vacated>,
}

impl Cell {
    /// Starts a cell and waits until its devices are open.
    ///
    /// # Errors
    /// [`CellFault`]: it did not start, or a device does not open.
    pub async fn start(recipe: &Recipe) -> Result<Cell, CellFault> {
        let (line, far_end) = Line::pair().map_err(CellFault::Start)?;
        let mut process = Command::new(&recipe.program)
            .arg0("souk")
            .arg(COMMAND)
            .env_clear()
            .envs(
                ENVIRONMENT
                    .iter()
                    .filter_map(|&name| Some((name, env::var_os(name)?))),
            )
            .envs(TOLD)
            .current_dir("/")
            .stdin(Stdio::from(far_end))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(CellFault::Start)?;
        let stderr = process.stderr.take().expect("it was asked for above");
        let mut cell = Cell {
            process,
            line,
            last_words: Some(tokio::spawn(last_words(stderr))),
            memory_bytes: recipe.memory_bytes,
            opened: words::Opened::default(),
            group: None,
            vacated: None,
        };
        // Before it is told anything.
        let limited = cell.limit_by_group(recipe);
        let open = Open::new(recipe);
        match cell
            .ask(Order::Open(Box::new(open)), &[], OPENING_MAX)
            .await?
        {
            Answer::Opened(Ok(opened)) => {
                cell.opened = opened;
                cell.opened.walls.note(GROUP, limited);
            }
            Answer::Opened(Err(refused)) => return Err(CellFault::Device(refused)),
            _ => return Err(CellFault::Confused),
        }
        Ok(cell)
    }

    /// Puts the process into a group of its own, where this provider may make one.
    fn limit_by_group(&mut self, recipe: &Recipe) -> Result<(), String> {
        let groups = match &*recipe.groups {
            Ok(groups) => groups,
            Err(why) => return Err(why.to_string()),
        };
        let Some(process) = self.process.id() else {
            return Err("it has ended".to_owned());
        };
        let share = Share {
            memory_bytes: recipe.memory_bytes.saturating_add(BESIDE_BYTES),
            threads: recipe.cores,
        };
        let group = groups
            .group(share, process)
            .map_err(|why| why.to_string())?;
        self.group = Some(group);
        Ok(())
    }

    /// What keeps the work in, and what could not be put up.
    #[must_use]
    pub fn walls(&self) -> &Walls {
        &self.opened.walls
    }

    /// What its devices are called together in reports.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.opened.label
    }

    /// What its devices are.
    ///
    /// # Errors
    /// [`CellFault::Confused`].
    pub fn profiles(&self) -> Result<Vec<Profile>, CellFault> {
        serde_json::from_str(&self.opened.profiles).map_err(|_| CellFault::Confused)
    }

    /// The process, while it is not known to have ended.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        self.process.id()
    }

    /// Whether the process has ended by itself.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }

    /// Has the cell count so many times as much as others where they want the same cores. Without a
    /// group of its own all count alike.
    ///
    /// # Errors
    /// What the system says.
    pub fn weigh(&self, times: f64) -> Result<(), NoGroups> {
        match &self.group {
            None => Ok(()),
            Some(group) => group.weigh(times),
        }
    }

    /// Lets the cell's threads compute for no longer than this in sum.
    ///
    /// # Errors
    /// What the system says.
    pub fn limit_cpu(&self, time: Duration) -> std::io::Result<()> {
        let id = self.process.id().and_then(|id| i32::try_from(id).ok());
        let Some(process) = id.and_then(Pid::from_raw) else {
            return Ok(());
        };
        // Beyond the first limit a signal ends it, beyond the second it is killed.
        let seconds = time.as_secs().saturating_add(1);
        let limit = Rlimit {
            current: Some(seconds),
            maximum: Some(seconds.saturating_add(1)),
        };
        prlimit(Some(process), Resource::Cpu, limit)?;
        Ok(())
    }

    /// Ends the process, as dropping the cell does, and waits until it has.
    ///
    /// # Errors
    /// What the system says.
    pub async fn end(mut self) -> std::io::Result<()> {
        self.process.kill().await
    }

    /// Gives the cell a model and its weights, and has it made ready.
    ///
    /// # Errors
    /// [`CellFault::Refused`] with the device's words, or how the cell ended.
    pub async fn prepare(
        &mut self,
        store: &Arc<Store>,
        shared: &Arc<Shared>,
        model: ContentId,
        weights: &[ContentId],
    ) -> Result<(), CellFault> {
        let ids: Vec<ContentId> = [&[model], weights].concat();
        let (store, shared) = (store.clone(), shared.clone());
        let gathered = tokio::task::spawn_blocking(move || shared.gather(&store, &ids)).await;
        let parcels = gathered.expect("gathering content does not panic")?;
        for parcel in &parcels {
            self.hold(parcel).await?;
        }
        match self.ask(Order::Prepare(model), &[], SILENCE_MAX).await? {
            Answer::Prepared(prepared) => prepared.map_err(CellFault::Refused),
            _ => Err(CellFault::Confused),
        }
    }

    async fn hold(&mut self, parcel: &Parcel) -> Result<(), CellFault> {
        let order = Order::Hold(parcel.contents.clone());
        let files: Vec<_> = parcel.sealed.iter().map(|sealed| sealed.file()).collect();
        let sent = self.line.send(&order, &files).await;
        match sent {
            Ok(()) => Ok(()),
            Err(error) => Err(self.how_it_ended(error).await),
        }
    }

    /// Runs a part, until a deadline where there is one.
    ///
    /// # Errors
    /// [`CellFault::Refused`] with the device's words, [`CellFault::OutOfTime`] where its deadline
    /// came first, or how the cell ended.
    pub async fn run(
        &mut self,
        task: Task,
        deadline: Option<Moment>,
        fault: Option<Fault>,
    ) -> Result<Ran, CellFault> {
        let left = deadline.map(|at| at.since(Moment::now()));
        let wrapping = tokio::task::spawn_blocking(move || RunOrder::new(task, left, fault));
        let wrapped = wrapping.await.expect("wrapping inputs does not panic");
        let (order, sealed) = wrapped.map_err(CellFault::Memory)?;
        let files: Vec<_> = sealed.iter().map(|sealed| sealed.file()).collect();
        let answer = self.ask(Order::Run(order), &files, SILENCE_MAX).await?;
        let Answer::Ran(ran) = answer else {
            return Err(CellFault::Confused);
        };
        let ran = (*ran).map_err(|unrun| match unrun {
            Unrun::Late => CellFault::OutOfTime,
            Unrun::Failed(why) => CellFault::Refused(why),
        })?;
        let mut outputs = std::collections::BTreeMap::new();
        for (name, length) in ran.outputs {
            let blob = match self.line.receive_bytes(length, SILENCE_MAX).await {
                Ok(blob) => blob,
                Err(error) => return Err(self.how_it_ended(error).await),
            };
            let tensor = Tensor::from_blob(&blob);
            outputs.insert(name, tensor.map_err(|_| CellFault::Confused)?);
        }
        Ok(Ran {
            outputs,
            report: ran.report,
            timeline: ran.timeline,
            busy: ran.busy,
            makespan: ran.makespan,
            learned: ran.learned,
        })
    }

    /// Sends an order and awaits its answer; `silence` is how long the cell may say nothing.
    async fn ask(
        &mut self,
        order: Order,
        files: &[std::os::fd::BorrowedFd<'_>],
        silence: Duration,
    ) -> Result<Answer, CellFault> {
        let asked = async {
            self.line.send(&order, files).await?;
            loop {
                match self.line.receive(silence).await? {
                    Answer::Alive => {}
                    answer => return Ok(answer),
                }
            }
        };
        let asked: std::io::Result<Answer> = asked.await;
        match asked {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.how_it_ended(error).await),
        }
    }

    /// Why the line to the cell broke.
    async fn how_it_ended(&mut self, error: std::io::Error) -> CellFault {
        if error.kind() == std::io::ErrorKind::TimedOut {
            return CellFault::Silent;
        }
        if error.kind() == std::io::ErrorKind::InvalidData {
            return CellFault::Confused;
        }
        let Ok(Ok(status)) = tokio::time::timeout(END_MAX, self.process.wait()).await else {
            return CellFault::Silent;
        };
        let words = match self.last_words.take() {
            Some(words) => tokio::time::timeout(END_MAX, words).await,
            None => Ok(Ok(String::new())),
        };
        let words = words.ok().and_then(Result::ok).unwrap_or_default();
        if self.group.as_ref().is_some_and(Group::ran_out_of_memory) {
            let limit_bytes = self.memory_bytes;
            return CellFault::OutOfMemory { limit_bytes };
        }
        CellFault::ended(status, &words, self.memory_bytes)
    }
}

impl Open {
    fn new(recipe: &Recipe) -> Open {
        let json = |profiles| serde_json::to_string(profiles).expect("profiles are plain values");
        Open {
            device: recipe.device.clone(),
            cores: recipe.cores,
            label: recipe.label.clone(),
            profiles: recipe.profiles.as_ref().map(json),
            costs: recipe.seen.costs(),
            memory_bytes: recipe.memory_bytes,
        }
    }
}

impl RunOrder {
    /// The order, and the memory that goes with it.
    fn new(
        task: Task,
        left: Option<Duration>,
        fault: Option<Fault>,
    ) -> std::io::Result<(RunOrder, Vec<shared::Kept>)> {
        let mut sealed = Vec::new();
        let mut inputs = Vec::with_capacity(task.inputs.len());
        for (name, tensor) in &task.inputs {
            inputs.push((name.clone(), Given::tensor(tensor, &mut sealed)?));
        }
        let (name, model) = (task.name, task.model);
        let order = RunOrder {
            name,
            model,
            inputs,
            left,
            fault,
        };
        Ok((order, sealed))
    }
}

/// Reads what a cell prints to its end, and keeps the last of it.
async fn last_words(mut from: impl AsyncRead + Unpin) -> String {
    let (mut kept, mut buffer) = (Vec::new(), [0; 1024]);
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        kept.extend_from_slice(&buffer[..read]);
        let over = kept.len().saturating_sub(LAST_WORDS_BYTES);
        kept.drain(..over);
    }
    String::from_utf8_lossy(&kept).into_owned()
}
