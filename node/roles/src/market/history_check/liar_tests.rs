//! Plays validators of which less than a third lie, by seed. Honest ones can be killed, can hear
//! notes late or never, and can be led to another history by a lying leader. Clients gather what
//! all of them show, and judge it together.
//!
//! Two heads that contradict each other must never both be certified, and the notes must convict no
//! honest validator. If a liar signs two heads of one size, they must convict it by the next head.

use std::collections::{BTreeMap, BTreeSet};

use souk_market::{AccountKey, MarketId, SigningKey};
use souk_proof::note::{Cosigners, TreeNote};
use souk_proof::{Digest, LogIndex, LogTime, TreeHead};

use super::HistoryCheck;
use crate::validator::cosigning::{Cosigner, CosigningEffect, CosigningEvent};

const MARKET: MarketId = MarketId([5; 32]);

/// The heads of a run.
const HEADS: u64 = 6;

/// The seeds that every run of the tests plays, and those of `.ci/long`, for each group.
const SEEDS: u64 = 8;
const LONG_SEEDS: u64 = 10_000;

/// How a liar signs two heads of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// It shows each of two clients another head, and the validators the right one.
    ToClients,
    /// It sends some validators another head, and the others the right one; it shows clients none.
    ToValidators,
}

struct World {
    seed: u64,
    state: u64,
    keys: BTreeMap<u64, SigningKey>,
    members: Cosigners,
    /// The honest validators, the journal of each, and the history that it follows: another one
    /// than 0 once a lying leader led it there.
    honest: BTreeMap<u64, Cosigner>,
    journals: BTreeMap<u64, String>,
    histories: BTreeMap<u64, u8>,
    /// The liars, with the head of which each signs two, and how.
    liars: BTreeMap<u64, (u64, Lie)>,
    /// Notes on the way to an honest validator: to, from, note.
    sent: Vec<(u64, u64, String)>,
    gathered: Vec<TreeNote>,
    /// The head after which an honest validator is killed, and the one that is.
    killed: (u64, u64),
}

impl World {
    fn new(seed: u64, members: u64) -> Self {
        let keys: BTreeMap<u64, SigningKey> = (1..=members)
            .map(|by| (by, SigningKey::from_bytes(&[by as u8; 32])))
            .collect();
        let cosigners = keys.iter().map(|(by, key)| (*by, AccountKey::from(key)));
        let mut world = Self {
            seed,
            state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            members: cosigners.collect(),
            keys,
            honest: BTreeMap::new(),
            journals: BTreeMap::new(),
            histories: BTreeMap::new(),
            liars: BTreeMap::new(),
            sent: Vec::new(),
            gathered: Vec::new(),
            killed: (0, 0),
        };
        while (world.liars.len() as u64) < (members - 1) / 3 {
            let by = 1 + world.draw(members);
            let lie = match world.draw(2) {
                0 => Lie::ToClients,
                _ => Lie::ToValidators,
            };
            let size = 1 + world.draw(HEADS - 2);
            world.liars.insert(by, (size, lie));
        }
        for by in 1..=members {
            if !world.liars.contains_key(&by) {
                world.begin_life(by);
                world.histories.insert(by, 0);
            }
        }
        world.killed = (1 + world.draw(HEADS), world.draw_honest());
        world
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % below
    }

    fn draw_honest(&mut self) -> u64 {
        let place = self.draw(self.honest.len() as u64) as usize;
        *self.honest.keys().nth(place).expect("some are honest")
    }

    fn begin_life(&mut self, by: u64) {
        let journal = self.journals.get(&by).map(|note| note.as_bytes());
        let key = self.keys[&by].clone();
        let cosigner = Cosigner::new(MARKET, by, key, journal, None);
        let cosigner = cosigner.expect("it signed its journal");
        self.honest.insert(by, cosigner);
    }

    fn apply(&mut self, by: u64, event: CosigningEvent<'_>) {
        let cosigner = self.honest.get_mut(&by).expect("it is honest");
        for effect in cosigner.apply(9, event) {
            match effect {
                CosigningEffect::Journal(note) => drop(self.journals.insert(by, note)),
                CosigningEffect::Send(to, note) => {
                    let to = to.into_iter().map(|to| (to, by, note.clone()));
                    self.sent.extend(to);
                }
                CosigningEffect::StoreCertified(_) | CosigningEffect::Report(_) => {}
            }
        }
    }

    fn sign(&self, by: u64, size: u64, history: u8) -> TreeNote {
        let mut note = TreeNote::new(MARKET, head(size, history));
        note.insert(note.cosign(by, 9, &self.keys[&by]));
        note
    }

    /// All reach a head, cosign it, and hear of each other, but for what gets lost.
    fn reach_head(&mut self, size: u64) {
        if size > 1 && self.draw(6) == 0 {
            // A lying leader leads somebody to another history, which it never leaves. It does not
            // lead the two who hear both heads of a lie.
            let others = self.honest.len() as u64 - 2;
            let place = 2 + self.draw(others) as usize;
            let by = *self.honest.keys().nth(place).expect("three are honest");
            self.histories.insert(by, 1);
        }
        let told = |(lied_size, lie): &(u64, Lie)| *lied_size == size && *lie == Lie::ToValidators;
        let is_told = self.liars.values().any(told);
        let mut reached: Vec<u64> = self.honest.keys().copied().collect();
        let first = self.draw(reached.len() as u64) as usize;
        reached.rotate_left(first);
        for by in reached {
            // Some are late, and reach only the next head; they would not keep what a liar tells.
            if !is_told && self.draw(12) == 0 {
                continue;
            }
            let reached = head(size, self.histories[&by]);
            let members = self.members.clone();
            self.apply(by, CosigningEvent::Reached(reached, members));
        }
        self.send_lies(size);
        let mut late = Vec::new();
        while !self.sent.is_empty() {
            let place = self.draw(self.sent.len() as u64) as usize;
            let (to, from, note) = self.sent.swap_remove(place);
            let is_from_liar = self.liars.contains_key(&from);
            if !self.honest.contains_key(&to) || (!is_from_liar && self.draw(20) == 0) {
                continue;
            }
            if !is_from_liar && self.draw(10) == 0 {
                late.push((to, from, note));
                continue;
            }
            self.apply(to, CosigningEvent::Heard(from, note.as_bytes()));
        }
        self.sent = late;
        if self.killed.0 == size {
            self.begin_life(self.killed.1);
        }
    }

