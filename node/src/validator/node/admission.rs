//! Before a validator begins: what the others say of it.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use libp2p::PeerId;
use libp2p::swarm::StreamProtocol;
use souk_market::AccountKey;
use tokio::time::Instant;

use crate::network::Network;
use crate::network::wire;
use crate::protocols::market::{Answer, Members, PROTOCOL, Request, TimedAnswer};

/// How long the others may take to say who the validators are.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a newcomer asks whether it was admitted.
const ADMISSION_PERIOD: Duration = Duration::from_millis(500);

/// What a founder speaks that started without a log: others that did know it by that.
const FRESH: StreamProtocol = StreamProtocol::new("/souk/fresh/1");

/// How long a founder without a log looks for others that know better.
const FRESH_PATIENCE: Duration = Duration::from_secs(5);

/// How often it looks.
const FRESH_PERIOD: Duration = Duration::from_millis(50);

/// Streams of [`FRESH`] at a time: one for each other validator, and some to spare.
const FRESH_STREAMS_MAX: usize = 64;

/// What the others say of a founder that has no log. At a market's beginning they have none either,
/// and say so; then, or where too many are away for long, nobody knows better.
pub(super) async fn ask_as_fresh(network: &Network, peers: &[PeerId]) -> Option<Members> {
    network.serve(FRESH, FRESH_STREAMS_MAX, |_, _| async {});
    let deadline = Instant::now() + FRESH_PATIENCE;
    loop {
        if let Some(members) = ask_members(network, peers).await {
            return Some(members);
        }
        let asked = peers.iter().map(|peer| network.open(*peer, FRESH));
        let fresh = futures::future::join_all(asked).await;
        if fresh.iter().all(Result::is_ok) || Instant::now() >= deadline {
            return None;
        }
        tokio::time::sleep(FRESH_PERIOD).await;
    }
}

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
    let told: TimedAnswer = wire::receive(&mut stream).await.ok()?;
    match told.answer {
        Answer::Members(members) => Some(members),
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
