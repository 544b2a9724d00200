//! Runs one job: a task that receives events, passes them to the job's core (the state machine
//! without I/O in `souk_roles::job`), and carries out the actions that the core returns.
//!
//! The task must await nothing else. An action that takes time runs as an effect, whose answer
//! comes back as an event. Messages to one provider, and writes to the journal, must keep their
//! order, so they have queues of their own.

mod effects;
mod held_contents;
mod served_contents;
mod streams;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use souk_folder::clock::{CoreClock, unix_ms};
use souk_market::{JobId, LeaseId};
use souk_memory::{HeldContent, Tensor};
use souk_network::content::inline_contents::InlineContents;
use souk_roles::clock::Now;
use souk_roles::effect::{Effect, Ticket};
use souk_roles::job::{
    Action, Answer, Event, Fact, FetchFault, JobCore, JobEvent, Leg, Outcome, Reason, attempt_id,
};
use souk_roles::lease::{ProviderMessage, Request};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinSet;

use super::job::RequestInputs;
use super::job_times::JobStopwatch;
use super::journal::{JournalWrite, JournalWriter};
use super::lease_follower::{FollowedLease, next_change_of};
use super::output_bounds::OutputBounds;
use super::own_outputs::OwnOutputs;
use super::past_times::{EndedJob, PastJob};
use super::planner::{PlanError, Planner};
use super::quote::Quote;
use super::{Buyer, JobResult, Requests, Submission, WINDOW_MAX};
use crate::effect_tasks::EffectTasks;
use crate::lease_report::LeaseReport;
use held_contents::HeldContents;
use served_contents::ServedContents;
use streams::{Incoming, ProviderStream};

/// Messages of providers that the core has not yet received. If there are this many, the readers of
/// streams wait, which delays only their providers.
const INBOX: usize = 4_096;

/// The most transfers of content at a time.
const TRANSFERS_MAX: usize = 256;

/// How long a provider that does not read can delay the end of the job.
const PARTING_TIMEOUT: Duration = Duration::from_secs(2);

/// The result of an effect.
enum EffectOutcome {
    Is(Answer),
    Planned(Result<Box<Quote>, PlanError>),
}

/// The next thing that happened.
enum ShellInput {
    Event(Event),
    EffectEnded(Ticket, EffectOutcome),
    Asked(Option<RequestInputs>),
    Incoming(Incoming),
}

/// The state of the task.
pub(super) struct Shell {
    buyer: Buyer,
    core: JobCore,
    clock: CoreClock,
    /// Events that already happened and wait for the core.
    ready: VecDeque<Event>,
    inbox: mpsc::Receiver<Incoming>,
    told: mpsc::Sender<Incoming>,
    talks: BTreeMap<Leg, ProviderStream>,
    opened: u64,
    streams: JoinSet<()>,
    effects: EffectTasks<EffectOutcome>,
    transfers: Arc<Semaphore>,
    requests: Requests,
    /// How many requests came, and how many of them have no answer yet.
    asked: u32,
    under_way: u32,
    is_drained: bool,
    /// Answers in order; a task passes them on as the caller receives them.
    answers: mpsc::UnboundedSender<super::Answer>,
    progress: mpsc::Sender<JobEvent>,
    cancel: Arc<Notify>,
    /// Warns the caller of the end of leases.
    warning: Arc<Notify>,
    /// Whether a resting bid already made the core's first purchase.
    is_bought: bool,
    journal: Option<JournalWriter>,
    planner: Planner,
    own_outputs: OwnOutputs,
    bounds: OutputBounds,
    /// The leases that the core follows.
    followed: BTreeMap<LeaseId, FollowedLease>,
    /// The report of each leg, until its receipt is signed.
    reports: BTreeMap<Leg, LeaseReport>,
    gathered: JobResult,
    /// Measures how long the job takes.
    watch: JobStopwatch,
    served: ServedContents,
    held: HeldContents,
    /// Contents that came with messages.
    inline_contents: InlineContents<Leg>,
    /// A failure of this task that the core does not know of.
    fault: Option<Reason>,
    outcome: Option<Outcome>,
}

