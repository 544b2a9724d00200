//! Shows a receipt to a person.

use souk_node::market::Receipt;

use super::{Names, bytes, credits, device, say, seconds, short};

/// Prints a receipt.
pub fn print(receipt: &Receipt, names: &Names) {
    let body = &receipt.body;
    let used = body.usage.0 as f64 / 1e6;
    say(&format!(
        "  lease {}: {}\n    {} at work: {} credits, at {} a second",
        body.lease,
        names.get(&body.provider).cloned().unwrap_or_else(|| {
            let device = device(body.model.as_str(), body.emulated);
            format!("{device} {}", short(&body.provider))
        }),
        seconds(used),
        credits(body.amount.0),
        credits(body.price.0),
    ));
    if body.idle.0 > 0 {
        let (idle, percent) = (body.idle.0 as f64 / 1e6, f64::from(body.idle_part.0) / 10.0);
        say(&format!(
            "    {} held and not used, at {percent} % of that",
            seconds(idle)
        ));
    }
    say(&format!(
        "    buyer {}  graph {}  inputs {}  outputs {}",
        short(&body.buyer),
        short(&body.graph),
        list(&body.inputs),
        list(&body.outputs),
    ));
    let delivered = match body.delivered_mega_ops {
        0 => "too short a run to tell the speed".to_owned(),
        delivered => format!("{delivered} MFLOP/s of {} expected", body.declared_mega_ops),
    };
    say(&format!(
        "    {} in, {} out; {delivered}",
        bytes(body.bytes_in),
        bytes(body.bytes_out)
    ));
}

fn list(ids: &[souk_node::market::ContentId]) -> String {
    let ids: Vec<String> = ids.iter().map(short).collect();
    if ids.is_empty() {
        "-".to_owned()
    } else {
        ids.join(",")
    }
}
