//! Computes the quote of a job: which parts run where, for how long and at what price. A buyer gets
//! one before it submits a job, and the planner one for each new plan. No money moves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use souk_market::{AccountKey, Credits, Features, Listing, Millis, Units};
use souk_memory::{ContentId, DType, Tensor};
use souk_network::protocols::demands::{Choice, Demands};
use souk_network::protocols::unsuitable::Unsuitable;
use souk_roles::job::Exclusion;
use souk_roles::market::operators as numbers;
use souk_sandbox::device::operators::{self, ModelOperators};
use souk_sandbox::device::{ask_resources, backends, kernels};
use souk_scheduler::graph::cost::{Cost, OperatorClass};
use souk_scheduler::graph::cut::{Boundary, Subgraph};
use souk_scheduler::graph::{Bindings, Graph, ImportError};
use souk_scheduler::planning::{
    Objective, Offer, Plan, PlanError, PlanOptions, PlannedPart, Weights, cost_seconds,
    node_seconds, pareto_plans, plan_graph,
};

use super::Buyer;
use super::job_priority::QueuedJob;
use super::lease_length::{MICRO, comfortable_lease, session_hop_seconds, shortest_lease};
use super::quote_error::QuoteError;
use crate::buyer::job::{Job, Limits};
use crate::buyer::link_estimates::LinkEstimates;
use crate::buyer::past_times::{Overheads, PlannedWork};

/// The quote of a job over the book.
#[derive(Clone, Debug)]
pub struct Quote {
    /// The model with bound inputs.
    pub graph: Graph,
    /// The asks that suit the job's limits; the plan's offers, in the same order.
    pub listings: Vec<Listing>,
    /// The estimates of links in the plan.
    pub(super) ways: LinkEstimates,
    /// How many asks the book has.
    pub seen: u64,
    /// How many of them suit.
    pub eligible: u64,
    /// Why the others do not suit, by cause.
    pub unsuitable: Vec<Unsuitable>,
    /// The operators of the model that some asks do not run, rarest first.
    pub scarce: Vec<ScarceOperator>,
    /// Which part runs where and when; its costs are in micro-credits.
    pub plan: Plan,
    /// The plan's parts as models, in an order in which they can run.
    pub parts: Vec<Subgraph>,
    /// If the job compares two results: for each used offer, the one that runs its parts again.
    pub seconds: Vec<usize>,
    /// What the plan minimises.
    pub objective: Objective,
    /// How many requests the quote covers; the plan's times and costs are those of all of them.
    pub requests: u32,
    /// How long the requests of a session wait at its providers in addition, in seconds.
    pub hop_seconds: f64,
    /// What earlier jobs at its providers took beyond their plans.
    pub(super) overheads: Overheads,
    /// Its place among the buyer's jobs, until its leases are bought.
    pub(super) turn: Arc<QueuedJob>,
}

/// An operator of the model that some asks do not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ScarceOperator {
    /// The name of the operator.
    pub operator: String,
    /// How many asks run it.
    pub asks: u64,
}

/// Another plan that a buyer can choose: none is both faster and cheaper.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternative {
    /// Time to the last output, in seconds.
    pub seconds: f64,
    /// The price of the planned device time.
    pub price: Credits,
    /// The devices that it uses.
    pub devices: Vec<String>,
}

impl Quote {
    /// Checks that no index of a later request of the same shapes is out of range.
    ///
    /// # Errors
    /// [`QuoteError::Import`] with the first such index.
    pub fn check_request(&self, inputs: &BTreeMap<String, Tensor>) -> Result<(), QuoteError> {
        Ok(self.graph.check_indices(inputs)?)
    }

