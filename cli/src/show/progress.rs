//! Describes or prints the events of a running job, such as bought leases, in one line each, for
//! `souk submit` and `souk job …`.

use souk_node::buyer::JobEvent;
use souk_node::market::AccountKey;

use super::{
    Names, account_name, format_bytes, format_count, format_credits, print_notice,
    replace_accounts, to_u64,
};

/// Prints one event.
pub fn print_event(event: &JobEvent, names: &Names) {
    if let Some(text) = describe_event(event, names) {
        print_notice(&format!("  {text}"));
    }
}

/// Describes an event, if it is worth a line.
pub fn describe_event(event: &JobEvent, names: &Names) -> Option<String> {
    let name = |account: &AccountKey| account_name(account, names);
    Some(match event {
        JobEvent::Leased { leases, .. } => {
            let held = leases.iter().map(|(_, _, escrow)| escrow.0).sum();
            format!(
                "{} bought; {} credits are held until settled",
                format_count(to_u64(leases.len()), "lease"),
                format_credits(held)
            )
        }
        JobEvent::Fetched {
            provider,
            pieces,
            held,
            bytes: moved,
        } => format!(
            "{} fetched {}, {held} of {} there already",
            name(provider),
            format_bytes(*moved),
            format_count(*pieces, "piece"),
        ),
        JobEvent::Ready { provider } => format!("{} is ready", name(provider)),
        JobEvent::Running { provider, part } => format!("{} runs {part}", name(provider)),
        JobEvent::Finished { provider } => format!("{} is done", name(provider)),
        JobEvent::Returned | JobEvent::Signed { .. } => return None,
        JobEvent::Retrying {
            provider,
            why,
            kept,
        } => format!(
            "the job continues without {}: {}; {} computed so far: kept",
            name(provider),
            replace_accounts(&why.to_string(), names),
            format_count(*kept, "value"),
        ),
        JobEvent::Refused { provider, why } => {
            format!("{} is not paid: {why}", name(provider))
        }
        JobEvent::NotCommanded { lease, why } => {
            format!("lease {lease} is left to the market's rules: {why}")
        }
    })
}
