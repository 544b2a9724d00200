//! A plan, before any money moves.

use serde_json::{Value, json};
use souk_node::buyer::job::Limits;
use souk_node::buyer::{Alternative, Quote};
use souk_node::scheduler::planning::{Reason, Utilisation, Why};

use super::times::{self, Times};
use super::{Table, bytes, count, credits, number, provider, say, scaled, seconds};

/// As one JSON value; times in seconds, prices in micro-credits.
pub fn to_json(quote: &Quote) -> Value {
    let part = |(number, part): (usize, &souk_node::scheduler::graph::cut::Subgraph)| {
        let planned = &quote.plan.parts[part.part];
        let listing = quote.listing(part.part);
        json!({
            "part": number + 1, "graph": part.id, "device": planned.label,
            "emulated": listing.resources.emulated, "provider": listing.provider,
            "provider_name": listing.name,
            "nodes": planned.nodes.len(), "flops": planned.flops,
            "start_seconds": planned.start_seconds, "finish_seconds": planned.finish_seconds,
            "busy_seconds": planned.busy_seconds,
            "micro_credits": quote.part_price(part.part),
            "why": why(&planned.why, quote),
            "critical": quote.plan.critical_path.contains(&part.part),
            "next_best": planned.why.alternative.map(|next| json!({
                "device": quote.listings[next.offer].resources.model.as_str(),
                "makespan_seconds": next.makespan_seconds, "micro_credits": next.cost,
                "joules": next.joules,
            })),
        })
    };
    let device = |used: &Utilisation| {
        json!({
            "device": quote.listings[used.offer].resources.model.as_str(),
            "provider": quote.listings[used.offer].provider,
            "busy_seconds": used.busy_seconds, "utilisation": used.share,
        })
    };
    let devices: Vec<Value> = quote.plan.utilisation.iter().map(device).collect();
    let parts: Vec<Value> = quote.parts.iter().enumerate().map(part).collect();
    json!({
        "hash": quote.hash(), "asks_seen": quote.seen, "asks_eligible": quote.eligible,
        "makespan_seconds": quote.plan.makespan_seconds, "micro_credits": quote.price(),
        "joules": quote.joules(), "times": Times::planned(quote).to_json(),
        "compared_with": seconds_of(quote),
        "speedup_over_best_single": quote.plan.speedup,
        "critical_path": critical(quote), "devices": devices, "parts": parts,
    })
}

/// The providers that run parts again, with the device's name.
fn seconds_of(quote: &Quote) -> Vec<Value> {
    let second = |offer: &usize| {
        let listing = &quote.listings[*offer];
        let device = super::device(listing.resources.model.as_str(), listing.resources.emulated);
        json!({ "device": device, "provider": listing.provider })
    };
    quote.seconds.iter().map(second).collect()
}