    /// Returns a hash that two quotes share if they run the same parts on the same providers at the
    /// same prices.
    pub fn hash(&self) -> ContentId {
        let mut words = Vec::new();
        for part in &self.parts {
            words.extend_from_slice(part.id.as_bytes());
            let listing = self.part_listing(part.part);
            words.extend_from_slice(&listing.provider.0);
            words.extend_from_slice(&listing.price.0.to_le_bytes());
        }
        for second in &self.seconds {
            words.extend_from_slice(&self.listings[*second].provider.0);
            words.extend_from_slice(&self.listings[*second].price.0.to_le_bytes());
        }
        ContentId::for_content(&words)
    }

    /// Returns the ask that runs a part.
    pub fn part_listing(&self, part: usize) -> &Listing {
        &self.listings[self.plan.parts[part].offer]
    }

    /// Returns the name of an offer's device, marked if it is emulated.
    #[must_use]
    pub fn device_name(&self, offer: usize) -> String {
        ask_resources::device_label(&self.listings[offer].resources)
    }

    /// Returns the price of the planned device time, second runs included.
    pub fn price(&self) -> Credits {
        let first: u64 = (0..self.plan.parts.len())
            .map(|part| self.part_price(part).0)
            .sum();
        let second = (0..self.seconds.len()).map(|place| {
            let per_second = self.listings[self.seconds[place]].price.0 as f64;
            (self.second_seconds(place) * per_second).ceil() as u64
        });
        Credits(first + second.sum::<u64>())
    }

    /// Returns the seconds from the first byte to the last result, second runs included.
    pub fn run_seconds(&self) -> f64 {
        let second = (0..self.seconds.len()).map(|place| self.second_seconds(place));
        self.plan.makespan_seconds + second.fold(0.0, f64::max)
    }

    /// Returns the device time of the parts that the nth second run repeats.
    fn second_seconds(&self, place: usize) -> f64 {
        let first = self.plan.used_offers()[place];
        let parts = self.plan.parts.iter().filter(|part| part.offer == first);
        parts
            .map(|part| self.seconds_on(part, self.seconds[place]))
            .sum()
    }

    /// Returns the device time of a planned part on any of the offers, by the figures of its ask.
    pub(super) fn seconds_on(&self, part: &PlannedPart, on: usize) -> f64 {
        if part.offer == on {
            return part.busy_seconds;
        }
        let offer = to_offer(&self.listings[on]);
        let nodes = part.nodes.iter().map(|node| self.graph.node(*node));
        nodes.map(|node| node_seconds(node, &offer)).sum()
    }

    /// Returns the ratio of the actual to the stated work of the uncertain nodes, in a job whose
    /// devices computed for this long; none if all work is known before the run.
    pub(super) fn turns_of(&self, computed: f64) -> Option<f64> {
        if self.graph.is_certain() {
            return None;
        }
        let (mut certain, mut uncertain) = (0.0, 0.0);
        for part in &self.plan.parts {
            let offer = to_offer(&self.listings[part.offer]);
            for node in part.nodes.iter().map(|node| self.graph.node(*node)) {
                let seconds = node_seconds(node, &offer);
                match node.cost.certain {
                    true => certain += seconds,
                    false => uncertain += seconds,
                }
            }
        }
        Some(self.graph.unknown_work_factor() * (computed - certain).max(0.0) / uncertain)
    }

    /// Returns the time of a fixed reference work by the figures of this plan.
    pub(super) fn reference_seconds(&self) -> f64 {
        let offers = self.plan.used_offers().into_iter();
        estimate_reference(offers.map(|offer| &self.listings[offer]))
    }

    /// Returns the providers that run its parts.
    pub(super) fn providers(&self) -> Vec<AccountKey> {
        let offers = self.plan.used_offers().into_iter();
        offers.map(|offer| self.listings[offer].provider).collect()
    }

    /// Returns the time to send every provider the weights of its parts, by the measured links, or
    /// else by the stated ones. A provider that already holds the weights needs none of it.
    pub fn upload_seconds(&self) -> f64 {
        let links = self.ways.estimate_links(&self.listings).buyer;
        let each = self.parts.iter().map(|part| {
            let bytes: u64 = part.weights.iter().map(|weight| weight.byte_length).sum();
            let link = &links[self.plan.parts[part.part].offer];
            bytes as f64 / link.bytes_per_second.max(1.0)
        });
        each.sum()
    }

