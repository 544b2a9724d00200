//! Buys text from the endpoints of a market (providers that sell language models by the token):
//! lists their offers, and sends each request over an open tab or a new one. It is the shell of
//! [`souk_roles::tokens::router`], the core that chooses.
//!
//! If a provider fails, the request goes to another one, which also continues an answer that broke
//! off ([`AnswerEvents`]). The price of all tabs stays within the budget: a tab counts with its
//! whole escrow until it is settled.

mod answer_events;
mod book_looks;
#[cfg(test)]
mod engine_faults;
mod error;
mod key_cover;
mod offers;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use souk_market::{AccountKey, Credits, DeviceMicros, Listing, Millis, Units};
use souk_roles::clock::Micros;
use souk_roles::tokens::counting::TokenRates;
use souk_roles::tokens::router::{
    FreeTabs, Route, RouteFailure, RouteStep, RouterCore, RoutingRules, TAB_TIME_MAX, TabId,
    TabPurchase,
};
use souk_roles::tokens::text::TextRequest;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;

use super::Buyer;
use super::tab::{AskedAnswer, StoredRequest, Tab, TabOwner};
use super::text_keys::KeyedRequest;
use super::transcripts::{TabLog, TabTranscript, TranscriptFolder};
use souk_folder::clock::CoreClock;

use book_looks::BookLooks;
use key_cover::{KeyCover, WantedPart};

pub use answer_events::{AnswerEvent, AnswerEvents};
pub use error::{AnswerFault, TextRouterError};
pub use offers::{TextOffer, text_offers, was_sold_lately};
pub use souk_roles::tokens::tab::TabOutcome;

/// The length of a tab's lease.
const TAB_TIME: Duration = Duration::from_millis(TAB_TIME_MAX.0);

/// The shortest lease of a tab: a shorter one has no time for an answer.
const TAB_TIME_MIN: Duration = Duration::from_secs(90);

/// How long a request should wait for one of its buyer's tabs if no provider has a free slot.
pub const SLOT_WAIT: Duration = Duration::from_secs(60);

/// How long the rest of an interrupted answer waits for a slot, because its reader is already
/// waiting.
const REST_WAIT: Duration = Duration::from_secs(15);

/// How often the requests that wait for a model look at the book, all together.
const BOOK_PERIOD: Duration = Duration::from_millis(250);

/// The most requests that wait for a slot.
const WAITING_MAX: usize = 256;

/// The terms on which the router buys an answer to a request.
#[derive(Clone, Debug, Default)]
pub struct AskTerms {
    /// The rules for the offers.
    pub rules: RoutingRules,
    /// How long the request waits for one of the buyer's tabs if all slots are taken.
    pub patience: Duration,
    /// The key that pays for it; none for the buyer's own request.
    pub key: Option<Arc<KeyedRequest>>,
}

/// The next step of a request, and whether the router has already carried it out.
enum PlannedStep {
    /// A tab has taken the request.
    Sent(Box<OpenRequest>),
    /// The key does not cover this price yet.
    Uncovered(TokenRates),
    /// The caller carries it out.
    Step(RouteStep),
}

/// A request that a tab has taken.
struct OpenRequest {
    tab: TabId,
    provider: Arc<OnceLock<AccountKey>>,
    /// The most that tokens cost.
    rates: TokenRates,
    request: TextRequest,
    answer: AskedAnswer,
    began: Micros,
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

impl TextSpending {
    /// Notes that a tab holds its escrow no more.
    fn release(&mut self, escrow: Credits) {
        self.held = Credits(self.held.0.saturating_sub(escrow.0));
    }
}

/// Gets a notice when a tab ends.
pub trait TabObserver: Send + Sync {
    /// A tab ended; the provider is none if the market sold none.
    fn on_tab_ended(&self, provider: Option<AccountKey>, outcome: &TabOutcome);

