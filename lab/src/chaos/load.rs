//! Submits a stream of jobs to the market under test: several buyers each run one job after another
//! and compare its outputs with those of the first. The chaos test and the test with hostile peers
//! use it, and count how many jobs finished, failed or got wrong outputs.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use souk_node::buyer::job::{Job, Limits};
use souk_node::buyer::{Buyer, JobEvent, QuoteError, UnfinishedJob};
use souk_node::market::Credits;
use souk_node::memory::{Tensor, npy};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use souk_sim::random::Random;
use souk_testnet::models::digits;

/// How long a job waits for devices.
const WAIT: Duration = Duration::from_secs(20);

/// How long the first job may wait until every provider has an ask.
const FILLING: Duration = Duration::from_secs(30);

/// The maximum cost of a job.
const BUDGET: Credits = Credits(60_000_000);

/// Outputs must not differ from those of the first job by more than this.
const TOLERANCE: f32 = 1e-4;

/// Pause after a failed job, so that buyers do not overload a market that is away.
const PAUSE: Duration = Duration::from_millis(200);

/// Results of the jobs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Jobs {
    /// Jobs submitted.
    pub submitted: usize,
    /// Jobs with right outputs.
    pub finished: usize,
    /// Jobs with wrong outputs although a second provider checked them.
    pub wrong: usize,
    /// Jobs with wrong outputs that no second provider checked: a buyer believes such a liar.
    pub deceived: usize,
    /// Jobs that ended without outputs, by reason.
    pub ended: BTreeMap<String, usize>,
    /// Times that a job continued without a failed provider.
    pub survived: usize,
    /// The longest job, in milliseconds.
    pub longest_ms: u128,
}

