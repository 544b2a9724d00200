//! Runs the sessions of one text, an answer that a language model generates token by token.
//!
//! A *session* is a job whose providers keep the model's state (its key-value cache), and each
//! *step*, some tokens through the model, is one request of that job. A text has several sessions
//! if their outputs are compared, and gets a new one if a provider fails. One task, the *shell*,
//! passes events to the core in `souk_roles::session`, which decides what to buy and send and when
//! to replace a session, and carries out the core's actions. [`crate::TextEngine`] starts it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use souk_folder::clock::CoreClock;
use souk_llm::generation::STEP_TOKENS_MAX;
use souk_node::buyer::job::{Job, RequestInputs};
use souk_node::buyer::{
    Answer as JobAnswer, Buyer, JobEvent, JobResult, JournalError, Quote, QuoteError, Requests,
    Spending, Submission, UnfinishedJob, WINDOW_MAX,
};
use souk_node::effect_tasks::EffectTasks;
use souk_node::market::{Credits, JobId, Receipt};
use souk_roles::effect::{Effect, Ticket};
use souk_roles::session::{
    Action, Answer, Caller, Choice, Event, OutputId, QuoteFailure, SessionConfig, SessionCore, Step,
};
use souk_vocabulary::processor::RunError;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::{JoinError, JoinHandle};

use crate::TextObserver;
use crate::session_journal::{SessionJournals, store_events};
use crate::session_reports::SessionReports;
use crate::step_conversion::{
    StepOutputs, are_logits_close, are_tokens_sampled_from_logits, sampled_tokens, step_inputs,
    to_core_step,
};
use crate::stop_signal::StopSignal;
use crate::text_error::{TextError, failed_step};
use crate::text_sessions::{SessionOrder, SessionResult, SessionTerms, StepOrder, TextSessions};

/// Progress events that can wait.
const PROGRESS_MAX: usize = 256;

/// Answers and ends of jobs that can wait.
const INBOX_MAX: usize = 64;

/// The market, the job and the settings with which a text buys its sessions.
pub struct SessionMarket {
    pub buyer: Buyer,
    /// The job of a session; its number of requests is that of the tokens to buy at a time.
    pub job: Job,
    /// Number of positions of each sequence.
    pub positions: usize,
    /// Number of the model's tokens.
    pub vocabulary: u32,
    pub journals: SessionJournals,
    pub observer: Arc<dyn TextObserver>,
    pub stop: StopSignal,
}

/// The task of the sessions of a text.
struct SessionShell {
    market: SessionMarket,
    core: SessionCore,
    clock: CoreClock,
    /// Events that already happened and wait for the core.
    ready: VecDeque<Event>,
    callers: BTreeMap<Caller, oneshot::Sender<Result<StepOutputs, RunError>>>,
    finishers: BTreeMap<Caller, oneshot::Sender<SessionResult>>,
    next_caller: u64,
    outputs: BTreeMap<OutputId, StepOutputs>,
    next_output: u64,
    sessions: BTreeMap<u32, SessionRecord>,
    reports: SessionReports,
    inbox: mpsc::Receiver<JobNews>,
    news: mpsc::Sender<JobNews>,
    effects: EffectTasks<EffectOutcome>,
    receipts: Vec<Receipt>,
    is_stopped: bool,
}

/// The last quote and the job of a session.
#[derive(Default)]
struct SessionRecord {
    /// The last quote, and the job that it is for.
    quote: Option<(Job, Quote)>,
    /// Its running job.
    open: Option<RunningJob>,
}

/// A running job.
struct RunningJob {
    cancel: Arc<Notify>,
    /// Takes the steps; `None` if no more follow.
    give: Option<mpsc::Sender<RequestInputs>>,
}

/// The result of an effect.
enum EffectOutcome {
    Quoted {
        session: u32,
        job: Box<Job>,
        quoted: Result<Box<Quote>, QuoteError>,
    },
    Spent(Vec<(JobId, Option<Spending>)>),
}

/// A report of a session's job: an answer to a request, or the job's end.
enum JobNews {
    Answered {
        session: u32,
        request: u32,
        outputs: StepOutputs,
    },
    Ended {
        session: u32,
        ended: Result<Box<JobResult>, Box<UnfinishedJob>>,
    },
    /// The task of a job failed.
    Failed(JoinError),
}

