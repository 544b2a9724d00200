//! `souk book` and `souk balance`: the current state of the market.

use std::path::Path;

use souk_node::buyer::JobResult;
use souk_node::client::broker::{Broker, BrokerError};
use souk_node::market::AccountKey;

use crate::args::{Freshness, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{look, own_account};
use crate::show;
use crate::show::balance::Balances;

/// Lists the asks.
pub async fn book(folder: &Path, freshness: Freshness, output: Output) -> Outcome {
    let broker = asked(look(folder).await?, freshness);
    let asks = broker.book().await.map_err(no_answer)?;
    match (output, broker.oldest()) {
        (Output::Json, None) => show::json(&asks),
        (Output::Json, Some(age)) => {
            show::json(&serde_json::json!({ "stale": age, "asks": asks }));
        }
        (Output::Text, age) => {
            show::age(age);
            show::book::print(&asks);
        }
    }
    Ok(())
}

/// Shows the buyer's account, the providers on offer, and the sums.
pub async fn balance(folder: &Path, freshness: Freshness, output: Output) -> Outcome {
    let broker = asked(look(folder).await?, freshness);
    let balances = Balances::read(&broker, own_account(folder)).await?;
    match output {
        Output::Json => {
            let mut value = balances.to_json();
            if let (Some(age), Some(fields)) = (broker.oldest(), value.as_object_mut()) {
                fields.insert("stale".to_owned(), serde_json::json!(age));
            }
            show::json(&value);
        }
        Output::Text => {
            show::age(broker.oldest());
            show::balance::print(&balances);
        }
    }
    Ok(())
}

pub fn asked(broker: Broker, freshness: Freshness) -> Broker {
    if freshness.stale {
        broker.stale()
    } else {
        broker
    }
}

/// Converts a failure to answer: a complete answer needs a majority, a stale one needs one
/// validator.
pub fn no_answer(error: BrokerError) -> Failure {
    Failure::new(
        Kind::Network,
        error,
        "is the market up? While one validator runs, --stale shows what it has",
    )
}

impl Balances {
    /// Reads the accounts of the providers in the book, of the buyer, and of the buyer's leases.
    pub async fn read(broker: &Broker, own: Option<AccountKey>) -> Result<Balances, Failure> {
        let book = broker.book().await.map_err(no_answer)?;
        let mut keys: Vec<AccountKey> = book.iter().map(|listing| listing.provider).collect();
        if let Some(own) = own {
            keys.push(own);
            let leases = broker.leases(own).await.map_err(no_answer)?;
            keys.extend(leases.iter().map(|lease| lease.provider));
        }
        Balances::of(broker, keys).await
    }

    /// Reads these accounts and the totals.
    pub async fn of(broker: &Broker, mut keys: Vec<AccountKey>) -> Result<Balances, Failure> {
        keys.sort_unstable();
        keys.dedup();
        let mut accounts = Vec::new();
        for key in keys {
            accounts.extend(broker.account(key).await.map_err(no_answer)?);
        }
        accounts.sort_by(|a, b| a.name.cmp(&b.name));
        let totals = broker.totals().await.map_err(no_answer)?;
        Ok(Balances { accounts, totals })
    }

    /// Reads the same accounts after a job, and those that the job paid.
    pub async fn after(&self, broker: &Broker, finished: &JobResult) -> Result<Balances, Failure> {
        let held = self.accounts.iter().map(|account| account.key);
        let paid = finished.receipts.iter();
        let paid = paid.map(|receipt| receipt.body.provider);
        Balances::of(broker, held.chain(paid).collect()).await
    }
}
