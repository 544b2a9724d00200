//! The session of a lease: steps are requests of a job whose providers keep the states.
//!
//! The tokens so far are the truth. Where a provider is lost the session is bought anew of others,
//! within what is left of the budget, and what was said so far is brought back into its caches.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use souk_llm::decoder::{LOGITS, ROWS, TOKENS, WRITE};
use souk_llm::generation::{CHUNK, inputs};
use souk_node::buyer::job::{Job, Limits};
use souk_node::buyer::{
    Answer, Buyer, JobEvent, JobResult, Quote, Requests, Submission, UnfinishedJob,
};
use souk_node::market::{Credits, Receipt};
use souk_node::memory::Tensor;
use souk_vocabulary::processor::session::Session;
use souk_vocabulary::processor::{Engine, Outcome, RunError};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use crate::args::{LeaseArgs, Output};
use crate::commands::job;
use crate::failure::{Failure, Kind};
use crate::folder::join;
use crate::show;

/// Sessions that are bought one after the other without a further token.
const SESSIONS_MAX: u32 = 8;

/// Events that may wait to be looked at.
const PROGRESS_MAX: usize = 256;

/// A text's session in the market.
pub struct MarketSession {
    buyer: Buyer,
    job: Job,
    output: Output,
    /// The tokens that the session's caches have.
    tokens: Vec<u32>,
    open: Option<Open>,
    /// Sessions that were bought since the last token.
    bought: u32,
    receipts: Vec<Receipt>,
    /// Told where the text is to end at once.
    stop: Arc<Notify>,
    is_stopped: bool,
    /// What was said of the last failure.
    failed: Option<Failure>,
}

/// A job under way.
struct Open {
    cancel: Arc<Notify>,
    give: mpsc::Sender<BTreeMap<String, Tensor>>,
    answers: mpsc::Receiver<Answer>,
    ended: JoinHandle<Result<JobResult, Box<UnfinishedJob>>>,
}

impl MarketSession {
    /// Joins the market. The first session is bought with the first step.
    pub async fn join(
        (folder, output): (&Path, Output),
        mut job: Job,
        args: &LeaseArgs,
        stop: Arc<Notify>,
    ) -> Result<Self, Failure> {
        job.limits = limits(args, job.limits.requests)?;
        let buyer = join(folder).await?;
        Ok(Self {
            buyer,
            job,
            output,
            tokens: Vec::new(),
            open: None,
            bought: 0,
            receipts: Vec::new(),
            stop,
            is_stopped: false,
            failed: None,
        })
    }

    /// Buys a session over the book as it stands.
    async fn buy(&mut self) -> Result<(), Failure> {
        self.bought += 1;
        let quote = self.buyer.quote(&self.job).await;
        let quote = quote.map_err(job::from_quote)?;
        if self.output == Output::Text {
            for line in show::plan::text(&quote, &self.job.limits) {
                show::tell(&line);
            }
            show::tell(&format!("  the text is seen by {}", seers(&quote)));
        }
        let (give, inputs) = mpsc::channel(1);
        let (answered, answers) = mpsc::channel(1);
        let (progress, mut told) = mpsc::channel::<JobEvent>(PROGRESS_MAX);
        tokio::spawn(async move { while told.recv().await.is_some() {} });
        let cancel = Arc::<Notify>::default();
        let submission = Submission {
            requests: Requests {
                count: self.job.limits.requests,
                window: 1,
                inputs,
            },
            answers: answered,
            progress,
            cancel: cancel.clone(),
            is_bought: false,
        };
        let (buyer, job) = (self.buyer.clone(), self.job.clone());
        let running = async move { buyer.submit(&job, quote, None, submission).await };
        self.open = Some(Open {
            cancel,
            give,
            answers,
            ended: tokio::spawn(running),
        });
        Ok(())
    }

    /// Steps over tokens that stand after so many, for the logits after some of them, in as many
    /// sessions as it takes.
    async fn push(
        &mut self,
        after: usize,
        (tokens, rows): (Vec<u32>, Vec<usize>),
    ) -> Result<Tensor, RunError> {
        // What came after them no longer counts, and is written over.
        self.tokens.truncate(after);
        let mut left: Vec<Vec<u32>> = vec![tokens];
        if self.open.is_none() {
            self.buy().await.map_err(|failure| self.fail(failure))?;
        }
        loop {
            let Some(chunk) = left.last() else {
                unreachable!("there is a chunk until its answer is given")
            };
            // Of what is brought back nobody draws.
            let given = match left.len() {
                1 => inputs(chunk, self.tokens.len(), &rows),
                _ => inputs(chunk, self.tokens.len(), &[chunk.len() - 1]),
            };
            match self.ask(given).await {
                Some(logits) => {
                    self.tokens.extend(left.pop().unwrap_or_default());
                    if left.is_empty() {
                        self.bought = 0;
                        return Ok(logits);
                    }
                }
                None => {
                    let anew = self.begin_anew().await;
                    anew.map_err(|failure| self.fail(failure))?;
                    // What was said so far goes first; the last is taken first.
                    let said = std::mem::take(&mut self.tokens);
                    left.extend(said.chunks(CHUNK).rev().map(<[u32]>::to_vec));
                }
            }
        }
    }

    /// Keeps a failure for whoever finishes the session.
    fn fail(&mut self, failure: Failure) -> RunError {
        let reason = failure.cause.clone();
        self.failed = Some(failure);
        let engine = "market";
        RunError::Engine { engine, reason }
    }

