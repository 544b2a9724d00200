//! The core of a buyer's router for texts: decides which open tab (a bought lease of an endpoint)
//! or which offer answers a request, and what to do after a failure.
//!
//! The router sends a request to the free open tab whose last conversation has the longest common
//! beginning with the request. If no tab is free, it draws one of the suitable offers and buys a
//! tab from it; the weight of an offer is one over the square of the request's cost there. While
//! another provider is healthy, the router avoids one that failed, for a time that grows with each
//! failure. If a provider refused a request that another one then answered, the router avoids it
//! for requests of that length. It tries a request at up to three providers before the first text;
//! if an answer breaks off later, other providers continue it.
//!
//! The shell tells the core the time, the free tabs, the asks in the book, and a seed.

mod exclusion;
mod health;
mod prefix;
mod rules;
mod seen_offers;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use souk_market::{AccountKey, Credits, DeviceMicros, EXCLUDED_MAX, Listing};

use crate::clock::Micros;
use crate::tokens::counting::{TokenCount, TokenRates};
use crate::tokens::text::TextRequest;
use exclusion::cheaper_providers;
use health::HealthTable;
use prefix::Prefix;
use seen_offers::SeenOffers;

pub use rules::{FLOOR_US_MAX, Misfit, OfferTerms, RouteSort, RoutingRules, TAB_TIME_MAX};

/// The most tries of a request in a row that bring no text.
pub const TRIES_MAX: u32 = 3;

/// How often another provider can continue an answer.
pub const CONTINUATIONS_MAX: u32 = 4;

/// The number of tabs that can close before they begin a request; after that the request fails.
const CLOSINGS_MAX: u32 = 8;

/// The most open tabs of a router: more requests wait.
pub const TABS_MAX: usize = 256;

/// The most providers that a look at the book leaves out: a validator accepts no more names.
const AVOIDED_MAX: usize = 1_024;

/// A model whose last tab was sold this long ago is sold out, and not unknown.
pub const SOLD_LATELY: Micros = Micros::from_seconds(600);

/// An answer with fewer tokens says nothing about the speed.
const MEASURED_TOKENS_MIN: u64 = 16;

/// The most tokens that the router expects of an answer: most answers are shorter than their
/// requests allow.
const EXPECTED_TOKENS_MAX: u64 = 512;

/// The scale of weights: a ratio of prices is a fraction of this.
const WEIGHT_SCALE: u128 = 1 << 16;

/// A tab of the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TabId(pub u64);

/// The tabs that can take a request now, and their providers.
pub type FreeTabs = BTreeMap<TabId, AccountKey>;

/// A request and the state of the search for its answer.
#[derive(Clone, Debug)]
pub struct Route {
    model: String,
    rules: RoutingRules,
    /// The tokens that it is expected to have.
    expected: TokenCount,
    /// The most tokens that it can be billed as.
    most: TokenCount,
    /// The most tokens that it can have, and the most that these may cost.
    cost_max: Option<(TokenCount, Credits)>,
    prefix: Prefix,
    /// The providers that failed at it.
    failed: Vec<AccountKey>,
    /// Those of them that refused it, or answered it without text.
    refused: Vec<AccountKey>,
    tries: u32,
    closings: u32,
    continuations: u32,
    /// Whether the next provider must continue a text.
    continues: bool,
    seed: u64,
    draws: u64,
}

/// The next step of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum RouteStep {
    /// Send it over this tab.
    UseTab(TabId),
    /// Look at the book, and plan again with its asks.
    LookUp,
    /// Buy a tab from this ask.
    Buy(Box<TabPurchase>),
    /// Wait until a tab is free or the book changes, and plan again.
    Wait,
    /// Nothing can answer it now.
    GiveUp(NoRoute),
}

/// A tab to buy.
#[derive(Clone, Debug, PartialEq)]
pub struct TabPurchase {
    /// The ask.
    pub listing: Listing,
    /// The providers not to buy from.
    pub excluded: Vec<AccountKey>,
    /// Whether only the provider of the ask can sell the tab.
    pub is_strict: bool,
}

