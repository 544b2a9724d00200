//! Plays runs against providers that die, lag and lie, with a buyer that is killed at any moment.

mod audits;
mod world;

use souk_market::Credits;
use souk_memory::ContentId;

use super::*;
use crate::clock::Micros;
use world::{Style, World};

/// So many seeds are played in each test of many.
const SEEDS: u64 = 700;

/// Plays a world until its run is done, or nothing helps any more. Returns whether it is done.
fn play(mut world: World) -> World {
    world.live();
    world.assert_well();
    world
}

/// Returns the event that no lease can be bought for want of this.
fn not_quoted(short_of: Shortage) -> Event {
    Event::NotQuoted { short_of }
}

#[test]
fn whoever_dies_each_batch_counts_once_and_the_end_is_that_of_the_undisturbed_run() {
    let (mut kills, mut lives, mut abandoned) = (0, 0, 0);
    for seed in 0..SEEDS {
        let world = play(World::new(seed, vec![Style::Mortal; 5]));
        assert!(world.is_done(), "seed {seed}: {:?}", world.ends);
        kills += world.deaths;
        lives += world.lives;
        abandoned += world.abandoned;
    }
    assert!(abandoned > 20, "{abandoned} evaluations were stopped");
    assert!(kills > 500 && lives > 500, "{kills} deaths, {lives} lives");
}

#[test]
fn liars_cost_time_and_never_change_the_result() {
    let mut lies = 0;
    for seed in 0..SEEDS {
        let styles = vec![
            Style::Old,
            Style::NotFinite,
            Style::Malformed,
            Style::Lagging,
            Style::Honest,
            Style::Mortal,
            Style::Honest,
        ];
        let world = play(World::new(seed, styles));
        assert!(world.is_done(), "seed {seed}: {:?}", world.ends);
        lies += world.lies;
    }
    assert!(lies > 500, "{lies} lies");
}

#[test]
fn a_small_budget_is_kept_whatever_happens() {
    let (mut done, mut ran_out) = (0, 0);
    for seed in 0..SEEDS {
        let styles = vec![
            Style::Mortal,
            Style::Honest,
            Style::Lagging,
            Style::Malformed,
        ];
        let mut world = World::new(seed, styles);
        world.set_budget(Credits(40 + seed % 200));
        let world = play(world);
        match world.is_done() {
            true => done += 1,
            false => ran_out += 1,
        }
    }
    assert!(done > 50 && ran_out > 50, "{done} done, {ran_out} ran out");
}

#[test]
fn a_loss_that_is_no_number_ends_the_run_once_two_providers_say_so() {
    let mut world = World::new(1, vec![Style::NotFinite, Style::NotFinite]);
    world.is_calm = true;
    world.live();
    assert!(
        matches!(world.ends.first(), Some(End::NotFinite { .. })),
        "{:?}",
        world.ends
    );
    assert_eq!(world.leases, 2, "each of them was asked");
}

#[test]
fn a_provider_that_sends_old_states_is_banned_when_another_one_goes_on() {
    let mut banned = 0;
    for seed in 0..20 {
        let mut world = World::new(seed, vec![Style::Old, Style::Honest]);
        world.is_calm = true;
        let world = play(world);
        assert!(world.is_done());
        banned += world.core.past().banned.len();
    }
    assert!(banned > 5, "{banned}");
}

#[test]
fn states_return_after_each_keep_steps_and_at_the_end_of_a_lease() {
    let mut world = World::new(8, vec![Style::Honest]);
    assert_eq!(
        world.spec.evaluation, None,
        "there are no held-out examples"
    );
    world.is_calm = true;
    let world = play(world);
    let kept: Vec<u64> = world
        .sent
        .iter()
        .filter(|it| it.keep)
        .map(|it| it.position)
        .collect();
    let expected: Vec<u64> = (0..world.steps)
        .filter(|it| (it + 1).is_multiple_of(world.spec.keep_steps) || world.is_lease_end(it + 1))
        .collect();
    assert_eq!(kept, expected);
    assert_eq!(world.sent.len() as u64, world.steps, "none is sent twice");
}

