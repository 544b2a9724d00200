//! Controls a sandbox from its provider's side: the provider starts the process, sends it orders,
//! reads its answers and ends it.

pub mod pool;

use std::collections::BTreeMap;
use std::io;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use souk_folder::config::Fault;
use souk_host::system;
use souk_memory::{ContentId, Store, Tensor};
use souk_scheduler::execution::RunResult;
use souk_vocabulary::profile::Profile;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex as Turn, watch};
use tokio::task::JoinHandle;

use super::group::{ControlGroup, ControlGroupError, GroupLimits};
use super::shared_content::{Parcel, SharedContents};
use super::{COMMAND, Recipe, SILENCE_MAX, SandboxFault, SandboxPolicy, SandboxRun};
use crate::channel::{self, Answers, Orders};
use crate::device::graph_operators::GraphOperators;
use crate::device::graph_work::GraphWork;
use crate::device::probe::TOLD;
use crate::messages::{
    self, NotReady, Number, OpenOrder, RunFault, RunHead, RunOrder, SandboxAnswer, SandboxOrder,
};

/// How long a sandbox can take to open its devices; a GPU's driver can need seconds.
const OPENING_MAX: Duration = Duration::from_secs(60);

/// The name of a sandbox's control group in its list of walls.
const GROUP: &str = "a control group: memory, processors and threads of the whole (cgroup v2)";

/// Memory that the whole process can hold beyond the job's; a GPU's driver compiles programs.
const BESIDE_BYTES: u64 = 1 << 30;

/// Bytes kept of a sandbox's last output, which show the reason of its end.
const LAST_WORDS_BYTES: usize = 4096;

/// How long the provider waits for the last output and the exit of a sandbox whose channel is
/// closed.
const END_MAX: Duration = Duration::from_secs(2);

/// A running sandbox. Dropping it ends its process. Several tasks can send orders at once: the one
/// that reads the channel passes on the others' answers.
#[derive(Debug)]
pub struct Sandbox {
    process: Turn<Process>,
    orders: Turn<Orders>,
    answers: Turn<AnswerReader>,
    asked: Mutex<PendingAnswers>,
    memory_bytes: u64,
    outputs_bytes: u64,
    opened: messages::OpenAnswer,
    group: Option<ControlGroup>,
    /// Closed when the sandbox's output ends, which means that the process has ended.
    speaking: watch::Receiver<()>,
    /// Notifies the pool when this sandbox is gone.
    pub(super) vacated: Option<pool::FreedPlace>,
}

#[derive(Debug)]
struct Process {
    child: Child,
    last_words: Option<JoinHandle<String>>,
    /// The last output, once it was read.
    said: String,
}

/// The receiving end of the channel.
#[derive(Debug)]
struct AnswerReader {
    answers: Answers,
    /// The error after which nothing more is received.
    over: Option<io::ErrorKind>,
    /// The most bytes of outputs in one run.
    outputs_bytes: u64,
}

/// Orders that wait for their answers, and answers that wait for their callers.
#[derive(Debug, Default)]
struct PendingAnswers {
    next: Number,
    answers: BTreeMap<Number, Option<NumberedAnswer>>,
}

/// The answer to a numbered order.
#[derive(Debug)]
enum NumberedAnswer {
    Inspected(Result<GraphOperators, String>),
    Prepared(Result<(), NotReady>),
    Ran(Box<Result<(RunResult, Option<GraphWork>), RunFault>>),
}

