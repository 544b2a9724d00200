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

/// Returns the facts of a run in which each segment is run again beside a lazy and a poisoned
/// provider, and nobody dies.
fn play_beside_liars(seed: u64) -> World {
    let styles = vec![
        Style::Lazy,
        Style::Poisoned,
        Style::Honest,
        Style::Honest,
        Style::Honest,
    ];
    play_calm(seed, styles)
}

#[test]
fn one_verdict_is_one_record() {
    let mut convicted = 0;
    for seed in 0..SEEDS {
        let world = play_beside_liars(seed);
        let mut facts = world.disk.iter().cloned();
        let mut past = Past::from_facts(facts.next()).expect("it begins");
        for fact in facts {
            let before = past.clone();
            past.apply(fact.clone()).expect("it follows");
            if past.audit_findings.convicted == before.audit_findings.convicted {
                continue;
            }
            convicted += 1;
            let is_over = |it: &Segment| !past.due_audits.contains(it);
            assert!(
                before.due_audits.first().is_some_and(is_over),
                "seed {seed}: {fact:?} convicts, and another record ends the audit"
            );
        }
    }
    assert!(convicted > 100, "{convicted} convictions");
}

#[test]
fn a_buyer_that_is_killed_after_any_record_comes_to_the_same_end() {
    let mut cuts = 0;
    for seed in 0..12 {
        let mut world = play_beside_liars(seed);
        assert!(world.is_done(), "seed {seed}: {:?}", world.ends);
        let (whole, steps) = (world.core.past().clone(), world.steps);
        let records = world.disk.len();
        for after in 0..records {
            world = World::with_audits(seed, world.styles().to_vec(), Some(ALL));
            world.is_calm = true;
            world.die_after(after);
            world.live();
            world.assert_well();
            assert!(world.is_done(), "seed {seed}, {after}: {:?}", world.ends);
            assert_eq!(world.lives, 2, "seed {seed}: it died after {after} records");
            let past = world.core.past();
            let digest = |past: &Past| (past.losses.clone(), past.kept.clone());
            assert_eq!(digest(past), digest(&whole), "seed {seed}, {after}");
            assert_eq!(past.audit_findings.unaudited_steps, 0);
            assert_eq!(past.kept.position, steps);
            cuts += 1;
        }
    }
    assert!(cuts > 500, "{cuts} cuts");
}

/// Plays a calm run of honest providers with this budget, in which a share is run again.
fn play_frugal(seed: u64, share: Permille, budget: u64) -> World {
    let mut world = World::with_audits(seed, vec![Style::Honest; 3], Some(share));
    world.is_calm = true;
    world.set_budget(Credits(budget));
    world.live();
    world.assert_well();
    world
}

#[test]
fn a_budget_that_ends_leaves_no_step_unaudited() {
    let (mut done, mut broke) = (0, 0);
    for seed in 0..SEEDS {
        let world = play_frugal(seed, ALL, seed % 400);
        let past = world.core.past();
        assert_eq!(past.audit_findings.unaudited_steps, 0, "seed {seed}");
        assert_eq!(past.due_audits, [], "seed {seed}: the money is kept back");
        match world.ends.last().expect("it ended") {
            End::Done => done += 1,
            End::NoMoney => broke += 1,
            end => panic!("seed {seed}: {end:?}"),
        }
    }
    assert!(
        done > 50 && broke > 50,
        "{done} done, {broke} without money"
    );
}

#[test]
fn money_that_is_kept_back_and_not_needed_pays_for_steps() {
    for seed in 0..SEEDS {
        let world = World::with_audits(seed, vec![Style::Honest; 3], Some(ALL));
        let batches = world.spec.evaluation.map_or(0, |it| it.requests);
        let evaluated = world.evaluation_points().count() as u64 * batches;
        // Each step and its audit, and a third opinion on the steps of the last lease.
        let price = 2 * (3 * world.steps + evaluated);
        let world = play_frugal(seed, ALL, price);
        assert!(world.is_done(), "seed {seed}: {:?}", world.ends);
    }
}

#[test]
fn an_audit_without_money_stays_due_and_a_larger_budget_pays_for_it() {
    let mut core = TrainCore::resume(spec_with(Credits(100)), due_audit()).0;
    let how = End::AuditUnpaid { step: 0 };
    let actions = core.apply(not_quoted(Shortage::Money));
    assert_eq!(actions, [Action::Record(Fact::Over { how })]);
    let past = core.past().clone();
    assert_eq!((past.due_audits.len(), past.how.is_some()), (1, true));
    assert_eq!(past.audit_findings.unaudited_steps, 0);
    let (mut core, actions) = TrainCore::resume(spec_with(Credits(200)), past);
    let [Action::Quote(wish)] = &actions[..] else {
        panic!("it looks for the audit: {actions:?}");
    };
    assert_eq!((wish.claims.len(), wish.budget), (1, Some(Credits(200))));
    let actions = core.apply(not_quoted(Shortage::Offers));
    let unaudited = Action::Record(Fact::Unaudited { from: 0 });
    assert_eq!(actions[0], unaudited, "no other provider is another cause");
}

