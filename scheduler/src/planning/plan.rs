//! Plans a job over the offers of a market: which part of the graph runs on which device, when, and
//! at which price.
//!
//! A part is a subgraph that one provider runs as a whole: it starts when its inputs arrive and
//! sends its outputs when it ends. The graph of parts has no cycles.
//!
//! The search evaluates three kinds of division: everything on a single device, contiguous
//! stretches of the graph's topological order, and the schedules of the graph's tasks by the
//! planners of [`planner`](mod@crate::planning::planner), which let branches run side by side. It
//! then improves the best one part by part. Equal inputs give equal plans.

mod candidates;
mod contiguous_parts;
mod error;
mod explain;
mod options;
mod pareto;
mod partition;
mod pipeline;
mod refine;
mod score;
mod search;

use std::collections::BTreeSet;

use super::objective::Objective;
use super::offer::{Links, Offer};
use super::time::{SECOND, Time};
use crate::graph::cut::{CutError, Subgraph, cut_graph, whole_graph};
use crate::graph::{Graph, NodeId, ValueId};

pub use error::PlanError;
pub use explain::{Alternative, PlacementExplanation, Reason, Utilisation};
pub use options::{Activations, PlanOptions, Weights};
pub use pareto::pareto_plans;
pub(crate) use partition::Model;
pub(crate) use pipeline::Pipeline;

/// A plan: where and when each part runs, and its cost. Costs are in the unit of
/// [`Offer::cost_per_second`].
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Parts in the order in which they can run.
    pub parts: Vec<PlannedPart>,
    /// Transfers of tensors between buyer and providers, ordered by their start.
    pub transfers: Vec<Transfer>,
    /// Seconds from the submission of the job to the arrival of its last output.
    pub makespan_seconds: f64,
    /// Total cost of all parts, in the unit of the offers.
    pub cost: f64,
    /// Energy of all parts in joules, if every device states its power.
    pub joules: Option<f64>,
    /// The best plan on one device by the same objective, if one device can run everything.
    pub best_single: Option<SingleDevicePlan>,
    /// Makespan of the best single device divided by the makespan of this plan.
    pub speedup: Option<f64>,
    /// Indices of the parts whose times add up to the makespan, first to last.
    pub critical_path: Vec<usize>,
    /// Expected utilisation of each device in the plan.
    pub utilisation: Vec<Utilisation>,
    /// The index of each node's part, as [`cut_graph`] expects it.
    pub assignment: Vec<usize>,
}

/// One part of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedPart {
    /// Index of the offer that runs the part.
    pub offer: usize,
    /// The caller's label of that offer.
    pub label: String,
    /// Nodes of the part.
    pub nodes: Vec<NodeId>,
    /// Arrival of its inputs, in seconds after the submission of the job.
    pub start_seconds: f64,
    /// Its end, in seconds after the submission of the job.
    pub finish_seconds: f64,
    /// Seconds for which it computes.
    pub busy_seconds: f64,
    /// Cost of these seconds, in the unit of the offers.
    pub cost: f64,
    /// Bytes of memory that it needs: weights and peak activations.
    pub memory_bytes: u64,
    /// Number of its arithmetic operations.
    pub flops: u64,
    /// Why the plan chose this offer for the part.
    pub why: PlacementExplanation,
}

/// The transfer of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    /// Id of the value that moves.
    pub value: ValueId,
    /// Part that sends it; `None` for the buyer.
    pub from: Option<usize>,
    /// Part that receives it; `None` for the buyer.
    pub to: Option<usize>,
    /// Length in bytes.
    pub bytes: u64,
    /// Departure, in seconds after the submission of the job.
    pub start_seconds: f64,
    /// Arrival, in seconds after the submission of the job.
    pub finish_seconds: f64,
}

/// A plan that runs the whole graph on one device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SingleDevicePlan {
    /// Index of the offer.
    pub offer: usize,
    /// Makespan in seconds.
    pub makespan_seconds: f64,
    /// Cost of the plan, in the unit of the offers.
    pub cost: f64,
}

impl Plan {
    /// Cuts the graph into the parts of the plan, in the order of `parts`.
    ///
    /// # Errors
    /// [`CutError`] if the plan is not for `graph`.
    pub fn cut_graph(&self, graph: &Graph) -> Result<Vec<Subgraph>, CutError> {
        if self.parts.len() <= 1 {
            return Ok(vec![whole_graph(graph)?]);
        }
        cut_graph(graph, &self.assignment)
    }

    /// Returns the offers that the plan uses, ascending, each once.
    #[must_use]
    pub fn used_offers(&self) -> Vec<usize> {
        let used: BTreeSet<usize> = self.parts.iter().map(|part| part.offer).collect();
        used.into_iter().collect()
    }
}

/// Plans `graph` over `offers`. You must pass a link for each offer and each pair of offers.
///
/// # Errors
/// [`PlanError`] if no plan meets the options. The error says which fact prevents it.
pub fn plan_graph(
    graph: &Graph,
    offers: &[Offer],
    links: &Links,
    options: &PlanOptions,
) -> Result<Plan, PlanError> {
    error::check_inputs(graph, offers, links, options)?;
    let model = Model::new(graph, offers, links, options);
    plan_model(&model)
}

fn plan_model(model: &Model<'_>) -> Result<Plan, PlanError> {
    let single = search::best_single(model, model.options.objective);
    let division = search::best_division(model)?;
    Ok(explain::explain_division(model, &division, single))
}

/// A division of a graph with the times of its parts.
#[derive(Clone, Debug)]
pub(crate) struct TimedDivision {
    /// The index of each node's part in `parts`.
    pub assignment: Vec<usize>,
    /// The offer and the start in seconds of each part.
    pub parts: Vec<(usize, f64)>,
    /// Arrival of the last output, in seconds.
    pub makespan_seconds: f64,
    /// Energy in joules. A device without stated power counts like the device with the highest
    /// stated power.
    pub joules: f64,
    /// The fastest plan on one device, if one device can run everything.
    pub single: Option<SingleDevicePlan>,
}

impl TimedDivision {
    /// Returns the division that runs all nodes on one offer.
    pub fn for_single_offer(nodes: usize, (offer, time): (usize, Time)) -> Self {
        Self {
            assignment: vec![0; nodes],
            parts: vec![(offer, 0.0)],
            makespan_seconds: time as f64 / SECOND,
            joules: 0.0,
            single: None,
        }
    }
}

/// Divides a graph over the devices of one machine, in the same way as [`plan_graph()`] divides it
/// over a market's offers. The model supplies the times of the nodes.
pub(crate) fn divide_graph(model: &Model<'_>) -> Result<TimedDivision, PlanError> {
    let division = search::best_division(model)?;
    let timing = model.simulate_division(&division, &model.part_works(&division));
    Ok(TimedDivision {
        parts: division.offers.into_iter().zip(timing.start).collect(),
        assignment: division.assignment,
        makespan_seconds: timing.makespan,
        joules: timing.joules,
        single: search::best_single(model, Objective::Fastest),
    })
}
