//! Predicts which contents a provider will need next, from the order of its earlier works. A work
//! is the use of one model, named by the model's content id.
//!
//! Repeated work needs the same model: its weights are most of the data that it reads, and between
//! two runs other work can evict them. This module counts which work follows which, so that an idle
//! node can bring back the likely next contents in advance. A wrong prediction costs only a
//! transfer for which no caller waits.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::ContentId;

/// The most works to remember; beyond them the one seen longest ago goes.
pub const WORKS_MAX: usize = 256;

/// The most contents to remember of one work.
pub const CONTENTS_MAX: usize = 4096;

/// The most followers to count of one work; beyond them the rarest goes.
const FOLLOWERS_MAX: usize = 8;

/// When a count reaches this, all counts are halved, so that a new pattern can outgrow an old one.
const COUNT_MAX: u32 = 16;

/// A follower is predicted if it followed at least one in this many times.
const GUESSED_SHARE: u32 = 4;

/// The order of earlier works.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefetchPredictor {
    /// The works by the id that names each, for example that of its model.
    works: BTreeMap<ContentId, WorkRecord>,
    /// The works by their last run, the longest ago first.
    order: VecDeque<ContentId>,
}

/// The record of one work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct WorkRecord {
    /// The contents that it needed at its last run.
    contents: Vec<ContentId>,
    /// How often each other work followed it.
    followers: BTreeMap<ContentId, u32>,
}

impl PrefetchPredictor {
    /// Records that a work begins and needs these contents.
    pub fn on_work(&mut self, work: ContentId, contents: impl IntoIterator<Item = ContentId>) {
        if let Some(before) = self.order.back().and_then(|last| self.works.get_mut(last)) {
            before.followed_by(work);
        }
        let known = self.works.entry(work).or_default();
        known.contents = contents.into_iter().take(CONTENTS_MAX).collect();
        self.order.retain(|other| *other != work);
        self.order.push_back(work);
        if self.order.len() > WORKS_MAX
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

    /// Returns the contents that the frequent followers of the last work need, the most frequent
    /// first, each once.
    #[must_use]
    pub fn next(&self) -> Vec<ContentId> {
        let last = self.order.back().and_then(|last| self.works.get(last));
        let Some(last) = last else { return Vec::new() };
        let all: u32 = last.followers.values().sum();
        let often = |(_, count): &(&ContentId, &u32)| **count * GUESSED_SHARE >= all;
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

    /// Returns whether [`PrefetchPredictor::on_work`] could have produced this value, because a
    /// file can hold anything. You must ask this before you use a value from a file.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let in_order = |work| self.order.iter().filter(|other| *other == work).count() == 1;
        let bounded = |work: &WorkRecord| {
            work.contents.len() <= CONTENTS_MAX
                && work.followers.len() <= FOLLOWERS_MAX
                && work.followers.values().all(|count| *count < COUNT_MAX)
        };
        self.works.len() == self.order.len()
            && self.works.len() <= WORKS_MAX
            && self.works.keys().all(in_order)
            && self.works.values().all(bounded)
    }
}

impl WorkRecord {
    fn followed_by(&mut self, work: ContentId) {
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
            predictor.on_work(id(*work), weights(*work));
        }
        predictor.next()
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
                predictor.on_work(id(*work), weights(*work));
            }
            prop_assert!(predictor.is_sound());
            prop_assert!(predictor.next().len() <= CONTENTS_MAX + 2);
            let text = serde_json::to_string(&predictor).unwrap();
            let read: PrefetchPredictor = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(read, predictor);
        }
    }

    #[test]
    fn a_file_that_says_more_than_there_may_be_is_not_sound() {
        let mut predictor = PrefetchPredictor::default();
        predictor.on_work(id(1), weights(1));
        predictor.order.push_back(id(1));
        assert!(!predictor.is_sound());
        assert!(PrefetchPredictor::default().is_sound());
    }
}
