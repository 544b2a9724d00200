//! A sandbox as its provider sees it: started, asked, ended.

pub mod pool;

use std::collections::BTreeMap;
use std::io;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use souk_host::system;
use souk_memory::{ContentId, Store, Tensor};
use souk_scheduler::execution::RunResult;
use souk_vocabulary::profile::Profile;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex as Turn, watch};
use tokio::task::JoinHandle;

use super::group::{ControlGroup, ControlGroupError, GroupLimits};
use super::shared::{Parcel, SharedContents};
use super::{COMMAND, Recipe, SILENCE_MAX, SandboxFault, SandboxPolicy, SandboxRun};
use crate::device::graph_operators::GraphOperators;
use crate::device::graph_work::GraphWork;
use crate::device::probe::TOLD;
use crate::folder::config::Fault;
use crate::sandbox::channel::{self, Answers, Orders};
use crate::sandbox::messages::{
    self, NotReady, Number, OpenOrder, RunFault, RunHead, RunOrder, SandboxAnswer, SandboxOrder,
};

/// How long a sandbox may take to open its devices; a GPU's driver may take seconds.
const OPENING_MAX: Duration = Duration::from_secs(60);

/// What a sandbox's group is called where it is told what keeps jobs in.
const GROUP: &str = "a control group: memory, processors and threads of the whole (cgroup v2)";

/// What the whole process may hold beside what a job may use; a GPU's driver compiles programs.
const BESIDE_BYTES: u64 = 1 << 30;

/// What a sandbox last printed is kept for the reason of its end, so many bytes of it.
const LAST_WORDS_BYTES: usize = 4096;

/// How long the last words and the exit of a sandbox whose channel is closed are waited for.
const END_MAX: Duration = Duration::from_secs(2);

/// A running sandbox. Dropping it ends its process. Several may ask it at once: whoever waits for
/// an answer hears for all of them.
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
    /// Closed when what it prints has come to its end, which its own end is.
    speaking: watch::Receiver<()>,
    /// Told when this sandbox is gone.
    pub(super) vacated: Option<pool::FreedPlace>,
}

#[derive(Debug)]
struct Process {
    child: Child,
    last_words: Option<JoinHandle<String>>,
    /// What they were.
    said: String,
}

/// The channel as it is listened to.
#[derive(Debug)]
struct AnswerReader {
    answers: Answers,
    /// Why nothing more is heard.
    over: Option<io::ErrorKind>,
    /// Bytes that one run may give.
    outputs_bytes: u64,
}

/// Orders that wait for their answers, and answers that wait for who asked.
#[derive(Debug, Default)]
struct PendingAnswers {
    next: Number,
    answers: BTreeMap<Number, Option<NumberedAnswer>>,
}

