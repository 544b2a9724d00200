//! Keeps the signed heads that contradict a validator's own, as evidence that clients ask for. The
//! validator's cosigner fills it.
//!
//! Its room is bounded, and shared fairly: a validator that signs one contradiction after the other
//! displaces its own, and not that of another validator. A pair of heads that one validator signed
//! both convicts it. Such a pair stays, and no other of the same validators is kept.

use std::collections::{BTreeMap, BTreeSet};

use souk_proof::TreeHead;
use souk_proof::note::{Cosignature, TreeNote};

/// The contradictions that a validator keeps. Clients read as many from an answer.
pub(super) const CONTRADICTIONS_MAX: usize = 8;

/// Two heads of one size with different roots, under valid signatures alone.
#[derive(Debug)]
struct Contradiction {
    /// The head that this validator reached.
    mine: TreeNote,
    /// The other one.
    theirs: TreeNote,
}

impl Contradiction {
    fn is_signed_by(&self, by: u64) -> bool {
        self.theirs.cosignatures.iter().any(|it| it.by == by)
    }

    /// Returns the validators that signed both heads.
    fn list_liars(&self) -> impl Iterator<Item = u64> {
        let mine = self.mine.cosignatures.iter().map(|it| it.by);
        mine.filter(|by| self.is_signed_by(*by))
    }
}

/// The contradictions that a validator has seen: first those that convict, each group the oldest
/// first.
#[derive(Debug, Default)]
pub(super) struct Contradictions(Vec<Contradiction>);

impl Contradictions {
    /// Keeps a head that contradicts the validator's own, and returns the validators of whose
    /// signatures it did not know yet. `signed` are the valid signatures of `theirs`.
    pub(super) fn insert(
        &mut self,
        mine: &TreeNote,
        theirs: &TreeNote,
        signed: &[Cosignature],
    ) -> Vec<u64> {
        let is_news = |it: &&Cosignature| !self.knows(it.by, &theirs.head);
        let news: Vec<Cosignature> = signed.iter().filter(is_news).copied().collect();
        if news.is_empty() {
            return Vec::new();
        }
        match self.0.iter_mut().find(|it| it.theirs.head == theirs.head) {
            Some(kept) => news.iter().for_each(|it| kept.theirs.insert(*it)),
            None => {
                let mut evidence = TreeNote::new(theirs.market, theirs.head);
                news.iter().for_each(|it| evidence.insert(*it));
                self.0.push(Contradiction {
                    mine: mine.clone(),
                    theirs: evidence,
                });
            }
        }
        self.drop_needless();
        self.make_room();
        news.iter().map(|it| it.by).collect()
    }

    /// Returns whether a contradiction of this validator is kept.
    pub(super) fn has_any_of(&self, by: u64) -> bool {
        self.0.iter().any(|it| it.is_signed_by(by))
    }

    /// Adds signatures to the validator's own head, where it is half of a contradiction.
    pub(super) fn add_signatures(&mut self, head: &TreeHead, signed: &[Cosignature]) {
        for kept in self.0.iter_mut().filter(|it| it.mine.head == *head) {
            signed.iter().for_each(|it| kept.mine.insert(*it));
        }
        self.drop_needless();
    }

    /// Drops the contradictions whose signers are all convicted by those before.
    fn drop_needless(&mut self) {
        let mut convicted = BTreeSet::new();
        self.0.sort_by_key(|it| it.list_liars().next().is_none());
        self.0.retain(|it| {
            let signers = it.theirs.cosignatures.iter();
            let is_needed = signers.into_iter().any(|it| !convicted.contains(&it.by));
            convicted.extend(it.list_liars());
            is_needed
        });
    }

    /// Returns the notes, each once: each contradiction is two of them.
    pub(super) fn list_notes(&self) -> Vec<TreeNote> {
        let mut notes: Vec<TreeNote> = Vec::new();
        for kept in &self.0 {
            if !notes.iter().any(|it| it.head == kept.mine.head) {
                notes.push(kept.mine.clone());
            }
            notes.push(kept.theirs.clone());
        }
        notes
    }

    /// Returns whether a contradiction shows this signature, or convicts who made it.
    fn knows(&self, by: u64, head: &TreeHead) -> bool {
        self.0.iter().any(|it| {
            let is_shown = it.theirs.head == *head && it.is_signed_by(by);
            is_shown || it.list_liars().any(|liar| liar == by)
        })
    }