    /// Returns the operations of a part; 0 if its provider cannot know them before the run.
    pub(super) fn flops_known(&self, part: &Subgraph) -> u64 {
        let planned = &self.plan.parts[part.part];
        let nodes = planned.nodes.iter().map(|node| self.graph.node(*node));
        let known = ask_resources::is_known(nodes);
        // The part's graph lacks values that the plan computed from the contents of an input.
        let read = |boundary: &Boundary| {
            let fact = &self.graph.value(boundary.value).fact;
            fact.ints.is_some() || fact.floats.is_some()
        };
        match known && !part.inputs.iter().any(read) {
            true => planned.flops,
            false => 0,
        }
    }

    /// Returns the price of a part's planned device time for all requests, rounded up.
    pub fn part_price(&self, part: usize) -> Credits {
        let per_second = self.part_listing(part).price.0 as f64;
        let seconds = self.plan.parts[part].busy_seconds * f64::from(self.requests);
        Credits((seconds * per_second).ceil() as u64)
    }

    /// Returns the energy of the planned work in joules, if every device states its power.
    pub fn joules(&self) -> Option<f64> {
        self.plan.joules
    }

    /// Returns the plans between which time and price are a trade-off, fastest first.
    ///
    /// # Errors
    /// As for the quote itself.
    pub fn find_alternatives(&self, limits: &Limits) -> Result<Vec<Alternative>, QuoteError> {
        let offers: Vec<Offer> = self.listings.iter().map(to_offer).collect();
        let options = plan_options(limits);
        let front = pareto_plans(
            &self.graph,
            &offers,
            &self.ways.estimate_links(&self.listings),
            &options,
        );
        let alternative = |plan: &Plan| Alternative {
            seconds: plan.makespan_seconds,
            // Rounded up for each part, as in receipts.
            price: Credits(plan.parts.iter().map(|part| part.cost.ceil() as u64).sum()),
            devices: plan.parts.iter().map(|part| part.label.clone()).collect(),
        };
        Ok(front.map_err(from_plan)?.iter().map(alternative).collect())
    }
}

/// Imports the graph of a job and checks what the graph alone can show; which devices can run it
/// follows from the asks.
pub(super) fn import_checked_graph(job: &Job) -> Result<Graph, QuoteError> {
    let graph = import_graph(job)?;
    graph.check_indices(&job.inputs)?;
    operators::check_kernels(&graph)?;
    Ok(graph)
}

