//! Measures how many leases per second a market of real validators carries, from the bid to the
//! settled receipt.
//!
//! The test starts a market of validator processes without providers. Pairs of a buyer and a
//! provider trade in it: the buyer bids and starts the work, the provider says that it is ready,
//! both sign a receipt, and the provider settles it. Each of these four commands is a signed batch
//! of its own, as in a job. Nothing is computed, so the figure is that of the market alone.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use souk_folder::market_file::MarketFile;
use souk_node::client::trader::Trader;
use souk_node::market::{
    Acceptance, AccountKey, Class, Command, ContentId, DeviceMicros, Dtype, LeaseId, Name, Receipt,
    ReceiptBody, Trade,
};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::submissions::TimePercentiles;
use crate::traders::{
    IDLE, TradersError, connect_operator, fund_trader, make_ask, make_bid, spawn_validators,
};

/// The work of each receipt, which the lowest price bills with a micro-credit.
const USAGE: DeviceMicros = DeviceMicros(1_000_000);

/// Configuration of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct LeaseConfig {
    /// Number of validators.
    pub validators: u32,
    /// Pairs of a buyer and a provider, each with an account and a connection of its own.
    pub pairs: u32,
    /// Leases that each pair has open at once.
    pub streams: u32,
    /// How long to measure.
    pub length: Duration,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct LeaseReport {
    /// Number of validators.
    pub validators: u32,
    /// Leases settled in the measured time.
    pub leases: usize,
    /// Length of the measured time, in seconds.
    pub seconds: f64,
    /// Leases per second.
    pub leases_per_second: f64,
    /// Time from the bid to the settled receipt.
    pub lease: TimePercentiles,
}

/// A lease that was settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SettledLease {
    /// The number of the lease.
    pub lease: LeaseId,
    /// When its bid was sent.
    pub begun_at: Instant,
    /// When the answer came that its receipt is settled.
    pub settled_at: Instant,
}

/// A buyer, and the providers of all pairs: a bid can meet the ask of any of them.
struct Customer {
    buyer: Trader,
    providers: Arc<BTreeMap<AccountKey, Trader>>,
    class: Class,
}

/// Starts a market in `folder`, trades in it, and stops it.
///
/// # Errors
/// If the market does not start, or refuses a command.
pub async fn run(
    binary: &Path,
    folder: &Path,
    config: LeaseConfig,
) -> Result<LeaseReport, TradersError> {
    let mut cluster = spawn_validators(binary, folder, config.validators)?;
    let measured = async {
        cluster.wait_ready().await?;
        measure_leases(folder, config).await
    };
    let measured = measured.await;
    cluster.stop_all().await;
    measured
}

async fn measure_leases(folder: &Path, config: LeaseConfig) -> Result<LeaseReport, TradersError> {
    let (market, operator) = connect_operator(folder).await?;
    let (settled, seconds) = trade_leases(&market, &operator, config).await?;
    let times = settled.iter().map(|it| it.settled_at - it.begun_at);
    Ok(LeaseReport {
        validators: config.validators,
        leases: settled.len(),
        seconds,
        leases_per_second: settled.len() as f64 / seconds,
        lease: TimePercentiles::from_times(times),
    })
}

/// Opens and settles leases for the configured time. Returns those that were settled, and how many
/// seconds it took.
///
/// # Errors
/// If the market cannot be reached, or refuses a command.
pub(crate) async fn trade_leases(
    market: &MarketFile,
    operator: &Trader,
    config: LeaseConfig,
) -> Result<(Vec<SettledLease>, f64), TradersError> {
    let ask = make_ask();
    let class = ask.resources.class();
    let mut buyers = Vec::new();
    let mut providers = BTreeMap::new();
    for number in 0..config.pairs {
        buyers.push(fund_trader(market, operator, &format!("buyer {number}")).await?);
        let provider = fund_trader(market, operator, &format!("provider {number}")).await?;
        let place = Command::PlaceAsk(Box::new(ask.clone()));
        provider.submit_one(place).await?;
        providers.insert(provider.account(), provider);
    }
    let providers = Arc::new(providers);
    let begin = Instant::now();
    let end = begin + config.length;
    let mut trading = JoinSet::new();
    for buyer in buyers {
        let customer = Arc::new(Customer {
            buyer,
            providers: providers.clone(),
            class,
        });
        for _ in 0..config.streams {
            trading.spawn(trade_until(customer.clone(), end));
        }
    }
    let mut settled = Vec::new();
    while let Some(ended) = trading.join_next().await {
        settled.extend(ended.expect("a trader does not panic")?);
    }
    Ok((settled, begin.elapsed().as_secs_f64()))
}

/// Opens and settles one lease after another.
async fn trade_until(
    customer: Arc<Customer>,
    end: Instant,
) -> Result<Vec<SettledLease>, TradersError> {
    let mut settled = Vec::new();
    while Instant::now() < end {
        let begun_at = Instant::now();
        let lease = customer.settle_lease().await?;
        settled.push(SettledLease {
            lease,
            begun_at,
            settled_at: Instant::now(),
        });
    }
    Ok(settled)
}

impl Customer {
    /// Opens a lease and settles it; returns its number.
    async fn settle_lease(&self) -> Result<LeaseId, TradersError> {
        let bid = Command::PlaceBid(Box::new(make_bid(self.class)));
        let trade = match self.buyer.submit_one(bid).await? {
            Acceptance::Placed { trades, .. } => trades.into_iter().next(),
            _ => None,
        };
        let trade = trade.ok_or(TradersError::Unfilled)?;
        let lease = trade.lease;
        let provider = &self.providers[&trade.provider];
        self.buyer.submit_one(Command::StartWork { lease }).await?;
        let ready = Command::StateReady { lease };
        provider.submit_one(ready).await?;
        let receipt = Receipt::new(self.receipt_body(&trade))
            .sign_as_provider(provider.key().signing_key())
            .sign_as_buyer(self.buyer.key().signing_key());
        let settle = Command::Settle(Box::new(receipt));
        provider.submit_one(settle).await?;
        Ok(lease)
    }

    fn receipt_body(&self, trade: &Trade) -> ReceiptBody {
        ReceiptBody {
            market: self.buyer.market(),
            lease: trade.lease,
            job: trade.job,
            buyer: trade.buyer,
            provider: trade.provider,
            graph: ContentId([1; 32]),
            inputs: vec![ContentId([2; 32])],
            outputs: vec![ContentId([3; 32])],
            class: self.class,
            model: Name::default(),
            emulated: self.class.emulated,
            dtype: Dtype::F32,
            declared_mega_ops: 0,
            delivered_mega_ops: 0,
            usage: USAGE,
            metered: None,
            idle: DeviceMicros(0),
            idle_part: IDLE,
            price: trade.price,
            amount: ReceiptBody::amount_due(trade.price, USAGE).expect("the price is low"),
            bytes_in: 0,
            bytes_out: 0,
            started: trade.start,
            finished: trade.start,
        }
    }
}
