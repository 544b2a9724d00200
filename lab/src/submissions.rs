//! Measures how long a small job takes from its submission to its output, and how many jobs per
//! second a market can run.
//!
//! The test starts a market of real processes. Buyers submit the bundled job one after another, and
//! each buyer times the steps. The first job of each buyer does not count, because it sends the
//! weights and opens the connections.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::Serialize;
use souk_folder::config::{ConfigError, DeviceChoice, Isolation, KEY_FILE, OPERATOR_FOLDER};
use souk_folder::key::{KeyError, NodeKey};
use souk_folder::market_file::{MARKET_FILE, MarketFile};
use souk_network::Network;
use souk_node::buyer::job::{Job, Limits};
use souk_node::buyer::{Buyer, JobEvent, JoinError};
use souk_node::client::broker::{Broker, BrokerError};
use souk_node::client::trader::{TradeError, Trader};
use souk_node::market::{AccountKey, Credits, Name};
use souk_node::memory::npy::{self, NpyError};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use souk_testnet::cluster::Cluster;
use souk_testnet::layout::{self, LayoutError, ProviderChoice};
use souk_testnet::models::digits;
use souk_testnet::process::StartError;

/// A job must get a device within this time, otherwise it counts as lost.
const WAIT: Duration = Duration::from_secs(60);

/// Initial credits of each buyer, which must be more than all its jobs cost.
const PURSE: Credits = Credits(1_000_000_000);

/// Price of a device-second in micro-credits.
const PRICE: u64 = 100_000;

/// Maximum queued progress events of one job.
const PROGRESS_MAX: usize = 64;

/// The device of every provider.
const DEVICE: &str = "nvidia-h100-sxm";

/// The providers' asks must enter the book within this time, and longer if there are many
/// providers.
const FILLING: Duration = Duration::from_secs(60);

/// The additional time for each provider.
const FILLING_EACH: Duration = Duration::from_secs(1);

/// Interval of the checks in that time.
const FILLING_PERIOD: Duration = Duration::from_millis(50);

/// Steps of a job as its buyer sees them, in order: planning over the book; from order to lease;
/// sending graph and inputs; preparing; running; returning the output; settling the receipt.
pub const STEPS: [&str; 7] = [
    "plan", "lease", "send", "prepare", "run", "return", "settle",
];

/// Configuration of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct SubmissionConfig {
    /// Number of validators.
    pub validators: u32,
    /// Number of providers, each with one emulated device.
    pub providers: u32,
    /// Number of buyers, each with an account and a connection of its own. There must be at least
    /// one.
    pub buyers: u32,
    /// Total jobs of all buyers.
    pub jobs: u32,
    /// Where the providers run jobs.
    pub isolation: Isolation,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct SubmissionReport {
    /// Jobs submitted.
    pub jobs: u32,
    /// Jobs with an output.
    pub finished: usize,
    /// Number of other jobs by the reason of their failure.
    pub lost: BTreeMap<String, usize>,
    /// Failed providers that jobs replaced.
    pub retries: u32,
    /// Seconds from the first submission to the last settlement.
    pub seconds: f64,
    /// Jobs finished per second.
    pub jobs_per_second: f64,
    /// Time from submission to the first output.
    pub to_output: TimePercentiles,
    /// Time from submission to the settlement.
    pub to_settlement: TimePercentiles,
    /// Time of each step, by its name.
    pub steps: BTreeMap<&'static str, TimePercentiles>,
}

/// The distribution of times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TimePercentiles {
    /// Half of the times are below this.
    pub p50_ms: f64,
    /// The 90th percentile.
    pub p90_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The longest time.
    pub max_ms: f64,
}

/// Why the measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum SubmissionsError {
    /// The folder could not be laid out.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The market file could not be read.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A key could not be read.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A node did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The operator is not in the market.
    #[error(transparent)]
    Network(#[from] souk_network::StartError),
    /// The market could not be reached.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// A buyer did not join.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// A buyer got no credits.
    #[error(transparent)]
    Trade(#[from] TradeError),
    /// The bundled images are damaged.
    #[error("the bundled images: {0}")]
    Images(#[from] NpyError),
    /// Some asks of the providers did not arrive.
    #[error(
        "{found} of {wanted} asks were in the book after {} s",
        filling_time(*wanted).as_secs()
    )]
    Book {
        /// Number of asks in the book.
        found: usize,
        /// Number of expected asks.
        wanted: u32,
    },
}

