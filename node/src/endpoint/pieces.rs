//! Carries the text of answers from an endpoint to the buyer of a tab, piece by piece, as the
//! protocol `/souk/tokens/1`.
//!
//! The stream belongs to a lease that is open on the lease protocol, and nothing that is paid for
//! depends on it: the whole answer follows as the output of its request, and both sides count that.
//! So a follower that is late or slow loses its pieces, and nothing else.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libp2p::swarm::StreamProtocol;
use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, LeaseId};
use souk_roles::tokens::text::AnswerText;
use tokio::sync::{mpsc, watch};

/// The protocol's name.
pub(crate) const PROTOCOL: StreamProtocol = StreamProtocol::new("/souk/tokens/1");

/// The longest message of a follower in bytes.
pub(crate) const FOLLOWER_BYTES_MAX: usize = 64;

/// The pieces that can wait for a follower.
const PIECES_MAX: usize = 1_024;

/// A follower's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FollowerMessage {
    /// The first message: the lease whose answers to follow.
    Follow(LeaseId),
    /// The buyer wants no more of the answer to this request, and pays for what came.
    Stop(u32),
}

/// A piece of the answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Piece {
    /// The request's number in its lease.
    pub(crate) request: u32,
    /// The number of the piece, from 0. A follower that misses one waits for the whole answer.
    pub(crate) number: u32,
    /// The text.
    pub(crate) text: AnswerText,
}

/// The open tabs of a provider and their followers.
#[derive(Debug, Default)]
pub(crate) struct PieceStreams(Mutex<BTreeMap<LeaseId, OpenTab>>);

#[derive(Debug)]
struct OpenTab {
    buyer: AccountKey,
    follower: Option<mpsc::Sender<Piece>>,
    /// One more than the last request that the buyer stopped.
    stopped: watch::Sender<u32>,
}

/// The way of one answer to the buyer.
pub(crate) struct PieceSink {
    streams: Arc<PieceStreams>,
    lease: LeaseId,
    request: u32,
    next: Mutex<u32>,
    stopped: Option<watch::Receiver<u32>>,
}

impl PieceStreams {
    /// Opens a tab, which its buyer can follow from now on.
    pub(crate) fn open_tab(&self, lease: LeaseId, buyer: AccountKey) {
        let tab = OpenTab {
            buyer,
            follower: None,
            stopped: watch::Sender::new(0),
        };
        self.lock_tabs().insert(lease, tab);
    }

    /// Closes a tab; its follower's stream ends.
    pub(crate) fn close_tab(&self, lease: LeaseId) {
        self.lock_tabs().remove(&lease);
    }

    /// Returns the pieces of a tab from now on; none if `peer` has no such tab. A later follower
    /// replaces an earlier one.
    pub(crate) fn follow_tab(
        &self,
        lease: LeaseId,
        peer: AccountKey,
    ) -> Option<mpsc::Receiver<Piece>> {
        let mut tabs = self.lock_tabs();
        let tab = tabs.get_mut(&lease).filter(|tab| tab.buyer == peer)?;
        let (sender, pieces) = mpsc::channel(PIECES_MAX);
        tab.follower = Some(sender);
        Some(pieces)
    }

    /// Stops the answer to a request, and all before it.
    pub(crate) fn stop_request(&self, lease: LeaseId, peer: AccountKey, request: u32) {
        let tabs = self.lock_tabs();
        if let Some(tab) = tabs.get(&lease).filter(|tab| tab.buyer == peer) {
            tab.stopped.send_replace(request.saturating_add(1));
        }
    }

    /// Returns the way of the answer to a request.
    pub(crate) fn open_sink(self: &Arc<Self>, lease: LeaseId, request: u32) -> PieceSink {
        let tabs = self.lock_tabs();
        let stopped = tabs.get(&lease).map(|tab| tab.stopped.subscribe());
        PieceSink {
            streams: self.clone(),
            lease,
            request,
            next: Mutex::new(0),
            stopped,
        }
    }

    fn send_piece(&self, lease: LeaseId, piece: Piece) {
        let mut tabs = self.lock_tabs();
        let Some(tab) = tabs.get_mut(&lease) else {
            return;
        };
        let is_gone = |follower: &mpsc::Sender<Piece>| follower.try_send(piece).is_err();
        if tab.follower.as_ref().is_some_and(is_gone) {
            tab.follower = None;
        }
    }

    fn lock_tabs(&self) -> MutexGuard<'_, BTreeMap<LeaseId, OpenTab>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PieceSink {
    /// Returns the lease of the tab.
    pub(crate) fn lease(&self) -> LeaseId {
        self.lease
    }

    /// Sends the next piece of the answer, if anybody follows.
    pub(crate) fn send_piece(&self, text: AnswerText) {
        let number = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            *next += 1;
            *next - 1
        };
        let request = self.request;
        let piece = Piece {
            request,
            number,
            text,
        };
        self.streams.send_piece(self.lease, piece);
    }

    /// Waits until the buyer stops the answer.
    pub(crate) async fn wait_for_stop(&self) {
        let Some(mut stopped) = self.stopped.clone() else {
            return std::future::pending().await;
        };
        if stopped.wait_for(|next| *next > self.request).await.is_err() {
            // The tab is closed, and with it the run.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(content: &str) -> AnswerText {
        AnswerText {
            content: content.to_owned(),
            ..AnswerText::default()
        }
    }

    #[tokio::test]
    async fn the_buyer_of_a_tab_follows_it_and_nobody_else() {
        let [buyer, other] = [1, 2].map(|byte| AccountKey([byte; 32]));
        let streams = Arc::<PieceStreams>::default();
        streams.open_tab(LeaseId(1), buyer);
        assert!(streams.follow_tab(LeaseId(1), other).is_none());
        assert!(streams.follow_tab(LeaseId(2), buyer).is_none());
        let mut pieces = streams.follow_tab(LeaseId(1), buyer).unwrap();
        let sink = streams.open_sink(LeaseId(1), 4);
        sink.send_piece(text("a"));
        sink.send_piece(text("b"));
        let got = [pieces.recv().await.unwrap(), pieces.recv().await.unwrap()];
        assert_eq!(got.map(|it| (it.request, it.number)), [(4, 0), (4, 1)]);
        // Another peer cannot stop it, nor does the end of an earlier request.
        streams.stop_request(LeaseId(1), other, 4);
        streams.stop_request(LeaseId(1), buyer, 3);
        let waiting = tokio::time::timeout(std::time::Duration::ZERO, sink.wait_for_stop());
        assert!(waiting.await.is_err());
        streams.stop_request(LeaseId(1), buyer, 4);
        sink.wait_for_stop().await;
        streams.close_tab(LeaseId(1));
        assert_eq!(pieces.recv().await, None);
    }

    #[tokio::test]
    async fn a_follower_that_does_not_read_loses_its_pieces() {
        let buyer = AccountKey([1; 32]);
        let streams = Arc::<PieceStreams>::default();
        streams.open_tab(LeaseId(1), buyer);
        let mut pieces = streams.follow_tab(LeaseId(1), buyer).unwrap();
        let sink = streams.open_sink(LeaseId(1), 0);
        for _ in 0..PIECES_MAX + 10 {
            sink.send_piece(text("x"));
        }
        let mut count = 0;
        while pieces.recv().await.is_some() {
            count += 1;
        }
        assert_eq!(count, PIECES_MAX);
    }
}
