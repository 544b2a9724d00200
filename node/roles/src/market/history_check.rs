//! Checks the signed heads of a market's history that a client collected from validators. A head
//! states the size and the root hash of the log's Merkle tree. The check finds out who signed which
//! head, which head is certified, and whether validators signed two roots of one size, which proves
//! a lie.
//!
//! It trusts signatures alone. It does not matter who delivered a note (a head with its
//! cosignatures), and the cosignatures of one head count together wherever they came from.

use std::collections::BTreeMap;

use souk_market::{Genesis, MarketId};
use souk_proof::consistency::{self, Consistency};
use souk_proof::inclusion::ProofError;
use souk_proof::note::{Cosigners, CosigningRoster, TreeNote};
use souk_proof::{Digest, Tile, TileId, TreeHead};

use super::known_members::KnownMembers;
use super::market_protocol::Standing;

/// The most notes of one validator's answer that count: its latest head, the certified one, and
/// both heads of eight contradictions.
pub const ANSWER_NOTES_MAX: usize = 18;

/// Size, root, state, index and time of a head.
type HeadKey = (u64, Digest, Option<Digest>, u64, u64);

/// The most contradictions that one check names.
const FORKS_MAX: usize = 16;

/// Returns the validators whose cosignatures count, as far as signatures show who they are.
#[must_use]
pub fn list_known_cosigners(genesis: &Genesis, known: &KnownMembers) -> Cosigners {
    let is_founder = |raft_id| genesis.validators.iter().any(|it| it.raft_id == raft_id);
    let members = known.staying_members();
    let counts = members
        .filter(|it| it.standing != Standing::Leaving && (it.begun || is_founder(it.raft_id)));
    let mut cosigners = Cosigners::new();
    for member in counts {
        // A key counts once, whatever raft ids it states.
        if !cosigners.values().any(|account| *account == member.account) {
            cosigners.insert(member.raft_id, member.account);
        }
    }
    cosigners
}

/// A head that validators signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedHead {
    /// The note with the valid cosignatures of all sources, and no others.
    pub note: TreeNote,
    /// The validators that signed it, in order.
    pub signers: Vec<u64>,
}

impl SignedHead {
    /// Returns the head.
    #[must_use]
    pub fn head(&self) -> TreeHead {
        self.note.head
    }
}

/// Two signed heads of one size with different roots, of the history or the state: at least one
/// validator lied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The two heads.
    pub heads: [SignedHead; 2],
}

impl Fork {
    /// Returns the validators that signed both, which proves that each of them lied.
    #[must_use]
    pub fn liars(&self) -> Vec<u64> {
        let [one, other] = &self.heads;
        let both = one.signers.iter().filter(|it| other.signers.contains(it));
        both.copied().collect()
    }
}

/// What the gathered notes show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryCheck {
    /// The validators whose cosignatures count.
    pub members: Cosigners,
    /// How many of them must sign a head to certify it.
    pub needed: usize,
    /// The signed heads, the largest first.
    pub heads: Vec<SignedHead>,
    /// The pairs of signed heads that contradict each other.
    pub forks: Vec<Fork>,
}

impl HistoryCheck {
    /// Judges the notes of a market; it ignores those of others and those that no member signed.
    #[must_use]
    pub fn judge_notes(
        market: MarketId,
        roster: impl Into<CosigningRoster>,
        notes: &[TreeNote],
    ) -> Self {
        let roster = roster.into();
        let needed = roster.certifying_count();
        let members = roster.cosigners;
        // Cosignatures count together if they are under the same text.
        let mut found: BTreeMap<HeadKey, TreeNote> = BTreeMap::new();
        for note in notes.iter().filter(|note| note.market == market) {
            let signers = note.list_signers(&members);
            let TreeHead {
                index,
                time,
                size,
                root,
                state,
            } = note.head;
            let valid = note.cosignatures.iter();
            for signature in valid.filter(|it| signers.contains(&it.by)) {
                let known = found.entry((size, root, state, index.0, time.0));
                let known = known.or_insert_with(|| TreeNote::new(market, note.head));
                known.insert(*signature);
            }
        }
        let heads = found.into_values().rev().map(|note| SignedHead {
            signers: note.list_signers(&members),
            note,
        });
        let heads: Vec<SignedHead> = heads.collect();
        Self {
            needed,
            forks: find_forks(&heads),
            members,
            heads,
        }
    }

