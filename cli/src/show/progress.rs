//! How a job goes, line by line.

use std::collections::BTreeMap;

use souk_node::buyer::JobEvent;
use souk_node::market::AccountKey;

use super::{bytes, credits, say, short};

/// Prints one step.
pub fn print(event: &JobEvent, names: &BTreeMap<AccountKey, String>) {
    let name = |account: &AccountKey| {
        names
            .get(account)
            .cloned()
            .unwrap_or_else(|| short(account))
    };
    let text = match event {
        JobEvent::Leased { leases, .. } => {
            let held = leases.iter().map(|(_, _, escrow)| escrow.0).sum();
            format!(
                "{} lease(s) bought, {} credits in escrow",
                leases.len(),
                credits(held)
            )
        }
        JobEvent::Fetched {
            provider,
            pieces,
            held,
            bytes: moved,
        } => format!(
            "{} fetched {}, {held} of {pieces} pieces were there already",
            name(provider),
            bytes(*moved),
        ),
        JobEvent::Ready { provider } => format!("{} is ready", name(provider)),
        JobEvent::Running { provider, part } => format!("{} runs {part}", name(provider)),
        JobEvent::Finished { provider } => format!("{} is done", name(provider)),
        JobEvent::Returned | JobEvent::Signed { .. } => return,
        JobEvent::Retrying {
            provider,
            why,
            kept,
        } => format!(
            "{} is done without: {why}; {kept} value(s) computed so far are kept",
            name(provider)
        ),
        JobEvent::Refused { provider, why } => {
            format!("{} is not paid: {why}", name(provider))
        }
        JobEvent::NotCommanded { lease, why } => {
            format!("lease {lease} is left to the market's rules: {why}")
        }
    };
    say(&format!("  {text}"));
}