/// What else there is to choose from, and what is not, as fields of a JSON value.
pub fn choice_json(quote: &Quote, alternatives: &[Alternative]) -> [(&'static str, Value); 3] {
    let one = |other: &Alternative| {
        json!({
            "makespan_seconds": other.seconds, "micro_credits": other.price,
            "devices": other.devices, "against_plan": against(quote, other),
        })
    };
    let others: Vec<Value> = alternatives.iter().map(one).collect();
    let (least, most) = price_range(quote, alternatives);
    let range = json!({ "least_micro_credits": least, "most_micro_credits": most });
    [
        ("alternatives", others.into()),
        ("price_range", range),
        ("not_eligible", json!(quote.unsuitable)),
    ]
}

/// Prints what else there is to choose from, and what is not.
pub fn print_choice(quote: &Quote, alternatives: &[Alternative]) {
    let (least, most) = price_range(quote, alternatives);
    say(&format!(
        "  it can be had for {} to {} credits:",
        credits(least),
        credits(most)
    ));
    let header = [">time", ">credits", "against this plan", "on"];
    let mut table = Table::new(&header).sparing(&["against this plan"]);
    for other in alternatives {
        table.row([
            seconds(other.seconds),
            credits(other.price.0),
            against(quote, other),
            other.devices.join(", "),
        ]);
    }
    table.print();
    unsuitable(quote).iter().for_each(|line| say(line));
}

/// What does not suit, by cause, in lines.
pub fn unsuitable(quote: &Quote) -> Vec<String> {
    if quote.unsuitable.is_empty() {
        return Vec::new();
    }
    let asks = count(quote.seen.saturating_sub(quote.eligible), "ask");
    let head = format!("  not eligible: {asks}");
    let each = quote.unsuitable.iter().map(|cause| format!("    {cause}"));
    std::iter::once(head).chain(each).collect()
}

/// The least and the most that sensible plans cost.
fn price_range(quote: &Quote, alternatives: &[Alternative]) -> (u64, u64) {
    let prices = alternatives
        .iter()
        .map(|other| other.price.0)
        .chain([quote.price().0]);
    prices.fold((u64::MAX, 0), |(least, most), price| {
        (least.min(price), most.max(price))
    })
}

/// What an alternative gives and takes.
fn against(quote: &Quote, other: &Alternative) -> String {
    let time = other.seconds / quote.plan.makespan_seconds.max(f64::MIN_POSITIVE);
    let price = other.price.0 as f64 / (quote.price().0.max(1)) as f64;
    if (time - 1.0).abs() < 0.005 && (price - 1.0).abs() < 0.005 {
        return "as good".to_owned();
    }
    format!("{time:.2}x the time for {price:.2}x the price")
}

/// The parts that the makespan waits for, by the numbers they are shown under.
fn critical(quote: &Quote) -> Vec<usize> {
    let shown = |part: &usize| quote.parts.iter().position(|shown| shown.part == *part);
    let path = quote.plan.critical_path.iter().filter_map(shown);
    path.map(|place| place + 1).collect()
}

/// The critical path, how busy each device is, and what one device alone would take.
fn summary(quote: &Quote) -> Vec<String> {
    let path: Vec<String> = critical(quote).iter().map(usize::to_string).collect();
    let busy = |used: &Utilisation| {
        let model = quote.listings[used.offer].resources.model.as_str();
        format!("{model} {:.0} % busy", used.share * 100.0)
    };
    let busy: Vec<String> = quote.plan.utilisation.iter().map(busy).collect();
    let single = quote.plan.best_single.zip(quote.plan.speedup);
    let single = single.map_or_else(
        || "no one device can run all of it".to_owned(),
        |(single, speedup)| {
            let model = quote.listings[single.offer].resources.model.as_str();
            let alone = seconds(single.makespan_seconds);
            match (speedup, quote.parts.len()) {
                (_, 1) => format!("{model} is the best single device"),
                (speedup, _) if speedup < 1.0 => format!(
                    "spread as you asked: {:.1}x slower than {model} alone ({alone})",
                    1.0 / speedup.max(f64::MIN_POSITIVE)
                ),
                (speedup, _) => format!("{model} alone would take {alone} ({speedup:.2}x)"),
            }
        },
    );
    vec![
        format!(
            "  critical path: part {}; {}",
            path.join(", "),
            busy.join(", ")
        ),
        format!("  {single}"),
    ]
}

/// Why a part is where it is, and what the next best would have meant.
fn why(why: &Why, quote: &Quote) -> String {
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
        quote.listings[next.offer].resources.model.as_str(),
        seconds(next.makespan_seconds),
    )
}

/// Which part runs where, when, and for how much, in lines.
pub fn text(quote: &Quote, limits: &Limits) -> Vec<String> {
    let plan = &quote.plan;
    let (parts, asks) = (number(quote.parts.len()), count(quote.seen, "ask"));
    let mut text = vec![format!(
        "plan: {}, {} credits; {} of {asks} eligible",
        count(parts, "part"),
        credits(quote.price().0),
        quote.eligible,
    )];
    let header = [
        ">part", "provider", ">nodes", ">work", ">weights", ">start", ">time", ">credits",
    ];
    let mut table = Table::new(&header).sparing(&["nodes", "weights", "start", "work"]);
    for (number, part) in quote.parts.iter().enumerate() {
        let planned = &plan.parts[part.part];
        table.row([
            format!("{}", number + 1),
            provider(quote.listing(part.part)),
            planned.nodes.len().to_string(),
            scaled(planned.flops as f64, "FLOP"),
            bytes(part.weights.iter().map(|weight| weight.byte_length).sum()),
            seconds(planned.start_seconds),
            seconds(planned.busy_seconds),
            credits(quote.part_price(part.part).0),
        ]);
    }
    text.extend(table.text());
    for (number, part) in quote.parts.iter().enumerate() {
        let reason = why(&plan.parts[part.part].why, quote);
        text.push(format!("  part {}: {reason}", number + 1));
    }
    for offer in &quote.seconds {
        let again = provider(&quote.listings[*offer]);
        text.push(format!("  run again on {again}, to compare"));
    }
    if let Some(joules) = quote.joules() {
        text.push(format!("  {joules:.3} J by the power the providers state"));
    }
    text.extend(summary(quote));
    text.extend(times::text(Some(Times::planned(quote)), None));
    text.extend(held(quote, limits));
    text.push(format!("  plan hash {}", quote.hash()));
    text
}

/// What the leases hold, and until when.
fn held(quote: &Quote, limits: &Limits) -> Vec<String> {
    let Ok((held, duration)) = quote.holds(limits.budget) else {
        return Vec::new();
    };
    let leases = count(
        number(quote.plan.offers().len() + quote.seconds.len()),
        "lease",
    );
    vec![
        format!("  holds up to {} credits until settled:", credits(held.0)),
        format!(
            "    {leases} of up to {}; what is used is paid, the rest returns with the receipt",
            seconds(duration.0 as f64 / 1e3),
        ),
    ]
}
