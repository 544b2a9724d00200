//! Decides which content is copied next between the memories of one machine, such as the host's and
//! a graphics card's.
//!
//! A path is a pair of memories, from and to. Each path has a queue, the most urgent copy first and
//! small ones together, and carries one batch at a time, so that an urgent copy waits for at most
//! one batch. A copy that is requested twice happens once, with the higher urgency of the two
//! requests. A thread that waits for content can copy it itself without a place in the queue:
//! waiting copies on its path let it go first. [`Transfers`] copies nothing. The scheduler's
//! `transfer_queue` takes its batches, copies them, and reports when they are done.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use thiserror::Error;

use crate::holdings::Handle;
use crate::location::Location;

/// Content up to this size moves together with other such content, because a transfer's fixed cost
/// is then most of its time.
pub const SMALL_BYTES: u64 = 64 << 10;
/// The most bytes of small transfers in one batch: a path moves them in well under a millisecond.
pub const MERGED_BYTES_MAX: u64 = 1 << 20;
/// The most transfers that wait for one path. Beyond them the path cannot keep up, so the caller
/// gets an error.
pub const WAITING_MAX: usize = 4096;

/// The urgency of a transfer; the greater goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// A prediction says that work can need the content next.
    Guessed,
    /// A plan will need the content.
    Planned,
    /// A caller waits for the content.
    Awaited,
}

/// Content to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedContent {
    /// The handle of the content.
    pub handle: Handle,
    /// The length of the content in bytes.
    pub bytes: u64,
}

/// A batch that a path must move now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The place of departure.
    pub from: Location,
    /// The place of arrival.
    pub to: Location,
    /// The content: one item, or several small ones.
    pub items: Vec<WantedContent>,
}

/// The path has reached its limit of waiting transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{WAITING_MAX} transfers wait from {from} to {to}: wait for some of them")]
pub struct PathFull {
    /// The place of departure.
    pub from: Location,
    /// The place of arrival.
    pub to: Location,
}

/// The counts of transfers so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferCounts {
    /// Transfers requested.
    pub wanted: u64,
    /// Requests for transfers that were already waiting or moving.
    pub repeated: u64,
    /// Batches taken.
    pub batches: u64,
    /// Transfers that shared a batch with another.
    pub merged: u64,
    /// Transfers begun, by urgency.
    pub begun: ByUrgency,
    /// Transfers that left the queue because a waiting thread moved their content itself.
    pub overtaken: u64,
}

/// A count for each urgency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByUrgency {
    /// The count of predicted transfers.
    pub guessed: u64,
    /// The count of planned transfers.
    pub planned: u64,
    /// The count of awaited transfers.
    pub awaited: u64,
}

impl ByUrgency {
    fn add(&mut self, urgency: Urgency, count: u64) {
        *match urgency {
            Urgency::Guessed => &mut self.guessed,
            Urgency::Planned => &mut self.planned,
            Urgency::Awaited => &mut self.awaited,
        } += count;
    }
}

/// The order in a queue: by urgency, then by time of request.
type Rank = (Reverse<Urgency>, u64);

#[derive(Clone, Debug, Default)]
struct PathQueue {
    waiting: BTreeMap<Rank, WantedContent>,
    rank: BTreeMap<Handle, Rank>,
    moving: Vec<Handle>,
}

/// All queues of transfers.
#[derive(Clone, Debug, Default)]
pub struct Transfers {
    queues: BTreeMap<(Location, Location), PathQueue>,
    /// Hops over which waiting threads move content themselves, and the number of those threads.
    awaited: BTreeMap<(Location, Location), u64>,
    asked: u64,
    counts: TransferCounts,
}

impl Transfers {
    /// Requests a transfer.
    ///
    /// # Errors
    /// [`PathFull`]: you should wait for some of the path's transfers.
    pub fn request_transfer(
        &mut self,
        wanted: WantedContent,
        from: Location,
        to: Location,
        urgency: Urgency,
    ) -> Result<(), PathFull> {
        let queue = self.queues.entry((from, to)).or_default();
        self.counts.wanted += 1;
        if queue.moving.contains(&wanted.handle) {
            self.counts.repeated += 1;
            return Ok(());
        }
        if let Some(&(Reverse(before), asked)) = queue.rank.get(&wanted.handle) {
            self.counts.repeated += 1;
            if urgency > before {
                queue.waiting.remove(&(Reverse(before), asked));
                queue.insert(wanted, (Reverse(urgency), asked));
            }
            return Ok(());
        }
        if queue.waiting.len() >= WAITING_MAX {
            return Err(PathFull { from, to });
        }
        self.asked += 1;
        queue.insert(wanted, (Reverse(urgency), self.asked));
        Ok(())
    }