/// The times of one job's steps, and its failed providers.
#[derive(Clone, Debug, Default)]
struct JobTimes {
    steps: [Duration; STEPS.len()],
    retries: u32,
}

impl JobTimes {
    fn total(&self, steps: usize) -> Duration {
        self.steps[..steps].iter().sum()
    }
}

/// Starts a market in `folder`, runs the jobs, and stops the market.
///
/// # Errors
/// If the market does not start. Lost jobs are in the report.
pub async fn run(
    binary: &Path,
    folder: &Path,
    shape: SubmissionConfig,
) -> Result<SubmissionReport, SubmissionsError> {
    let provider = ProviderChoice {
        device: DeviceChoice::new_emulated(DEVICE),
        price: PRICE,
        fault: None,
    };
    let config = layout::Config {
        validators: shape.validators,
        providers: vec![provider; shape.providers as usize],
        isolation: shape.isolation,
        ..layout::Config::default()
    };
    let _ports = layout::create_testnet(folder, &config)?;
    let mut cluster = Cluster::spawn(binary, folder)?;
    let measured = async {
        cluster.wait_ready().await?;
        measure_submissions(folder, shape).await
    };
    let measured = measured.await;
    cluster.stop_all().await;
    measured
}

async fn measure_submissions(
    folder: &Path,
    shape: SubmissionConfig,
) -> Result<SubmissionReport, SubmissionsError> {
    let market = MarketFile::read(&folder.join(MARKET_FILE))?;
    let buyers = create_buyers(folder, &market, shape.buyers).await?;
    await_book(&buyers[0], shape.providers).await?;
    let job = Job {
        model: digits::MODEL,
        folder: None,
        inputs: [("images".to_owned(), npy::read(&digits::IMAGES)?)].into(),
        limits: Limits {
            providers_max: 1,
            wait: WAIT,
            ..Limits::default()
        },
    };
    for buyer in &buyers {
        // A failure here will show in the measured jobs as well.
        let _ = run_job(buyer, &job).await;
    }
    let left = Arc::new(AtomicU32::new(shape.jobs));
    let begin = Instant::now();
    let mut streams = JoinSet::new();
    for buyer in buyers {
        streams.spawn(run_stream(buyer, job.clone(), left.clone()));
    }
    let results: Vec<_> = streams.join_all().await.into_iter().flatten().collect();
    Ok(SubmissionReport::new(shape.jobs, begin.elapsed(), results))
}

/// Creates buyers with accounts and credits of their own.
async fn create_buyers(
    folder: &Path,
    market: &MarketFile,
    count: u32,
) -> Result<Vec<Buyer>, SubmissionsError> {
    let operator = NodeKey::load(&folder.join(OPERATOR_FOLDER).join(KEY_FILE))?;
    let network = Network::start(&operator, souk_network::NetworkConfig::default()).await?;
    let broker = Broker::new(network, &market.contacts()?).await?;
    let operator = Trader::new(operator, market.genesis.market_id(), broker);
    operator
        .register_account(Name::try_from("operator").expect("it is short"))
        .await?;
    let mut buyers = Vec::new();
    for number in 0..count {
        let key = NodeKey::generate();
        let account = AccountKey(key.public_key());
        let buyer = Buyer::join(key.clone(), market).await?;
        let trader = Trader::new(key, market.genesis.market_id(), buyer.broker().clone());
        let name = Name::try_from(format!("buyer {number}").as_str());
        trader.register_account(name.expect("it is short")).await?;
        operator.endow_account(account, PURSE).await?;
        buyers.push(buyer);
    }
    Ok(buyers)
}

/// Returns the longest wait for the asks of so many providers.
fn filling_time(providers: u32) -> Duration {
    FILLING + FILLING_EACH * providers
}

async fn await_book(buyer: &Buyer, wanted: u32) -> Result<(), SubmissionsError> {
    let begin = Instant::now();
    loop {
        let found = buyer.broker().fetch_book().await?.len();
        if found >= wanted as usize {
            return Ok(());
        }
        if begin.elapsed() > filling_time(wanted) {
            return Err(SubmissionsError::Book { found, wanted });
        }
        tokio::time::sleep(FILLING_PERIOD).await;
    }
}

/// Runs one buyer's jobs one after another while any are left.
async fn run_stream(buyer: Buyer, job: Job, left: Arc<AtomicU32>) -> Vec<Result<JobTimes, String>> {
    let mut results = Vec::new();
    let take = |left: u32| left.checked_sub(1);
    while left
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
        .is_ok()
    {
        results.push(run_job(&buyer, &job).await);
    }
    results
}

