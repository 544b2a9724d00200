//! Serves the lease protocol's streams at a provider: one task for each stream passes the messages
//! of a peer (a buyer, or another provider of the job) to the shell, and writes the shell's
//! answers.
//!
//! The messages of one stream keep their order in both directions.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::AsyncReadExt;
use libp2p::PeerId;
use libp2p::swarm::Stream;
use souk_folder::key;
use souk_market::AccountKey;
use souk_network::content::inline_contents::{self, MessageWithContents, TO_BUYER_BYTES_MAX};
use souk_network::protocols::lease::{
    BuyerMessage, OfferAnswer, Opening, ProviderMessage, WINDOW_MAX, WORD_BYTES_MAX,
};
use souk_network::wire::{self, WireError};
use souk_roles::lease::Failure;
use tokio::sync::mpsc;

use super::*;

/// Frames that can wait to be sent on one stream: those of a window of requests, and others.
const FRAMES_MAX: usize = 4 * WINDOW_MAX as usize + 16;

/// An input of the shell: a message of a peer, or the end of a job's process.
pub(in crate::provider) enum Incoming {
    Opened {
        stream: StreamId,
        peer: AccountKey,
        opening: Box<MessageWithContents<Opening>>,
        say: mpsc::Sender<Frame>,
    },
    MessageReceived {
        stream: StreamId,
        message: MessageWithContents<BuyerMessage>,
    },
    StreamClosed {
        stream: StreamId,
    },
    SandboxLost {
        lease: LeaseId,
        fault: Failure,
    },
}

/// A frame to send on a stream.
pub(in crate::provider) enum Frame {
    Message(Box<MessageWithContents<ProviderMessage>>),
    Taken(OfferAnswer),
}

impl Provider {
    /// Serves one stream for as long as it is open.
    pub(in crate::provider) async fn on_stream(
        self: Arc<Self>,
        peer: PeerId,
        mut stream: Stream,
    ) -> Result<(), WireError> {
        let Some(account) = key::account_of(&peer).map(AccountKey) else {
            return Ok(());
        };
        let mut owed = true;
        while let Some(opening) = self.next_opening(peer, owed, &mut stream).await? {
            owed = false;
            if !matches!(opening.message, Opening::Offer(_)) {
                return self.on_lease(account, opening, stream).await;
            }
            self.offers.wait_for_tokens(peer, 1).await;
            if !self.fault.can_accept_offer() {
                wire::send(&mut stream, &OfferAnswer::No).await?;
                continue;
            }
            let Some((id, frames)) = self.open_stream(account, opening).await else {
                return Ok(());
            };
            // An offer gets one answer, and the next offer can follow.
            write(&mut stream, frames, id, &self.inbox).await;
        }
        Ok(())
    }

    /// Returns the message with which a peer opens a stream or makes its next offer; none if the
    /// peer closed the stream, or stays silent and owes nothing.
    async fn next_opening(
        &self,
        peer: PeerId,
        owed: bool,
        stream: &mut Stream,
    ) -> Result<Option<MessageWithContents<Opening>>, WireError> {
        match self.intake.receive_next(stream).await {
            Err(WireError::Stream(error)) if !owed && error.kind() == ErrorKind::TimedOut => {
                Ok(None)
            }
            Err(error) => {
                tracing::debug!(%peer, %error, "a stream did not begin with a valid opening");
                Err(error)
            }
            opening => opening,
        }
    }

    /// Notifies the shell of an opening and returns the frames for the peer.
    async fn open_stream(
        &self,
        peer: AccountKey,
        opening: MessageWithContents<Opening>,
    ) -> Option<(StreamId, mpsc::Receiver<Frame>)> {
        let stream = StreamId(self.streams.fetch_add(1, Ordering::Relaxed));
        let (say, frames) = mpsc::channel(FRAMES_MAX);
        let opened = Incoming::Opened {
            stream,
            peer,
            opening: Box::new(opening),
            say,
        };
        self.inbox.send(opened).await.ok()?;
        Some((stream, frames))
    }

