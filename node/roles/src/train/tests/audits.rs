//! Plays runs with providers that leave steps out or make others, and audits that find them.

use souk_market::Permille;

use super::*;
use world::account;

/// The seeds of each test of many, and of the long one.
const SEEDS: u64 = 400;
const LONG_SEEDS: u64 = 2_000;

const ALL: Permille = Permille(1_000);

/// Plays a market in which providers deceive, die and lag, for each of some seeds and this share of
/// audits. Returns how many liars were found, and in how many results there are steps of one.
fn play_deceivers(seeds: std::ops::Range<u64>, share: Permille) -> (usize, usize) {
    let (mut found, mut unfound) = (0, 0);
    for seed in seeds {
        let styles = vec![
            Style::Lazy,
            Style::Poisoned,
            Style::Honest,
            Style::Mortal,
            Style::Lagging,
            Style::Honest,
            Style::Old,
            Style::Malformed,
        ];
        let world = play(World::with_audits(seed, styles, Some(share)));
        assert!(world.is_done(), "seed {seed}: {:?}", world.ends);
        found += world.convicted.len();
        let is_deceiver = |anchor: &Anchor| [account(0), account(1)].contains(&anchor.provider);
        unfound += usize::from(world.core.past().anchors.iter().any(is_deceiver));
    }
    (found, unfound)
}

#[test]
fn with_each_segment_run_again_no_lie_is_in_the_result() {
    let (found, _) = play_deceivers(0..SEEDS, ALL);
    assert!(found > 300, "{found} convictions");
}

#[test]
fn with_some_segments_run_again_liars_are_found_and_nobody_else_is_blamed() {
    let (found, unfound) = play_deceivers(0..SEEDS, Permille(300));
    assert!(found > 100, "{found} convictions");
    assert!(unfound > 0, "a lie that is not drawn stays");
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn thousands_of_audited_runs_keep_what_they_promise() {
    for share in [ALL, Permille(100), Permille(500)] {
        let (found, _) = play_deceivers(SEEDS..SEEDS + LONG_SEEDS, share);
        assert!(found > 0, "{found} convictions with {share:?}");
    }
}

#[test]
fn audits_of_honest_providers_change_nothing_but_the_cost() {
    for seed in 0..SEEDS {
        let share = Some(Permille(400));
        let world = play(World::with_audits(seed, vec![Style::Mortal; 5], share));
        assert!(world.is_done(), "seed {seed}: {:?}", world.ends);
        assert_eq!(world.convicted, []);
    }
}

/// Plays a calm market in which all segments are run again.
fn play_calm(seed: u64, styles: Vec<Style>) -> World {
    let mut world = World::with_audits(seed, styles, Some(ALL));
    world.is_calm = true;
    world.live();
    world
}

#[test]
fn each_step_of_a_calm_run_is_confirmed_by_another_provider() {
    for seed in 0..20 {
        let world = play_calm(seed, vec![Style::Honest; 2]);
        world.assert_well();
        let past = world.core.past();
        let tally = &past.audit_findings;
        assert_eq!(tally.confirmed_steps, world.steps, "seed {seed}");
        assert_eq!((tally.unaudited_steps, world.convicted.len()), (0, 0));
        assert_eq!(world.sent.len() as u64, 2 * world.steps, "each step twice");
        // The states at the end, and those from which each provider began.
        assert_eq!(world.kept_states(), 1 + past.anchors.len());
    }
}

#[test]
fn without_another_provider_the_steps_count_as_unaudited() {
    let world = play_calm(3, vec![Style::Honest]);
    assert!(world.is_done());
    let tally = &world.core.past().audit_findings;
    assert_eq!(tally.unaudited_steps, world.steps);
}

#[test]
fn two_that_contradict_each_other_end_the_run_and_neither_is_blamed() {
    for seed in 0..20 {
        let world = play_calm(seed, vec![Style::Poisoned, Style::Honest]);
        let first = world.ends.first().expect("it ended");
        assert!(
            matches!(first, End::Disputed { .. }),
            "seed {seed}: {first:?}"
        );
        assert_eq!(world.convicted, []);
        assert!(world.core.past().banned.is_empty());
    }
}

/// Returns a run that has begun, all segments of which are run again.
fn begin_audited() -> Past {
    let spec = AuditSpec {
        share: ALL,
        secret: [9; 32],
    };
    Past {
        audits: Some(spec),
        ..begin_short().past().clone()
    }
}

/// Returns the fact that a provider made two steps.
fn two_steps(past: &Past, by: AccountKey) -> Fact {
    let from = past.kept.position;
    let losses = vec![LossBits(1), LossBits(2)];
    let states = vec![("parameters".to_owned(), world::honest_state(from + 2))];
    Fact::Kept {
        from,
        link: next_link(past.link, from, &losses, &states),
        losses,
        states,
        by: Some(by),
    }
}

#[test]
fn a_run_goes_back_to_the_states_before_the_first_step_of_a_liar() {
    let mut past = begin_audited();
    let [honest, liar] = [5, 6].map(|it| AccountKey([it; 32]));
    past.apply(two_steps(&past, honest)).unwrap();
    let before = past.clone();
    for by in [liar, honest, liar] {
        past.apply(two_steps(&past, by)).unwrap();
    }
    assert_eq!((past.due_audits.len(), past.anchors.len()), (4, 2));
    let (position, loss) = (8, LossBits(1));
    past.apply(Fact::HeldOut { position, loss }).unwrap();
    past.apply(Fact::Convicted { provider: liar }).unwrap();
    assert!(past.banned.contains(&liar));
    assert_eq!(past.audit_findings.convicted, [liar]);
    let (banned, audit_findings) = (past.banned.clone(), past.audit_findings.clone());
    let expected = Past {
        banned,
        audit_findings,
        ..before
    };
    assert_eq!(past, expected, "as if it had never been there");
}

#[test]
fn the_draw_follows_from_the_secret_and_has_the_share() {
    let draw = |share: u16, secret: u8| {
        let spec = AuditSpec {
            share: Permille(share),
            secret: [secret; 32],
        };
        let links = (0..2_000_u32).map(|it| ContentId::for_content(&it.to_le_bytes()));
        links.map(|link| spec.draws(link)).collect::<Vec<bool>>()
    };
    let count = |all: &[bool]| all.iter().filter(|it| **it).count();
    assert_eq!(count(&draw(0, 1)), 0);
    assert_eq!(count(&draw(1_000, 1)), 2_000);
    let tenth = count(&draw(100, 1));
    assert!((140..=260).contains(&tenth), "{tenth}");
    assert_ne!(draw(100, 1), draw(100, 2));
}
