//! A job planned over what a market offers: which part of the graph wants which device, when, and
//! at what price.
//!
//! A part is a subgraph one provider runs as a whole: it starts when its inputs are there and hands
//! its outputs over when it is done. Parts never wait for each other in a circle. Three kinds of
//! division compete by one evaluation: every single device, stretches of the graph's topological
//! order, and what the planners of [`planner`](mod@crate::planning::planner) make of the graph's
//! tasks, so that branches run side by side. The best is improved part by part; equal inputs give
//! equal plans.

mod candidates;
mod division;
mod error;
mod explain;
mod grade;
mod options;
mod pareto;
mod pipeline;
mod refine;
mod search;
mod stretches;

use std::collections::BTreeSet;

use super::objective::Objective;
use super::offer::{Links, Offer};
use super::time::{SECOND, Time};
use crate::graph::cut::{CutError, Subgraph, cut, whole};
use crate::graph::{Graph, NodeId, ValueId};

pub(crate) use division::Model;
pub use error::PlanError;
pub use explain::{Alternative, Reason, Utilisation, Why};
pub use options::{Activations, PlanOptions, Weights};
pub use pareto::pareto;
pub(crate) use pipeline::Pipeline;

/// What runs where, when, and for how much.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Parts in the order in which they can run.
    pub parts: Vec<PlannedPart>,
    /// Tensors on their way between buyer and providers, by departure.
    pub transfers: Vec<Transfer>,
    /// From handing the job in to its last output being back, in seconds.
    pub makespan_seconds: f64,
    /// What all parts cost together.
    pub cost: f64,
    /// What all parts draw together, where every device says what it draws.
    pub joules: Option<f64>,
    /// The best plan on one device by the same objective, if one device can run everything.
    pub best_single: Option<Single>,
    /// Time of the best single device over the time of this plan.
    pub speedup: Option<f64>,
    /// The parts that the makespan waits for, first to last.
    pub critical_path: Vec<usize>,
    /// How busy each device used is expected to be.
    pub utilisation: Vec<Utilisation>,
    /// For each node the number of its part: what [`cut`] wants.
    pub assignment: Vec<usize>,
}

/// One part of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedPart {
    /// Which of the offers runs it.
    pub offer: usize,
    /// What the caller calls that offer.
    pub label: String,
    /// Its nodes.
    pub nodes: Vec<NodeId>,
    /// When its inputs are there, in seconds from the start.
    pub start_seconds: f64,
    /// When its outputs are made.
    pub finish_seconds: f64,
    /// Time it computes.
    pub busy_seconds: f64,
    /// What that time costs.
    pub cost: f64,
    /// Memory it needs: weights, and activations at their peak.
    pub memory_bytes: u64,
    /// Arithmetic operations in it.
    pub flops: u64,
    /// Why there.
    pub why: Why,
}

/// One tensor on its way.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    /// The value.
    pub value: ValueId,
    /// Part it leaves; `None` for the buyer.
    pub from: Option<usize>,
    /// Part it goes to; `None` for the buyer.
    pub to: Option<usize>,
    /// Length in bytes.
    pub bytes: u64,
    /// Departure, in seconds from the start.
    pub start_seconds: f64,
    /// Arrival.
    pub finish_seconds: f64,
}

/// A plan on one device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Single {
    /// Which of the offers.
    pub offer: usize,
    /// Its makespan in seconds.
    pub makespan_seconds: f64,
    /// Its cost.
    pub cost: f64,
}

impl Plan {
    /// The parts as subgraphs, in the plan's order.
    ///
    /// # Errors
    /// [`CutError`] if `graph` is not the one that was planned.
    pub fn cut(&self, graph: &Graph) -> Result<Vec<Subgraph>, CutError> {
        if self.parts.len() <= 1 {
            return Ok(vec![whole(graph)?]);
        }
        cut(graph, &self.assignment)
    }

    /// The offers it uses, ascending, each once.
    #[must_use]
    pub fn offers(&self) -> Vec<usize> {
        let used: BTreeSet<usize> = self.parts.iter().map(|part| part.offer).collect();
        used.into_iter().collect()
    }
}

/// Plans `graph` over `offers`.
///
/// # Errors
/// [`PlanError`]: nothing that keeps to the options exists, and which fact stands in the way.
pub fn plan(
    graph: &Graph,
    offers: &[Offer],
    links: &Links,
    options: &PlanOptions,
) -> Result<Plan, PlanError> {
    error::check(graph, offers, links, options)?;
    let model = Model::new(graph, offers, links, options);
    plan_model(&model)
}

fn plan_model(model: &Model<'_>) -> Result<Plan, PlanError> {
    let single = search::best_single(model, model.options.objective);
    let found = search::best(model)?;
    Ok(explain::plan(model, &found, single))
}

/// A division of a graph, and when its parts run.
#[derive(Clone, Debug)]
pub(crate) struct TimedDivision {
    /// The part of each node.
    pub part: Vec<usize>,
    /// By part, its offer and when it starts, in seconds.
    pub parts: Vec<(usize, f64)>,
    /// When the last output is there, in seconds.
    pub makespan_seconds: f64,
    /// What it draws, counting devices of which nobody says it as the hungriest.
    pub joules: f64,
    /// The device that would end soonest alone, if one can run everything.
    pub single: Option<Single>,
}

impl TimedDivision {
    /// All of so many nodes on one offer.
    pub fn whole(nodes: usize, (offer, time): (usize, Time)) -> Self {
        Self {
            part: vec![0; nodes],
            parts: vec![(offer, 0.0)],
            makespan_seconds: time as f64 / SECOND,
            joules: 0.0,
            single: None,
        }
    }
}

/// Divides a graph over the devices of one machine, as [`plan()`] does over a market's offers; how
/// long nodes take on them is the model's.
pub(crate) fn divide(model: &Model<'_>) -> Result<TimedDivision, PlanError> {
    let division = search::best(model)?;
    let timing = model.time(&division, &model.works(&division));
    Ok(TimedDivision {
        parts: division.offers.into_iter().zip(timing.start).collect(),
        part: division.part,
        makespan_seconds: timing.makespan,
        joules: timing.joules,
        single: search::best_single(model, Objective::Fastest),
    })
}