impl Sandbox {
    /// Starts a sandbox and waits until its devices are open.
    ///
    /// # Errors
    /// [`SandboxFault`]: the sandbox did not start, or a device did not open.
    pub async fn start(recipe: &Recipe) -> Result<Sandbox, SandboxFault> {
        let (orders, answers, far_end) = channel::new_pair().map_err(SandboxFault::Start)?;
        let mut child = Command::new(&recipe.program)
            .arg0("souk")
            .arg(COMMAND)
            .env_clear()
            .env(TOLD.0, TOLD.1)
            .current_dir("/")
            .stdin(Stdio::from(far_end))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(SandboxFault::Start)?;
        let stderr = child.stderr.take().expect("it was asked for above");
        let (speaks, speaking) = watch::channel(());
        let mut sandbox = Sandbox {
            process: Turn::new(Process {
                child,
                last_words: Some(tokio::spawn(async move {
                    let _speaks = speaks;
                    last_words(stderr).await
                })),
                said: String::new(),
            }),
            orders: Turn::new(orders),
            answers: Turn::new(AnswerReader {
                answers,
                over: None,
                outputs_bytes: recipe.outputs_bytes,
            }),
            asked: Mutex::default(),
            memory_bytes: recipe.memory_bytes,
            outputs_bytes: recipe.outputs_bytes,
            opened: messages::OpenAnswer::default(),
            group: None,
            speaking,
            vacated: None,
        };
        // The limits must hold before the first order.
        let limited = sandbox.limit_by_group(recipe);
        let open = OpenOrder::new(recipe);
        sandbox
            .send_order(&SandboxOrder::OpenOrder(Box::new(open)), &[])
            .await?;
        match sandbox.receive_answer(OPENING_MAX).await? {
            SandboxAnswer::OpenAnswer(Ok(opened)) => {
                sandbox.opened = opened;
                sandbox.opened.policy.record_limit(GROUP, limited);
            }
            SandboxAnswer::OpenAnswer(Err(refused)) => {
                return Err(SandboxFault::Device(refused));
            }
            _ => return Err(SandboxFault::Confused),
        }
        Ok(sandbox)
    }

    /// Moves the process into its own control group, if this provider may create one.
    fn limit_by_group(&mut self, recipe: &Recipe) -> Result<(), String> {
        let groups = match &*recipe.groups {
            Ok(groups) => groups,
            Err(why) => return Err(why.to_string()),
        };
        let Some(process) = self.process_id() else {
            return Err("it has ended".to_owned());
        };
        let share = GroupLimits {
            memory_bytes: recipe.memory_bytes.saturating_add(BESIDE_BYTES),
            threads: recipe.cores,
        };
        let group = groups
            .create_group(share, process)
            .map_err(|why| why.to_string())?;
        self.group = Some(group);
        Ok(())
    }

    /// Returns the walls around the job, and those that are missing.
    #[must_use]
    pub fn policy(&self) -> &SandboxPolicy {
        &self.opened.policy
    }