    /// The answer to one request, unless the job is over.
    async fn ask(&mut self, given: BTreeMap<String, Tensor>) -> Option<Tensor> {
        let open = self.open.as_mut()?;
        let answering = async {
            open.give.send(given).await.ok()?;
            open.answers.recv().await
        };
        let answer = tokio::select! {
            answer = answering => answer?,
            () = self.stop.notified() => {
                self.is_stopped = true;
                open.cancel.notify_one();
                return None;
            }
        };
        answer.keep().remove(LOGITS)
    }

    /// Buys another session in the place of one that is over.
    async fn begin_anew(&mut self) -> Result<(), Failure> {
        let ended = match self.close().await {
            Some(Err(ended)) => ended,
            Some(Ok(_)) | None => {
                if self.bought >= SESSIONS_MAX {
                    let cause = "sessions end before a token is made";
                    let hint = "buy them for more tokens at a time";
                    return Err(Failure::new(Kind::Unexpected, cause, hint));
                }
                show::tell("the session has made the tokens it was bought for; buying another");
                return self.buy().await;
            }
        };
        if self.is_stopped || self.bought >= SESSIONS_MAX {
            return Err(job::from_ended(&ended, None));
        }
        let lost = ended
            .before
            .iter()
            .filter_map(souk_node::buyer::Reason::culprit);
        self.job.limits.excluded.extend(lost);
        if let souk_node::buyer::End::Failed(reason) = &ended.how {
            self.job.limits.excluded.extend(reason.culprit());
        }
        show::tell(&format!(
            "the session is over: {}; buying another",
            ended.why()
        ));
        self.buy().await
    }

    async fn close(&mut self) -> Option<Result<JobResult, Box<UnfinishedJob>>> {
        let Open {
            give,
            mut answers,
            ended,
            ..
        } = self.open.take()?;
        drop(give);
        let draining = async { while answers.recv().await.is_some() {} };
        let (ended, ()) = tokio::join!(ended, draining);
        let ended = ended.expect("a job's task does not panic");
        let done = match &ended {
            Ok(done) => done,
            Err(ended) => &ended.done,
        };
        let gone = match &ended {
            Ok(done) => done.receipts.iter().map(|it| it.body.amount.0).sum(),
            Err(ended) => {
                let spending = ended.spending.as_ref();
                spending.map_or(0, |it| it.spent.0.saturating_add(it.held.0))
            }
        };
        let budget = &mut self.job.limits.budget;
        *budget = budget.map(|budget| Credits(budget.0.saturating_sub(gone)));
        self.receipts.extend(done.receipts.iter().cloned());
        Some(ended)
    }

    /// Ends the session: the receipts of all that were bought since the last time, and why it
    /// failed, if it did. The next step buys another, of anybody.
    pub async fn finish(&mut self) -> (Vec<Receipt>, Option<Failure>) {
        let ended = self.close().await;
        let ended = ended.and_then(Result::err);
        let failed = self.failed.take();
        let failed = failed.or_else(|| ended.map(|ended| job::from_ended(&ended, None)));
        self.tokens.clear();
        self.bought = 0;
        self.job.limits.excluded.clear();
        (std::mem::take(&mut self.receipts), failed)
    }
}

/// Steps of a session in the market, for whoever waits where no task does.
pub struct Steps<'a> {
    pub session: &'a mut MarketSession,
    pub handle: Handle,
}

impl Session for Steps<'_> {
    fn step(&mut self, inputs: &BTreeMap<String, Tensor>) -> Result<Outcome, RunError> {
        let tokens = numbers(inputs, TOKENS);
        let after = numbers(inputs, WRITE).first().copied();
        let given = (tokens, numbers(inputs, ROWS));
        let pushing = self.session.push(after.unwrap_or_default(), given);
        let logits = self.handle.block_on(pushing)?;
        Ok(Outcome {
            outputs: BTreeMap::from([(LOGITS.to_owned(), logits)]),
            busy: Duration::ZERO,
            energy: None,
            operators: 0,
            engine: Engine::Own,
        })
    }

    fn export(&self) -> Result<BTreeMap<String, Tensor>, RunError> {
        Err(RunError::Engine {
            engine: "market",
            reason: "states stay with the providers".to_owned(),
        })
    }
}

/// Integers among the inputs of a step.
fn numbers<T: TryFrom<i64>>(inputs: &BTreeMap<String, Tensor>, name: &str) -> Vec<T> {
    let integers = inputs.get(name).and_then(|it| it.to_vec::<i64>().ok());
    let integers = integers.unwrap_or_default().into_iter();
    integers.filter_map(|it| T::try_from(it).ok()).collect()
}

fn seers(quote: &Quote) -> String {
    let offers = quote.plan.offers().into_iter();
    let named = offers.map(|offer| {
        let listing = &quote.listings[offer];
        format!("{} ({})", listing.name, quote.device(offer))
    });
    named.collect::<Vec<_>>().join(", ")
}

fn limits(args: &LeaseArgs, requests: u32) -> Result<Limits, Failure> {
    let budget = args
        .budget
        .map(|it| job::micro("--budget", it))
        .transpose()?;
    Ok(Limits {
        budget: budget.map(Credits),
        providers_min: args.min_providers,
        providers_max: args.max_providers.max(args.min_providers),
        wait: Duration::from_secs(args.wait),
        requests,
        objective: args.prefer,
        session: true,
        ..Limits::default()
    })
}
