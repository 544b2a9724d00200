//! Predicts which contents a provider will need next, from the order of its earlier runs. A run is
//! named by the content id of the graph that it runs, so runs of the same graph have the same id.
//!
//! Runs of the same graph read the same weights, which are most of their data, and other runs can
//! evict these weights from memory in between. This module counts which graph follows which, so
//! that the node can load the contents that are probably needed next. A wrong prediction costs only
//! a transfer for which no caller waits.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::ContentId;

/// The maximum number of graphs to remember. Beyond it, the predictor forgets the one that ran the
/// longest ago.
pub const GRAPHS_MAX: usize = 256;

/// The maximum number of contents to remember for one graph.
pub const CONTENTS_MAX: usize = 4096;

/// The maximum number of followers to count for one graph. Beyond it, the predictor forgets the
/// rarest.
const FOLLOWERS_MAX: usize = 8;

/// When the count of one follower reaches this, the predictor halves all counts of that graph, so
/// that a new pattern can outgrow an old one.
const COUNT_MAX: u32 = 16;

/// The predictor predicts a follower that came in at least one of this many cases (4: a quarter).
const PREDICTED_ONE_IN: u32 = 4;

/// The graphs of earlier runs, with their contents and followers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefetchPredictor {
    /// The record of each graph, by its content id.
    works: BTreeMap<ContentId, GraphRecord>,
    /// The graphs in the order of their last runs, the oldest first.
    order: VecDeque<ContentId>,
}

/// The record of one graph.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct GraphRecord {
    /// The contents that its last run needed.
    contents: Vec<ContentId>,
    /// How often each graph, which can be the same one, ran next.
    followers: BTreeMap<ContentId, u32>,
}

impl PrefetchPredictor {
    /// Records that a run of the graph `work` begins and needs these contents.
    pub fn record_run(&mut self, work: ContentId, contents: impl IntoIterator<Item = ContentId>) {
        if let Some(before) = self.order.back().and_then(|last| self.works.get_mut(last)) {
            before.count_follower(work);
        }
        let known = self.works.entry(work).or_default();
        known.contents = contents.into_iter().take(CONTENTS_MAX).collect();
        self.order.retain(|other| *other != work);
        self.order.push_back(work);
        if self.order.len() > GRAPHS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.works.remove(&oldest);
        }
        assert_eq!(
            self.works.len(),
            self.order.len(),
            "each work has one place in the order"
        );
    }

    /// Returns the contents that the frequent followers of the last run need, those of the most
    /// frequent follower first, each content once.
    #[must_use]
    pub fn predict_contents(&self) -> Vec<ContentId> {
        let last = self.order.back().and_then(|last| self.works.get(last));
        let Some(last) = last else { return Vec::new() };
        let all: u32 = last.followers.values().sum();
        let often = |(_, count): &(&ContentId, &u32)| **count * PREDICTED_ONE_IN >= all;
        let mut likely: Vec<_> = last.followers.iter().filter(often).collect();
        likely.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let mut next = Vec::new();
        for work in likely.iter().filter_map(|(id, _)| self.works.get(id)) {
            for content in &work.contents {
                if !next.contains(content) {
                    next.push(*content);
                }
            }
            if next.len() >= CONTENTS_MAX {
                break;
            }
        }
        next
    }

    /// Returns whether the value keeps all bounds of this module. A file can be damaged, so you
    /// must check this before you use a value from a file.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let in_order = |work| self.order.iter().filter(|other| *other == work).count() == 1;
        let bounded = |work: &GraphRecord| {
            work.contents.len() <= CONTENTS_MAX
                && work.followers.len() <= FOLLOWERS_MAX
                && work.followers.values().all(|count| *count < COUNT_MAX)
        };
        self.works.len() == self.order.len()
            && self.works.len() <= GRAPHS_MAX
            && self.works.keys().all(in_order)
            && self.works.values().all(bounded)
    }
}

impl GraphRecord {
    fn count_follower(&mut self, work: ContentId) {
        let known = self.followers.contains_key(&work);
        if !known && self.followers.len() == FOLLOWERS_MAX {
            let rarest = self.followers.iter().min_by_key(|(_, count)| **count);
            if let Some(rarest) = rarest.map(|(id, _)| *id) {
                self.followers.remove(&rarest);
            }
        }
        let count = self.followers.entry(work).or_insert(0);
        *count += 1;
        if *count == COUNT_MAX {
            self.followers.values_mut().for_each(|count| *count /= 2);
            self.followers.retain(|_, count| *count > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(n: u16) -> ContentId {
        ContentId::for_content(&n.to_le_bytes())
    }

    fn weights(work: u16) -> [ContentId; 2] {
        [id(work), id(1000 + work)]
    }

    fn after(works: &[u16]) -> Vec<ContentId> {
        let mut predictor = PrefetchPredictor::default();
        for work in works {
            predictor.record_run(id(*work), weights(*work));
        }
        predictor.predict_contents()
    }

    #[test]
    fn what_followed_before_is_what_follows() {
        assert_eq!(after(&[]), []);
        assert_eq!(after(&[1, 2, 3]), [], "nothing has followed the third yet");
        assert_eq!(after(&[1, 2, 3, 1]), weights(2));
        assert_eq!(
            after(&[1, 1]),
            weights(1),
            "a work that comes again and again"
        );
    }

    #[test]
    fn the_likeliest_comes_first_and_the_rare_not_at_all() {
        let often = [1, 2, 1, 2, 1, 3, 1, 2, 1, 3, 1];
        assert_eq!(after(&often), [weights(2), weights(3)].concat());
        let rare = [1, 2, 1, 2, 1, 2, 1, 2, 1, 3, 1];
        assert_eq!(after(&rare), weights(2));
    }

    #[test]
    fn a_new_habit_outgrows_an_old_one() {
        let mut works = [1, 2].repeat(1000);
        works.extend([1, 3].repeat(2 * COUNT_MAX as usize));
        works.push(1);
        assert_eq!(after(&works), weights(3));
    }

    proptest! {
        #[test]
        fn whatever_comes_is_bounded_and_survives_a_file(
            works in prop::collection::vec(0_u16..600, 0..1500),
        ) {
            let mut predictor = PrefetchPredictor::default();
            for work in &works {
                predictor.record_run(id(*work), weights(*work));
            }
            prop_assert!(predictor.is_sound());
            prop_assert!(predictor.predict_contents().len() <= CONTENTS_MAX + 2);
            let text = serde_json::to_string(&predictor).unwrap();
            let read: PrefetchPredictor = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(read, predictor);
        }
    }

    #[test]
    fn a_file_that_says_more_than_there_may_be_is_not_sound() {
        let mut predictor = PrefetchPredictor::default();
        predictor.record_run(id(1), weights(1));
        predictor.order.push_back(id(1));
        assert!(!predictor.is_sound());
        assert!(PrefetchPredictor::default().is_sound());
    }
}
