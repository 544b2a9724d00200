//! Buys the leases of a run of training, one after the other, and follows its steps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use souk_market::{AccountKey, Credits, Receipt};
use souk_memory::Tensor;
use souk_scheduler::gradient::step_graph::LOSS;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::Training;
use crate::buyer::job::{Job, Limits, RequestInputs};
use crate::buyer::{
    Answer, Buyer, End, JobEvent, JobResult, Quote, QuoteError, Reason, Requests, Submission,
    UnfinishedJob,
};

/// The most steps of one lease. Its receipt names what they made, and a lease of a longer time
/// holds more credits.
const LEASE_STEPS_MAX: u64 = 512;

/// The most bytes of states that one lease makes. A provider keeps them until the lease ends.
const LEASE_BYTES_MAX: u64 = 4 << 30;

/// How many steps the buyer sends ahead, so that the provider does not wait for it.
const WINDOW: u32 = 4;

/// How many leases of one provider may end early before the run avoids it.
const LOST_LEASES_MAX: u32 = 2;

/// A provider is slow if its lease ends before one of so many of its steps is done.
const SLOW_SHARE: u64 = 4;

/// How many leases in a row may bring no step, each from another provider.
const FRUITLESS_LEASES_MAX: u32 = 3;

/// How long a device may take to be on offer again after the lease before, or after its provider
/// restarted.
const NEXT_LEASE_WAIT: Duration = Duration::from_secs(10);

/// The pause between two looks at the book.
const BOOK_PERIOD: Duration = Duration::from_millis(100);

/// Events of a job that can wait for the observer.
const PROGRESS_MAX: usize = 64;

/// A run in the market.
pub struct TrainingRun<'a> {
    /// The buyer that pays.
    pub buyer: &'a Buyer,
    /// The checked run, with the graph of its steps.
    pub training: &'a Training,
    /// The limits of its leases. The budget is that of all together.
    pub limits: Limits,
    /// Stops the run when you notify it: it sends no more steps, takes those under way, and
    /// pays for them. A second time ends the lease at once.
    pub cancel: Arc<Notify>,
}

