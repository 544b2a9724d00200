//! Decides which tree heads a validator cosigns, and collects the others' cosignatures.
//!
//! A validator signs only heads that it reached by applying the log itself, each larger than the
//! last one it signed; so it never signs two roots of one size. Its journal holds the last one, and
//! is durable before the signature leaves. A head is *certified* once more than two thirds of the
//! validators have signed it ([`certifying_count`]).

use std::collections::{BTreeMap, BTreeSet};

use souk_consensus::{Digest, TreeHead};
use souk_market::{MarketId, SigningKey};
use souk_proof::note::{
    Cosignature, Cosigners, NoteFault, SIGNATURES_MAX, TreeNote, certifying_count,
};

use super::contradictions::Contradictions;
use crate::market::roster::{Roster, SEATS_MAX};

/// The heads for which this validator collects cosignatures: some seconds of a busy market.
const HEADS_MAX: usize = 32;

/// The notes of one validator that wait until this one reaches their heads.
const EARLY_MAX: usize = 8;

// A note has room for every validator several times.
const _: () = assert!(4 * SEATS_MAX <= SIGNATURES_MAX);

/// Returns the validators of a roster whose cosignatures count: the founders, and those that have
/// begun since, unless they leave.
#[must_use]
pub fn list_cosigners(roster: &Roster) -> Cosigners {
    let entries = roster.entries().iter();
    let counts = entries.filter(|(_, it)| !it.leaving && (it.begun || it.admission.is_empty()));
    counts.map(|(id, it)| (*id, it.account)).collect()
}

/// An event around the cosigner.
#[derive(Debug)]
pub enum CosigningEvent<'a> {
    /// The replica reached a head by applying the log; these are the validators that count.
    Reached(TreeHead, Cosigners),
    /// A validator sent a note. The transport authenticated it, and its signatures prove the rest.
    Heard(u64, &'a [u8]),
}

/// An effect that the cosigner requests, in order. If one fails, those after it must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CosigningEffect {
    /// Make this note durable as the journal, in place of the last one.
    Journal(String),
    /// Send this note to these validators. It may get lost: a later head replaces it.
    Send(Vec<u64>, String),
    /// Store the certified note for readers of the folder.
    StoreCertified(TreeNote),
    /// Tell people about it.
    Report(CosigningReport),
}

/// A finding that people must see.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CosigningReport {
    /// This replica reached another root or state than it signed before.
    #[error(
        "this validator signed the {part} {signed} for {size} leaves and now reaches {reached}: it \
         signs nothing more until its folder is restored"
    )]
    OwnRoot {
        /// What differs: "root" of the history, or "state".
        part: &'static str,
        /// The number of leaves.
        size: u64,
        /// The root that it signed.
        signed: Digest,
        /// The root that it reached now.
        reached: Digest,
    },
    /// A validator signed a head that contradicts this validator's.
    #[error("validator {by} signed another {part} for {size} leaves: {theirs}, not {mine}")]
    Conflict {
        /// The raft id of the validator that signed it.
        by: u64,
        /// What differs: "root" of the history, or "state".
        part: &'static str,
        /// The number of leaves.
        size: u64,
        /// This validator's root, of the history or the state.
        mine: Digest,
        /// The root in the other note.
        theirs: Digest,
    },
}

/// The cosigner of one validator.
#[derive(Debug)]
pub struct Cosigner {
    market: MarketId,
    me: u64,
    key: SigningKey,
    members: Cosigners,
    /// The last note that it signed, with its own signature alone.
    journal: Option<TreeNote>,
    /// Whether it reached another root than it signed.
    is_stopped: bool,
    /// The heads that it reached since the start, by size.
    heads: BTreeMap<u64, TreeNote>,
    early: BTreeMap<u64, Vec<TreeNote>>,
    certified: Option<TreeNote>,
    contradictions: Contradictions,
    /// The size and the signer of each contradiction that it passed on, among those of `heads`.
    echoed: BTreeSet<(u64, u64)>,
}

/// What a validator can show of the heads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignedHeads {
    /// The last head that it signed, with all cosignatures that it has.
    pub latest: Option<TreeNote>,
    /// The last certified head.
    pub certified: Option<TreeNote>,
    /// Notes of which two have one size and different roots.
    pub conflicts: Vec<TreeNote>,
}