    /// The texts of a tab could not be kept.
    fn on_not_kept(&self, _error: &std::io::Error) {}
}

/// The router of one buyer. Clones share its tabs and its budget.
#[derive(Clone)]
pub struct TextRouter {
    buyer: Buyer,
    budget: Option<Credits>,
    observer: Arc<dyn TabObserver>,
    clock: CoreClock,
    state: Arc<Mutex<RouterState>>,
    open_tabs: Arc<watch::Sender<usize>>,
    freed: Arc<Notify>,
    looks: Arc<BookLooks>,
    /// Places for requests that wait for a slot.
    waiting: Arc<Semaphore>,
    /// Where the texts of tabs are kept, if they are.
    transcripts: Option<TranscriptFolder>,
}

#[derive(Default)]
struct RouterState {
    core: RouterCore,
    tabs: BTreeMap<TabId, RoutedTab>,
    spending: TextSpending,
    is_closed: bool,
    /// The providers of models that failed an audit.
    distrusted: BTreeSet<(String, AccountKey)>,
}

struct RoutedTab {
    tab: Tab,
    rates: TokenRates,
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
            clock: CoreClock::new(buyer.broker().log_clock()),
            buyer,
            budget,
            observer,
            state: Arc::default(),
            open_tabs: Arc::new(watch::Sender::new(0)),
            freed: Arc::default(),
            looks: Arc::default(),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
            transcripts: None,
        }
    }

    /// Keeps the texts of all tabs in a folder from now on.
    #[must_use]
    pub fn with_transcripts(self, folder: TranscriptFolder) -> TextRouter {
        TextRouter {
            transcripts: Some(folder),
            ..self
        }
    }

    /// Buys nothing more from these providers of these models, whose answers were not those of the
    /// model.
    pub fn set_distrusted(&self, distrusted: BTreeSet<(String, AccountKey)>) {
        self.lock_state().distrusted = distrusted;
    }

    fn distrusted_of(&self, model: &str) -> Vec<AccountKey> {
        let state = self.lock_state();
        let of_model = state.distrusted.iter().filter(|(sold, _)| sold == model);
        of_model.map(|(_, provider)| *provider).collect()
    }

    /// Sends a request to an offer of a model that suits the rules, and returns the events of its
    /// answer once the first text is here.
    ///
    /// # Errors
    /// When no offer suits, the budget or the key's is used up, or each provider that was tried
    /// failed.
    pub async fn ask(
        &self,
        model: &str,
        request: &TextRequest,
        terms: AskTerms,
    ) -> Result<AnswerEvents, TextRouterError> {
        let AskTerms {
            mut rules,
            patience,
            key,
        } = terms;
        rules.distrusted = self.distrusted_of(model);
        let seed = RandomState::new().hash_one(0);
        let mut route = Route::new(model, request, rules, seed);
        let stored = StoredRequest::store(&self.buyer, request)?;
        let wanted = WantedPart {
            stored: &stored,
            key: key.as_deref(),
        };
        let open = self.find_tab(&mut route, wanted, patience).await?;
        AnswerEvents::begin(self.clone(), route, (request.clone(), key), open).await
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
    async fn find_tab(
        &self,
        route: &mut Route,
        wanted: WantedPart<'_>,
        patience: Duration,
    ) -> Result<OpenRequest, TextRouterError> {
        let began = Instant::now();
        let deadline = began + patience;
        // A look of another request will do, but not to refuse this one.
        let mut not_before = None;
        let mut cover = KeyCover::new(wanted);
        loop {
            let freed = self.freed.notified();
            let mut planned = self.plan_step(route, &cover, None);
            let mut asks = Vec::new();
            if let PlannedStep::Step(_) = planned {
                asks = self.find_asks(route, not_before).await?;
                planned = self.plan_step(route, &cover, Some(&asks));
            }
            let step = match planned {
                PlannedStep::Sent(open) => return Ok(*open),
                PlannedStep::Uncovered(rates) => {
                    cover.extend(route, rates).await?;
                    continue;
                }
                PlannedStep::Step(step) => step,
            };
            match step {
                RouteStep::Buy(purchase) => {
                    let error = match self.buy_tab(route, &purchase, wanted) {
                        Ok(Some(open)) => return Ok(open),
                        // Another request bought the last unit of this look.
                        Ok(None) => continue,
                        Err(error) => error,
                    };
                    let is_budget = matches!(error, TextRouterError::Budget { .. });
                    let has_tab = self.lock_state().core.has_tab(route.model());
                    if !(is_budget && has_tab && Instant::now() < deadline) {
                        return Err(match wanted.key {
                            Some(_) => error.hide_budget(),
                            None => error,
                        });
                    }
                    // A tab that this buyer pays already is free in a moment.
                    let _ = tokio::time::timeout(BOOK_PERIOD, freed).await;
                }
                RouteStep::Wait if Instant::now() < deadline => {
                    let Ok(_waiting) = self.waiting.try_acquire() else {
                        let model = route.model().to_owned();
                        return Err(TextRouterError::SoldOut { model });
                    };
                    // Another buyer can free a slot too.
                    let _ = tokio::time::timeout(BOOK_PERIOD, freed).await;
                }
                RouteStep::Wait | RouteStep::GiveUp(_) if not_before.is_none() => {
                    not_before = Some(began);
                }
                RouteStep::Wait => {
                    let model = route.model().to_owned();
                    return Err(cover.explain(TextRouterError::SoldOut { model }));
                }
                RouteStep::GiveUp(lack) => {
                    let error = self.explain_lack(route.model(), lack, &asks).await;
                    return Err(cover.explain(error));
                }
                // The tab closed just now.
                RouteStep::UseTab(_) | RouteStep::LookUp => {}
            }
        }
    }

    /// Plans the next step of a request, and sends the request if the step is to use a tab.
    fn plan_step(
        &self,
        route: &mut Route,
        cover: &KeyCover<'_>,
        asks: Option<&[Listing]>,
    ) -> PlannedStep {
        let now = self.clock.now().tick;
        let mut state = self.lock_state();
        let RouterState { core, tabs, .. } = &mut *state;
        let free = tabs.iter();
        let free: FreeTabs = free
            .filter_map(|(id, open)| Some((*id, open.tab.free_provider()?)))
            .collect();
        let step = core.plan_step(now, route, &free, asks);
        let id = match step {
            RouteStep::UseTab(id) => id,
            RouteStep::Buy(purchase) if !cover.covers((&purchase.listing).into()) => {
                return PlannedStep::Uncovered((&purchase.listing).into());
            }
            step => return PlannedStep::Step(step),
        };
        let Some(open) = tabs.get(&id) else {
            return PlannedStep::Step(step);
        };
        if !cover.covers(open.rates) {
            return PlannedStep::Uncovered(open.rates);
        }
        let Some(asked) = open.tab.ask(cover.wanted.stored) else {
            return PlannedStep::Step(step);
        };
        let (provider, rates) = (open.tab.provider_cell(), open.rates);
        core.on_tab_used(id, route);
        cover.wanted.note_sent(rates, &asked);
        let open = OpenRequest {
            tab: id,
            provider,
            rates,
            answer: asked,
            request: cover.wanted.stored.request.clone(),
            began: now,
        };
        PlannedStep::Sent(Box::new(open))
    }

    /// Buys a tab for a request; none if other requests bought all units of the ask that a look at
    /// the book showed.
    fn buy_tab(
        &self,
        route: &Route,
        purchase: &TabPurchase,
        wanted: WantedPart<'_>,
    ) -> Result<Option<OpenRequest>, TextRouterError> {
        let listing = &purchase.listing;
        let worst = route.time_max(TokenRates::from(listing));
        let (duration, escrow) = self.reserve_escrow(listing, worst)?;
        if !self.looks.take_unit(route.model(), listing.order) {
            self.lock_state().spending.release(escrow);
            return Ok(None);
        }
        let log = self.transcripts.as_ref().map(|_| TabLog::default());
        let owner = TabOwner {
            freed: self.freed.clone(),
            log: log.clone(),
        };
        let opened = Tab::open(&self.buyer, purchase, duration, wanted.stored, owner);
        let opened = opened.inspect_err(|_| self.lock_state().spending.release(escrow))?;
        let Some((tab, asked, running)) = opened else {
            unreachable!("the offer sells a model");
        };
        let (provider, rates) = (tab.provider_cell(), TokenRates::from(listing));
        self.open_tabs.send_modify(|open| *open += 1);
        let id = {
            let mut state = self.lock_state();
            let id = state.core.on_tab_opened(route, listing);
            if !state.is_closed {
                state.tabs.insert(id, RoutedTab { tab, rates });
            }
            id
        };
        let (router, sold_by) = (self.clone(), provider.clone());
        let model = listing.resources.model.clone();
        tokio::spawn(async move {
            let outcome = running.await.unwrap_or_else(|panicked| {
                tracing::error!(%panicked, "the task of a tab ended");
                TabOutcome {
                    cost: escrow,
                    ..TabOutcome::default()
                }
            });
            let provider = sold_by.get().copied();
            if let (Some(log), Some(provider)) = (log, provider) {
                let receipt = outcome.receipt.clone();
                router
                    .keep(log.take_transcript(model.as_str(), provider, receipt))
                    .await;
            }
            router.on_tab_ended(id, provider, escrow, &outcome);
            // Its slot is free.
            router.looks.forget_model(model.as_str());
            // Who waits for a tab that does not come looks at the book now.
            router.freed.notify_waiters();
        });
        wanted.note_sent(rates, &asked);
        Ok(Some(OpenRequest {
            tab: id,
            provider,
            rates,
            request: wanted.stored.request.clone(),
            answer: asked,
            began: self.clock.now().tick,
        }))
    }

    /// Keeps the texts of a tab that ended.
    async fn keep(&self, transcript: Option<TabTranscript>) {
        let (Some(folder), Some(transcript)) = (self.transcripts.clone(), transcript) else {
            return;
        };
        let kept = tokio::task::spawn_blocking(move || folder.keep(&transcript)).await;
        if let Ok(Err(error)) = kept {
            self.observer.on_not_kept(&error);
        }
    }

    /// Records a failure of a request. Returns whether the request can try another provider.
    fn on_failed(&self, route: &mut Route, open: &OpenRequest, failure: RouteFailure) -> bool {
        let now = self.clock.now().tick;
        let provider = open.provider.get().copied();
        // Perhaps its slot was sold to another buyer.
        self.looks.forget_model(route.model());
        let mut state = self.lock_state();
        state
            .core
            .on_failed(now, route, open.tab, provider, failure)
    }

    /// Reserves the escrow of a tab within the budget, for a shorter tab if need be: its device
    /// time is no less than `worst`.
    fn reserve_escrow(
        &self,
        listing: &Listing,
        worst: DeviceMicros,
    ) -> Result<(Duration, Credits), TextRouterError> {
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
        let shortest = TAB_TIME_MIN
            .max(Duration::from_micros(worst.0))
            .min(longest);
        let duration = [longest, shortest].into_iter().find(fits);
        let Some(duration) = duration else {
            return Err(TextRouterError::Budget {
                budget: self.budget.unwrap_or_default().0,
                spent: spending.spent.0,
                held: spending.held.0,
                needed: escrow(shortest).0,
            });
        };
        let held = escrow(duration);
        state.spending.held = Credits(state.spending.held.0.saturating_add(held.0));
        Ok((duration, held))
    }

    fn on_tab_ended(
        &self,
        id: TabId,
        provider: Option<AccountKey>,
        escrow: Credits,
        outcome: &TabOutcome,
    ) {
        {
            let mut state = self.lock_state();
            let spending = &mut state.spending;
            spending.release(escrow);
            spending.spent = Credits(spending.spent.0.saturating_add(outcome.cost.0));
            spending.receipts += u64::from(outcome.receipt.is_some());
            state.core.on_tab_over(id);
            state.tabs.remove(&id);
        }
        self.observer.on_tab_ended(provider, outcome);
        self.open_tabs.send_modify(|open| *open -= 1);
    }

    fn lock_state(&self) -> MutexGuard<'_, RouterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