impl TextSessions {
    /// Starts the sessions of a text. The first step buys them, nothing earlier.
    pub fn start(mut market: SessionMarket, terms: SessionTerms) -> TextSessions {
        let SessionTerms {
            mut limits,
            sessions,
        } = terms;
        limits.requests = market.job.limits.requests;
        limits.sequences = market.job.limits.sequences;
        let core = SessionCore::new(SessionConfig {
            budget: limits.budget,
            positions: market.positions,
            sequences: limits.sequences,
            vocabulary: market.vocabulary,
            window_max: WINDOW_MAX,
            sessions_per_step: u32::from(sessions),
            replay_tokens_max: STEP_TOKENS_MAX,
        });
        market.job.limits = limits;
        let (handle, orders) = TextSessions::new(sessions > 1);
        let (news, inbox) = mpsc::channel(INBOX_MAX);
        let shell = SessionShell {
            clock: CoreClock::new(market.buyer.broker().log_clock()),
            market,
            core,
            ready: VecDeque::new(),
            callers: BTreeMap::new(),
            finishers: BTreeMap::new(),
            next_caller: 0,
            outputs: BTreeMap::new(),
            next_output: 0,
            sessions: BTreeMap::new(),
            reports: SessionReports::default(),
            inbox,
            news,
            effects: EffectTasks::default(),
            receipts: Vec::new(),
            is_stopped: false,
        };
        tokio::spawn(shell.run(orders));
        handle
    }
}

