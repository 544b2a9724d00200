//! Builds the [`Plan`] that the planner returns from the division that it found.
//!
//! A division assigns nodes to parts, and parts to devices on offer. The plan adds times, costs,
//! transfers and the critical path. For each part it gives the reason for its device and the best
//! alternative.

use std::collections::BTreeMap;

use super::partition::{Division, Model, PartWork, Timing};
use super::{Plan, PlannedPart, SingleDevicePlan, Transfer};
use crate::graph::NodeId;
use crate::planning::objective::Objective;

/// The reason for the choice of a part's device, and the best alternative.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacementExplanation {
    /// The reason by the plan's objective.
    pub reason: Reason,
    /// The best other device for this part, with all else unchanged.
    pub alternative: Option<Alternative>,
}

/// A reason for a placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No other device on offer can run all its operators and has the memory.
    OnlyChoice,
    /// No other device would make the whole plan take less time.
    Fastest,
    /// No other device would make the whole plan cost less.
    Cheapest,
    /// No other device would make the whole plan use less energy.
    Greenest,
    /// The best by the objective, but not the best in time or in cost alone.
    BestTradeoff,
    /// The minimum number of devices must each have work, and this device does this part best.
    Spread,
}

/// The effect of another choice on the whole plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alternative {
    /// Index of the offer.
    pub offer: usize,
    /// Makespan of the plan with it, in seconds.
    pub makespan_seconds: f64,
    /// Cost of the plan with it.
    pub cost: f64,
    /// Joules of the plan with it, if every device states its power.
    pub joules: Option<f64>,
}

/// The utilisation of a device while the plan runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Utilisation {
    /// Index of the offer.
    pub offer: usize,
    /// Seconds for which it computes.
    pub busy_seconds: f64,
    /// Share of the makespan in which it computes, in 0..=1.
    pub share: f64,
}

pub(super) fn explain_division(
    model: &Model<'_>,
    found: &Division,
    single: Option<SingleDevicePlan>,
) -> Plan {
    let works = model.part_works(found);
    let timing = model.simulate_division(found, &works);
    let mut parts: Vec<PlannedPart> = (0..found.offers.len())
        .map(|k| build_part(model, found, &works, &timing, k))
        .collect();
    for (node, &part) in found.assignment.iter().enumerate() {
        let flops = model.graph.nodes()[node].cost.flops;
        parts[part].nodes.push(NodeId(node));
        parts[part].flops = parts[part].flops.saturating_add(flops);
    }
    Plan {
        utilisation: offer_utilisation(&parts, model.options.requests, timing.makespan),
        parts,
        transfers: list_transfers(model, found, &timing),
        critical_path: critical_path(&timing),
        makespan_seconds: timing.makespan,
        cost: timing.cost,
        joules: model.states_power(found).then_some(timing.joules),
        best_single: single,
        speedup: single.map(|single| time_ratio(single.makespan_seconds, timing.makespan)),
        assignment: found.assignment.clone(),
    }
}

fn time_ratio(before: f64, after: f64) -> f64 {
    if after > 0.0 { before / after } else { 1.0 }
}

/// Returns the parts that the makespan waits for, first to last.
fn critical_path(timing: &Timing) -> Vec<usize> {
    let mut path = Vec::new();
    let mut next = timing.last;
    while let Some(part) = next {
        path.push(part);
        next = timing.cause[part];
    }
    path.reverse();
    path
}

/// Returns one entry for each offer with work, ascending.
fn offer_utilisation(parts: &[PlannedPart], requests: u32, makespan: f64) -> Vec<Utilisation> {
    let mut busy = BTreeMap::new();
    for part in parts {
        *busy.entry(part.offer).or_insert(0.0) += part.busy_seconds * f64::from(requests);
    }
    let entry = |(offer, busy_seconds): (usize, f64)| Utilisation {
        offer,
        busy_seconds,
        share: if makespan > 0.0 {
            busy_seconds / makespan
        } else {
            0.0
        },
    };
    busy.into_iter().map(entry).collect()
}

