//! Writes a plan as JSON, for the command line and the files of a job, and forms the texts about a
//! plan that the command line shows too.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use souk_scheduler::graph::cut::{Boundary, Subgraph};
use souk_scheduler::planning::{PlacementExplanation, Reason, Utilisation};

use super::job::Limits;
use super::job_times::JobTimes;
use super::{Alternative, Quote};

/// Returns a plan as a JSON value; times in seconds, prices in micro-credits.
#[must_use]
pub fn to_json(quote: &Quote) -> Value {
    let part = |(number, part): (usize, &Subgraph)| {
        let planned = &quote.plan.parts[part.part];
        let listing = quote.part_listing(part.part);
        json!({
            "part": number + 1, "graph": part.id, "device": planned.label,
            "emulated": listing.resources.emulated, "provider": listing.provider,
            "provider_name": listing.name,
            "nodes": planned.nodes.len(), "operators": count_operators(quote, part),
            "flops": planned.flops,
            "start_seconds": planned.start_seconds, "finish_seconds": planned.finish_seconds,
            "busy_seconds": planned.busy_seconds,
            "micro_credits": quote.part_price(part.part),
            "why": explain_choice(&planned.why, quote),
            "critical": quote.plan.critical_path.contains(&part.part),
            "next_best": planned.why.alternative.map(|next| json!({
                "device": quote.device_name(next.offer),
                "emulated": quote.listings[next.offer].resources.emulated,
                "makespan_seconds": next.makespan_seconds, "micro_credits": next.cost,
                "joules": next.joules,
            })),
        })
    };
    let device = |used: &Utilisation| {
        json!({
            "device": quote.device_name(used.offer),
            "emulated": quote.listings[used.offer].resources.emulated,
            "provider": quote.listings[used.offer].provider,
            "busy_seconds": used.busy_seconds, "utilisation": used.share,
        })
    };
    let devices: Vec<Value> = quote.plan.utilisation.iter().map(device).collect();
    let parts: Vec<Value> = quote.parts.iter().enumerate().map(part).collect();
    json!({
        "hash": quote.hash(), "asks_seen": quote.seen, "asks_eligible": quote.eligible,
        "makespan_seconds": quote.plan.makespan_seconds, "micro_credits": quote.price(),
        "joules": quote.joules(), "times": JobTimes::from_quote(quote).to_json(),
        "compared_with": seconds_of(quote),
        "speedup_over_best_single": quote.plan.speedup,
        "critical_path": critical_parts(quote), "devices": devices, "parts": parts,
        "edges": tensor_edges(quote),
    })
}

/// Counts each operator of a part.
fn count_operators(quote: &Quote, part: &Subgraph) -> BTreeMap<String, usize> {
    let mut operators = BTreeMap::new();
    for node in &part.nodes {
        let operator = quote.graph.node(*node).operator_name();
        *operators.entry(operator).or_default() += 1;
    }
    operators
}

/// Returns the tensors that travel between parts, and from and to the buyer, which is null. Their
/// bytes are null if they are not known before the run.
fn tensor_edges(quote: &Quote) -> Vec<Value> {
    let shown = |part: &usize| quote.parts.iter().position(|shown| shown.part == *part);
    let number = |part: &usize| shown(part).map(|place| place + 1);
    let edge = |value: &Boundary, from: Option<usize>, to: Option<usize>| {
        let bytes = quote.graph.value(value.value).fact.byte_length();
        json!({ "from": from, "to": to, "tensor": value.name, "bytes": bytes })
    };
    let mut edges = Vec::new();
    for (place, part) in quote.parts.iter().enumerate() {
        let own = Some(place + 1);
        let given = part.inputs.iter().filter(|value| value.from.is_none());
        edges.extend(given.map(|value| edge(value, None, own)));
        for value in &part.outputs {
            let readers = value.to.iter().map(|to| edge(value, own, number(to)));
            edges.extend(readers);
            edges.extend(value.job_output.then(|| edge(value, own, None)));
        }
    }
    edges
}

