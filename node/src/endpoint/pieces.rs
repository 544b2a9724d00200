//! Sends the text of answers from an endpoint to the buyer of a tab (a lease in which a provider
//! answers requests with a language model), piece by piece, by the protocol `/souk/tokens/1`.
//!
//! The lease itself is open on the lease protocol, and no payment depends on this stream: the whole
//! answer follows as the output of its request, and both sides count the tokens of that output. A
//! buyer that follows late or slowly gets the same text in larger pieces. If its stream breaks, the
//! buyer can open another one, which begins with the text of the open answer so far.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libp2p::swarm::StreamProtocol;
use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, LeaseId};
use souk_roles::tokens::text::AnswerText;
use tokio::sync::watch;

/// The protocol's name.
pub(crate) const PROTOCOL: StreamProtocol = StreamProtocol::new("/souk/tokens/1");

/// The longest message of a follower in bytes.
pub(crate) const FOLLOWER_BYTES_MAX: usize = 64;

/// The most bytes of a piece's text: a follower reads messages of limited length.
const PIECE_TEXT_MAX: usize = 64 << 10;

/// A message from the buyer that follows a tab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FollowerMessage {
    /// The first message: the lease whose answers to follow.
    Follow(LeaseId),
    /// The buyer wants no more of the answer to this request, and pays for the text that it has.
    Stop(u32),
}

/// A piece of the answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Piece {
    /// The request's number in its lease.
    pub(crate) request: u32,
    /// The number of the piece in its answer and its stream, from 0. A follower that misses one
    /// waits for the whole answer.
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
    answer: watch::Sender<OpenAnswer>,
    /// One more than the last request that the buyer stopped.
    stopped: watch::Sender<u32>,
}

/// The text of a tab's last answer so far.
#[derive(Clone, Debug, Default)]
struct OpenAnswer {
    request: u32,
    text: AnswerText,
    /// The number of followers so far: only the last one gets pieces.
    followers: u64,
}

/// The stream of a buyer that follows its tab.
#[derive(Debug)]
pub(crate) struct TabFollower {
    answer: watch::Receiver<OpenAnswer>,
    /// Its number among the followers of the tab.
    own: u64,
    request: u32,
    /// The bytes of reasoning and content that it has got of the request's answer.
    got: (usize, usize),
    next: u32,
}

/// The sending end of one answer: its pieces go to the follower of the tab.
pub(crate) struct PieceSink {
    streams: Arc<PieceStreams>,
    lease: LeaseId,
    request: u32,
    stopped: Option<watch::Receiver<u32>>,
}

impl PieceStreams {
    /// Opens a tab, which its buyer can follow from now on.
    pub(crate) fn open_tab(&self, lease: LeaseId, buyer: AccountKey) {
        let tab = OpenTab {
            buyer,
            answer: watch::Sender::default(),
            stopped: watch::Sender::new(0),
        };
        self.lock_tabs().insert(lease, tab);
    }

    /// Closes a tab; its follower's stream ends.
    pub(crate) fn close_tab(&self, lease: LeaseId) {
        self.lock_tabs().remove(&lease);
    }

    /// Follows a tab from its open answer on; none if `peer` has no such tab. A later follower
    /// replaces an earlier one.
    pub(crate) fn follow_tab(&self, lease: LeaseId, peer: AccountKey) -> Option<TabFollower> {
        let tabs = self.lock_tabs();
        let tab = tabs.get(&lease).filter(|tab| tab.buyer == peer)?;
        tab.answer.send_modify(|answer| answer.followers += 1);
        let answer = tab.answer.subscribe();
        let own = answer.borrow().followers;
        Some(TabFollower {
            answer,
            own,
            request: 0,
            got: (0, 0),
            next: 0,
        })
    }

    /// Stops the answer to a request, and all before it.
    pub(crate) fn stop_request(&self, lease: LeaseId, peer: AccountKey, request: u32) {
        let tabs = self.lock_tabs();
        if let Some(tab) = tabs.get(&lease).filter(|tab| tab.buyer == peer) {
            tab.stopped.send_replace(request.saturating_add(1));
        }
    }

    /// Returns the sink for the pieces of the answer to a request.
    pub(crate) fn open_sink(self: &Arc<Self>, lease: LeaseId, request: u32) -> PieceSink {
        let tabs = self.lock_tabs();
        let tab = tabs.get(&lease);
        if let Some(tab) = tab {
            tab.answer.send_modify(|answer| {
                (answer.request, answer.text) = (request, AnswerText::default());
            });
        }
        PieceSink {
            streams: self.clone(),
            lease,
            request,
            stopped: tab.map(|tab| tab.stopped.subscribe()),
        }
    }