/// Returns a part without its nodes.
fn build_part(
    model: &Model<'_>,
    found: &Division,
    works: &[PartWork],
    timing: &Timing,
    k: usize,
) -> PlannedPart {
    let offer = found.offers[k];
    PlannedPart {
        offer,
        label: model.offers[offer].label.clone(),
        nodes: Vec::new(),
        start_seconds: timing.start[k],
        finish_seconds: timing.finish[k],
        busy_seconds: works[k].seconds,
        cost: works[k].seconds * model.offers[offer].cost_per_second,
        memory_bytes: works[k].memory_bytes,
        flops: 0,
        why: explain_part(model, found, timing, k),
    }
}

fn explain_part(
    model: &Model<'_>,
    found: &Division,
    timing: &Timing,
    k: usize,
) -> PlacementExplanation {
    let others = (0..model.offers.len()).filter(|&offer| offer != found.offers[k]);
    let changed = others.filter_map(|offer| {
        let mut next = found.clone();
        next.offers[k] = offer;
        let works = model.part_works(&next);
        let fits = model.can_run_part(&works[k], offer);
        fits.then(|| {
            (
                offer,
                model.states_power(&next),
                model.simulate_division(&next, &works),
            )
        })
    });
    let changed: Vec<(usize, bool, Timing)> = changed.collect();
    let score = |timing: &Timing| timing.score(model.options.objective);
    let best = changed.iter().min_by(|(_, _, a), (_, _, b)| {
        let (a, b) = (score(a), score(b));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
    let alternative = best.map(|(offer, states_power, timing)| Alternative {
        offer: *offer,
        makespan_seconds: timing.makespan,
        cost: timing.cost,
        joules: states_power.then_some(timing.joules),
    });
    let others: Vec<&Timing> = changed.iter().map(|(_, _, timing)| timing).collect();
    PlacementExplanation {
        reason: choose_reason(model, &others, timing),
        alternative,
    }
}

fn choose_reason(model: &Model<'_>, others: &[&Timing], timing: &Timing) -> Reason {
    let every = |figure: fn(&Timing) -> f64| {
        let own = figure(timing);
        others.iter().all(|other| figure(other) >= own)
    };
    let is_green = model.options.objective == Objective::Greenest;
    if others.is_empty() {
        Reason::OnlyChoice
    } else if every(|it| it.makespan) {
        Reason::Fastest
    } else if is_green && every(|it| it.joules) {
        Reason::Greenest
    } else if every(|it| it.cost) {
        Reason::Cheapest
    } else if model.options.min_devices > 1 {
        Reason::Spread
    } else {
        Reason::BestTradeoff
    }
}

fn list_transfers(model: &Model<'_>, found: &Division, timing: &Timing) -> Vec<Transfer> {
    let mut transfers = Vec::new();
    for movable in model.movable_values() {
        let from = movable.made.map(|node| found.assignment[node]);
        let start = from.map_or(0.0, |part| timing.finish[part]);
        let mut push = |to: Option<usize>, seconds: f64| {
            transfers.push(Transfer {
                value: movable.value,
                from,
                to,
                bytes: movable.bytes,
                start_seconds: start,
                finish_seconds: start + seconds,
            });
        };
        let far = found.parts_holding(&movable.readers).into_iter();
        for to in far.filter(|to| Some(*to) != from) {
            let target = found.offers[to];
            match from {
                None => push(
                    Some(to),
                    model.links.buyer[target].transfer_seconds(movable.bytes),
                ),
                Some(part) => {
                    push(
                        Some(to),
                        model.hop_seconds(found.offers[part], target, movable.bytes),
                    );
                }
            }
        }
        if let Some(part) = from.filter(|_| movable.job_output) {
            let link = &model.links.buyer[found.offers[part]];
            push(None, link.transfer_seconds(movable.bytes));
        }
    }
    transfers.sort_by(|a, b| {
        a.start_seconds
            .total_cmp(&b.start_seconds)
            .then(a.value.cmp(&b.value))
    });
    transfers
}