/// Returns the providers that run parts again, with their devices' names.
fn seconds_of(quote: &Quote) -> Vec<Value> {
    let second = |offer: &usize| {
        let listing = &quote.listings[*offer];
        json!({
            "device": quote.device_name(*offer), "emulated": listing.resources.emulated,
            "provider": listing.provider,
        })
    };
    quote.seconds.iter().map(second).collect()
}

/// Returns the plan with its escrow, the alternatives, and the asks and operators that are not
/// eligible.
#[must_use]
pub fn with_choice(quote: &Quote, limits: &Limits, alternatives: &[Alternative]) -> Value {
    let one = |other: &Alternative| {
        json!({
            "makespan_seconds": other.seconds, "micro_credits": other.price,
            "devices": other.devices, "against_plan": compare_alternative(quote, other),
        })
    };
    let others: Vec<Value> = alternatives.iter().map(one).collect();
    let (least, most) = price_range(quote, alternatives);
    let mut plan = to_json(quote);
    let escrow = quote.lease_escrow(limits.budget).ok();
    plan["escrow_micro_credits"] = json!(escrow.map(|(escrow, _)| escrow));
    plan["alternatives"] = others.into();
    plan["price_range"] = json!({ "least_micro_credits": least, "most_micro_credits": most });
    plan["not_eligible"] = json!(quote.unsuitable);
    plan["scarce_operators"] = json!(quote.scarce);
    plan
}

/// Returns the lowest and the highest price of the plan and its alternatives.
#[must_use]
pub fn price_range(quote: &Quote, alternatives: &[Alternative]) -> (u64, u64) {
    let prices = alternatives
        .iter()
        .map(|other| other.price.0)
        .chain([quote.price().0]);
    prices.fold((u64::MAX, 0), |(least, most), price| {
        (least.min(price), most.max(price))
    })
}

/// Describes the time and price of an alternative in comparison with the plan.
#[must_use]
pub fn compare_alternative(quote: &Quote, other: &Alternative) -> String {
    let time = other.seconds / quote.plan.makespan_seconds.max(f64::MIN_POSITIVE);
    let price = other.price.0 as f64 / (quote.price().0.max(1)) as f64;
    if (time - 1.0).abs() < 0.005 && (price - 1.0).abs() < 0.005 {
        return "as good".to_owned();
    }
    format!("{time:.2}x the time for {price:.2}x the price")
}

/// Returns the numbers of the parts on the critical path, as users see them.
#[must_use]
pub fn critical_parts(quote: &Quote) -> Vec<usize> {
    let shown = |part: &usize| quote.parts.iter().position(|shown| shown.part == *part);
    let path = quote.plan.critical_path.iter().filter_map(shown);
    path.map(|place| place + 1).collect()
}

/// Describes why a part runs on its device, and how long the plan would take with the next best.
#[must_use]
pub fn explain_choice(why: &PlacementExplanation, quote: &Quote) -> String {
    let reason = match why.reason {
        Reason::OnlyChoice => "the only device that can",
        Reason::Fastest => "fastest",
        Reason::Cheapest => "cheapest",
        Reason::Greenest => "the fewest joules",
        Reason::BestTradeoff => "best in time and price together",
        Reason::Spread => "spread as asked",
    };
    let Some(next) = &why.alternative else {
        return reason.to_owned();
    };
    format!(
        "{reason}; with {} the plan would take {}",
        quote.device_name(next.offer),
        format_seconds(next.makespan_seconds),
    )
}

/// Formats seconds in a suitable unit.
#[must_use]
pub fn format_seconds(time: f64) -> String {
    match time {
        t if t >= 1.0 => format!("{t:.2} s"),
        t if t >= 1e-3 => format!("{:.2} ms", t * 1e3),
        t => format!("{:.1} us", t * 1e6),
    }
}