    /// Returns the largest certified head.
    #[must_use]
    pub fn find_certified(&self) -> Option<&SignedHead> {
        let certified = |it: &&SignedHead| it.signers.len() >= self.needed;
        self.heads.iter().find(certified)
    }

    /// Returns the validators that signed the one of two contradicting heads which is not
    /// certified, if the other one is. That convicts none of them: a validator can also be broken,
    /// or have followed a leader that lied.
    #[must_use]
    pub fn list_suspects(&self, one: &SignedHead, other: &SignedHead) -> Vec<u64> {
        let is_certified = |signed: &SignedHead| signed.signers.len() >= self.needed;
        match (is_certified(one), is_certified(other)) {
            (true, false) => other.signers.clone(),
            (false, true) => one.signers.clone(),
            _ => Vec::new(),
        }
    }

    /// Returns the largest head that a validator signed.
    #[must_use]
    pub fn latest_of(&self, validator: u64) -> Option<&SignedHead> {
        let signed = |it: &&SignedHead| it.signers.contains(&validator);
        self.heads.iter().find(signed)
    }

    /// Returns the proofs that would show that all heads are beginnings of one history: for each
    /// head one that the next larger head continues it. Of several next ones it takes that which
    /// most validators signed.
    #[must_use]
    pub fn plan_proofs(&self) -> Vec<ContinuationCheck> {
        let next = |from: &SignedHead| {
            let larger = self
                .heads
                .iter()
                .filter(|it| from.head().size < it.head().size);
            let size = larger.map(|it| it.head().size).min()?;
            let at_size = self.heads.iter().filter(|it| it.head().size == size);
            at_size.max_by_key(|it| it.signers.len())
        };
        let heads = self.heads.iter().filter(|from| 0 < from.head().size);
        let check = |from| Some(ContinuationCheck::new(from, next(from)?));
        heads.filter_map(check).collect()
    }
}

/// Returns the pairs of heads that contradict each other, those first that convict somebody.
fn find_forks(heads: &[SignedHead]) -> Vec<Fork> {
    let mut forks = Vec::new();
    for (place, one) in heads.iter().enumerate() {
        let later = &heads[place + 1..];
        let same_size = later
            .iter()
            .take_while(|it| it.head().size == one.head().size);
        let others = same_size.filter(|it| it.head().contradicts(&one.head()));
        forks.extend(others.map(|other| Fork {
            heads: [one.clone(), other.clone()],
        }));
    }
    forks.sort_by_key(|fork| fork.liars().is_empty());
    forks.truncate(FORKS_MAX);
    forks
}

/// A proof to make: that a head continues a smaller one.
#[derive(Clone, Debug)]
pub struct ContinuationCheck {
    /// The smaller head.
    pub from: SignedHead,
    /// The larger head.
    pub to: SignedHead,
    plan: Consistency,
}

/// The result of such a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuation {
    /// The larger head continues the smaller one.
    Proven {
        /// The number of hashes in the proof.
        hashes: usize,
    },
    /// The larger head begins with another root than the smaller head: who signed one of them has
    /// signed another history.
    Refuted,
    /// The tiles are of neither head, so they show nothing.
    Contradicted,
    /// Tiles are missing.
    Missing(ProofError),
}

impl ContinuationCheck {
    /// Plans the proof; `from` must have leaves, and `to` at least as many.
    #[must_use]
    pub fn new(from: &SignedHead, to: &SignedHead) -> Self {
        let plan = Consistency::between(from.head().size, to.head().size);
        let (from, to) = (from.clone(), to.clone());
        Self { from, to, plan }
    }

    /// Returns the tiles that it needs, and how many hashes of each.
    #[must_use]
    pub fn needed_tiles(&self) -> BTreeMap<TileId, usize> {
        self.plan.needed_tiles()
    }

