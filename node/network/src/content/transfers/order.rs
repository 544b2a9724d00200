//! Decides which of the transfers that share a link moves next.
//!
//! Content that a caller waits for goes before content that a plan will need, and that before
//! guesses. Equals go in the order of their requests, a few from each peer at a time. A less urgent
//! transfer that has begun must pause between frames while a more urgent one moves: the node does
//! not read it, so its sender's window fills. Now and then it must still read a piece, so that
//! neither end times out.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libp2p::PeerId;
use souk_memory::transfers::Urgency;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use crate::content::pace::Pacer;

/// How many transfers of the same urgency move from one peer at a time: the next request travels
/// while the bytes of the earlier ones arrive.
const MOVING_PER_PEER_MAX: usize = 4;

/// How many transfers may wait for their turn: many times what a few jobs with their windows need.
const WAITING_MAX: usize = 4096;

/// How long a transfer pauses at most: a third of the time for which its sender waits.
const STILL_MAX: Duration = Duration::from_secs(3);

/// The most transfers already wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{WAITING_MAX} transfers wait for their turn: wait for some of them")]
pub struct TooManyTransfers;

/// By urgency, then by the order of requests.
type Rank = (Reverse<Urgency>, Ticket);

/// The number of a transfer.
type Ticket = u64;

/// The transfers that wait and that move, without any waiting itself.
#[derive(Debug, Default)]
struct TransferOrder {
    asked: Ticket,
    waiting: BTreeMap<Rank, PeerId>,
    moving: BTreeMap<Ticket, (Urgency, PeerId)>,
}

impl TransferOrder {
    fn enqueue_transfer(
        &mut self,
        peer: PeerId,
        urgency: Urgency,
    ) -> Result<Ticket, TooManyTransfers> {
        if self.waiting.len() >= WAITING_MAX {
            return Err(TooManyTransfers);
        }
        self.asked += 1;
        self.waiting.insert((Reverse(urgency), self.asked), peer);
        Ok(self.asked)
    }

    /// Raises the urgency of a transfer; never lowers it.
    fn raise_urgency(&mut self, ticket: Ticket, urgency: Urgency) {
        if let Some((before, _)) = self.moving.get_mut(&ticket) {
            *before = urgency.max(*before);
            return;
        }
        let lower = [Urgency::Guessed, Urgency::Planned].into_iter();
        for before in lower.filter(|before| *before < urgency) {
            if let Some(peer) = self.waiting.remove(&(Reverse(before), ticket)) {
                self.waiting.insert((Reverse(urgency), ticket), peer);
            }
        }
    }

    /// Starts all transfers whose turn it is, and returns whether there was one.
    fn start_due(&mut self) -> bool {
        let mut begun = false;
        while let Some((rank, peer)) = self.next() {
            self.waiting.remove(&rank);
            let (Reverse(urgency), ticket) = rank;
            self.moving.insert(ticket, (urgency, peer));
            begun = true;
        }
        begun
    }

    /// Returns the first waiting transfer from whose peer few enough transfers of at least its
    /// urgency move.
    fn next(&self) -> Option<(Rank, PeerId)> {
        let may = |(Reverse(urgency), _): &Rank, peer: &PeerId| {
            let moving = self.moving.values();
            let before = moving.filter(|(other, of)| other >= urgency && of == peer);
            before.count() < MOVING_PER_PEER_MAX
        };
        let mut waiting = self.waiting.iter();
        let (rank, peer) = waiting.find(|(rank, peer)| may(rank, peer))?;
        Some((*rank, *peer))
    }

    fn is_moving(&self, ticket: Ticket) -> bool {
        self.moving.contains_key(&ticket)
    }

    /// Returns whether a more urgent transfer moves.
    fn gives_way(&self, ticket: Ticket) -> bool {
        let own = self.moving.get(&ticket);
        own.is_some_and(|(own, _)| self.moving.values().any(|(other, _)| other > own))
    }

    /// Removes a transfer that has ended or is no longer needed.
    fn remove_transfer(&mut self, ticket: Ticket) {
        self.moving.remove(&ticket);
        self.waiting.retain(|(_, other), _| *other != ticket);
    }
}

