//! Publishes events in order to followers, the clients of the gateway's event stream. A follower
//! can resume where its stream broke off.
//!
//! A follower names topics. Each event of a topic stands alone: a follower that missed some is up
//! to date again with the next one. The hub keeps the last [`RING_MAX`] events for followers that
//! return.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use tokio::sync::broadcast;

/// Events that the hub keeps for followers that return.
const RING_MAX: usize = 4_096;

/// Events that can wait for one follower; one that falls further behind must start anew.
const WAITING_MAX: usize = 256;

/// Largest number of followers.
pub const STREAMS_MAX: usize = 32;

/// A published event.
#[derive(Clone, Debug)]
pub struct Occurrence {
    /// The log's index at publication, and the number of the event.
    pub id: EventId,
    /// The topic of the event.
    pub topic: Arc<str>,
    /// The event's content as JSON.
    pub data: Arc<str>,
}

/// The position of an event among all events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventId {
    /// Index of the log at publication.
    pub index: u64,
    /// Number of the event: each event of this process has the next one.
    pub number: u64,
}

impl EventId {
    /// Parses `INDEX.NUMBER`.
    pub fn parse(text: &str) -> Option<EventId> {
        let (index, number) = text.split_once('.')?;
        Some(EventId {
            index: index.parse().ok()?,
            number: number.parse().ok()?,
        })
    }
}

impl std::fmt::Display for EventId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.index, self.number)
    }
}

/// The latest events, and the followers.
#[derive(Debug)]
pub struct Hub {
    ring: Mutex<Ring>,
    follow: broadcast::Sender<Occurrence>,
    index: AtomicU64,
    places: Arc<FollowerSlots>,
}

/// Counts of the followers.
#[derive(Debug, Default)]
struct FollowerSlots {
    streams: AtomicUsize,
    /// By topic: the number of followers, and whether a new one still needs the current state.
    wanted: Mutex<BTreeMap<String, (usize, bool)>>,
}

#[derive(Debug, Default)]
struct Ring {
    events: VecDeque<Occurrence>,
    /// Number of the next event.
    next: u64,
}

/// A follower's place; dropping it releases the place.
#[derive(Debug)]
pub struct FollowerSlot {
    places: Arc<FollowerSlots>,
    topics: BTreeSet<String>,
}

/// A follower's stream of events.
#[derive(Debug)]
pub struct Subscription {
    /// The missed events; `None` if the hub no longer knows them.
    pub missed: Option<Vec<Occurrence>>,
    /// The events from now on.
    pub coming: broadcast::Receiver<Occurrence>,
}

impl Default for Hub {
    fn default() -> Hub {
        Hub {
            ring: Mutex::default(),
            follow: broadcast::Sender::new(WAITING_MAX),
            index: AtomicU64::new(0),
            places: Arc::default(),
        }
    }
}

impl Hub {
    /// Records that the log has reached this index.
    pub fn record_index(&self, index: u64) {
        self.index.fetch_max(index, Ordering::Relaxed);
    }

    /// Returns the number of followers.
    pub fn follower_count(&self) -> usize {
        self.places.streams.load(Ordering::Relaxed)
    }

    /// Returns a place for a follower of these topics, or `None` if no place is free.
    pub fn reserve_place(&self, topics: BTreeSet<String>) -> Option<FollowerSlot> {
        let places = self.places.clone();
        let taken = places.streams.fetch_add(1, Ordering::Relaxed);
        {
            let mut wanted = places.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            for topic in &topics {
                let (count, is_new) = wanted.entry(topic.clone()).or_default();
                *count += 1;
                *is_new = true;
            }
        }
        let place = FollowerSlot { places, topics };
        (taken < STREAMS_MAX).then_some(place)
    }

    /// Returns the followed topics, each with whether a new follower needs its current state. This
    /// clears that mark, so you must publish the state.
    pub fn take_wanted_topics(&self) -> BTreeMap<String, bool> {
        let wanted = self.places.wanted.lock();
        let mut wanted = wanted.unwrap_or_else(PoisonError::into_inner);
        let told = wanted.iter_mut();
        told.map(|(topic, (_, is_new))| (topic.clone(), std::mem::take(is_new)))
            .collect()
    }

