//! Carries out the actions of the core of a training run (`souk_roles::train`): quotes and runs
//! leases, sends steps, checks the form of answers, and writes the journal.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use souk_market::JobId;
use souk_memory::Tensor;
use souk_roles::clock::Micros;
use souk_roles::train::{
    Action, End, Event, LeaseEnd, LeaseEndReason, LeaseWish, RunRequest, Segment, Shortage,
    StepAnswer, TrainCore,
};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::answer_times::AnswerTimes;
use super::audited_segment::AuditedSegment;
use super::journal::{RunJournalError, RunWrite, RunWriter, RunWritten, read_states};
use super::lease_outcome::{end_reason, quote_lease, shortage_of, sum_spending};
use super::run::{TrainingEnd, TrainingEvent, TrainingResult, TrainingRun};
use super::sent::{SentRequests, state_ids, to_requests};
use super::short_money::ShortMoney;
use super::training_job;
use crate::buyer::job::{Job, RequestInputs};
use crate::buyer::{
    Answer, JobEvent, JobResult, Quote, QuoteError, Requests, Submission, UnfinishedJob, draw_job,
};

/// How many steps the buyer sends ahead, so that the provider does not wait for it.
const WINDOW: u32 = 4;

/// Events of a job that can wait for the observer.
const PROGRESS_MAX: usize = 64;

type LeaseOutcome = Result<JobResult, Box<UnfinishedJob>>;
type Running = Pin<Box<dyn Future<Output = LeaseOutcome> + Send>>;
type Quoting = Pin<Box<dyn Future<Output = (Box<Job>, Result<Quote, QuoteError>)> + Send>>;

/// The shell of a run.
pub(super) struct RunShell<'a, O> {
    run: &'a TrainingRun<'a>,
    core: TrainCore,
    writer: RunWriter,
    next_ticket: u64,
    observe: O,
    /// The last kept states.
    kept: BTreeMap<String, Tensor>,
    /// The states of the answer that the core judges.
    answered: BTreeMap<String, Tensor>,
    /// The states from which the next lease begins.
    begun: BTreeMap<String, Tensor>,
    /// The segment that the present lease runs again; none if it is no audit.
    audited: Option<AuditedSegment>,
    /// What other providers made of that segment.
    rerun: Vec<BTreeMap<String, Tensor>>,
    /// The folder of the run.
    folder: PathBuf,
    /// The last lease that the run looked for.
    wish: Option<LeaseWish>,
    quoting: Option<Quoting>,
    quoted: Option<(JobId, Box<Job>, Quote)>,
    first: Option<RunRequest>,
    lease: Option<OpenLease>,
    sent: SentRequests,
    /// How many leases this life wanted.
    leases: u32,
    quote_error: Option<Box<QuoteError>>,
    unfinished: Option<Box<UnfinishedJob>>,
    /// Whether the end of the last lease is shown, or need not be.
    is_end_shown: bool,
    write_error: String,
    /// Why a write was not queued.
    refused_write: Option<String>,
}

/// A lease at work.
struct OpenLease {
    running: Running,
    /// None if no more steps follow.
    give: Option<mpsc::Sender<RequestInputs>>,
    answers: mpsc::Receiver<Answer>,
    progress: mpsc::Receiver<JobEvent>,
    cancel: Arc<Notify>,
    warning: Arc<Notify>,
    answer_times: AnswerTimes,
    /// How long a request takes by the ask of the plan.
    planned_time: Micros,
    /// Whether the market sold it.
    is_sold: bool,
}

/// What is known of a lease at its end.
#[derive(Clone, Copy)]
struct LeaseFacts {
    request_time: Option<Micros>,
    planned_time: Micros,
    is_sold: bool,
}

/// What happened to the shell.
enum Input {
    Event(Event),
    /// The lease can take one more request.
    Room,
    Quoted(Box<Job>, Box<Result<Quote, QuoteError>>),
    NotWritten(String),
    Answered(Answer),
    Job(JobEvent),
    LeaseEnded(Box<LeaseOutcome>),
    Nothing,
}

