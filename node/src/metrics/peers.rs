//! What is told of any node's network.

use super::Page;
use crate::network::Network;

/// Whom it is connected to, and whom it knows.
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