/// Plans a graph over the current book, without the excluded asks.
pub(super) async fn over_book(
    buyer: &Buyer,
    graph: Graph,
    limits: &Limits,
    excluded: &[Exclusion],
    turn: &Arc<QueuedJob>,
) -> Result<Quote, QuoteError> {
    let needed = operators::needed_operators(&graph);
    let demands = build_demands(buyer, limits, &graph, &needed);
    turn.announce_demands(&demands);
    let choice = buyer.broker().choose_asks(demands).await?;
    let scarce = scarce_operators(&needed, &choice);
    let Choice {
        seen,
        eligible,
        mut listings,
        unsuitable,
        ..
    } = choice;
    listings.retain(|listing| !excluded.iter().any(|it| it.rules_out(listing)));
    let absent = scarce.iter().filter(|it| it.asks == 0);
    let named = |it: &ScarceOperator| {
        let node = operators::first_with(&graph, &it.operator);
        (it.operator.clone(), node.unwrap_or_default().to_owned())
    };
    let operators: Vec<(String, String)> = absent.map(named).collect();
    if !operators.is_empty() && (seen > 0 || !needed.unknown.is_empty()) {
        return Err(QuoteError::Operators { operators, seen });
    }
    if listings.is_empty() {
        return Err(QuoteError::NoneEligible { seen, unsuitable });
    }
    let limits = with_room_for_seconds(limits, listings.len())?;
    let ways = buyer.link_estimates();
    let (listings, plan) = within_budget(&graph, listings, &ways, &limits)?;
    let parts = plan.cut_graph(&graph)?;
    let seconds = if limits.copies > 1 {
        choose_second_offers(&graph, &listings, &plan)?
    } else {
        Vec::new()
    };
    let used = plan.used_offers().into_iter();
    let taken: Vec<usize> = used.chain(seconds.iter().copied()).collect();
    turn.check_precedence(taken.iter().map(|offer| &listings[*offer]))?;
    let providers: Vec<_> = taken.iter().map(|it| listings[*it].provider).collect();
    Ok(Quote {
        hop_seconds: session_hop_seconds(&limits, &plan),
        overheads: buyer.past.estimate_overheads(
            &providers,
            PlannedWork {
                seconds: plan.makespan_seconds,
                reference: estimate_reference(taken.iter().map(|it| &listings[*it])),
            },
        ),
        graph,
        listings,
        ways,
        seen,
        eligible,
        unsuitable,
        scarce,
        plan,
        parts,
        seconds,
        objective: limits.objective,
        requests: limits.requests,
        turn: turn.clone(),
    })
}

/// Returns the time of a fixed reference work on the slowest of these devices, by the figures of
/// their asks: a few small operators and a product.
fn estimate_reference<'a>(listings: impl Iterator<Item = &'a Listing>) -> f64 {
    let small = Cost {
        flops: 1_000,
        bytes_read: 4_000,
        bytes_written: 4_000,
        ..Cost::default()
    };
    let product = Cost {
        class: OperatorClass::Matmul,
        dtype: Some(DType::F32),
        flops: 1_000_000,
        ..small
    };
    let seconds = |listing: &Listing| {
        let offer = to_offer(listing);
        4.0 * cost_seconds(&small, &offer) + cost_seconds(&product, &offer)
    };
    listings.map(seconds).fold(f64::MIN_POSITIVE, f64::max)
}

/// Limits a plan to half of the providers if each part runs twice.
fn with_room_for_seconds(limits: &Limits, offers: usize) -> Result<Limits, QuoteError> {
    let mut limits = limits.clone();
    if limits.copies > 1 {
        let needed = limits.providers_min.max(1) * 2;
        if offers < needed {
            let free = offers;
            return Err(QuoteError::TooFewSeconds { needed, free });
        }
        limits.providers_max = limits.providers_max.min(offers / 2);
    }
    Ok(limits)
}

/// Returns, for each offer of the plan, the cheapest unused offer that has enough memory and runs
/// all its operators.
fn choose_second_offers(
    graph: &Graph,
    listings: &[Listing],
    plan: &Plan,
) -> Result<Vec<usize>, QuoteError> {
    let first = plan.used_offers();
    let mut free: Vec<usize> = (0..listings.len()).filter(|o| !first.contains(o)).collect();
    free.sort_by_key(|offer| listings[*offer].price);
    let mut seconds = Vec::with_capacity(first.len());
    for offer_of in &first {
        let parts = plan.parts.iter().filter(|part| part.offer == *offer_of);
        let memory = parts.map(|part| part.memory_bytes).max().unwrap_or(0);
        let taken = |other: &usize| {
            let provider = listings[*other].provider;
            let all = first.iter().chain(&seconds);
            all.map(|taken: &usize| listings[*taken].provider)
                .any(|taken| taken == provider)
        };
        let runs_all = |other: usize| {
            let runs = to_offer(&listings[other]).operators;
            let mut parts = plan.parts.iter().filter(|part| part.offer == *offer_of);
            parts.all(|part| part.nodes.iter().all(|it| runs.contains(graph.node(*it))))
        };
        let suits = |other: &&usize| {
            listings[**other].resources.memory_bytes >= memory && runs_all(**other)
        };
        let found = free
            .iter()
            .filter(suits)
            .find(|other| !taken(other))
            .copied();
        let (needed, free) = (first.len() * 2, listings.len());
        let few = QuoteError::TooFewSeconds { needed, free };
        seconds.push(found.ok_or(few)?);
    }
    Ok(seconds)
}

