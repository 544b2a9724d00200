//! Two levels from the same code: parts over providers and the network between them, then each
//! part's nodes over the devices of its provider.

use super::evaluate::{Model, node_times};
use super::{Links, Offer, Operators, Plan, PlanError, PlanOptions, Slowness, error, plan_model};
use crate::graph::{Graph, NodeId};
use crate::planner::{planner, steps};
use crate::problem::ProblemError;
use crate::schedule::Schedule;
use crate::tasks::{GraphTasks, Layout, SECOND};

/// A provider with devices of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Provider {
    /// What the caller calls it.
    pub label: String,
    /// Its devices.
    pub devices: Vec<Offer>,
    /// Ways among its devices; those to the buyer count nothing.
    pub links: Links,
    /// Price of a second of the whole provider.
    pub cost_per_second: f64,
}

/// A plan on both levels.
#[derive(Clone, Debug, PartialEq)]
pub struct TwoLevels {
    /// Which part goes to which provider; `offer` numbers providers.
    pub cluster: Plan,
    /// For each part, its nodes over the provider's devices.
    pub local: Vec<LocalPlan>,
}

/// The nodes of a part over the devices of one provider.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalPlan {
    /// Device of each of the part's nodes, in their order.
    pub device: Vec<usize>,
    /// When the last one ends, in seconds from the part's start.
    pub makespan_seconds: f64,
    /// Time each device computes, in seconds.
    pub busy_seconds: Vec<f64>,
}

/// Plans `graph` over `providers`: each counts as one device on which a node takes what it takes on
/// the fastest of its devices; then each part is planned over the devices of its provider.
///
/// # Errors
/// [`PlanError`]: nothing that keeps to the options exists, and which fact stands in the way.
pub fn plan_two_levels(
    graph: &Graph,
    providers: &[Provider],
    links: &Links,
    options: &PlanOptions,
) -> Result<TwoLevels, PlanError> {
    for provider in providers {
        error::check_links(&provider.devices, &provider.links)?;
        provider.devices.iter().try_for_each(error::check_offer)?;
    }
    let offers: Vec<Offer> = providers.iter().map(together).collect();
    error::check(graph, &offers, links, options)?;
    let times = providers.iter().map(|provider| fastest(graph, provider));
    let model = Model::with_times(graph, &offers, times.collect(), links, options);
    let cluster = plan_model(&model)?;
    let local = cluster.parts.iter().map(|part| {
        let provider = &providers[part.offer];
        local(graph, &part.nodes, provider, options.steps as u64).map_err(|_| PlanError::Memory {
            needed: part.memory_bytes,
            largest: offers[part.offer].memory_bytes,
        })
    });
    let local = local.collect::<Result<_, _>>()?;
    Ok(TwoLevels { cluster, local })
}

/// A provider as one device. Its speeds are not asked for: nodes have times of their own.
fn together(provider: &Provider) -> Offer {
    let devices = provider.devices.iter();
    let largest = |figure: fn(&Offer) -> f64| devices.clone().map(figure).fold(0.0, f64::max);
    let named = devices.clone().map(|device| match &device.operators {
        Operators::All => None,
        Operators::Only(names) => Some(names.clone()),
    });
    let operators = named.reduce(|a, b| Some(a?.union(&b?).cloned().collect()));
    Offer {
        label: provider.label.clone(),
        throughput: Vec::new(),
        bytes_per_second: largest(|device| device.bytes_per_second),
        memory_bytes: devices
            .clone()
            .map(|device| device.memory_bytes)
            .fold(0, u64::saturating_add),
        launch_seconds: 0.0,
        slowness: Slowness::default(),
        cost_per_second: provider.cost_per_second,
        operators: operators.flatten().map_or(Operators::All, Operators::Only),
    }
}

fn fastest(graph: &Graph, provider: &Provider) -> Vec<f64> {
    let times = provider
        .devices
        .iter()
        .map(|device| node_times(graph, device));
    let least = times.reduce(|a, b| a.iter().zip(&b).map(|(a, b)| a.min(*b)).collect());
    least.unwrap_or_else(|| vec![f64::INFINITY; graph.nodes().len()])
}

/// The nodes of one part over the devices of its provider.
fn local(
    graph: &Graph,
    nodes: &[NodeId],
    provider: &Provider,
    limit: u64,
) -> Result<LocalPlan, ProblemError> {
    let times: Vec<Vec<f64>> = provider
        .devices
        .iter()
        .map(|device| node_times(graph, device))
        .collect();
    let layout = Layout {
        graph,
        nodes: Some(nodes),
        seconds: times.iter().map(Vec::as_slice).collect(),
        memory: provider
            .devices
            .iter()
            .map(|device| device.memory_bytes)
            .collect(),
        links: &provider.links,
        buyer: false,
    };
    let tasks = layout.tasks()?;
    let auto = planner("auto").expect("it is in the list");
    let schedule = auto(&tasks.problem, &mut steps(limit))?;
    Ok(of_nodes(nodes, &tasks, &schedule))
}

fn of_nodes(nodes: &[NodeId], tasks: &GraphTasks, schedule: &Schedule) -> LocalPlan {
    let mut device = vec![0; nodes.len()];
    for (members, &own) in tasks.members.iter().zip(&schedule.device) {
        for node in members {
            if let Ok(place) = nodes.binary_search(node) {
                device[place] = own;
            }
        }
    }
    let busy = schedule.busy(&tasks.problem).into_iter();
    LocalPlan {
        device,
        makespan_seconds: schedule.makespan as f64 / SECOND,
        busy_seconds: busy.map(|time| time as f64 / SECOND).collect(),
    }
}
