//! The buyer: plans a job over the book, buys the leases, has the parts run, checks and settles.
//!
//! One file a step: [`quote`] says what would run where at what price and moves no money;
//! `purchase` turns the quote into leases; `dispatch` has the parts run; `settle` checks what came
//! back, signs and pays. `course` is the four in rounds: where a provider fails, `rest` says what
//! is left, and the next round runs that. `journal` is what survives this process, `resume` goes on
//! from it; `verdict` and `compare` judge parts that were run twice.

pub mod checked;
mod compare;
mod course;
mod dispatch;
mod doubts;
mod error;
mod holders;
pub mod job;
pub mod journal;
mod lineage;
mod link_estimates;
mod messages;
mod purchase;
pub mod quote;
mod reasons;
mod rest;
mod resume;
mod session;
mod settle;
mod terms;
mod turn;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use souk_market::{AccountKey, JobId, Lease, Receipt};
use souk_memory::{ContentId, Store, Tensor};
use souk_scheduler::execution::report::Report;
use souk_scheduler::execution::timeline::Timeline;
use souk_scheduler::graph::Graph;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::buyer::job::{Job, Limits};
use crate::client::broker::{Broker, BrokerError};
use crate::client::reach::{ReachError, reach};
use crate::client::trader::Trader;
use crate::clock::{unix_ms, unix_us};
use crate::content::transfers::{self, Tensors};
use crate::folder::config::{MarketFile, Traffic};
use crate::folder::key::NodeKey;
use crate::network::{self, Network};
use crate::protocols::lease::Moved;
use course::Course;
use course::stream::Streaming;
use link_estimates::LinkEstimates;
use turn::Turn;

pub use course::stream::{Answer, Requests};
pub use error::{Ended, JobError, Spending};
pub use journal::{Journal, JournalError};
pub use quote::{Alternative, Quote};
pub use reasons::{Objection, QuoteError, SessionError};
pub use rest::RestError;

/// Content a buyer keeps in memory: models, inputs and outputs of its jobs.
const STORE_BYTES_MAX: u64 = 8 << 30;

/// The largest single output fetched.
const CONTENT_BYTES_MAX: u64 = 2 << 30;

/// How often the book is looked at again while a job waits for devices.
const BOOK_PERIOD: Duration = Duration::from_millis(50);

/// A buyer's place in the market; clones share it.
#[derive(Clone)]
pub struct Buyer {
    trader: Trader,
    network: Network,
    tensors: Tensors,
    /// Every id that leases were bought under.
    jobs: Arc<Mutex<Vec<JobId>>>,
    drawn: Arc<AtomicU32>,
    /// Where jobs say what they want until they have it.
    queue: Option<PathBuf>,
}

/// How a buyer takes part.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// What its network may be used for.
    pub traffic: Traffic,
    /// Where what is known of links is kept from job to job.
    pub links: Option<PathBuf>,
    /// A folder in which all jobs of this buyer, in whatever process, say what they want, so that
    /// those of a lower priority stand back.
    pub queue: Option<PathBuf>,
}

/// Why a buyer has no place in the market.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The market was not reached.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// The address for direct channels cannot be listened on.
    #[error("cannot listen for direct channels: {0}")]
    Direct(std::io::Error),
}

/// What happens while a job runs.
#[derive(Clone, Debug)]
pub enum Progress {
    /// The leases are bought.
    Leased {
        /// Provider, lease id, micro-credits in escrow.
        leases: Vec<(AccountKey, u64, u64)>,
    },
    /// A provider has what it needs of the buyer.
    Fetched {
        /// Who.
        provider: AccountKey,
        /// Pieces it needed, and how many it had already.
        pieces: u32,
        /// How many of them it had already.
        held: u32,
        /// Bytes that were sent.
        bytes: u64,
    },
    /// A provider has compiled its parts.
    Compiled {
        /// Who.
        provider: AccountKey,
    },
    /// A provider's device runs a part.
    Running {
        /// Who.
        provider: AccountKey,
        /// Which.
        part: String,
    },
    /// A provider is done.
    Finished {
        /// Who.
        provider: AccountKey,
    },
    /// The outputs that were made are here, checked and not yet paid.
    Returned,
    /// A provider failed; the job is tried again without it.
    Retrying {
        /// Who.
        provider: AccountKey,
        /// Why.
        why: String,
        /// How many values are kept of what was computed.
        kept: usize,
    },
}

/// A job that was run.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The job.
    pub job: JobId,
    /// The outputs by name.
    pub outputs: BTreeMap<String, Tensor>,
    /// One receipt a lease, signed by both parties, in the plan's order of providers.
    pub receipts: Vec<Receipt>,
    /// What came over the network to each provider, by receipt.
    pub moved: Vec<Vec<Moved>>,
    /// What the devices did.
    pub report: Report,
    /// When they did it.
    pub timeline: Timeline,
}

impl Buyer {
    /// Joins the market as the account of `key`.
    pub async fn join(key: NodeKey, market: &MarketFile) -> Result<Buyer, JoinError> {
        Buyer::join_with(key, market, Config::default()).await
    }

