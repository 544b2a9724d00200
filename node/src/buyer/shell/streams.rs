//! The streams to providers: each is opened, read and written by a task of its own, in order.

use futures::{AsyncReadExt, AsyncWriteExt};
use souk_market::AccountKey;
use souk_roles::lease::{BuyerWord, Opening};

use super::*;
use crate::content::along::{TO_PROVIDER_BYTES_MAX, WordWith};
use crate::folder::key;
use crate::network::Network;
use crate::network::wire;
use crate::protocols::lease::PROTOCOL;

/// What may wait to be sent on one stream: what is said of a window of requests, and the rest.
const WORDS_MAX: usize = WINDOW_MAX as usize + 16;

/// A stream that is open.
pub(super) struct Talk {
    /// Which of the streams to this leg it is.
    number: u64,
    pub(super) provider: AccountKey,
    say: mpsc::Sender<WordWith<BuyerWord>>,
}

/// What comes of streams.
pub(super) struct Incoming {
    leg: Leg,
    number: u64,
    /// A word, or why none comes any more.
    said: Result<WordWith<ProviderWord>, String>,
}

impl Shell {
    /// Opens a stream to a leg's provider.
    pub(super) fn open(&mut self, leg: Leg, provider: AccountKey, opening: Opening) {
        if let Opening::Start(start) = &opening {
            let parts = start.parts.iter();
            let parts = parts.flat_map(|part| part.weights.iter().chain([&part.graph]));
            let given = start.first.inputs.iter().map(|(_, id)| id);
            let contents: Vec<_> = parts.chain(given).copied().collect();
            self.served.grant(start.job, provider, &contents);
        }
        let (say, words) = mpsc::channel(WORDS_MAX);
        let number = self.opened;
        self.opened += 1;
        let begun = Talk {
            number,
            provider,
            say,
        };
        self.talks.insert(leg, begun);
        let (network, told) = (self.buyer.network.clone(), self.told.clone());
        self.streams.spawn(async move {
            let opening = WordWith::alone(opening);
            let talked = talk(&network, provider, &opening, words, (leg, number, &told)).await;
            if let Err(why) = talked {
                let said = Err(why);
                let _ = told.send(Incoming { leg, number, said }).await;
            }
        });
        // Those that are over are let go of.
        while self.streams.try_join_next().is_some() {}
    }

    /// Says something to a leg's provider. One that has not taken so many words is gone.
    pub(super) fn say(&mut self, leg: Leg, word: BuyerWord) {
        let Some(talk) = self.talks.get(&leg) else {
            return;
        };
        let mut contents = Vec::new();
        if let BuyerWord::Next(request) = &word {
            let job = attempt_id(self.gathered.job, leg.attempt);
            let given: Vec<_> = request.inputs.iter().map(|(_, id)| *id).collect();
            self.served.grant(job, talk.provider, &given);
            contents = self.buyer.tensors.along(given, TO_PROVIDER_BYTES_MAX);
        }
        if talk.say.try_send(WordWith { word, contents }).is_err() {
            self.talks.remove(&leg);
            let why = "it does not listen".to_owned();
            self.ready.push_back(Event::Gone { leg, why });
        }
    }

    /// Closes a leg's stream, once what was said on it is sent.
    pub(super) fn hang(&mut self, leg: Leg) {
        self.talks.remove(&leg);
        self.along.forget(leg);
    }

    /// What a provider said, as the core has it.
    pub(super) fn on_incoming(&mut self, incoming: Incoming) -> Option<Event> {
        let Incoming { leg, number, said } = incoming;
        // What comes of a stream that was hung up is for nobody.
        self.talks.get(&leg).filter(|talk| talk.number == number)?;
        match said {
            Ok(WordWith { word, contents }) => {
                match &word {
                    ProviderWord::Finished(finished) => {
                        self.shown.insert(leg, LeaseReport::read(&finished.shown));
                    }
                    ProviderWord::Made { outputs, .. } => {
                        let named = outputs.iter().map(|(_, id)| *id);
                        self.along.keep(leg, contents, named);
                    }
                    _ => {}
                }
                Some(Event::Said { leg, word })
            }
            Err(why) => {
                self.hang(leg);
                Some(Event::Gone { leg, why })
            }
        }
    }
}

/// Talks to a provider until what is to be said to it is over; why that was not so.
async fn talk(
    network: &Network,
    provider: AccountKey,
    opening: &WordWith<Opening>,
    mut words: mpsc::Receiver<WordWith<BuyerWord>>,
    (leg, number, told): (Leg, u64, &mpsc::Sender<Incoming>),
) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let peer = key::peer_of(&provider.0).map_err(|error| text(&error))?;
    let opened = network.open(peer, PROTOCOL).await;
    let mut stream = opened.map_err(|error| text(&error))?;
    let sent = wire::send(&mut stream, opening).await;
    sent.map_err(|error| text(&error))?;
    let (mut reader, mut writer) = stream.split();
    let hearing = async {
        loop {
            match wire::receive::<WordWith<ProviderWord>>(&mut reader).await {
                Ok(word) => {
                    let said = Ok(word);
                    let _ = told.send(Incoming { leg, number, said }).await;
                }
                Err(error) => return text(&error),
            }
        }
    };
    let saying = async {
        while let Some(word) = words.recv().await {
            wire::send(&mut writer, &word).await?;
        }
        writer.close().await.map_err(wire::WireError::from)
    };
    tokio::select! {
        why = hearing => Err(why),
        said = saying => said.map_err(|error| text(&error)),
    }
}
