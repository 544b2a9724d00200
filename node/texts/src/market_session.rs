//! The session of a lease: its steps are requests of a job whose providers keep the states.
//!
//! The tokens so far are the source of truth. If a provider fails, the task spends the remaining
//! budget on a session with other providers, and replays the tokens into its caches. One task owns
//! the session. Callers send it the steps of their sequences, which run concurrently.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use souk_llm::generation::Step;
use souk_node::buyer::job::{Job, Limits, RequestInputs};
use souk_node::buyer::{
    Answer, Buyer, End, JobEvent, JobResult, Quote, QuoteError, Reason, Requests, Submission,
    UnfinishedJob, WINDOW_MAX,
};
use souk_node::market::{AccountKey, Credits, Receipt};
use souk_vocabulary::processor::RunError;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::TextObserver;
use crate::session_journal::{SessionJournals, store_events};
use crate::session_sellers::SharedSellers;
use crate::session_sequence::{Reach, SessionSequence, StepOutputs};
use crate::steps::{Steps, step_outcome};
use crate::stop_signal::StopSignal;
use crate::text_budget::Purse;
use crate::text_error::{TextError, failed_step};

/// Largest number of sessions to buy in a row without a new token.
const SESSIONS_MAX: u32 = 8;

/// Number of sessions whose complaint that the input does not fit the model settles the matter.
const BLAMED_MAX: u32 = 2;

/// Longest wait of a new session for the devices and credits of the one before it, and the period
/// of its checks.
const GIVEN_BACK_MAX: Duration = Duration::from_secs(20);
const LOOK_PERIOD: Duration = Duration::from_millis(500);

/// Largest number of running steps of a sequence: the buyer also pays for steps that it never uses.
const REACH_MAX: u32 = 16;

/// Progress events that can wait.
const PROGRESS_MAX: usize = 256;

/// Orders that can wait: each caller waits for its own.
const ORDERS_MAX: usize = 16;

/// A handle that sends steps to a session.
#[derive(Clone)]
pub struct MarketSession {
    orders: mpsc::Sender<SessionOrder>,
    /// Its number among the sessions of its text, and the sellers of all of them.
    number: u32,
    sellers: SharedSellers,
}

/// An order to a session.
enum SessionOrder {
    Step(StepOrder, StepAnswer),
    Finish(oneshot::Sender<(Vec<Receipt>, Option<TextError>)>),
}

/// A step to compute.
#[derive(Clone)]
pub struct StepOrder {
    /// Number of the sequence.
    pub sequence: u32,
    /// Tokens of the sequence before the step, for a session that may not have them.
    pub before: Vec<u32>,
    /// The step to add.
    pub step: Step,
}

/// The terms under which an engine leases providers.
#[derive(Clone)]
pub struct SessionTerms {
    /// The limits of each session. The budget is for all sessions of a text, failed ones included.
    pub limits: Limits,
    /// Number of sessions that compute each token: with 2, souk compares them, and a third decides
    /// if they differ.
    pub sessions: u8,
}

/// The market in which the sessions of one or more texts are bought.
pub struct SessionMarket {
    buyer: Buyer,
    job: Job,
    observer: Arc<dyn TextObserver>,
    room: usize,
    stop: StopSignal,
    sellers: SharedSellers,
    journals: Arc<SessionJournals>,
}

/// The channel to the caller that waits for a step's outputs.
type StepAnswer = oneshot::Sender<Result<StepOutputs, RunError>>;

/// The task of the sessions of one or more texts.
struct MarketSessionTask {
    buyer: Buyer,
    job: Job,
    purse: Purse,
    observer: Arc<dyn TextObserver>,
    sequences: BTreeMap<u32, SessionSequence<StepAnswer>>,
    /// Positions of each sequence.
    room: usize,
    /// Number of steps of each sequence to run at a time.
    reach: Reach,
    open: Option<Open>,
    /// Sessions that were bought since the last token.
    bought: u32,
    /// Sessions since the last token whose providers report that the input does not fit the model.
    blamed: u32,
    receipts: Vec<Receipt>,
    /// Signal to end the text at once.
    stop: StopSignal,
    is_stopped: bool,
    /// Number of the session among those of the text, and the sellers of all of them.
    number: u32,
    sellers: SharedSellers,
    journals: Arc<SessionJournals>,
    /// The last failure.
    failed: Option<TextError>,
}