impl Cosigner {
    /// Creates the cosigner of a validator from its journal and the certified note in its folder.
    ///
    /// # Errors
    /// If the journal is not a note of this market that this validator signed. It must not be
    /// ignored: it says what the validator has promised.
    pub fn new(
        market: MarketId,
        me: u64,
        key: SigningKey,
        journal: Option<&[u8]>,
        certified: Option<&[u8]>,
    ) -> Result<Self, JournalFault> {
        let journal = journal.map(TreeNote::decode).transpose()?;
        if let Some(note) = &journal {
            let mine = Cosigners::from([(me, (&key).into())]);
            if note.market != market || note.list_signers(&mine) != [me] {
                return Err(JournalFault::Foreign);
            }
        }
        let certified = certified.and_then(|bytes| TreeNote::decode(bytes).ok());
        Ok(Self {
            market,
            me,
            key,
            members: Cosigners::new(),
            journal,
            is_stopped: false,
            heads: BTreeMap::new(),
            early: BTreeMap::new(),
            certified: certified.filter(|note| note.market == market),
            contradictions: Contradictions::default(),
            echoed: BTreeSet::new(),
        })
    }

    /// Applies an event; `now_s` is the validator's clock in seconds since 1970.
    pub fn apply(&mut self, now_s: u64, event: CosigningEvent<'_>) -> Vec<CosigningEffect> {
        let mut effects = Vec::new();
        match event {
            CosigningEvent::Reached(head, members) => {
                self.members = members;
                self.on_reached(now_s, head, &mut effects);
            }
            CosigningEvent::Heard(from, bytes) => {
                let note = TreeNote::decode(bytes).ok();
                if let Some(note) = note.filter(|note| note.market == self.market) {
                    self.on_heard(from, note, &mut effects);
                }
            }
        }
        effects
    }

    /// Returns what it can show.
    #[must_use]
    pub fn signed_heads(&self) -> SignedHeads {
        let latest = self.journal.as_ref().map(|mine| {
            let collected = self.heads.get(&mine.head.size);
            collected.unwrap_or(mine).clone()
        });
        SignedHeads {
            latest,
            certified: self.certified.clone(),
            conflicts: self.contradictions.list_notes(),
        }
    }

    fn on_reached(&mut self, now_s: u64, head: TreeHead, effects: &mut Vec<CosigningEffect>) {
        let signed = self.journal.as_ref().map(|note| note.head);
        if let Some(signed) = signed.filter(|signed| signed.size == head.size) {
            // An earlier release signed heads without a state.
            let state = signed.state.and(head.state);
            if signed != (TreeHead { state, ..head }) {
                self.is_stopped = true;
                let (part, signed, reached) = find_difference(&signed, &head);
                effects.push(CosigningEffect::Report(CosigningReport::OwnRoot {
                    part,
                    size: head.size,
                    signed,
                    reached,
                }));
            }
        }
        let is_news = signed.is_none_or(|signed| signed.size < head.size);
        if self.is_stopped || !is_news || !self.members.contains_key(&self.me) {
            return;
        }
        let mut note = TreeNote::new(self.market, head);
        note.insert(note.cosign(self.me, now_s, &self.key));
        let others = self.members.keys().copied().filter(|id| *id != self.me);
        effects.push(CosigningEffect::Journal(note.encode()));
        effects.push(CosigningEffect::Send(others.collect(), note.encode()));
        self.journal = Some(note.clone());
        self.heads.insert(head.size, note);
        if self.heads.len() > HEADS_MAX {
            self.heads.pop_first();
            let oldest = self.heads.keys().next().copied().unwrap_or(0);
            self.echoed = self.echoed.split_off(&(oldest, 0));
        }
        let early = std::mem::take(&mut self.early);
        for (from, notes) in early {
            for note in notes {
                self.on_heard(from, note, effects);
            }
        }
        self.certify(head.size, effects);
    }