#[test]
fn held_out_examples_are_evaluated_at_the_beginning_at_each_nth_step_and_at_the_end() {
    for seed in [3, 5, 6, 7, 9, 22] {
        let mut world = World::new(seed, vec![Style::Honest]);
        world.is_calm = true;
        let world = play(world);
        let points: Vec<u64> = world.evaluation_points().collect();
        assert!(points.len() > 2 && points.first() == Some(&0));
        assert_eq!(points.last(), Some(&world.steps));
        assert_eq!(world.evaluated, points, "each of them once");
        assert_eq!(world.sent.len() as u64, world.steps);
        let mut kept = world.sent.iter().filter(|it| it.keep);
        let has_states = |at: &u64| *at == 0 || kept.any(|it| it.position + 1 == *at);
        assert!(points.iter().all(has_states), "those states return");
    }
}

#[test]
fn a_run_that_lacks_only_its_last_evaluation_buys_a_lease_for_it() {
    let mut world = World::new(3, vec![Style::Honest]);
    world.is_calm = true;
    world.live();
    let position = world.steps;
    let is_last =
        |fact: &Fact| matches!(fact, Fact::HeldOut { position: at, .. } if *at == position);
    let end = world.disk.iter().position(is_last).expect("it is the last");
    let past = Past::from_facts(world.disk[..end].iter().cloned()).unwrap();
    assert!(past.is_done() && !past.is_evaluated());
    let settled = Past {
        open_lease: None,
        ..past
    };
    let (_, actions) = TrainCore::resume(world.spec, settled);
    let [Action::Quote(wish)] = &actions[..] else {
        panic!("{actions:?}");
    };
    assert_eq!((wish.steps, wish.evaluations), (0, 1));
    assert_eq!(wish.first, RunRequest::Evaluation { position });
}

/// Has all steps of a run done but its last evaluation, and applies events while the lease for that
/// is looked for.
fn end_without_last_evaluation(events: &[Event]) -> Vec<End> {
    let mut world = World::new(3, vec![Style::Honest]);
    world.is_calm = true;
    world.live();
    let position = world.steps;
    let is_last =
        |fact: &Fact| matches!(fact, Fact::HeldOut { position: at, .. } if *at == position);
    let end = world.disk.iter().position(is_last).expect("it is the last");
    let past = Past::from_facts(world.disk[..end].iter().cloned()).unwrap();
    let settled = Past {
        open_lease: None,
        ..past
    };
    let (mut core, _) = TrainCore::resume(world.spec, settled);
    let applied = events.iter().flat_map(|event| core.apply(event.clone()));
    let ends = applied.filter_map(|action| match action {
        Action::End(end) => Some(end),
        _ => None,
    });
    ends.collect()
}

#[test]
fn a_run_whose_last_evaluation_fails_is_done() {
    let (job, provider) = (souk_market::JobId([1; 32]), AccountKey([7; 32]));
    let lost = Event::LeaseEnded(LeaseEnd {
        cost: Some(Credits(1)),
        receipts: Vec::new(),
        why: LeaseEndReason::Fault,
        request_time: None,
        planned_time: Micros::from_millis(1_000),
    });
    let lease = [
        Event::Quoted { job, provider },
        Event::Recorded,
        lost,
        Event::Recorded,
    ];
    let not_quoted = [not_quoted(Shortage::Offers), Event::Recorded];
    let stopped = [Event::Stop, Event::Recorded];
    assert_eq!(end_without_last_evaluation(&not_quoted), [End::Done]);
    assert_eq!(end_without_last_evaluation(&stopped), [End::Done]);
    let lost = [lease.clone(), lease.clone(), lease].concat();
    let lost = [&lost[..], &[Event::Recorded]].concat();
    assert_eq!(end_without_last_evaluation(&lost), [End::Done]);
}

#[test]
fn an_evaluation_counts_once_and_only_with_the_states_that_are_kept() {
    let loss = LossBits(7);
    let mut past = begin_short().past().clone();
    let wrong = past.apply(Fact::HeldOut { position: 1, loss });
    assert!(matches!(
        wrong,
        Err(FactError::Position {
            found: 1,
            expected: 0
        })
    ));
    past.apply(Fact::HeldOut { position: 0, loss }).unwrap();
    let twice = past.apply(Fact::HeldOut { position: 0, loss });
    assert!(matches!(twice, Err(FactError::Position { .. })));
    assert_eq!(past.held_out, [(0, loss)]);
}