/// A running job.
struct Open {
    cancel: Arc<Notify>,
    give: mpsc::Sender<RequestInputs>,
    answers: mpsc::Receiver<Answer>,
    ended: JoinHandle<Result<JobResult, Box<UnfinishedJob>>>,
    /// Sequence of each request that was sent, by the request's number.
    given: Vec<u32>,
}

impl SessionMarket {
    /// Prepares to buy sessions for a job. The first step of a session buys it, nothing earlier.
    pub fn new(
        buyer: Buyer,
        mut job: Job,
        room: usize,
        journals: SessionJournals,
        terms: SessionTerms,
        observer: Arc<dyn TextObserver>,
        stop: StopSignal,
    ) -> Self {
        job.limits = Limits {
            requests: job.limits.requests,
            sequences: job.limits.sequences,
            ..terms.limits
        };
        if terms.sessions > 1 {
            // The budget covers the compared sessions and one that decides between them.
            let budget = &mut job.limits.budget;
            *budget = budget.map(|budget| Credits(budget.0 / (u64::from(terms.sessions) + 1)));
        }
        Self {
            buyer,
            job,
            observer,
            room,
            stop,
            sellers: SharedSellers::default(),
            journals: Arc::new(journals),
        }
    }

    /// Shows a notice to the user.
    pub fn notify(&self, notice: &str) {
        self.observer.show_notice(notice);
    }

    /// Returns the sellers of all sessions.
    pub fn sellers(&self) -> &SharedSellers {
        &self.sellers
    }

    /// Creates one more session; it has the job's whole budget.
    pub fn new_session(&self, number: u32) -> MarketSession {
        let task = MarketSessionTask {
            buyer: self.buyer.clone(),
            job: self.job.clone(),
            purse: Purse::new(self.job.limits.budget),
            observer: self.observer.clone(),
            sequences: BTreeMap::new(),
            room: self.room,
            reach: Reach::new(1),
            open: None,
            bought: 0,
            blamed: 0,
            receipts: Vec::new(),
            stop: self.stop.clone(),
            is_stopped: false,
            number,
            sellers: self.sellers.clone(),
            journals: self.journals.clone(),
            failed: None,
        };
        let (give, orders) = mpsc::channel(ORDERS_MAX);
        tokio::spawn(task.run(orders));
        MarketSession {
            orders: give,
            number,
            sellers: self.sellers.clone(),
        }
    }
}

impl MarketSession {
    /// Returns the steps of a sequence. They block, so you must call them on a thread that may.
    pub fn sequence_steps(&self, sequence: u32, handle: &Handle) -> Steps<'static> {
        let (session, handle) = (self.clone(), handle.clone());
        Steps(Box::new(move |inputs| {
            let order = StepOrder {
                sequence,
                before: Vec::new(),
                step: Step::of_inputs(inputs),
            };
            handle
                .block_on(session.compute_step(order))
                .map(step_outcome)
        }))
    }

    /// Returns the accounts of the providers from which it bought last.
    pub async fn provider_accounts(&self) -> Vec<AccountKey> {
        self.sellers.lock().await.session_accounts(self.number)
    }

    /// Computes a step and returns its outputs.
    pub async fn compute_step(&self, order: StepOrder) -> Result<StepOutputs, RunError> {
        let (answer, told) = oneshot::channel();
        let order = SessionOrder::Step(order, answer);
        self.orders
            .send(order)
            .await
            .map_err(|_| session_gone_error())?;
        told.await.map_err(|_| session_gone_error())?
    }

    /// Ends the session. Returns the receipts since the last call, and the reason if the session
    /// failed. The next step will buy another session, from any provider.
    pub async fn finish_session(&self) -> (Vec<Receipt>, Option<TextError>) {
        let (answer, told) = oneshot::channel();
        // If the task is gone, there is neither.
        let _ = self.orders.send(SessionOrder::Finish(answer)).await;
        told.await.unwrap_or_default()
    }
}

