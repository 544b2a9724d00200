//! Makes the plans that the core of a job (its state machine without I/O) requests: takes the graph
//! of the remaining work, quotes it over the book (the market's list of asks), and converts the
//! quote into the core's plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use souk_memory::{ContentId, Tensor};
use souk_roles::clock::Micros;
use souk_roles::job::plan::{
    LEGS_MAX, NoPlan, NoPlanKind, Plan, PlanFeedback, PlanInput, PlanLeg, PlanOutput, PlanPart,
    PlanRequest, PlanScope,
};
use souk_sandbox::device::ask_resources;
use souk_scheduler::graph::cut::{self, Boundary, Subgraph};
use souk_scheduler::graph::{Bindings, Graph, Weight};

use super::compare::part_tolerance;
use super::job_priority::QueuedJob;
use super::output_bounds::OutputBounds;
use super::quote::{self, Quote};
use super::remaining_graph::{self, RestError};
use super::{Buyer, QuoteError};
use crate::buyer::job::{Job, Limits};

/// Plans one job, and remembers the plans that it bought.
pub(super) struct Planner {
    buyer: Buyer,
    graph: Graph,
    /// The content id of the model.
    model: ContentId,
    /// The inputs of one request: all requests have the same shapes, except steps of a session.
    inputs: BTreeMap<String, Tensor>,
    limits: Limits,
    /// The job's place among the buyer's jobs, from the first plan until its purchase.
    turn: Option<Arc<QueuedJob>>,
    weights: BTreeMap<ContentId, Weight>,
    bought: BTreeMap<ContentId, Quote>,
    /// The last quote.
    next: Option<Quote>,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub(super) enum PlanError {
    #[error(transparent)]
    Quote(#[from] QuoteError),
    #[error(transparent)]
    Rest(#[from] RestError),
}

impl Planner {
    /// Returns a planner of a job's whole graph.
    pub(super) fn new(buyer: &Buyer, job: &Job, graph: Graph) -> Planner {
        Planner {
            buyer: buyer.clone(),
            weights: cut::content_weights(&graph)
                .map(|(id, weight)| (id, weight.clone()))
                .collect(),
            model: ContentId::for_content(&job.model),
            graph,
            inputs: job.inputs.clone(),
            limits: job.limits.clone(),
            turn: None,
            bought: BTreeMap::new(),
            next: None,
        }
    }

    /// Returns how many times as many bytes a request has as the planned inputs: a step of a
    /// session can have many tokens.
    pub(super) fn request_scale(&self, brought: &BTreeMap<String, Tensor>) -> u32 {
        let bytes = |tensor: &Tensor| tensor.bytes().len();
        let planned = brought.keys().filter_map(|name| self.inputs.get(name));
        let planned: usize = planned.map(bytes).sum();
        let brought: usize = brought.values().map(bytes).sum();
        u32::try_from(brought.div_ceil(planned.max(1))).unwrap_or(u32::MAX)
    }

    /// Returns the bounds of the values that providers make for the job.
    pub(super) fn output_bounds(&self) -> OutputBounds {
        OutputBounds::from_graph(&self.graph, &self.inputs)
    }

    /// Returns the whole graph of the job.
    pub(super) fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns whether providers keep states for the job from request to request.
    pub(super) fn is_session(&self) -> bool {
        self.limits.sequences > 0
    }

    /// Stores a new quote and returns its plan.
    pub(super) fn adopt_quote(&mut self, quote: Quote) -> Plan {
        let mut plan = plan_of(&quote);
        if self.limits.sequences > 0 {
            keep_states(&mut plan, &quote);
            mark_fed_inputs(&mut plan, &quote);
        }
        self.turn = Some(quote.turn.clone());
        self.next = Some(quote);
        plan
    }

    /// Records that the job bought the last plan.
    pub(super) fn on_bought(&mut self) {
        if let Some(turn) = self.turn.take() {
            turn.withdraw_demands();
        }
        if let Some(quote) = self.next.take() {
            self.bought.insert(quote.hash(), quote);
        }
    }

    /// Returns the content id of the model, and its only purchase, if the job bought leases exactly
    /// once.
    pub(super) fn bought_at_once(&self) -> Option<(&ContentId, &Quote)> {
        let mut bought = self.bought.values();
        let only = bought.next().filter(|_| bought.next().is_none())?;
        Some((&self.model, only))
    }

    /// Returns a graph or weights of the job by id.
    pub(super) fn find_content(&self, id: &ContentId) -> Option<Bytes> {
        let quotes = self.bought.values().chain(&self.next);
        let mut parts = quotes.flat_map(|quote| &quote.parts);
        let part = parts.find(|part| part.id == *id);
        part.map(|part| part.model.clone())
            .or_else(|| self.weights.get(id)?.read())
    }

    /// Plans some work over the current book.
    pub(super) fn plan_work(
        &mut self,
        wanted: &PlanRequest,
    ) -> impl Future<Output = Result<Quote, PlanError>> + Send + use<> {
        let turns = self.graph.unknown_work_factor();
        let graph = self.graph_of(&wanted.work);
        let graph = graph.map(|graph| graph.with_turns(turns));
        let limits = self.request_limits(wanted);
        let queue = self.buyer.queue.as_deref();
        let priority = self.limits.priority;
        let turn = self
            .turn
            .get_or_insert_with(|| Arc::new(QueuedJob::new(queue, priority)));
        let (turn, buyer) = (turn.clone(), self.buyer.clone());
        let excluded = wanted.excluded.clone();
        async move { Ok(quote::over_book(&buyer, graph?, &limits, &excluded, &turn).await?) }
    }

    fn request_limits(&self, wanted: &PlanRequest) -> Limits {
        let copies = wanted.copies.max(1) as usize;
        let for_good = wanted.excluded.iter().filter(|it| it.ask.is_none());
        Limits {
            budget: wanted.budget,
            deadline: wanted.deadline.map(|left| Duration::from_micros(left.0)),
            providers_min: wanted.providers_min as usize,
            providers_max: (wanted.providers_max as usize).min(LEGS_MAX / copies),
            excluded: for_good.map(|it| it.provider).collect(),
            copies,
            requests: wanted.requests,
            ..self.limits.clone()
        }
    }

    /// Returns the graph of some work.
    fn graph_of(&self, work: &PlanScope) -> Result<Graph, RestError> {
        match work {
            PlanScope::Rest(values) if values.is_empty() => Ok(self.graph.clone()),
            PlanScope::Rest(values) => {
                let values = self.read_tensors(values)?;
                remaining_graph::remaining_graph(&self.graph, &self.inputs, &values)
            }
            PlanScope::Part { plan, part, inputs } => {
                let quote = self.bought.get(plan).ok_or(RestError::Unknown)?;
                let part = quote.parts.get(*part as usize).ok_or(RestError::Unknown)?;
                let mut bindings = Bindings::new();
                for (name, tensor) in self.read_tensors(inputs)? {
                    bindings = bindings.with_input(&name, tensor.dtype(), tensor.dims());
                }
                Ok(Graph::import(part.model.clone(), &bindings)?)
            }
        }
    }

    /// Reads values from the store.
    fn read_tensors(
        &self,
        values: &[(String, ContentId)],
    ) -> Result<BTreeMap<String, Tensor>, RestError> {
        let store = self.buyer.tensors.store();
        let tensor = |(name, id): &(String, ContentId)| {
            let held = store.get_tensor(id).ok().flatten();
            let tensor = held.ok_or_else(|| RestError::Gone { name: name.clone() });
            Ok((name.clone(), tensor?))
        };
        values.iter().map(tensor).collect()
    }
}

impl PlanError {
    /// Converts the error into the core's words, and returns whether it may pass in a moment.
    pub(super) fn no_plan(&self) -> (NoPlan, bool) {
        let (kind, passes) = match self {
            PlanError::Rest(_) => (NoPlanKind::Rest, false),
            PlanError::Quote(error) => (
                match error {
                    QuoteError::Budget { .. } | QuoteError::Escrow { .. } => NoPlanKind::Budget,
                    QuoteError::Broker(_) => NoPlanKind::Unreachable,
                    QuoteError::NoneEligible { .. } => NoPlanKind::NoneEligible,
                    _ => NoPlanKind::Other,
                },
                error.may_pass(),
            ),
        };
        let text = self.to_string();
        (NoPlan { kind, text }, passes)
    }
}

/// Converts a quote into the core's plan.
pub(super) fn plan_of(quote: &Quote) -> Plan {
    let firsts = quote.plan.used_offers();
    let leg = |offer: usize, twin_of| PlanLeg {
        listing: Box::new(quote.listings[offer].clone()),
        twin_of,
    };
    let seconds = (0..).zip(&quote.seconds);
    let mut legs: Vec<PlanLeg> = firsts.iter().map(|offer| leg(*offer, None)).collect();
    legs.extend(seconds.map(|(first, offer)| leg(*offer, Some(first))));
    let parts = quote
        .parts
        .iter()
        .map(|part| plan_part(quote, &firsts, part));
    Plan {
        id: quote.hash(),
        legs,
        parts: parts.collect(),
        makespan: to_micros(quote.run_seconds() + quote.hop_seconds + quote.upload_seconds()),
    }
}

/// Removes states from the inputs and outputs of parts. Requests of a session differ, so the plan's
/// figures judge none of them.
fn keep_states(plan: &mut Plan, quote: &Quote) {
    let graph = &quote.graph;
    let states = graph.state_values();
    let states = states.iter().map(|id| graph.value(*id).name.as_str());
    let states: BTreeSet<&str> = states.collect();
    for part in &mut plan.parts {
        part.inputs.retain(|it| !states.contains(it.name.as_str()));
        part.outputs.retain(|it| !states.contains(it.name.as_str()));
        part.flops = [0; 2];
        part.is_open_ended = false;
    }
}

/// States which inputs a request can omit, and which part's output then replaces each.
fn mark_fed_inputs(plan: &mut Plan, quote: &Quote) {
    if !quote.seconds.is_empty() {
        // The job must compare parts that run twice before it uses their outputs.
        return;
    }
    let graph = &quote.graph;
    for (output, input) in graph.feedback_outputs() {
        let name = &graph.value(output).name;
        let makes = |part: &PlanPart| part.outputs.iter().any(|it| it.name == *name);
        let Some(part) = plan.parts.iter().position(makes) else {
            continue;
        };
        let inputs = plan.parts.iter_mut().flat_map(|part| &mut part.inputs);
        let is_it = |it: &&mut PlanInput| it.name == graph.value(input).name && it.maker.is_none();
        for input in inputs.filter(is_it) {
            input.fed = Some(PlanFeedback {
                part: u32::try_from(part).expect("parts are few"),
                name: name.clone(),
            });
        }
    }
}

fn plan_part(quote: &Quote, firsts: &[usize], part: &Subgraph) -> PlanPart {
    let planned = &quote.plan.parts[part.part];
    let place = firsts.iter().position(|offer| *offer == planned.offer);
    let place = place.expect("each part runs on an offer of the plan");
    // Parts are numbered in an order in which they can run.
    let number = |of: usize| {
        let number = quote.parts.iter().position(|other| other.part == of);
        u32::try_from(number.expect("a cut names its own parts")).expect("parts are few")
    };
    let input = |boundary: &Boundary| PlanInput {
        name: boundary.name.clone(),
        maker: boundary.from.map(number),
        fed: None,
    };
    let output = |boundary: &Boundary| PlanOutput {
        name: boundary.name.clone(),
        readers: boundary.to.iter().map(|to| number(*to)).collect(),
        is_wanted: boundary.job_output,
    };
    let flops = quote.flops_known(part);
    let nodes = planned.nodes.iter().map(|node| quote.graph.node(*node));
    let is_open_ended = !ask_resources::is_known(nodes);
    let on = |offer: usize| to_micros(quote.seconds_on(planned, offer));
    let twin = quote.seconds.get(place).copied().unwrap_or(planned.offer);
    PlanPart {
        leg: u32::try_from(place).expect("legs are few"),
        graph: part.id,
        weights: part.weights.iter().map(|weight| weight.id).collect(),
        inputs: part.inputs.iter().map(input).collect(),
        outputs: part.outputs.iter().map(output).collect(),
        flops: [flops; 2],
        is_open_ended,
        expected: [on(planned.offer), on(twin)],
        tolerance_ppm: (part_tolerance(&quote.graph, part).0 * 1e6).round() as u32,
    }
}

fn to_micros(seconds: f64) -> Micros {
    Duration::try_from_secs_f64(seconds)
        .unwrap_or(Duration::MAX)
        .into()
}
