//! Prints a receipt as text. A receipt is the statement of a run, its device and its price that
//! buyer and provider sign.

use souk_node::market::Receipt;

use super::{
    Names, device_label, format_bytes, format_credits, format_seconds, print_line, short_id,
};

/// Prints a receipt.
pub fn print_receipt(receipt: &Receipt, names: &Names) {
    let body = &receipt.body;
    let used = body.usage.0 as f64 / 1e6;
    print_line(&format!(
        "  lease {}: {}\n    {} at work: {} credits, at {} a second",
        body.lease,
        names.get(&body.provider).cloned().unwrap_or_else(|| {
            let device = device_label(body.model.as_str(), body.emulated);
            format!("{device} {}", short_id(&body.provider))
        }),
        format_seconds(used),
        format_credits(body.amount.0),
        format_credits(body.price.0),
    ));
    if body.idle.0 > 0 {
        let (idle, percent) = (body.idle.0 as f64 / 1e6, f64::from(body.idle_part.0) / 10.0);
        print_line(&format!(
            "    {} held and not used, at {percent} % of that",
            format_seconds(idle)
        ));
    }
    print_line(&format!(
        "    buyer {}  graph {}  inputs {}  outputs {}",
        short_id(&body.buyer),
        short_id(&body.graph),
        list_ids(&body.inputs),
        list_ids(&body.outputs),
    ));
    let delivered = match body.delivered_mega_ops {
        0 => "too short a run to tell the speed".to_owned(),
        delivered => format!("{delivered} MFLOP/s of {} expected", body.declared_mega_ops),
    };
    print_line(&format!(
        "    {} in, {} out; {delivered}",
        format_bytes(body.bytes_in),
        format_bytes(body.bytes_out)
    ));
}

fn list_ids(ids: &[souk_node::market::ContentId]) -> String {
    let ids: Vec<String> = ids.iter().map(short_id).collect();
    if ids.is_empty() {
        "-".to_owned()
    } else {
        ids.join(",")
    }
}
