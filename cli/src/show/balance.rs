//! Prints the balances of the buyer, the providers and the whole market, at one moment or before
//! and after a job, and converts them to JSON. `souk balance`, the commands that run jobs, and
//! `souk testnet status` use it.

use souk_api::account::AccountView;
use souk_api::market::TotalsView;
use souk_node::market::{Account, Totals};

use super::{Table, format_credits, print_line, short_id};

/// Balances of accounts at one moment.
pub struct Balances {
    /// The buyer and the providers with asks or leases, by name.
    pub accounts: Vec<Account>,
    /// Totals of the whole market.
    pub totals: Totals,
}

impl Balances {
    /// Returns the balances as JSON; amounts are in micro-credits.
    pub fn to_json(&self) -> serde_json::Value {
        let accounts: Vec<_> = self.accounts.iter().map(AccountView::from).collect();
        serde_json::json!({ "accounts": accounts, "totals": TotalsView::from(&self.totals) })
    }
}

/// Prints accounts and totals.
pub fn print_balances(balances: &Balances) {
    let mut table = Table::new(&["account", "name", ">available", ">in escrow", ">reputation"]);
    for account in &balances.accounts {
        table.add_row([
            short_id(&account.key),
            account.name.to_string(),
            format_credits(account.available.0),
            format_credits(account.escrow.0),
            account.reputation.score.to_string(),
        ]);
    }
    table.print();
    print_totals(balances);
}

/// Prints balances before and after side by side.
pub fn print_change(before: &Balances, after: &Balances) {
    let mut table = Table::new(&["account", "name", ">before", ">after", ">in escrow"]);
    for now in &after.accounts {
        let then = before
            .accounts
            .iter()
            .find(|account| account.key == now.key);
        table.add_row([
            short_id(&now.key),
            now.name.to_string(),
            format_credits(then.map_or(0, |account| account.available.0)),
            format_credits(now.available.0),
            format_credits(now.escrow.0),
        ]);
    }
    table.print();
    print_totals(after);
}

fn print_totals(balances: &Balances) {
    let sums = &balances.totals;
    let holds = if sums.is_balanced() {
        "="
    } else {
        "DIFFERS FROM"
    };
    print_line(&format!(
        "  all accounts: {} available\n    + {} in escrow + {} fees\n    \
         {holds} {} deposited - {} withdrawn",
        format_credits(sums.available.0),
        format_credits(sums.escrow.0),
        format_credits(sums.fees.0),
        format_credits(sums.deposits.0),
        format_credits(sums.withdrawals.0),
    ));
}