#[test]
fn a_dispute_says_whether_it_lacks_money_or_a_third_provider() {
    for short_of in [Shortage::Money, Shortage::Offers] {
        let mut core = TrainCore::resume(spec_with(Credits(100)), due_audit()).0;
        answer_audit(&mut core, AccountKey([7; 32]), 9);
        let actions = core.apply(not_quoted(short_of));
        let how = End::Disputed { step: 0, short_of };
        assert_eq!(actions, [Action::Record(Fact::Over { how })]);
    }
}

#[test]
fn a_lease_of_steps_keeps_back_two_opinions_on_the_share_that_is_run_again() {
    let kept_back = |steps: u64, keep_steps: u64, share: u16| {
        let audits = begin_audited().audits.map(|spec| AuditSpec {
            share: Permille(share),
            ..spec
        });
        let past = Past {
            audits,
            steps,
            ..begin_audited()
        };
        let spec = RunSpec {
            keep_steps,
            ..spec_with(Credits(120))
        };
        let actions = TrainCore::resume(spec, past).1;
        let [Action::Quote(wish)] = &actions[..] else {
            panic!("it looks for a lease: {actions:?}");
        };
        let budget = wish.budget.expect("it has one").0;
        assert_eq!(budget + wish.kept_back.0, 120);
        wish.kept_back.0
    };
    assert_eq!(kept_back(100, 8, 100), 20, "a sixth at 10 %");
    assert_eq!(kept_back(100, 8, 1_000), 80, "two thirds at 100 %");
    assert_eq!(kept_back(10, 5, 100), 60, "one segment at least");
    assert_eq!(kept_back(10, 50, 100), 80, "no more than there are");
}

/// Returns how a run goes on with this budget.
fn spec_with(budget: Credits) -> RunSpec {
    RunSpec {
        keep_steps: 2,
        lease_steps_max: 1_000,
        budget: Some(budget),
        evaluation: None,
    }
}

/// Returns a run in which the first two steps are to be run again.
fn due_audit() -> Past {
    let mut past = begin_audited();
    past.apply(two_steps(&past, AccountKey([5; 32]))).unwrap();
    assert_eq!(past.due_audits.len(), 1);
    past
}

/// Has a provider run the two steps of the next audit again, with this loss of each.
fn answer_audit(core: &mut TrainCore, provider: AccountKey, loss: u32) {
    let job = souk_market::JobId([loss.to_le_bytes()[0]; 32]);
    core.apply(Event::Quoted { job, provider });
    core.apply(Event::Recorded);
    core.apply(Event::StepWanted);
    let states = vec![("parameters".to_owned(), ContentId::for_content(b"made"))];
    for states in [None, Some(states)] {
        let loss = LossBits(loss);
        core.apply(Event::Answered(StepAnswer::Done { loss, states }));
    }
    core.apply(Event::LeaseEnded(LeaseEnd {
        cost: Some(Credits(1)),
        receipts: Vec::new(),
        why: LeaseEndReason::Done,
        request_time: None,
        planned_time: Micros::from_millis(1),
    }));
    core.apply(Event::Recorded);
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
    past.apply(Fact::Judged {
        from: 2,
        by: AccountKey([7; 32]),
        is_confirmed: false,
        liars: vec![liar],
    })
    .unwrap();
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

/// A provider's claim that the loss is no number is not the end of a run that only lacks money for
/// a second opinion.
#[test]
fn a_doubt_without_money_for_another_provider_is_no_failed_run() {
    for (short_of, is_believed) in [(Shortage::Money, false), (Shortage::Offers, true)] {
        let (mut core, provider) = (begin_short(), AccountKey([7; 32]));
        let job = souk_market::JobId([1; 32]);
        core.apply(Event::Quoted { job, provider });
        core.apply(Event::Recorded);
        core.apply(Event::StepWanted);
        let loss = LossBits(f32::NAN.to_bits());
        core.apply(Event::Answered(StepAnswer::NotFinite { loss }));
        core.apply(Event::LeaseEnded(LeaseEnd {
            cost: Some(Credits(1)),
            receipts: Vec::new(),
            why: LeaseEndReason::Cancelled,
            request_time: None,
            planned_time: Micros::from_millis(1_000),
        }));
        core.apply(Event::Recorded);
        core.apply(Event::NotQuoted { short_of });
        let actions = core.apply(Event::Recorded);
        let end = actions.iter().find_map(|action| match action {
            Action::End(end) => Some(*end),
            _ => None,
        });
        let expected = match is_believed {
            true => End::NotFinite { step: 0, loss },
            false => End::NoMoney,
        };
        assert_eq!(end, Some(expected));
    }
}
