//! The buyer's side of a job: plans it over the market's asks, buys leases (device time), sends the
//! parts to providers, checks and settles. `souk submit` and other programs use a [`Buyer`].
//!
//! A core, a state machine without I/O in `souk_roles::job`, decides what a job does. `shell` is
//! the one task that runs this core, [`quote`] and `planner` choose devices and prices, and
//! [`journal`] stores on disk what a later process needs to resume the job.

pub mod accusation;
pub mod audit_results;
mod compare;
pub mod exact_model;
pub mod explanation;
mod holders;
pub mod job;
pub mod job_files;
mod job_ids;
mod job_priority;
pub mod job_times;
pub mod journal;
pub mod lease_cancellation;
mod lease_follower;
mod lease_length;
mod link_estimates;
pub mod names;
mod output_bounds;
mod own_outputs;
mod past_times;
pub mod pinned_plan;
pub mod plan_json;
mod planner;
pub mod quote;
mod quote_error;
mod remaining_graph;
pub mod resting_bid;
mod shell;
mod submission;
pub mod tab;
pub mod text_keys;
pub mod text_router;
pub mod training;
pub mod transcripts;
mod unfinished_job;
pub mod value_labels;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use souk_folder::clock::unix_ms;
use souk_folder::config::Traffic;
use souk_folder::key::NodeKey;
use souk_folder::market_file::MarketFile;
use souk_market::{AccountKey, JobId, Lease, Receipt};
use souk_memory::{ContentId, HeldContent, Store, Tensor};
use souk_network::content::transfers::{Tensors, TransferConfig};
use souk_network::{Network, NetworkConfig};
use souk_roles::job::bidding::book_pause;
use souk_roles::job::{JobCore, JobSpec, Outcome, attempt_id, request_id};
use souk_scheduler::execution::report::Report;
use souk_scheduler::execution::timeline::Timeline;
use souk_scheduler::graph::Graph;
use souk_scheduler::graph::cut::{self, CutError};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::buyer::job::{EmulatedDevices, Job, Limits};
use crate::client::broker::{Broker, BrokerError};
use crate::client::reach::{ReachError, connect_market};
use crate::client::trader::Trader;
use crate::lease_report::{LeaseReport, PeerTraffic};
use job_ids::LastJobs;
use job_priority::QueuedJob;
use journal::JournalWriter;
use lease_follower::LeaseFollower;
use link_estimates::LinkEstimates;
use past_times::PastTimes;
use planner::Planner;
use shell::Shell;

pub use job_ids::draw_job;
pub use journal::{Journal, JournalError};
pub use past_times::{Overheads, PAST_TIMES_FILE};
pub use quote::{Alternative, Quote, ScarceOperator};
pub use quote_error::QuoteError;
pub use souk_roles::job::plan::{NoPlan, NoPlanKind};
pub use souk_roles::job::{End, JobEvent, Past, Reason, Spending};
pub use souk_roles::lease::WINDOW_MAX;
pub use souk_roles::train::AuditSpec;
pub use submission::{Answer, Requests, Submission};
pub use unfinished_job::UnfinishedJob;

/// How many attempts of a job [`Buyer::job_spending`] looks up: more than a job makes, checks
/// included.
const ATTEMPTS_SEEN: u32 = 64;

/// The most bytes that a buyer keeps in memory: models, inputs and outputs of its jobs.
const STORE_BYTES_MAX: u64 = 8 << 30;

/// A buyer in a market. Clones share it.
#[derive(Clone)]
pub struct Buyer {
    trader: Trader,
    network: Network,
    tensors: Tensors,
    /// The last ids under which this process bought leases for jobs.
    jobs: Arc<Mutex<LastJobs>>,
    /// The leases of its jobs and open tabs.
    lease_follower: LeaseFollower,
    /// The folder in which jobs announce their demands until they have bought leases.
    queue: Option<PathBuf>,
    /// How long earlier jobs took.
    past: Arc<PastTimes>,
    is_testnet: bool,
}

