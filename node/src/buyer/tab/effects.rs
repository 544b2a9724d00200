//! Carries out the actions of a tab's core that need the market, the network or the store: buys the
//! lease, finds the provider, sends commands, signs the receipt and fetches answers.

use futures::{AsyncReadExt, AsyncWriteExt};
use souk_market::{Acceptance, AccountKey, Command, Receipt, Refusal};
use souk_memory::transfers::Urgency;
use souk_memory::{HeldContent, Tensor};
use souk_roles::access::Scope;
use souk_roles::lease::{BuyerMessage, Opening, ProviderMessage, Start};
use souk_roles::tokens::tab::TabAnswer;
use souk_roles::tokens::text::TextAnswer;
use tokio::sync::mpsc;

use crate::buyer::Buyer;
use crate::client::trader::TradeError;
use souk_folder::key;
use souk_network::content::inline_contents::MessageWithContents;
use souk_network::content::transfers::FetchError;
use souk_network::protocols::lease::PROTOCOL;
use souk_network::wire;

/// The most bytes of an answer beside its text: its head, and what its engine says of a failure.
const ANSWER_BYTES_BESIDE_TEXT: usize = 64 << 10;

/// A message from the provider, or why its stream ended.
pub(super) type StreamMessage = Result<MessageWithContents<ProviderMessage>, String>;

/// Why an answer cannot be counted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AnswerLack {
    /// This buyer has no memory for it.
    NoMemory(String),
    /// It did not arrive, or is none.
    Wrong(String),
}

impl From<FetchError> for AnswerLack {
    fn from(error: FetchError) -> AnswerLack {
        match error {
            FetchError::Store(error) => AnswerLack::NoMemory(error.to_string()),
            error => AnswerLack::Wrong(error.to_string()),
        }
    }
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

/// Fetches an answer of at most so many bytes of text. It leaves the store once it is read.
pub(super) async fn fetch_answer(
    buyer: &Buyer,
    scope: Scope,
    provider: AccountKey,
    answer: HeldContent,
    text_bytes_max: usize,
) -> Result<TextAnswer, AnswerLack> {
    let wrong = |error: &dyn std::fmt::Display| AnswerLack::Wrong(error.to_string());
    let peer = key::peer_of(&provider.0).map_err(|error| wrong(&error))?;
    let tensors = buyer.tensors();
    // A provider must not fill this buyer's store.
    let bytes_max = text_bytes_max.saturating_add(ANSWER_BYTES_BESIDE_TEXT) as u64;
    let wanted = (answer.id(), bytes_max);
    let fetched = tensors
        .fetch_bounded(Urgency::Awaited, scope, &[peer], wanted)
        .await?;
    let tensor = Tensor::from_blob(&fetched.bytes).map_err(|error| wrong(&error))?;
    TextAnswer::read(tensor.bytes()).ok_or_else(|| wrong(&"it is no answer of a tab"))
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