/// The order of a node's transfers.
#[derive(Debug, Default)]
pub(super) struct TransferQueue {
    order: Mutex<TransferOrder>,
    /// Notifies the waiting transfers that the order changed.
    bell: Notify,
}

impl TransferQueue {
    /// Waits until a transfer from `peer` may begin.
    ///
    /// # Errors
    /// [`TooManyTransfers`].
    pub(super) async fn wait_for_turn(
        self: &Arc<Self>,
        peer: PeerId,
        urgency: watch::Receiver<Urgency>,
    ) -> Result<TransferTurn, TooManyTransfers> {
        let ticket = self
            .lock_order()
            .enqueue_transfer(peer, *urgency.borrow())?;
        let mut turn = TransferTurn {
            queue: self.clone(),
            ticket,
            urgency,
        };
        self.update_order(|_| {});
        turn.wait_for(TransferOrder::is_moving).await;
        Ok(turn)
    }

    #[cfg(test)]
    pub(super) fn moving_count(&self) -> usize {
        self.lock_order().moving.len()
    }

    fn update_order(&self, change: impl FnOnce(&mut TransferOrder)) {
        let mut order = self.lock_order();
        change(&mut order);
        order.start_due();
        drop(order);
        self.bell.notify_waiters();
    }

    fn lock_order(&self) -> MutexGuard<'_, TransferOrder> {
        // A panic cannot leave a change half done under this lock.
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A transfer's place in the order. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct TransferTurn {
    queue: Arc<TransferQueue>,
    ticket: Ticket,
    urgency: watch::Receiver<Urgency>,
}

impl TransferTurn {
    /// Waits until a condition holds, and meanwhile passes on each rise of urgency.
    async fn wait_for(&mut self, is_so: impl Fn(&TransferOrder, Ticket) -> bool) {
        loop {
            let queue = self.queue.clone();
            let mut rung = std::pin::pin!(queue.bell.notified());
            rung.as_mut().enable();
            if is_so(&queue.lock_order(), self.ticket) {
                return;
            }
            tokio::select! {
                () = rung => {}
                Ok(()) = self.urgency.changed() => self.update_urgency(),
            }
        }
    }

    fn update_urgency(&mut self) {
        let (ticket, urgency) = (self.ticket, *self.urgency.borrow_and_update());
        self.queue
            .update_order(|order| order.raise_urgency(ticket, urgency));
    }

    /// Pauses while something more urgent moves, up to [`STILL_MAX`].
    async fn stand_aside(&mut self) {
        if self.urgency.has_changed().unwrap_or(false) {
            self.update_urgency();
        }
        if self.queue.lock_order().gives_way(self.ticket) {
            let free = self.wait_for(|order, ticket| !order.gives_way(ticket));
            // A timeout is no error: the transfer then reads a piece.
            let _ = tokio::time::timeout(STILL_MAX, free).await;
        }
    }
}

impl Drop for TransferTurn {
    fn drop(&mut self) {
        let ticket = self.ticket;
        self.queue
            .update_order(|order| order.remove_transfer(ticket));
    }
}

/// What a transfer passes before each piece: the more urgent transfers, and the node's limit.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) pace: Arc<Pacer>,
    pub(super) turn: TransferTurn,
}

impl Gate {
    /// Returns how many bytes may pass at once, at most `most`.
    pub(super) fn piece_bytes(&self, most: usize) -> usize {
        self.pace.piece_bytes(most)
    }

    /// Waits until `bytes` may pass.
    pub(super) async fn pass_bytes(&mut self, bytes: usize) {
        self.turn.stand_aside().await;
        self.pace.pass_bytes(bytes).await;
    }