/// How a buyer joins a market.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The limits of its network traffic.
    pub traffic: Traffic,
    /// The file that keeps what transfers over links took.
    pub links: Option<PathBuf>,
    /// The file that keeps how long jobs took.
    pub times: Option<PathBuf>,
    /// The folder in which all jobs of this buyer announce their demands.
    pub queue: Option<PathBuf>,
}

/// Why a buyer could not join the market.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The node did not reach the market.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// The node cannot listen on the address for direct channels.
    #[error("cannot listen for direct channels: {0}")]
    Direct(std::io::Error),
}

/// The result of a job, from all leases that the buyer paid for.
#[derive(Clone, Debug)]
pub struct JobResult {
    /// The id of the job.
    pub job: JobId,
    /// The outputs by name, of a job of one request that [`Buyer::run`] ran.
    pub outputs: BTreeMap<String, Tensor>,
    /// One receipt a lease, signed by both parties, in the order of their signatures.
    pub receipts: Vec<Receipt>,
    /// What the job cost, and what it still holds, by the log; none if the market did not answer.
    /// It includes leases without a receipt.
    pub spending: Option<Spending>,
    /// The content that each provider received over the network, by receipt.
    pub moved: Vec<Vec<PeerTraffic>>,
    /// The work that the devices did.
    pub report: Report,
    /// When the devices worked.
    pub timeline: Timeline,
}

impl JobResult {
    /// Returns the result of a job that has done nothing yet.
    fn new(job: JobId) -> JobResult {
        JobResult {
            job,
            outputs: BTreeMap::new(),
            receipts: Vec::new(),
            spending: None,
            moved: Vec::new(),
            report: Report::default(),
            timeline: Timeline::default(),
        }
    }

    /// Adds the receipt and the report of a lease that was paid for.
    fn add(&mut self, receipt: Receipt, shown: LeaseReport) {
        self.timeline.merge(shown.timeline);
        match self.receipts.is_empty() {
            true => self.report = shown.report,
            false => self.report.merge(shown.report, &self.timeline),
        }
        self.receipts.push(receipt);
        self.moved.push(shown.moved);
    }
}

impl Buyer {
    /// Joins the market as the account of `key`.
    pub async fn join(key: NodeKey, market: &MarketFile) -> Result<Buyer, JoinError> {
        Buyer::join_with(key, market, Config::default()).await
    }

    /// Joins the market with limits of the network and a memory of links.
    ///
    /// # Errors
    /// [`JoinError`]: the market is not reachable, or the address for direct channels not usable.
    pub async fn join_with(
        key: NodeKey,
        market: &MarketFile,
        config: Config,
    ) -> Result<Buyer, JoinError> {
        // Providers fetch from the buyer over the connections it opens; it need not be reachable.
        let (network, broker) = connect_market(&key, market, NetworkConfig::default()).await?;
        let trader = Trader::new(key, market.genesis.market_id(), broker);
        let store = Arc::new(Store::in_memory(STORE_BYTES_MAX));
        let Config {
            traffic,
            links,
            times,
            queue,
        } = config;
        let config = TransferConfig::new(&traffic, None, STORE_BYTES_MAX, links);
        let tensors = Tensors::start(network.clone(), trader.key(), store, config).await;
        Ok(Buyer {
            trader,
            network,
            tensors: tensors.map_err(JoinError::Direct)?,
            jobs: Arc::default(),
            lease_follower: LeaseFollower::default(),
            queue,
            past: Arc::new(PastTimes::load_or_default(times)),
            is_testnet: market.testnet,
        })
    }

    /// Returns what a job has cost so far, and the escrow of its open leases.
    ///
    /// # Errors
    /// [`BrokerError`]: no validator answers.
    pub async fn job_spending(&self, job: JobId) -> Result<Spending, BrokerError> {
        let ids: Vec<JobId> = (0..ATTEMPTS_SEEN).map(|n| attempt_id(job, n)).collect();
        let leases = self.broker().job_leases(self.account(), &ids);
        Ok(Spending::from_leases(&leases.await?))
    }

