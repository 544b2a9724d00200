//! The buyer: plans a job over the book, buys the leases, has the parts run, checks and settles.
//!
//! One file a step: [`quote`] says what would run where at what price and moves no money;
//! `purchase` turns the quote into leases; `dispatch` has the parts run; `settle` checks what came
//! back, signs and pays. [`Buyer::run`] is the four in a row, again without a provider that failed.

mod dispatch;
mod purchase;
pub mod quote;
mod settle;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use souk_market::{AccountKey, JobId, Receipt, Refusal};
use souk_memory::{Store, StoreError, Tensor};
use souk_scheduler::report::Report;
use souk_scheduler::timeline::Timeline;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::broker::{Broker, BrokerError};
use crate::config::{ConfigError, MarketFile};
use crate::job::Job;
use crate::key::NodeKey;
use crate::lease_protocol::{Failure, Moved};
use crate::network::{self, Network, OpenError};
use crate::tensors::{FetchError, Tensors};
use crate::trader::{TradeError, Trader};

pub use dispatch::SessionError;
pub use quote::{Quote, QuoteError};
pub use settle::Objection;

/// Content a buyer keeps in memory: models, inputs and outputs of its jobs.
const STORE_BYTES_MAX: u64 = 8 << 30;

/// The largest single output fetched.
const CONTENT_BYTES_MAX: u64 = 2 << 30;

/// How often the book is looked at again while a job waits for devices.
const BOOK_PERIOD: Duration = Duration::from_millis(50);

/// Times a job is tried, each time without the providers that failed before.
const ATTEMPTS_MAX: usize = 3;

/// A buyer's place in the market.
pub struct Buyer {
    trader: Trader,
    network: Network,
    tensors: Tensors,
}

/// Why a buyer has no place in the market.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The market's file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The network did not start.
    #[error(transparent)]
    Network(#[from] network::StartError),
    /// The market was not reached.
    #[error(transparent)]
    Broker(#[from] BrokerError),
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
    /// A provider failed; the job is tried again without it.
    Retrying {
        /// Who.
        provider: AccountKey,
        /// Why.
        why: String,
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

/// Why a job was not run.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The market was not reached.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// Buying, ending or settling failed.
    #[error(transparent)]
    Trade(#[from] TradeError),
    /// The budget does not hold the leases' escrow.
    #[error("leases for this job hold {needed:.6} credits in escrow, the budget is {budget:.6}")]
    Escrow {
        /// What the shortest leases hold, in credits.
        needed: f64,
        /// The budget in credits.
        budget: f64,
    },
    /// The book moved and nothing fits any more.
    #[error("the leases could not be bought: {0}")]
    Unsold(Refusal),
    /// A second quote, after the book moved or a provider failed.
    #[error(transparent)]
    Quote(#[from] QuoteError),
    /// A provider cannot be found.
    #[error("no validator knows where provider {0} is")]
    Lost(AccountKey),
    /// A provider cannot be talked to.
    #[error("provider {provider}: {cause}")]
    Session {
        /// Who.
        provider: AccountKey,
        /// What happened.
        cause: Box<SessionError>,
    },
    /// A provider says that it failed.
    #[error("provider {provider} failed: {failure}")]
    Provider {
        /// Who.
        provider: AccountKey,
        /// What it says.
        failure: Failure,
    },
    /// An output did not arrive.
    #[error("an output did not arrive: {0}")]
    Output(#[from] FetchError),
    /// A receipt is not what was bought.
    #[error("provider {provider}'s receipt is not signed: {objection}")]
    Receipt {
        /// Who.
        provider: AccountKey,
        /// What is wrong with it.
        objection: Objection,
    },
    /// This node's store is full.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// This node's network failed.
    #[error(transparent)]
    Network(#[from] OpenError),
}

impl JobError {
    /// The provider to do without, where another may do better.
    pub fn culprit(&self) -> Option<AccountKey> {
        match self {
            JobError::Lost(provider)
            | JobError::Session { provider, .. }
            | JobError::Provider { provider, .. }
            | JobError::Receipt { provider, .. } => Some(*provider),
            _ => None,
        }
    }
}

impl Buyer {
    /// Joins the market as the account of `key`.
    pub async fn join(key: NodeKey, market: &MarketFile) -> Result<Buyer, JoinError> {
        // Providers fetch from the buyer over the connections it opens; it need not be reachable.
        let network = Network::start(&key, network::Config { listen: None }).await?;
        let broker = Broker::new(network.clone(), &market.contacts()?).await?;
        let trader = Trader::new(key, market.genesis.market_id(), broker);
        let store = Arc::new(Store::in_memory(STORE_BYTES_MAX));
        let tensors = Tensors::start(network.clone(), store, CONTENT_BYTES_MAX);
        Ok(Buyer {
            trader,
            network,
            tensors,
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
    /// it is looked at again, as long as the job's limits allow to wait.
    ///
    /// # Errors
    /// Why there is no plan, as the book stood last.
    pub async fn quote(&self, job: &Job) -> Result<Quote, QuoteError> {
        let deadline = Instant::now() + job.limits.wait;
        loop {
            match quote::quote(self, job).await {
                Err(error) if error.passes() && Instant::now() < deadline => {
                    tokio::time::sleep(BOOK_PERIOD).await;
                }
                done => return done,
            }
        }
    }

    /// Runs a quoted job. On an error every lease is ended and its escrow on the way back.
    ///
    /// # Errors
    /// Why the job was not run, the last time it was tried.
    pub async fn run(
        &self,
        job: &Job,
        quote: Quote,
        progress: mpsc::Sender<Progress>,
    ) -> Result<Finished, JobError> {
        let (mut job, mut quote) = (job.clone(), quote);
        let deadline = Instant::now() + job.limits.wait;
        let mut failures = 0;
        loop {
            let error = match self.attempt(&job, &quote, &progress).await {
                // Another buyer was faster.
                Err(JobError::Unsold(_)) if Instant::now() < deadline => None,
                Err(error) => Some(error),
                done => return done,
            };
            if let Some(error) = error {
                failures += 1;
                let Some(provider) = error.culprit().filter(|_| failures < ATTEMPTS_MAX) else {
                    return Err(error);
                };
                job.limits.excluded.push(provider);
                // Progress is for eyes: a reader that went away stops nothing.
                let why = error.to_string();
                let _ = progress.send(Progress::Retrying { provider, why }).await;
            }
            quote = self.quote(&job).await?;
        }
    }

    async fn attempt(
        &self,
        job: &Job,
        quote: &Quote,
        progress: &mpsc::Sender<Progress>,
    ) -> Result<Finished, JobError> {
        let bought = purchase::buy(self, job, quote).await?;
        let leases = bought
            .trades
            .iter()
            .map(|t| (t.provider, t.lease.0, t.escrow.0))
            .collect();
        let _ = progress.send(Progress::Leased { leases }).await;
        let finished = match dispatch::run(self, job, quote, &bought, progress).await {
            Ok(sessions) => settle::settle(self, quote, &bought, sessions).await,
            Err(error) => Err(error),
        };
        if finished.is_err() {
            purchase::end(self, &bought).await;
        }
        finished
    }
}