#[test]
fn a_round_adds_its_steps_and_its_cost_at_once() {
    let mut past = begin_short().past().clone();
    let round = |past: &Past, from, losses: &[LossBits], states: States| Fact::Round {
        from,
        losses: losses.to_vec(),
        link: next_link(past.link, from, losses, &states),
        states,
        cost: Credits(5),
        receipts: Vec::new(),
    };
    let states = vec![("parameters".to_owned(), world::honest_state(1))];
    let losses = [LossBits(1), LossBits(2)];
    let fact = round(&past, 0, &losses, states.clone());
    past.apply(fact.clone()).unwrap();
    assert_eq!((past.kept.position, past.rounds), (2, 1));
    assert_eq!((past.spent, &past.losses[..]), (Credits(5), &losses[..]));
    // It counts once.
    let expected = Err(FactError::Position {
        found: 0,
        expected: 2,
    });
    assert_eq!(past.apply(fact), expected);
    // A round that only evaluates has no steps.
    let fact = round(&past, 2, &[], states.clone());
    past.apply(fact).unwrap();
    assert_eq!((past.kept.position, past.rounds), (2, 2));
    assert_eq!(past.spent, Credits(10));
    let mut changed = round(&past, 2, &losses, states);
    if let Fact::Round { link, .. } = &mut changed {
        *link = past.subject;
    }
    assert_eq!(past.apply(changed), Err(FactError::Link { position: 4 }));
}

#[test]
fn a_provider_is_not_blamed_for_a_lease_that_was_not_sold() {
    assert_eq!(
        blame_after_batches(0, LeaseEndReason::Unsold),
        Blame::Nothing
    );
}

#[test]
fn a_stopped_run_keeps_the_last_step() {
    let mut world = World::new(5, vec![Style::Honest]);
    world.is_calm = true;
    world.stop_after = Some(9);
    world.live();
    let ends: Vec<_> = world.ends.iter().take(1).collect();
    assert_eq!(ends, [&End::Stopped]);
    world.assert_well();
    let done = world.first_stop.expect("it stopped");
    assert!(done >= 9, "{done}");
}

#[test]
fn a_journal_in_which_a_link_is_missing_or_changed_is_refused() {
    let world = play(World::new(2, vec![Style::Honest]));
    let facts = &world.disk;
    assert!(Past::from_facts(facts.iter().cloned()).is_ok());
    let kept: Vec<usize> = (0..facts.len())
        .filter(|it| matches!(facts[*it], Fact::Kept { .. }))
        .collect();
    let mut missing = facts.clone();
    missing.remove(kept[0]);
    assert!(matches!(
        Past::from_facts(missing),
        Err(FactError::Position { .. })
    ));
    let mut twice = facts.clone();
    twice.insert(kept[0], facts[kept[0]].clone());
    assert!(matches!(
        Past::from_facts(twice),
        Err(FactError::Position { .. })
    ));
    let mut changed = facts.clone();
    if let Fact::Kept { losses, .. } = &mut changed[kept[0]] {
        losses[0].0 ^= 1;
    }
    assert!(matches!(
        Past::from_facts(changed),
        Err(FactError::Link { .. })
    ));
    assert_eq!(Past::from_facts([]), Err(FactError::NoBegin));
}

#[test]
fn a_root_names_each_state_and_not_their_order() {
    let [a, b] = [b"a", b"b"].map(|bytes| ContentId::for_content(bytes));
    let root = |states: &[(&str, ContentId)]| {
        let states = states.iter().map(|(name, id)| ((*name).to_owned(), *id));
        states_root(&states.collect())
    };
    assert_eq!(root(&[("m", a), ("v", b)]), root(&[("v", b), ("m", a)]));
    assert_ne!(root(&[("m", a), ("v", b)]), root(&[("m", b), ("v", a)]));
    assert_ne!(root(&[("mv", a)]), root(&[("m", a)]));
}

/// Begins a run of leases of twenty steps, each of which brings the states.
fn begin_short() -> TrainCore {
    let began = Fact::Began {
        subject: ContentId::for_content(b"subject"),
        payer: world::PAYER,
        steps: 100,
        states: vec![("parameters".to_owned(), world::honest_state(0))],
        command: String::new(),
        at: souk_market::Millis(1),
        audits: None,
    };
    let spec = RunSpec {
        keep_steps: 1,
        lease_steps_max: 20,
        budget: None,
        evaluation: None,
    };
    let (mut core, _) = TrainCore::begin(spec, began);
    core.apply(Event::Recorded);
    core
}

