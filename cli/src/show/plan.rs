//! A plan, before any money moves.

use souk_node::buyer::job::Limits;
use souk_node::buyer::plan_json::{against, critical, price_range, why};
use souk_node::buyer::{Alternative, Quote, Scarce};
use souk_node::scheduler::planning::Utilisation;

use super::times::{self, Times};
use super::{Table, bytes, count, credits, number, provider, say, scaled, seconds};

/// Prints the alternatives to a plan, and the asks that are not eligible.
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

/// Returns lines about the asks that are not eligible, by cause, and about operators that only some
/// asks run.
pub fn unsuitable(quote: &Quote) -> Vec<String> {
    let mut lines = Vec::new();
    if !quote.unsuitable.is_empty() {
        let asks = count(quote.seen.saturating_sub(quote.eligible), "ask");
        lines.push(format!("  not eligible: {asks}"));
        lines.extend(quote.unsuitable.iter().map(|cause| format!("    {cause}")));
    }
    let scarce = quote.scarce.iter().map(|Scarce { operator, asks }| {
        format!(
            "  {operator} is run by {asks} of {}",
            count(quote.seen, "ask")
        )
    });
    lines.extend(scarce);
    lines
}

/// Describes the critical path, the utilisation of each device, and the time on a single device.
fn summary(quote: &Quote) -> Vec<String> {
    let path: Vec<String> = critical(quote).iter().map(usize::to_string).collect();
    let busy = |used: &Utilisation| {
        let device = quote.device(used.offer);
        format!("{device} {:.0} % busy", used.share * 100.0)
    };
    let busy: Vec<String> = quote.plan.utilisation.iter().map(busy).collect();
    let single = quote.plan.best_single.zip(quote.plan.speedup);
    let single = single.map_or_else(
        || "no one device can run all of it".to_owned(),
        |(single, speedup)| {
            let model = quote.device(single.offer);
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

/// Describes which part runs where, when, and at which price.
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
    text.extend(stated(quote));
    text.extend(held(quote, limits));
    text.push(format!("  plan hash {}", quote.hash()));
    text
}

/// Explains the planned price if a device is real: its time may differ from the stated one.
fn stated(quote: &Quote) -> Option<String> {
    let offers = quote
        .plan
        .offers()
        .into_iter()
        .chain(quote.seconds.iter().copied());
    let mut listings = offers.map(|offer| &quote.listings[offer]);
    let is_real = listings.any(|listing| !listing.resources.emulated);
    let text = "  by the times that providers state; paid is the time that it takes them";
    is_real.then(|| text.to_owned())
}

/// Describes the credits that the leases hold, and until when.
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
