//! A plan, before any money moves.

use serde_json::{Value, json};
use souk_node::buyer::Quote;
use souk_node::scheduler::plan::{Reason, Why};

use super::{Table, bytes, credits, say, scaled, seconds};

/// As one JSON value; times in seconds, prices in micro-credits.
pub fn to_json(quote: &Quote) -> Value {
    let part = |(number, part): (usize, &souk_node::scheduler::cut::Subgraph)| {
        let planned = &quote.plan.parts[part.part];
        let listing = quote.listing(part.part);
        json!({
            "part": number + 1, "graph": part.id, "device": planned.label,
            "emulated": listing.resources.emulated, "provider": listing.provider,
            "nodes": planned.nodes.len(), "flops": planned.flops,
            "start_seconds": planned.start_seconds, "finish_seconds": planned.finish_seconds,
            "busy_seconds": planned.busy_seconds, "micro_credits": planned.cost,
            "why": why(&planned.why, quote),
        })
    };
    let parts: Vec<Value> = quote.parts.iter().enumerate().map(part).collect();
    json!({
        "hash": quote.hash(), "asks_seen": quote.seen, "asks_eligible": quote.listings.len(),
        "makespan_seconds": quote.plan.makespan_seconds, "micro_credits": quote.plan.cost,
        "speedup_over_best_single": quote.plan.speedup, "parts": parts,
    })
}

/// Why a part is where it is, and what the next best would have meant.
fn why(why: &Why, quote: &Quote) -> String {
    let reason = match why.reason {
        Reason::OnlyChoice => "the only device that can",
        Reason::Fastest => "fastest",
        Reason::Cheapest => "cheapest",
        Reason::BestTradeoff => "best in time and price together",
        Reason::Spread => "spread as asked",
    };
    let Some(next) = &why.alternative else {
        return reason.to_owned();
    };
    format!(
        "{reason}; with {} the plan would take {} and cost {}",
        quote.listings[next.offer].resources.model.as_str(),
        seconds(next.makespan_seconds),
        credits(next.cost.ceil() as u64),
    )
}

/// Prints which part runs where, when, and for how much.
pub fn print(quote: &Quote) {
    let plan = &quote.plan;
    say(&format!(
        "plan: {} part(s), {} and {} credits expected once the weights are there; {} of {} asks \
         eligible",
        quote.parts.len(),
        seconds(plan.makespan_seconds),
        credits(plan.cost.ceil() as u64),
        quote.listings.len(),
        quote.seen,
    ));
    let header = [
        "part", "device", ">nodes", ">work", ">weights", ">start", ">time", ">credits", "why",
    ];
    let mut table = Table::new(&header);
    for (number, part) in quote.parts.iter().enumerate() {
        let planned = &plan.parts[part.part];
        table.row([
            format!("{}", number + 1),
            planned.label.clone(),
            planned.nodes.len().to_string(),
            scaled(planned.flops as f64, "FLOP"),
            bytes(part.weights.iter().map(|weight| weight.byte_length).sum()),
            seconds(planned.start_seconds),
            seconds(planned.busy_seconds),
            credits(planned.cost.ceil() as u64),
            why(&planned.why, quote),
        ]);
    }
    table.print();
    say(&format!("  plan hash {}", quote.hash()));
}