/// Runs one job and returns its times, or the reason of its failure.
async fn run_job(buyer: &Buyer, job: &Job) -> Result<JobTimes, String> {
    let begin = Instant::now();
    let quote = buyer
        .quote_job(job)
        .await
        .map_err(|error| error.to_string())?;
    let mut timed = JobTimes::default();
    timed.steps[0] = begin.elapsed();
    let (progress, mut told) = mpsc::channel(PROGRESS_MAX);
    let watching = async {
        let (mut last, mut at) = (Instant::now(), 1);
        while let Some(event) = told.recv().await {
            let step = match event {
                JobEvent::Leased { .. } => 1,
                JobEvent::Fetched { .. } => 2,
                JobEvent::Ready { .. } => 3,
                JobEvent::Finished { .. } => 4,
                JobEvent::Returned => 5,
                JobEvent::Retrying { .. } => {
                    timed.retries += 1;
                    continue;
                }
                JobEvent::Running { .. }
                | JobEvent::Signed { .. }
                | JobEvent::Refused { .. }
                | JobEvent::NotCommanded { .. } => continue,
            };
            // A retry repeats the steps, so their times add up.
            timed.steps[step] += last.elapsed();
            (last, at) = (Instant::now(), step + 1);
        }
        if let Some(step) = timed.steps.get_mut(at) {
            *step += last.elapsed();
        }
        timed
    };
    let (ended, timed) = tokio::join!(buyer.run(job, quote, progress), watching);
    match ended {
        Ok(_) => Ok(timed),
        Err(ended) => Err(ended.to_string()),
    }
}

impl SubmissionReport {
    fn new(
        jobs: u32,
        elapsed: Duration,
        results: Vec<Result<JobTimes, String>>,
    ) -> SubmissionReport {
        let mut lost = BTreeMap::new();
        let mut done = Vec::new();
        for result in results {
            match result {
                Ok(timed) => done.push(timed),
                Err(reason) => *lost.entry(reason).or_default() += 1,
            }
        }
        let over =
            |steps: usize| TimePercentiles::from_times(done.iter().map(|timed| timed.total(steps)));
        let step = |(place, name): (usize, &&'static str)| {
            let times = done.iter().map(|timed| timed.steps[place]);
            (*name, TimePercentiles::from_times(times))
        };
        SubmissionReport {
            jobs,
            finished: done.len(),
            lost,
            retries: done.iter().map(|timed| timed.retries).sum(),
            seconds: elapsed.as_secs_f64(),
            jobs_per_second: done.len() as f64 / elapsed.as_secs_f64(),
            to_output: over(STEPS.len() - 1),
            to_settlement: over(STEPS.len()),
            steps: STEPS.iter().enumerate().map(step).collect(),
        }
    }
}

impl TimePercentiles {
    pub(crate) fn from_times(times: impl IntoIterator<Item = Duration>) -> TimePercentiles {
        let mut times: Vec<Duration> = times.into_iter().collect();
        times.sort_unstable();
        let at = |share: f64| {
            let place = (times.len() as f64 * share).ceil() as usize;
            let time = times.get(place.saturating_sub(1)).copied();
            time.unwrap_or_default().as_secs_f64() * 1e3
        };
        TimePercentiles {
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            max_ms: at(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_read_off_the_sorted_times() {
        let spread = TimePercentiles::from_times((1..=100).rev().map(Duration::from_millis));
        assert_eq!((spread.p50_ms, spread.p90_ms), (50.0, 90.0));
        assert_eq!((spread.p99_ms, spread.max_ms), (99.0, 100.0));
        assert_eq!(
            TimePercentiles::from_times([].into_iter()),
            TimePercentiles::default()
        );
    }

    #[test]
    fn steps_add_up_to_the_whole_and_lost_jobs_are_counted() {
        let timed = JobTimes {
            steps: [Duration::from_millis(2); STEPS.len()],
            retries: 0,
        };
        let lost = || Err("nobody sells".to_owned());
        let results = vec![Ok(timed), lost(), lost()];
        let report = SubmissionReport::new(3, Duration::from_secs(1), results);
        assert_eq!((report.finished, report.lost["nobody sells"]), (1, 2));
        assert_eq!(report.to_output.max_ms, 12.0);
        assert_eq!(report.to_settlement.max_ms, 14.0);
    }
}
