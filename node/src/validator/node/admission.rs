//! Asks the other validators for the market's members. A validator does so before it begins, to
//! learn whether it was admitted and under which id, and again if it hears no leader for some time,
//! to learn whether it was removed.
//!
//! Signatures in the answers must prove the members. A validator's own id comes from a majority of
//! the answers.

use std::collections::BTreeMap;
use std::time::Duration;

use libp2p::PeerId;
use libp2p::swarm::StreamProtocol;
use souk_market::{AccountKey, Genesis};
use souk_network::Network;
use souk_network::protocols::market::{Answer, Members, PROTOCOL, Request, TimedAnswer};
use souk_network::wire;
use souk_roles::market::known_members::KnownMembers;
use tokio::time::Instant;

/// The others must name the validators within this time.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a new validator asks whether it was admitted.
const ADMISSION_PERIOD: Duration = Duration::from_millis(500);

/// The protocol of a founder that started without a log, by which the others can recognise it.
const FRESH: StreamProtocol = StreamProtocol::new("/souk/fresh/1");

/// How long a founder without a log looks for validators that have one.
const FRESH_PATIENCE: Duration = Duration::from_secs(5);

/// The pause between two attempts.
const FRESH_PERIOD: Duration = Duration::from_millis(50);

/// Streams of [`FRESH`] at a time: one for each other validator, and spares.
const FRESH_STREAMS_MAX: usize = 64;

/// The answers of other validators, and the members that their signatures prove.
#[derive(Clone, Debug)]
pub(super) struct MembersTold {
    /// The members that the signatures prove.
    pub known: KnownMembers,
    answers: Vec<Members>,
}

impl MembersTold {
    /// Returns whether an answer proves that the operators removed a validator that has left.
    pub(super) fn shows_removal(&self, raft_id: u64) -> bool {
        let mut answers = self.answers.iter();
        answers.any(|answer| self.known.shows_removal(raft_id, answer))
    }

    /// Returns whether most of the answers assign a raft id to another key.
    pub(super) fn names_another(&self, raft_id: u64, account: AccountKey) -> bool {
        let names = |answer: &&Members| {
            let member = answer.member(raft_id);
            member.is_some_and(|member| member.account != account)
        };
        2 * self.answers.iter().filter(names).count() > self.answers.len()
    }

    /// Returns the raft id that most of the answers assign to a key.
    fn raft_id_of(&self, account: AccountKey) -> Option<u64> {
        let mut said: BTreeMap<u64, usize> = BTreeMap::new();
        let named = self
            .answers
            .iter()
            .filter_map(|answer| answer.find_by_account(account));
        for member in named {
            *said.entry(member.raft_id).or_default() += 1;
        }
        let most = said.into_iter().max_by_key(|(_, answers)| *answers);
        let (raft_id, answers) = most?;
        (2 * answers > self.answers.len()).then_some(raft_id)
    }
}

/// Returns the members that others name to a founder without a log. When a market begins, they have
/// no log either and say so; then, or if too many are away for long, there is no better knowledge
/// and it returns none.
pub(super) async fn ask_as_fresh(
    network: &Network,
    peers: &[PeerId],
    genesis: &Genesis,
) -> Option<MembersTold> {
    network.serve_protocol(FRESH, FRESH_STREAMS_MAX, |_, _| async {});
    let deadline = Instant::now() + FRESH_PATIENCE;
    loop {
        if let Some(told) = ask_members(network, peers, genesis).await {
            return Some(told);
        }
        let asked = peers.iter().map(|peer| network.open_stream(*peer, FRESH));
        let fresh = futures::future::join_all(asked).await;
        if fresh.iter().all(Result::is_ok) || Instant::now() >= deadline {
            return None;
        }
        tokio::time::sleep(FRESH_PERIOD).await;
    }
}

/// Returns the validators, by all of `peers` that answer in time; none if there is no answer.
pub(super) async fn ask_members(
    network: &Network,
    peers: &[PeerId],
    genesis: &Genesis,
) -> Option<MembersTold> {
    let asked = peers.iter().map(|peer| async {
        let answer = tokio::time::timeout(ASK_TIMEOUT, fetch_members(network, *peer)).await;
        answer.ok().flatten()
    });
    let answers = futures::future::join_all(asked).await;
    let answers: Vec<Members> = answers.into_iter().flatten().collect();
    let mut known = KnownMembers::new(genesis);
    for answer in &answers {
        known.learn_members(answer);
    }
    (!answers.is_empty()).then_some(MembersTold { known, answers })
}

async fn fetch_members(network: &Network, peer: PeerId) -> Option<Members> {
    let mut stream = network.open_stream(peer, PROTOCOL).await.ok()?;
    wire::send(&mut stream, &Request::Members).await.ok()?;
    let told: TimedAnswer = wire::receive(&mut stream).await.ok()?;
    match told.answer {
        Answer::Members(members) => Some(members),
        _ => None,
    }
}

/// Waits until the operator has admitted `account`; returns its raft id and the other members.
pub(super) async fn await_admission(
    network: &Network,
    peers: &[PeerId],
    account: AccountKey,
    genesis: &Genesis,
) -> (u64, MembersTold) {
    loop {
        if let Some(told) = ask_members(network, peers, genesis).await
            && let Some(raft_id) = told.raft_id_of(account)
        {
            return (raft_id, told);
        }
        tokio::time::sleep(ADMISSION_PERIOD).await;
    }
}