    /// Makes and checks the proof with tiles from anywhere.
    #[must_use]
    pub fn check_tiles(&self, tiles: &BTreeMap<TileId, Tile>) -> Continuation {
        let proof = match self.plan.build(tiles) {
            Ok(proof) => proof,
            Err(missing) => return Continuation::Missing(missing),
        };
        let place = |signed: &SignedHead| (signed.head().size, signed.head().root);
        let (old, new) = (place(&self.from), place(&self.to));
        if consistency::verify(old, new, &proof) {
            let hashes = proof.len();
            return Continuation::Proven { hashes };
        }
        match self.plan.build_beginning(tiles) {
            Ok(root) if consistency::verify((old.0, root), new, &proof) => Continuation::Refuted,
            Ok(_) => Continuation::Contradicted,
            Err(missing) => Continuation::Missing(missing),
        }
    }
}

#[cfg(test)]
mod liar_tests;

#[cfg(test)]
mod tests {
    use souk_market::{AccountKey, Founder, SigningKey};
    use souk_proof::history::hash_leaf;
    use souk_proof::{History, LogIndex, LogTime};

    use super::*;

    const MARKET: MarketId = MarketId([5; 32]);

    fn key(by: u64) -> SigningKey {
        SigningKey::from_bytes(&[by as u8; 32])
    }

    fn members() -> Cosigners {
        (1..=4).map(|by| (by, AccountKey::from(&key(by)))).collect()
    }

    /// The history of some leaves, of which the last is another one if it is `forged`.
    fn history(size: u64, forged: bool) -> (TreeHead, BTreeMap<TileId, Tile>) {
        let (mut history, mut full) = (History::default(), Vec::new());
        for leaf in 1..=size {
            let content = if forged && leaf == size { 0 } else { leaf };
            history.push(hash_leaf(&content.to_le_bytes()), &mut full);
        }
        let head = TreeHead {
            index: LogIndex(size),
            time: LogTime(250 * size),
            size,
            root: history.root(),
            state: Some(Digest([3; 32])),
        };
        let open = (0..).zip(history.open_tiles());
        full.extend(open.map(|(level, hashes)| Tile {
            id: TileId {
                level,
                index: (size >> (8 * level)) >> 8,
            },
            hashes: hashes.clone(),
        }));
        (head, full.into_iter().map(|tile| (tile.id, tile)).collect())
    }

    fn signed(head: TreeHead, by: &[u64]) -> TreeNote {
        let mut note = TreeNote::new(MARKET, head);
        for by in by {
            note.insert(note.cosign(*by, 9, &key(*by)));
        }
        note
    }

    fn judge(notes: &[TreeNote]) -> HistoryCheck {
        HistoryCheck::judge_notes(MARKET, members(), notes)
    }

    #[test]
    fn signatures_from_several_sources_certify_together() {
        let (old, new) = (history(300, false).0, history(700, false).0);
        let check = judge(&[
            signed(old, &[1, 2, 3]),
            signed(new, &[2]),
            signed(new, &[4, 2]),
        ]);
        assert_eq!(check.find_certified().unwrap().head(), old);
        assert_eq!(check.latest_of(4).unwrap().head(), new);
        assert_eq!(check.latest_of(1).unwrap().head(), old);
        assert!(check.forks.is_empty());
        let check = judge(&[signed(new, &[1]), signed(new, &[2]), signed(new, &[4])]);
        assert_eq!(check.find_certified().unwrap().signers, [1, 2, 4]);
    }

    #[test]
    fn strangers_and_other_markets_certify_nothing() {
        let head = history(300, false).0;
        let mut other = signed(head, &[1, 2, 3]);
        other.market = MarketId([6; 32]);
        let check = judge(&[other, signed(head, &[7, 8, 9]), signed(head, &[])]);
        assert!(check.heads.is_empty() && check.find_certified().is_none());
    }

