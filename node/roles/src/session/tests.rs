//! Tests the core of sessions: random histories in a small simulated world, and short scripts of
//! one situation each.

mod market;
pub(crate) mod model;
mod reader;
mod scripts;
mod sequences;
mod shell;
mod world;

use std::collections::BTreeMap;

use world::World;

/// Plays worlds, and returns how often what happened.
fn play_seeds(seeds: std::ops::Range<u64>, sessions_per_step: u32) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    for seed in seeds {
        let played = std::panic::catch_unwind(|| {
            let mut world = World::new(seed, sessions_per_step);
            world.play();
            world.counts
        });
        let Ok(of_seed) = played else {
            panic!("seed {seed} with {sessions_per_step} sessions breaks a promise: see above");
        };
        for (what, count) in of_seed {
            *counts.entry(what).or_default() += count;
        }
    }
    counts
}

fn assert_each(counts: &BTreeMap<&str, u64>, expected: &[&str]) {
    for what in expected {
        assert!(
            counts.contains_key(what),
            "{what} never happens: {counts:?}"
        );
    }
}

/// Events of worlds with any number of sessions.
const COMMON: [&str; 15] = [
    "answers",
    "ended",
    "ends",
    "ends before a token",
    "false token",
    "finished",
    "interrupted",
    "look-ups",
    "no quote",
    "not opened",
    "quotes",
    "quotes that wait longer",
    "quotes too short",
    "replaced",
    "used up",
];

#[test]
fn one_session_keeps_its_promises_whatever_happens() {
    assert_each(&play_seeds(0..1_000, 1), &COMMON);
}

#[test]
fn two_sessions_keep_their_promises_whatever_happens() {
    let counts = play_seeds(0..1_000, 2);
    assert_each(&counts, &COMMON);
    let judged = ["differ", "outvoted", "third differs", "undecided"];
    assert_each(&counts, &judged);
}
