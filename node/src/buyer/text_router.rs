//! Buys texts of the models that a market's endpoints sell: lists their offers, and sends each
//! request to the cheapest one, over a tab that is open or a new one.
//!
//! If a provider fails before the first text, the request goes to the next offer. The price of all
//! tabs stays within the budget: a tab counts with its whole escrow until it is settled.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use souk_market::{AccountKey, Credits, Listing, Millis, Permille, Regions, Units};
use souk_roles::market::demands::Demands;
use souk_roles::tokens::card::TextCard;
use souk_roles::tokens::tab::TabFailure;
use souk_roles::tokens::text::{Finish, TextRequest};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

use super::Buyer;
use super::tab::{FinishedText, Tab, TextEvent};
use crate::client::broker::BrokerError;

pub use souk_roles::tokens::tab::TabOutcome;

/// The length of a tab's lease.
const TAB_TIME: Duration = Duration::from_secs(300);

/// A shorter lease has no time for an answer.
const TAB_TIME_MIN: Duration = Duration::from_secs(90);

/// The offers that a request is sent to, one after the other, until one gives text.
const TRIES_MAX: usize = 3;

/// The tabs that close before they begin a request, until it fails.
const CLOSINGS_MAX: usize = 8;

/// How long a request waits for one of its buyer's tabs if no provider has a free slot, and how
/// often it looks at the book meanwhile.
const SLOT_WAIT: Duration = Duration::from_secs(60);
const BOOK_PERIOD: Duration = Duration::from_millis(250);

/// The most that an idle second of a tab can cost, in thousandths of a second's price: an ask that
/// wants more than the usual reserve is not bought.
const IDLE_PERMILLE_MAX: u16 = 100;

/// The most asks of a model that the router knows.
const OFFERS_MAX: usize = 256;

/// An ask for the texts of a model.
#[derive(Clone, Debug)]
pub struct TextOffer {
    /// The model.
    pub card: TextCard,
    /// The ask.
    pub listing: Listing,
}

/// Why a text was not bought.
#[derive(Debug, thiserror::Error)]
pub enum TextRouterError {
    /// No validator answered.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// Nobody sells the model now.
    #[error("no provider sells {model} now{}", describe_others(others))]
    NoOffer {
        /// The requested model.
        model: String,
        /// The models that are on sale.
        others: Vec<String>,
    },
    /// The budget allows no further tab.
    #[error(
        "the budget of {budget} micro-credits allows no further tab: {spent} are spent, {held} \
         are held by open tabs, and a tab needs {needed}"
    )]
    Budget {
        /// The whole budget.
        budget: u64,
        /// What ended tabs cost.
        spent: u64,
        /// What open tabs hold.
        held: u64,
        /// The escrow of the shortest tab.
        needed: u64,
    },
    /// Each provider that was tried failed before its first text.
    #[error("no provider answered: {last}")]
    Failed {
        /// The last failure.
        last: TabFailure,
    },
}

fn describe_others(others: &[String]) -> String {
    match others {
        [] => "; no model is on sale".to_owned(),
        others => format!("; on sale are {}", others.join(", ")),
    }
}

/// The receiving end of an answer.
#[derive(Debug)]
pub struct AnswerEvents {
    /// The event that decided for this provider.
    first: Option<TextEvent>,
    events: mpsc::Receiver<TextEvent>,
    /// The provider that answers.
    pub provider: AccountKey,
}

/// A request that a tab has taken.
struct AskedTab {
    provider: Arc<OnceLock<AccountKey>>,
    events: mpsc::Receiver<TextEvent>,
}

/// What the tabs of a market cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextSpending {
    /// What ended tabs cost.
    pub spent: Credits,
    /// What open tabs hold.
    pub held: Credits,
    /// The tabs that ended with a receipt.
    pub receipts: u64,
}

/// Learns how tabs end.
pub trait TabObserver: Send + Sync {
    /// A tab ended; the provider is none if the market sold none.
    fn on_tab_ended(&self, provider: Option<AccountKey>, outcome: &TabOutcome);
}

