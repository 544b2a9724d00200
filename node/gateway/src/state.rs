//! What all answers are made from.

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
use crate::keys::Keys;
use crate::network_view::{self, MapView, Sightings};
use crate::output_view::OutputCache;
use crate::places::Running;
use crate::plans::Plans;

/// How long the whole book, the list of classes and the map are answered from memory: they are the
/// dearest questions to a validator.
const BOOK_AGE_MAX: Duration = Duration::from_secs(1);
const MAP_AGE_MAX: Duration = Duration::from_secs(1);
const CLASSES_AGE_MAX: Duration = Duration::from_millis(250);

/// The same for all questions.
pub type SharedState = Arc<State>;

/// What all answers are made from.
pub struct State {
    /// Whose gateway it is.
    pub buyer: Buyer,
    /// The market's folder.
    pub folder: PathBuf,
    /// What the market is called.
    pub name: String,
    /// Who may ask.
    pub access: Access,
    /// Models and tensors that were brought.
    pub contents: Contents,
    /// Plans that were made.
    pub plans: Plans,
    /// Keys that were used lately.
    pub keys: Keys,
    /// Orders that are being placed, by the ids of their keys.
    pub placing: Arc<Running>,
    /// Held while it is found out what became of an order.
    pub finding: Mutex<()>,
    /// Jobs that this process runs.
    pub running: Arc<Running>,
    /// What happens.
    pub hub: Hub,
    /// How long things took.
    pub figures: Figures,
    /// Outputs that were described.
    pub outputs: OutputCache,
    sightings: Sightings,
    book: Cache<[Listing]>,
    classes: Cache<[ClassSummary]>,
    map: Cache<MapView>,
}

/// An answer of the market that is given again for a while. Who asks meanwhile waits for the same.
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
    /// Of a buyer in a market of that name in a folder.
    pub fn new(
        buyer: Buyer,
        (folder, name): (PathBuf, String),
        (access, contents, keys): (Access, Contents, Keys),
    ) -> State {
        State {
            buyer,
            folder,
            name,
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
            sightings: Sightings::default(),
            book: Cache(Mutex::default()),
            classes: Cache(Mutex::default()),
            map: Cache(Mutex::default()),
        }
    }

    /// The market.
    pub fn market(&self) -> MarketId {
        self.buyer.trader().market()
    }

    /// Where jobs are kept.
    pub fn jobs(&self) -> PathBuf {
        self.folder.join(JOBS_FOLDER)
    }

    /// Every ask in the book, as it was a second ago at most.
    ///
    /// # Errors
    /// When the market is not reached.
    pub async fn book(&self) -> Result<Arc<[Listing]>, BrokerError> {
        let asked = self.buyer.broker().book();
        self.book.get(BOOK_AGE_MAX, asked).await
    }

    /// The classes at a glance, as they were a quarter of a second ago at most.
    ///
    /// # Errors
    /// When the market is not reached.
    pub async fn classes(&self) -> Result<Arc<[ClassSummary]>, BrokerError> {
        let asked = self.buyer.broker().classes();
        self.classes.get(CLASSES_AGE_MAX, asked).await
    }

    /// Who takes part and the ways between, as they were a second ago at most.
    ///
    /// # Errors
    /// When the market is not reached.
    pub async fn map(&self) -> Result<Arc<MapView>, BrokerError> {
        let asked = async {
            let book = self.book().await?;
            network_view::map(&self.buyer, &book, &self.sightings).await
        };
        self.map.get(MAP_AGE_MAX, asked).await
    }
}