    /// Returns the common name of its devices in reports.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.opened.label
    }

    /// Returns the profiles of its devices.
    ///
    /// # Errors
    /// [`SandboxFault::Confused`].
    pub fn profiles(&self) -> Result<Vec<Profile>, SandboxFault> {
        serde_json::from_str(&self.opened.profiles).map_err(|_| SandboxFault::Confused)
    }

    /// Returns the id of the process, while it is not known to have ended.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        self.process.try_lock().ok()?.child.id()
    }

    /// Returns how many requests of a stream keep its devices busy.
    #[must_use]
    pub fn stream_ahead(&self) -> usize {
        self.opened.stream_ahead
    }

    /// Returns whether the process has ended by itself.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.process.get_mut().child.try_wait(), Ok(None))
    }

    /// Sets the sandbox's weight, relative to others that compete for the same cores. Without a
    /// control group all have the same weight.
    ///
    /// # Errors
    /// The system's error.
    pub fn set_weight(&self, times: f64) -> Result<(), ControlGroupError> {
        match &self.group {
            None => Ok(()),
            Some(group) => group.set_weight(times),
        }
    }

    /// Limits the CPU time of the sandbox's threads in sum, from now on: opening and measuring its
    /// devices can have taken longer than the job will.
    ///
    /// # Errors
    /// The system's error.
    pub fn limit_cpu(&self, time: Duration) -> io::Result<()> {
        let id = self.process_id().and_then(|id| i32::try_from(id).ok());
        let Some(process) = id.and_then(Pid::from_raw) else {
            return Ok(());
        };
        let before = self
            .process_id()
            .and_then(|id| system::process_times(Some(id)));
        let time = before.map_or(time, |before| time.saturating_add(before.computed));
        // At the first limit a signal ends the process, at the second the kernel kills it.
        let seconds = time.as_secs().saturating_add(1);
        let limit = Rlimit {
            current: Some(seconds),
            maximum: Some(seconds.saturating_add(1)),
        };
        prlimit(Some(process), Resource::Cpu, limit)?;
        Ok(())
    }

    /// Waits until the process ends, by itself or because the sandbox is dropped; does not borrow
    /// the sandbox meanwhile.
    pub fn wait_for_end(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut speaking = self.speaking.clone();
        async move { while speaking.changed().await.is_ok() {} }
    }

    /// Returns how the process ended, once it has.
    pub async fn end_fault(&self) -> SandboxFault {
        self.how_it_ended(io::ErrorKind::BrokenPipe).await
    }

    /// Kills the process, as dropping the sandbox does, and waits for its end.
    ///
    /// # Errors
    /// The system's error.
    pub async fn kill_process(mut self) -> io::Result<()> {
        self.process.get_mut().child.kill().await
    }

    /// Sends the sandbox a model and returns its operators: the sandbox reads it, because a
    /// stranger made it.
    ///
    /// # Errors
    /// [`SandboxFault::Refused`] if the model has more operators than exist, or how the sandbox
    /// ended.
    pub(crate) async fn inspect_model(
        &self,
        store: &Arc<Store>,
        shared: &Arc<SharedContents>,
        model: ContentId,
        fault: Option<Fault>,
    ) -> Result<GraphOperators, SandboxFault> {
        self.hand_over(store, shared, vec![model]).await?;
        let number = self.assign_number();
        let order = SandboxOrder::Inspect(number, model, fault);
        self.send_order(&order, &[]).await?;
        match self.wait_for_answer(number).await? {
            NumberedAnswer::Inspected(found) => found.map_err(SandboxFault::Refused),
            _ => Err(SandboxFault::Confused),
        }
    }

    /// Sends the sandbox a model and its weights to prepare.
    ///
    /// # Errors
    /// [`SandboxFault::Refused`] or [`SandboxFault::RefusedNode`] with the device's words, or how
    /// the sandbox ended.
    pub async fn prepare_model(
        &self,
        store: &Arc<Store>,
        shared: &Arc<SharedContents>,
        model: ContentId,
        weights: &[ContentId],
    ) -> Result<(), SandboxFault> {
        let ids = [&[model], weights].concat();
        self.hand_over(store, shared, ids).await?;
        let number = self.assign_number();
        self.send_order(&SandboxOrder::Prepare(number, model), &[])
            .await?;
        match self.wait_for_answer(number).await? {
            NumberedAnswer::Prepared(prepared) => prepared.map_err(|it| match it.node {
                Some(node) => SandboxFault::RefusedNode(node, it.reason),
                None => SandboxFault::Refused(it.reason),
            }),
            _ => Err(SandboxFault::Confused),
        }
    }

    async fn hand_over(
        &self,
        store: &Arc<Store>,
        shared: &Arc<SharedContents>,
        ids: Vec<ContentId>,
    ) -> Result<(), SandboxFault> {
        let (store, shared) = (store.clone(), shared.clone());
        let gathered =
            tokio::task::spawn_blocking(move || shared.gather_parcels(&store, &ids)).await;
        let parcels = gathered.expect("gathering content does not panic")?;
        for parcel in &parcels {
            self.hold_contents(parcel).await?;
        }
        Ok(())
    }

    async fn hold_contents(&self, parcel: &Parcel) -> Result<(), SandboxFault> {
        let order = SandboxOrder::Hold(parcel.contents.clone());
        let files: Vec<_> = parcel.sealed.iter().map(|sealed| sealed.file()).collect();
        self.send_order(&order, &files).await
    }

    /// Runs a part, until a deadline if there is one, and returns its work if the caller wants it
    /// and the sandbox knows it. Several runs of a stream can overlap, and end in any order.
    ///
    /// # Errors
    /// [`SandboxFault::Refused`] or, if the inputs are at fault, [`SandboxFault::BadInput`] with
    /// the device's words, [`SandboxFault::OutOfTime`] if the deadline came first, or how the
    /// sandbox ended.
    pub(crate) async fn run(
        &self,
        run: SandboxRun,
    ) -> Result<(RunResult, Option<GraphWork>), SandboxFault> {
        let wrapping = tokio::task::spawn_blocking(move || RunOrder::new(run));
        let wrapped = wrapping.await.expect("wrapping inputs does not panic");
        let (order, sealed) = wrapped.map_err(SandboxFault::Memory)?;
        let files: Vec<_> = sealed.iter().map(|sealed| sealed.file()).collect();
        let number = self.assign_number();
        self.send_order(&SandboxOrder::Run(number, order), &files)
            .await?;
        let NumberedAnswer::Ran(ran) = self.wait_for_answer(number).await? else {
            return Err(SandboxFault::Confused);
        };
        (*ran).map_err(|unrun| match unrun {
            RunFault::Late => SandboxFault::OutOfTime,
            RunFault::Failed(why) => SandboxFault::Refused(why),
            RunFault::BadInput(why, work) => SandboxFault::BadInput(why, work),
        })
    }

    /// Assigns a number to an order and expects its answer from now on.
    fn assign_number(&self) -> Number {
        let mut asked = lock_pending(&self.asked);
        let number = asked.next;
        asked.next += 1;
        asked.answers.insert(number, None);
        number
    }

    async fn send_order(
        &self,
        order: &SandboxOrder,
        files: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<(), SandboxFault> {
        let sent = self.orders.lock().await.send_order(order, files).await;
        match sent {
            Ok(()) => Ok(()),
            Err(error) => Err(self.how_it_ended(error.kind()).await),
        }
    }

    /// Receives the sandbox's next message other than a sign of life; `silence` is the longest
    /// wait.
    async fn receive_answer(&self, silence: Duration) -> Result<SandboxAnswer, SandboxFault> {
        let heard = self.answers.lock().await.receive_word(silence).await;
        match heard {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.how_it_ended(error).await),
        }
    }

    /// Returns the answer to an order.
    async fn wait_for_answer(&self, number: Number) -> Result<NumberedAnswer, SandboxFault> {
        match wait_for_numbered(&self.answers, &self.asked, number).await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.how_it_ended(error).await),
        }
    }

    /// Returns why the channel to the sandbox broke.
    async fn how_it_ended(&self, error: io::ErrorKind) -> SandboxFault {
        match error {
            io::ErrorKind::TimedOut => return SandboxFault::Silent,
            io::ErrorKind::InvalidData => return SandboxFault::Confused,
            io::ErrorKind::FileTooLarge => {
                let limit_bytes = self.outputs_bytes;
                return SandboxFault::TooMuch { limit_bytes };
            }
            _ => {}
        }
        let mut process = self.process.lock().await;
        let Ok(Ok(status)) = tokio::time::timeout(END_MAX, process.child.wait()).await else {
            return SandboxFault::Silent;
        };
        if let Some(words) = process.last_words.take() {
            let words = tokio::time::timeout(END_MAX, words).await;
            process.said = words.ok().and_then(Result::ok).unwrap_or_default();
        }
        let words = &process.said;
        if self
            .group
            .as_ref()
            .is_some_and(ControlGroup::ran_out_of_memory)
        {
            let limit_bytes = self.memory_bytes;
            return SandboxFault::OutOfMemory { limit_bytes };
        }
        SandboxFault::from_exit_status(status, words, self.memory_bytes)
    }
}

