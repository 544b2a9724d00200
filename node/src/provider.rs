//! The provider: offers one device in the book and runs what is bought of it.
//!
//! Three things go on at once: the shelf keeps an ask in the book while the device is free,
//! the sessions know which leases run and what they wait for, and each lease's session
//! carries the work from the buyer's word to the receipt.

mod device;
mod receipts;
mod session;
mod sessions;
mod shelf;
mod values;
mod work;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use libp2p::PeerId;
use libp2p::swarm::Stream;
use souk_market::{Name, NameFault, Resources};
use souk_memory::{Store, StoreConfig, StoreConfigError};
use souk_scheduler::run::Runner;
use souk_scheduler::timeline::UnixMicros;

use crate::broker::{Broker, BrokerError};
use crate::config::{ConfigError, MarketFile, ProviderFile};
use crate::key::NodeKey;
use crate::lease_protocol::{Opening, PROTOCOL};
use crate::network::{self, Network};
use crate::tensors::Tensors;
use crate::trader::{TradeError, Trader, unix_us};
use crate::wire;

pub use device::{DeviceError, open as open_device, resources};

/// Streams of the lease protocol served at a time: one a running lease, and offers between.
const STREAMS_MAX: usize = 256;

/// A stream that is not begun within this is closed.
const OPENING_TIMEOUT: Duration = Duration::from_secs(10);

/// Content kept in memory.
const MEMORY_BYTES_MAX: u64 = 2 << 30;

/// Content kept on disk.
const FOLDER_BYTES_MAX: u64 = 16 << 30;

/// The largest single content fetched.
const CONTENT_BYTES_MAX: u64 = 1 << 30;

/// How often validators are told where this node lives; one that restarted has forgotten it.
const ANNOUNCE_PERIOD: Duration = Duration::from_secs(5);

/// What a provider runs with.
pub struct Config {
    /// Its folder.
    pub home: PathBuf,
    /// Its key.
    pub key: NodeKey,
    /// Its market.
    pub market: MarketFile,
    /// Its device and price.
    pub provider: ProviderFile,
}

/// Why a provider stopped or did not start.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The market's file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The network did not start.
    #[error(transparent)]
    Network(#[from] network::StartError),
    /// The market was not reached.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The market refused.
    #[error(transparent)]
    Trade(#[from] TradeError),
    /// The device did not open.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The store did not open.
    #[error(transparent)]
    Store(#[from] StoreConfigError),
    /// A name does not fit the market's limit.
    #[error("the name \"{name}\" cannot be registered: {fault}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong.
        fault: NameFault,
    },
}

/// A running provider: what its parts share.
pub struct Provider {
    home: PathBuf,
    trader: Trader,
    network: Network,
    tensors: Tensors,
    runner: Arc<Runner>,
    resources: Resources,
    price: u64,
    sessions: sessions::Sessions,
}

impl Provider {
    /// Opens the device, joins the market and serves. The ask is placed by [`Provider::run`].
    pub async fn start(config: Config) -> Result<Arc<Provider>, ProviderError> {
        let Config {
            home,
            key,
            market,
            provider,
        } = config;
        let choice = provider.device.clone();
        let opened = tokio::task::spawn_blocking(move || device::open(&choice)).await;
        let device = opened.expect("opening a device does not panic")?;
        let listen = Some(provider.listen.clone());
        let network = Network::start(&key, network::Config { listen }).await?;
        let broker = Broker::new(network.clone(), &market.contacts()?).await?;
        let trader = Trader::new(key, market.genesis.market_id(), broker);
        let store = Arc::new(Store::open(StoreConfig {
            memory_bytes_max: MEMORY_BYTES_MAX,
            folder: Some(home.join("tensors")),
            folder_bytes_max: FOLDER_BYTES_MAX,
        })?);
        let clock = Arc::new(|| UnixMicros(unix_us()));
        let resources = resources(device.profile());
        let runner = Arc::new(Runner::new(&provider.name, device, store.clone(), clock));
        let tensors = Tensors::start(network.clone(), store, CONTENT_BYTES_MAX);
        let name = Name::try_from(provider.name.as_str()).map_err(|fault| ProviderError::Name {
            name: provider.name.clone(),
            fault,
        })?;
        trader.register(name).await?;
        let (price, sessions) = (provider.price, sessions::Sessions::default());
        let parts = Provider {
            home,
            trader,
            network,
            tensors,
            runner,
            resources,
            price,
            sessions,
        };
        let provider = Arc::new(parts);
        provider.serve();
        Ok(provider)
    }

    /// The device it sells, as its asks state it.
    pub fn resources(&self) -> &Resources {
        &self.resources
    }

    /// Keeps the ask in the book until `stop` ends, then withdraws it.
    pub async fn run(self: &Arc<Self>, stop: impl Future<Output = ()>) {
        let announcing = async {
            loop {
                if let Err(error) = self.trader.broker().refresh().await {
                    tracing::debug!(%error, "the validators are not known anew");
                }
                let heard = self.trader.broker().announce().await;
                tracing::debug!(heard, "announced to validators");
                tokio::time::sleep(ANNOUNCE_PERIOD).await;
            }
        };
        let mut shelf = shelf::Shelf::new(self.clone());
        tokio::select! {
            () = announcing => unreachable!("announcing never ends"),
            () = shelf.keep() => unreachable!("the shelf is kept until it is stopped"),
            () = stop => {}
        }
        shelf.withdraw().await;
    }

    fn serve(self: &Arc<Self>) {
        let provider = self.clone();
        self.network
            .serve(PROTOCOL, STREAMS_MAX, move |peer, stream| {
                let provider = provider.clone();
                async move { provider.on_stream(peer, stream).await }
            });
    }

    async fn on_stream(&self, peer: PeerId, mut stream: Stream) {
        match wire::receive_within(&mut stream, OPENING_TIMEOUT).await {
            Ok(Some(Opening::Start(start))) => session::serve(self, peer, *start, stream).await,
            Ok(Some(Opening::Offer(offer))) => {
                let taken = self.sessions.on_offer(peer, offer);
                if let Err(error) = wire::send(&mut stream, &taken).await {
                    tracing::debug!(%peer, %error, "an offer was not answered");
                }
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(%peer, %error, "a stream without an opening"),
        }
    }
}