/// Why no offer can answer a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRoute {
    /// The book has no ask for the model, and had none lately.
    Unsold,
    /// All slots of the offers that suit are taken.
    SoldOut,
    /// The book has asks for the model, and none suits: how many do not, by cause.
    Unsuitable(BTreeMap<Misfit, u32>),
}

/// How a provider failed at a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteFailure {
    /// Its engine has no room now.
    Busy,
    /// It could not be reached, or broke off.
    Failed,
    /// Its engine refused the request, or answered it without text. Perhaps the request is at
    /// fault: only the answer of another provider shows that it is not.
    Refused,
    /// Its engine did not continue the text of another one.
    NotContinued,
    /// The tab was over before it began the request, which says nothing about the provider.
    TabOver,
    /// It sold a tab that the request did not want, since its ask came first in the book. The
    /// request does not buy from it again.
    OtherProvider,
}

/// The core of a router.
#[derive(Clone, Debug, Default)]
pub struct RouterCore {
    tabs: BTreeMap<TabId, TabRecord>,
    next_tab: u64,
    health: HealthTable,
    seen: SeenOffers,
}

#[derive(Clone, Debug)]
struct TabRecord {
    model: String,
    /// The terms that it was bought at. The provider can be another, cheaper one.
    terms: OfferTerms,
    /// The conversation that its engine read last.
    prefix: Prefix,
    /// Whether it takes no further requests, and waits only for its end.
    is_ending: bool,
}

/// A tab or an offer that suits a request.
struct Candidate {
    place: Place,
    /// The place in the request's own order, the first one least.
    rank: (usize, u64),
    /// What the request is expected to cost, in any unit.
    cost: u64,
}

#[derive(Clone, Copy)]
enum Place {
    Tab(TabId, u64),
    Offer(usize),
}

impl Route {
    /// Begins the search for an answer to a request. The seed determines its draws.
    #[must_use]
    pub fn new(model: &str, request: &TextRequest, rules: RoutingRules, seed: u64) -> Route {
        let most = request.count_max();
        let output = u64::from(request.tokens_max).min(EXPECTED_TOKENS_MAX);
        Route {
            model: model.to_owned(),
            rules,
            expected: TokenCount { output, ..most },
            most,
            cost_max: None,
            prefix: Prefix::of_messages(&request.messages),
            failed: Vec::new(),
            refused: Vec::new(),
            tries: 0,
            closings: 0,
            continuations: 0,
            continues: false,
            seed,
            draws: 0,
        }
    }

    /// Returns the model that it is for.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Excludes from now on the offers at which `tokens` cost more than `cost_max`.
    pub fn limit_cost(&mut self, tokens: TokenCount, cost_max: Credits) {
        self.cost_max = Some((tokens, cost_max));
    }

    /// Returns whether an offer is dearer than it allows.
    fn is_too_dear(&self, rates: TokenRates) -> bool {
        let is_over = |(tokens, most)| rates.cost_of(tokens) > most;
        self.cost_max.is_some_and(is_over)
    }

    /// Returns the most device time that it can cost at an offer.
    #[must_use]
    pub fn time_max(&self, rates: TokenRates) -> DeviceMicros {
        self.most.device_time(rates.terms)
    }

    /// Returns the most tokens that it can have, messages included.
    fn tokens_max(&self) -> u64 {
        self.most.total()
    }

    /// Returns what it is expected to cost at an offer, in millionths of a micro-credit.
    fn expected_cost(&self, rates: TokenRates) -> u64 {
        let time = self.expected.device_time(rates.terms);
        time.0.saturating_mul(rates.price.0)
    }

    /// Returns the providers that failed at it.
    #[must_use]
    pub fn failed(&self) -> &[AccountKey] {
        &self.failed
    }

    /// Records that text arrived, so that the request has all its tries again.
    pub fn on_text(&mut self) {
        (self.tries, self.closings) = (0, 0);
    }

    /// Begins the search for a provider that gives the rest of the answer. Returns whether another
    /// continuation is allowed. Without `continues`, the next provider begins the answer again.
    pub fn begin_rest(&mut self, continues: bool) -> bool {
        self.continues = continues;
        // What the key had left was for another request.
        self.cost_max = None;
        self.continuations += 1;
        self.continuations <= CONTINUATIONS_MAX
    }

