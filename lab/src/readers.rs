//! Measures the cost of readers for a market: times commits with and without many readers.
//!
//! The test starts a market of real processes with the requested number of closed leases. One
//! client then commits transfers one after another, in rounds that alternate between no readers and
//! all readers. Each reader asks for a dashboard's contents every two seconds.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use souk_folder::key::NodeKey;
use souk_folder::market_file::MarketFile;
use souk_network::Network;
use souk_node::client::broker::{Broker, BrokerError};
use souk_node::client::trader::Trader;
use souk_node::market::{Acceptance, AccountKey, Command, Credits, LeaseId, Name};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::submissions::TimePercentiles;
use crate::traders::{
    TradersError, connect_operator, fund_trader, make_ask, make_bid, spawn_validators,
};

/// How often each reader asks.
const PERIOD: Duration = Duration::from_secs(2);

/// Readers that share a connection.
const SHARING: u32 = 25;

/// Ticks per second in Linux's process statistics on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// Commands in one batch while filling the market.
const TOGETHER: usize = 64;

/// Configuration of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct ReadingShape {
    /// Number of readers.
    pub readers: u32,
    /// Number of closed leases in the market.
    pub closed_leases: u32,
    /// Number of validators.
    pub validators: u32,
    /// Rounds of each kind.
    pub rounds: u32,
    /// Seconds of a round.
    pub seconds: u64,
}

/// Results of one round.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Round {
    /// Number of readers in the round.
    pub readers: u32,
    /// Number of commits.
    pub commits: usize,
    /// The distribution of their times.
    pub commit: TimePercentiles,
    /// Questions answered.
    pub answers: u64,
    /// Processor time of the busiest validator, as a fraction of a core. It will be zero on a
    /// system without `/proc`.
    pub core: f64,
}

/// Starts a market in `folder`, measures it, and stops it. Returns the rounds in order.
///
/// # Errors
/// If the market does not start, or refuses commands.
pub async fn run(
    binary: &Path,
    folder: &Path,
    shape: ReadingShape,
) -> Result<Vec<Round>, TradersError> {
    let mut cluster = spawn_validators(binary, folder, shape.validators)?;
    let measured = async {
        cluster.wait_ready().await?;
        let pids: Vec<u32> = cluster.running_nodes().filter_map(|(_, pid)| pid).collect();
        measure_rounds(folder, shape, &pids).await
    };
    let measured = measured.await;
    cluster.stop_all().await;
    measured
}

async fn measure_rounds(
    folder: &Path,
    shape: ReadingShape,
    pids: &[u32],
) -> Result<Vec<Round>, TradersError> {
    let (market, operator) = connect_operator(folder).await?;
    let (buyer, provider) = (
        fund_trader(&market, &operator, "buyer").await?,
        fund_trader(&market, &operator, "provider").await?,
    );
    close_leases(&buyer, &provider, shape.closed_leases).await?;
    let mut rounds = Vec::new();
    for _ in 0..shape.rounds {
        for readers in [0, shape.readers] {
            rounds.push(run_round(&market, &buyer, &provider, readers, shape.seconds, pids).await?);
        }
    }
    Ok(rounds)
}

/// Opens leases and makes their provider give them up.
async fn close_leases(buyer: &Trader, provider: &Trader, count: u32) -> Result<(), TradersError> {
    let ask = make_ask();
    let class = ask.resources.class();
    provider
        .submit_one(Command::PlaceAsk(Box::new(ask)))
        .await?;
    let mut closed = 0;
    while closed < count {
        let bids = vec![Command::PlaceBid(Box::new(make_bid(class))); TOGETHER];
        let leases = buyer
            .submit_commands(bids)
            .await?
            .into_iter()
            .filter_map(first_lease);
        let give_up = leases.map(|lease| Command::GiveUp { lease });
        let give_up: Vec<Command> = give_up.collect();
        if give_up.is_empty() {
            return Err(TradersError::Unfilled);
        }
        let done = provider.submit_commands(give_up).await?;
        closed += done.iter().filter(|one| one.is_ok()).count() as u32;
    }
    Ok(())
}