fn lock_pending(asked: &Mutex<PendingAnswers>) -> MutexGuard<'_, PendingAnswers> {
    // No code here panics half-way through a change.
    asked.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the answer to an order, and keeps answers to other orders for their callers.
async fn wait_for_numbered(
    answers: &Turn<AnswerReader>,
    asked: &Mutex<PendingAnswers>,
    number: Number,
) -> Result<NumberedAnswer, io::ErrorKind> {
    loop {
        let mut hearing = answers.lock().await;
        if let Some(heard) = lock_pending(asked).take_answer(number) {
            return Ok(heard);
        }
        let heard = hearing.receive_numbered(SILENCE_MAX).await;
        let kept =
            heard.and_then(|(number, heard)| lock_pending(asked).store_answer(number, heard));
        // The other waiting callers receive nothing more either.
        hearing.over = kept.err();
        kept?;
        // If the lock were released first, the next caller could read another answer before this
        // one is returned.
        if let Some(heard) = lock_pending(asked).take_answer(number) {
            return Ok(heard);
        }
    }
}

impl AnswerReader {
    async fn receive_word(&mut self, silence: Duration) -> Result<SandboxAnswer, io::ErrorKind> {
        if let Some(over) = self.over {
            return Err(over);
        }
        loop {
            match self.answers.receive_answer(silence).await {
                Ok(SandboxAnswer::Alive) => {}
                Ok(answer) => return Ok(answer),
                Err(error) => return Err(error.kind()),
            }
        }
    }

