//! What is said to one provider of a line about many requests, and what it answers.

use futures::io::{ReadHalf, WriteHalf};
use libp2p::swarm::Stream;
use souk_market::AccountKey;
use tokio::sync::mpsc;

use crate::buyer::JobError;
use crate::buyer::dispatch::{broken, patience_with, within};
use crate::buyer::messages::Voice;
use crate::buyer::reasons::SessionError;
use crate::network::wire;
use crate::protocols::lease::{
    Answered, Closing, Event, Failure, Finished, Start, Untaken, WINDOW_MAX,
};

/// Words to a provider that wait to be sent: those of its window, and the last.
pub(crate) const WORDS_MAX: usize = WINDOW_MAX as usize + 1;

/// What a provider says of its requests, and the place of its trade.
pub(crate) type Heard = (usize, Said);

/// What a provider says of its requests.
pub(crate) enum Said {
    /// One is done.
    Answered(Answered),
    /// It begins no more, since a tensor did not come.
    Stalled(Failure),
    /// Another provider did not take a tensor from it.
    Untaken(Box<Untaken>),
}

/// The two ends that a conversation about many requests has on the buyer's side.
pub(crate) struct Line {
    /// The place of the provider's trade.
    pub(crate) place: usize,
    pub(crate) words: mpsc::Receiver<Closing>,
    pub(crate) heard: mpsc::Sender<Heard>,
}

impl Line {
    /// Passes requests on and hears answers, until the provider has finished.
    pub(crate) async fn follow(
        mut self,
        provider: AccountKey,
        start: &Start,
        (mut reader, mut voice): (ReadHalf<Stream>, Voice),
    ) -> Result<(Stream, Finished), JobError> {
        let speaking = speak(&mut self.words, voice.writer());
        let hearing = hear((self.place, &self.heard), provider, start, &mut reader);
        let finished = tokio::select! {
            finished = hearing => finished?,
            () = speaking => unreachable!("it is silent rather than over"),
        };
        let stream = reader.reunite(voice.keep());
        let stream = stream.expect("they are the halves of one stream");
        Ok((stream, finished))
    }
}

async fn speak(words: &mut mpsc::Receiver<Closing>, writer: &mut WriteHalf<Stream>) {
    while let Some(word) = words.recv().await {
        if let Err(error) = wire::send(writer, &word).await {
            // Whoever hears learns it too, and says so.
            tracing::debug!(%error, "a provider does not listen");
            break;
        }
    }
    std::future::pending().await
}

async fn hear(
    (place, heard): (usize, &mpsc::Sender<Heard>),
    provider: AccountKey,
    start: &Start,
    reader: &mut ReadHalf<Stream>,
) -> Result<Finished, JobError> {
    let broken = |cause| broken(provider, cause);
    // Only the last part of a request is followed by a word in any case.
    let last = start.parts.last().map(|part| part.name.as_str());
    let mut patience = None;
    loop {
        let event = within(patience.take(), wire::receive(reader)).await;
        let said = match event.map_err(broken)? {
            Event::Running { part } => {
                let is_last = Some(part.as_str()) == last;
                patience = is_last.then(|| patience_with(start, &part));
                continue;
            }
            Event::Answered(answered) => Said::Answered(answered),
            Event::Stalled(failure) => Said::Stalled(failure),
            Event::Untaken(untaken) if untaken.is_of(start) => Said::Untaken(untaken),
            Event::Finished(finished) => return Ok(*finished),
            Event::Failed(failure) => return Err(JobError::Provider { provider, failure }),
            _ => return Err(broken(SessionError::Confused)),
        };
        // The round hears until its last conversation is over.
        let _ = heard.send((place, said)).await;
    }
}