    /// The liars sign the right head, and each of them one other head of one size. It also copies
    /// signatures of others below that one.
    fn send_lies(&mut self, size: u64) {
        for (by, (lied_size, lie)) in self.liars.clone() {
            let right = self.sign(by, size, 0);
            let mut wrong = self.sign(by, size, 7);
            let others = self.gathered.iter().flat_map(|note| &note.cosignatures);
            others.for_each(|it| wrong.insert(*it));
            let is_lie = lied_size == size && lie == Lie::ToValidators;
            let honest: Vec<u64> = self.honest.keys().copied().collect();
            for (place, to) in honest.into_iter().enumerate() {
                // At least one hears each of the two.
                let is_wrong = is_lie && (place == 0 || (place > 1 && self.draw(2) == 0));
                let note = if is_wrong { &wrong } else { &right };
                self.sent.push((to, by, note.encode()));
            }
        }
    }

    /// Two clients ask all validators, and keep what they are shown.
    fn gather_heads(&mut self, size: u64) {
        for cosigner in self.honest.values() {
            let heads = cosigner.signed_heads();
            let notes = heads.latest.into_iter().chain(heads.certified);
            self.gathered.extend(notes.chain(heads.conflicts));
        }
        for (by, (lied_size, lie)) in self.liars.clone() {
            if lie == Lie::ToClients {
                self.gathered.push(self.sign(by, size, 0));
                if size == lied_size {
                    self.gathered.push(self.sign(by, size, 7));
                }
            }
        }
        let mut known = BTreeSet::new();
        self.gathered.retain(|note| known.insert(note.encode()));
    }

    /// Returns the validators that the gathered notes convict.
    fn judge_gathered(&self) -> BTreeSet<u64> {
        let check = HistoryCheck::judge_notes(MARKET, self.members.clone(), &self.gathered);
        let certified = check.heads.iter();
        let certified = certified.filter(|it| it.signers.len() >= check.needed);
        let heads: Vec<TreeHead> = certified.map(|it| it.head()).collect();
        for (place, head) in heads.iter().enumerate() {
            let fork = heads[place..].iter().any(|other| head.contradicts(other));
            assert!(!fork, "seed {}: two certified heads", self.seed);
        }
        check.forks.iter().flat_map(|fork| fork.liars()).collect()
    }

    /// Returns whether the killed validator may have lost what a liar told it.
    fn is_lie_lost(&self, lied_size: u64, lie: Lie) -> bool {
        lie == Lie::ToValidators && self.killed.0 == lied_size
    }
}

fn head(size: u64, history: u8) -> TreeHead {
    TreeHead {
        index: LogIndex(size),
        time: LogTime(250 * size),
        size,
        root: Digest([history; 32]),
        state: Some(Digest([history; 32])),
    }
}

/// Plays a seed, and returns how many liars were convicted.
fn play(seed: u64, members: u64) -> u64 {
    let mut world = World::new(seed, members);
    let mut found = BTreeSet::new();
    for size in 1..=HEADS {
        world.reach_head(size);
        world.gather_heads(size);
        let convicted = world.judge_gathered();
        for by in &convicted {
            let is_liar = world.liars.get(by).is_some_and(|(lied, _)| *lied <= size);
            assert!(
                is_liar,
                "seed {seed}: validator {by} is convicted at {size}"
            );
        }
        found.extend(convicted);
        for (by, (lied_size, lie)) in &world.liars {
            let is_due = lied_size + 1 == size && !world.is_lie_lost(*lied_size, *lie);
            let is_found = found.contains(by);
            assert!(
                !is_due || is_found,
                "seed {seed}: {by} goes free: {:?}",
                world.liars
            );
        }
    }
    found.len() as u64
}

/// Plays seeds, and returns how many liars were convicted.
fn play_seeds(seeds: std::ops::Range<u64>, members: u64) -> u64 {
    seeds.map(|seed| play(seed, members)).sum()
}

#[test]
fn liars_are_convicted_within_two_heads_and_nobody_honest_is() {
    let found = play_seeds(0..SEEDS, 4) + play_seeds(0..SEEDS, 7);
    assert!(found > 2 * SEEDS, "{found} convictions");
}

/// Two validators that a lying leader led away contradict every head. They must not displace the
/// evidence against a validator that lies later.
#[test]
fn many_contradictions_do_not_hide_a_later_liar() {
    assert_eq!(play(1_789, 7), 2);
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn thousands_of_groups_of_four_with_a_liar_keep_their_promises() {
    let found = play_seeds(SEEDS..SEEDS + LONG_SEEDS, 4);
    assert!(found > LONG_SEEDS * 9 / 10, "{found} convictions");
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn thousands_of_groups_of_seven_with_two_liars_keep_their_promises() {
    let found = play_seeds(SEEDS..SEEDS + LONG_SEEDS, 7);
    assert!(found > 2 * LONG_SEEDS * 9 / 10, "{found} convictions");
}