/// The texts that one buyer buys. Clones share its tabs and its budget.
#[derive(Clone)]
pub struct TextRouter {
    buyer: Buyer,
    budget: Option<Credits>,
    observer: Arc<dyn TabObserver>,
    state: Arc<Mutex<RouterState>>,
    open_tabs: Arc<watch::Sender<usize>>,
    freed: Arc<Notify>,
}

#[derive(Default)]
struct RouterState {
    tabs: BTreeMap<String, Vec<Tab>>,
    spending: TextSpending,
    is_closed: bool,
}

impl AnswerEvents {
    /// Waits for the next event; none after the last one.
    pub async fn next(&mut self) -> Option<TextEvent> {
        match self.first.take() {
            Some(first) => Some(first),
            None => self.events.recv().await,
        }
    }

    /// Returns the answer, if it ended before any text came.
    #[must_use]
    pub fn ended_without_text(&self) -> Option<&FinishedText> {
        match &self.first {
            Some(TextEvent::Done(done)) => Some(done),
            _ => None,
        }
    }

    /// Waits for the whole answer.
    ///
    /// # Errors
    /// When it failed on the way.
    pub async fn collect(mut self) -> Result<FinishedText, TabFailure> {
        while let Some(event) = self.next().await {
            match event {
                TextEvent::Piece(_) => {}
                TextEvent::Done(done) => return Ok(*done),
                TextEvent::Failed(failure) => return Err(failure),
            }
        }
        Err(TabFailure::Closing)
    }
}

impl TextRouter {
    /// Creates a buyer of texts with a budget for all of its tabs; none for the account's balance.
    #[must_use]
    pub fn new(
        buyer: Buyer,
        budget: Option<Credits>,
        observer: Arc<dyn TabObserver>,
    ) -> TextRouter {
        TextRouter {
            buyer,
            budget,
            observer,
            state: Arc::default(),
            open_tabs: Arc::new(watch::Sender::new(0)),
            freed: Arc::default(),
        }
    }

    /// Returns all offers of texts, by model and price.
    ///
    /// # Errors
    /// When no validator answers.
    pub async fn fetch_offers(&self) -> Result<Vec<TextOffer>, BrokerError> {
        let listed = self.buyer.broker().fetch_book().await?;
        Ok(text_offers(listed))
    }

    /// Sends a request to the cheapest offer of a model, and returns the events of its answer once
    /// the first text is here.
    ///
    /// # Errors
    /// When nobody sells the model, the budget is used up, or each provider that was tried failed.
    pub async fn ask(
        &self,
        model: &str,
        request: &TextRequest,
    ) -> Result<AnswerEvents, TextRouterError> {
        let mut failed: Vec<AccountKey> = Vec::new();
        let mut last = None;
        let mut closings = 0;
        while failed.len() < TRIES_MAX && closings < CLOSINGS_MAX {
            let AskedTab {
                provider,
                mut events,
            } = match self.ask_any_tab(model, request, &failed).await {
                Err(TextRouterError::NoOffer { .. }) if last.is_some() => break,
                asked => asked?,
            };
            match events.recv().await.map(without_text_failure) {
                Some(TextEvent::Failed(failure)) => {
                    if !failure.is_of_provider() {
                        return Err(TextRouterError::Failed { last: failure });
                    }
                    // A tab that was about to close says nothing against its provider.
                    match provider.get() {
                        Some(provider) if failure != TabFailure::Closing => failed.push(*provider),
                        _ => closings += 1,
                    }
                    last = Some(failure);
                }
                None => {
                    closings += 1;
                    last = Some(TabFailure::Closing);
                }
                first => {
                    let provider = provider.get().copied();
                    return Ok(AnswerEvents {
                        first,
                        events,
                        provider: provider.unwrap_or_default(),
                    });
                }
            }
        }
        let last = last.unwrap_or(TabFailure::Closing);
        Err(TextRouterError::Failed { last })
    }

    /// Returns what all tabs cost so far.
    #[must_use]
    pub fn spending(&self) -> TextSpending {
        self.lock_state().spending
    }