    /// Publishes an event.
    pub fn publish_event(&self, topic: &str, data: &impl Serialize) {
        let Ok(data) = serde_json::to_string(data) else {
            return;
        };
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let happened = Occurrence {
            id: EventId {
                index: self.index.load(Ordering::Relaxed),
                number: ring.next,
            },
            topic: topic.into(),
            data: data.into(),
        };
        ring.next += 1;
        ring.events.push_back(happened.clone());
        if ring.events.len() > RING_MAX {
            ring.events.pop_front();
        }
        // This fails if there are no followers.
        let _ = self.follow.send(happened);
    }

    /// Subscribes to events from now on, or from behind the last received event.
    pub fn subscribe_from(&self, last: Option<EventId>) -> Subscription {
        // One lock covers both, so that the follower gets each event exactly once.
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let coming = self.follow.subscribe();
        let Some(last) = last else {
            return Subscription {
                missed: Some(Vec::new()),
                coming,
            };
        };
        let oldest = ring
            .events
            .front()
            .map_or(ring.next, |first| first.id.number);
        // An unknown event is from an earlier process, or is too old.
        let is_known = last.number < ring.next
            && last.number + 1 >= oldest
            && ring
                .events
                .iter()
                .all(|one| one.id.number != last.number || one.id == last);
        let behind = ring.events.iter().filter(|one| one.id.number > last.number);
        Subscription {
            missed: is_known.then(|| behind.cloned().collect()),
            coming,
        }
    }
}

impl Drop for FollowerSlot {
    fn drop(&mut self) {
        self.places.streams.fetch_sub(1, Ordering::Relaxed);
        let wanted = self.places.wanted.lock();
        let mut wanted = wanted.unwrap_or_else(PoisonError::into_inner);
        for topic in &self.topics {
            if let Some((count, _)) = wanted.get_mut(topic) {
                *count -= 1;
            }
        }
        wanted.retain(|_, (count, _)| *count > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_back_is_told_what_it_missed_and_no_more() {
        let hub = Hub::default();
        hub.record_index(7);
        (0..3).for_each(|n| hub.publish_event("jobs", &n));
        let last = EventId::parse("7.0").unwrap();
        let missed = hub.subscribe_from(Some(last)).missed.unwrap();
        let ids: Vec<String> = missed.iter().map(|one| one.id.to_string()).collect();
        assert_eq!(ids, ["7.1", "7.2"]);
        assert_eq!(
            hub.subscribe_from(EventId::parse("7.2"))
                .missed
                .unwrap()
                .len(),
            0
        );
    }

    #[test]
    fn who_comes_back_too_late_or_from_another_life_begins_anew() {
        let hub = Hub::default();
        assert!(hub.subscribe_from(EventId::parse("7.0")).missed.is_none());
        (0..RING_MAX + 2).for_each(|n| hub.publish_event("jobs", &n));
        assert!(hub.subscribe_from(EventId::parse("0.0")).missed.is_none());
        assert!(hub.subscribe_from(EventId::parse("0.1")).missed.is_some());
        assert!(
            hub.subscribe_from(EventId::parse("3.9")).missed.is_none(),
            "told at another index"
        );
        assert!(
            hub.subscribe_from(EventId::parse("0.99999"))
                .missed
                .is_none()
        );
    }

    #[test]
    fn places_are_counted_and_given_back() {
        let hub = Hub::default();
        let taken: Vec<_> = (0..STREAMS_MAX)
            .map(|_| hub.reserve_place(BTreeSet::new()).unwrap())
            .collect();
        assert!(hub.reserve_place(BTreeSet::new()).is_none());
        assert_eq!(hub.follower_count(), STREAMS_MAX);
        drop(taken);
        assert!(hub.reserve_place(BTreeSet::new()).is_some());
    }

    #[test]
    fn a_topic_is_wanted_while_somebody_follows_it_and_new_to_each() {
        let hub = Hub::default();
        let topics = || BTreeSet::from(["market".to_owned()]);
        let (a, b) = (
            hub.reserve_place(topics()).unwrap(),
            hub.reserve_place(topics()).unwrap(),
        );
        assert_eq!(
            hub.take_wanted_topics(),
            BTreeMap::from([("market".to_owned(), true)])
        );
        assert_eq!(
            hub.take_wanted_topics(),
            BTreeMap::from([("market".to_owned(), false)])
        );
        drop(a);
        assert_eq!(hub.take_wanted_topics().len(), 1);
        drop(b);
        assert!(hub.take_wanted_topics().is_empty());
    }
}