    /// Takes the most urgent transfer that a free path can move now and, if it is small, further
    /// small ones.
    pub fn take_batch(&mut self) -> Option<Batch> {
        let first = |(path, queue): (&(Location, Location), &PathQueue)| {
            let free = self.is_free(*path, queue);
            let (rank, _) = queue.waiting.first_key_value().filter(|_| free)?;
            Some((*rank, *path))
        };
        let (_, path) = self.queues.iter().filter_map(first).min()?;
        let queue = self.queues.get_mut(&path).expect("it was just found");
        let mut items: Vec<WantedContent> = Vec::new();
        let mut bytes = 0;
        while let Some((_, wanted)) = queue.waiting.first_key_value() {
            let fits = wanted.bytes <= SMALL_BYTES && bytes + wanted.bytes <= MERGED_BYTES_MAX;
            let small = items.first().is_none_or(|first| first.bytes <= SMALL_BYTES);
            if !(items.is_empty() || fits && small) {
                break;
            }
            let ((Reverse(urgency), _), wanted) =
                queue.waiting.pop_first().expect("it was just seen");
            self.counts.begun.add(urgency, 1);
            queue.rank.remove(&wanted.handle);
            bytes += wanted.bytes;
            items.push(wanted);
        }
        queue.moving = items.iter().map(|wanted| wanted.handle).collect();
        self.counts.batches += 1;
        if items.len() > 1 {
            self.counts.merged += items.len() as u64;
        }
        Some(Batch {
            from: path.0,
            to: path.1,
            items,
        })
    }

    /// Returns whether a transfer waits for a free path.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let ready = |(path, queue): (&(Location, Location), &PathQueue)| {
            self.is_free(*path, queue) && !queue.waiting.is_empty()
        };
        self.queues.iter().any(ready)
    }

    /// Returns whether a path is free: no batch moves on it, and no thread moves awaited content
    /// over one of its hops. A path through the host has the hops to the host and from it.
    fn is_free(&self, path: (Location, Location), queue: &PathQueue) -> bool {
        let over = |hop: &(Location, Location)| {
            let leaves = hop.0 == path.0 || hop.0 == Location::Host;
            leaves && (hop.1 == path.1 || hop.1 == Location::Host)
        };
        queue.moving.is_empty() && !self.awaited.keys().any(over)
    }

    /// Records that a thread moves this content over one hop itself because it waits for it. Until
    /// [`Self::end_awaited`], which the thread must call even after a failure, no batch will begin
    /// on a path over that hop. Removes waiting transfers of the same content to the same place.
    pub fn begin_awaited(
        &mut self,
        content: impl IntoIterator<Item = Handle>,
        from: Location,
        to: Location,
    ) {
        *self.awaited.entry((from, to)).or_default() += 1;
        for handle in content {
            self.counts.begun.add(Urgency::Awaited, 1);
            for (_, queue) in self.queues.iter_mut().filter(|(path, _)| path.1 == to) {
                self.counts.overtaken += u64::from(queue.remove_transfer(handle));
            }
        }
        self.drop_idle();
    }

    /// Records that a thread's own transfer arrived or failed.
    pub fn end_awaited(&mut self, from: Location, to: Location) {
        let going = self.awaited.get_mut(&(from, to));
        let going = going.expect("it was told when it began");
        *going -= 1;
        if *going == 0 {
            self.awaited.remove(&(from, to));
        }
    }

    /// Records that a batch was moved or abandoned, so its path is free.
    pub fn on_batch_done(&mut self, batch: &Batch) {
        let path = (batch.from, batch.to);
        let queue = self.queues.get_mut(&path).expect("its path took it");
        assert_eq!(
            queue.moving.len(),
            batch.items.len(),
            "a path moves one batch"
        );
        queue.moving.clear();
        if queue.waiting.is_empty() {
            self.queues.remove(&path);
        }
    }

    /// Removes all waiting transfers of content that is no longer needed.
    pub fn forget_content(&mut self, handle: Handle) {
        for queue in self.queues.values_mut() {
            queue.remove_transfer(handle);
        }
        self.drop_idle();
    }

    fn drop_idle(&mut self) {
        self.queues
            .retain(|_, queue| !queue.waiting.is_empty() || !queue.moving.is_empty());
    }

    /// Returns whether no transfer waits or moves.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> TransferCounts {
        self.counts
    }
}