    /// Returns whether it is for the rest of an answer.
    #[must_use]
    pub fn is_rest(&self) -> bool {
        self.continuations > 0
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.draws += 1;
        // SplitMix64: the draws of near seeds are independent.
        let step = self.draws.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut word = self.seed.wrapping_add(step);
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % below
    }
}

impl RouterCore {
    /// Plans the next step of a request by the tabs alone, or by the tabs and the model's asks in
    /// the book if you have just read them.
    #[must_use]
    pub fn plan_step(
        &mut self,
        now: Micros,
        route: &mut Route,
        free: &FreeTabs,
        asks: Option<&[Listing]>,
    ) -> RouteStep {
        let Some(asks) = asks else {
            let tabs = self.tab_candidates(now, route, free);
            return match route.rules.is_ordered() {
                // An offer can come before a tab.
                true => RouteStep::LookUp,
                false => self.choose(route, tabs, &[]).unwrap_or(RouteStep::LookUp),
            };
        };
        for ask in asks {
            self.seen.on_seen(now, &route.model, OfferTerms::from(ask));
        }
        let mut candidates = self.tab_candidates(now, route, free);
        let mut misfits = BTreeMap::new();
        let mut cooling = Vec::new();
        for (at, ask) in asks.iter().enumerate() {
            let offer = OfferTerms::from(ask);
            let misfit = self.find_misfit(now, route, &offer);
            let misfit = misfit.or_else(|| {
                let cheaper = cheaper_providers(asks, at, &route.failed);
                (cheaper.len() > EXCLUDED_MAX).then_some(Misfit::OutOfReach)
            });
            if let Some(misfit) = misfit {
                *misfits.entry(misfit).or_default() += 1;
                continue;
            }
            let candidate = self.to_candidate(route, Place::Offer(at), &offer);
            let health = self.health.find(offer.provider);
            match health.is_healthy_for(now, route.tokens_max()) {
                true => candidates.push(candidate),
                false => cooling.push((health.left_alone_until(route.tokens_max()), candidate)),
            }
        }
        if self.tabs.len() >= TABS_MAX {
            candidates.retain(|it| matches!(it.place, Place::Tab(..)));
            cooling.clear();
        }
        if candidates.is_empty() {
            // All are left alone: the one that recovers first is better than none.
            let first = cooling.into_iter().min_by_key(|(until, _)| *until);
            candidates.extend(first.map(|(_, candidate)| candidate));
        }
        match self.choose(route, candidates, asks) {
            Some(step) => step,
            None => self.explain_lack(now, route, asks, misfits),
        }
    }

    /// Records a tab that the shell is buying for a request.
    pub fn on_tab_opened(&mut self, route: &Route, listing: &Listing) -> TabId {
        let id = TabId(self.next_tab);
        self.next_tab += 1;
        let tab = TabRecord {
            model: route.model.clone(),
            terms: OfferTerms::from(listing),
            prefix: route.prefix.clone(),
            is_ending: false,
        };
        self.tabs.insert(id, tab);
        id
    }

    /// Records that a request was sent over a tab.
    pub fn on_tab_used(&mut self, tab: TabId, route: &Route) {
        if let Some(tab) = self.tabs.get_mut(&tab) {
            tab.prefix = route.prefix.clone();
        }
    }

    /// Returns whether a tab of a model is open.
    #[must_use]
    pub fn has_tab(&self, model: &str) -> bool {
        self.tabs.values().any(|tab| tab.model == model)
    }

    /// Notes that a tab is over.
    pub fn on_tab_over(&mut self, tab: TabId) {
        self.tabs.remove(&tab);
    }

    /// Notes the first text of an answer, `after` the request was sent over its tab.
    pub fn on_first_text(&mut self, now: Micros, provider: AccountKey, after: Micros) {
        self.health.on_first_text(now, provider, after);
    }

