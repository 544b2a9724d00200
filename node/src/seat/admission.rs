//! Before a validator begins: what the others say of it.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use libp2p::PeerId;
use souk_market::AccountKey;

use crate::market_protocol::{Answer, Members, PROTOCOL, Request};
use crate::network::Network;
use crate::wire;

/// How long the others may take to say who the validators are.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a newcomer asks whether it was admitted.
const ADMISSION_PERIOD: Duration = Duration::from_millis(500);

/// Who the validators are, by the first of `peers` that answers; none where nobody does.
pub(super) async fn ask_members(network: &Network, peers: &[PeerId]) -> Option<Members> {
    let mut asked: FuturesUnordered<_> = peers.iter().map(|peer| ask(network, *peer)).collect();
    let first = async {
        while let Some(answer) = asked.next().await {
            if answer.is_some() {
                return answer;
            }
        }
        None
    };
    tokio::time::timeout(ASK_TIMEOUT, first).await.ok()?
}

async fn ask(network: &Network, peer: PeerId) -> Option<Members> {
    let mut stream = network.open(peer, PROTOCOL).await.ok()?;
    wire::send(&mut stream, &Request::Members).await.ok()?;
    match wire::receive(&mut stream).await {
        Ok(Answer::Members(members)) => Some(members),
        _ => None,
    }
}

/// Waits until the operator has admitted `account`; gives its raft id, and who the others are.
pub(super) async fn await_admission(
    network: &Network,
    peers: &[PeerId],
    account: AccountKey,
) -> (u64, Members) {
    loop {
        if let Some(members) = ask_members(network, peers).await
            && let Some(member) = members.of(account)
        {
            return (member.raft_id, members);
        }
        tokio::time::sleep(ADMISSION_PERIOD).await;
    }
}
