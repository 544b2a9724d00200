//! Runs a provider: it offers one device (or a group of devices, or a language model) in the order
//! book, and does the work of the leases that buyers buy.
//!
//! [`souk_roles::provider`] makes the decisions. The shell here is one task that passes events to
//! it and carries out its effects. Separate tasks handle the market, the network and the
//! measurements of the device.

mod announcement_schedule;
mod device_load;
mod disk_room;
mod engine;
mod fault;
mod folder_lock;
mod gauges;
mod journal;
mod measurement_sheet;
mod pace;
mod power;
mod prefetch_predictor;
mod receipts;
mod refusals;
mod room;
mod running_lease;
mod sale_terms;
mod shell;
mod statistics;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use souk_folder::clock::unix_ms;
use souk_folder::config::ProviderFile;
use souk_folder::fact_writer::WriterEnded;
use souk_folder::facts::FactLogError;
use souk_folder::key::NodeKey;
use souk_folder::limits::{LimitRefusal, ProviderLimits};
use souk_folder::market_file::MarketFile;
use souk_market::{Name, NameFault, Receipt, Resources, Units};
use souk_memory::{Store, StoreConfig, StoreConfigError};
use souk_network::content::access::SHOWN_FILE;
use souk_network::content::links::LINKS_FILE;
use souk_network::content::transfers::{Tensors, TransferConfig};
use souk_network::metrics::PageMaker;
use souk_network::profile::{self, Profile};
use souk_network::protocols::lease::{OPENING_BYTES_MAX, PROTOCOL};
use souk_network::protocols::market::Members;
use souk_network::wire::Intake;
use souk_network::{Network, RateLimit};
use souk_roles::provider::{Past, ProviderStatus};
use souk_sandbox::SandboxFault;
use souk_sandbox::device::DeviceError;
use souk_sandbox::device::costs::DeviceCosts;
use souk_sandbox::device::onnxruntime_library::Unusable;
use souk_sandbox::executor::{ExecutorError, meter};
use souk_scheduler::execution::GroupError;
use tokio::sync::{broadcast, mpsc, watch};

use crate::client::reach::{ReachError, connect_market};
use crate::client::trader::{TradeError, Trader};
use crate::endpoint::EndpointError;
use crate::endpoint::own_engine::OwnEngine;
use crate::endpoint::pieces::{self, PieceStreams};
use announcement_schedule::{AnnouncementOutcome, AnnouncementSchedule};
use engine::{Engine, OpenedEngine};
use fault::FaultInjector;
use journal::Sums;
use pace::Pace;
use prefetch_predictor::ContentPrefetcher;
use refusals::Refusals;
use shell::{Incoming, Shell, Signal};

pub use device_load::{LiveDevice, LiveFigures};
pub use folder_lock::is_running;
pub use journal::{Closing, EarlierLeases, Entry, History, JOURNAL_FORMAT};
pub use measurement_sheet::{
    SheetError, SignedSheet, read_or_measure as sheet_of, read_stored as sheet_kept,
};
pub use power::HoldError;
pub use sale_terms::{Conditions, minute_now};
pub use statistics::Statistics;

/// Streams of the lease protocol served at a time: one for each running lease, and offers between.
const STREAMS_MAX: usize = 256;

/// Offers that a peer can make in a burst, and per second after that. A language model needs
/// several for each token of a sequence. Another limit bounds the rate of new streams; this one
/// bounds the offers on open ones.
const OFFERS_AT_ONCE: u32 = 4_096;
const OFFERS_PER_SECOND: u32 = 8_192;

/// The most receipts that can wait for each subscriber.
const SETTLED_MAX: usize = 64;

/// A peer must send the first message of a stream within this time, or the provider closes it.
const OPENING_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of content kept on disk.
const FOLDER_BYTES_MAX: u64 = 16 << 30;

/// How often the provider checks whether to announce its address to the validators.
const ANNOUNCE_PERIOD: Duration = Duration::from_secs(5);

/// How often the provider reads the facts of this machine that change the terms of its next ask.
const TERMS_PERIOD: Duration = Duration::from_secs(2);

/// The provider publishes its profile once in this many announcements: every ten minutes, a third
/// of the profile's life. `souk testnet gossip` measures the cost for the nodes of a market of
/// 1,000 providers.
const PROFILE_ROUNDS: u32 = 120;

/// The first rounds publish it each time, because the first messages reach no peer yet.
const PROFILE_ROUNDS_FIRST: u32 = 3;

fn profile_is_due(round: u32) -> bool {
    round < PROFILE_ROUNDS_FIRST || round.is_multiple_of(PROFILE_ROUNDS)
}