/// An answer to a numbered order.
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
    /// [`SandboxFault`]: it did not start, or a device does not open.
    pub async fn start(recipe: &Recipe) -> Result<Sandbox, SandboxFault> {
        let (orders, answers, far_end) = channel::pair().map_err(SandboxFault::Start)?;
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
        // Before it is told anything.
        let limited = sandbox.limit_by_group(recipe);
        let open = OpenOrder::new(recipe);
        sandbox
            .tell(&SandboxOrder::OpenOrder(Box::new(open)), &[])
            .await?;
        match sandbox.hear(OPENING_MAX).await? {
            SandboxAnswer::OpenAnswer(Ok(opened)) => {
                sandbox.opened = opened;
                sandbox.opened.policy.note(GROUP, limited);
            }
            SandboxAnswer::OpenAnswer(Err(refused)) => {
                return Err(SandboxFault::Device(refused));
            }
            _ => return Err(SandboxFault::Confused),
        }
        Ok(sandbox)
    }

    /// Puts the process into a group of its own, where this provider may make one.
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
            .group(share, process)
            .map_err(|why| why.to_string())?;
        self.group = Some(group);
        Ok(())
    }

    /// What keeps the work in, and what could not be put up.
    #[must_use]
    pub fn policy(&self) -> &SandboxPolicy {
        &self.opened.policy
    }

    /// What its devices are called together in reports.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.opened.label
    }

    /// What its devices are.
    ///
    /// # Errors
    /// [`SandboxFault::Confused`].
    pub fn profiles(&self) -> Result<Vec<Profile>, SandboxFault> {
        serde_json::from_str(&self.opened.profiles).map_err(|_| SandboxFault::Confused)
    }

    /// The process, while it is not known to have ended.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        self.process.try_lock().ok()?.child.id()
    }

    /// Requests of a stream that keep its devices at work.
    #[must_use]
    pub fn stream_ahead(&self) -> usize {
        self.opened.stream_ahead
    }

    /// Whether the process has ended by itself.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.process.get_mut().child.try_wait(), Ok(None))
    }

    /// Has the sandbox count so many times as much as others where they want the same cores.
    /// Without a group of its own all count alike.
    ///
    /// # Errors
    /// What the system says.
    pub fn weigh(&self, times: f64) -> Result<(), ControlGroupError> {
        match &self.group {
            None => Ok(()),
            Some(group) => group.weigh(times),
        }
    }

    /// Lets the sandbox's threads compute for no longer than this in sum, from now on: to open and
    /// measure its devices it may have computed for longer than its job is going to.
    ///
    /// # Errors
    /// What the system says.
    pub fn limit_cpu(&self, time: Duration) -> io::Result<()> {
        let id = self.process_id().and_then(|id| i32::try_from(id).ok());
        let Some(process) = id.and_then(Pid::from_raw) else {
            return Ok(());
        };
        let before = self
            .process_id()
            .and_then(|id| system::process_times(Some(id)));
        let time = before.map_or(time, |before| time.saturating_add(before.computed));
        // Beyond the first limit a signal ends it, beyond the second it is killed.
        let seconds = time.as_secs().saturating_add(1);
        let limit = Rlimit {
            current: Some(seconds),
            maximum: Some(seconds.saturating_add(1)),
        };
        prlimit(Some(process), Resource::Cpu, limit)?;
        Ok(())
    }

    /// Waits until the process ends, by itself or as the sandbox is dropped, which is not held
    /// meanwhile.
    pub fn ending(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut speaking = self.speaking.clone();
        async move { while speaking.changed().await.is_ok() {} }
    }

    /// How the process ended, once it has.
    pub async fn fault(&self) -> SandboxFault {
        self.how_it_ended(io::ErrorKind::BrokenPipe).await
    }

    /// Ends the process, as dropping the sandbox does, and waits until it has.
    ///
    /// # Errors
    /// What the system says.
    pub async fn end(mut self) -> io::Result<()> {
        self.process.get_mut().child.kill().await
    }

    /// Gives the sandbox a model, and has its operators told: what is a stranger's is read there.
    ///
    /// # Errors
    /// [`SandboxFault::Refused`] where the model has more of them than there are, or how the
    /// sandbox ended.
    pub(crate) async fn inspect(
        &self,
        store: &Arc<Store>,
        shared: &Arc<SharedContents>,
        model: ContentId,
        fault: Option<Fault>,
    ) -> Result<GraphOperators, SandboxFault> {
        self.hand_over(store, shared, vec![model]).await?;
        let number = self.number();
        let order = SandboxOrder::Inspect(number, model, fault);
        self.tell(&order, &[]).await?;
        match self.answer(number).await? {
            NumberedAnswer::Inspected(found) => found.map_err(SandboxFault::Refused),
            _ => Err(SandboxFault::Confused),
        }
    }

    /// Gives the sandbox a model and its weights, and has it made ready.
    ///
    /// # Errors
    /// [`SandboxFault::Refused`] or [`SandboxFault::RefusedNode`] with the device's words, or how
    /// the sandbox ended.
    pub async fn prepare(
        &self,
        store: &Arc<Store>,
        shared: &Arc<SharedContents>,
        model: ContentId,
        weights: &[ContentId],
    ) -> Result<(), SandboxFault> {
        let ids = [&[model], weights].concat();
        self.hand_over(store, shared, ids).await?;
        let number = self.number();
        self.tell(&SandboxOrder::Prepare(number, model), &[])
            .await?;
        match self.answer(number).await? {
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
        let gathered = tokio::task::spawn_blocking(move || shared.gather(&store, &ids)).await;
        let parcels = gathered.expect("gathering content does not panic")?;
        for parcel in &parcels {
            self.hold(parcel).await?;
        }
        Ok(())
    }

    async fn hold(&self, parcel: &Parcel) -> Result<(), SandboxFault> {
        let order = SandboxOrder::Hold(parcel.contents.clone());
        let files: Vec<_> = parcel.sealed.iter().map(|sealed| sealed.file()).collect();
        self.tell(&order, &files).await
    }

    /// Runs a part, until a deadline where there is one, and says what it takes where that is
    /// wanted and known. Of a stream several may be run at once, and end in any order.
    ///
    /// # Errors
    /// [`SandboxFault::Refused`] or, where the inputs are at fault, [`SandboxFault::BadInput`] with
    /// the device's words, [`SandboxFault::OutOfTime`] where its deadline came first, or how the
    /// sandbox ended.
    pub(crate) async fn run(
        &self,
        run: SandboxRun,
    ) -> Result<(RunResult, Option<GraphWork>), SandboxFault> {
        let wrapping = tokio::task::spawn_blocking(move || RunOrder::new(run));
        let wrapped = wrapping.await.expect("wrapping inputs does not panic");
        let (order, sealed) = wrapped.map_err(SandboxFault::Memory)?;
        let files: Vec<_> = sealed.iter().map(|sealed| sealed.file()).collect();
        let number = self.number();
        self.tell(&SandboxOrder::Run(number, order), &files).await?;
        let NumberedAnswer::Ran(ran) = self.answer(number).await? else {
            return Err(SandboxFault::Confused);
        };
        (*ran).map_err(|unrun| match unrun {
            RunFault::Late => SandboxFault::OutOfTime,
            RunFault::Failed(why) => SandboxFault::Refused(why),
            RunFault::BadInput(why) => SandboxFault::BadInput(why),
        })
    }

    /// A number for an order whose answer is awaited from now on.
    fn number(&self) -> Number {
        let mut asked = locked(&self.asked);
        let number = asked.next;
        asked.next += 1;
        asked.answers.insert(number, None);
        number
    }

    async fn tell(
        &self,
        order: &SandboxOrder,
        files: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<(), SandboxFault> {
        let sent = self.orders.lock().await.send(order, files).await;
        match sent {
            Ok(()) => Ok(()),
            Err(error) => Err(self.how_it_ended(error.kind()).await),
        }
    }

    /// The sandbox's next word beside that it lives; `silence` is how long it may say nothing.
    async fn hear(&self, silence: Duration) -> Result<SandboxAnswer, SandboxFault> {
        let heard = self.answers.lock().await.word(silence).await;
        match heard {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.how_it_ended(error).await),
        }
    }

    /// The answer to an order.
    async fn answer(&self, number: Number) -> Result<NumberedAnswer, SandboxFault> {
        match heard(&self.answers, &self.asked, number).await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.how_it_ended(error).await),
        }
    }

    /// Why the channel to the sandbox broke.
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
        SandboxFault::ended(status, words, self.memory_bytes)
    }
}