    /// Returns how many bytes of content this buyer has sent to providers.
    pub fn sent_bytes(&self) -> u64 {
        self.tensors.bytes_moved().0
    }

    /// Returns whether a job with this setting may use emulated devices in this market.
    fn takes_emulated(&self, emulated: EmulatedDevices) -> bool {
        match emulated {
            EmulatedDevices::InTestnets => self.is_testnet,
            EmulatedDevices::Accepted => true,
            EmulatedDevices::Refused => false,
        }
    }

    /// Returns the account of this buyer.
    pub fn account(&self) -> AccountKey {
        self.trader.account()
    }

    /// Returns the trader, which signs for the account.
    pub fn trader(&self) -> &Trader {
        &self.trader
    }

    /// Returns the tensors that this buyer stores and transfers.
    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Returns the broker, which reaches the market.
    pub fn broker(&self) -> &Broker {
        self.trader.broker()
    }

    /// Plans a job over the current book. No money moves. If the book has too few devices, or jobs
    /// of a higher priority want them, this retries as long as the job's limits allow.
    ///
    /// # Errors
    /// The reason why the last book gave no plan.
    pub async fn quote_job(&self, job: &Job) -> Result<Quote, QuoteError> {
        let began = Instant::now();
        let turn = self.new_turn(&job.limits);
        let mut comes_back = None;
        let turns = self.past.turns_ratio(&ContentId::for_content(&job.model));
        let graph = quote::import_checked_graph(job)?.with_turns(turns);
        loop {
            match quote::over_book(self, graph.clone(), &job.limits, &[], &turn).await {
                Err(error) if error.may_pass() && began.elapsed() < job.limits.wait => {
                    // Suitable devices that others leased a moment ago will come back.
                    let known = match comes_back {
                        _ if error.is_transient() => true,
                        None => self.has_leased_devices().await,
                        Some(known) => known,
                    };
                    if !known {
                        return Err(error);
                    }
                    comes_back = Some(known);
                    let wait = job.limits.wait.into();
                    let pause = book_pause(began.elapsed().into(), wait);
                    tokio::time::sleep(pause.into()).await;
                }
                done => return done,
            }
        }
    }

    /// Returns whether a class was traded and has no ask: such an ask comes back after its lease.
    async fn has_leased_devices(&self) -> bool {
        let classes = self.broker().fetch_classes().await.unwrap_or_default();
        classes
            .iter()
            .any(|it| it.last.is_some() && it.ask.is_none())
    }

    /// Returns the place of a job with these limits among the buyer's jobs.
    fn new_turn(&self, limits: &Limits) -> Arc<QueuedJob> {
        Arc::new(QueuedJob::new(self.queue.as_deref(), limits.priority))
    }

    /// Returns the subject of a job: the id of the model, the shapes of its inputs, and the inputs.
    ///
    /// # Errors
    /// When the model does not form one subgraph.
    pub fn job_subject(&self, job: &Job, quote: &Quote) -> Result<ContentId, QuoteError> {
        Ok(hash_subject(&quote.graph, &job.inputs)?)
    }

    /// Begins the journal of a new job below `folder`.
    ///
    /// # Errors
    /// When the file system refuses to write it.
    pub fn create_journal(&self, folder: &Path) -> Result<Journal, JournalError> {
        Journal::create(folder, draw_job(self.account()))
    }

    /// Runs a quoted job of one request without a journal.
    ///
    /// # Errors
    /// The reason for an early end, and the cost so far.
    pub async fn run(
        &self,
        job: &Job,
        quote: Quote,
        progress: mpsc::Sender<JobEvent>,
    ) -> Result<JobResult, Box<UnfinishedJob>> {
        let (give, inputs) = mpsc::channel(1);
        let (answers, mut answered) = mpsc::channel(1);
        // The channel has room for one.
        let _ = give.try_send(job.inputs.clone().into());
        drop(give);
        let submission = Submission {
            requests: Requests {
                count: 1,
                window: 1,
                inputs,
            },
            answers,
            progress,
            cancel: Arc::default(),
            warning: Arc::default(),
            is_bought: false,
        };
        let mut outputs = BTreeMap::new();
        let keeping = async {
            while let Some(answer) = answered.recv().await {
                outputs = answer.confirm_stored();
            }
        };
        let running = self.submit_job(job, quote, None, submission);
        let (ended, ()) = tokio::join!(running, keeping);
        let finished = ended?;
        Ok(JobResult {
            outputs,
            ..finished
        })
    }