    /// Receives the next answer to a numbered order, with the outputs of a run.
    async fn receive_numbered(
        &mut self,
        silence: Duration,
    ) -> Result<(Number, NumberedAnswer), io::ErrorKind> {
        match self.receive_word(silence).await? {
            SandboxAnswer::Inspected(number, found) => {
                if found.as_ref().is_ok_and(|found| !found.is_sound()) {
                    return Err(io::ErrorKind::InvalidData);
                }
                Ok((number, NumberedAnswer::Inspected(found)))
            }
            SandboxAnswer::Prepared(number, prepared) => {
                Ok((number, NumberedAnswer::Prepared(prepared)))
            }
            SandboxAnswer::Ran(number, ran) => {
                let ran = match *ran {
                    Ok(head) => Ok(self.receive_outputs(head, silence).await?),
                    Err(RunFault::BadInput(_, Some(work))) if !work.is_sound() => {
                        return Err(io::ErrorKind::InvalidData);
                    }
                    Err(unrun) => Err(unrun),
                };
                Ok((number, NumberedAnswer::Ran(Box::new(ran))))
            }
            SandboxAnswer::Alive | SandboxAnswer::OpenAnswer(_) => Err(io::ErrorKind::InvalidData),
        }
    }

    async fn receive_outputs(
        &mut self,
        ran: RunHead,
        silence: Duration,
    ) -> Result<(RunResult, Option<GraphWork>), io::ErrorKind> {
        if ran.work.as_ref().is_some_and(|work| !work.is_sound()) {
            return Err(io::ErrorKind::InvalidData);
        }
        let lengths = ran.outputs.iter().map(|(_, length)| *length);
        if lengths.fold(0, u64::saturating_add) > self.outputs_bytes {
            return Err(io::ErrorKind::FileTooLarge);
        }
        let mut outputs = BTreeMap::new();
        for (name, length) in ran.outputs {
            let blob = self.answers.receive_bytes(length, silence).await;
            let blob = blob.map_err(|error| error.kind())?;
            let tensor = Tensor::from_blob(&blob);
            outputs.insert(name, tensor.map_err(|_| io::ErrorKind::InvalidData)?);
        }
        let result = RunResult {
            outputs,
            report: ran.report,
            timeline: ran.timeline,
            busy: ran.busy,
            makespan: ran.makespan,
            learned: ran.learned,
        };
        Ok((result, ran.work))
    }
}

