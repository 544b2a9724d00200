//! Describes the plan of a job before any money moves: which part of the model runs where, when and
//! at what price, the alternatives, and the asks that are not eligible. `souk plan`, `souk submit`,
//! the demo and the commands that continue texts use it.

use souk_node::buyer::job::Limits;
use souk_node::buyer::plan_json::{
    compare_alternative, critical_parts, explain_choice, price_range,
};
use souk_node::buyer::{Alternative, Quote, ScarceOperator};
use souk_node::scheduler::planning::Utilisation;

use super::times::{self, JobTimes};
use super::{
    Table, format_bytes, format_count, format_credits, format_scaled, format_seconds, print_line,
    provider_name, to_u64,
};

/// Prints the alternatives to a plan, and the asks that are not eligible.
pub fn print_choice(quote: &Quote, alternatives: &[Alternative]) {
    let (least, most) = price_range(quote, alternatives);
    print_line(&format!(
        "  it can be had for {} to {} credits:",
        format_credits(least),
        format_credits(most)
    ));
    let header = [">time", ">credits", "against this plan", "on"];
    let mut table = Table::new(&header).with_spare_columns(&["against this plan"]);
    for other in alternatives {
        table.add_row([
            format_seconds(other.seconds),
            format_credits(other.price.0),
            compare_alternative(quote, other),
            other.devices.join(", "),
        ]);
    }
    table.print();
    describe_unsuitable(quote)
        .iter()
        .for_each(|line| print_line(line));
}

/// Returns lines about the asks that are not eligible, by cause, and about operators that only some
/// asks run.
pub fn describe_unsuitable(quote: &Quote) -> Vec<String> {
    let mut lines = Vec::new();
    if !quote.unsuitable.is_empty() {
        let asks = format_count(quote.seen.saturating_sub(quote.eligible), "ask");
        lines.push(format!("  not eligible: {asks}"));
        lines.extend(quote.unsuitable.iter().map(|cause| format!("    {cause}")));
    }
    let scarce = quote
        .scarce
        .iter()
        .map(|ScarceOperator { operator, asks }| {
            format!(
                "  {operator} is run by {asks} of {}",
                format_count(quote.seen, "ask")
            )
        });
    lines.extend(scarce);
    lines
}

/// Describes the critical path, the utilisation of each device, and the time on a single device.
fn describe_schedule(quote: &Quote) -> Vec<String> {
    let path: Vec<String> = critical_parts(quote).iter().map(usize::to_string).collect();
    let busy = |used: &Utilisation| {
        let device = quote.device_name(used.offer);
        format!("{device} {:.0} % busy", used.share * 100.0)
    };
    let busy: Vec<String> = quote.plan.utilisation.iter().map(busy).collect();
    let single = quote.plan.best_single.zip(quote.plan.speedup);
    let single = single.map_or_else(
        || "no one device can run all of it".to_owned(),
        |(single, speedup)| {
            let model = quote.device_name(single.offer);
            let alone = format_seconds(single.makespan_seconds);
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

/// Describes which part runs where, when, and at which price.
pub fn describe_plan(quote: &Quote, limits: &Limits) -> Vec<String> {
    let plan = &quote.plan;
    let (parts, asks) = (to_u64(quote.parts.len()), format_count(quote.seen, "ask"));
    let mut text = vec![format!(
        "plan: {}, {} credits; {} of {asks} eligible",
        format_count(parts, "part"),
        format_credits(quote.price().0),
        quote.eligible,
    )];
    let header = [
        ">part", "provider", ">nodes", ">work", ">weights", ">start", ">time", ">credits",
    ];
    let mut table = Table::new(&header).with_spare_columns(&["nodes", "weights", "start", "work"]);
    for (number, part) in quote.parts.iter().enumerate() {
        let planned = &plan.parts[part.part];
        table.add_row([
            format!("{}", number + 1),
            provider_name(quote.part_listing(part.part)),
            planned.nodes.len().to_string(),
            format_scaled(planned.flops as f64, "FLOP"),
            format_bytes(part.weights.iter().map(|weight| weight.byte_length).sum()),
            format_seconds(planned.start_seconds),
            format_seconds(planned.busy_seconds),
            format_credits(quote.part_price(part.part).0),
        ]);
    }
    text.extend(table.to_lines());
    for (number, part) in quote.parts.iter().enumerate() {
        let reason = explain_choice(&plan.parts[part.part].why, quote);
        text.push(format!("  part {}: {reason}", number + 1));
    }
    for offer in &quote.seconds {
        let again = provider_name(&quote.listings[*offer]);
        text.push(format!("  run again on {again}, to compare"));
    }
    if let Some(joules) = quote.joules() {
        text.push(format!("  {joules:.3} J by the power the providers state"));
    }
    text.extend(describe_schedule(quote));
    text.extend(times::format_times(Some(JobTimes::from_quote(quote)), None));
    text.extend(explain_price(quote));
    text.extend(describe_holds(quote, limits));
    text.push(format!("  plan hash {}", quote.hash()));
    text
}

/// Explains the planned price if a device is real: its time can differ from the stated one.
fn explain_price(quote: &Quote) -> Option<String> {
    let offers = quote
        .plan
        .used_offers()
        .into_iter()
        .chain(quote.seconds.iter().copied());
    let mut listings = offers.map(|offer| &quote.listings[offer]);
    let is_real = listings.any(|listing| !listing.resources.emulated);
    let text = "  by the times that providers state; paid is the time that it takes them";
    is_real.then(|| text.to_owned())
}

/// Describes the credits that the leases hold, and until when.
fn describe_holds(quote: &Quote, limits: &Limits) -> Vec<String> {
    let Ok((held, duration)) = quote.lease_escrow(limits.budget) else {
        return Vec::new();
    };
    let leases = format_count(
        to_u64(quote.plan.used_offers().len() + quote.seconds.len()),
        "lease",
    );
    vec![
        format!(
            "  holds up to {} credits until settled:",
            format_credits(held.0)
        ),
        format!(
            "    {leases} of up to {}; what is used is paid, the rest returns with the receipt",
            format_seconds(duration.0 as f64 / 1e3),
        ),
    ]
}
