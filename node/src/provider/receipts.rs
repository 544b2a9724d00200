//! Writes each receipt that both parties have signed as a JSON file into the provider's folder, for
//! people to read, and passes it to watchers in this process. souk itself settles leases after a
//! crash from the journal.

use std::path::Path;
use std::sync::Arc;

use souk_market::Receipt;

use super::Provider;

impl Provider {
    /// Stores a receipt that both parties have signed; the caller does not wait. Settlement after a
    /// crash must rely on the journal instead.
    pub(super) fn keep_receipt(self: &Arc<Self>, receipt: Receipt) {
        let receipt = Arc::new(receipt);
        // Fails if nobody watches.
        let _ = self.settled.send(receipt.clone());
        let provider = self.clone();
        tokio::task::spawn_blocking(move || {
            let lease = receipt.body.lease;
            if let Some(endpoint) = provider.engine.as_endpoint() {
                // So that `souk provider status` counts the requests that the receipt bills.
                endpoint.store_figures(&provider.home);
            }
            if let Err(error) = store_receipt(&provider.home, &receipt) {
                tracing::error!(%lease, %error, "the receipt could not be written");
            }
        });
    }
}

fn store_receipt(home: &Path, receipt: &Receipt) -> std::io::Result<()> {
    let folder = home.join("receipts");
    std::fs::create_dir_all(&folder)?;
    let text = serde_json::to_string_pretty(receipt)?;
    let path = folder.join(format!("lease-{}.json", receipt.body.lease));
    std::fs::write(path, text + "\n")
}