    #[test]
    fn who_signs_two_roots_of_one_size_is_named_by_two_notes() {
        let (honest, forged) = (history(300, false).0, history(300, true).0);
        let check = judge(&[signed(honest, &[1, 2, 3, 4]), signed(forged, &[3])]);
        assert_eq!(check.forks.len(), 1);
        assert_eq!(check.forks[0].liars(), [3]);
        for head in &check.forks[0].heads {
            let read = TreeNote::decode(head.note.encode().as_bytes()).unwrap();
            assert!(
                read.list_signers(&members()).contains(&3),
                "the files convict alone"
            );
        }
        let state = Some(Digest([4; 32]));
        let other_state = TreeHead { state, ..honest };
        let check = judge(&[signed(honest, &[1, 2, 3, 4]), signed(other_state, &[2])]);
        assert_eq!(check.forks[0].liars(), [2], "one root, two states");
        let no_state = TreeHead {
            state: None,
            ..honest
        };
        let check = judge(&[signed(honest, &[1, 2, 3, 4]), signed(no_state, &[2])]);
        assert!(check.forks.is_empty(), "an earlier release names no state");
        // Two validators that differ are a fork without a proven liar.
        let check = judge(&[signed(honest, &[1]), signed(forged, &[3])]);
        assert_eq!(check.forks[0].liars(), [] as [u64; 0]);
        let [one, other] = &check.forks[0].heads;
        assert_eq!(check.list_suspects(one, other), [] as [u64; 0]);
    }

    /// A leader that lies can have led it there.
    #[test]
    fn who_contradicts_a_certified_head_is_suspected_and_not_convicted() {
        let (honest, forged) = (history(300, false).0, history(300, true).0);
        let check = judge(&[signed(honest, &[1, 2, 4]), signed(forged, &[3])]);
        let [one, other] = &check.forks[0].heads;
        assert_eq!(check.forks[0].liars(), [] as [u64; 0]);
        assert_eq!(check.list_suspects(one, other), [3]);
        assert_eq!(check.list_suspects(other, one), [3]);
    }

