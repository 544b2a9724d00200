//! Runs the streams over which a job's shell talks to providers, one for each leg (one lease of the
//! plan). A task of its own opens, reads and writes each stream in order.

use futures::{AsyncReadExt, AsyncWriteExt};
use souk_folder::key;
use souk_market::AccountKey;
use souk_network::Network;
use souk_network::content::inline_contents::{MessageWithContents, TO_PROVIDER_BYTES_MAX};
use souk_network::protocols::lease::PROTOCOL;
use souk_network::wire;
use souk_roles::lease::{BuyerMessage, Opening};

use super::*;

/// The most messages that can wait to be sent on one stream: those of a window of requests, and
/// some more.
const MESSAGES_MAX: usize = WINDOW_MAX as usize + 16;

/// An open stream.
pub(super) struct ProviderStream {
    /// The number of the stream; a leg may have had others before.
    number: u64,
    pub(super) provider: AccountKey,
    say: mpsc::Sender<MessageWithContents<BuyerMessage>>,
}

/// A message from a stream.
pub(super) struct Incoming {
    leg: Leg,
    number: u64,
    /// A message, or why the stream ended.
    said: Result<MessageWithContents<ProviderMessage>, String>,
}

impl Shell {
    /// Opens a stream to a leg's provider.
    pub(super) fn open_stream(&mut self, leg: Leg, provider: AccountKey, opening: Opening) {
        if let Opening::Start(start) = &opening {
            let parts = start.parts.iter();
            let parts = parts.flat_map(|part| part.weights.iter().chain([&part.graph]));
            let given = start.first.inputs.iter().map(|(_, id)| id);
            let contents: Vec<_> = parts.chain(given).copied().collect();
            self.served.grant_contents(start.job, provider, &contents);
        }
        let (say, messages) = mpsc::channel(MESSAGES_MAX);
        let number = self.opened;
        self.opened += 1;
        let begun = ProviderStream {
            number,
            provider,
            say,
        };
        self.talks.insert(leg, begun);
        let (network, told) = (self.buyer.network.clone(), self.told.clone());
        self.streams.spawn(async move {
            let opening = MessageWithContents::without_contents(opening);
            let talked =
                exchange_messages(&network, provider, &opening, messages, leg, number, &told).await;
            if let Err(why) = talked {
                let said = Err(why);
                let _ = told.send(Incoming { leg, number, said }).await;
            }
        });
        // Removes the tasks that have ended.
        while self.streams.try_join_next().is_some() {}
    }

    /// Sends a message to a leg's provider. If too many messages wait for the provider, it counts
    /// as lost.
    pub(super) fn send_message(&mut self, leg: Leg, message: BuyerMessage) {
        let Some(talk) = self.talks.get(&leg) else {
            return;
        };
        let mut contents = Vec::new();
        if let BuyerMessage::Next(request) = &message {
            let job = attempt_id(self.gathered.job, leg.attempt);
            let given: Vec<_> = request.inputs.iter().map(|(_, id)| *id).collect();
            self.served.grant_contents(job, talk.provider, &given);
            contents = self
                .buyer
                .tensors
                .inline_contents(given, TO_PROVIDER_BYTES_MAX);
        }
        if talk
            .say
            .try_send(MessageWithContents { message, contents })
            .is_err()
        {
            self.talks.remove(&leg);
            let why = "it does not read its stream".to_owned();
            self.ready.push_back(Event::PeerLost { leg, why });
        }
    }

    /// Closes a leg's stream after its waiting messages are sent.
    pub(super) fn close_stream(&mut self, leg: Leg) {
        self.talks.remove(&leg);
        self.inline_contents.forget_sender(leg);
    }

    /// Converts a provider's message into an event for the core.
    pub(super) fn on_incoming(&mut self, incoming: Incoming) -> Option<Event> {
        let Incoming { leg, number, said } = incoming;
        // Messages of a stream that was closed have no reader.
        self.talks.get(&leg).filter(|talk| talk.number == number)?;
        match said {
            Ok(MessageWithContents { message, contents }) => {
                match &message {
                    ProviderMessage::Finished(finished) => {
                        self.reports.insert(leg, LeaseReport::read(&finished.shown));
                    }
                    ProviderMessage::Made { outputs, .. } => {
                        let named = outputs.iter().map(|(_, id)| *id);
                        self.inline_contents.keep_named(leg, contents, named);
                    }
                    _ => {}
                }
                Some(Event::MessageReceived { leg, message })
            }
            Err(why) => {
                self.close_stream(leg);
                Some(Event::PeerLost { leg, why })
            }
        }
    }
}

/// Exchanges messages with a provider until the sender is dropped; otherwise returns why it ended.
async fn exchange_messages(
    network: &Network,
    provider: AccountKey,
    opening: &MessageWithContents<Opening>,
    mut messages: mpsc::Receiver<MessageWithContents<BuyerMessage>>,
    leg: Leg,
    number: u64,
    told: &mpsc::Sender<Incoming>,
) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let peer = key::peer_of(&provider.0).map_err(|error| text(&error))?;
    let opened = network.open_stream(peer, PROTOCOL).await;
    let mut stream = opened.map_err(|error| text(&error))?;
    let sent = wire::send(&mut stream, opening).await;
    sent.map_err(|error| text(&error))?;
    let (mut reader, mut writer) = stream.split();
    let hearing = async {
        loop {
            match wire::receive::<MessageWithContents<ProviderMessage>>(&mut reader).await {
                Ok(message) => {
                    let said = Ok(message);
                    let _ = told.send(Incoming { leg, number, said }).await;
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