/// The configuration of a provider.
pub struct Config {
    /// The provider's folder.
    pub home: PathBuf,
    /// The provider's key.
    pub key: NodeKey,
    /// The market that it joins.
    pub market: MarketFile,
    /// Its device, price and limits.
    pub provider: ProviderFile,
    /// Optional features of its network.
    pub network: souk_network::Options,
    /// The path of this program, which the sandbox starts again for each job (see
    /// [`souk_sandbox`]).
    pub program: PathBuf,
    /// The decoder of the model on sale, if souk's own one runs it.
    pub own_engine: Option<Arc<dyn OwnEngine>>,
}

/// Why a provider did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The market could not be reached.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// The market refused a request.
    #[error(transparent)]
    Trade(Box<TradeError>),
    /// The device could not be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The engine behind the endpoint cannot be sold.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The library that drives the device is not usable.
    #[error(transparent)]
    Library(#[from] Unusable),
    /// The sandbox could not open the device.
    #[error(transparent)]
    Sandbox(#[from] SandboxFault),
    /// Its devices cannot form a group.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] StoreConfigError),
    /// The provider's own limits forbid the sale of its device.
    #[error(transparent)]
    Limit(#[from] LimitRefusal),
    /// A power limit could not be set.
    #[error(transparent)]
    Power(#[from] HoldError),
    /// The journal could not be opened.
    #[error(transparent)]
    Journal(#[from] FactLogError),
    /// The journal's writer has ended, so the provider cannot record its obligations.
    #[error(transparent)]
    Writer(#[from] WriterEnded),
    /// Another process already sells this device.
    #[error("a provider is already running in {}", home.display())]
    Running {
        /// The folder that both use.
        home: PathBuf,
    },
    /// The address for direct channels is not available.
    #[error(
        "cannot listen for direct channels: {0}; set traffic.direct to another address or \"off\""
    )]
    Direct(io::Error),
    /// The configuration asks a physical device to play a fault.
    #[error("only an emulated device can play a fault")]
    Fault,
    /// The provider's name does not fit the market's limits.
    #[error("the name \"{name}\" cannot be registered: {fault}")]
    Name {
        /// The name that was refused.
        name: String,
        /// The rule that it breaks.
        fault: NameFault,
    },
}

impl From<TradeError> for ProviderError {
    fn from(error: TradeError) -> Self {
        Self::Trade(Box::new(error))
    }
}

impl From<ExecutorError> for ProviderError {
    fn from(error: ExecutorError) -> Self {
        match error {
            ExecutorError::Device(error) => Self::Device(error),
            ExecutorError::Library(error) => Self::Library(error),
            ExecutorError::Sandbox(error) => Self::Sandbox(error),
            ExecutorError::Group(error) => Self::Group(error),
        }
    }
}

/// The inputs with which the shell begins.
struct ShellStart {
    heard: mpsc::Receiver<Incoming>,
    journal: journal::JournalWriter,
    past: Past,
}

impl ShellStart {
    /// Opens the journal of a folder, and the channels for peers' messages and lease sums.
    fn open_folder(
        home: &Path,
    ) -> Result<(ShellStart, mpsc::Sender<Incoming>, watch::Receiver<Sums>), FactLogError> {
        let journal = journal::Journal::open_folder(home)?;
        let past = journal.history().fold_past();
        let (journal, sums) = journal.start_writer();
        let (inbox, heard) = mpsc::channel(shell::INBOX);
        let beginning = ShellStart {
            heard,
            journal,
            past,
        };
        Ok((beginning, inbox, sums))
    }
}

/// A running provider: the state that its parts share.
pub struct Provider {
    home: PathBuf,
    /// The name of its account.
    name: Name,
    trader: Trader,
    network: Network,
    tensors: Tensors,
    engine: Engine,
    /// The text of open tabs on its way to their buyers.
    pieces: Arc<PieceStreams>,
    label: String,
    /// The best performance that was measured for the device.
    peak: Resources,
    /// Work that the device has refused.
    refusals: Refusals,
    pace: Pace,
    terms: Conditions,
    /// Admits the streams that peers open.
    intake: Intake,
    /// Limits the offers of each peer.
    offers: RateLimit,
    /// Streams opened so far; numbers them.
    streams: AtomicU64,
    /// Queues peers' messages for the shell.
    inbox: mpsc::Sender<Incoming>,
    /// The shell's inputs until it takes them.
    beginning: Mutex<Option<ShellStart>>,
    /// The shell's status, once it runs.
    status: watch::Sender<Option<watch::Receiver<ProviderStatus>>>,
    sums: watch::Receiver<Sums>,
    /// The folder's lock, held while the provider runs.
    _lock: File,
    outlook: Arc<ContentPrefetcher>,
    live: device_load::Live,
    /// The measured costs of its devices.
    seen: Arc<DeviceCosts>,
    fault: FaultInjector,
    power: Mutex<power::HeldLimits>,
    /// Whether the disk has room for jobs' contents.
    disk: disk_room::DiskRoom,
    /// The CPU energy of runs in sandbox processes.
    energy: meter::Energy,
    /// Sends the receipts of settled leases to those who watch them.
    settled: broadcast::Sender<Arc<Receipt>>,
}

/// Returns the largest single content that the provider fetches: as much as one job can hold. No
/// other limit is needed, because contents arrive in frames that are checked one by one and take
/// memory only on arrival. A tighter one would break plans, which know only how much memory a
/// device has for a job.
fn content_bytes_max(limits: &ProviderLimits, machine_bytes: u64) -> u64 {
    let of_a_job = limits.memory_bytes_each().min(machine_bytes);
    of_a_job.min(FOLDER_BYTES_MAX)
}

/// Returns the configuration by which a provider fetches and serves contents.
fn transfers_of(provider: &ProviderFile, home: &Path) -> TransferConfig {
    let (traffic, links) = (&provider.traffic, Some(home.join(LINKS_FILE)));
    let machine_bytes = souk_host::system::memory_bytes().unwrap_or(u64::MAX);
    let bytes_max = content_bytes_max(&provider.limits, machine_bytes);
    TransferConfig {
        shown: Some(home.join(SHOWN_FILE)),
        ..TransferConfig::new(traffic, Some(&provider.listen), bytes_max, links)
    }
}

impl Provider {
    /// Opens the device, joins the market and serves. You must call [`Provider::run`] to place the
    /// ask.
    pub async fn start(config: Config) -> Result<Arc<Provider>, ProviderError> {
        let Config {
            home,
            key,
            market,
            provider,
            network,
            program,
            own_engine,
        } = config;
        let market = market.with_known(&home);
        let lock = folder_lock::lock_folder(&home)?;
        let (beginning, inbox, sums) = ShellStart::open_folder(&home)?;
        // This comes before any measurement, because the device must be measured with the power
        // limits it is sold with.
        let wanted = &provider.limits.power_watts;
        let power = power::HeldLimits::set_limits(&home, wanted, souk_host::power::find_domain)?;
        let store = Arc::new(store_in(&home)?);
        let opened = OpenedEngine::open(&home, &provider, program, own_engine, &store);
        let opened = opened.await?;
        let config = souk_network::NetworkConfig {
            listen: Some(provider.listen.clone()),
            peers_file: Some(home.join(souk_network::PEERS_FILE)),
            options: network,
        };
        let (network, broker) = connect_market(&key, &market, config).await?;
        let trader = Trader::new(key, market.genesis.market_id(), broker);
        let refusals = Refusals::read_folder(&home, &provider.device);
        if provider.fault.is_some() && !opened.peak.emulated {
            return Err(ProviderError::Fault);
        }
        let fault = FaultInjector::new(provider.fault, provider.fault_after);
        let config = transfers_of(&provider, &home);
        let tensors = Tensors::start(network.clone(), trader.key(), store, config).await;
        let tensors = tensors.map_err(ProviderError::Direct)?;
        let name = register_account(&trader, &provider).await?;
        let terms = Conditions::new(provider, market.genesis.rules.tick);
        let provider = Arc::new(Provider {
            disk: disk_room::DiskRoom::new(&home),
            outlook: ContentPrefetcher::open_and_recall(&home, tensors.store()),
            refusals,
            live: opened.live,
            seen: opened.seen,
            home,
            name,
            trader,
            network,
            tensors,
            engine: opened.engine,
            pieces: Arc::default(),
            label: opened.label,
            peak: opened.peak,
            pace: opened.pace,
            terms,
            intake: Intake::new(OPENING_BYTES_MAX, OPENING_TIMEOUT),
            offers: RateLimit::new(OFFERS_AT_ONCE, OFFERS_PER_SECOND),
            streams: AtomicU64::new(0),
            inbox,
            beginning: Mutex::new(Some(beginning)),
            status: watch::Sender::new(None),
            sums,
            _lock: lock,
            fault,
            power: Mutex::new(power),
            energy: meter::Energy::find_meter(),
            settled: broadcast::Sender::new(SETTLED_MAX),
        });
        provider.serve_leases();
        Ok(provider)
    }

    /// Returns a function that renders the provider's metrics for as long as the provider exists.
    #[must_use]
    pub fn page_maker(self: &Arc<Self>) -> PageMaker {
        let provider = Arc::downgrade(self);
        Arc::new(move || Box::pin(gauges::metrics_page(provider.clone())))
    }

    /// Returns the receipts of the leases that settle from now on, with both signatures. A receiver
    /// that waits too long misses the oldest.
    #[must_use]
    pub fn watch_receipts(&self) -> broadcast::Receiver<Arc<Receipt>> {
        self.settled.subscribe()
    }

    /// Keeps the ask in the book until `stop` ends. Then it withdraws the ask and returns leases
    /// that have not begun; running leases have `patience` to finish, or until the future that
    /// `stop` returned ends. After that it ends them with their results so far, or returns them if
    /// they have none.
    ///
    /// # Errors
    /// If the journal's writer has ended: the provider can neither sell nor settle without it.
    pub async fn run<Hurry: Future<Output = ()>>(
        self: &Arc<Self>,
        stop: impl Future<Output = Hurry>,
        patience: Duration,
    ) -> Result<(), ProviderError> {
        let Some(beginning) = self.take_beginning() else {
            return Ok(());
        };
        let (say, signals) = mpsc::channel(2);
        let tell_terms = say.clone();
        let begins = (beginning.journal, beginning.past);
        let (shell, status) = Shell::new(self.clone(), beginning.heard, begins, patience);
        self.status.send_replace(Some(status));
        let signalling = async {
            let hurry = stop.await;
            if let Some(executor) = self.engine.as_executor() {
                executor.retire_spares();
            }
            // A shell that has ended needs no signal.
            let _ = say.send(Signal::Stop).await;
            hurry.await;
            let _ = say.send(Signal::Hurry).await;
            std::future::pending::<()>().await;
        };
        let ended = tokio::select! {
            ended = shell.run(signals) => ended,
            () = signalling => unreachable!("whoever stops it waits for it"),
            () = self.announce_repeatedly() => unreachable!("announcing never ends"),
            () = self.watch_terms(tell_terms) => unreachable!("the owner may always change them"),
            () = room::adjust_forever(self) => unreachable!("it adjusts memory until the end"),
            () = device_load::sample_forever(self) => {
                unreachable!("it samples devices until the end")
            }
        };
        if let Some(endpoint) = self.engine.as_endpoint() {
            endpoint.store_figures(&self.home);
        }
        let mut power = self.power.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = power.give_back() {
            tracing::error!(%error, "a power limit could not be restored");
        }
        Ok(ended?)
    }

    fn take_beginning(&self) -> Option<ShellStart> {
        let mut beginning = self
            .beginning
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        beginning.take()
    }

    /// Returns the shell's status, once it runs.
    fn shell_status(&self) -> Option<ProviderStatus> {
        let status = self.status.borrow();
        status.as_ref().map(|status| status.borrow().clone())
    }

    /// Returns the sums of its leases.
    fn lease_sums(&self) -> Sums {
        *self.sums.borrow()
    }

    /// Returns how many leases the provider can sell at once now. The owner's limit is one bound;
    /// an engine with less free room, or out of reach, is another.
    fn slots_now(&self) -> Units {
        let endpoint = self.engine.as_endpoint();
        Units(endpoint.map_or(u32::MAX, |endpoint| endpoint.slots_now()))
    }

    /// Tells the shell when something on this machine changes the next ask: the owner's price, the
    /// hours, the room on the disk, the room of the engine, or the device's measured speed.
    async fn watch_terms(self: &Arc<Self>, tell: mpsc::Sender<Signal>) {
        let mut before = None;
        loop {
            let provider = self.clone();
            let read = tokio::task::spawn_blocking(move || {
                let terms = provider.terms.as_written(&provider.home).local_terms();
                let is_speed_due = provider.pace.has_changed(provider.known_times());
                let slots = provider.slots_now();
                ((terms, provider.disk.has_room(), slots), is_speed_due)
            });
            let (now, is_speed_due) = read.await.expect("reading the terms does not panic");
            let is_other = before.as_ref().is_some_and(|before| *before != now);
            before = Some(now);
            if is_other || is_speed_due {
                // A shell that has ended needs no signal.
                let _ = tell.send(Signal::TermsChanged).await;
            }
            tokio::time::sleep(TERMS_PERIOD).await;
        }
    }

    /// Announces the provider's address to the market and its profile to the network: at once, when
    /// its addresses change, when another validator reports its account's changes, and seldom
    /// without. A validator that restarted has forgotten the address, and another reports from then
    /// on.
    async fn announce_repeatedly(&self) {
        let watch = self.trader.broker().watch_account(self.trader.account());
        let mut schedule = AnnouncementSchedule::default();
        for round in 0_u32.. {
            if profile_is_due(round) {
                self.publish_profile().await;
            }
            self.tensors.links().save(unix_ms());
            self.tensors.access().save();
            self.outlook.save();
            self.seen.save();
            let addresses = self.network.own_addresses().await;
            let state = (addresses, watch.borrow().begun);
            if schedule.is_due(round, state) {
                schedule.on_announced(round, self.announce_once().await);
            }
            tokio::time::sleep(ANNOUNCE_PERIOD).await;
        }
    }

    /// Refreshes the list of validators and announces the addresses to them.
    async fn announce_once(&self) -> AnnouncementOutcome {
        let broker = self.trader.broker();
        match broker.refresh_validators().await {
            Ok(members) => self.remember_validators(&members),
            Err(error) => tracing::debug!(%error, "could not refresh the validators"),
        }
        let confirmed = broker.announce_addresses().await;
        tracing::debug!(confirmed, "announced the addresses to validators");
        match confirmed == broker.validators().len() {
            true => AnnouncementOutcome::Confirmed,
            false => AnnouncementOutcome::Partial,
        }
    }

    fn remember_validators(&self, members: &Members) {
        if let Err(error) = MarketFile::store_known(&self.home, members.addresses()) {
            tracing::warn!(%error, "the validators' addresses could not be stored");
        }
    }

    /// Publishes the provider's profile to the network.
    async fn publish_profile(&self) {
        let now = unix_ms();
        let profile = Profile {
            account: self.trader.account(),
            addresses: self.network.own_addresses().await,
            resources: self.advertised_resources(),
            issued_ms: now,
            expires_ms: now + profile::LIFE_MS,
        };
        match profile.sign(self.trader.key()) {
            Ok(signed) => self.network.publish_profile(&signed).await,
            Err(fault) => tracing::warn!(%fault, "the profile could not be signed"),
        }
    }

    fn serve_leases(self: &Arc<Self>) {
        let provider = self.clone();
        self.network
            .serve_protocol(PROTOCOL, STREAMS_MAX, move |peer, stream| {
                let provider = provider.clone();
                provider.on_stream(peer, stream)
            });
        if self.engine.as_endpoint().is_some() {
            let provider = self.clone();
            self.network
                .serve_protocol(pieces::PROTOCOL, STREAMS_MAX, move |peer, stream| {
                    provider.clone().serve_follower(peer, stream)
                });
        }
    }
}

/// Opens the provider's account unless it is open, and returns the account's name.
async fn register_account(trader: &Trader, provider: &ProviderFile) -> Result<Name, ProviderError> {
    let name = name_of(provider)?;
    trader.register_account(name.clone()).await?;
    Ok(name)
}

fn name_of(provider: &ProviderFile) -> Result<Name, ProviderError> {
    Name::try_from(provider.name.as_str()).map_err(|fault| ProviderError::Name {
        name: provider.name.clone(),
        fault,
    })
}

fn store_in(home: &Path) -> Result<Store, StoreConfigError> {
    Store::open(StoreConfig {
        memory_bytes_max: room::STORE_BYTES_MAX,
        folder: Some(home.join("tensors")),
        folder_bytes_max: FOLDER_BYTES_MAX,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use souk_sandbox::device::{self, combine_profiles};

    #[test]
    fn a_tensor_may_be_as_large_as_a_job() {
        const GIB: u64 = 1 << 30;
        let of = |memory_mib, leases, machine_bytes| {
            let limits = ProviderLimits {
                memory_mib,
                leases,
                ..ProviderLimits::default()
            };
            content_bytes_max(&limits, machine_bytes)
        };
        assert_eq!(of(Some(3 << 10), 1, 64 * GIB), 3 * GIB);
        assert_eq!(of(Some(4 << 10), 2, 64 * GIB), 2 * GIB, "of two leases");
        assert_eq!(of(None, 1, 8 * GIB), 8 * GIB, "the machine's memory");
        assert_eq!(of(None, 1, 64 * GIB), FOLDER_BYTES_MAX, "it is on disk too");
    }

    /// Returns the resources of an emulated device as an ask states them.
    pub(crate) fn resources() -> Resources {
        let choice = souk_folder::config::DeviceChoice::new_emulated("nvidia-h100-sxm");
        let devices = device::open_devices(&choice, None).unwrap();
        let whole = combine_profiles(&device::device_profiles(&devices));
        device::stated_resources(&choice, &whole, &ProviderLimits::default())
    }
}