    /// Displaces a contradiction if there are too many: the oldest that convicts nobody, of the
    /// validator that signed most.
    fn make_room(&mut self) {
        if self.0.len() <= CONTRADICTIONS_MAX {
            return;
        }
        let mut counts = BTreeMap::<u64, usize>::new();
        for it in self.0.iter().flat_map(|it| &it.theirs.cosignatures) {
            *counts.entry(it.by).or_default() += 1;
        }
        // What a validator signed that signed little else must stay, whoever signed it as well.
        let rarest = |it: &Contradiction| {
            let signers = it.theirs.cosignatures.iter();
            signers.map(|it| counts[&it.by]).min()
        };
        let is_open = |it: &&Contradiction| it.list_liars().next().is_none();
        let displaced = self.0.iter().filter(is_open).map(rarest).max();
        let place = self
            .0
            .iter()
            .position(|it| is_open(&it) && Some(rarest(it)) == displaced);
        self.0.remove(place.unwrap_or(CONTRADICTIONS_MAX));
    }
}

#[cfg(test)]
mod tests {
    use souk_consensus::{Digest, LogIndex, LogTime};
    use souk_market::{MarketId, SigningKey};

    use super::*;

    fn note(size: u64, root: u8, by: &[u64]) -> TreeNote {
        let head = TreeHead {
            index: LogIndex(size),
            time: LogTime(250 * size),
            size,
            root: Digest([root; 32]),
            state: None,
        };
        let mut note = TreeNote::new(MarketId([5; 32]), head);
        for by in by {
            let key = SigningKey::from_bytes(&[*by as u8; 32]);
            note.insert(note.cosign(*by, 9, &key));
        }
        note
    }

    fn insert(kept: &mut Contradictions, size: u64, root: u8, by: &[u64]) -> Vec<u64> {
        let theirs = note(size, root, by);
        kept.insert(&note(size, 1, &[1]), &theirs, &theirs.cosignatures)
    }

    fn sizes(kept: &Contradictions) -> Vec<u64> {
        kept.0.iter().map(|it| it.theirs.head.size).collect()
    }

    #[test]
    fn a_validator_displaces_its_own_contradictions_and_not_anothers() {
        let mut kept = Contradictions::default();
        assert_eq!(insert(&mut kept, 1, 2, &[2]), [2]);
        for size in 2..40 {
            assert_eq!(insert(&mut kept, size, 3, &[3]), [3]);
        }
        assert_eq!(insert(&mut kept, 40, 4, &[4]), [4], "a late one has room");
        for size in 41..60 {
            insert(&mut kept, size, 3, &[3]);
        }
        assert_eq!(sizes(&kept), [1, 40, 54, 55, 56, 57, 58, 59]);
        assert_eq!(kept.list_notes().len(), 2 * CONTRADICTIONS_MAX);
    }

    #[test]
    fn a_pair_that_convicts_stays_and_its_liar_adds_no_more() {
        let mut kept = Contradictions::default();
        insert(&mut kept, 1, 2, &[2, 3]);
        let right = note(1, 1, &[2]);
        kept.add_signatures(&right.head, &right.cosignatures);
        for size in 2..40 {
            assert_eq!(insert(&mut kept, size, 3, &[2]), [] as [u64; 0]);
            assert_eq!(insert(&mut kept, size, 4, &[3]), [3]);
        }
        assert_eq!(sizes(&kept)[..2], [1, 33]);
        assert_eq!(kept.list_notes()[0].cosignatures.len(), 2);
    }

    #[test]
    fn a_signature_that_joins_another_s_head_can_convict() {
        let mut kept = Contradictions::default();
        for size in 1..4 {
            insert(&mut kept, size, 2, &[3]);
        }
        insert(&mut kept, 9, 2, &[4]);
        let right = note(9, 1, &[3]);
        kept.add_signatures(&right.head, &right.cosignatures);
        assert_eq!(insert(&mut kept, 9, 2, &[3]), [3]);
        assert_eq!(sizes(&kept), [9], "the others of 3 are needless");
    }

    /// A liar that signs the right heads after eight false ones must not fill the room for good.
    #[test]
    fn many_pairs_of_one_liar_leave_room_for_another() {
        let mut kept = Contradictions::default();
        for size in 1..9 {
            insert(&mut kept, size, 2, &[3]);
        }
        for size in 1..9 {
            let right = note(size, 1, &[3]);
            kept.add_signatures(&right.head, &right.cosignatures);
        }
        assert_eq!(sizes(&kept), [1]);
        assert_eq!(insert(&mut kept, 9, 2, &[4]), [4]);
        assert_eq!(insert(&mut kept, 9, 2, &[4]), [] as [u64; 0]);
        assert_eq!(sizes(&kept), [1, 9]);
    }

    #[test]
    fn a_signature_is_news_once_and_joins_the_others_of_its_head() {
        let mut kept = Contradictions::default();
        assert_eq!(insert(&mut kept, 7, 2, &[2]), [2]);
        assert_eq!(insert(&mut kept, 7, 2, &[2, 3]), [3]);
        assert_eq!(insert(&mut kept, 7, 2, &[3]), [] as [u64; 0]);
        assert_eq!(insert(&mut kept, 7, 4, &[4]), [4]);
        let notes = kept.list_notes();
        assert_eq!(notes.len(), 3, "the own head is shown once");
        assert_eq!(notes[1].cosignatures.len(), 2);
    }
}