impl PathQueue {
    fn insert(&mut self, wanted: WantedContent, rank: Rank) {
        self.waiting.insert(rank, wanted);
        self.rank.insert(wanted.handle, rank);
        assert_eq!(self.waiting.len(), self.rank.len(), "each waits once");
    }

    /// Removes a transfer from the queue. Returns whether it waited.
    fn remove_transfer(&mut self, handle: Handle) -> bool {
        let rank = self.rank.remove(&handle);
        rank.is_some_and(|rank| self.waiting.remove(&rank).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holdings::Holdings;
    use crate::paths::Paths;

    /// So many handles.
    fn handles(count: usize) -> Vec<Handle> {
        let mut holdings = Holdings::new(Paths::default());
        holdings.set_limit(Location::Host, 1 << 20).unwrap();
        let one = |_| holdings.allocate(1, Location::Host).unwrap();
        (0..count).map(one).collect()
    }

    fn want(transfers: &mut Transfers, handle: Handle, bytes: u64, urgency: Urgency) {
        let wanted = WantedContent { handle, bytes };
        let asked = transfers.request_transfer(wanted, Location::Disk, Location::Host, urgency);
        asked.unwrap();
    }

    fn taken(transfers: &mut Transfers) -> Vec<Handle> {
        let batch = transfers.take_batch().unwrap();
        transfers.on_batch_done(&batch);
        batch.items.iter().map(|wanted| wanted.handle).collect()
    }

    #[test]
    fn the_urgent_goes_first_and_equals_in_turn() {
        let (mut transfers, all) = (Transfers::default(), handles(4));
        want(&mut transfers, all[0], 1 << 20, Urgency::Guessed);
        want(&mut transfers, all[1], 1 << 20, Urgency::Planned);
        want(&mut transfers, all[2], 1 << 20, Urgency::Awaited);
        want(&mut transfers, all[3], 1 << 20, Urgency::Planned);
        let order: Vec<Handle> = (0..4).flat_map(|_| taken(&mut transfers)).collect();
        assert_eq!(order, [all[2], all[1], all[3], all[0]]);
        assert_eq!(transfers.take_batch(), None);
    }

    #[test]
    fn small_ones_go_together_up_to_a_limit() {
        let (mut transfers, all) = (Transfers::default(), handles(40));
        let each = SMALL_BYTES;
        all.iter()
            .for_each(|&handle| want(&mut transfers, handle, each, Urgency::Planned));
        let most = (MERGED_BYTES_MAX / each) as usize;
        let batches: Vec<usize> = (0..3).map(|_| taken(&mut transfers).len()).collect();
        assert_eq!(batches, [most, most, 40 - 2 * most]);
        assert_eq!(transfers.counts().merged, 40);
    }

    #[test]
    fn a_large_one_goes_alone() {
        let (mut transfers, all) = (Transfers::default(), handles(3));
        want(&mut transfers, all[0], 10, Urgency::Planned);
        want(&mut transfers, all[1], SMALL_BYTES + 1, Urgency::Planned);
        want(&mut transfers, all[2], 10, Urgency::Planned);
        let batches: Vec<usize> = (0..3).map(|_| taken(&mut transfers).len()).collect();
        assert_eq!(batches, [1, 1, 1]);
    }

    #[test]
    fn a_path_moves_one_batch_at_a_time_and_others_move_beside_it() {
        let (mut transfers, all) = (Transfers::default(), handles(3));
        let large = |handle| WantedContent {
            handle,
            bytes: 1 << 30,
        };
        let (disk, host, device) = (Location::Disk, Location::Host, Location::device(0));
        transfers
            .request_transfer(large(all[0]), disk, host, Urgency::Awaited)
            .unwrap();
        transfers
            .request_transfer(large(all[1]), disk, host, Urgency::Awaited)
            .unwrap();
        transfers
            .request_transfer(large(all[2]), host, device, Urgency::Guessed)
            .unwrap();
        let first = transfers.take_batch().unwrap();
        assert_eq!((first.from, first.to), (disk, host));
        let second = transfers.take_batch().unwrap();
        assert_eq!((second.from, second.to), (host, device));
        assert!(!transfers.is_ready(), "the disk is busy");
        assert_eq!(transfers.take_batch(), None);
        transfers.on_batch_done(&first);
        assert!(transfers.is_ready());
        assert_eq!(transfers.take_batch().unwrap().items, [large(all[1])]);
    }

    #[test]
    fn what_is_wanted_twice_moves_once_and_as_urgently_as_anyone_wants_it() {
        let (mut transfers, all) = (Transfers::default(), handles(2));
        want(&mut transfers, all[0], 1 << 20, Urgency::Planned);
        want(&mut transfers, all[1], 1 << 20, Urgency::Guessed);
        want(&mut transfers, all[1], 1 << 20, Urgency::Awaited);
        let first = transfers.take_batch().unwrap();
        assert_eq!(first.items[0].handle, all[1]);
        want(&mut transfers, all[1], 1 << 20, Urgency::Awaited);
        transfers.on_batch_done(&first);
        assert_eq!(taken(&mut transfers), [all[0]]);
        assert_eq!(transfers.take_batch(), None);
        assert_eq!(transfers.counts().repeated, 2);
    }

    #[test]
    fn what_nobody_wants_any_more_is_not_moved() {
        let (mut transfers, all) = (Transfers::default(), handles(1));
        want(&mut transfers, all[0], 1, Urgency::Planned);
        transfers.forget_content(all[0]);
        assert_eq!(transfers.take_batch(), None);
    }

    #[test]
    fn what_somebody_moves_who_waits_goes_before_what_waits_for_its_way() {
        let (mut transfers, all) = (Transfers::default(), handles(4));
        let (host, one, other) = (Location::Host, Location::device(0), Location::device(1));
        let ways = [(host, one), (one, other), (host, other), (one, host)];
        for (&handle, (from, to)) in all.iter().zip(ways) {
            let wanted = WantedContent { handle, bytes: 1 };
            transfers
                .request_transfer(wanted, from, to, Urgency::Planned)
                .unwrap();
        }
        transfers.begin_awaited([], host, other);
        transfers.begin_awaited([], host, other);
        let mut free = Vec::new();
        while let Some(batch) = transfers.take_batch() {
            free.push((batch.from, batch.to));
        }
        assert_eq!(free, [ways[0], ways[3]], "no other ends there");
        transfers.end_awaited(host, other);
        assert!(!transfers.is_ready(), "another one is still going there");
        transfers.end_awaited(host, other);
        assert_eq!(transfers.take_batch().unwrap().from, one);
        assert_eq!(transfers.take_batch().unwrap().from, host);
        assert_eq!(transfers.counts().begun.planned, 4);
    }

    #[test]
    fn what_somebody_moves_who_waits_is_not_moved_again() {
        let (mut transfers, all) = (Transfers::default(), handles(2));
        want(&mut transfers, all[0], 1, Urgency::Planned);
        want(&mut transfers, all[1], 1, Urgency::Guessed);
        transfers.begin_awaited([all[0]], Location::Disk, Location::Host);
        transfers.end_awaited(Location::Disk, Location::Host);
        assert_eq!(taken(&mut transfers), [all[1]]);
        let counts = transfers.counts();
        let begun = ByUrgency {
            guessed: 1,
            planned: 0,
            awaited: 1,
        };
        assert_eq!((counts.begun, counts.overtaken), (begun, 1));
    }

    #[test]
    fn a_path_that_cannot_keep_up_says_so() {
        let (mut transfers, all) = (Transfers::default(), handles(WAITING_MAX + 1));
        let mut asked = all.iter().map(|&handle| {
            let wanted = WantedContent { handle, bytes: 1 };
            transfers.request_transfer(wanted, Location::Disk, Location::Host, Urgency::Planned)
        });
        assert!(asked.by_ref().take(WAITING_MAX).all(|asked| asked.is_ok()));
        assert!(asked.next().unwrap().is_err());
    }
}