    /// Records the whole answer to a request: its tokens, and the time from the first to the last
    /// one. It shows that providers which refused the request were wrong.
    pub fn on_answered(
        &mut self,
        now: Micros,
        route: &Route,
        provider: AccountKey,
        tokens: u64,
        took: Micros,
    ) {
        let is_enough = tokens >= MEASURED_TOKENS_MIN;
        let each = || Micros(took.0.saturating_mul(1_000) / tokens);
        let measured = is_enough.then(each);
        let asked = route.tokens_max();
        self.health.on_answered(now, provider, asked, measured);
        for refusing in &route.refused {
            self.health.on_wrong_refusal(now, *refusing, asked);
        }
    }

    /// Records a failure at a tab. The provider is none if the tab was not bought. Returns whether
    /// the router can try the request again.
    #[must_use]
    pub fn on_failed(
        &mut self,
        now: Micros,
        route: &mut Route,
        tab: TabId,
        provider: Option<AccountKey>,
        failure: RouteFailure,
    ) -> bool {
        let ends_tab = matches!(
            failure,
            RouteFailure::Failed
                | RouteFailure::Refused
                | RouteFailure::TabOver
                | RouteFailure::OtherProvider
        );
        if let Some(tab) = self.tabs.get_mut(&tab).filter(|_| ends_tab) {
            tab.is_ending = true;
        }
        match (provider, failure) {
            (None, _) | (_, RouteFailure::TabOver) => route.closings += 1,
            (Some(provider), RouteFailure::OtherProvider) => {
                route.closings += 1;
                if !route.failed.contains(&provider) {
                    route.failed.push(provider);
                }
            }
            (Some(provider), failure) => {
                self.health.on_failed(now, provider, failure);
                if failure == RouteFailure::Refused {
                    route.refused.push(provider);
                }
                route.tries += 1;
                if !route.failed.contains(&provider) {
                    route.failed.push(provider);
                }
            }
        }
        let tries_max = match route.rules.is_single_try() {
            true => 1,
            false => TRIES_MAX,
        };
        route.tries < tries_max
            && route.closings < CLOSINGS_MAX
            && route.failed.len() < EXCLUDED_MAX
    }

    /// Returns the providers that a look at the book for a request can leave out: the request does
    /// not go to them, or only if there is no other.
    #[must_use]
    pub fn list_avoided(&self, now: Micros, route: &Route) -> Vec<AccountKey> {
        let named = route.failed.iter().chain(&route.rules.distrusted).copied();
        let ignored = route.rules.ignored_accounts();
        let left = self.health.iter_left_alone(now, route.tokens_max());
        let avoided: BTreeSet<AccountKey> = named.chain(ignored).chain(left).collect();
        avoided.into_iter().take(AVOIDED_MAX).collect()
    }

    /// Returns why an offer does not suit a request; none if it does.
    fn find_misfit(&self, now: Micros, route: &Route, offer: &OfferTerms) -> Option<Misfit> {
        if let Some(misfit) = route.rules.find_misfit(offer) {
            return Some(misfit);
        }
        if route.is_too_dear(offer.rates) {
            return Some(Misfit::Price);
        }
        if route.time_max(offer.rates) > offer.time {
            return Some(Misfit::Short);
        }
        if route.failed.contains(&offer.provider) {
            return Some(Misfit::Failed);
        }
        let can_continue = self.health.find(offer.provider).can_continue(now);
        (route.continues && !can_continue).then_some(Misfit::NoContinuation)
    }

    /// Returns the free tabs of healthy providers that suit a request.
    fn tab_candidates(&self, now: Micros, route: &Route, free: &FreeTabs) -> Vec<Candidate> {
        let candidate = |(id, provider): (&TabId, &AccountKey)| {
            let tab = self.tabs.get(id)?;
            let terms = self.to_tab_terms(tab, *provider);
            let health = self.health.find(*provider);
            let is_healthy = health.is_healthy_for(now, route.tokens_max());
            let suits = tab.model == route.model
                && !tab.is_ending
                && is_healthy
                && self.find_misfit(now, route, &terms).is_none();
            let shared = tab.prefix.shared_bytes(&route.prefix);
            suits.then(|| self.to_candidate(route, Place::Tab(*id, shared), &terms))
        };
        free.iter().filter_map(candidate).collect()
    }