fn locked(asked: &Mutex<PendingAnswers>) -> MutexGuard<'_, PendingAnswers> {
    // Each change is whole before anything can panic.
    asked.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The answer to an order. What comes meanwhile is kept for who asked for it.
async fn heard(
    answers: &Turn<AnswerReader>,
    asked: &Mutex<PendingAnswers>,
    number: Number,
) -> Result<NumberedAnswer, io::ErrorKind> {
    loop {
        let mut hearing = answers.lock().await;
        if let Some(heard) = locked(asked).take(number) {
            return Ok(heard);
        }
        let heard = hearing.answer(SILENCE_MAX).await;
        let kept = heard.and_then(|(number, heard)| locked(asked).keep(number, heard));
        // Whoever waits too hears no more either.
        hearing.over = kept.err();
        kept?;
        // Who waits for the turn would hear the next answer before this one is given on.
        if let Some(heard) = locked(asked).take(number) {
            return Ok(heard);
        }
    }
}

impl AnswerReader {
    async fn word(&mut self, silence: Duration) -> Result<SandboxAnswer, io::ErrorKind> {
        if let Some(over) = self.over {
            return Err(over);
        }
        loop {
            match self.answers.receive(silence).await {
                Ok(SandboxAnswer::Alive) => {}
                Ok(answer) => return Ok(answer),
                Err(error) => return Err(error.kind()),
            }
        }
    }

    /// The next answer to a numbered order, with what a run gave.
    async fn answer(
        &mut self,
        silence: Duration,
    ) -> Result<(Number, NumberedAnswer), io::ErrorKind> {
        match self.word(silence).await? {
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
                    Ok(head) => Ok(self.outputs(head, silence).await?),
                    Err(unrun) => Err(unrun),
                };
                Ok((number, NumberedAnswer::Ran(Box::new(ran))))
            }
            SandboxAnswer::Alive | SandboxAnswer::OpenAnswer(_) => Err(io::ErrorKind::InvalidData),
        }
    }

    async fn outputs(
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
    /// Keeps an answer for who awaits it; nobody awaits two.
    fn keep(&mut self, number: Number, heard: NumberedAnswer) -> Result<(), io::ErrorKind> {
        match self.answers.get_mut(&number) {
            Some(place) if place.is_none() => *place = Some(heard),
            _ => return Err(io::ErrorKind::InvalidData),
        }
        Ok(())
    }

    fn take(&mut self, number: Number) -> Option<NumberedAnswer> {
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
            costs: recipe.seen.costs(),
            objective: recipe.objective,
            library: recipe.library.clone(),
            memory_bytes: recipe.memory_bytes,
        }
    }
}

/// Reads what a sandbox prints to its end, and keeps the last of it.
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
        assert!(asked.take(1).is_none());
        asked.keep(1, heard()).unwrap();
        let twice = asked.keep(1, heard()).unwrap_err();
        assert_eq!(twice, io::ErrorKind::InvalidData);
        assert!(asked.take(0).is_none(), "it is another one's");
        assert!(matches!(
            asked.take(1),
            Some(NumberedAnswer::Prepared(Ok(())))
        ));
        let nobody = [1, 2].map(|number| asked.keep(number, heard()).is_err());
        assert_eq!(
            nobody,
            [true, true],
            "what is answered, and what was never asked"
        );
    }
    #[tokio::test]
    async fn who_hears_its_answer_has_it_before_the_next_one_comes() {
        let (_orders, answers, far) = channel::pair().unwrap();
        let mut far = channel::FarEnd::new(far.into());
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
        let mut first = Box::pin(heard(&reader, &asked, 0));
        let mut second = Box::pin(heard(&reader, &asked, 1));
        // The first hears, and the second waits for the turn.
        assert!(futures::poll!(&mut first).is_pending());
        assert!(futures::poll!(&mut second).is_pending());
        let mut answer = |number| {
            let prepared = SandboxAnswer::Prepared(number, Ok(()));
            far.send(&prepared, &[]).unwrap();
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