/// Sends the outputs of a finished step to its caller.
fn answer_to(done: Option<(StepAnswer, StepOutputs)>) {
    if let Some((waiting, outputs)) = done {
        // A caller that gave up needs no answer.
        let _ = waiting.send(Ok(outputs));
    }
}

/// Returns the error of a step whose session's task has ended.
fn session_gone_error() -> RunError {
    failed_step("the session is gone".to_owned())
}

/// An event of the task.
enum SessionEvent {
    Order(Option<SessionOrder>),
    Answer(Option<Answer>),
    Stop,
}

impl MarketSessionTask {
    /// Runs until all handles are gone.
    async fn run(mut self, mut orders: mpsc::Receiver<SessionOrder>) {
        loop {
            match self.next(&mut orders).await {
                SessionEvent::Order(Some(SessionOrder::Step(order, answer))) => {
                    let sequence = self.sequences.entry(order.sequence);
                    let sequence = sequence.or_insert_with(|| SessionSequence::new(self.room));
                    sequence.extend_tokens(&order.before);
                    answer_to(sequence.request_step(order.step, answer, &mut self.reach));
                }
                SessionEvent::Order(Some(SessionOrder::Finish(answer))) => {
                    // A caller that gave up needs no receipts.
                    let _ = answer.send(self.finish_session().await);
                }
                SessionEvent::Order(None) => return,
                SessionEvent::Answer(Some(answer)) => self.on_answer(answer),
                SessionEvent::Answer(None) => {
                    if let Err(failure) = self.begin_anew().await {
                        self.report_failure(failure);
                    }
                }
                SessionEvent::Stop => {
                    self.is_stopped = true;
                    if let Some(open) = &self.open {
                        open.cancel.notify_one();
                    }
                }
            }
            if let Err(failure) = self.send_steps().await {
                self.report_failure(failure);
            }
        }
    }

