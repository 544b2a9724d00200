//! The metrics of a node's network.

use super::Page;
use crate::network::Network;

/// Adds the numbers of peers that are connected, and of those that are known.
pub(crate) async fn tell(page: &mut Page, network: &Network) {
    let connected = network.connected().await.len();
    page.gauge(
        "souk_peers_connected",
        "Peers with a connection.",
        connected,
    );
    let known = network.profiles().await.len();
    page.gauge(
        "souk_providers_known",
        "Providers heard of and not expired.",
        known,
    );
}
