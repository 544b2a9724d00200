//! Sells this machine's CPU in the market of a folder until you press Ctrl-C.
//!
//! ```text
//! cargo run --release -p souk-node --example sell -- /tmp/market
//! ```
//!
//! Run the example `found_market` on the folder first, or `souk market join`.

use std::error::Error;
use std::future::pending;
use std::path::PathBuf;
use std::time::Duration;

use futures::FutureExt;
use souk_folder::config::{DeviceChoice, FORMAT, Isolation, KEY_FILE, ProviderFile};
use souk_folder::key::NodeKey;
use souk_folder::market_file::MarketFile;
use souk_network::Options;
use souk_node::provider::{Config, Provider};

/// The lowest price in micro-credits per device-second: 0.04 credits.
const PRICE: u64 = 40_000;

/// How long running leases may continue after Ctrl-C.
const DRAIN_TIME: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).ok_or("usage: sell FOLDER")?;
    let home = PathBuf::from(folder).join("provider");
    std::fs::create_dir_all(&home)?;
    let config = Config {
        own_engine: None,
        key: NodeKey::load_or_create(&home.join(KEY_FILE))?,
        market: MarketFile::read_nearest(&home)?,
        provider: ProviderFile {
            format: FORMAT,
            name: "example".to_owned(),
            listen: "/ip4/127.0.0.1/tcp/0".parse()?,
            device: DeviceChoice::Cpu { threads: 0 },
            region: Default::default(),
            onnxruntime: None,
            price: PRICE,
            limits: Default::default(),
            pricing: Default::default(),
            prefer: Default::default(),
            traffic: Default::default(),
            // An isolated provider runs each lease in a process of the `souk` program. Without
            // it, sell only to buyers whom you trust.
            isolation: Isolation::None,
            fault: None,
            fault_after: 0,
        },
        network: Options::default(),
        program: std::env::current_exe()?,
        home,
    };
    let provider = Provider::start(config).await?;
    println!(
        "{} is for sale",
        provider.advertised_resources().model.as_str()
    );
    // If no signal can be heard, the system ends the process. A second one does not hurry leases.
    let stop = tokio::signal::ctrl_c().map(|_| pending());
    Ok(provider.run(stop, DRAIN_TIME).await?)
}