/// What happens during a run.
pub enum TrainingEvent<'a> {
    /// The next lease will be bought by this quote.
    Planned(&'a Quote),
    /// An event of the job of a lease.
    Job(&'a JobEvent),
    /// A step is done.
    Step {
        /// The number of steps done, this one included.
        done: u64,
        /// The loss of its batch, before the step.
        loss: f32,
        /// The cost of the ended leases.
        spent: Credits,
    },
    /// A lease ended early, and the run goes on with another one.
    LeaseEnded(&'a UnfinishedJob),
}

/// Why a run ended.
#[derive(Debug)]
pub enum TrainingEnd {
    /// All steps are done.
    Done,
    /// The caller stopped it.
    Stopped,
    /// The loss of a step, or a parameter or state after it, is infinite or no number. The states
    /// of the result are those before the step.
    NotFinite {
        /// The position of the step, from 0.
        step: u64,
        /// The loss of its batch.
        loss: f32,
    },
    /// No lease could be bought.
    NoLease(Box<QuoteError>),
    /// Leases ended without a step.
    Lost(Box<UnfinishedJob>),
}

/// What a run has made by its end.
#[derive(Debug)]
pub struct TrainingResult {
    /// Why it ended.
    pub end: TrainingEnd,
    /// The loss of each step that is done.
    pub losses: Vec<f32>,
    /// The states after the last of these steps.
    pub states: BTreeMap<String, Tensor>,
    /// The receipts of its leases.
    pub receipts: Vec<Receipt>,
}

/// The course of a run.
struct Course {
    losses: Vec<f32>,
    states: BTreeMap<String, Tensor>,
    /// What the leases so far have cost, or may cost.
    spent: Credits,
    /// What the present lease can cost.
    escrow: Credits,
    not_finite: Option<f32>,
    is_stopped: bool,
    /// Whether the provider of the present lease gave an answer that is no step.
    has_bad_answer: bool,
    /// The leases that ended early, by provider.
    lost: BTreeMap<AccountKey, u32>,
}

impl TrainingRun<'_> {
    /// Quotes the first lease. No money moves.
    ///
    /// # Errors
    /// [`QuoteError`]: no plan fits.
    pub async fn quote(&self) -> Result<Quote, QuoteError> {
        let limits = self.limits.clone();
        let job = self.lease_job(limits, 0, &self.training.step.states);
        self.buyer.quote_job(&job).await
    }

    /// Trains to the end of the run, or to what stops it.
    pub async fn run(&self, mut observe: impl FnMut(TrainingEvent<'_>)) -> TrainingResult {
        let mut course = Course::begin(self.training.step.states.clone());
        let mut receipts: Vec<Receipt> = Vec::new();
        let mut excluded: Vec<AccountKey> = Vec::new();
        let mut fruitless = 0;
        let end = loop {
            let done = course.losses.len() as u64;
            if done == self.training.settings.steps {
                break TrainingEnd::Done;
            }
            let mut limits = self.limits.clone();
            let budget = limits.budget;
            limits.budget = budget.map(|budget| Credits(budget.0.saturating_sub(course.spent.0)));
            limits.excluded.extend(&excluded);
            let job = self.lease_job(limits, done, &course.states);
            let quoted = tokio::select! {
                quoted = self.quote_lease(&job, done) => quoted,
                () = self.cancel.notified() => break TrainingEnd::Stopped,
            };
            let quote = match quoted {
                Ok(quote) => quote,
                Err(error) => break TrainingEnd::NoLease(Box::new(error)),
            };
            observe(TrainingEvent::Planned(&quote));
            let provider = quote.part_listing(0).provider;
            let ended = self.run_lease(&job, quote, &mut course, &mut observe).await;
            let (result, unfinished) = course.settle_lease(ended);
            receipts.extend(result);
            let position = course.losses.len() as u64;
            if let Some(loss) = course.not_finite {
                let step = position;
                break TrainingEnd::NotFinite { step, loss };
            }
            fruitless = if position > done { 0 } else { fruitless + 1 };
            let is_lied_to = course.has_bad_answer;
            let wanted = u64::from(job.limits.requests);
            let is_slow = (position - done).saturating_mul(SLOW_SHARE) < wanted;
            let how = unfinished.as_ref().map(|unfinished| &unfinished.how);
            let is_lost = !course.is_stopped && how.is_some_and(|how| is_fault(how, is_slow));
            if course.is_provider_bad(provider, is_lost) || position == done {
                excluded.push(provider);
            }
            if course.is_stopped {
                break TrainingEnd::Stopped;
            }
            match unfinished {
                Some(unfinished) if matches!(unfinished.how, End::Cancelled) && !is_lied_to => {
                    break TrainingEnd::Stopped;
                }
                Some(unfinished) if fruitless >= FRUITLESS_LEASES_MAX => {
                    break TrainingEnd::Lost(unfinished);
                }
                Some(unfinished) => observe(TrainingEvent::LeaseEnded(&unfinished)),
                None => {}
            }
        };
        TrainingResult {
            end,
            losses: course.losses,
            states: course.states,
            receipts,
        }
    }

    /// Quotes the next lease. The device of the lease before comes back a moment after it.
    async fn quote_lease(&self, job: &Job, done: u64) -> Result<Quote, QuoteError> {
        let deadline = Instant::now() + NEXT_LEASE_WAIT;
        loop {
            let quoted = self.buyer.quote_job(job).await;
            let is_money = matches!(
                quoted,
                Err(QuoteError::Budget { .. } | QuoteError::Escrow { .. })
            );
            if quoted.is_ok() || is_money || done == 0 || Instant::now() >= deadline {
                return quoted;
            }
            tokio::time::sleep(BOOK_PERIOD).await;
        }
    }

    /// Returns how many steps the next lease is for.
    fn lease_steps(&self, done: u64) -> u64 {
        let states = self.training.step.states.values();
        let bytes: u64 = states.map(|state| state.bytes().len() as u64).sum();
        let of_bytes = (LEASE_BYTES_MAX / bytes.max(1)).max(1);
        let left = self.training.settings.steps - done;
        left.min(LEASE_STEPS_MAX).min(of_bytes)
    }

    /// Returns the job of the next lease, with the inputs of its first step.
    fn lease_job(&self, mut limits: Limits, done: u64, states: &BTreeMap<String, Tensor>) -> Job {
        // One sequence: each step reads what the one before it made.
        limits.sequences = 1;
        limits.requests = u32::try_from(self.lease_steps(done)).unwrap_or(u32::MAX);
        limits.providers_min = 1;
        limits.providers_max = 1;
        limits.copies = 1;
        let mut inputs = self.training.step_inputs(done);
        inputs.extend(states.clone());
        Job {
            model: self.training.step.model.clone(),
            folder: None,
            inputs,
            limits,
        }
    }

    /// Runs the steps of one lease.
    async fn run_lease(
        &self,
        job: &Job,
        quote: Quote,
        course: &mut Course,
        observe: &mut impl FnMut(TrainingEvent<'_>),
    ) -> Result<JobResult, Box<UnfinishedJob>> {
        let (give, inputs) = mpsc::channel(1);
        let (answers, mut answered) = mpsc::channel(1);
        let (progress, mut events) = mpsc::channel(PROGRESS_MAX);
        let cancel = Arc::<Notify>::default();
        let submission = Submission {
            requests: Requests {
                count: job.limits.requests,
                window: WINDOW,
                inputs,
            },
            answers,
            progress,
            cancel: cancel.clone(),
            is_bought: false,
        };
        course.escrow = Credits(0);
        let first = course.losses.len() as u64;
        let is_over = AtomicBool::new(false);
        let feeding = self.feed_steps(job, first, give, &is_over);
        let following = async {
            loop {
                tokio::select! {
                    Some(event) = events.recv() => {
                        course.note_event(&event);
                        observe(TrainingEvent::Job(&event));
                    }
                    answer = answered.recv() => match answer {
                        Some(answer) => {
                            if let Some(step) = self.take_answer(answer, course) {
                                observe(step);
                            }
                            if course.has_bad_answer {
                                cancel.notify_one();
                            }
                            if course.takes_no_more() {
                                is_over.store(true, Ordering::Relaxed);
                            }
                        }
                        None => return,
                    },
                    () = self.cancel.notified() => {
                        if std::mem::replace(&mut course.is_stopped, true) {
                            cancel.notify_one();
                        }
                        is_over.store(true, Ordering::Relaxed);
                    }
                }
            }
        };
        let running = self.buyer.submit_job(job, quote, None, submission);
        let (ended, (), ()) = tokio::join!(running, feeding, following);
        ended
    }

    /// Sends the steps of a lease. Those after the first leave the states out, so that each gets
    /// those of the step before it.
    async fn feed_steps(
        &self,
        job: &Job,
        first: u64,
        give: mpsc::Sender<RequestInputs>,
        is_over: &AtomicBool,
    ) {
        let count = u64::from(job.limits.requests);
        for position in first..first + count {
            let inputs = match position == first {
                true => job.inputs.clone(),
                false => self.training.step_inputs(position),
            };
            // With no room, this waits for an answer, which may be the last one that is wanted.
            let Ok(room) = give.reserve().await else {
                return;
            };
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            room.send(inputs.into());
        }
    }

    /// Takes the answer of a step. After a step that made an infinite number or none, or an answer
    /// that is no step, it ignores those of the steps that were under way.
    fn take_answer(&self, answer: Answer, course: &mut Course) -> Option<TrainingEvent<'static>> {
        let outputs = answer.confirm_stored();
        if course.takes_no_more() {
            self.forget(outputs.into_values());
            return None;
        }
        let loss = outputs.get(LOSS).and_then(|loss| loss.to_vec::<f32>().ok());
        let loss = loss.and_then(|loss| loss.first().copied());
        let next = self.training.step.next_states(&outputs);
        let (Some(loss), Some(next)) = (loss, next) else {
            course.has_bad_answer = true;
            return None;
        };
        if !(loss.is_finite() && next.values().all(is_finite)) {
            course.not_finite = Some(loss);
            return None;
        }
        let old = std::mem::replace(&mut course.states, next);
        course.losses.push(loss);
        // The store in memory forgets nothing by itself.
        self.forget(old.into_values());
        let done = course.losses.len() as u64;
        let spent = course.spent;
        Some(TrainingEvent::Step { done, loss, spent })
    }

    /// Removes contents from the buyer's store. Content that a provider still fetches stays valid,
    /// because the store only drops its own reference.
    fn forget(&self, tensors: impl Iterator<Item = Tensor>) {
        for tensor in tensors {
            if let Err(error) = self.buyer.tensors.store().remove(&tensor.id()) {
                tracing::debug!(%error, "an old state stays in memory");
            }
        }
    }
}

/// Returns whether the provider may be at fault for the end of its lease. It is not if the time of
/// the lease was over, because the plan expected quicker steps, unless it was far slower than its
/// ask stated.
fn is_fault(how: &End, is_slow: bool) -> bool {
    match how {
        End::Done => false,
        End::Failed(Reason::NoPlan(_)) => is_slow,
        _ => true,
    }
}

/// Returns whether all elements of a state are finite.
fn is_finite(state: &Tensor) -> bool {
    let elements = state.to_vec::<f32>();
    elements.is_ok_and(|elements| elements.iter().all(|element| element.is_finite()))
}

impl Course {
    /// Begins a run with the states before its first step.
    fn begin(states: BTreeMap<String, Tensor>) -> Course {
        Course {
            losses: Vec::new(),
            states,
            spent: Credits(0),
            escrow: Credits(0),
            not_finite: None,
            is_stopped: false,
            has_bad_answer: false,
            lost: BTreeMap::new(),
        }
    }

    /// Returns whether no further answer of the present lease counts.
    fn takes_no_more(&self) -> bool {
        self.not_finite.is_some() || self.has_bad_answer
    }

    /// Notes how a lease of a provider ended. Returns whether the run avoids it from now on.
    fn is_provider_bad(&mut self, provider: AccountKey, is_lost: bool) -> bool {
        let has_lied = std::mem::take(&mut self.has_bad_answer);
        let lost = self.lost.entry(provider).or_default();
        *lost += u32::from(is_lost);
        has_lied || *lost >= LOST_LEASES_MAX
    }

    /// Notes what the present lease can cost.
    fn note_event(&mut self, event: &JobEvent) {
        if let JobEvent::Leased { leases, .. } = event {
            let escrow = leases.iter().map(|(_, _, escrow)| escrow.0);
            self.escrow = Credits(escrow.fold(self.escrow.0, u64::saturating_add));
        }
    }

    /// Adds the cost of a lease that is over. If no market answers what it cost, all of its escrow
    /// counts. Returns its receipts, and how it ended if it ended early.
    fn settle_lease(
        &mut self,
        ended: Result<JobResult, Box<UnfinishedJob>>,
    ) -> (Vec<Receipt>, Option<Box<UnfinishedJob>>) {
        let (cost, receipts, unfinished) = match ended {
            Ok(result) => {
                let amounts = result.receipts.iter().map(|receipt| receipt.body.amount.0);
                (amounts.sum(), result.receipts, None)
            }
            Err(mut unfinished) => {
                let known = unfinished.spending;
                let known = known.map(|it| it.spent.0.saturating_add(it.held.0));
                let receipts = std::mem::take(&mut unfinished.done.receipts);
                (known.unwrap_or(self.escrow.0), receipts, Some(unfinished))
            }
        };
        self.spent = Credits(self.spent.0.saturating_add(cost));
        (receipts, unfinished)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buyer::{NoPlan, NoPlanKind};

    #[test]
    fn a_lease_whose_time_is_over_is_no_fault_of_its_provider() {
        let over = NoPlan {
            kind: NoPlanKind::Other,
            text: "the session's leases are over".to_owned(),
        };
        let over = End::Failed(Reason::NoPlan(over));
        assert!(!is_fault(&over, false));
        // One that did few of the steps that it sold time for is not bought from for ever.
        assert!(is_fault(&over, true));
        let gone = Reason::Unknown(AccountKey([7; 32]));
        assert!(is_fault(&End::Failed(gone), false));
        assert!(is_fault(&End::Cancelled, false));
        assert!(!is_fault(&End::Done, true));
    }
}