    fn lock_tabs(&self) -> MutexGuard<'_, BTreeMap<LeaseId, OpenTab>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TabFollower {
    /// Waits for the text that follows; none once the tab is closed, or has another follower.
    pub(crate) async fn next_piece(&mut self) -> Option<Piece> {
        loop {
            if let Some(piece) = self.take_piece()? {
                return Some(piece);
            }
            self.answer.changed().await.ok()?;
        }
    }

    /// Takes the text that it has not got yet, if there is any; none if it was replaced.
    fn take_piece(&mut self) -> Option<Option<Piece>> {
        let answer = self.answer.borrow_and_update();
        if answer.followers != self.own {
            return None;
        }
        if answer.request != self.request {
            (self.request, self.got, self.next) = (answer.request, (0, 0), 0);
        }
        let text = AnswerText {
            reasoning: take_beginning(&answer.text.reasoning[self.got.0..]).to_owned(),
            content: take_beginning(&answer.text.content[self.got.1..]).to_owned(),
        };
        if text.is_empty() {
            return Some(None);
        }
        self.got.0 += text.reasoning.len();
        self.got.1 += text.content.len();
        self.next += 1;
        Some(Some(Piece {
            request: self.request,
            number: self.next - 1,
            text,
        }))
    }
}

/// Returns the longest beginning of a text that fits into a piece next to the beginning of another
/// text.
fn take_beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(PIECE_TEXT_MAX / 2)]
}

impl PieceSink {
    /// Returns the lease of the tab.
    pub(crate) fn lease(&self) -> LeaseId {
        self.lease
    }

    /// Adds the next piece of the answer, and wakes the follower of the tab.
    pub(crate) fn send_piece(&self, text: &AnswerText) {
        let tabs = self.streams.lock_tabs();
        if let Some(tab) = tabs.get(&self.lease) {
            tab.answer.send_if_modified(|answer| {
                let is_open = answer.request == self.request;
                if is_open {
                    answer.text.push(text);
                }
                is_open
            });
        }
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
        let mut follower = streams.follow_tab(LeaseId(1), buyer).unwrap();
        let sink = streams.open_sink(LeaseId(1), 4);
        for (number, piece) in [(0, "a"), (1, "b")] {
            sink.send_piece(&text(piece));
            let expected = Piece {
                request: 4,
                number,
                text: text(piece),
            };
            assert_eq!(follower.next_piece().await, Some(expected));
        }
        // Another peer cannot stop it, nor does the end of an earlier request.
        streams.stop_request(LeaseId(1), other, 4);
        streams.stop_request(LeaseId(1), buyer, 3);
        let waiting = tokio::time::timeout(std::time::Duration::ZERO, sink.wait_for_stop());
        assert!(waiting.await.is_err());
        streams.stop_request(LeaseId(1), buyer, 4);
        sink.wait_for_stop().await;
        streams.close_tab(LeaseId(1));
        assert_eq!(follower.next_piece().await, None);
    }

    /// Reads this many bytes of content. Returns the text, and the numbers of its pieces.
    async fn read_content(follower: &mut TabFollower, bytes: usize) -> (String, Vec<u32>) {
        let (mut content, mut numbers) = (String::new(), Vec::new());
        while content.len() < bytes {
            let piece = follower.next_piece().await.expect("the tab is open");
            content.push_str(&piece.text.content);
            numbers.push(piece.number);
        }
        (content, numbers)
    }

    #[tokio::test]
    async fn a_slow_follower_and_one_that_comes_again_get_the_whole_text() {
        let buyer = AccountKey([1; 32]);
        let streams = Arc::<PieceStreams>::default();
        streams.open_tab(LeaseId(1), buyer);
        let mut slow = streams.follow_tab(LeaseId(1), buyer).unwrap();
        let sink = streams.open_sink(LeaseId(1), 0);
        let whole = "ä market ".repeat(4_000);
        for _ in 0..4_000 {
            sink.send_piece(&text("ä market "));
        }
        let (content, numbers) = read_content(&mut slow, whole.len()).await;
        assert_eq!(content, whole);
        assert_eq!(numbers, [0, 1], "no piece is too long for its reader");
        sink.send_piece(&text("!"));
        assert_eq!(read_content(&mut slow, 1).await, ("!".to_owned(), vec![2]));
        // A new stream begins with the text so far, and replaces the former one.
        let mut again = streams.follow_tab(LeaseId(1), buyer).unwrap();
        assert_eq!(slow.next_piece().await, None);
        let (content, numbers) = read_content(&mut again, whole.len() + 1).await;
        assert_eq!((content, numbers), (whole + "!", vec![0, 1]));
        // The next answer begins anew, and nothing more of the last one comes.
        let next = streams.open_sink(LeaseId(1), 1);
        sink.send_piece(&text("late"));
        next.send_piece(&text("b"));
        let piece = again.next_piece().await.unwrap();
        assert_eq!((piece.request, piece.number), (1, 0));
        assert_eq!(piece.text, text("b"));
    }
}