impl Shell {
    /// Starts or resumes a job: begins its core and carries out the first actions. `kept` are the
    /// values that an earlier life of the job computed.
    pub(super) fn new(
        buyer: &Buyer,
        begin: impl FnOnce(Now) -> (JobCore, Vec<Effect<Action>>),
        planner: Planner,
        job: JobId,
        (submission, journal): (Submission, Option<JournalWriter>),
        kept: Vec<HeldContent>,
    ) -> Shell {
        let clock = CoreClock::new(buyer.broker().log_clock());
        let (core, effects) = begin(clock.now());
        let (told, inbox) = mpsc::channel(INBOX);
        let (answers, mut given) = mpsc::unbounded_channel();
        let caller = submission.answers;
        tokio::spawn(async move {
            while let Some(answer) = given.recv().await {
                if caller.send(answer).await.is_err() {
                    return;
                }
            }
        });
        let mut shell = Shell {
            buyer: buyer.clone(),
            core,
            clock,
            ready: VecDeque::new(),
            inbox,
            told,
            talks: BTreeMap::new(),
            opened: 0,
            streams: JoinSet::new(),
            effects: EffectTasks::default(),
            transfers: Arc::new(Semaphore::new(TRANSFERS_MAX)),
            requests: submission.requests,
            asked: 0,
            under_way: 0,
            is_drained: false,
            answers,
            progress: submission.progress,
            cancel: submission.cancel,
            warning: submission.warning,
            is_bought: submission.is_bought,
            journal,
            own_outputs: OwnOutputs::from_graph(planner.graph()),
            bounds: planner.output_bounds(),
            planner,
            followed: BTreeMap::new(),
            reports: BTreeMap::new(),
            gathered: JobResult::new(job),
            watch: JobStopwatch::start(),
            served: ServedContents::new(buyer.tensors.clone(), buyer.account()),
            held: HeldContents::new(buyer.tensors.store().clone(), kept),
            inline_contents: InlineContents::default(),
            fault: None,
            outcome: None,
        };
        shell.carry_out(effects);
        shell
    }

