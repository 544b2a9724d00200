//! Receipts of a provider on its disk: what it is owed, whatever happens to the buyer.

use std::path::{Path, PathBuf};
use std::time::Duration;

use souk_market::{Command, DeviceMicros, LeaseId, Receipt, Refusal};

use super::{Provider, Stopping};
use crate::client::trader::TradeError;

/// The buyer settles as soon as it has signed; if it has not within this, the provider does.
const BUYER_SETTLES_WITHIN: Duration = Duration::from_secs(2);

/// Keeps a receipt that both parties have signed, and sees to it that it is settled.
pub(super) async fn on_signed(provider: &Provider, receipt: Receipt) {
    let lease = receipt.body.lease;
    if let Err((path, error)) = keep(&provider.home, &receipt) {
        tracing::error!(%lease, path = %path.display(), %error, "the receipt was not written");
    }
    let mut stopping = provider.stopping.subscribe();
    tokio::select! {
        () = tokio::time::sleep(BUYER_SETTLES_WITHIN) => {}
        // Who stops does not wait for the buyer: to settle twice does nothing.
        _ = stopping.wait_for(|stopping| *stopping != Stopping::No) => {}
    }
    let known = provider.trader.broker().lease(lease).await;
    if matches!(&known, Ok(Some(lease)) if lease.is_closed()) {
        return;
    }
    match provider
        .trader
        .submit_one(Command::Settle(Box::new(receipt)))
        .await
    {
        Ok(_) | Err(TradeError::Refused(Refusal::LeaseClosed { .. })) => {}
        Err(error) => tracing::error!(%lease, %error, "the receipt was not settled"),
    }
}

/// States what was used where the buyer does not sign: it counts unless the buyer disputes it.
pub(super) async fn on_unsigned(provider: &Provider, lease: LeaseId, usage: DeviceMicros) {
    match provider
        .trader
        .submit_one(Command::NoteUsage { lease, usage })
        .await
    {
        Ok(_) => tracing::warn!(%lease, %usage, "the buyer did not sign; the usage is noted"),
        Err(error) => tracing::error!(%lease, %error, "the usage was not noted"),
    }
}

/// The receipt of a lease that both signed, if there is one.
pub(super) fn kept(home: &Path, lease: LeaseId) -> Option<Receipt> {
    let text = std::fs::read_to_string(path_of(home, lease)).ok()?;
    let receipt: Receipt = serde_json::from_str(&text).ok()?;
    // One that was torn by a crash does not parse or verify: the usage is noted instead.
    receipt.verify().is_ok().then_some(receipt)
}

fn path_of(home: &Path, lease: LeaseId) -> PathBuf {
    home.join("receipts").join(format!("lease-{lease}.json"))
}

fn keep(home: &Path, receipt: &Receipt) -> Result<(), (PathBuf, std::io::Error)> {
    let path = path_of(home, receipt.body.lease);
    let failed = |error| (path.clone(), error);
    std::fs::create_dir_all(home.join("receipts")).map_err(failed)?;
    let text = serde_json::to_string_pretty(receipt).map_err(|e| failed(e.into()))?;
    std::fs::write(&path, text + "\n").map_err(failed)
}