    /// Runs a quoted job, once for each request, as a pipeline: while one provider computes a
    /// request, the next one computes the request before it. Answers come in the order of the
    /// requests. If a provider fails, the job keeps the computed values and others run the rest. If
    /// you pass a journal, it also stores your command.
    ///
    /// # Errors
    /// The reason for an early end, and the cost so far. Answers that came before remain valid.
    pub async fn submit_job(
        &self,
        job: &Job,
        quote: Quote,
        journal: Option<(Journal, &serde_json::Value)>,
        submission: Submission,
    ) -> Result<JobResult, Box<UnfinishedJob>> {
        let (id, command) = match &journal {
            None => (draw_job(self.account()), String::new()),
            Some((journal, command)) => (journal.job(), command.to_string()),
        };
        let writer = journal.map(|(journal, _)| journal.start_writer());
        self.submit_job_as((id, command), job, quote, writer, submission)
            .await
    }

    /// Runs a quoted job under an id of [`draw_job`], which the caller can note before it buys.
    async fn submit_job_as(
        &self,
        (id, command): (JobId, String),
        job: &Job,
        quote: Quote,
        writer: Option<JournalWriter>,
        submission: Submission,
    ) -> Result<JobResult, Box<UnfinishedJob>> {
        let requests = &submission.requests;
        let mut planner = Planner::new(self, job, quote.graph.clone());
        let spec = self.job_spec(job, &quote.graph, id, requests.count, command, requests);
        let spec = spec.map_err(|error| UnfinishedJob::at_once(id, no_graph(&error)))?;
        let plan = planner.adopt_quote(quote);
        let begin = |now| JobCore::begin(spec, Some(plan), now);
        let shell = Shell::new(self, begin, planner, id, (submission, writer), Vec::new());
        to_job_result(shell.run().await)
    }

    /// Resumes a job whose buyer died or stopped, from its journal and the requests without an
    /// answer. `request_inputs` are the inputs of all `count` requests, answered or not.
    ///
    /// # Errors
    /// The reason for an early end, and the cost so far.
    pub async fn resume_job(
        &self,
        job: &Job,
        journal: Journal,
        (request_inputs, count): (&BTreeSet<ContentId>, u32),
        submission: Submission,
    ) -> Result<JobResult, Box<UnfinishedJob>> {
        let (id, past) = (journal.job(), journal.fold_past());
        let failed = |reason| UnfinishedJob::at_once(id, reason);
        let graph = quote::import_graph(job).map_err(|error| failed(no_graph(&error)))?;
        let spec = self.job_spec(job, &graph, id, count, String::new(), &submission.requests);
        let mut spec = spec.map_err(|error| failed(no_graph(&error)))?;
        spec.request_inputs.extend(request_inputs);
        if past.began != Some((id, spec.subject)) {
            let name = journal.name().to_owned();
            let error = JournalError::Subject { name };
            return Err(failed(Reason::Journal(error.to_string())));
        }
        let broken = |error: &dyn std::fmt::Display| failed(Reason::Journal(error.to_string()));
        let mut kept = Vec::new();
        for value in journal.read_values().map_err(|error| broken(&error))? {
            let put = HeldContent::put(self.tensors.store(), value.to_blob());
            kept.push(put.map_err(|error| failed(Reason::Memory(error.to_string())))?);
        }
        let planner = Planner::new(self, job, graph);
        let begin = |now| JobCore::resume(spec, past, now);
        let writer = Some(journal.start_writer());
        let shell = Shell::new(self, begin, planner, id, (submission, writer), kept);
        to_job_result(shell.run().await)
    }