/// Why the load did not begin.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The first job could not be planned.
    #[error("the first job was not planned: {0}")]
    Quote(#[from] QuoteError),
    /// The first job could not run.
    #[error("the first job was not run: {0}")]
    Ended(#[from] Box<UnfinishedJob>),
    /// The bundled images are damaged.
    #[error("the bundled images: {0}")]
    Images(#[from] npy::NpyError),
}

/// Begins a job and drops it after `patience`, like a buyer that never acknowledges. Returns
/// whether the job got as far as buying.
pub(crate) async fn begin_and_leave(buyer: &Buyer, patience: Duration) -> bool {
    let Ok(images) = npy::read(&digits::IMAGES) else {
        return false;
    };
    let limits = Limits {
        budget: Some(BUDGET),
        ..Limits::default()
    };
    let job = digits_job(&images, limits);
    let Ok(quote) = buyer.quote_job(&job).await else {
        return false;
    };
    let (silent, _) = mpsc::channel(1);
    let ran = tokio::time::timeout(patience, buyer.run(&job, quote, silent)).await;
    ran.is_err()
}

/// Buyers that submit jobs.
pub(crate) struct Load {
    running: JoinSet<Jobs>,
    stop: watch::Sender<bool>,
}

impl Load {
    /// Runs one job, which must succeed because later outputs are compared with its own; then makes
    /// `buyers` submit jobs until the load ends.
    pub(crate) async fn begin_jobs(
        buyer: &Buyer,
        seed: u64,
        buyers: usize,
        providers: usize,
    ) -> Result<Load, LoadError> {
        let images = npy::read(&digits::IMAGES)?;
        // Every provider must have an ask in the book before the first fault.
        let waited = Limits {
            wait: FILLING,
            providers_min: 1,
            ..Limits::default()
        };
        let filling = Instant::now();
        let mut quote = buyer
            .quote_job(&digits_job(&images, waited.clone()))
            .await?;
        while quote.seen < providers as u64 && filling.elapsed() < FILLING {
            tokio::time::sleep(PAUSE).await;
            quote = buyer
                .quote_job(&digits_job(&images, waited.clone()))
                .await?;
        }
        let (silent, _) = mpsc::channel(1);
        let first = buyer
            .run(&digits_job(&images, waited), quote, silent)
            .await?;
        let right = first.outputs["logits"].clone();
        let (stop, stopped) = watch::channel(false);
        let mut running = JoinSet::new();
        for number in 0..buyers {
            let stream = Stream {
                buyer: buyer.clone(),
                images: images.clone(),
                right: right.clone(),
                random: Random::new(seed, &format!("buyer {number}")),
            };
            running.spawn(stream.run_stream(stopped.clone()));
        }
        Ok(Load { running, stop })
    }

    /// Waits until the running jobs end, and returns the results of all.
    pub(crate) async fn finish_jobs(self) -> Jobs {
        // Streams that have ended need no signal.
        let _ = self.stop.send(true);
        let mut all = Jobs::default();
        for jobs in self.running.join_all().await {
            all.submitted += jobs.submitted;
            all.finished += jobs.finished;
            all.wrong += jobs.wrong;
            all.deceived += jobs.deceived;
            all.survived += jobs.survived;
            all.longest_ms = all.longest_ms.max(jobs.longest_ms);
            for (reason, count) in jobs.ended {
                *all.ended.entry(reason).or_default() += count;
            }
        }
        all
    }
}

/// One buyer's jobs, one after another.
struct Stream {
    buyer: Buyer,
    images: Tensor,
    right: Tensor,
    random: Random,
}

impl Stream {
    async fn run_stream(mut self, stopped: watch::Receiver<bool>) -> Jobs {
        let mut jobs = Jobs::default();
        while !*stopped.borrow() {
            let begin = Instant::now();
            jobs.submitted += 1;
            match self.run_job(&mut jobs).await {
                None => jobs.finished += 1,
                Some(reason) if reason == "wrong" => jobs.wrong += 1,
                Some(reason) if reason == "deceived" => jobs.deceived += 1,
                Some(reason) => {
                    *jobs.ended.entry(reason).or_default() += 1;
                    tokio::time::sleep(PAUSE).await;
                }
            }
            jobs.longest_ms = jobs.longest_ms.max(begin.elapsed().as_millis());
        }
        jobs
    }

    /// Runs one job and returns the reason if it failed.
    async fn run_job(&mut self, jobs: &mut Jobs) -> Option<String> {
        let limits = Limits {
            providers_min: if self.random.chance(400) { 2 } else { 1 },
            copies: if self.random.chance(200) { 2 } else { 1 },
            budget: Some(BUDGET),
            wait: WAIT,
            ..Limits::default()
        };
        let checked = limits.copies > 1;
        let job = digits_job(&self.images, limits);
        let quote = match self.buyer.quote_job(&job).await {
            Ok(quote) => quote,
            Err(error) => {
                tracing::info!(%error, "planning a job failed");
                return Some("not_planned".to_owned());
            }
        };
        let (progress, mut told) = mpsc::channel(64);
        let counting = async {
            let mut survived = 0;
            while let Some(event) = told.recv().await {
                survived += usize::from(matches!(event, JobEvent::Retrying { .. }));
            }
            survived
        };
        let (ended, survived) = tokio::join!(self.buyer.run(&job, quote, progress), counting);
        jobs.survived += survived;
        match ended {
            Ok(finished) if is_close(&finished.outputs["logits"], &self.right) => None,
            Ok(_) if checked => Some("wrong".to_owned()),
            Ok(_) => Some("deceived".to_owned()),
            Err(ended) => {
                tracing::info!(error = %ended, before = ?ended.before, "a job failed");
                Some(ended.code().to_owned())
            }
        }
    }
}

fn digits_job(images: &Tensor, limits: Limits) -> Job {
    Job {
        model: digits::MODEL,
        folder: None,
        inputs: [("images".to_owned(), images.clone())].into(),
        limits,
    }
}

fn is_close(a: &Tensor, b: &Tensor) -> bool {
    match (a.to_vec::<f32>(), b.to_vec::<f32>()) {
        (Ok(a), Ok(b)) => {
            a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= TOLERANCE)
        }
        _ => false,
    }
}