impl SessionShell {
    /// Runs until all handles are dropped. Then it sends the jobs no more steps, so they end.
    async fn run(mut self, mut orders: mpsc::Receiver<SessionOrder>) {
        loop {
            while let Some(event) = self.ready.pop_front() {
                let effects = self.core.apply(self.clock.now(), event);
                self.carry_out(effects);
            }
            let wakes_at = self.core.wakes_at();
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => self.on_order(order),
                    None => return,
                },
                Some(news) = self.inbox.recv() => self.on_news(news),
                ended = self.effects.next_outcome() => match ended {
                    Ok((ticket, outcome)) => self.on_outcome(ticket, outcome),
                    Err(error) => resume_panic(error),
                },
                () = self.clock.wait_until(wakes_at) => self.ready.push_back(Event::TimerFired),
                () = self.market.stop.wait_for_signal(), if !self.is_stopped => {
                    self.is_stopped = true;
                    self.ready.push_back(Event::Stop);
                }
            }
        }
    }

    fn on_order(&mut self, order: SessionOrder) {
        let caller = Caller(self.next_caller);
        self.next_caller += 1;
        match order {
            SessionOrder::Step(order, answer) => {
                let StepOrder {
                    sequence,
                    before,
                    step,
                } = order;
                let step = match to_core_step(step) {
                    Ok(step) => step,
                    Err(error) => {
                        // A caller that gave up needs no answer.
                        let _ = answer.send(Err(failed_step(error.to_string())));
                        return;
                    }
                };
                self.callers.insert(caller, answer);
                self.ready.push_back(Event::Step {
                    caller,
                    sequence,
                    before,
                    step,
                });
            }
            SessionOrder::Finish(answer) => {
                self.finishers.insert(caller, answer);
                self.ready.push_back(Event::Finish { caller });
            }
            SessionOrder::Providers(answer) => {
                let _ = answer.send(self.core.provider_accounts());
            }
        }
    }

    fn on_news(&mut self, news: JobNews) {
        match news {
            JobNews::Answered {
                session,
                request,
                outputs,
            } => {
                let output = OutputId(self.next_output);
                self.next_output += 1;
                let drawn = sampled_tokens(&outputs);
                self.outputs.insert(output, outputs);
                self.ready.push_back(Event::Answered {
                    session,
                    request,
                    output,
                    drawn,
                });
            }
            JobNews::Ended { session, ended } => self.on_ended(session, ended),
            JobNews::Failed(error) => resume_panic(error),
        }
    }

    fn on_ended(&mut self, session: u32, ended: Result<Box<JobResult>, Box<UnfinishedJob>>) {
        self.sessions.entry(session).or_default().open = None;
        let done = match &ended {
            Ok(done) => done,
            Err(unfinished) => &unfinished.done,
        };
        self.receipts.extend(done.receipts.iter().cloned());
        let job = done.job;
        let (how, before, spending) = match ended {
            Ok(done) => {
                let spent = done.receipts.iter().map(|it| it.body.amount.0).sum();
                let spending = Spending {
                    spent: Credits(spent),
                    held: Credits(0),
                };
                (None, Vec::new(), spending)
            }
            Err(unfinished) => {
                let facts = (
                    Some(unfinished.how.clone()),
                    unfinished.before.clone(),
                    unfinished.spending.unwrap_or_default(),
                );
                self.reports.report_mut(session).unfinished = Some(unfinished);
                facts
            }
        };
        self.ready.push_back(Event::Ended {
            session,
            job,
            how,
            before,
            spending,
        });
    }

    fn on_outcome(&mut self, ticket: Ticket, outcome: EffectOutcome) {
        let answer = match outcome {
            EffectOutcome::Quoted {
                session,
                job,
                quoted,
            } => Answer::Quoted(self.on_quoted(session, *job, quoted)),
            EffectOutcome::Spent(spent) => Answer::Spent(spent),
        };
        self.ready
            .push_back(Event::EffectAnswered { ticket, answer });
    }

    fn on_quoted(
        &mut self,
        session: u32,
        job: Job,
        quoted: Result<Box<Quote>, QuoteError>,
    ) -> Result<Choice, QuoteFailure> {
        match quoted {
            Ok(quote) => {
                let offers = quote.plan.used_offers().into_iter();
                let providers = offers.map(|offer| quote.listings[offer].provider).collect();
                self.reports.report_mut(session).names = describe_providers(&quote);
                let record = self.sessions.entry(session).or_default();
                record.quote = Some((job, *quote));
                Ok(Choice { providers })
            }
            Err(error) => {
                let is_short =
                    matches!(error, QuoteError::Budget { .. } | QuoteError::Escrow { .. });
                self.reports.report_mut(session).quote_error = Some(error);
                Err(QuoteFailure { is_short })
            }
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect<Action>>) {
        for Effect { ticket, action } in effects {
            self.carry_out_action(ticket, action);
        }
    }

    fn carry_out_action(&mut self, ticket: Ticket, action: Action) {
        match action {
            Action::Quote {
                session,
                budget,
                excluded,
                wait_longer,
            } => {
                let mut job = self.market.job.clone();
                job.limits.budget = budget;
                job.limits.excluded = excluded;
                let longer = wait_longer.map(|it| Duration::from_micros(it.0));
                self.quote_session(ticket, session, job, longer);
            }
            Action::LookUpSpending { jobs } => self.look_up_spending(ticket, jobs),
            Action::Open { session, window } => {
                if let Err(error) = self.open_session(session, window) {
                    self.reports.report_mut(session).journal_error = Some(error);
                    self.ready.push_back(Event::NotOpened { session });
                }
            }
            Action::SendStep {
                session,
                sequence,
                step,
            } => self.send_step(session, sequence, step),
            Action::Cancel { session } => {
                if let Some(open) = self.running_job(session) {
                    open.cancel.notify_one();
                }
            }
            Action::Close { session } => {
                if let Some(open) = self.running_job(session) {
                    open.give = None;
                }
            }
            Action::Compare { left, right, rows } => {
                let is_close = self.are_outputs_close(left, right, rows.as_deref());
                self.answer(ticket, Answer::Compared(is_close));
            }
            Action::Check { output, step } => {
                let outputs = self.outputs.get(&output);
                let is_true = outputs.is_some_and(|it| are_tokens_sampled_from_logits(it, step));
                self.answer(ticket, Answer::Checked(is_true));
            }
            Action::Answer { caller, output } => {
                let outputs = self.outputs.remove(&output).unwrap_or_default();
                self.answer_caller(caller, Ok(outputs));
            }
            Action::Fail { caller, failure } => {
                let reason = self.reports.describe_failure(&failure);
                self.answer_caller(caller, Err(failed_step(reason)));
            }
            Action::Drop { output } => drop(self.outputs.remove(&output)),
            Action::Notify(notice) => {
                let notice = self.reports.describe_notice(&notice);
                self.market.observer.show_notice(&notice);
            }
            Action::Finished { caller, failure } => {
                let error = failure.map(|failure| self.reports.take_error(&failure));
                self.answer_finisher(caller, error);
            }
            Action::Stop(ticket) => self.effects.stop(ticket),
        }
    }

    fn are_outputs_close(&self, left: OutputId, right: OutputId, rows: Option<&[usize]>) -> bool {
        let pair = self.outputs.get(&left).zip(self.outputs.get(&right));
        pair.is_some_and(|(left, right)| are_logits_close(left, right, rows))
    }

    fn answer_finisher(&mut self, caller: Caller, error: Option<TextError>) {
        if let Some(finisher) = self.finishers.remove(&caller) {
            // A caller that gave up needs no receipts.
            let _ = finisher.send((std::mem::take(&mut self.receipts), error));
        }
    }

    fn answer(&mut self, ticket: Ticket, answer: Answer) {
        self.ready
            .push_back(Event::EffectAnswered { ticket, answer });
    }

    fn answer_caller(&mut self, caller: Caller, result: Result<StepOutputs, RunError>) {
        if let Some(answer) = self.callers.remove(&caller) {
            // A caller that gave up needs no answer.
            let _ = answer.send(result);
        }
    }

    fn running_job(&mut self, session: u32) -> Option<&mut RunningJob> {
        self.sessions.get_mut(&session)?.open.as_mut()
    }

    fn quote_session(
        &mut self,
        ticket: Ticket,
        session: u32,
        mut job: Job,
        longer: Option<Duration>,
    ) {
        let buyer = self.market.buyer.clone();
        let wait = job.limits.wait;
        job.limits.wait = wait.max(longer.unwrap_or_default());
        self.effects.start(ticket, async move {
            let quoted = buyer.quote_job(&job).await.map(Box::new);
            // The job itself waits no longer than the user allows.
            job.limits.wait = wait;
            let job = Box::new(job);
            EffectOutcome::Quoted {
                session,
                job,
                quoted,
            }
        });
    }

    fn look_up_spending(&mut self, ticket: Ticket, jobs: Vec<JobId>) {
        let buyer = self.market.buyer.clone();
        self.effects.start(ticket, async move {
            let mut spent = Vec::with_capacity(jobs.len());
            for job in jobs {
                // While the market is unreachable, the cost is unknown.
                spent.push((job, buyer.job_spending(job).await.ok()));
            }
            EffectOutcome::Spent(spent)
        });
    }

    /// Buys the last quote of a session, and begins its job.
    fn open_session(&mut self, session: u32, window: u32) -> Result<(), JournalError> {
        let record = self.sessions.entry(session).or_default();
        let quoted = record.quote.take();
        let (job, quote) = quoted.expect("a session is opened after its quote");
        let market = &self.market;
        let text = market.observer.describe_plan(&quote, &job.limits);
        market
            .observer
            .show_plan(&text, self.reports.session_names(session));
        let (journal, files) = market
            .journals
            .create_journal(&market.buyer, &quote, text)?;
        let window = window.max(1);
        let (give, inputs) = mpsc::channel(window as usize);
        let (answered, answers) = mpsc::channel(window as usize);
        let (progress, events) = mpsc::channel::<JobEvent>(PROGRESS_MAX);
        let cancel = Arc::<Notify>::default();
        tokio::spawn(store_events(files, events, cancel.clone()));
        let submission = Submission {
            requests: Requests {
                count: job.limits.requests,
                window,
                inputs,
            },
            answers: answered,
            progress,
            cancel: cancel.clone(),
            warning: Arc::default(),
            is_bought: false,
        };
        let buyer = market.buyer.clone();
        let command = market.journals.command();
        let running = tokio::spawn(async move {
            let journal = Some((journal, &command));
            buyer.submit_job(&job, quote, journal, submission).await
        });
        tokio::spawn(report_job(session, answers, running, self.news.clone()));
        record.open = Some(RunningJob {
            cancel,
            give: Some(give),
        });
        Ok(())
    }

    /// Sends a step to the job of a session. If the job is over, its end follows.
    fn send_step(&mut self, session: u32, sequence: u32, step: Step) {
        let open = self.running_job(session);
        if let Some(give) = open.and_then(|open| open.give.as_ref()) {
            let tensors = step_inputs(step).expect("`to_core_step` checked the sampling");
            // The channel has room for the window, beyond which the core sends nothing.
            let _ = give.try_send(RequestInputs {
                sequence,
                tensors,
                keep: true,
            });
        }
    }
}