    /// Whatever order its messages have, and whenever it is killed: what an honest validator sent
    /// or showed in all its lives convicts it of nothing, beside whatever others sign.
    #[test]
    fn no_life_of_an_honest_validator_convicts_it() {
        use crate::validator::cosigning::{Cosigner, CosigningEffect, CosigningEvent};
        let head = |size: u64, root: u8| TreeHead {
            index: LogIndex(size),
            time: LogTime(250 * size),
            size,
            root: Digest([root; 32]),
            state: Some(Digest([root; 32])),
        };
        let mut lives = 0;
        for seed in 0..200_u64 {
            // A small generator, so that each seed is one life story.
            let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let mut draw = |below: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % below
            };
            let (mut journal, mut shown) = (None::<String>, Vec::<TreeNote>::new());
            let begin = |journal: &Option<String>| {
                let journal = journal.as_deref().map(str::as_bytes);
                Cosigner::new(MARKET, 1, key(1), journal, None).unwrap()
            };
            let mut one = begin(&journal);
            for step in 1..60 {
                // A lying leader leads it to another root now and then, also of an old size.
                let root = if draw(8) == 0 { 2 } else { 1 };
                let size = step + 2 - draw(3);
                let lie = signed(head(size, 9), &[2, 3]).encode();
                let mut copied = signed(head(size, 9), &[2]);
                // A liar shows its signatures under another head.
                if let Some(mine) = shown.last() {
                    copied.cosignatures.extend(mine.cosignatures.iter());
                }
                let copied = copied.encode();
                let event = match draw(4) {
                    0 => CosigningEvent::Heard(2, lie.as_bytes()),
                    1 => CosigningEvent::Heard(2, copied.as_bytes()),
                    _ => CosigningEvent::Reached(head(size, root), members()),
                };
                let effects = one.apply(9, event);
                // It is killed before any of the effects, which come in order.
                let survives = draw(effects.len() as u64 + 3);
                for effect in effects.iter().take(survives as usize) {
                    match effect {
                        CosigningEffect::Journal(note) => journal = Some(note.clone()),
                        CosigningEffect::Send(_, note) => {
                            shown.push(TreeNote::decode(note.as_bytes()).unwrap());
                        }
                        _ => {}
                    }
                }
                if (survives as usize) < effects.len() {
                    one = begin(&journal);
                }
                let heads = one.signed_heads();
                let notes = heads.latest.into_iter().chain(heads.certified);
                shown.extend(notes.chain(heads.conflicts));
            }
            shown.dedup();
            let check = judge(&shown);
            let convicts = |fork: &Fork| fork.liars().contains(&1);
            assert!(!check.forks.iter().any(convicts), "seed {seed}");
            let forged = shown.iter().flat_map(|note| note.list_forged(&members()));
            assert_eq!(
                forged.count(),
                0,
                "seed {seed}: it shows no forged signature"
            );
            lives += usize::from(shown.len() > 20);
        }
        assert!(lives > 100, "{lives} lives were long");
    }

    /// A roster of before counts other keys: a removed validator convicts nobody, and a head that
    /// its successor signed under the same raft id is another's.
    #[test]
    fn signatures_of_an_old_roster_convict_nobody() {
        let (honest, forged) = (history(300, false).0, history(300, true).0);
        let notes = [signed(honest, &[1, 2, 3, 4]), signed(forged, &[3])];
        let without: Cosigners = members().into_iter().filter(|(by, _)| *by != 3).collect();
        let check = HistoryCheck::judge_notes(MARKET, without, &notes);
        assert!(check.forks.is_empty(), "nobody who counts signed the other");
        let mut renewed = members();
        renewed.insert(3, AccountKey::from(&key(7)));
        let mut second = TreeNote::new(MARKET, forged);
        second.insert(second.cosign(3, 9, &key(7)));
        let notes = [signed(honest, &[1, 2, 3, 4]), second];
        let check = HistoryCheck::judge_notes(MARKET, renewed, &notes);
        assert_eq!(check.forks[0].liars(), [] as [u64; 0]);
    }

    #[test]
    fn a_note_that_nobody_signed_hides_no_other() {
        let (honest, forged) = (history(300, false).0, history(300, true).0);
        let later = |head: TreeHead| TreeHead {
            time: LogTime(head.time.0 + 1),
            ..head
        };
        let check = judge(&[
            signed(later(forged), &[]),
            signed(later(honest), &[]),
            signed(honest, &[1, 2, 3, 4]),
            signed(forged, &[3]),
        ]);
        assert_eq!(check.find_certified().unwrap().head(), honest);
        assert_eq!(check.forks[0].liars(), [3]);
    }

    #[test]
    fn each_pair_of_roots_of_one_size_is_compared() {
        let head = |root: u8| TreeHead {
            root: Digest([root; 32]),
            ..history(300, false).0
        };
        let (low, honest, high) = (head(1), head(2), head(3));
        let check = judge(&[
            signed(low, &[3]),
            signed(honest, &[1, 2, 4]),
            signed(high, &[3]),
        ]);
        assert_eq!(check.forks.len(), 3);
        assert_eq!(check.forks[0].liars(), [3], "it is named first");
    }

    #[test]
    fn a_key_counts_once_whatever_raft_ids_it_states() {
        let mut genesis = Genesis::new("m".try_into().unwrap(), AccountKey::from(&key(9)));
        let founder = |raft_id: u64, by: u64| Founder {
            raft_id,
            account: AccountKey::from(&key(by)),
            address: String::new(),
        };
        genesis.validators = vec![founder(1, 1), founder(2, 2), founder(3, 2)];
        let known = KnownMembers::new(&genesis);
        let counted = list_known_cosigners(&genesis, &known);
        assert_eq!(counted.into_keys().collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn heads_of_different_sizes_are_one_history_only_if_the_tiles_show_it() {
        let (old, new) = (history(300, false).0, history(70_000, false));
        let check = judge(&[signed(old, &[1]), signed(new.0, &[2])]);
        let [proof] = &check.plan_proofs()[..] else {
            panic!("one pair");
        };
        assert!(proof.needed_tiles().len() <= 5);
        let shown = proof.check_tiles(&new.1);
        assert!(matches!(shown, Continuation::Proven { .. }), "{shown:?}");
        // Whoever has the tiles of the larger one can show it to anybody.
        let forged = judge(&[signed(history(300, true).0, &[1]), signed(new.0, &[2])]);
        let shown = forged.plan_proofs()[0].check_tiles(&new.1);
        assert_eq!(shown, Continuation::Refuted);
        // Nobody can refute what is so, and wrong tiles show nothing.
        for lied in [proof, &forged.plan_proofs()[0]] {
            let mut tiles = new.1.clone();
            tiles.values_mut().for_each(|tile| tile.hashes[0].0[0] ^= 1);
            assert_eq!(lied.check_tiles(&tiles), Continuation::Contradicted);
        }
        let missing = proof.check_tiles(&BTreeMap::new());
        assert!(matches!(missing, Continuation::Missing(_)));
    }
}
