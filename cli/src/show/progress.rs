//! How a job goes, line by line.

use std::collections::BTreeMap;

use souk_node::buyer::Progress;
use souk_node::market::AccountKey;

use super::{bytes, credits, say, short};

/// Prints one step.
pub fn print(progress: &Progress, names: &BTreeMap<AccountKey, String>) {
    let name = |account: &AccountKey| {
        names
            .get(account)
            .cloned()
            .unwrap_or_else(|| short(account))
    };
    let text = match progress {
        Progress::Leased { leases } => {
            let held = leases.iter().map(|(_, _, escrow)| escrow).sum();
            format!(
                "{} lease(s) bought, {} credits in escrow",
                leases.len(),
                credits(held)
            )
        }
        Progress::Fetched {
            provider,
            pieces,
            held,
            bytes: moved,
        } => format!(
            "{} fetched {}, {held} of {pieces} pieces were there already",
            name(provider),
            bytes(*moved),
        ),
        Progress::Compiled { provider } => format!("{} is ready", name(provider)),
        Progress::Running { provider, part } => format!("{} runs {part}", name(provider)),
        Progress::Finished { provider } => format!("{} is done", name(provider)),
        Progress::Returned => return,
        Progress::Retrying {
            provider,
            why,
            kept,
        } => format!(
            "{} is done without: {why}; {kept} value(s) computed so far are kept",
            name(provider)
        ),
    };
    say(&format!("  {text}"));
}