    /// Returns the terms of a tab at the provider that sold it.
    fn to_tab_terms(&self, tab: &TabRecord, provider: AccountKey) -> OfferTerms {
        let mut terms = tab.terms.clone();
        if provider != terms.provider {
            let seen = self.seen.find(&tab.model, provider);
            terms.name = seen.map(|seen| seen.name.clone()).unwrap_or_default();
            terms.provider = provider;
        }
        terms
    }

    fn to_candidate(&self, route: &Route, place: Place, offer: &OfferTerms) -> Candidate {
        let health = self.health.find(offer.provider);
        let cost = route.expected_cost(offer.rates);
        // A provider that was never measured comes first, so that it is.
        let measured = |figure: Option<Micros>| figure.map_or(0, |it| it.0);
        let figure = match route.rules.sort {
            None => 0,
            Some(RouteSort::Price) => cost,
            Some(RouteSort::Throughput) => measured(health.thousand_tokens),
            Some(RouteSort::Latency) => measured(health.first_text),
        };
        Candidate {
            place,
            rank: (route.rules.order_place(offer), figure),
            cost,
        }
    }

    /// Chooses among the candidates of the first rank: the tab with the longest prefix, or an offer
    /// by a draw.
    fn choose(
        &self,
        route: &mut Route,
        mut candidates: Vec<Candidate>,
        asks: &[Listing],
    ) -> Option<RouteStep> {
        let first = candidates.iter().map(|it| it.rank).min()?;
        candidates.retain(|it| it.rank == first);
        let tabs = candidates.iter().filter_map(|it| match it.place {
            Place::Tab(id, shared) => Some((shared, std::cmp::Reverse((it.cost, id)))),
            Place::Offer(_) => None,
        });
        if let Some((_, std::cmp::Reverse((_, id)))) = tabs.max() {
            return Some(RouteStep::UseTab(id));
        }
        let costs: Vec<u64> = candidates.iter().map(|it| it.cost).collect();
        let Place::Offer(at) = candidates[draw_by_cost(route, &costs)].place else {
            unreachable!("there is no tab among them");
        };
        Some(RouteStep::Buy(Box::new(TabPurchase {
            listing: asks[at].clone(),
            excluded: cheaper_providers(asks, at, &route.failed),
            is_strict: route.rules.is_strict(),
        })))
    }

    fn explain_lack(
        &self,
        now: Micros,
        route: &Route,
        asks: &[Listing],
        misfits: BTreeMap<Misfit, u32>,
    ) -> RouteStep {
        let can_free = |tab: &TabRecord| {
            tab.model == route.model
                && !tab.is_ending
                && self.find_misfit(now, route, &tab.terms).is_none()
        };
        if self.tabs.len() >= TABS_MAX || self.tabs.values().any(can_free) {
            return RouteStep::Wait;
        }
        let is_gone = |offer: &OfferTerms| asks.iter().all(|ask| ask.provider != offer.provider);
        let mut lately = self.seen.iter_lately(now, &route.model);
        let suits = lately.any(|it| is_gone(it) && self.find_misfit(now, route, it).is_none());
        RouteStep::GiveUp(match (misfits.is_empty(), suits) {
            (_, true) => NoRoute::SoldOut,
            (true, false) => NoRoute::Unsold,
            (false, false) => NoRoute::Unsuitable(misfits),
        })
    }
}

/// Draws one of these costs, each with a weight of one over its square.
fn draw_by_cost(route: &mut Route, costs: &[u64]) -> usize {
    let least = costs.iter().map(|cost| (*cost).max(1)).min().unwrap_or(1);
    let weight = |cost: &u64| {
        let share = u128::from(least) * WEIGHT_SCALE / u128::from((*cost).max(1));
        u64::try_from((share * share).max(1)).expect("it is at most 2^32")
    };
    let weights: Vec<u64> = costs.iter().map(weight).collect();
    let mut drawn = route.draw(weights.iter().sum::<u64>().max(1));
    for (at, weight) in weights.iter().enumerate() {
        if drawn < *weight {
            return at;
        }
        drawn -= weight;
    }
    unreachable!("the draw is below the sum")
}