    /// Waits until `bytes` may pass, on a thread of the runtime that may block.
    pub(super) fn pass_blocking(&mut self, bytes: usize) {
        if self.turn.queue.lock_order().gives_way(self.turn.ticket) {
            Handle::current().block_on(self.turn.stand_aside());
        }
        self.pace.pass_blocking(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(count: usize) -> Vec<PeerId> {
        (0..count).map(|_| PeerId::random()).collect()
    }

    /// A link that carries one piece a step, in turn, for those that move and give way to nobody.
    #[derive(Default)]
    struct Link {
        order: TransferOrder,
        left: BTreeMap<Ticket, u32>,
        last: Ticket,
        ended: Vec<Ticket>,
    }

    impl Link {
        fn want(&mut self, peer: PeerId, urgency: Urgency, pieces: u32) -> Ticket {
            let ticket = self.order.enqueue_transfer(peer, urgency).unwrap();
            self.left.insert(ticket, pieces);
            ticket
        }

        fn step(&mut self) {
            self.order.start_due();
            let goes =
                |ticket: &Ticket| self.order.is_moving(*ticket) && !self.order.gives_way(*ticket);
            let mut after = self.left.keys().filter(|ticket| goes(ticket));
            let next = after.clone().find(|ticket| **ticket > self.last);
            let Some(next) = next.or_else(|| after.next()).copied() else {
                assert!(self.left.is_empty(), "something always moves");
                return;
            };
            self.last = next;
            let left = self.left.get_mut(&next).unwrap();
            *left -= 1;
            if *left == 0 {
                self.left.remove(&next);
                self.order.remove_transfer(next);
                self.ended.push(next);
            }
        }
    }

    #[test]
    fn what_is_awaited_has_the_link_to_itself_whatever_moves_already() {
        let (mut link, peers) = (Link::default(), peers(3));
        for peer in peers.iter().cycle().take(30) {
            link.want(*peer, Urgency::Planned, 100);
        }
        link.want(peers[0], Urgency::Guessed, 100);
        (0..50).for_each(|_| link.step());
        let awaited = [0, 1].map(|place| link.want(peers[place], Urgency::Awaited, 10));
        (0..20).for_each(|_| link.step());
        assert_eq!(
            link.ended, awaited,
            "they share the link, and nobody else does"
        );
    }

    #[test]
    fn equals_go_in_turn_and_a_few_of_a_peer_at_a_time() {
        let (mut order, peers) = (TransferOrder::default(), peers(2));
        let of_first: Vec<Ticket> = (0..6)
            .map(|_| order.enqueue_transfer(peers[0], Urgency::Planned).unwrap())
            .collect();
        let of_other = order.enqueue_transfer(peers[1], Urgency::Planned).unwrap();
        order.start_due();
        let moving: Vec<bool> = of_first.iter().map(|one| order.is_moving(*one)).collect();
        assert_eq!(moving, [true, true, true, true, false, false]);
        assert!(order.is_moving(of_other), "another peer is not held up");
        order.remove_transfer(of_first[2]);
        order.start_due();
        assert!(order.is_moving(of_first[4]) && !order.is_moving(of_first[5]));
        order.raise_urgency(of_first[5], Urgency::Awaited);
        order.start_due();
        assert!(order.is_moving(of_first[5]), "somebody waits for it now");
        assert!(order.gives_way(of_first[0]) && !order.gives_way(of_first[5]));
        order.raise_urgency(of_first[0], Urgency::Awaited);
        assert!(!order.gives_way(of_first[0]));
    }

    #[test]
    fn who_wants_more_than_may_wait_is_told() {
        let (mut order, peer) = (TransferOrder::default(), PeerId::random());
        for _ in 0..WAITING_MAX {
            order.enqueue_transfer(peer, Urgency::Guessed).unwrap();
        }
        assert_eq!(
            order.enqueue_transfer(peer, Urgency::Awaited),
            Err(TooManyTransfers)
        );
    }

    #[test]
    fn everything_ends_and_nothing_before_what_was_more_urgent_and_there() {
        let urgencies = [Urgency::Guessed, Urgency::Planned, Urgency::Awaited];
        let peers = peers(3);
        let mut random = 1_u64;
        let mut below = |most: u64| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 33) % most
        };
        for _ in 0..500 {
            let (mut link, mut of) = (Link::default(), BTreeMap::new());
            for _ in 0..=below(40) {
                let (peer, urgency) = (peers[below(3) as usize], urgencies[below(3) as usize]);
                let ticket = link.want(peer, urgency, 1 + below(20) as u32);
                of.insert(ticket, urgency);
            }
            let all: u32 = link.left.values().sum();
            (0..all).for_each(|_| link.step());
            let order: Vec<Urgency> = link.ended.iter().map(|ticket| of[ticket]).collect();
            assert_eq!(order.len(), of.len());
            assert!(order.is_sorted_by(|a, b| a >= b), "{order:?}");
        }
    }
}
