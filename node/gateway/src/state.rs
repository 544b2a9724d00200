//! Holds the state that all requests to the gateway share: its buyer and folder, its jobs, plans,
//! contents and keys, and the market's latest answers, which it stores for a short time because
//! they are expensive to ask for.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use souk_node::buyer::Buyer;
use souk_node::buyer::journal::JOBS_FOLDER;
use souk_node::client::broker::BrokerError;
use souk_node::market::{ClassSummary, Listing, MarketId};
use tokio::sync::Mutex;

use crate::access::Access;
use crate::contents::Contents;
use crate::figures::Figures;
use crate::hub::Hub;
use crate::job_slots::RunningJobs;
use crate::keys::Keys;
use crate::large_work::ReaderTurns;
use crate::network_view::{self, MapView, Sightings};
use crate::output_view::OutputCache;
use crate::plans::Plans;
use crate::sessions::SessionHost;

/// Ages up to which the gateway answers with a stored book, map and list of classes: these are the
/// most expensive questions to a validator.
const BOOK_AGE_MAX: Duration = Duration::from_secs(1);
const MAP_AGE_MAX: Duration = Duration::from_secs(1);
const CLASSES_AGE_MAX: Duration = Duration::from_millis(250);

/// The state, shared by all requests.
pub type SharedState = Arc<State>;

/// The state behind all answers.
pub struct State {
    /// The buyer that the gateway serves.
    pub buyer: Buyer,
    /// The market's folder.
    pub folder: PathBuf,
    /// The market's name.
    pub name: String,
    /// The address on which the gateway listens.
    pub address: SocketAddr,
    /// The host of sessions of language models, if there is one.
    pub sessions: Option<Arc<dyn SessionHost>>,
    /// The access check.
    pub access: Access,
    /// Uploaded models and tensors.
    pub contents: Contents,
    /// The latest plans.
    pub plans: Plans,
    /// Recently used idempotency keys.
    pub keys: Keys,
    /// Orders that the gateway is placing, by the ids of their keys.
    pub placing: Arc<RunningJobs>,
    /// A request must hold this while it searches for the fate of an order.
    pub finding: Mutex<()>,
    /// Jobs that this process runs.
    pub running: Arc<RunningJobs>,
    /// The events for followers.
    pub hub: Hub,
    /// Metrics of durations.
    pub figures: Figures,
    /// Descriptions of outputs.
    pub outputs: OutputCache,
    /// The turns of readers' requests that hold models or tensors.
    pub reader_turns: ReaderTurns,
    sightings: Sightings,
    book: Cache<[Listing]>,
    classes: Cache<[ClassSummary]>,
    map: Cache<MapView>,
}

/// A stored answer of the market, valid for a while. Concurrent requests wait for the same answer.
struct Cache<T: ?Sized>(Mutex<Option<(Instant, Arc<T>)>>);

impl<T: ?Sized> Cache<T> {
    async fn get(
        &self,
        age_max: Duration,
        asked: impl Future<Output = Result<impl Into<Arc<T>>, BrokerError>>,
    ) -> Result<Arc<T>, BrokerError> {
        let mut kept = self.0.lock().await;
        if let Some((at, answer)) = &*kept
            && at.elapsed() < age_max
        {
            return Ok(answer.clone());
        }
        let answer: Arc<T> = asked.await?.into();
        *kept = Some((Instant::now(), answer.clone()));
        Ok(answer)
    }
}

impl State {
    /// Creates the state for a buyer, with the folder and the name of its market and the address on
    /// which the gateway listens.
    pub fn new(
        buyer: Buyer,
        (folder, name, address): (PathBuf, String, SocketAddr),
        sessions: Option<Arc<dyn SessionHost>>,
        (access, contents, keys): (Access, Contents, Keys),
    ) -> State {
        State {
            buyer,
            folder,
            name,
            address,
            sessions,
            access,
            contents,
            plans: Plans::default(),
            keys,
            placing: Arc::default(),
            finding: Mutex::default(),
            running: Arc::default(),
            hub: Hub::default(),
            figures: Figures::default(),
            outputs: OutputCache::default(),
            reader_turns: ReaderTurns::default(),
            sightings: Sightings::default(),
            book: Cache(Mutex::default()),
            classes: Cache(Mutex::default()),
            map: Cache(Mutex::default()),
        }
    }

    /// Returns the id of the market.
    pub fn market_id(&self) -> MarketId {
        self.buyer.trader().market()
    }

    /// Returns the folder of the jobs.
    pub fn jobs_folder(&self) -> PathBuf {
        self.folder.join(JOBS_FOLDER)
    }

    /// Returns all asks of the book, at most a second old.
    ///
    /// # Errors
    /// Fails if the market is unreachable.
    pub async fn book(&self) -> Result<Arc<[Listing]>, BrokerError> {
        let asked = self.buyer.broker().fetch_book();
        self.book.get(BOOK_AGE_MAX, asked).await
    }

    /// Returns the summary of the classes, at most a quarter of a second old.
    ///
    /// # Errors
    /// Fails if the market is unreachable.
    pub async fn classes(&self) -> Result<Arc<[ClassSummary]>, BrokerError> {
        let asked = self.buyer.broker().fetch_classes();
        self.classes.get(CLASSES_AGE_MAX, asked).await
    }

    /// Returns the map of the network, at most a second old.
    ///
    /// # Errors
    /// Fails if the market is unreachable.
    pub async fn map(&self) -> Result<Arc<MapView>, BrokerError> {
        let asked = async {
            let book = self.book().await?;
            network_view::build_map(&self.buyer, &book, &self.sightings).await
        };
        self.map.get(MAP_AGE_MAX, asked).await
    }
}