    /// Returns the specification of a job of `count` requests, with those of earlier lives.
    fn job_spec(
        &self,
        job: &Job,
        graph: &Graph,
        id: JobId,
        count: u32,
        command: String,
        requests: &Requests,
    ) -> Result<JobSpec, CutError> {
        let none = BTreeMap::new();
        let about = if count == 1 { &job.inputs } else { &none };
        let states = graph.state_values();
        let is_kept = |id: &_| job.limits.sequences > 0 && states.contains(id);
        let made = |id: &&_| graph.value(**id).producer().is_some() && !is_kept(*id);
        let outputs = graph.outputs().iter().filter(made);
        Ok(JobSpec {
            job: id,
            account: self.account(),
            market: self.trader.market(),
            subject: hash_subject(graph, about)?,
            command,
            outputs: outputs.map(|id| graph.value(*id).name.clone()).collect(),
            requests: requests.count,
            sequences: job.limits.sequences,
            window: requests.window,
            request_inputs: job.inputs.values().map(Tensor::id).collect(),
            limits: job.limits.to_core_limits(),
        })
    }

    /// Returns the leases that this process bought for jobs, of the last 4,096 purchases; closed
    /// ones as long as the market keeps them. Tabs are not jobs: each looks for its own lease.
    ///
    /// # Errors
    /// When no validator answers.
    pub async fn fetch_leases(&self) -> Result<Vec<Lease>, BrokerError> {
        let jobs = self.job_ids();
        self.broker().job_leases(self.account(), &jobs).await
    }

    /// Learns from a provider's report how fast its inputs came over each link.
    fn record_link_samples(&self, provider: AccountKey, moved: &[PeerTraffic]) {
        for PeerTraffic { from, link, .. } in moved {
            if let Some(sample) = link {
                self.tensors.links().record_sample(*from, provider, *sample);
            }
        }
    }

    /// Returns the estimates of links that a plan uses.
    fn link_estimates(&self) -> LinkEstimates {
        LinkEstimates::new(self.account(), self.tensors.links().list_links(), unix_ms())
    }

    fn job_ids(&self) -> Vec<JobId> {
        self.lock_jobs().list()
    }

    /// Remembers an id; the caller must do so before the job buys leases under it.
    fn remember_job(&self, job: JobId) {
        self.lock_jobs().push(job);
    }

    fn lock_jobs(&self) -> MutexGuard<'_, LastJobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the id of the model, the shapes of its inputs and the inputs. A job of many requests
/// passes no inputs, because each request has its own id.
fn hash_subject(graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> Result<ContentId, CutError> {
    let mut words = cut::whole_graph(graph)?.id.as_bytes().to_vec();
    for (name, tensor) in inputs {
        words.extend_from_slice(name.as_bytes());
        words.extend_from_slice(tensor.id().as_bytes());
    }
    Ok(ContentId::for_content(&words))
}

/// Returns the id of a request: the hash of its inputs and their names.
#[must_use]
pub fn request_of(inputs: &BTreeMap<String, Tensor>) -> ContentId {
    let ids = inputs
        .iter()
        .map(|(name, tensor)| (name.clone(), tensor.id()));
    request_id(&ids.collect::<Vec<_>>())
}

/// Returns the reason for a model that no longer forms a graph, although it was planned or begun.
fn no_graph(error: &dyn std::fmt::Display) -> Reason {
    let (kind, text) = (NoPlanKind::Rest, error.to_string());
    Reason::NoPlan(NoPlan { kind, text })
}

/// Converts the outcome of a job into the caller's result.
fn to_job_result((outcome, done): (Outcome, JobResult)) -> Result<JobResult, Box<UnfinishedJob>> {
    let Outcome {
        how,
        before,
        spending,
        leases_ended,
    } = outcome;
    match how {
        End::Done => Ok(JobResult { spending, ..done }),
        how => Err(Box::new(UnfinishedJob {
            how,
            before,
            spending,
            leases_ended,
            done,
        })),
    }
}