/// Answers some of the eight requests of the evaluation with which a lease begins, which then ends
/// for this reason. Returns how its provider is to blame.
fn blame_after_batches(answers: u64, why: LeaseEndReason) -> Blame {
    let (mut core, provider) = (begin_short(), AccountKey([7; 32]));
    let spec = RunSpec {
        evaluation: Some(EvaluationSpec {
            every_steps: 1000,
            requests: 8,
        }),
        ..core.spec
    };
    (core, _) = TrainCore::resume(spec, core.past().clone());
    let job = souk_market::JobId([1; 32]);
    core.apply(Event::Quoted { job, provider });
    core.apply(Event::Recorded);
    for _ in 0..answers {
        core.apply(Event::BatchAnswered);
    }
    let actions = core.apply(Event::LeaseEnded(LeaseEnd {
        cost: Some(Credits(1)),
        receipts: Vec::new(),
        why,
        request_time: None,
        planned_time: Micros::from_millis(1_000),
    }));
    let blame = actions.iter().find_map(|action| match action {
        Action::Record(Fact::LeaseOver { blame, .. }) => Some(*blame),
        _ => None,
    });
    blame.expect("the lease is over")
}

#[test]
fn each_batch_of_an_evaluation_speaks_for_the_provider() {
    use LeaseEndReason::{Fault, TimeOver, Unsigned};
    assert_eq!(blame_after_batches(0, Fault), Blame::Avoided);
    assert_eq!(blame_after_batches(1, Fault), Blame::Lost);
    assert_eq!(blame_after_batches(0, TimeOver), Blame::Lost);
    assert_eq!(blame_after_batches(1, TimeOver), Blame::Nothing);
    assert_eq!(blame_after_batches(0, Unsigned), Blame::Nothing);
    assert_eq!(blame_after_batches(1, Unsigned), Blame::Lost);
}

/// Does some steps in each of some leases, which then end for this reason; a request of each takes
/// so many milliseconds. Returns the wish for the next one.
fn wish_after(answers: u64, why: LeaseEndReason, times: &[u64]) -> LeaseWish {
    let state = |position| vec![("parameters".to_owned(), world::honest_state(position))];
    let (mut core, mut actions) = (begin_short(), Vec::new());
    let provider = AccountKey([7; 32]);
    let mut done = 0;
    for (lease, time) in (0..).zip(times) {
        let job = souk_market::JobId([lease; 32]);
        core.apply(Event::Quoted { job, provider });
        core.apply(Event::Recorded);
        for _ in 0..answers {
            core.apply(Event::StepWanted);
            done += 1;
            let states = Some(state(done));
            let loss = LossBits(0);
            core.apply(Event::Answered(StepAnswer::Done { loss, states }));
            core.apply(Event::Recorded);
        }
        actions = core.apply(Event::LeaseEnded(LeaseEnd {
            cost: Some(Credits(1)),
            receipts: Vec::new(),
            why,
            request_time: (answers > 0).then_some(Micros::from_millis(*time)),
            planned_time: Micros::from_millis(1_000),
        }));
        core.apply(Event::Recorded);
    }
    let wish = actions.into_iter().find_map(|action| match action {
        Action::Quote(wish) => Some(wish),
        _ => None,
    });
    wish.expect("the run goes on")
}

#[test]
fn the_provider_that_sold_the_lease_is_to_blame_and_not_the_planned_one() {
    let [planned, sold] = [7, 8].map(|it| AccountKey([it; 32]));
    let mut core = begin_short();
    let job = souk_market::JobId([1; 32]);
    core.apply(Event::Quoted {
        job,
        provider: planned,
    });
    core.apply(Event::Recorded);
    core.apply(Event::Leased {
        provider: sold,
        escrow: Credits(5),
    });
    core.apply(Event::Answered(StepAnswer::Malformed));
    core.apply(Event::LeaseEnded(LeaseEnd {
        cost: None,
        receipts: Vec::new(),
        why: LeaseEndReason::Cancelled,
        request_time: None,
        planned_time: Micros::from_millis(1_000),
    }));
    let past = core.past();
    assert_eq!(past.banned.iter().collect::<Vec<_>>(), [&sold]);
    assert_eq!(past.spent, Credits(5));
}

#[test]
fn a_run_whose_disk_failed_forgets_no_states() {
    let (mut core, provider) = (begin_short(), AccountKey([7; 32]));
    let job = souk_market::JobId([1; 32]);
    core.apply(Event::Quoted { job, provider });
    core.apply(Event::Recorded);
    let states = Some(vec![("parameters".to_owned(), world::honest_state(1))]);
    let loss = LossBits(0);
    core.apply(Event::Answered(StepAnswer::Done { loss, states }));
    let cancelled = core.apply(Event::NotRecorded);
    assert_eq!(cancelled, [Action::CancelLease], "the states are not there");
    assert_eq!(core.apply(Event::Recorded), [], "the old ones stay");
    let ended = core.apply(Event::LeaseEnded(LeaseEnd {
        cost: Some(Credits(3)),
        receipts: Vec::new(),
        why: LeaseEndReason::Cancelled,
        request_time: None,
        planned_time: Micros::from_millis(1_000),
    }));
    assert_eq!(ended, [Action::End(End::Journal)]);
}

