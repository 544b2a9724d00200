//! The progress of a job, line by line.

use souk_node::buyer::JobEvent;
use souk_node::market::AccountKey;

use super::{Names, bytes, called, count, credits, named, number, tell};

/// Prints one event.
pub fn print(event: &JobEvent, names: &Names) {
    if let Some(text) = text(event, names) {
        tell(&format!("  {text}"));
    }
}

/// Describes an event, if it is worth a line.
pub fn text(event: &JobEvent, names: &Names) -> Option<String> {
    let name = |account: &AccountKey| called(account, names);
    Some(match event {
        JobEvent::Leased { leases, .. } => {
            let held = leases.iter().map(|(_, _, escrow)| escrow.0).sum();
            format!(
                "{} bought; {} credits are held until settled",
                count(number(leases.len()), "lease"),
                credits(held)
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
            bytes(*moved),
            count(*pieces, "piece"),
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
            "{} is done without: {}; {} computed so far: kept",
            name(provider),
            named(&why.to_string(), names),
            count(*kept, "value"),
        ),
        JobEvent::Refused { provider, why } => {
            format!("{} is not paid: {why}", name(provider))
        }
        JobEvent::NotCommanded { lease, why } => {
            format!("lease {lease} is left to the market's rules: {why}")
        }
    })
}
