//! `souk book` and `souk balance`: the market as it stands.

use std::path::Path;

use souk_node::buyer::Buyer;
use souk_node::market::{Account, AccountKey, Totals};

use crate::args::Output;
use crate::failure::{Failure, Outcome};
use crate::folder::{join, unreachable_market};
use crate::show;

/// Lists the asks.
pub async fn book(folder: &Path, output: Output) -> Outcome {
    let buyer = join(folder).await?;
    let asks = buyer.broker().book().await.map_err(unreachable_market)?;
    match output {
        Output::Json => show::json(&asks),
        Output::Text => show::book::print(&asks),
    }
    Ok(())
}

/// Shows the buyer's account, the providers on offer, and the sums.
pub async fn balance(folder: &Path, output: Output) -> Outcome {
    let buyer = join(folder).await?;
    let balances = Balances::read(&buyer).await?;
    match output {
        Output::Json => show::json(&balances.to_json()),
        Output::Text => show::balance::print(&balances),
    }
    Ok(())
}

/// What accounts hold, at one moment.
pub struct Balances {
    /// The buyer and the providers with asks or leases, by name.
    pub accounts: Vec<Account>,
    /// The sums over the whole market.
    pub totals: Totals,
}

impl Balances {
    /// Asks the market.
    pub async fn read(buyer: &Buyer) -> Result<Balances, Failure> {
        let broker = buyer.broker();
        let mut keys: Vec<AccountKey> = vec![buyer.account()];
        let book = broker.book().await.map_err(unreachable_market)?;
        keys.extend(book.iter().map(|listing| listing.provider));
        let leases = broker
            .leases(buyer.account())
            .await
            .map_err(unreachable_market)?;
        keys.extend(leases.iter().map(|lease| lease.provider));
        Balances::of(buyer, keys).await
    }

    /// Asks the market for these accounts.
    pub async fn of(buyer: &Buyer, mut keys: Vec<AccountKey>) -> Result<Balances, Failure> {
        let broker = buyer.broker();
        keys.sort_unstable();
        keys.dedup();
        let mut accounts = Vec::new();
        for key in keys {
            accounts.extend(broker.account(key).await.map_err(unreachable_market)?);
        }
        accounts.sort_by(|a, b| a.name.cmp(&b.name));
        let totals = broker.totals().await.map_err(unreachable_market)?;
        Ok(Balances { accounts, totals })
    }

    /// As one JSON value; amounts in micro-credits.
    pub fn to_json(&self) -> serde_json::Value {
        let account = |account: &Account| {
            serde_json::json!({
                "account": account.key, "name": account.name,
                "available": account.available, "escrow": account.escrow,
                "reputation": account.reputation,
            })
        };
        let accounts: Vec<_> = self.accounts.iter().map(account).collect();
        serde_json::json!({
            "accounts": accounts, "totals": self.totals, "balanced": self.totals.balanced(),
        })
    }
}