#[test]
fn a_lease_whose_time_is_over_is_no_fault_of_its_provider() {
    use LeaseEndReason::{Fault, TimeOver};
    let provider = [AccountKey([7; 32])];
    let avoided = |answers, why, times: &[u64]| wish_after(answers, why, times).excluded;
    assert_eq!(avoided(1, TimeOver, &[900, 3600, 900]), []);
    // One whose requests take ever longer is not bought from for ever.
    assert_eq!(avoided(1, TimeOver, &[900, 3601]), []);
    assert_eq!(avoided(1, TimeOver, &[900, 3601, 14_405]), provider);
    assert_eq!(avoided(5, Fault, &[9]), []);
    assert_eq!(avoided(5, Fault, &[9, 9]), provider);
    // One that is far slower than its ask states is avoided at once.
    assert_eq!(avoided(5, TimeOver, &[16_100]), []);
    assert_eq!(avoided(5, TimeOver, &[16_101]), provider);
    // Whoever does no step is avoided at once, unless the time of the lease was over.
    assert_eq!(avoided(0, Fault, &[9]), provider);
    assert_eq!(avoided(0, TimeOver, &[9]), []);
}

#[test]
fn providers_that_were_avoided_get_one_more_chance_if_no_other_is_left() {
    let (mut core, provider) = (begin_short(), AccountKey([7; 32]));
    let excluded = |actions: Vec<Action>| {
        let wish = actions.into_iter().find_map(|action| match action {
            Action::Quote(wish) => Some(wish.excluded),
            _ => None,
        });
        wish.expect("the run looks for a lease")
    };
    let fail = |core: &mut TrainCore, lease: u8| {
        let job = souk_market::JobId([lease; 32]);
        core.apply(Event::Quoted { job, provider });
        core.apply(Event::Recorded);
        let actions = core.apply(Event::LeaseEnded(LeaseEnd {
            cost: Some(Credits(1)),
            receipts: Vec::new(),
            why: LeaseEndReason::Fault,
            request_time: None,
            planned_time: Micros::from_millis(1_000),
        }));
        core.apply(Event::Recorded);
        excluded(actions)
    };
    assert_eq!(fail(&mut core, 1), [provider]);
    assert_eq!(
        excluded(core.apply(not_quoted(Shortage::Offers))),
        [],
        "one more chance"
    );
    assert_eq!(fail(&mut core, 2), [provider]);
    let over = Action::Record(Fact::Over { how: End::NoLease });
    assert_eq!(
        core.apply(not_quoted(Shortage::Offers)),
        [over],
        "and no third one"
    );
}

#[test]
fn the_time_of_a_lease_is_that_of_the_slowest_one_before() {
    let time = |times: &[u64]| wish_after(2, LeaseEndReason::TimeOver, times).request_time;
    assert_eq!(time(&[8]), Some(Micros::from_millis(8)));
    assert_eq!(time(&[8, 30, 9]), Some(Micros::from_millis(30)));
    assert_eq!(
        wish_after(0, LeaseEndReason::TimeOver, &[8]).request_time,
        None
    );
}

#[test]
fn a_lease_whose_time_ends_soon_keeps_its_last_step_and_the_next_one_is_long_enough() {
    let mut warnings = 0;
    for seed in 0..40 {
        let mut world = World::new(seed, vec![Style::Lagging]);
        world.is_calm = true;
        world.lagging_limit = Some(20 + seed % 9);
        world.set_lease_steps_max(1_000);
        let world = play(world);
        assert!(world.is_done(), "seed {seed}: {:?}", world.ends);
        let positions = world.sent.iter().map(|step| step.position);
        assert!(positions.eq(0..world.steps), "seed {seed}: each step once");
        let lost = &world.core.past().lost;
        assert!(lost.is_empty(), "seed {seed}: nobody is to blame");
        let mut times = world.request_times.iter();
        assert_eq!(times.next(), Some(&None), "the ask determines the first");
        assert!(times.all(|it| *it == Some(world::LAGGING_TIME)));
        assert!(world.request_times.len() <= 2, "the second is long enough");
        warnings += world.warnings;
    }
    assert!(warnings > 20, "{warnings} warnings");
}
