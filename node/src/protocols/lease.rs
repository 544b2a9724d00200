//! What is said about one lease: how the words of `/souk/lease/11` travel, and what only people
//! read of them. The words themselves are [`souk_roles::lease`].
//!
//! Each is a frame of its own on the stream, with short contents that it names. The buyer opens one
//! to the provider of each lease and keeps it for the length of the work; a provider makes its
//! offers to another on streams that it keeps for the next.

use std::time::Duration;

use bytes::Bytes;
use libp2p::swarm::{Stream, StreamProtocol};
use serde::{Deserialize, Serialize};
use souk_market::AccountKey;
use souk_memory::ContentId;
use souk_scheduler::execution::report::Report;
use souk_scheduler::execution::timeline::Timeline;
use tokio::time::timeout;

use crate::content::along::WordWith;
use crate::content::links::Sample;
use crate::folder::key;
use crate::network::Network;
use crate::network::wire::{self, WireError};

pub use souk_roles::lease::{
    BuyerWord, Contact, Failure, Input, OPENING_BYTES_MAX, Offer, OfferAnswer, Opening, Output,
    Part, ProviderWord, Request, Source, Start, UntakenOffer, WINDOW_MAX, WORD_BYTES_MAX,
    WorkResult,
};

/// The protocol's name.
pub const PROTOCOL: StreamProtocol = StreamProtocol::new("/souk/lease/11");

/// How long a provider may take to answer an offer, and of that on a stream that was kept: its
/// connection may be one that nobody hears of any more.
const OFFER_TIMEOUT: Duration = Duration::from_secs(10);
const KEPT_TIMEOUT: Duration = Duration::from_secs(4);

/// What people are shown of a lease's work: it travels in [`WorkResult`], and no role looks into
/// it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LeaseReport {
    /// What came over the network, by sender.
    pub moved: Vec<PeerTraffic>,
    /// What the device did.
    pub report: Report,
    /// When it did it.
    pub timeline: Timeline,
}

/// Bytes that came from one peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerTraffic {
    /// The peer's account.
    pub from: AccountKey,
    /// What was moved: a tensor's name, `graph` or `weights`.
    pub what: String,
    /// How many bytes came.
    pub bytes: u64,
    /// What the longest of the transfers took.
    pub link: Option<Sample>,
}

impl LeaseReport {
    /// As it travels.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("plain data in memory always encodes")
    }

    /// What a provider says; nothing where it does not decode, since nothing depends on it.
    pub(crate) fn read(bytes: &[u8]) -> LeaseReport {
        postcard::from_bytes(bytes).unwrap_or_default()
    }
}

/// Tells a provider whose lease waits for a tensor where it is, and gives it a short one.
///
/// # Errors
/// Why there was no answer, for people.
pub(crate) async fn offer(
    network: &Network,
    to: AccountKey,
    (offer, contents): (Offer, Vec<(ContentId, Bytes)>),
) -> Result<OfferAnswer, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let word = Opening::Offer(offer);
    let word = WordWith { word, contents };
    let asking = async {
        let peer = key::peer_of(&to.0).map_err(|error| text(&error))?;
        if let Some(mut kept) = network.take_kept(peer, &PROTOCOL) {
            if let Ok(Ok(taken)) = timeout(KEPT_TIMEOUT, say(&mut kept, &word)).await {
                network.keep(peer, PROTOCOL, kept);
                return Ok(taken);
            }
            // It was closed over there, or the connection is not that one any more.
            tracing::debug!(%peer, "an offer is made again");
            network.forget_kept(peer, PROTOCOL);
        }
        let opened = network.open(peer, PROTOCOL).await;
        let mut stream = opened.map_err(|error| text(&error))?;
        let taken = say(&mut stream, &word).await;
        let taken = taken.map_err(|error| text(&error))?;
        network.keep(peer, PROTOCOL, stream);
        Ok(taken)
    };
    match timeout(OFFER_TIMEOUT, asking).await {
        Ok(taken) => taken,
        Err(_) => Err(format!("no answer within {} s", OFFER_TIMEOUT.as_secs())),
    }
}

async fn say(stream: &mut Stream, word: &WordWith<Opening>) -> Result<OfferAnswer, WireError> {
    wire::send(stream, word).await?;
    wire::receive(stream).await
}

#[cfg(test)]
mod tests {
    use souk_market::{JobId, LeaseId};
    use souk_memory::ContentId;
    use souk_roles::clock::Micros;

    use super::*;
    use crate::protocols::fuzzed;

    fn start(inputs: usize) -> Start {
        let (id, name) = (ContentId::of(b"graph"), String::new);
        let input = |_| Input {
            name: name(),
            source: Source::Own,
            fed: None,
        };
        let consumers = vec![(LeaseId(1), AccountKey([7; 32]))];
        let part = Part {
            name: name(),
            graph: id,
            weights: vec![id; 3],
            inputs: (0..inputs).map(input).collect(),
            outputs: vec![Output {
                name: name(),
                consumers,
                is_wanted: false,
            }],
            flops: 1 << 40,
            expected: Micros::millis(3),
        };
        Start {
            sequences: 0,
            lease: LeaseId(1),
            job: JobId([2; 32]),
            parts: vec![part; 2],
            peers: vec![Contact {
                account: AccountKey([7; 32]),
                addresses: vec!["/ip4/127.0.0.1/tcp/4001".to_owned()],
            }],
            priority: 1,
            first: Request::default(),
            last: true,
        }
    }

    #[test]
    fn damaged_words_of_a_buyer_do_no_harm() {
        let start = || Box::new(start(2));
        fuzzed::try_messages(1, &[Opening::Start(start()), Opening::Resume(LeaseId(1))]);
        fuzzed::try_messages::<BuyerWord>(2, &[BuyerWord::Go]);
    }

    #[test]
    fn damaged_words_of_a_provider_do_no_harm() {
        fuzzed::try_messages::<ProviderWord>(4, &[ProviderWord::Ready]);
        fuzzed::try_messages::<OfferAnswer>(5, &[]);
        fuzzed::try_messages::<LeaseReport>(6, &[LeaseReport::default()]);
    }
}
