//! Opens tabs (leases of a language model by the token) at endpoints and sends requests over them:
//! the task that runs the core of one tab (`souk_roles::tokens::tab`), and the handle through which
//! requests reach the task.

mod effects;
mod follower;
mod open_text;
mod shell;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use souk_market::{AccountKey, Credits, Millis};
use souk_memory::{HeldContent, StoreError, Tensor};
use souk_roles::tokens::card::TextCard;
use souk_roles::tokens::counting::TokenCount;
use souk_roles::tokens::router::TabPurchase;
use souk_roles::tokens::tab::{TabFailure, TabOutcome, TabSpec};
use souk_roles::tokens::text::{AnswerText, TextAnswer, TextRequest};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use super::text_keys::{BillSender, PendingBill};
use super::transcripts::TabLog;
use super::{Buyer, draw_job};
use shell::TabShell;

/// Events of an answer that can wait for their reader: the pieces of some seconds.
const EVENTS_MAX: usize = 1_024;

/// An event of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum TextEvent {
    /// The text that follows.
    Piece(AnswerText),
    /// The answer is whole. Its text is that of all pieces.
    Done(Box<FinishedText>),
    /// The answer failed, and no more of it follows.
    Failed(TabFailure),
}

/// A whole answer, and what it costs.
#[derive(Clone, Debug, PartialEq)]
pub struct FinishedText {
    /// The answer.
    pub answer: TextAnswer,
    /// Its tokens, by the rule that both sides count by.
    pub count: TokenCount,
    /// What the tokens cost. The tab adds the price of its idle time.
    pub cost: Credits,
}

/// A request in the buyer's store, where its provider fetches it. The store drops it with the last
/// clone.
#[derive(Clone, Debug)]
pub(super) struct StoredRequest {
    pub(super) request: TextRequest,
    body: Arc<HeldContent>,
}

/// A request on its way to a tab.
struct AskedText {
    request: TextRequest,
    /// The request in the store, until it has an answer.
    body: Arc<HeldContent>,
    events: mpsc::Sender<TextEvent>,
    bill: BillSender,
}

/// The answer that a tab was asked for.
#[derive(Debug)]
pub struct AskedAnswer {
    /// Its events. Dropping the receiver stops the provider.
    pub events: mpsc::Receiver<TextEvent>,
    /// The bill, which arrives when the answer is over, even if nobody reads it to the end.
    pub bill: PendingBill,
}

impl StoredRequest {
    /// Stores a request.
    ///
    /// # Errors
    /// [`StoreError::MemoryFull`].
    pub(super) fn store(buyer: &Buyer, request: &TextRequest) -> Result<StoredRequest, StoreError> {
        let bytes = request.to_bytes();
        let tensor = Tensor::from_vec(vec![bytes.len()], bytes).expect("its length is its shape");
        let body = HeldContent::put(buyer.tensors().store(), tensor.to_blob())?;
        Ok(StoredRequest {
            request: request.clone(),
            body: Arc::new(body),
        })
    }
}

impl AskedText {
    fn new(stored: &StoredRequest) -> (AskedText, AskedAnswer) {
        let (events, answer) = mpsc::channel(EVENTS_MAX);
        let (bill, billed) = PendingBill::channel();
        let asked = AskedText {
            request: stored.request.clone(),
            body: stored.body.clone(),
            events,
            bill,
        };
        let answer = AskedAnswer {
            events: answer,
            bill: billed,
        };
        (asked, answer)
    }
}

/// Whether a tab has an open request.
#[derive(Debug)]
struct BusyFlag {
    is_busy: AtomicBool,
    /// Wakes the requests that wait for a free tab.
    freed: Arc<Notify>,
}

impl BusyFlag {
    fn set_busy(&self) {
        self.is_busy.store(true, Ordering::Release);
    }

    fn set_free(&self) {
        self.is_busy.store(false, Ordering::Release);
        self.freed.notify_waiters();
    }
}

/// The channels on which a tab reports to its owner, besides answers.
pub(super) struct TabOwner {
    /// It is notified whenever the tab can take another request.
    pub(super) freed: Arc<Notify>,
    /// Records the texts of the tab, if the owner keeps them.
    pub(super) log: Option<TabLog>,
}

/// What a tab's task shares with the handle.
struct TabHandles {
    busy: Arc<BusyFlag>,
    provider: Arc<OnceLock<AccountKey>>,
    log: Option<TabLog>,
}

/// An open tab. Dropping it closes the tab after its open request.
#[derive(Debug)]
pub struct Tab {
    asks: mpsc::Sender<AskedText>,
    busy: Arc<BusyFlag>,
    provider: Arc<OnceLock<AccountKey>>,
}

impl Tab {
    /// Buys a tab from an ask, and sends the first request. If the purchase is not strict, the
    /// market can sell a cheaper ask of the same book instead, unless its provider is excluded.
    /// Returns the tab, the first answer, and the task, which ends with the tab.
    ///
    /// The ask must sell a model; otherwise this returns none. The tab reports to `owner`.
    ///
    /// # Errors
    /// [`StoreError::MemoryFull`] if the store has no room for the model's card.
    pub(super) fn open(
        buyer: &Buyer,
        purchase: &TabPurchase,
        duration: Duration,
        first: &StoredRequest,
        owner: TabOwner,
    ) -> Result<Option<(Tab, AskedAnswer, JoinHandle<TabOutcome>)>, StoreError> {
        let listing = &purchase.listing;
        let Some(card) = TextCard::of_resources(&listing.resources) else {
            return Ok(None);
        };
        let held = HeldContent::put(buyer.tensors().store(), card.to_bytes().into())?;
        let spec = TabSpec {
            market: buyer.trader().market(),
            account: buyer.account(),
            job: draw_job(buyer.account()),
            listing: Box::new(listing.clone()),
            excluded: purchase.excluded.clone(),
            is_strict: purchase.is_strict,
            card: held.id(),
            duration: Millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)),
        };
        let (asks, requests) = mpsc::channel(1);
        let (asked, answer) = AskedText::new(first);
        let busy = Arc::new(BusyFlag {
            is_busy: AtomicBool::new(true),
            freed: owner.freed,
        });
        let provider = Arc::<OnceLock<AccountKey>>::default();
        let shell = TabShell::new(
            buyer,
            spec,
            held,
            requests,
            asked,
            TabHandles {
                busy: busy.clone(),
                provider: provider.clone(),
                log: owner.log,
            },
        );
        let running = tokio::spawn(shell.run());
        let tab = Tab {
            asks,
            busy,
            provider,
        };
        Ok(Some((tab, answer, running)))
    }

    /// Returns a cell that holds the provider once the tab is bought.
    #[must_use]
    pub fn provider_cell(&self) -> Arc<OnceLock<AccountKey>> {
        self.provider.clone()
    }

    /// Returns the provider, if the tab can take a request now.
    #[must_use]
    pub fn free_provider(&self) -> Option<AccountKey> {
        let is_busy = self.busy.is_busy.load(Ordering::Acquire);
        let provider = self.provider.get().copied();
        provider.filter(|_| !is_busy && !self.asks.is_closed())
    }

    /// Sends a request. Returns none if the tab cannot take it now.
    pub(super) fn ask(&self, stored: &StoredRequest) -> Option<AskedAnswer> {
        if self.busy.is_busy.swap(true, Ordering::AcqRel) {
            return None;
        }
        let (asked, answer) = AskedText::new(stored);
        self.asks.try_send(asked).is_ok().then_some(answer)
    }
}