    fn on_heard(&mut self, from: u64, note: TreeNote, effects: &mut Vec<CosigningEffect>) {
        let size = note.head.size;
        let reached = self.journal.as_ref().map_or(0, |mine| mine.head.size);
        if size > reached {
            let waiting = self.early.entry(from).or_default();
            waiting.push(note);
            if waiting.len() > EARLY_MAX {
                waiting.remove(0);
            }
            return;
        }
        let signers = note.list_signers(&self.members);
        // It keeps and shows no signature that it has not checked.
        let valid = note.cosignatures.iter();
        let valid = valid.filter(|it| signers.contains(&it.by));
        let valid: Vec<Cosignature> = valid.copied().collect();
        let Some(mine) = self.heads.get_mut(&size) else {
            return;
        };
        if mine.head == note.head {
            valid.iter().for_each(|it| mine.insert(*it));
            self.contradictions.add_signatures(&note.head, &valid);
            return self.certify(size, effects);
        }
        if !mine.head.contradicts(&note.head) {
            return;
        }
        let first_seen = valid.iter().map(|it| it.by);
        let is_first =
            |by: &u64| !self.contradictions.has_any_of(*by) && !self.echoed.contains(&(size, *by));
        let first_seen = first_seen.filter(is_first);
        let first_seen: Vec<u64> = first_seen.collect();
        let news = self.contradictions.insert(mine, &note, &valid);
        let (part, mine, theirs) = find_difference(&mine.head, &note.head);
        for by in first_seen {
            effects.push(CosigningEffect::Report(CosigningReport::Conflict {
                by,
                part,
                size,
                mine,
                theirs,
            }));
        }
        // Another validator may have the right head under the same signature. Both convict the
        // signer, and who has both keeps them.
        let is_echo = |it: &Cosignature| news.contains(&it.by) && self.echoed.insert((size, it.by));
        let mut evidence = TreeNote::new(self.market, note.head);
        evidence.cosignatures = valid.into_iter().filter(is_echo).collect();
        if !evidence.cosignatures.is_empty() {
            let others = self.members.keys().copied();
            let others = others.filter(|id| *id != self.me && *id != from);
            effects.push(CosigningEffect::Send(others.collect(), evidence.encode()));
        }
    }

    /// Certifies a head if enough validators have signed it.
    fn certify(&mut self, size: u64, effects: &mut Vec<CosigningEffect>) {
        let Some(note) = self.heads.get(&size) else {
            return;
        };
        let last = self.certified.as_ref();
        let is_news = last.is_none_or(|last| match last.head.size == size {
            true => last.cosignatures.len() < note.cosignatures.len(),
            false => last.head.size < size,
        });
        let signers = note.list_signers(&self.members);
        if is_news && signers.len() >= certifying_count(self.members.len()) {
            effects.push(CosigningEffect::StoreCertified(note.clone()));
            self.certified = Some(note.clone());
        }
    }
}

/// Returns which root of two heads of one size differs, and both.
fn find_difference(one: &TreeHead, other: &TreeHead) -> (&'static str, Digest, Digest) {
    match (one.state, other.state) {
        (Some(mine), Some(theirs)) if one.root == other.root && mine != theirs => {
            ("state", mine, theirs)
        }
        _ => ("root", one.root, other.root),
    }
}

/// Why a journal cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalFault {
    /// It is not a note.
    #[error(transparent)]
    Note(#[from] NoteFault),
    /// Another validator signed it, or nobody, or it is of another market.
    #[error("this validator did not sign it for this market")]
    Foreign,
}

#[cfg(test)]
mod tests {
    use souk_consensus::{LogIndex, LogTime};
    use souk_market::AccountKey;

    use super::*;

    const MARKET: MarketId = MarketId([5; 32]);

    fn key(by: u64) -> SigningKey {
        SigningKey::from_bytes(&[by as u8; 32])
    }

    fn members() -> Cosigners {
        (1..=4).map(|by| (by, AccountKey::from(&key(by)))).collect()
    }

    fn head(size: u64, root: u8) -> TreeHead {
        TreeHead {
            index: LogIndex(size),
            time: LogTime(250 * size),
            size,
            root: Digest([root; 32]),
            state: Some(Digest([3; 32])),
        }
    }

    fn cosigner(journal: Option<&str>) -> Cosigner {
        let journal = journal.map(str::as_bytes);
        Cosigner::new(MARKET, 1, key(1), journal, None).unwrap()
    }

    fn reach(cosigner: &mut Cosigner, size: u64, root: u8) -> Vec<CosigningEffect> {
        cosigner.apply(9, CosigningEvent::Reached(head(size, root), members()))
    }

    fn note_of(by: u64, size: u64, root: u8) -> String {
        let mut note = TreeNote::new(MARKET, head(size, root));
        note.insert(note.cosign(by, 9, &key(by)));
        note.encode()
    }

    fn hear(cosigner: &mut Cosigner, by: u64, size: u64, root: u8) -> Vec<CosigningEffect> {
        let note = note_of(by, size, root);
        cosigner.apply(9, CosigningEvent::Heard(by, note.as_bytes()))
    }

    fn certified_size(cosigner: &Cosigner) -> Option<u64> {
        cosigner.signed_heads().certified.map(|note| note.head.size)
    }