/// Plans by the limits; if the escrow of that plan exceeds the budget, chooses one with less
/// escrow.
fn within_budget(
    graph: &Graph,
    listings: Vec<Listing>,
    ways: &LinkEstimates,
    limits: &Limits,
) -> Result<(Vec<Listing>, Plan), QuoteError> {
    let planned = plan_over(graph, &listings, ways, limits)?;
    let Some(budget) = limits.budget else {
        return Ok((listings, planned));
    };
    let lasts = |plan: &Plan| plan.makespan_seconds + session_hop_seconds(limits, plan);
    let comfortable = comfortable_lease(lasts(&planned));
    if total_escrow(&listings, &planned, limits, comfortable) <= budget {
        return Ok((listings, planned));
    }
    let cheapest = Limits {
        objective: Objective::Cheapest,
        budget: None,
        ..limits.clone()
    };
    let price = plan_over(graph, &listings, ways, &cheapest)?.cost;
    // The cheapest provider alone gives the longest lease for the money.
    let mut options = vec![(listings.clone(), planned)];
    if limits.providers_min <= 1 {
        let least = listings.iter().map(|listing| listing.price).min();
        let mut few = listings;
        few.retain(|listing| limits.copies > 1 || Some(listing.price) == least);
        let single = Limits {
            providers_max: 1,
            ..cheapest
        };
        // It may be too small for the job.
        let planned = plan_over(graph, &few, ways, &single).ok();
        options.extend(planned.map(|planned| (few, planned)));
    }
    let needed = |(listings, plan): &(Vec<Listing>, Plan)| {
        total_escrow(listings, plan, limits, shortest_lease(lasts(plan)))
    };
    let cheapest = options
        .into_iter()
        .min_by_key(needed)
        .expect("there is at least one plan");
    let needed = needed(&cheapest);
    if needed > budget {
        return Err(QuoteError::Escrow {
            cheapest: price / MICRO,
            needed: needed.0 as f64 / MICRO,
            budget: budget.0 as f64 / MICRO,
        });
    }
    Ok(cheapest)
}

/// Returns the escrow of a plan's leases, second runs included.
fn total_escrow(listings: &[Listing], plan: &Plan, limits: &Limits, duration: Millis) -> Credits {
    let offers = plan.used_offers().into_iter();
    let prices = offers.map(|offer| listings[offer].price);
    let each = prices.filter_map(|price| price.escrow_for(Units(1), duration));
    Credits(
        each.map(|escrow| escrow.0)
            .sum::<u64>()
            .saturating_mul(limits.copies.max(1) as u64),
    )
}

fn plan_over(
    graph: &Graph,
    listings: &[Listing],
    ways: &LinkEstimates,
    limits: &Limits,
) -> Result<Plan, QuoteError> {
    let offers: Vec<Offer> = listings.iter().map(to_offer).collect();
    let options = plan_options(limits);
    plan_graph(graph, &offers, &ways.estimate_links(listings), &options).map_err(from_plan)
}

fn from_plan(error: PlanError) -> QuoteError {
    match error {
        PlanError::Budget { cheapest, budget } => QuoteError::Budget {
            cheapest: cheapest / MICRO,
            budget: budget / MICRO,
        },
        PlanError::TooFewOffers {
            min_devices: wanted,
            offers: free,
        } => QuoteError::TooFewProviders { wanted, free },
        other => QuoteError::Plan(other),
    }
}

