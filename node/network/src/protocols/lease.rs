//! Carries the messages about one lease (bought device time) over the network, as the protocol
//! `/souk/lease/13`. [`souk_roles::lease`] defines the messages themselves.
//!
//! Each message is one frame on the stream, and can carry short contents that it names. The buyer
//! opens one stream to the provider of each lease and keeps it while the work lasts; a provider
//! makes its offers to another on streams that it keeps for the next.

use std::time::Duration;

use bytes::Bytes;
use libp2p::swarm::{Stream, StreamProtocol};
use souk_folder::key;
use souk_market::AccountKey;
use souk_memory::ContentId;
use tokio::time::timeout;

use crate::Network;
use crate::content::inline_contents::MessageWithContents;
use crate::wire::{self, WireError};

pub use souk_roles::lease::{
    BuyerMessage, Contact, Failure, Input, OPENING_BYTES_MAX, Offer, OfferAnswer, Opening, Output,
    Part, ProviderMessage, Request, Source, Start, UntakenOffer, WINDOW_MAX, WORD_BYTES_MAX,
    WorkResult,
};

/// The protocol's name.
pub const PROTOCOL: StreamProtocol = StreamProtocol::new("/souk/lease/13");

/// A provider must answer an offer within this time, and on a kept stream within the shorter one:
/// its connection can be dead.
const OFFER_TIMEOUT: Duration = Duration::from_secs(10);
const KEPT_TIMEOUT: Duration = Duration::from_secs(4);

/// Offers a tensor to a provider whose lease waits for it; a short one is sent inline.
///
/// # Errors
/// Why there was no answer, in words for people.
pub async fn offer_tensor(
    network: &Network,
    to: AccountKey,
    offer: Offer,
    contents: Vec<(ContentId, Bytes)>,
) -> Result<OfferAnswer, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let message = Opening::Offer(offer);
    let message = MessageWithContents { message, contents };
    let asking = async {
        let peer = key::peer_of(&to.0).map_err(|error| text(&error))?;
        if let Some(mut kept) = network.take_kept(peer, &PROTOCOL) {
            if let Ok(Ok(taken)) = timeout(KEPT_TIMEOUT, send_offer(&mut kept, &message)).await {
                network.keep_stream(peer, PROTOCOL, kept);
                return Ok(taken);
            }
            // The peer has closed the stream, or the connection has been replaced.
            tracing::debug!(%peer, "repeating an offer on a new stream");
            network.forget_kept(peer, PROTOCOL);
        }
        let opened = network.open_stream(peer, PROTOCOL).await;
        let mut stream = opened.map_err(|error| text(&error))?;
        let taken = send_offer(&mut stream, &message).await;
        let taken = taken.map_err(|error| text(&error))?;
        network.keep_stream(peer, PROTOCOL, stream);
        Ok(taken)
    };
    match timeout(OFFER_TIMEOUT, asking).await {
        Ok(taken) => taken,
        Err(_) => Err(format!("no answer within {} s", OFFER_TIMEOUT.as_secs())),
    }
}

async fn send_offer(
    stream: &mut Stream,
    message: &MessageWithContents<Opening>,
) -> Result<OfferAnswer, WireError> {
    wire::send(stream, message).await?;
    wire::receive(stream).await
}

#[cfg(test)]
mod tests {
    use souk_market::{JobId, LeaseId};
    use souk_memory::ContentId;
    use souk_node_testing::fuzzed;
    use souk_roles::clock::Micros;

    use super::*;

    fn start(inputs: usize) -> Start {
        let (id, name) = (ContentId::for_content(b"graph"), String::new);
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
            expected: Micros::from_millis(3),
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
        fuzzed::fuzz_decoder(1, &[Opening::Start(start()), Opening::Resume(LeaseId(1))]);
        fuzzed::fuzz_decoder::<BuyerMessage>(2, &[BuyerMessage::Go]);
    }

    #[test]
    fn damaged_words_of_a_provider_do_no_harm() {
        fuzzed::fuzz_decoder::<ProviderMessage>(4, &[ProviderMessage::Ready]);
        fuzzed::fuzz_decoder::<OfferAnswer>(5, &[]);
    }
}