fn first_lease<E>(done: Result<Acceptance, E>) -> Option<LeaseId> {
    match done {
        Ok(Acceptance::Placed { trades, .. }) => trades.first().map(|trade| trade.lease),
        _ => None,
    }
}

async fn run_round(
    market: &MarketFile,
    buyer: &Trader,
    provider: &Trader,
    readers: u32,
    seconds: u64,
    pids: &[u32],
) -> Result<Round, TradersError> {
    let answers = Arc::new(AtomicU64::new(0));
    let mut reading = JoinSet::new();
    for group in 0..readers.div_ceil(SHARING) {
        let network =
            Network::start(&NodeKey::generate(), souk_network::NetworkConfig::default()).await?;
        let broker = Broker::new(network, &market.contacts()?).await?;
        for reader in group * SHARING..readers.min((group + 1) * SHARING) {
            let (broker, answers) = (broker.clone(), answers.clone());
            let accounts = [buyer.account(), provider.account()];
            let account = accounts[reader as usize % accounts.len()];
            let after = PERIOD.mul_f64(f64::from(reader) / f64::from(readers));
            reading.spawn(async move {
                tokio::time::sleep(after).await;
                loop {
                    let next = Instant::now() + PERIOD;
                    if fetch_dashboard(&broker, account).await.is_ok() {
                        answers.fetch_add(1, Ordering::Relaxed);
                    }
                    tokio::time::sleep_until(next).await;
                }
            });
        }
    }
    // By now every reader is connected and has asked once.
    tokio::time::sleep(PERIOD).await;
    let (before, asked) = (processor_times(pids), answers.load(Ordering::Relaxed));
    let begin = Instant::now();
    let times = time_transfers(buyer, provider.account(), Duration::from_secs(seconds)).await?;
    let passed = begin.elapsed().as_secs_f64();
    let spent = processor_times(pids).into_iter().zip(before);
    let spent = spent.map(|(after, before)| (after - before) / passed);
    let answers = answers.load(Ordering::Relaxed) - asked;
    reading.abort_all();
    Ok(Round {
        readers,
        commits: times.len(),
        commit: TimePercentiles::from_times(times),
        answers,
        core: spent.fold(0.0, f64::max),
    })
}

/// Asks for a dashboard's contents.
async fn fetch_dashboard(broker: &Broker, account: AccountKey) -> Result<(), BrokerError> {
    for summary in broker.fetch_classes().await? {
        broker.fetch_quotes(summary.class).await?;
    }
    broker.fetch_totals().await?;
    broker.fetch_account(account).await?;
    broker.fetch_leases(account).await?;
    broker.fetch_orders(account).await?;
    Ok(())
}

async fn time_transfers(
    from: &Trader,
    to: AccountKey,
    length: Duration,
) -> Result<Vec<Duration>, TradersError> {
    let (begin, mut times) = (Instant::now(), Vec::new());
    while begin.elapsed() < length {
        let asked = Instant::now();
        let transfer = Command::Transfer {
            to,
            amount: Credits(1),
            reference: Name::default(),
        };
        from.submit_one(transfer).await?;
        times.push(asked.elapsed());
    }
    Ok(times)
}

/// Returns the processor seconds of each process so far.
fn processor_times(pids: &[u32]) -> Vec<f64> {
    let ticks = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in brackets can contain anything; user and system time are the 12th and 13th
        // fields after it.
        let (_, behind) = stat.rsplit_once(") ")?;
        let mut fields = behind.split(' ').skip(11);
        let mut ticks = || fields.next()?.parse::<f64>().ok();
        Some(ticks()? + ticks()?)
    };
    pids.iter()
        .map(|pid| ticks(pid).unwrap_or(0.0) / TICKS_PER_SECOND)
        .collect()
}