    /// Serves the buyer of a lease.
    async fn on_lease(
        &self,
        buyer: AccountKey,
        opening: MessageWithContents<Opening>,
        stream: Stream,
    ) -> Result<(), WireError> {
        let Some((id, frames)) = self.open_stream(buyer, opening).await else {
            return Ok(());
        };
        let (reader, writer) = stream.split();
        tokio::select! {
            // A peer that has closed its side can still receive messages.
            () = read(reader, id, &self.inbox) => unreachable!("it is read for ever"),
            () = write(writer, frames, id, &self.inbox) => {}
        }
        Ok(())
    }
}

/// Receives all messages of a peer.
async fn read(
    mut reader: impl futures::AsyncRead + Unpin,
    stream: StreamId,
    inbox: &mpsc::Sender<Incoming>,
) {
    let hears = async {
        loop {
            let message: MessageWithContents<BuyerMessage> =
                wire::receive_short(&mut reader, WORD_BYTES_MAX)
                    .await
                    .ok()?;
            inbox
                .send(Incoming::MessageReceived { stream, message })
                .await
                .ok()?;
        }
    };
    let _ended: Option<()> = hears.await;
    let _ = inbox.send(Incoming::StreamClosed { stream }).await;
    std::future::pending().await
}

/// Sends frames until there are no more.
async fn write(
    mut writer: impl futures::AsyncWrite + Unpin,
    mut frames: mpsc::Receiver<Frame>,
    stream: StreamId,
    inbox: &mpsc::Sender<Incoming>,
) {
    while let Some(frame) = frames.recv().await {
        let sent = match frame {
            Frame::Message(message) => wire::send(&mut writer, &*message).await,
            Frame::Taken(taken) => wire::send(&mut writer, &taken).await,
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "sending to a peer failed");
            let _ = inbox.send(Incoming::StreamClosed { stream }).await;
            return;
        }
    }
}

impl Shell {
    /// Converts an input into an event for the core.
    pub(super) fn on_incoming(&mut self, incoming: Incoming) -> Option<Event> {
        match incoming {
            Incoming::Opened {
                stream,
                peer,
                opening,
                say,
            } => {
                self.peers.insert(stream, say);
                let MessageWithContents { message, contents } = *opening;
                if let Opening::Offer(offer) = &message {
                    self.inline_contents
                        .keep_named(stream, contents, [offer.tensor].into_iter());
                }
                Some(Event::Opened {
                    stream,
                    peer,
                    opening: message,
                })
            }
            Incoming::MessageReceived { stream, message } => {
                let MessageWithContents { message, contents } = message;
                if let BuyerMessage::Next(request) = &message {
                    let named = request.inputs.iter().map(|(_, id)| *id);
                    self.inline_contents.keep_named(stream, contents, named);
                }
                Some(Event::MessageReceived { stream, message })
            }
            Incoming::SandboxLost { lease, fault } => Some(Event::SandboxLost { lease, fault }),
            Incoming::StreamClosed { stream } => {
                self.peers.remove(&stream)?;
                self.inline_contents.forget_sender(stream);
                Some(Event::StreamClosed { stream })
            }
        }
    }

    /// Sends a message to a peer; adds the lease's report to a result.
    pub(super) fn send_message(&mut self, stream: StreamId, mut message: ProviderMessage) {
        if let ProviderMessage::Finished(finished) = &mut message {
            let shown = self.reports.get(&finished.receipt.body.lease);
            finished.shown = shown.map(LeaseReport::to_bytes).unwrap_or_default();
        }
        let contents = match &message {
            ProviderMessage::Made {
                request, outputs, ..
            } => {
                let ids = outputs.iter().map(|(_, id)| *id);
                let leases = &mut self.leases;
                let mut is_made = |id: &_| leases.values_mut().any(|it| it.for_buyer.remove(id));
                let last: Vec<_> = ids.filter(|id| is_made(id)).collect();
                let last = inline_contents::of_request(*request, last);
                self.provider
                    .tensors
                    .inline_contents(last, TO_BUYER_BYTES_MAX)
            }
            _ => Vec::new(),
        };
        self.queue_frame(
            stream,
            Frame::Message(Box::new(MessageWithContents { message, contents })),
        );
    }

    /// Puts a frame into a stream's queue. If the queue is full, the peer is gone.
    pub(super) fn queue_frame(&mut self, stream: StreamId, frame: Frame) {
        let Some(say) = self.peers.get(&stream) else {
            return;
        };
        if say.try_send(frame).is_err() {
            self.peers.remove(&stream);
            self.ready.push_back(Event::StreamClosed { stream });
        }
    }
}