/// Returns the operators that some asks do not run, unknown ones included.
fn scarce_operators(needed: &ModelOperators, choice: &Choice) -> Vec<ScarceOperator> {
    let unknown = needed.unknown.iter().map(|name| (name.clone(), 0));
    let known = choice.scarce.iter();
    let known = known.map(|it| (numbers::name(it.operator.into()).to_owned(), it.asks));
    let all = unknown.chain(known);
    all.map(|(operator, asks)| ScarceOperator { operator, asks })
        .collect()
}

fn build_demands(
    buyer: &Buyer,
    limits: &Limits,
    graph: &Graph,
    needed: &ModelOperators,
) -> Demands {
    Demands {
        buyer: buyer.account(),
        excluded: limits.excluded.clone(),
        real_only: !buyer.takes_emulated(limits.emulated),
        price_max: limits.price_max,
        notice_min: limits.notice_min,
        spot: limits.spot,
        regions: limits.regions,
        reputation_min: limits.reputation_min,
        power_known: limits.objective == Objective::Greenest,
        features: Features(
            kernels::needed_features(graph).0
                | backends::needed_features(limits.backend).0
                | backends::needed_exactness(limits.exact).0
                | backends::needed_sessions(limits.sequences).0,
        ),
        operators: needed.operators.clone(),
        nodes: needed.nodes.clone(),
        in_parts: limits.providers_max > 1,
        devices: limits.devices.clone(),
        text_model: None,
    }
}

pub(super) fn import_graph(job: &Job) -> Result<Graph, ImportError> {
    let mut bindings = Bindings::new();
    for (name, tensor) in &job.inputs {
        bindings = bindings.with_input(name, tensor.dtype(), tensor.dims());
    }
    let graph = open_to_requests(job, bind_graph(job, &bindings)?)?;
    if graph.nodes().is_empty() {
        return Err(ImportError::NothingToCompute);
    }
    // A provider with several devices must also use a suitable one of them.
    Ok(graph.with_device_requirement(&job.limits.devices, job.limits.backend))
}

fn bind_graph(job: &Job, bindings: &Bindings) -> Result<Graph, ImportError> {
    let mut find = |relative: &str| Some(job.folder.as_ref()?.join(relative));
    Graph::import_with(job.model.clone(), bindings, &mut find)
}

/// Leaves those sizes open in which the requests of a session may differ: the model names them by
/// symbols that no state uses.
fn open_to_requests(job: &Job, graph: Graph) -> Result<Graph, ImportError> {
    let states = graph.state_values();
    if states.is_empty() {
        return Ok(graph);
    }
    let states: BTreeSet<&str> = states.iter().map(|id| &*graph.value(*id).name).collect();
    let inputs = job.inputs.iter();
    let (kept, given): (Vec<_>, Vec<_>) =
        inputs.partition(|(name, _)| states.contains(name.as_str()));
    let extents = given.iter().flat_map(|(_, tensor)| tensor.dims());
    let another = extents.max().map_or(1, |most| *most as u64 + 1);
    let bindings = Bindings::with_assumed_extent(another);
    let bindings = kept.iter().fold(bindings, |bindings, (name, state)| {
        bindings.with_input(name.as_str(), state.dtype(), state.dims())
    });
    let other = bind_graph(job, &bindings)?;
    Ok(graph.open_to(&other))
}

fn to_offer(listing: &Listing) -> Offer {
    ask_resources::to_offer(&listing.resources, listing.price)
}

fn plan_options(limits: &Limits) -> PlanOptions {
    PlanOptions {
        min_devices: limits.providers_min,
        max_devices: limits.providers_max.max(limits.providers_min),
        objective: limits.objective,
        deadline_seconds: limits.deadline.map(|deadline| deadline.as_secs_f64()),
        budget: limits.budget.map(|Credits(micro)| micro as f64),
        // Providers hold the weights after the first job; the purchase allows time for it.
        weights: Weights::Held,
        requests: limits.requests,
        sequences: limits.sequences,
        ..PlanOptions::default()
    }
}