    /// Runs the job to its end.
    pub(super) async fn run(mut self) -> (Outcome, JobResult) {
        let outcome = loop {
            if let Some(outcome) = self.outcome.take() {
                break outcome;
            }
            let event = match self.ready.pop_front() {
                Some(event) => Some(event),
                None => {
                    let next = self.next().await;
                    self.on_next(next)
                }
            };
            if let Some(event) = event {
                let effects = self.core.apply(self.clock.now(), event);
                self.carry_out(effects);
            }
        };
        // The last messages are sent before the streams close.
        self.talks.clear();
        let parting = async { while self.streams.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(PARTING_TIMEOUT, parting).await;
        // The times of this job and its links improve the plan of the next job.
        self.note_times(&outcome);
        let tensors = self.buyer.tensors.clone();
        let saving = tokio::task::spawn_blocking(move || tensors.links().save(unix_ms()));
        saving.await.expect("writing what is known does not panic");
        (self.outcome_of(outcome), self.gathered)
    }

    /// Records how long the job took, if that is typical: it had one request and one purchase, and
    /// ended well.
    fn note_times(&self, outcome: &Outcome) {
        let is_telling = outcome.how == souk_roles::job::End::Done && self.asked == 1;
        let Some((model, quote)) = self.planner.bought_at_once().filter(|_| is_telling) else {
            return;
        };
        let is_session = !quote.graph.state_values().is_empty();
        if is_session || quote.requests > 1 {
            return;
        }
        let measured = self.watch.into_times(Instant::now());
        let measured = measured.by_devices(&self.gathered.timeline);
        let ended = EndedJob {
            providers: quote.providers(),
            times: PastJob {
                upload: (measured.upload - quote.upload_seconds()).max(0.0),
                wait: (measured.wait - quote.hop_seconds).max(0.0),
                planned: quote.run_seconds(),
                computed: measured.compute,
                reference: quote.reference_seconds(),
            },
            turns: quote.turns_of(measured.compute),
        };
        self.buyer.past.record_job(model, &ended, unix_ms());
    }

    fn outcome_of(&mut self, mut outcome: Outcome) -> Outcome {
        if let Some(fault) = self.fault.take() {
            outcome.how = souk_roles::job::End::Failed(fault);
        }
        outcome
    }

    /// Waits until something happens.
    async fn next(&mut self) -> ShellInput {
        let wakes_at = self.core.wakes_at();
        let window = self.requests.window.clamp(1, WINDOW_MAX);
        let has_room = !self.is_drained && self.under_way < window;
        let written = async {
            match &mut self.journal {
                Some(writer) => writer.next_answer().await,
                None => std::future::pending().await,
            }
        };
        let changed = next_change_of(&mut self.followed);
        tokio::select! {
            ended = self.effects.next_outcome() => match ended {
                Ok((ticket, outcome)) => ShellInput::EffectEnded(ticket, outcome),
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            },
            (ticket, written) = written => {
                let answer = written.unwrap_or_else(|ended| Answer::NotWritten(ended.to_string()));
                ShellInput::Event(Event::EffectAnswered { ticket, answer })
            }
            Some(incoming) = self.inbox.recv() => ShellInput::Incoming(incoming),
            asked = self.requests.inputs.recv(), if has_room => ShellInput::Asked(asked),
            lease = changed => ShellInput::Event(Event::Changed(Box::new(lease))),
            () = self.cancel.notified() => ShellInput::Event(Event::Cancel),
            () = self.clock.wait_until(wakes_at) => ShellInput::Event(Event::TimerFired),
        }
    }

    /// Converts what happened into an event for the core, if it is one.
    fn on_next(&mut self, next: ShellInput) -> Option<Event> {
        match next {
            ShellInput::Event(event) => Some(event),
            ShellInput::EffectEnded(ticket, came) => self.on_effect_ended(ticket, came),
            ShellInput::Asked(Some(inputs)) => Some(self.on_request(&inputs)),
            ShellInput::Asked(None) => {
                self.is_drained = true;
                Some(Event::NoMore)
            }
            ShellInput::Incoming(incoming) => self.on_incoming(incoming),
        }
    }

    /// Stores the inputs of a request, so that providers can fetch them.
    fn on_request(&mut self, asked: &RequestInputs) -> Event {
        let number = self.asked;
        match self.held.put_inputs(number, &asked.tensors) {
            Ok(inputs) => {
                self.own_outputs.note_request(number, &asked.tensors);
                self.bounds.note_request(&asked.tensors);
                self.asked += 1;
                self.under_way += 1;
                let request = Request {
                    number,
                    sequence: asked.sequence,
                    inputs,
                    keep: asked.keep,
                };
                let size = self.planner.request_scale(&asked.tensors);
                Event::NewRequest { request, size }
            }
            Err(error) => {
                self.fault = Some(Reason::Memory(error.to_string()));
                Event::Cancel
            }
        }
    }

    fn on_effect_ended(&mut self, ticket: Ticket, came: EffectOutcome) -> Option<Event> {
        let answer = match came {
            EffectOutcome::Is(answer) => answer,
            EffectOutcome::Planned(planned) => match planned {
                Ok(quote) => Answer::Planned(Box::new(self.planner.adopt_quote(*quote))),
                Err(error) => {
                    let (why, passes) = error.no_plan();
                    Answer::NotPlanned { why, passes }
                }
            },
        };
        match &answer {
            Answer::Bought(_) => self.planner.on_bought(),
            Answer::Taken => self.under_way -= 1,
            _ => {}
        }
        Some(Event::EffectAnswered { ticket, answer })
    }

    fn carry_out(&mut self, effects: Vec<Effect<Action>>) {
        for Effect { ticket, action } in effects {
            self.begin_action(ticket, action);
        }
    }

    /// Queues an answer that is already there.
    fn queue_answer(&mut self, ticket: Ticket, answer: Answer) {
        self.ready
            .push_back(Event::EffectAnswered { ticket, answer });
    }

    /// Writes facts to the journal. A session's answers stay out of it: they come with each token,
    /// and no later process can continue the session.
    fn record_facts(&mut self, ticket: Ticket, mut facts: Vec<Fact>) {
        if self.planner.is_session() {
            facts.retain(|fact| !matches!(fact, Fact::Answered { .. }));
        }
        match facts.is_empty() {
            true => self.queue_answer(ticket, Answer::Recorded),
            false => self.write(ticket, JournalWrite::Facts(facts)),
        }
    }

    /// Writes to the journal; without one, answers at once.
    fn write(&mut self, ticket: Ticket, write: JournalWrite) {
        let Some(writer) = &mut self.journal else {
            let answer = match write {
                JournalWrite::Facts(_) => Answer::Recorded,
                JournalWrite::Values(_) => Answer::Kept,
            };
            return self.queue_answer(ticket, answer);
        };
        if let Err(behind) = writer.submit_write(ticket, write) {
            self.queue_answer(ticket, Answer::NotWritten(behind.to_string()));
        }
    }
}