    #[test]
    fn a_head_is_journaled_before_it_is_sent_and_certified_by_three_of_four() {
        let mut one = cosigner(None);
        let effects = reach(&mut one, 7, 1);
        let note = note_of(1, 7, 1);
        assert_eq!(effects[0], CosigningEffect::Journal(note.clone()));
        assert_eq!(effects[1], CosigningEffect::Send(vec![2, 3, 4], note));
        assert!(hear(&mut one, 2, 7, 1).is_empty());
        assert_eq!(certified_size(&one), None);
        let effects = hear(&mut one, 4, 7, 1);
        assert!(matches!(effects[..], [CosigningEffect::StoreCertified(_)]));
        assert_eq!(certified_size(&one), Some(7));
        hear(&mut one, 3, 7, 1);
        let certified = one.signed_heads().certified.unwrap();
        assert_eq!(certified.list_signers(&members()), [1, 2, 3, 4]);
    }

    #[test]
    fn notes_that_come_before_the_head_count_once_it_is_reached() {
        let mut one = cosigner(None);
        reach(&mut one, 3, 1);
        for by in [2, 3] {
            assert!(hear(&mut one, by, 7, 1).is_empty());
        }
        for size in 8..100 {
            hear(&mut one, 4, size, 9);
        }
        assert_eq!(one.early[&4].len(), EARLY_MAX);
        reach(&mut one, 7, 1);
        assert_eq!(certified_size(&one), Some(7));
    }

    #[test]
    fn a_validator_never_signs_two_roots_of_one_size_even_after_a_restart() {
        let mut one = cosigner(None);
        let effects = reach(&mut one, 7, 1);
        let CosigningEffect::Journal(journal) = &effects[0] else {
            panic!("{effects:?}");
        };
        for cosigner in [&mut one, &mut cosigner(Some(journal))] {
            assert!(reach(cosigner, 7, 1).is_empty(), "it has signed that");
            assert!(
                reach(cosigner, 6, 2).is_empty(),
                "a smaller one is not signed again"
            );
            let effects = reach(cosigner, 7, 2);
            assert!(
                matches!(
                    effects[..],
                    [CosigningEffect::Report(CosigningReport::OwnRoot { .. })]
                ),
                "{effects:?}"
            );
            assert!(reach(cosigner, 8, 2).is_empty(), "it cannot trust itself");
        }
    }

    #[test]
    fn a_journal_of_another_validator_or_a_damaged_one_is_refused() {
        let made = |journal: &str| {
            Cosigner::new(MARKET, 1, key(1), Some(journal.as_bytes()), None).map(|_| ())
        };
        assert_eq!(made(&note_of(1, 7, 1)), Ok(()));
        assert_eq!(made(&note_of(2, 7, 1)), Err(JournalFault::Foreign));
        assert!(made(&note_of(1, 7, 1)[..90]).is_err());
        assert!(made("").is_err());
    }

    #[test]
    fn another_root_of_one_size_is_kept_as_evidence_and_counts_for_nothing() {
        let mut one = cosigner(None);
        reach(&mut one, 7, 1);
        hear(&mut one, 2, 7, 1);
        let effects = hear(&mut one, 3, 7, 2);
        let [
            CosigningEffect::Report(CosigningReport::Conflict { by: 3, .. }),
            echo,
        ] = &effects[..]
        else {
            panic!("{effects:?}");
        };
        let echoed = CosigningEffect::Send(vec![2, 4], note_of(3, 7, 2));
        assert_eq!(*echo, echoed, "the others hear of it");
        assert!(hear(&mut one, 3, 7, 2).is_empty(), "it is known");
        assert_eq!(certified_size(&one), None);
        hear(&mut one, 3, 7, 1);
        let heads = one.signed_heads();
        assert_eq!(certified_size(&one), Some(7));
        let roots: Vec<Digest> = heads.conflicts.iter().map(|it| it.head.root).collect();
        assert_eq!(roots, [Digest([1; 32]), Digest([2; 32])]);
    }

    /// A liar sends two validators different heads: each has half of the evidence.
    #[test]
    fn an_echo_brings_the_validator_that_heard_the_right_head_both() {
        let mut one = cosigner(None);
        reach(&mut one, 7, 1);
        hear(&mut one, 3, 7, 1);
        let lie = note_of(3, 7, 2);
        let effects = one.apply(9, CosigningEvent::Heard(2, lie.as_bytes()));
        let to_last = CosigningEffect::Send(vec![3, 4], lie);
        assert_eq!(effects.last(), Some(&to_last), "not to the sender");
        for (size, root) in [(7, 4), (8, 5), (9, 6)] {
            reach(&mut one, size, 1);
            assert!(hear(&mut one, 3, size, root).is_empty(), "it is convicted");
        }
        let heads = one.signed_heads();
        let by_both = heads
            .conflicts
            .iter()
            .filter(|it| it.list_signers(&members()).contains(&3));
        assert_eq!((by_both.count(), heads.conflicts.len()), (2, 2));
    }