impl<'a, O: FnMut(TrainingEvent<'_>)> RunShell<'a, O> {
    pub(super) fn new(
        run: &'a TrainingRun<'a>,
        core: TrainCore,
        kept: BTreeMap<String, Tensor>,
        (writer, folder): (RunWriter, PathBuf),
        observe: O,
    ) -> RunShell<'a, O> {
        RunShell {
            run,
            core,
            writer,
            next_ticket: 0,
            observe,
            answered: kept.clone(),
            begun: kept.clone(),
            audited: None,
            rerun: Vec::new(),
            folder,
            kept,
            wish: None,
            quoting: None,
            quoted: None,
            first: None,
            lease: None,
            sent: SentRequests::default(),
            leases: 0,
            quote_error: None,
            unfinished: None,
            is_end_shown: true,
            write_error: String::new(),
            refused_write: None,
        }
    }

    /// Runs to the end.
    pub(super) async fn run(mut self, actions: Vec<Action>) -> TrainingResult {
        let mut actions = actions;
        loop {
            for action in actions {
                if let Some(end) = self.carry_out(action) {
                    let (writer, result) = self.into_result(end);
                    // The journal is free for the next one that opens it.
                    writer.close().await;
                    return result;
                }
            }
            actions = Vec::new();
            let input = self.next().await;
            for event in self.on_input(input) {
                actions.extend(self.core.apply(event));
            }
        }
    }

    /// Waits until something happens. Answers come before the end of their lease.
    async fn next(&mut self) -> Input {
        if let Some(why) = self.refused_write.take() {
            return Input::NotWritten(why);
        }
        let (cancel, is_send_due) = (self.run.cancel.clone(), self.core.is_send_due());
        let quoting = async {
            match &mut self.quoting {
                Some(quoting) => quoting.await,
                None => std::future::pending().await,
            }
        };
        let leased = async {
            let Some(lease) = &mut self.lease else {
                return std::future::pending().await;
            };
            let room = async {
                match &lease.give {
                    Some(give) if !is_send_due => drop(give.reserve().await),
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some(answer) = lease.answers.recv() => Input::Answered(answer),
                Some(event) = lease.progress.recv() => Input::Job(event),
                ended = &mut lease.running => Input::LeaseEnded(Box::new(ended)),
                () = lease.warning.notified() => Input::Event(Event::TimeShort),
                () = room => Input::Room,
            }
        };
        tokio::select! {
            (_, written) = self.writer.next_answer() => match written {
                Ok(RunWritten::Fact) => Input::Event(Event::Recorded),
                Ok(RunWritten::Other) => Input::Nothing,
                Ok(RunWritten::Failed(why)) => Input::NotWritten(why),
                Err(ended) => Input::NotWritten(ended.to_string()),
            },
            (job, quoted) = quoting => Input::Quoted(job, Box::new(quoted)),
            () = cancel.notified() => Input::Event(Event::Stop),
            input = leased => input,
        }
    }

    /// Converts what happened into events for the core.
    fn on_input(&mut self, input: Input) -> Vec<Event> {
        match input {
            Input::Nothing => Vec::new(),
            Input::Event(event @ (Event::Stop | Event::TimeShort)) => {
                let abandoned = self.sent.abandon_evaluation();
                [Some(event), abandoned.map(Event::Answered)]
                    .into_iter()
                    .flatten()
                    .collect()
            }
            Input::Event(event) => vec![event],
            Input::Room => match self.sent.take_waiting() {
                Some(inputs) => {
                    self.give(inputs);
                    Vec::new()
                }
                None => vec![Event::StepWanted],
            },
            Input::NotWritten(why) => {
                self.write_error = why;
                vec![Event::NotRecorded]
            }
            Input::Quoted(job, quoted) => vec![self.on_quoted(job, *quoted)],
            Input::Answered(answer) => {
                if let Some(lease) = &mut self.lease {
                    lease.answer_times.note_answer(Instant::now());
                }
                vec![self.on_answered(answer)]
            }
            Input::Job(event) => self.on_job_event(&event).into_iter().collect(),
            Input::LeaseEnded(ended) => {
                let mut events = Vec::new();
                let mut facts = LeaseFacts {
                    request_time: None,
                    planned_time: Micros(0),
                    is_sold: true,
                };
                if let Some(mut lease) = self.lease.take() {
                    // Its last words may wait yet.
                    while let Ok(answer) = lease.answers.try_recv() {
                        lease.answer_times.note_answer(Instant::now());
                        events.push(self.on_answered(answer));
                    }
                    while let Ok(event) = lease.progress.try_recv() {
                        events.extend(self.on_job_event(&event));
                    }
                    let is_leased = |event: &Event| matches!(event, Event::Leased { .. });
                    facts = LeaseFacts {
                        request_time: lease.answer_times.request_time().map(Micros::from),
                        planned_time: lease.planned_time,
                        is_sold: lease.is_sold || events.iter().any(is_leased),
                    };
                }
                events.push(self.on_lease_ended(*ended, facts));
                events
            }
        }
    }

    fn on_quoted(&mut self, job: Box<Job>, quoted: Result<Quote, QuoteError>) -> Event {
        self.quoting = None;
        match quoted {
            Ok(quote) => {
                (self.observe)(TrainingEvent::Planned(&quote));
                let provider = quote.part_listing(0).provider;
                let id = draw_job(self.run.buyer.account());
                self.quoted = Some((id, job, quote));
                Event::Quoted { job: id, provider }
            }
            Err(error) => {
                let short_of = shortage_of(&error);
                self.quote_error = Some(Box::new(error));
                Event::NotQuoted { short_of }
            }
        }
    }

    fn on_job_event(&mut self, event: &JobEvent) -> Option<Event> {
        (self.observe)(TrainingEvent::Job(event));
        let JobEvent::Leased { leases, .. } = event else {
            return None;
        };
        // A lease of a run has one leg.
        let (provider, _, escrow) = *leases.first()?;
        if let Some(lease) = &mut self.lease {
            lease.is_sold = true;
        }
        Some(Event::Leased { provider, escrow })
    }

    /// Judges an answer by its form.
    fn on_answered(&mut self, answer: Answer) -> Event {
        let outputs = answer.confirm_stored();
        let judged = self.sent.take_answer(self.run.training, &outputs);
        let Some((answer, states)) = judged else {
            return Event::BatchAnswered;
        };
        if matches!(answer, StepAnswer::NotFinite { .. }) {
            self.forget([outputs]);
        }
        if let Some(audited) = &mut self.audited {
            let answer = audited.match_answer(answer, states.as_ref());
            self.rerun.extend(states);
            return Event::Answered(answer);
        }
        if let Some(states) = states {
            self.answered = states;
        }
        Event::Answered(answer)
    }

    fn on_lease_ended(&mut self, ended: LeaseOutcome, facts: LeaseFacts) -> Event {
        let LeaseFacts {
            request_time,
            planned_time,
            is_sold,
        } = facts;
        let (cost, receipts, why) = match ended {
            Ok(result) => {
                self.unfinished = None;
                self.is_end_shown = self.run.training.leg.is_some();
                let why = match result.receipts.is_empty() {
                    true => LeaseEndReason::Unsigned,
                    false => LeaseEndReason::Done,
                };
                (result.spending.map(sum_spending), result.receipts, why)
            }
            Err(mut unfinished) => {
                let known = unfinished.spending.map(sum_spending);
                let receipts = std::mem::take(&mut unfinished.done.receipts);
                let why = end_reason(&unfinished.how, is_sold);
                self.unfinished = Some(unfinished);
                // A worker that was not sold a lease waits for another one.
                self.is_end_shown = !is_sold && self.run.training.leg.is_some();
                (known, receipts, why)
            }
        };
        Event::LeaseEnded(LeaseEnd {
            cost,
            receipts,
            why,
            request_time,
            planned_time,
        })
    }

    /// Carries out an action. Returns the end of the run.
    fn carry_out(&mut self, action: Action) -> Option<End> {
        match action {
            Action::Quote(wish) => self.quote(wish),
            Action::BeginLease => self.begin_lease(),
            Action::Send(request) => {
                let requests = to_requests(self.run.training, request);
                let first = self.sent.begin(requests, request);
                self.give(first);
            }
            Action::SendNoMore => {
                if let Some(lease) = &mut self.lease {
                    lease.give = None;
                }
            }
            Action::CancelLease => {
                if let Some(lease) = &self.lease {
                    lease.cancel.notify_one();
                }
            }
            Action::KeepStates(states) => {
                assert_eq!(states, state_ids(&self.answered), "they just came");
                self.kept = self.answered.clone();
                let blobs = self.kept.values().map(|it| (it.id(), it.to_blob()));
                self.write(RunWrite::States(blobs.collect()));
            }
            Action::Record(fact) => self.write(RunWrite::Fact(Box::new(fact))),
            Action::ForgetStates(states) => {
                let ids: Vec<_> = states.into_iter().map(|(_, id)| id).collect();
                for id in &ids {
                    self.remove_content(id);
                }
                self.write(RunWrite::Forget(ids));
            }
            Action::RestoreStates(kept) => match read_states(&self.folder, &kept.states) {
                Ok(states) => self.kept = states,
                Err(error) => {
                    self.refused_write.get_or_insert(error.to_string());
                }
            },
            Action::ShowAudit { from, end, verdict } => {
                (self.observe)(TrainingEvent::Audited { from, end, verdict });
            }
            Action::ShowStep { done, loss } => {
                let (loss, spent) = (f32::from_bits(loss.0), self.core.past().spent);
                (self.observe)(TrainingEvent::Step { done, loss, spent });
            }
            Action::ShowEvaluation { position, loss } => {
                let (loss, spent) = (f32::from_bits(loss.0), self.core.past().spent);
                let done = position;
                (self.observe)(TrainingEvent::Evaluated { done, loss, spent });
            }
            Action::End(end) => return Some(end),
        }
        None
    }

    /// Gives the lease one more request.
    fn give(&self, inputs: RequestInputs) {
        let lease = self.lease.as_ref();
        if let Some(give) = lease.and_then(|lease| lease.give.as_ref()) {
            // There is room, or the lease is over, and its end follows.
            let _ = give.try_send(inputs);
        }
    }

    fn write(&mut self, write: RunWrite) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        if let Err(behind) = self.writer.submit_write(ticket, write) {
            self.refused_write.get_or_insert(behind.to_string());
        }
    }

    /// Looks for the next lease. The device of the lease before comes back a moment after it, also
    /// that of another worker.
    fn quote(&mut self, wish: LeaseWish) {
        if let Err(error) = self.load_begin(&wish) {
            self.refused_write.get_or_insert(error.to_string());
            return;
        }
        let (unfinished, from) = (self.unfinished.as_deref(), wish.from.position);
        let is_news = unfinished.is_some() || wish.claims.is_empty();
        if !std::mem::replace(&mut self.is_end_shown, true) && is_news {
            (self.observe)(TrainingEvent::LeaseEnded { unfinished, from });
        }
        let mut limits = self.run.limits.clone();
        limits.budget = wish.budget;
        limits.request_time = wish.request_time.map(Duration::from);
        limits.excluded.extend(&wish.excluded);
        let position = wish.from.position;
        let training = self.run.training;
        let requests = training.count_requests(wish.steps, wish.evaluations);
        let first = to_requests(training, wish.first).swap_remove(0);
        let mut inputs = first.tensors;
        inputs.extend(self.begun.clone());
        let mut job = training_job(training, limits, requests, inputs);
        let waits = position > 0 || self.leases > 0 || training.leg.is_some();
        self.leases += 1;
        self.first = Some(wish.first);
        self.wish = Some(wish);
        let buyer = self.run.buyer.clone();
        self.quoting = Some(Box::pin(async move {
            let quoted = quote_lease(&buyer, &mut job, waits).await;
            (Box::new(job), quoted)
        }));
    }

    /// Finds the states from which a lease begins: the last kept ones or, for an audit, older ones
    /// from the disk, with those that its steps made.
    fn load_begin(&mut self, wish: &LeaseWish) -> Result<(), RunJournalError> {
        if wish.claims.len() <= 1 {
            let rerun = std::mem::take(&mut self.rerun);
            self.forget(rerun);
        }
        let Some(first) = wish.claims.first() else {
            (self.audited, self.begun) = (None, self.kept.clone());
            return Ok(());
        };
        self.begun = read_states(&self.folder, &wish.from.states)?;
        let made = read_states(&self.folder, &first.states)?;
        let all = [made].into_iter().chain(self.rerun.clone());
        self.audited = Some(AuditedSegment::new(
            self.begun.clone(),
            wish.claims.clone(),
            all.collect(),
        ));
        Ok(())
    }

    fn begin_lease(&mut self) {
        let (id, job, quote) = self.quoted.take().expect("a lease begins by its quote");
        let planned = quote.plan.makespan_seconds / f64::from(quote.requests.max(1));
        let planned_time = Micros::from(Duration::from_secs_f64(planned.clamp(0.0, 86_400.0)));
        let first = self.first.take().expect("a lease does something first");
        let requests = to_requests(self.run.training, first);
        self.sent = SentRequests::default();
        let mut begin = self.sent.begin(requests, first);
        // The first request also brings the states.
        begin.tensors.extend(self.begun.clone());
        let (give, inputs) = mpsc::channel(1);
        let (answers, answered) = mpsc::channel(1);
        let (progress, events) = mpsc::channel(PROGRESS_MAX);
        let (cancel, warning) = (Arc::<Notify>::default(), Arc::<Notify>::default());
        // The channel has room for one.
        let _ = give.try_send(begin);
        let submission = Submission {
            requests: Requests {
                count: job.limits.requests,
                window: WINDOW,
                inputs,
            },
            answers,
            progress,
            cancel: cancel.clone(),
            warning: warning.clone(),
            is_bought: false,
        };
        let buyer = self.run.buyer.clone();
        let running = async move {
            let named = (id, String::new());
            let running = buyer.submit_job_as(named, &job, quote, None, submission);
            running.await
        };
        self.lease = Some(OpenLease {
            running: Box::pin(running),
            give: Some(give),
            answers: answered,
            progress: events,
            cancel,
            warning,
            answer_times: AnswerTimes::start(Instant::now()),
            planned_time,
            is_sold: false,
        });
    }

    /// Removes contents from the buyer's store. Content that a provider still fetches stays valid,
    /// because the store only drops its own reference.
    fn forget(&self, tensors: impl IntoIterator<Item = BTreeMap<String, Tensor>>) {
        let tensors = tensors.into_iter().flat_map(BTreeMap::into_values);
        tensors.for_each(|tensor| self.remove_content(&tensor.id()));
    }

    fn remove_content(&self, id: &souk_memory::ContentId) {
        if let Err(error) = self.run.buyer.tensors().store().remove(id) {
            tracing::debug!(%error, "an old state stays in memory");
        }
    }

    fn into_result(self, end: End) -> (RunWriter, TrainingResult) {
        let past = self.core.past();
        let unquoted = self.quote_error.zip(self.wish);
        let end = match end {
            End::Done => TrainingEnd::Done,
            End::Stopped => TrainingEnd::Stopped,
            End::NotFinite { step, loss } => TrainingEnd::NotFinite {
                step,
                loss: f32::from_bits(loss.0),
            },
            End::NoLease | End::NoMoney | End::AuditUnpaid { .. } => {
                let (error, wish) = unquoted.expect("the core heard that no lease is quoted");
                self.run.end_without_lease(error, &wish, past.spent)
            }
            End::Lost => TrainingEnd::Lost(self.unfinished),
            End::Disputed { step, short_of } => {
                let unpaid = unquoted.filter(|_| short_of == Shortage::Money);
                let short = unpaid.and_then(|(error, wish)| {
                    ShortMoney::explain(&error, &wish, self.run.limits.budget, past.spent)
                });
                TrainingEnd::Disputed { step, short }
            }
            End::Journal => TrainingEnd::Journal(self.write_error),
        };
        let losses = past.losses.iter().map(|loss| f32::from_bits(loss.0));
        let held_out = past.held_out.iter();
        let held_out = held_out.map(|(done, loss)| (*done, f32::from_bits(loss.0)));
        let result = TrainingResult {
            end,
            losses: losses.collect(),
            held_out: held_out.collect(),
            link: past.link,
            states: self.kept,
            spent: past.spent,
            receipts: past.receipts.clone(),
            lost: past.lost.clone(),
            banned: past.banned.clone(),
            audits: past.audits.map(|_| past.audit_findings.clone()),
            due_steps: past.due_audits.iter().map(Segment::step_count).sum(),
        };
        (self.writer, result)
    }
}