    /// The same, with limits of its network and a memory of its links.
    ///
    /// # Errors
    /// [`JoinError`]: the market's file, the network, the market.
    pub async fn join_with(
        key: NodeKey,
        market: &MarketFile,
        config: Config,
    ) -> Result<Buyer, JoinError> {
        // Providers fetch from the buyer over the connections it opens; it need not be reachable.
        let (network, broker) = reach(&key, market, network::Config::default()).await?;
        let trader = Trader::new(key, market.genesis.market_id(), broker);
        let store = Arc::new(Store::in_memory(STORE_BYTES_MAX));
        let Config {
            traffic,
            links,
            queue,
        } = config;
        let config = transfers::Config::new(&traffic, None, CONTENT_BYTES_MAX, links);
        let tensors = Tensors::start(network.clone(), trader.key(), store, config).await;
        let tensors = tensors.map_err(JoinError::Direct)?;
        Ok(Buyer {
            trader,
            network,
            tensors,
            jobs: Arc::default(),
            drawn: Arc::default(),
            queue,
        })
    }

    /// The account.
    pub fn account(&self) -> AccountKey {
        self.trader.account()
    }

    /// The way to the market.
    pub fn broker(&self) -> &Broker {
        self.trader.broker()
    }

    /// Plans a job over the book as it stands. No money moves. Where the book has too few devices
    /// it is looked at again, as long as the job's limits allow to wait; so it is where jobs of
    /// this buyer of a higher priority want the devices.
    ///
    /// # Errors
    /// Why there is no plan, as the book stood last.
    pub async fn quote(&self, job: &Job) -> Result<Quote, QuoteError> {
        let deadline = Instant::now() + job.limits.wait;
        let turn = self.turn(&job.limits);
        let mut were_some = false;
        loop {
            match quote::quote(self, job, &turn).await {
                // Devices that suited a moment ago and were leased since come back.
                Err(error)
                    if (error.passes() || were_some && error.may_pass())
                        && Instant::now() < deadline =>
                {
                    were_some |= !matches!(error, QuoteError::NoneEligible { .. });
                    tokio::time::sleep(BOOK_PERIOD).await;
                }
                done => return done,
            }
        }
    }

    /// Plans what is left of a job, as [`Buyer::quote`] plans the whole.
    async fn requote(&self, graph: Graph, limits: &Limits) -> Result<Quote, QuoteError> {
        let deadline = Instant::now() + limits.wait;
        let turn = self.turn(limits);
        loop {
            match quote::over_book(self, graph.clone(), limits, &turn).await {
                // Devices that were leased a moment ago come back.
                Err(error) if error.may_pass() && Instant::now() < deadline => {
                    tokio::time::sleep(BOOK_PERIOD).await;
                }
                done => return done,
            }
        }
    }

    /// The place of a job with these limits.
    fn turn(&self, limits: &Limits) -> Arc<Turn> {
        Arc::new(Turn::new(self.queue.as_deref(), limits.priority))
    }

    /// What a job is about: the model with the shapes of its inputs, and the inputs.
    ///
    /// # Errors
    /// When the model cannot be made into one subgraph.
    pub fn subject(&self, job: &Job, quote: &Quote) -> Result<ContentId, QuoteError> {
        Ok(course::subject(&quote.graph, &job.inputs)?)
    }