impl PendingAnswers {
    /// Keeps an answer for its caller; an answer that no caller awaits, or a second one, is an
    /// error.
    fn store_answer(&mut self, number: Number, heard: NumberedAnswer) -> Result<(), io::ErrorKind> {
        match self.answers.get_mut(&number) {
            Some(place) if place.is_none() => *place = Some(heard),
            _ => return Err(io::ErrorKind::InvalidData),
        }
        Ok(())
    }

    fn take_answer(&mut self, number: Number) -> Option<NumberedAnswer> {
        self.answers.get(&number)?.as_ref()?;
        self.answers.remove(&number)?
    }
}

impl OpenOrder {
    fn new(recipe: &Recipe) -> OpenOrder {
        let json = |profiles| serde_json::to_string(profiles).expect("profiles are plain values");
        OpenOrder {
            device: recipe.device.clone(),
            cores: recipe.cores,
            label: recipe.label.clone(),
            profiles: recipe.profiles.as_ref().map(json),
            costs: recipe.seen.current_costs(),
            objective: recipe.objective,
            library: recipe.library.clone(),
            memory_bytes: recipe.memory_bytes,
        }
    }
}

/// Reads a sandbox's output to its end, and keeps the last of it.
async fn last_words(mut from: impl AsyncRead + Unpin) -> String {
    let (mut kept, mut buffer) = (Vec::new(), [0; 1024]);
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        kept.extend_from_slice(&buffer[..read]);
        let over = kept.len().saturating_sub(LAST_WORDS_BYTES);
        kept.drain(..over);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_waits_for_who_asked_and_nobody_is_answered_twice() {
        let mut asked = PendingAnswers {
            next: 2,
            answers: BTreeMap::from([(0, None), (1, None)]),
        };
        let heard = || NumberedAnswer::Prepared(Ok(()));
        assert!(asked.take_answer(1).is_none());
        asked.store_answer(1, heard()).unwrap();
        let twice = asked.store_answer(1, heard()).unwrap_err();
        assert_eq!(twice, io::ErrorKind::InvalidData);
        assert!(asked.take_answer(0).is_none(), "it is another one's");
        assert!(matches!(
            asked.take_answer(1),
            Some(NumberedAnswer::Prepared(Ok(())))
        ));
        let nobody = [1, 2].map(|number| asked.store_answer(number, heard()).is_err());
        assert_eq!(
            nobody,
            [true, true],
            "what is answered, and what was never asked"
        );
    }
    #[tokio::test]
    async fn who_hears_its_answer_has_it_before_the_next_one_comes() {
        let (_orders, answers, far) = channel::new_pair().unwrap();
        let mut far = channel::SandboxEnd::new(far.into());
        let reader = AnswerReader {
            answers,
            over: None,
            outputs_bytes: 0,
        };
        let asked = PendingAnswers {
            next: 2,
            answers: BTreeMap::from([(0, None), (1, None)]),
        };
        let (reader, asked) = (Turn::new(reader), Mutex::new(asked));
        let mut first = Box::pin(wait_for_numbered(&reader, &asked, 0));
        let mut second = Box::pin(wait_for_numbered(&reader, &asked, 1));
        // The first hears, and the second waits for the turn.
        assert!(futures::poll!(&mut first).is_pending());
        assert!(futures::poll!(&mut second).is_pending());
        let mut answer = |number| {
            let prepared = SandboxAnswer::Prepared(number, Ok(()));
            far.send_answer(&prepared, &[]).unwrap();
        };
        answer(0);
        let patience = Duration::from_secs(5);
        tokio::select! {
            answered = tokio::time::timeout(patience, &mut first) => {
                assert!(answered.expect("it is answered").is_ok());
            }
            _ = &mut second => unreachable!("nobody answered the second"),
        }
        answer(1);
        assert!(second.await.is_ok());
    }
}
