//! Reads the market for two commands: `souk book` lists the asks, and `souk balance` shows the
//! credits of the buyer and of the providers, and the market's totals.
//!
//! Other commands use its helpers: they accept old answers (`--stale`), explain a failure of the
//! market's validators, and read the balances before and after a job.

use std::path::Path;

use souk_api::ask::AskView;
use souk_node::buyer::JobResult;
use souk_node::client::broker::{Broker, BrokerError};
use souk_node::market::AccountKey;

use crate::args::{Freshness, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{connect_broker, own_account};
use crate::show;
use crate::show::balance::Balances;

/// Lists the asks.
pub async fn list_asks(folder: &Path, freshness: Freshness, output: Output) -> Outcome {
    let broker = apply_freshness(connect_broker(folder).await?, freshness);
    let asks = broker.fetch_book().await.map_err(market_failure)?;
    let views = || asks.iter().map(AskView::from).collect::<Vec<_>>();
    match (output, broker.oldest_age()) {
        (Output::Json, None) => show::print_json(&views()),
        (Output::Json, Some(age)) => {
            show::print_json(&serde_json::json!({ "stale": age, "asks": views() }));
        }
        (Output::Text, age) => {
            show::print_age(age);
            show::book::print_asks(&asks);
        }
    }
    Ok(())
}

/// Shows the accounts of the buyer and of the providers, and the totals of the market.
pub async fn show_balance(folder: &Path, freshness: Freshness, output: Output) -> Outcome {
    let broker = apply_freshness(connect_broker(folder).await?, freshness);
    let balances = Balances::read(&broker, own_account(folder)).await?;
    match output {
        Output::Json => {
            let mut value = balances.to_json();
            if let (Some(age), Some(fields)) = (broker.oldest_age(), value.as_object_mut()) {
                fields.insert("stale".to_owned(), serde_json::json!(age));
            }
            show::print_json(&value);
        }
        Output::Text => {
            show::print_age(broker.oldest_age());
            show::balance::print_balances(&balances);
        }
    }
    Ok(())
}

/// Returns the broker, which also accepts stale answers of a single validator if the user asked for
/// that with --stale.
pub fn apply_freshness(broker: Broker, freshness: Freshness) -> Broker {
    if freshness.stale {
        broker.with_stale_reads()
    } else {
        broker
    }
}

/// Converts the broker's error into a failure with a hint: a majority of validators must be
/// reachable for a complete answer, while a single one can give a stale one.
pub fn market_failure(error: BrokerError) -> Failure {
    Failure::new(
        Kind::Network,
        error,
        "is the market up? While one validator runs, --stale shows what it has",
    )
}

impl Balances {
    /// Reads the accounts of the providers in the book, of the buyer, and of the buyer's leases.
    pub async fn read(broker: &Broker, own: Option<AccountKey>) -> Result<Balances, Failure> {
        let book = broker.fetch_book().await.map_err(market_failure)?;
        let mut keys: Vec<AccountKey> = book.iter().map(|listing| listing.provider).collect();
        if let Some(own) = own {
            keys.push(own);
            let leases = broker.fetch_leases(own).await.map_err(market_failure)?;
            keys.extend(leases.iter().map(|lease| lease.provider));
        }
        Balances::read_accounts(broker, keys).await
    }

    /// Reads these accounts and the totals.
    pub async fn read_accounts(
        broker: &Broker,
        mut keys: Vec<AccountKey>,
    ) -> Result<Balances, Failure> {
        keys.sort_unstable();
        keys.dedup();
        let mut accounts = Vec::new();
        for key in keys {
            accounts.extend(broker.fetch_account(key).await.map_err(market_failure)?);
        }
        accounts.sort_by(|a, b| a.name.cmp(&b.name));
        let totals = broker.fetch_totals().await.map_err(market_failure)?;
        Ok(Balances { accounts, totals })
    }

    /// Reads the same accounts after a job, and those that the job paid.
    pub async fn read_after_job(
        &self,
        broker: &Broker,
        finished: &JobResult,
    ) -> Result<Balances, Failure> {
        let held = self.accounts.iter().map(|account| account.key);
        let paid = finished.receipts.iter();
        let paid = paid.map(|receipt| receipt.body.provider);
        Balances::read_accounts(broker, held.chain(paid).collect()).await
    }
}