    /// Begins the journal of a quoted job below `folder`. `command` is the caller's own.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn journal(
        &self,
        folder: &Path,
        job: &Job,
        quote: &Quote,
        command: serde_json::Value,
    ) -> Result<Journal, JobError> {
        self.begin_journal(folder, (job, quote), &job.inputs, command)
    }

    /// The same of a stream of requests.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn journal_stream(
        &self,
        folder: &Path,
        job: &Job,
        quote: &Quote,
        command: serde_json::Value,
    ) -> Result<Journal, JobError> {
        self.begin_journal(folder, (job, quote), &BTreeMap::new(), command)
    }

    /// A journal about these inputs.
    fn begin_journal(
        &self,
        folder: &Path,
        (job, quote): (&Job, &Quote),
        inputs: &BTreeMap<String, Tensor>,
        command: serde_json::Value,
    ) -> Result<Journal, JobError> {
        let subject = course::subject(&quote.graph, inputs).map_err(QuoteError::from)?;
        let first = course::first_id(self, &job.inputs);
        Ok(Journal::create(folder, first, unix_ms(), subject, command)?)
    }

    /// Runs a quoted job to its end. Where a provider fails, what was computed is kept and the rest
    /// is run by others. On an error every lease is ended and its escrow on the way back.
    ///
    /// # Errors
    /// Why the job was not run, and what it has cost.
    pub async fn run(
        &self,
        job: &Job,
        quote: Quote,
        journal: Option<&mut Journal>,
        progress: mpsc::Sender<Progress>,
    ) -> Result<Finished, Box<Ended>> {
        let course = course::of(self, job, quote.graph.clone(), &progress);
        let course = match journal {
            None => Ok(course),
            Some(journal) => course.journaled(journal),
        };
        let course = course.map_err(Ended::at_once)?;
        self.finish(course, Some(quote)).await
    }

    /// Runs a quoted job once for each of many requests of the same shapes, through all providers
    /// at once: while one computes a request, the one before it is at the next. Answers come in the
    /// order of the requests. Where a provider fails, what was not answered is run by others.
    ///
    /// # Errors
    /// Why it ended early, and what it has cost; what was answered by then stays answered.
    pub async fn stream(
        &self,
        job: &Job,
        quote: Quote,
        journal: Option<&mut Journal>,
        (requests, answers): (Requests, mpsc::Sender<Answer>),
        progress: mpsc::Sender<Progress>,
    ) -> Result<Finished, Box<Ended>> {
        let course = course::of(self, job, quote.graph.clone(), &progress);
        let course = match journal {
            None => Ok(course),
            Some(journal) => course.journaled(journal),
        };
        let course = course.map_err(Ended::at_once)?;
        let streaming = Streaming::new(course, requests, answers);
        self.told(streaming.complete(Some(quote)).await).await
    }

    /// Goes on with a stream whose buyer died: the same job, its journal, and the requests that
    /// are not answered. `given` are the inputs of all requests, answered or not.
    ///
    /// # Errors
    /// Why it ended early, and what it has cost.
    pub async fn resume_stream(
        &self,
        job: &Job,
        journal: &mut Journal,
        (requests, answers): (Requests, mpsc::Sender<Answer>),
        given: &BTreeSet<ContentId>,
        progress: mpsc::Sender<Progress>,
    ) -> Result<Finished, Box<Ended>> {
        let line = (requests, answers);
        resume::resume_stream(self, job, journal, line, given, &progress).await
    }

    /// Goes on with a job whose buyer died: the same job, and its journal.
    ///
    /// # Errors
    /// Why the job was not run, and what it has cost.
    pub async fn resume(
        &self,
        job: &Job,
        journal: &mut Journal,
        progress: mpsc::Sender<Progress>,
    ) -> Result<Finished, Box<Ended>> {
        resume::resume(self, job, journal, &progress).await
    }

    async fn finish(
        &self,
        course: Course<'_>,
        quote: Option<Quote>,
    ) -> Result<Finished, Box<Ended>> {
        self.told(course.complete(quote).await).await
    }

    /// The end of a course, with what it has cost where it failed.
    async fn told(
        &self,
        ended: Result<Finished, (JobError, Vec<String>)>,
    ) -> Result<Finished, Box<Ended>> {
        match ended {
            Ok(finished) => Ok(finished),
            Err((error, before)) => {
                let spending = self.spending().await.ok();
                Err(Box::new(Ended {
                    error,
                    before,
                    spending,
                }))
            }
        }
    }

    /// What the jobs that this process ran have cost.
    ///
    /// # Errors
    /// When the market is not reached.
    pub async fn spending(&self) -> Result<Spending, BrokerError> {
        let leases = self
            .broker()
            .job_leases(self.account(), &self.jobs())
            .await?;
        Ok(purchase::spending(&leases))
    }

    /// Every lease that this process bought, closed ones as long as the market keeps them.
    ///
    /// # Errors
    /// When the market is not reached.
    pub async fn leases(&self) -> Result<Vec<Lease>, BrokerError> {
        self.broker().job_leases(self.account(), &self.jobs()).await
    }

    /// Ends every lease that this process bought and that still runs. How many there were, and what
    /// the jobs have cost.
    ///
    /// # Errors
    /// When the market is not reached.
    pub async fn release(&self) -> Result<(usize, Spending), BrokerError> {
        let leases = self
            .broker()
            .job_leases(self.account(), &self.jobs())
            .await?;
        let running: Vec<_> = leases
            .iter()
            .filter(|l| l.is_running())
            .map(|l| l.id)
            .collect();
        let count = running.len();
        purchase::end(self, running.into_iter()).await;
        Ok((count, purchase::spending(&leases)))
    }

    /// Takes in what a provider says of the ways that its inputs came.
    fn heard(&self, provider: AccountKey, moved: &[Moved]) {
        for Moved { from, link, .. } in moved {
            if let Some(sample) = link {
                self.tensors.links().observe(*from, provider, *sample);
            }
        }
    }

    /// The links a plan over the book counts with.
    fn ways(&self) -> LinkEstimates {
        LinkEstimates::new(self.account(), self.tensors.links().all(), unix_ms())
    }

    fn jobs(&self) -> Vec<JobId> {
        self.jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Remembers an id before leases are bought under it.
    fn opened(&self, job: JobId) {
        self.jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(job);
    }

    /// A number that no other process of this account draws: the time, and one more each time.
    fn draw(&self) -> u128 {
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        u128::from(unix_us()) << 64 | u128::from(std::process::id()) << 32 | u128::from(drawn)
    }
}
