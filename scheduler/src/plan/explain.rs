//! From a division to a [`Plan`] that says why each part is where it is.

use super::evaluate::{Model, Stretches, Timing, holders};
use super::{Plan, PlannedPart, Single, Transfer};
use crate::graph::NodeId;

/// Why a part is where it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Why {
    /// The reason.
    pub reason: Reason,
    /// The best other device for this part, all else unchanged.
    pub alternative: Option<Alternative>,
}

/// A reason for a placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No other device on offer runs all its operators and has the memory.
    OnlyChoice,
    /// Every other device would make the whole plan take longer.
    Fastest,
    /// Every other device would make the whole plan cost more.
    Cheapest,
    /// The best by the objective, though not the best in time or in cost alone.
    BestTradeoff,
    /// The devices asked for must each hold work, and this one does so best.
    Spread,
}

/// What another choice would have meant for the whole plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alternative {
    /// Which of the offers.
    pub offer: usize,
    /// Makespan of the plan with it, in seconds.
    pub makespan_seconds: f64,
    /// Cost of the plan with it.
    pub cost: f64,
}

pub(super) fn plan(model: &Model<'_>, found: &Stretches, single: Option<Single>) -> Plan {
    let timing = model.time(found);
    let assignment = (0..model.nodes()).map(|node| found.holder(node)).collect();
    Plan {
        parts: (0..found.ends.len())
            .map(|k| part(model, found, &timing, k))
            .collect(),
        transfers: transfers(model, found, &timing),
        makespan_seconds: timing.makespan,
        cost: timing.cost,
        best_single: single,
        speedup: single.map(|single| ratio(single.makespan_seconds, timing.makespan)),
        assignment,
    }
}

fn ratio(before: f64, after: f64) -> f64 {
    if after > 0.0 { before / after } else { 1.0 }
}

fn part(model: &Model<'_>, found: &Stretches, timing: &Timing, k: usize) -> PlannedPart {
    let (begin, end, offer) = (found.begin(k), found.ends[k], found.offers[k]);
    let busy_seconds = model.seconds(offer, begin, end);
    let flops = model.graph.nodes()[begin..end]
        .iter()
        .map(|node| node.cost.flops);
    PlannedPart {
        offer,
        label: model.offers[offer].label.clone(),
        nodes: (begin..end).map(NodeId).collect(),
        start_seconds: timing.start[k],
        finish_seconds: timing.finish[k],
        busy_seconds,
        cost: busy_seconds * model.offers[offer].cost_per_second,
        memory_bytes: model.memory_bytes(begin, end),
        flops: flops.fold(0, u64::saturating_add),
        why: why(model, found, timing, k),
    }
}

fn why(model: &Model<'_>, found: &Stretches, timing: &Timing, k: usize) -> Why {
    let others = (0..model.offers.len()).filter(|&offer| offer != found.offers[k]);
    let changed = others.filter_map(|offer| {
        let mut next = found.clone();
        next.offers[k] = offer;
        let timing = model.feasible(&next).then(|| model.time(&next))?;
        Some(Alternative {
            offer,
            makespan_seconds: timing.makespan,
            cost: timing.cost,
        })
    });
    let changed: Vec<Alternative> = changed.collect();
    let score = |other: &Alternative| {
        model
            .options
            .objective
            .score(other.makespan_seconds, other.cost)
    };
    let alternative = changed.iter().copied().min_by(|a, b| {
        let (a, b) = (score(a), score(b));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
    let reason = if changed.is_empty() {
        Reason::OnlyChoice
    } else if changed
        .iter()
        .all(|other| other.makespan_seconds >= timing.makespan)
    {
        Reason::Fastest
    } else if changed.iter().all(|other| other.cost >= timing.cost) {
        Reason::Cheapest
    } else if model.options.min_devices > 1 {
        Reason::Spread
    } else {
        Reason::BestTradeoff
    };
    Why {
        reason,
        alternative,
    }
}

fn transfers(model: &Model<'_>, found: &Stretches, timing: &Timing) -> Vec<Transfer> {
    let mut transfers = Vec::new();
    for traveller in model.travellers() {
        let from = traveller.made.map(|node| found.holder(node));
        let start = from.map_or(0.0, |part| timing.finish[part]);
        let mut push = |to: Option<usize>, seconds: f64| {
            transfers.push(Transfer {
                value: traveller.value,
                from,
                to,
                bytes: traveller.bytes,
                start_seconds: start,
                finish_seconds: start + seconds,
            });
        };
        for to in holders(found, &traveller.readers).filter(|to| Some(*to) != from) {
            let target = found.offers[to];
            match from {
                None => push(Some(to), model.links.buyer[target].seconds(traveller.bytes)),
                Some(part) => {
                    push(
                        Some(to),
                        model.hop(found.offers[part], target, traveller.bytes),
                    );
                }
            }
        }
        if let Some(part) = from.filter(|_| traveller.job_output) {
            let link = &model.links.buyer[found.offers[part]];
            push(None, link.seconds(traveller.bytes));
        }
    }
    transfers.sort_by(|a, b| {
        a.start_seconds
            .total_cmp(&b.start_seconds)
            .then(a.value.cmp(&b.value))
    });
    transfers
}
