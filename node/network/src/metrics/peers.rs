//! Adds to a page the metrics of a node's network: how many peers are connected, and how many
//! providers are known. Providers and validators call it.

use super::Page;
use crate::Network;

/// Adds the numbers of peers that are connected, and of those that are known.
pub async fn add_metrics(page: &mut Page, network: &Network) {
    let connected = network.connected_peers().await.len();
    page.add_gauge(
        "souk_peers_connected",
        "Peers with a connection.",
        connected,
    );
    let known = network.provider_profiles().await.len();
    page.add_gauge(
        "souk_providers_known",
        "Providers heard of and not expired.",
        known,
    );
}