    async fn next(&mut self, orders: &mut mpsc::Receiver<SessionOrder>) -> SessionEvent {
        let is_waiting = self.sequences.values().any(SessionSequence::is_waiting);
        let answered = async {
            match &mut self.open {
                Some(open) if is_waiting => open.answers.recv().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            answer = answered => SessionEvent::Answer(answer),
            order = orders.recv() => SessionEvent::Order(order),
            () = self.stop.wait_for_signal(), if is_waiting && !self.is_stopped => {
                SessionEvent::Stop
            }
        }
    }

    /// Sends the waiting steps and those ahead of them; buys a session for them if none is open.
    async fn send_steps(&mut self) -> Result<(), TextError> {
        if !self.sequences.values().any(SessionSequence::is_waiting) {
            return Ok(());
        }
        if self.open.is_none() {
            self.buy_session(false).await?;
        }
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        for (number, sequence) in &mut self.sequences {
            while let Some(tensors) = sequence.next(&self.reach) {
                let inputs = RequestInputs {
                    sequence: *number,
                    tensors,
                };
                // If too many steps are running, the next answer makes room; if the job is over,
                // its answers end.
                if open.give.try_send(inputs).is_err() {
                    break;
                }
                open.given.push(*number);
                sequence.on_given(&self.reach);
            }
        }
        Ok(())
    }

    fn on_answer(&mut self, answer: Answer) {
        let number = answer.number as usize;
        let sequence = self.open.as_ref().and_then(|open| open.given.get(number));
        let outputs = answer.confirm_stored();
        let sequence = sequence.and_then(|sequence| self.sequences.get_mut(sequence));
        let Some(sequence) = sequence else {
            return;
        };
        let done = sequence.on_done(outputs, &mut self.reach);
        if done.is_some() {
            (self.bought, self.blamed) = (0, 0);
        }
        answer_to(done);
    }

    /// Reports a failure to all waiting callers, and stores it for
    /// [`MarketSession::finish_session`].
    fn report_failure(&mut self, failure: TextError) {
        let waiting = self.sequences.values_mut();
        for waiting in waiting.filter_map(SessionSequence::give_up) {
            let _ = waiting.send(Err(failed_step(failure.to_string())));
        }
        self.failed = Some(failure);
    }

    /// Buys a session over the current book. If it replaces `another` one, waits for the devices
    /// and credits of that one.
    async fn buy_session(&mut self, another: bool) -> Result<(), TextError> {
        self.bought += 1;
        let (job, quote) = self.quote_session(another).await?;
        let text = self.observer.describe_plan(&quote, &job.limits);
        let providers = describe_providers(&quote);
        self.observer.show_plan(&text, &providers);
        let (journal, files) = self.journals.create_journal(&self.buyer, &quote, text)?;
        let sequences = self.job.limits.sequences.max(1);
        let reach = (WINDOW_MAX / sequences).clamp(1, REACH_MAX);
        self.reach = Reach::new(reach as usize);
        let window = (sequences * reach).min(WINDOW_MAX);
        let (give, inputs) = mpsc::channel(window as usize);
        let (answered, answers) = mpsc::channel(window as usize);
        let (progress, events) = mpsc::channel::<JobEvent>(PROGRESS_MAX);
        let cancel = Arc::<Notify>::default();
        tokio::spawn(store_events(files, events, cancel.clone()));
        let submission = Submission {
            requests: Requests {
                count: self.job.limits.requests,
                window,
                inputs,
            },
            answers: answered,
            progress,
            cancel: cancel.clone(),
            is_bought: false,
        };
        let buyer = self.buyer.clone();
        let command = self.journals.command();
        let running = async move {
            let journal = Some((journal, &command));
            buyer.submit_job(&job, quote, journal, submission).await
        };
        self.open = Some(Open {
            cancel,
            give,
            answers,
            ended: tokio::spawn(running),
            given: Vec::new(),
        });
        Ok(())
    }

    /// Returns the quote of a session, and the job with the remaining budget.
    async fn quote_session(&mut self, another: bool) -> Result<(Job, Quote), TextError> {
        // The lock keeps other sessions from choosing at the same time.
        let sellers = self.sellers.clone();
        let mut sellers = sellers.lock().await;
        self.purse.add_returned_credits(&self.buyer).await;
        let mut job = self.job.clone();
        job.limits.budget = self.purse.remaining_credits();
        job.limits.excluded = sellers.excluded_providers(self.number);
        let mut quote = self.buyer.quote_job(&job).await;
        let begun = Instant::now();
        while another && is_short(&quote) && self.may_come_back(begun) {
            tokio::select! {
                () = tokio::time::sleep(LOOK_PERIOD) => {
                    self.purse.add_returned_credits(&self.buyer).await;
                }
                () = self.stop.wait_for_signal() => self.is_stopped = true,
            }
            job.limits.budget = self.purse.remaining_credits();
            quote = self.buyer.quote_job(&job).await;
        }
        if quote.is_err() && another {
            // Failed providers may be back, and the leases of the last session release their
            // devices.
            sellers.clear_lost_providers();
            job.limits.excluded = sellers.excluded_providers(self.number);
            job.limits.wait = job.limits.wait.max(GIVEN_BACK_MAX);
            tokio::select! {
                waited = self.buyer.quote_job(&job) => quote = waited,
                () = self.stop.wait_for_signal() => self.is_stopped = true,
            }
            job.limits.wait = self.job.limits.wait;
        }
        if self.is_stopped {
            // The stop came during the wait: a session bought now would be for no text.
            let cause = "interrupted while the text waited for a session";
            return Err(TextError::Interrupted(cause));
        }
        let quote = quote.map_err(|error| self.purse.explain_quote(error))?;
        let chosen = quote.plan.used_offers().into_iter();
        let chosen = chosen.map(|offer| quote.listings[offer].provider);
        sellers.set_session(self.number, chosen.collect(), describe_providers(&quote));
        Ok((job, quote))
    }

    /// Returns whether leases can still return credits that are worth the wait.
    fn may_come_back(&self, since: Instant) -> bool {
        !self.is_stopped && self.purse.is_holding() && since.elapsed() < GIVEN_BACK_MAX
    }

    /// Replaces a session that is over by another one.
    async fn begin_anew(&mut self) -> Result<(), TextError> {
        let ended = match self.close_session().await {
            Some(Err(ended)) => ended,
            Some(Ok(_)) | None => {
                if self.bought >= SESSIONS_MAX {
                    return Err(TextError::Unexpected {
                        cause: "sessions end before a token is made".to_owned(),
                        hint: "buy them for more tokens at a time".to_owned(),
                    });
                }
                self.observer.show_notice(
                    "the session has made the tokens it was bought for; buying another",
                );
                return self.buy_session(true).await;
            }
        };
        let is_bad_input = matches!(&ended.how, End::Failed(it) if it.bad_input().is_some());
        self.blamed += u32::from(is_bad_input);
        let is_over = self.bought >= SESSIONS_MAX || self.blamed >= BLAMED_MAX;
        // The user, who cancelled the session, does not want another.
        let is_cancelled = ended.how == End::Cancelled;
        if self.is_stopped || is_cancelled || is_over {
            return Err(TextError::Ended(ended));
        }
        let before = ended.before.iter().filter_map(Reason::culprit);
        let last = match &ended.how {
            End::Failed(reason) => reason.culprit(),
            _ => None,
        };
        self.sellers
            .lock()
            .await
            .record_lost_providers(before.chain(last));
        self.observer.show_notice(&format!(
            "the session is over: {}; buying another",
            ended.reason_text()
        ));
        self.buy_session(true).await
    }

    async fn close_session(&mut self) -> Option<Result<JobResult, Box<UnfinishedJob>>> {
        for sequence in self.sequences.values_mut() {
            sequence.begin_anew();
        }
        let Open {
            give,
            mut answers,
            ended,
            ..
        } = self.open.take()?;
        drop(give);
        let draining = async {
            while let Some(answer) = answers.recv().await {
                answer.confirm_stored();
            }
        };
        let (ended, ()) = tokio::join!(ended, draining);
        let ended = ended.expect("a job's task does not panic");
        let done = match &ended {
            Ok(done) => done,
            Err(ended) => &ended.done,
        };
        self.purse.on_ended(&ended);
        self.receipts.extend(done.receipts.iter().cloned());
        Some(ended)
    }

    async fn finish_session(&mut self) -> (Vec<Receipt>, Option<TextError>) {
        let ended = self.close_session().await;
        let ended = ended.and_then(Result::err);
        let failed = self.failed.take();
        let failed = failed.or_else(|| ended.map(TextError::Ended));
        self.sequences.clear();
        (self.bought, self.blamed) = (0, 0);
        self.sellers.lock().await.forget_session(self.number);
        (std::mem::take(&mut self.receipts), failed)
    }
}

/// Returns whether the remaining budget cannot pay for any ask.
fn is_short(quote: &Result<Quote, QuoteError>) -> bool {
    matches!(
        quote,
        Err(QuoteError::Budget { .. } | QuoteError::Escrow { .. })
    )
}

fn describe_providers(quote: &Quote) -> String {
    let offers = quote.plan.used_offers().into_iter();
    let named = offers.map(|offer| {
        let listing = &quote.listings[offer];
        format!("{} ({})", listing.name, quote.device_name(offer))
    });
    named.collect::<Vec<_>>().join(", ")
}
