//! Founds a market in a folder, funds a buyer, and runs the first validator until you press Ctrl-C.
//!
//! ```text
//! cargo run --release -p souk-node --example found_market -- /tmp/market
//! ```
//!
//! The folder has the layout of `souk market create`, so `souk --dir /tmp/market book` and the
//! other commands work in it. The examples `sell` and `buy` use the same folder.

use std::error::Error;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use souk_folder::config::{self, FORMAT, KEY_FILE, OPERATOR_FOLDER, VALIDATOR_FILE, ValidatorFile};
use souk_folder::key::NodeKey;
use souk_folder::market_file::{MARKET_FILE, MarketFile};
use souk_network::{Network, NetworkConfig, Options};
use souk_node::client::broker::Broker;
use souk_node::client::trader::Trader;
use souk_node::market::{AccountKey, Credits, Founder, Genesis, Name};
use souk_node::validator::node::{ValidatorNode, ValidatorNodeConfig, reached_at};

/// The credits of the buyer, in micro-credits: 100 credits.
const BUYER_CREDITS: Credits = Credits(100_000_000);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os()
        .nth(1)
        .ok_or("usage: found_market FOLDER")?;
    let folder = PathBuf::from(folder);
    if !folder.join(MARKET_FILE).exists() {
        found_market(&folder)?;
    }
    let market = MarketFile::read(&folder.join(MARKET_FILE))?;
    let config = ValidatorNodeConfig {
        home: folder.clone(),
        key: NodeKey::load(&folder.join(KEY_FILE))?,
        market: market.clone(),
        validator: config::read(&folder.join(VALIDATOR_FILE))?,
        network: Options::default(),
    };
    let started = ValidatorNode::start(config, |_| {}).await?;
    let validator = tokio::spawn(started.run(async {
        // If no signal can be heard, the system ends the process.
        let _ = tokio::signal::ctrl_c().await;
    }));
    fund_buyer(&folder, &market).await?;
    println!(
        "the market \"{}\" runs in {}",
        market.genesis.chain.as_str(),
        folder.display()
    );
    Ok(validator.await??)
}

/// Writes the keys, the genesis and the first validator of a market on this machine.
fn found_market(folder: &Path) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(folder)?;
    let operator = NodeKey::load_or_create(&folder.join(OPERATOR_FOLDER).join(KEY_FILE))?;
    let validator = NodeKey::load_or_create(&folder.join(KEY_FILE))?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let listen = format!("/ip4/127.0.0.1/tcp/{port}").parse()?;
    let operator = AccountKey(operator.public_key());
    let mut genesis = Genesis::new(Name::try_from("example")?, operator);
    genesis.validators.push(Founder {
        raft_id: 1,
        account: AccountKey(validator.public_key()),
        address: reached_at(&listen, &validator).ok_or("nobody can reach this address")?,
    });
    let file = ValidatorFile {
        format: FORMAT,
        raft_id: Some(1),
        listen,
    };
    config::write(&folder.join(VALIDATOR_FILE), &file)?;
    MarketFile::new(genesis).write(folder)?;
    Ok(())
}

/// Deposits credits in the buyer's account as the operator, once.
async fn fund_buyer(folder: &Path, market: &MarketFile) -> Result<(), Box<dyn Error>> {
    let buyer = NodeKey::load_or_create(&folder.join("buyer").join(KEY_FILE))?;
    let buyer = AccountKey(buyer.public_key());
    let operator = NodeKey::load(&folder.join(OPERATOR_FOLDER).join(KEY_FILE))?;
    let network = Network::start(&operator, NetworkConfig::default()).await?;
    let broker = Broker::new(network, &market.contacts()?).await?;
    if broker.fetch_account(buyer).await?.is_none() {
        let trader = Trader::new(operator, market.genesis.market_id(), broker);
        trader.register_account(Name::try_from("operator")?).await?;
        trader.endow_account(buyer, BUYER_CREDITS).await?;
    }
    Ok(())
}