/// Reports the answers of a job in their order, and then its end.
async fn report_job(
    session: u32,
    mut answers: mpsc::Receiver<JobAnswer>,
    running: JoinHandle<Result<JobResult, Box<UnfinishedJob>>>,
    news: mpsc::Sender<JobNews>,
) {
    // If the shell is gone, nothing reads them.
    while let Some(answer) = answers.recv().await {
        let request = answer.number;
        let outputs = answer.confirm_stored();
        let answered = JobNews::Answered {
            session,
            request,
            outputs,
        };
        let _ = news.send(answered).await;
    }
    let last = match running.await {
        Ok(ended) => JobNews::Ended {
            session,
            ended: ended.map(Box::new),
        },
        Err(error) => JobNews::Failed(error),
    };
    let _ = news.send(last).await;
}

/// Panics if one of the task's own tasks panicked. The callers then learn that the sessions have
/// ended, instead of waiting for ever.
fn resume_panic(error: JoinError) {
    if error.is_panic() {
        std::panic::resume_unwind(error.into_panic());
    }
}

fn describe_providers(quote: &Quote) -> String {
    let offers = quote.plan.used_offers().into_iter();
    let named = offers.map(|offer| {
        let listing = &quote.listings[offer];
        format!("{} ({})", listing.name, quote.device_name(offer))
    });
    named.collect::<Vec<_>>().join(", ")
}