    /// Closes all tabs after their open requests, and waits until they are settled.
    pub async fn close(&self) {
        {
            let mut state = self.lock_state();
            state.is_closed = true;
            state.tabs.clear();
        }
        let mut open = self.open_tabs.subscribe();
        // The sender lives as long as this.
        let _ = open.wait_for(|open| *open == 0).await;
    }

    /// Sends a request over an open tab, or a new one. If no provider has a free slot, it waits for
    /// an open tab or for an offer.
    async fn ask_any_tab(
        &self,
        model: &str,
        request: &TextRequest,
        failed: &[AccountKey],
    ) -> Result<AskedTab, TextRouterError> {
        let deadline = Instant::now() + SLOT_WAIT;
        loop {
            let freed = self.freed.notified();
            if let Some(asked) = self.ask_open_tab(model, request, failed) {
                return Ok(asked);
            }
            match self.ask_new_tab(model, request, failed).await {
                Err(TextRouterError::NoOffer { .. })
                    if self.has_tab(model, failed) && Instant::now() < deadline =>
                {
                    // Another buyer can free a slot too.
                    let _ = tokio::time::timeout(BOOK_PERIOD, freed).await;
                }
                asked => return asked,
            }
        }
    }

    /// Returns whether a tab of the model is open at another provider than those.
    fn has_tab(&self, model: &str, failed: &[AccountKey]) -> bool {
        let state = self.lock_state();
        let mut tabs = state.tabs.get(model).into_iter().flatten();
        tabs.any(|tab| !tab.is_over() && !tab.is_at(failed))
    }

    /// Sends a request over an open tab that is free.
    fn ask_open_tab(
        &self,
        model: &str,
        request: &TextRequest,
        failed: &[AccountKey],
    ) -> Option<AskedTab> {
        let mut state = self.lock_state();
        let tabs = state.tabs.get_mut(model)?;
        tabs.retain(|tab| !tab.is_over());
        let mut free = tabs.iter().filter(|tab| !tab.is_at(failed));
        free.find_map(|tab| {
            Some(AskedTab {
                provider: tab.provider_cell(),
                events: tab.ask(request.clone()).ok()?,
            })
        })
    }

    /// Buys a tab from the cheapest offer.
    async fn ask_new_tab(
        &self,
        model: &str,
        request: &TextRequest,
        failed: &[AccountKey],
    ) -> Result<AskedTab, TextRouterError> {
        let offer = self.choose_offer(model, failed).await?;
        let (duration, escrow) = self.reserve_escrow(&offer.listing)?;
        let (buyer, freed) = (&self.buyer, self.freed.clone());
        let (listing, request) = (&offer.listing, request.clone());
        let opened = Tab::open(buyer, listing, failed.to_vec(), duration, request, freed);
        let Some((tab, events, running)) = opened else {
            unreachable!("the offer sells a model");
        };
        let provider = tab.provider_cell();
        let asked = AskedTab {
            provider: provider.clone(),
            events,
        };
        self.open_tabs.send_modify(|open| *open += 1);
        {
            let mut state = self.lock_state();
            if !state.is_closed {
                state.tabs.entry(model.to_owned()).or_default().push(tab);
            }
        }
        let router = self.clone();
        tokio::spawn(async move {
            let outcome = running.await.unwrap_or_else(|panicked| {
                tracing::error!(%panicked, "the task of a tab ended");
                TabOutcome {
                    cost: escrow,
                    ..TabOutcome::default()
                }
            });
            router.on_tab_ended(provider.get().copied(), escrow, &outcome);
        });
        Ok(asked)
    }

    async fn choose_offer(
        &self,
        model: &str,
        failed: &[AccountKey],
    ) -> Result<TextOffer, TextRouterError> {
        let demands = demands_of(self.buyer.account(), model, failed);
        let chosen = self.buyer.broker().choose_asks(demands).await?;
        let mut offers = text_offers(chosen.listings);
        let is_fair = |offer: &TextOffer| offer.listing.idle.0 <= IDLE_PERMILLE_MAX;
        offers.retain(|offer| offer.card.model.as_str() == model && is_fair(offer));
        match offers.into_iter().next() {
            Some(offer) => Ok(offer),
            None => {
                let mut others: Vec<String> = self
                    .fetch_offers()
                    .await?
                    .into_iter()
                    .map(|offer| offer.card.model.to_string())
                    .collect();
                others.dedup();
                others.retain(|other| other != model);
                let model = model.to_owned();
                Err(TextRouterError::NoOffer { model, others })
            }
        }
    }

