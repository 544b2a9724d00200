//! Carries out what a tab's core wants of the market, the network and the store.

use futures::{AsyncReadExt, AsyncWriteExt};
use souk_market::{Acceptance, AccountKey, Command, Receipt, Refusal};
use souk_memory::transfers::Urgency;
use souk_memory::{ContentId, Tensor};
use souk_roles::access::Scope;
use souk_roles::lease::{BuyerMessage, Opening, ProviderMessage, Start};
use souk_roles::tokens::tab::TabAnswer;
use souk_roles::tokens::text::TextAnswer;
use tokio::sync::mpsc;

use super::AskedText;
use crate::buyer::Buyer;
use crate::client::trader::TradeError;
use souk_folder::key;
use souk_network::content::inline_contents::MessageWithContents;
use souk_network::protocols::lease::PROTOCOL;
use souk_network::wire;

/// The most bytes of an answer beside its text: its head, and what its engine says of a failure.
const ANSWER_BYTES_BESIDE_TEXT: usize = 64 << 10;

/// A message from the provider, or why its stream ended.
pub(super) type StreamMessage = Result<MessageWithContents<ProviderMessage>, String>;

pub(super) fn store_request(buyer: &Buyer, asked: &AskedText) -> ContentId {
    let bytes = asked.request.to_bytes();
    let tensor = Tensor::from_vec(vec![bytes.len()], bytes).expect("its length is its shape");
    let id = tensor.id();
    if let Err(error) = buyer.tensors().store().put_tensor(&tensor) {
        // The provider then finds no request, and says so.
        tracing::warn!(%error, "a request is not served");
    }
    id
}

pub(super) async fn buy(buyer: Buyer, bid: Command) -> TabAnswer {
    match buyer.trader().submit_one(bid).await {
        Ok(Acceptance::Placed { mut trades, .. }) if trades.len() == 1 => {
            TabAnswer::Bought(Box::new(trades.remove(0)))
        }
        Ok(_) => TabAnswer::Uncertain("the market answered something else".to_owned()),
        Err(TradeError::Refused(refusal)) => TabAnswer::NotBought(refusal),
        Err(error) => TabAnswer::Uncertain(error.to_string()),
    }
}

pub(super) async fn submit(buyer: &Buyer, command: Command) -> Result<(), String> {
    let mut done = buyer.trader().submit_one(command.clone()).await;
    if let Err(TradeError::Uncertain(_)) = done {
        // A command can be repeated without further effect.
        done = buyer.trader().submit_one(command).await;
    }
    match done {
        // The provider settled first, by the same receipt.
        Ok(_) | Err(TradeError::Refused(Refusal::LeaseClosed { .. })) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn sign_receipt(buyer: &Buyer, receipt: Receipt) -> TabAnswer {
    let signed = receipt.sign_as_buyer(buyer.trader().key().signing_key());
    TabAnswer::Signed(Box::new(signed))
}

pub(super) async fn find_provider(buyer: &Buyer, provider: AccountKey) -> Result<(), String> {
    let found = buyer.broker().find_contacts(&[provider]).await;
    let found = found.map_err(|error| error.to_string())?;
    let contact = found.iter().find(|contact| contact.account == provider.0);
    let contact = contact.ok_or_else(|| "no validator knows its address".to_owned())?;
    let added = buyer.broker().network().add_contact(contact).await;
    added.map_err(|error| error.to_string())
}

/// Fetches an answer of at most so many bytes of text.
pub(super) async fn fetch_answer(
    buyer: &Buyer,
    scope: Scope,
    provider: AccountKey,
    (answer, text_bytes_max): (ContentId, usize),
) -> Result<TextAnswer, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let peer = key::peer_of(&provider.0).map_err(|error| text(&error))?;
    let tensors = buyer.tensors();
    // A provider must not fill this buyer's store.
    let bytes_max = text_bytes_max.saturating_add(ANSWER_BYTES_BESIDE_TEXT) as u64;
    let wanted = (answer, bytes_max);
    let fetched = tensors
        .fetch_bounded(Urgency::Awaited, scope, &[peer], wanted)
        .await;
    let fetched = fetched.map_err(|error| text(&error))?;
    let tensor = Tensor::from_blob(&fetched.bytes).map_err(|error| text(&error))?;
    TextAnswer::read(tensor.bytes()).ok_or_else(|| "it is no answer of a tab".to_owned())
}

/// Exchanges messages with the provider until the sender is dropped; otherwise returns why it
/// ended.
pub(super) async fn exchange_messages(
    buyer: &Buyer,
    provider: AccountKey,
    start: Box<Start>,
    mut messages: mpsc::Receiver<MessageWithContents<BuyerMessage>>,
    told: &mpsc::Sender<StreamMessage>,
) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let peer = key::peer_of(&provider.0).map_err(|error| text(&error))?;
    let opened = buyer.broker().network().open_stream(peer, PROTOCOL).await;
    let mut stream = opened.map_err(|error| text(&error))?;
    let opening = MessageWithContents::without_contents(Opening::Start(start));
    let sent = wire::send(&mut stream, &opening).await;
    sent.map_err(|error| text(&error))?;
    let (mut reader, mut writer) = stream.split();
    let hearing = async {
        loop {
            match wire::receive::<MessageWithContents<ProviderMessage>>(&mut reader).await {
                Ok(message) => {
                    let _ = told.send(Ok(message)).await;
                }
                Err(error) => return text(&error),
            }
        }
    };
    let saying = async {
        while let Some(message) = messages.recv().await {
            wire::send(&mut writer, &message).await?;
        }
        writer.close().await.map_err(wire::WireError::from)
    };
    tokio::select! {
        why = hearing => Err(why),
        said = saying => said.map_err(|error| text(&error)),
    }
}
