//! Provides the markets without providers that benchmarks of traders start, with the operator and
//! the accounts that trade in them.

use std::path::Path;

use souk_folder::config::{ConfigError, KEY_FILE, OPERATOR_FOLDER};
use souk_folder::key::{KeyError, NodeKey};
use souk_folder::market_file::{MARKET_FILE, MarketFile};
use souk_network::Network;
use souk_node::client::broker::{Broker, BrokerError};
use souk_node::client::trader::{TradeError, Trader};
use souk_node::market::{
    Ask, Bid, BuyerFilter, Class, Credits, DeviceId, JobId, Limit, Millis, Name, Permille, Price,
    Resources, Term, TimeInForce, Units, Wants,
};
use souk_testnet::cluster::Cluster;
use souk_testnet::layout::{self, LayoutError};
use souk_testnet::process::StartError;

/// Initial credits of each account.
const PURSE: Credits = Credits(1_000_000_000_000);

/// The part of the price that held and unused time costs: the market takes no ask with less.
pub const IDLE: Permille = Permille(100);

/// Price of a device-second, in micro-credits.
const PRICE: Price = Price(1);

/// Why a measurement with traders failed.
#[derive(Debug, thiserror::Error)]
pub enum TradersError {
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
    /// The client is not in the market.
    #[error(transparent)]
    Network(#[from] souk_network::StartError),
    /// The market could not be reached.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The market refused a command.
    #[error(transparent)]
    Trade(Box<TradeError>),
    /// A bid opened no lease.
    #[error("no ask matched a bid")]
    Unfilled,
}

impl From<TradeError> for TradersError {
    fn from(error: TradeError) -> Self {
        Self::Trade(Box::new(error))
    }
}

/// Starts the processes of a market's validators in `folder`.
///
/// # Errors
/// If the folder cannot be laid out, or a process cannot be started.
pub fn spawn_validators(
    binary: &Path,
    folder: &Path,
    validators: u32,
) -> Result<Cluster, TradersError> {
    let config = layout::Config {
        validators,
        providers: Vec::new(),
        ..layout::Config::default()
    };
    let _ports = layout::create_testnet(folder, &config)?;
    Ok(Cluster::spawn(binary, folder)?)
}

/// Returns the market of a folder and a trader for its operator.
///
/// # Errors
/// If the files cannot be read, or the market cannot be reached.
pub async fn connect_operator(folder: &Path) -> Result<(MarketFile, Trader), TradersError> {
    let market = MarketFile::read(&folder.join(MARKET_FILE))?;
    let operator = NodeKey::load(&folder.join(OPERATOR_FOLDER).join(KEY_FILE))?;
    let operator = connect_trader(&market, operator).await?;
    Ok((market, operator))
}

async fn connect_trader(market: &MarketFile, key: NodeKey) -> Result<Trader, TradersError> {
    let network = Network::start(&key, souk_network::NetworkConfig::default()).await?;
    let broker = Broker::new(network, &market.contacts()?).await?;
    let trader = Trader::new(key, market.genesis.market_id(), broker);
    trader
        .register_account(Name::try_from("reader").expect("it is short"))
        .await?;
    Ok(trader)
}

/// Opens an account with a connection of its own and initial credits.
///
/// # Errors
/// If the market cannot be reached or refuses.
pub async fn fund_trader(
    market: &MarketFile,
    operator: &Trader,
    name: &str,
) -> Result<Trader, TradersError> {
    tracing::debug!(name, "a trader joins the market");
    let trader = connect_trader(market, NodeKey::generate()).await?;
    operator.endow_account(trader.account(), PURSE).await?;
    Ok(trader)
}

/// Returns an ask of a billion devices at the lowest price.
#[must_use]
pub fn make_ask() -> Ask {
    let units = Units(1 << 30);
    Ask {
        device: DeviceId(1),
        capacity: units,
        resources: Resources::default(),
        limit: Limit::Price(PRICE),
        quantity: units,
        duration_min: Millis(1),
        duration_max: Millis(3_600_000),
        notice: Millis(0),
        spot: Vec::new(),
        idle: IDLE,
        accepts: BuyerFilter::default(),
        tif: TimeInForce::Gtc,
    }
}

/// Returns a bid for one of them, for an hour; it does not wait in the book.
#[must_use]
pub fn make_bid(class: Class) -> Bid {
    Bid {
        class,
        wants: Wants::default(),
        limit: Limit::Price(PRICE),
        budget: Credits(1_000_000),
        quantity: Units(1),
        all_or_none: false,
        duration: Millis(3_600_000),
        start_delay_max: Millis(0),
        term: Term::Firm,
        tif: TimeInForce::Ioc,
        job: JobId([1; 32]),
    }
}