    /// Reserves the escrow of a tab within the budget, for a shorter tab if need be.
    fn reserve_escrow(&self, listing: &Listing) -> Result<(Duration, Credits), TextRouterError> {
        let longest = TAB_TIME.min(Duration::from_millis(listing.duration_max.0));
        let escrow = |duration: Duration| {
            let millis = Millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
            let escrow = listing.price.escrow_for(Units(1), millis);
            escrow.unwrap_or(Credits(u64::MAX))
        };
        let mut state = self.lock_state();
        let spending = state.spending;
        let left = self.budget.map(|budget| {
            let used = spending.spent.0.saturating_add(spending.held.0);
            budget.0.saturating_sub(used)
        });
        let fits = |duration: &Duration| left.is_none_or(|left| escrow(*duration).0 <= left);
        let duration = [longest, TAB_TIME_MIN.min(longest)].into_iter().find(fits);
        let Some(duration) = duration else {
            return Err(TextRouterError::Budget {
                budget: self.budget.unwrap_or_default().0,
                spent: spending.spent.0,
                held: spending.held.0,
                needed: escrow(TAB_TIME_MIN.min(longest)).0,
            });
        };
        let held = escrow(duration);
        state.spending.held = Credits(state.spending.held.0.saturating_add(held.0));
        Ok((duration, held))
    }

    fn on_tab_ended(&self, provider: Option<AccountKey>, escrow: Credits, outcome: &TabOutcome) {
        {
            let mut state = self.lock_state();
            let spending = &mut state.spending;
            spending.held = Credits(spending.held.0.saturating_sub(escrow.0));
            spending.spent = Credits(spending.spent.0.saturating_add(outcome.cost.0));
            spending.receipts += u64::from(outcome.receipt.is_some());
            for tabs in state.tabs.values_mut() {
                tabs.retain(|tab| !tab.is_over());
            }
        }
        self.observer.on_tab_ended(provider, outcome);
        self.open_tabs.send_modify(|open| *open -= 1);
    }

    fn lock_state(&self) -> MutexGuard<'_, RouterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Converts the first event of an answer into a failure if the engine gave no text, so that another
/// provider can.
fn without_text_failure(event: TextEvent) -> TextEvent {
    match event {
        TextEvent::Done(done)
            if matches!(done.answer.finish, Finish::Busy | Finish::Interrupted) =>
        {
            TextEvent::Failed(TabFailure::BadAnswer(done.answer.message))
        }
        event => event,
    }
}

/// Returns the asks that sell texts, by model, price and age.
#[must_use]
pub fn text_offers(listings: Vec<Listing>) -> Vec<TextOffer> {
    let offer = |listing: Listing| {
        let card = TextCard::of_resources(&listing.resources)?;
        Some(TextOffer { card, listing })
    };
    let mut offers: Vec<TextOffer> = listings.into_iter().filter_map(offer).collect();
    offers.sort_by(|one, other| {
        let key = |offer: &TextOffer| {
            let listing = &offer.listing;
            (offer.card.model.clone(), listing.price, listing.order)
        };
        key(one).cmp(&key(other))
    });
    offers.truncate(OFFERS_MAX);
    offers
}

/// Returns what an ask must be to answer a request for a model.
fn demands_of(buyer: AccountKey, model: &str, failed: &[AccountKey]) -> Demands {
    Demands {
        buyer,
        excluded: failed.to_vec(),
        real_only: true,
        price_max: None,
        notice_min: Millis(0),
        spot: false,
        regions: Regions(0),
        reputation_min: Permille(0),
        power_known: false,
        features: Default::default(),
        operators: Default::default(),
        nodes: Vec::new(),
        in_parts: false,
        devices: vec![model.to_owned()],
    }
}