    /// Nobody gets an endless number of messages out of this one by what it signs.
    #[test]
    fn one_head_of_a_size_is_passed_on_for_each_signer() {
        let mut one = cosigner(None);
        reach(&mut one, 7, 1);
        let sends = |effects: Vec<CosigningEffect>| {
            let sends = effects.into_iter();
            sends
                .filter(|it| matches!(it, CosigningEffect::Send(..)))
                .count()
        };
        let first: usize = (2..60).map(|root| sends(hear(&mut one, 3, 7, root))).sum();
        let again: usize = (2..60).map(|root| sends(hear(&mut one, 3, 7, root))).sum();
        assert_eq!((first, again), (1, 0));
        reach(&mut one, 8, 1);
        assert_eq!(sends(hear(&mut one, 3, 8, 2)), 1);
    }

    #[test]
    fn all_who_sign_the_same_other_root_are_kept() {
        let mut one = cosigner(None);
        reach(&mut one, 7, 1);
        for by in [3, 2] {
            hear(&mut one, by, 7, 2);
        }
        let heads = one.signed_heads();
        assert_eq!(heads.conflicts[1].list_signers(&members()), [2, 3]);
    }

    #[test]
    fn another_state_of_one_size_convicts_as_another_root_does() {
        let mut one = cosigner(None);
        reach(&mut one, 7, 1);
        let state = Some(Digest([9; 32]));
        let mut note = TreeNote::new(
            MARKET,
            TreeHead {
                state,
                ..head(7, 1)
            },
        );
        note.insert(note.cosign(2, 9, &key(2)));
        let text = note.encode();
        let heard = CosigningEvent::Heard(2, text.as_bytes());
        let effects = one.apply(9, heard);
        let report = CosigningReport::Conflict {
            by: 2,
            part: "state",
            size: 7,
            mine: Digest([3; 32]),
            theirs: Digest([9; 32]),
        };
        assert_eq!(effects[0], CosigningEffect::Report(report));
        assert_eq!(one.signed_heads().conflicts.len(), 2);
        let reached = CosigningEvent::Reached(note.head, members());
        let effects = one.apply(9, reached);
        assert!(
            matches!(
                effects[..],
                [CosigningEffect::Report(CosigningReport::OwnRoot {
                    part: "state",
                    ..
                })]
            ),
            "{effects:?}"
        );
    }

    #[test]
    fn a_journal_of_a_release_without_states_stops_nobody() {
        let old = TreeHead {
            state: None,
            ..head(7, 1)
        };
        let mut note = TreeNote::new(MARKET, old);
        note.insert(note.cosign(1, 9, &key(1)));
        let mut one = cosigner(Some(&note.encode()));
        assert!(reach(&mut one, 7, 1).is_empty(), "it has signed that size");
        assert_eq!(reach(&mut one, 8, 1).len(), 2, "the next head has a state");
        let mut other = cosigner(Some(&note.encode()));
        assert_eq!(reach(&mut other, 7, 2).len(), 1, "another root is one");
    }

    #[test]
    fn a_stranger_s_note_and_one_signed_by_another_key_count_for_nothing() {
        let mut one = cosigner(None);
        reach(&mut one, 7, 1);
        hear(&mut one, 9, 7, 1);
        let mut note = TreeNote::new(MARKET, head(7, 1));
        note.insert(note.cosign(2, 9, &key(9)));
        note.insert(note.cosign(3, 9, &key(9)));
        note.insert(note.cosign(4, 9, &key(9)));
        let text = note.encode();
        assert!(
            one.apply(9, CosigningEvent::Heard(2, text.as_bytes()))
                .is_empty()
        );
        assert_eq!(certified_size(&one), None);
        let latest = one.signed_heads().latest.unwrap();
        assert_eq!(latest.cosignatures.len(), 1);
    }

    #[test]
    fn one_that_is_no_member_signs_nothing() {
        let mut one = cosigner(None);
        let others = members().into_iter().filter(|(by, _)| *by != 1).collect();
        let event = CosigningEvent::Reached(head(7, 1), others);
        assert!(one.apply(9, event).is_empty());
    }
}
