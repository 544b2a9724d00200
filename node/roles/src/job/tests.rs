//! Tests a job with providers that are honest, fail or cheat: short scripts of one situation each,
//! and a thousand random histories.

mod world;

use std::collections::BTreeSet;

use proptest::prelude::*;
use souk_market::{Credits, LeaseId, LeaseState, Millis, Refusal};

use super::reason::Term;
use super::running::RUN_ALLOWANCE;
use super::*;
use crate::lease::{Failure, ProviderMessage};
use world::{Style, World, assert_refused, limits};

fn world(styles: &[Style], requests: u32) -> World {
    World::new(7, styles.to_vec(), requests, limits())
}

fn assert_done(world: &mut World, requests: usize) {
    let outcome = world.run();
    assert_eq!(outcome.how, End::Done, "{:?}", outcome.before);
    assert_eq!(world.answers.len(), requests);
    assert!(world.answers.iter().all(|(_, is_right)| *is_right));
    world.assert_rest();
}

/// How many leases were paid by a receipt.
fn paid(world: &World) -> usize {
    let is_paid = |state: &LeaseState| {
        let LeaseState::Closed { reason, .. } = state else {
            return false;
        };
        *reason == souk_market::CloseReason::Receipt
    };
    world
        .leases()
        .iter()
        .filter(|lease| is_paid(&lease.state))
        .count()
}

#[test]
fn one_request_is_bought_run_given_and_paid() {
    let mut world = world(&[Style::Honest; 3], 1);
    assert_done(&mut world, 1);
    assert_eq!(paid(&world), 2, "one receipt a leg");
    let outcome = world.outcome.clone().unwrap();
    assert!(
        outcome
            .spending
            .is_some_and(|it| it.held == Credits(0) && it.spent > Credits(0))
    );
}

#[test]
fn a_stream_is_answered_in_order_under_one_gang() {
    let mut world = world(&[Style::Honest; 3], 20);
    assert_done(&mut world, 20);
    assert_eq!(paid(&world), 2);
}

#[test]
fn more_requests_than_a_receipt_names_are_bought_anew() {
    let mut world = world(&[Style::Honest; 3], 300);
    assert_done(&mut world, 300);
    assert!(paid(&world) > 2 && paid(&world).is_multiple_of(2));
}

#[test]
fn who_vanishes_is_done_without_and_what_was_made_before_is_kept() {
    let mut world = world(&[Style::Honest, Style::Vanishes(3), Style::Honest], 1);
    assert_done(&mut world, 1);
    assert_eq!(world.outcome.as_ref().unwrap().before.len(), 1);
    assert_eq!(world.facts(|fact| matches!(fact, Fact::Kept { .. })), 1);
    let starts = world.facts(|fact| matches!(fact, Fact::Attempt { .. }));
    assert_eq!(starts, 2);
}

#[test]
fn four_may_be_lost_and_a_fifth_finishes() {
    let mut styles = vec![Style::Vanishes(2); 4];
    styles.push(Style::Honest);
    let mut world = world(&styles, 1);
    world.legs = 1;
    assert_done(&mut world, 1);
    assert_eq!(world.outcome.as_ref().unwrap().before.len(), 4);
}

#[test]
fn the_fifth_loss_ends_the_job_and_says_whom_it_tried() {
    let mut world = world(&[Style::Fails; 6], 1);
    world.legs = 1;
    let outcome = world.run();
    let End::Failed(reason) = outcome.how else {
        panic!("{outcome:?}");
    };
    assert_eq!(reason.code(), "provider_failed");
    assert_eq!(outcome.before.len(), 4);
    world.assert_rest();
}

#[test]
fn who_says_nothing_is_not_waited_for_longer_than_its_part_may_take() {
    let mut world = world(&[Style::Mute(3), Style::Honest, Style::Honest], 1);
    assert_done(&mut world, 1);
    let before = &world.outcome.as_ref().unwrap().before;
    assert_eq!(before[0].code(), "provider_slow");
}

#[test]
fn a_part_may_take_as_much_longer_as_its_request_brings_more_than_was_planned_with() {
    let waited = |size| {
        let mut world = world(&[Style::Mute(3), Style::Honest, Style::Honest], 1);
        world.size = size;
        assert_done(&mut world, 1);
        match &world.outcome.as_ref().unwrap().before[0] {
            Reason::Lost {
                loss: Loss::Slow { patience },
                ..
            } => patience.0,
            other => panic!("{other}"),
        }
    };
    let beyond = |size| waited(size) - RUN_ALLOWANCE.0;
    assert_eq!(beyond(8), 8 * beyond(1));
}

#[test]
fn a_caller_that_takes_its_time_costs_no_provider_its_lease() {
    let mut world = world(&[Style::Honest; 3], 2);
    let second = world.to_ask.pop_back();
    while world.core.status().waiting == 0 {
        world.step();
    }
    world.is_holding = true;
    while world.answers.is_empty() {
        world.step();
    }
    // Longer than any part may take, and not so long that the lease is nearly over.
    world.pass(7_000_000);
    world.apply(Event::TimerFired);
    world.is_holding = false;
    world.to_ask.extend(second);
    assert_done(&mut world, 2);
    assert!(world.outcome.as_ref().unwrap().before.is_empty());
    assert_eq!(paid(&world), 2, "under the leases of the first");
}

/// A job of two requests whose caller holds the second back for so long, and whose first provider
/// bills so much idle time.
fn held_job(held: Micros, billed: Micros) -> World {
    let style = Style::BillsIdle(billed);
    let mut world = world(&[style, Style::Honest, Style::Honest], 2);
    let second = world.to_ask.pop_back();
    world.legs = 1;
    while world.core.status().waiting == 0 {
        world.step();
    }
    world.is_holding = true;
    while world.answers.is_empty() {
        world.step();
    }
    world.pass(held.0);
    world.apply(Event::TimerFired);
    world.is_holding = false;
    world.to_ask.extend(second);
    assert_done(&mut world, 2);
    world
}

#[test]
fn who_bills_idle_time_is_paid_for_what_its_buyer_saw_and_for_no_more() {
    let seconds = Micros::from_seconds;
    let world = held_job(seconds(7), seconds(6));
    assert_eq!(world.facts(|fact| matches!(fact, Fact::Refused { .. })), 0);
    let cost: u64 = world.leases().iter().map(|lease| lease.cost.0).sum();
    assert!(cost >= 600, "six seconds at a tenth of 1,000: {cost}");
    let world = held_job(seconds(1), seconds(6));
    assert_eq!(world.facts(|fact| matches!(fact, Fact::Refused { .. })), 1);
    assert_nothing_gained(&world, Style::BillsIdle(seconds(6)));
}

#[test]
fn a_job_of_one_request_pays_for_no_idle_time() {
    for legs in [1, 2] {
        let style = Style::BillsIdle(Micros::from_millis(1));
        let mut world = world(&[style, Style::Honest, Style::Honest], 1);
        world.legs = legs;
        assert_done(&mut world, 1);
        assert_nothing_gained(&world, style);
    }
}

#[test]
fn who_says_the_same_again_is_done_without_and_writes_one_line_each() {
    let fetched = ProviderMessage::Fetched {
        pieces: 1,
        held: 0,
        bytes: 1,
    };
    let (request, part) = (0, 0);
    let running = ProviderMessage::Running { request, part };
    let stalled = ProviderMessage::Stalled(Failure::Stopping);
    for message in [fetched, running, stalled] {
        let mut world = world(&[Style::Honest; 2], 1);
        world.legs = 1;
        while world.core.status().working == 0 {
            world.step();
        }
        let before = world.events.len();
        let place = 0;
        for _ in 0..10_000 {
            let leg = Leg { attempt: 0, place };
            let message = message.clone();
            world.apply(Event::MessageReceived { leg, message });
        }
        let is_told = |event: &&JobEvent| {
            matches!(event, JobEvent::Fetched { .. } | JobEvent::Running { .. })
        };
        let told = world.events[before..].iter().filter(is_told).count();
        assert!(told <= 1, "{message:?}: {told}");
        assert_done(&mut world, 1);
        let reasons = &world.outcome.as_ref().unwrap().before;
        assert_eq!(reasons[0].code(), "provider_vanished", "{message:?}");
    }
}

#[test]
fn who_speaks_out_of_turn_is_done_without() {
    let mut world = world(&[Style::Confused, Style::Honest, Style::Honest], 3);
    assert_done(&mut world, 3);
    let before = &world.outcome.as_ref().unwrap().before;
    assert_eq!(before[0].code(), "provider_vanished");
}

#[test]
fn who_gives_its_device_back_is_paid_for_what_it_did() {
    let mut world = world(&[Style::Reclaims(1), Style::Honest, Style::Honest], 1);
    assert_done(&mut world, 1);
    let before = &world.outcome.as_ref().unwrap().before;
    assert_eq!(before[0].code(), "reclaimed");
    assert!(paid(&world) >= 2);
}

#[test]
fn who_bills_what_there_was_not_is_refused_and_disputed() {
    let mut world = world(&[Style::Overbills, Style::Honest, Style::Honest], 1);
    assert_done(&mut world, 1);
    assert_eq!(world.facts(|fact| matches!(fact, Fact::Refused { .. })), 1);
    let leases = world.leases();
    let disputed: Vec<_> = leases.iter().filter(|it| is_disputed(it)).collect();
    assert_eq!(disputed.len(), 1);
    assert_refused(disputed[0]);
}

#[test]
fn who_misstates_a_term_of_its_lease_is_refused_before_anything_is_signed() {
    for term in [Term::Class, Term::Model, Term::IdlePart] {
        for requests in [1, 20] {
            let style = Style::Misstates(term);
            let mut world = world(&[style, Style::Honest, Style::Honest], requests);
            assert_done(&mut world, requests as usize);
            assert_eq!(paid(&world), paid_of(&world), "what is signed is settled");
            let reason = Objection::Terms(term).to_string();
            let refused =
                |fact: &Fact| matches!(fact, Fact::Refused { why, .. } if why.contains(&reason));
            assert_eq!(world.facts(refused), 1);
            assert_nothing_gained(&world, style);
        }
    }
}

#[test]
fn a_receipt_that_the_market_refuses_costs_its_provider_the_pay_and_the_job_nothing() {
    for requests in [1, 20] {
        let mut world = world(&[Style::Honest; 3], requests);
        let lease = LeaseId(1);
        world.settlement_fault = Some(CommandError::Refused(Refusal::ReceiptTerms { lease }));
        assert_done(&mut world, requests as usize);
        assert_eq!(world.facts(|fact| matches!(fact, Fact::Refused { .. })), 1);
        assert_eq!(world.facts(|fact| matches!(fact, Fact::Excluded { .. })), 1);
        assert_eq!(paid(&world), paid_of(&world) - 1);
    }
}

#[test]
fn a_job_whose_results_are_here_is_done_though_no_answer_came_to_a_settlement() {
    let mut world = world(&[Style::Honest; 3], 1);
    let why = "no validator".to_owned();
    world.settlement_fault = Some(CommandError::Unreachable(why));
    assert_done(&mut world, 1);
    let told = |event: &&JobEvent| matches!(event, JobEvent::NotCommanded { .. });
    assert_eq!(world.events.iter().filter(told).count(), 1);
    assert_eq!(world.facts(|fact| matches!(fact, Fact::Excluded { .. })), 0);
}

/// The leases of providers of a style.
fn leases_of(world: &World, style: Style) -> Vec<souk_market::Lease> {
    let is_of = |it: &souk_market::Lease| {
        let mut places = (0..).zip(&world.styles);
        places.any(|(place, of)| *of == style && it.provider == liar(place))
    };
    let mut leases = world.leases();
    leases.retain(is_of);
    leases
}

/// Providers of a style gained nothing by the job: their leases are refused.
fn assert_nothing_gained(world: &World, style: Style) {
    let leases = leases_of(world, style);
    assert!(!leases.is_empty());
    leases.iter().for_each(assert_refused);
}

#[test]
fn who_bills_the_whole_lease_for_a_moments_work_is_not_paid_for_it() {
    for (requests, legs) in [(1, 1), (1, 2), (20, 1), (20, 2)] {
        let mut world = world(&[Style::BillsAll, Style::Honest, Style::Honest], requests);
        world.legs = legs;
        assert_done(&mut world, requests as usize);
        let refused = world.facts(|fact| matches!(fact, Fact::Refused { .. }));
        assert_eq!(refused, 1, "{requests} requests over {legs} providers");
        assert_nothing_gained(&world, Style::BillsAll);
    }
}

#[test]
fn who_bills_the_whole_lease_of_a_session_is_not_paid_for_it() {
    for legs in [1, 2] {
        let mut world = session(&[Style::BillsAll, Style::Honest], 24, 2);
        world.legs = legs;
        assert_done(&mut world, 24);
        let refused = world.facts(|fact| matches!(fact, Fact::Refused { .. }));
        assert_eq!(refused, 1, "{legs} providers");
        assert_nothing_gained(&world, Style::BillsAll);
    }
}

#[test]
fn who_notes_the_time_in_which_it_waited_for_another_is_not_paid_for_it() {
    let mut world = world(&[Style::LiesLate, Style::Honest, Style::Honest], 1);
    world.parts = 2;
    let mut noted = None;
    while world.outcome.is_none() {
        world.step();
        let leases = world.leases();
        let mut started = leases.iter().filter(|lease| lease.work_started);
        let waiting = started.find(|lease| lease.provider == liar(1));
        if let (None, Some(lease)) = (noted, waiting) {
            noted = Some(lease.id);
            world.note_all(lease.id);
            world.tell_changes();
        }
    }
    let noted = noted.expect("a lease was begun in the log");
    let lease = world.leases().into_iter().find(|it| it.id == noted);
    let lease = lease.unwrap();
    assert_refused(&lease);
    let before = &world.outcome.as_ref().unwrap().before;
    assert_eq!(before[0].code(), "overnoted");
}

#[test]
fn a_budget_holds_although_the_market_forgets_what_was_paid() {
    // Of 60 requests in a lease each costs 1.5 ms; the shortest lease holds 1.6 s.
    let budget = Credits(1_750);
    let limits = Limits {
        budget: Some(budget),
        ..limits()
    };
    let mut world = World::forgetting(300, limits, 1);
    world.legs = 1;
    let End::Failed(reason) = world.run().how else {
        panic!("{:?}", world.outcome);
    };
    assert_eq!(reason.code(), "budget");
    assert_eq!(paid_of(&world), 2, "a third would be beyond it");
}

/// How many leases a journal says are paid.
fn paid_of(world: &World) -> usize {
    world.facts(|fact| matches!(fact, Fact::Right { .. }))
}

#[test]
fn inputs_that_two_providers_cannot_work_with_end_the_job_and_harm_nobody() {
    for (requests, legs) in [(1, 1), (1, 2), (6, 1)] {
        let mut world = world(&[Style::BlamesInput; 6], requests);
        world.legs = legs;
        let End::Failed(reason) = world.run().how else {
            panic!("{:?}", world.outcome);
        };
        assert_eq!(reason, Reason::BadInput("3 is not below 2".to_owned()));
        let attempts = world.facts(|fact| matches!(fact, Fact::Attempt { .. }));
        assert!(attempts <= 2, "{attempts} times");
        let blamed = |fact: &Fact| matches!(fact, Fact::Excluded { .. } | Fact::Refused { .. });
        assert_eq!(world.facts(blamed), 0, "nobody is blamed");
        // Who failed by them is paid the time that it took.
        let paid = world
            .leases()
            .iter()
            .filter(|it| it.cost > Credits(0))
            .count();
        assert_eq!(paid, paid_of(&world));
        assert!(paid > 0);
        world.assert_rest();
    }
}

#[test]
fn inputs_that_the_only_provider_cannot_work_with_end_the_job_at_once() {
    let mut world = world(&[Style::BlamesInput], 1);
    let before = world.now.tick;
    let End::Failed(reason) = world.run().how else {
        panic!("{:?}", world.outcome);
    };
    assert_eq!(reason.code(), "bad_input");
    assert_eq!(world.leases().len(), 1);
    assert!(
        world.now.tick.since(before) < Micros::from_seconds(1),
        "nothing is waited for"
    );
}

#[test]
fn who_blames_good_inputs_is_done_without_and_has_no_more_than_a_run_is_planned_to_take() {
    let mut world = world(&[Style::BlamesInput, Style::Honest, Style::Honest], 3);
    assert_done(&mut world, 3);
    let before = &world.outcome.as_ref().unwrap().before;
    assert_eq!(before[0].code(), "bad_input");
    // Five milliseconds of a device at a thousandth of a credit a second.
    let leases = leases_of(&world, Style::BlamesInput);
    let cost: u64 = leases.iter().map(|lease| lease.cost.0).sum();
    assert!(cost <= 5, "{leases:?}");
}

#[test]
fn who_fails_by_the_inputs_in_a_run_of_unknown_length_is_paid_the_time_that_it_took() {
    let mut world = world(&[Style::BlamesInput, Style::Honest, Style::Honest], 3);
    world.legs = 1;
    (world.is_open_ended, world.run_micros) = (true, 100_000);
    assert_done(&mut world, 3);
    let leases = leases_of(&world, Style::BlamesInput);
    let cost: u64 = leases.iter().map(|lease| lease.cost.0).sum();
    assert_eq!(cost, 100, "a tenth of a second at 1,000");
}

#[test]
fn an_output_that_never_arrives_costs_its_maker_the_lease_and_the_job_a_while() {
    for (requests, copies) in [(1, 1), (6, 1), (1, 2)] {
        let limits = Limits { copies, ..limits() };
        let styles = [&[Style::Trickles][..], &[Style::Honest; 3]].concat();
        let mut world = World::new(7, styles, requests, limits);
        world.legs = 1;
        let begun = world.now.tick;
        assert_done(&mut world, requests as usize);
        let before = &world.outcome.as_ref().unwrap().before;
        assert_eq!(before[0].code(), "output_lost");
        let took = world.now.tick.since(begun);
        let lease = Micros::from_seconds(20);
        assert!(took < FETCH_GRACE.plus(lease), "{took:?}");
        assert_nothing_gained(&world, Style::Trickles);
    }
}

#[test]
fn who_serves_the_buyer_and_starves_its_readers_is_left_once_two_of_them_failed() {
    let styles = [&[Style::Starves][..], &[Style::Honest; 5]].concat();
    let mut world = world(&styles, 6);
    assert_done(&mut world, 6);
    let before = &world.outcome.as_ref().unwrap().before;
    let codes: Vec<&str> = before.iter().map(Reason::code).collect();
    assert_eq!(codes, ["provider_failed", "output_lost"]);
    assert_eq!(before[1].culprit(), Some(liar(0)));
}

/// Readers read from several makers: only the one that starves them is left for that.
#[test]
fn who_serves_its_readers_is_not_left_for_another_maker_of_their_inputs() {
    let mut left = 0;
    for (place, legs) in (0..6).flat_map(|place| (2..=6).map(move |legs| (place, legs))) {
        let mut styles = vec![Style::Honest; 9];
        styles[place] = Style::Starves;
        let mut world = world(&styles, 6);
        (world.parts, world.legs) = (7, legs);
        world.run();
        let before = &world.outcome.as_ref().unwrap().before;
        let lost = before.iter().filter(|it| it.code() == "output_lost");
        for reason in lost {
            left += 1;
            let culprit = reason.culprit();
            assert_eq!(
                culprit,
                Some(liar(place as u8)),
                "{place} {legs}: {before:?}"
            );
        }
    }
    assert!(left > 5, "{left}");
}

#[test]
fn who_stands_still_is_left_within_ten_seconds_however_long_its_part_may_take() {
    for messages in 1..5 {
        let mut world = world(&[Style::Freezes(messages), Style::Honest, Style::Honest], 1);
        // A part of it may take minutes.
        world.size = 1_000;
        let begun = world.now.tick;
        assert_done(&mut world, 1);
        let took = world.now.tick.since(begun);
        let before = &world.outcome.as_ref().unwrap().before;
        assert_eq!(
            before[0].code(),
            "provider_vanished",
            "after {messages} messages"
        );
        assert!(
            took < Micros::from_seconds(10),
            "{took:?} after {messages} messages"
        );
    }
}

#[test]
fn who_was_started_again_is_bought_from_again() {
    for messages in 1..6 {
        let mut world = world(&[Style::Restarts(messages)], 1);
        world.legs = 1;
        assert_done(&mut world, 1);
        let before = &world.outcome.as_ref().unwrap().before;
        assert_eq!(
            before[0].code(),
            "provider_vanished",
            "after {messages} messages"
        );
        assert_eq!(world.leases().len(), 2);
    }
}

#[test]
fn an_answer_that_was_paid_and_not_written_is_fetched_again_and_not_bought() {
    for requests in [1, 6] {
        let mut world = world(&[Style::Honest; 3], requests);
        world.refuse_answers_after = Some(0);
        assert_eq!(world.run().how, End::Cancelled);
        let (leases, paid) = (world.leases().len(), paid(&world));
        world.refuse_answers_after = None;
        world.restart_buyer();
        assert_done(&mut world, requests as usize);
        if requests == 1 {
            assert_eq!(world.leases().len(), leases, "nothing is bought");
            assert_eq!(paid_of(&world), paid);
        }
    }
}

#[test]
fn a_job_that_goes_on_takes_what_its_provider_is_still_at() {
    let mut world = world(&[Style::LiesLate], 1);
    (world.legs, world.parts) = (1, 2);
    while world.core.status().working == 0 {
        world.step();
    }
    world.restart_buyer();
    assert_eq!(world.run().how, End::Done);
    assert_eq!(world.leases().len(), 1, "nothing is bought");
    assert_eq!(world.facts(|fact| matches!(fact, Fact::Excluded { .. })), 0);
    assert_eq!((world.answers.len(), paid(&world)), (1, 1));
    world.assert_rest();
}

#[test]
fn a_job_of_some_seconds_tells_the_log_and_who_made_nothing_of_it_is_disputed() {
    let mut world = world(&[Style::Mute(3), Style::Honest, Style::Honest], 1);
    assert_done(&mut world, 1);
    let leases = world.leases();
    let started: Vec<_> = leases.iter().filter(|lease| lease.work_started).collect();
    assert!(!started.is_empty(), "it waited for seconds");
    let disputed: Vec<_> = leases.iter().filter(|it| is_disputed(it)).collect();
    assert!(!disputed.is_empty());
    for lease in disputed {
        assert!(lease.work_started);
        assert_refused(lease);
    }
}

#[test]
fn the_note_of_who_says_nothing_is_disputed_and_not_accepted() {
    let mut world = world(&[Style::Mute(3), Style::Honest, Style::Honest], 1);
    let mut noted = None;
    while world.outcome.is_none() {
        world.step();
        let leases = world.leases();
        let started = leases.iter().find(|lease| lease.work_started);
        if let (None, Some(lease)) = (noted, started) {
            noted = Some(lease.id);
            world.note_all(lease.id);
        }
    }
    let noted = noted.expect("a lease was begun in the log");
    let leases = world.leases();
    let lease = leases.iter().find(|lease| lease.id == noted).unwrap();
    assert_refused(lease);
}

fn is_disputed(lease: &souk_market::Lease) -> bool {
    let disputed = souk_market::CloseReason::Disputed;
    match lease.state {
        LeaseState::Due { reason, .. } | LeaseState::Closed { reason, .. } => reason == disputed,
        _ => false,
    }
}

#[test]
fn a_tensor_that_is_not_taken_goes_through_the_buyer_or_its_consumer_is_done_without() {
    let mut world = world(&[Style::Honest, Style::Untaking, Style::Honest], 1);
    assert_done(&mut world, 1);
    let before = &world.outcome.as_ref().unwrap().before;
    assert_eq!(before.first().map(Reason::code), Some("untaken"));
}

#[test]
fn a_job_holds_nothing_of_the_requests_whose_answers_are_taken() {
    for copies in [1, 2] {
        let limits = Limits { copies, ..limits() };
        let mut world = World::new(7, vec![Style::Honest; 5], 40, limits);
        // Two neighbours round otherwise, so their results are fetched and compared.
        world.legs = 1;
        let mut most = 0;
        while world.outcome.is_none() {
            world.step();
            most = most.max(world.held_count());
        }
        assert_done(&mut world, 40);
        assert_eq!(world.held_count(), 0, "{copies} copies");
        // Of each request under way the input, and of each part the output of each run.
        let each = 1 + copies * world.parts;
        assert!(most <= (world.window() * each) as usize, "{most} at a time");
    }
}

#[test]
fn a_buyer_without_room_for_an_output_ends_its_job_and_blames_nobody() {
    for (copies, at) in [(1, 0), (1, 2), (2, 0), (2, 3)] {
        let limits = Limits { copies, ..limits() };
        let mut world = World::new(7, vec![Style::Honest; 5], 6, limits);
        world.full_at = Some(at);
        let outcome = world.run();
        let End::Failed(reason) = outcome.how else {
            panic!("{:?}", outcome.how);
        };
        assert_eq!(reason.code(), "memory", "fetch {at} of {copies} copies");
        assert!(outcome.before.is_empty(), "{:?}", outcome.before);
        let blamed = |fact: &Fact| matches!(fact, Fact::Excluded { .. } | Fact::Refused { .. });
        assert_eq!(world.facts(blamed), 0, "nobody is blamed");
        world.assert_rest();
    }
}

fn liar(place: u8) -> AccountKey {
    AccountKey::from(&souk_market::SigningKey::from_bytes(&[place + 10; 32]))
}

fn verified(styles: &[Style], requests: u32) -> World {
    let limits = Limits {
        copies: 2,
        ..limits()
    };
    World::new(11, styles.to_vec(), requests, limits)
}

#[test]
fn two_that_round_otherwise_agree_and_both_are_paid() {
    let mut world = verified(&[Style::Honest; 5], 3);
    assert_done(&mut world, 3);
    assert_eq!(paid(&world), 4);
    assert_eq!(world.facts(|fact| matches!(fact, Fact::Refused { .. })), 0);
}

#[test]
fn of_two_that_differ_a_third_decides_and_the_liar_is_not_paid() {
    for place in 0..4 {
        for requests in [1, 6] {
            let mut styles = vec![Style::Honest; 7];
            styles[place] = Style::Liar;
            let mut world = verified(&styles, requests);
            assert_done(&mut world, requests as usize);
            let liar = liar(u8::try_from(place).unwrap());
            let leases = world.leases();
            for lease in leases.iter().filter(|it| it.provider == liar) {
                assert_refused(lease);
            }
            let before = &world.outcome.as_ref().unwrap().before;
            assert_eq!(before.first().map(Reason::code), Some("outvoted"));
        }
    }
}

#[test]
fn a_liar_that_is_judged_when_silence_would_have_paid_it_is_not_paid() {
    let mut styles = vec![Style::Honest; 7];
    styles[0] = Style::LiesLate;
    // Two thirds keep the buyer waiting for longer than a note does.
    (styles[4], styles[5]) = (Style::Mute(3), Style::Mute(3));
    let mut world = verified(&styles, 1);
    let mut noted = None;
    for _ in 0..200_000 {
        world.step();
        let of_liar = |event: &JobEvent| matches!(event, JobEvent::Finished { provider } if *provider == liar(0));
        if noted.is_none() && world.events.iter().any(of_liar) {
            let leases = world.leases();
            let lease = leases.iter().find(|it| it.provider == liar(0)).unwrap();
            assert!(lease.work_started, "it took three seconds");
            world.note(lease.id);
            noted = Some((lease.id, world.now.log));
        }
        if world.outcome.is_some() {
            break;
        }
    }
    let (noted, at) = noted.expect("the liar finished");
    assert_eq!(world.outcome.as_ref().map(|it| &it.how), Some(&End::Done));
    assert!(
        world.now.log.saturating_since(at) > Millis(10_000),
        "the note's time is over"
    );
    let leases = world.leases();
    let lease = leases.iter().find(|lease| lease.id == noted).unwrap();
    assert_refused(lease);
    world.assert_rest();
}

#[test]
fn a_job_that_is_stopped_refuses_what_has_begun_and_gave_nothing() {
    let mut world = world(&[Style::Mute(3); 3], 1);
    while !world.leases().iter().any(|lease| lease.work_started) {
        world.step();
    }
    world.apply(Event::Cancel);
    assert_eq!(world.run().how, End::Cancelled);
    for lease in world.leases().iter().filter(|lease| lease.work_started) {
        assert!(is_disputed(lease), "{lease:?}");
    }
    world.assert_rest();
}

#[test]
fn what_was_made_of_a_liars_value_is_not_kept_although_two_agree_on_it() {
    for messages in 1..9 {
        let mut styles = vec![Style::Honest; 7];
        styles[0] = Style::LiesAndVanishes(messages);
        assert_done(&mut verified(&styles, 1), 1);
    }
}

#[test]
fn what_was_made_of_a_lie_is_not_kept_by_a_buyer_that_was_killed() {
    for (liar, step) in (0..4).flat_map(|liar| (1..200).step_by(5).map(move |step| (liar, step))) {
        let mut styles = vec![Style::Honest; 7];
        styles[liar] = Style::Liar;
        let mut world = verified(&styles, 1);
        world.parts = 4;
        world.crash_at = Some(step);
        let outcome = world.run();
        assert_eq!(outcome.how, End::Done, "{liar} lies, killed at {step}");
        let is_right = world.answers.iter().all(|(_, is_right)| *is_right);
        assert!(is_right, "{liar} lies, killed at {step}");
    }
}

#[test]
fn a_gang_that_is_bought_late_is_within_the_budget_and_ended() {
    let limits = Limits {
        budget: Some(Credits(40_000)),
        ..limits()
    };
    let mut world = World::new(3, vec![Style::Honest; 4], 30, limits);
    world.lose_answer_to_gang = Some(false);
    world.gang_comes_after = Some(Micros::from_millis(120));
    assert_done(&mut world, 30);
    assert_eq!(
        world.leases().len(),
        4,
        "a gang that was late and one that was used"
    );
}

#[test]
fn a_gang_on_its_way_when_its_buyer_is_killed_is_within_the_budget() {
    let budget = Credits(16_000);
    let limits = Limits {
        budget: Some(budget),
        ..limits()
    };
    // It comes while the next life is at work, whenever that is.
    for after in (510..800).step_by(10) {
        let mut world = World::new(3, vec![Style::Honest; 4], 30, limits.clone());
        world.lose_answer_to_gang = Some(false);
        world.gang_comes_after = Some(Micros::from_millis(after));
        world.is_killed_with_gang = true;
        while world.outcome.is_none() {
            world.step();
            let leases = world.leases();
            let spent: u64 = leases.iter().map(|it| it.cost.0 + it.escrow.0).sum();
            assert!(spent <= budget.0, "{spent} after {after} ms");
        }
        assert_eq!(world.lives, 2);
        let jobs: BTreeSet<_> = world.leases().iter().map(|it| it.job).collect();
        assert_eq!(jobs.len(), 2, "a gang that was late and one that was used");
        world.assert_rest();
    }
}

#[test]
fn a_buyer_killed_again_and_again_with_a_gang_on_its_way_buys_under_no_number_twice() {
    let poor = Limits {
        budget: Some(Credits(160_000)),
        ..limits()
    };
    for limits in [limits(), poor] {
        let mut world = World::new(3, vec![Style::Honest; 4], 30, limits);
        world.is_killed_with_gang = true;
        for life in 2..=5 {
            world.lose_answer_to_gang = Some(false);
            while world.lives < life {
                world.step();
            }
        }
        assert_done(&mut world, 30);
        let numbers: BTreeSet<_> = world.bought_as.iter().collect();
        assert_eq!(numbers.len(), world.bought_as.len(), "one for each life");
        assert_eq!(numbers.len(), 5);
    }
}

#[test]
fn three_unlike_results_end_the_job_and_none_is_paid() {
    let mut world = verified(&[Style::Liar; 6], 1);
    world.legs = 1;
    let outcome = world.run();
    let End::Failed(reason) = &outcome.how else {
        panic!("{outcome:?}");
    };
    assert_eq!(reason.code(), "disagreement");
    world.assert_rest();
}

#[test]
fn a_budget_covers_every_attempt_and_what_is_held_is_waited_for() {
    let limits = Limits {
        budget: Some(Credits(15_100)),
        ..limits()
    };
    let styles = [Style::Vanishes(3), Style::Honest, Style::Honest];
    let mut world = World::new(3, styles.to_vec(), 1, limits);
    world.legs = 1;
    assert_done(&mut world, 1);
    assert!(world.now.tick > Micros::from_seconds(5), "it waited");
}

#[test]
fn a_budget_that_holds_no_lease_is_refused_with_both_figures() {
    let limits = Limits {
        budget: Some(Credits(10)),
        ..limits()
    };
    let mut world = World::new(3, vec![Style::Honest; 3], 1, limits);
    let outcome = world.run();
    let End::Failed(Reason::Escrow { needed, budget }) = outcome.how else {
        panic!("{outcome:?}");
    };
    assert!(needed > budget && budget == Credits(10));
}

#[test]
fn a_deadline_ends_the_job_and_its_leases() {
    let limits = Limits {
        deadline: Some(Micros::from_millis(500)),
        ..limits()
    };
    let mut world = World::new(5, vec![Style::Mute(3); 4], 1, limits);
    let outcome = world.run();
    assert!(matches!(outcome.how, End::Failed(Reason::Late(_))));
    world.assert_rest();
}

#[test]
fn a_job_that_is_stopped_ends_its_leases_at_any_moment() {
    for step in 1..400 {
        let mut world = world(&[Style::Honest; 4], 5);
        world.cancel_at = Some(step);
        let outcome = world.run();
        assert!(matches!(outcome.how, End::Cancelled | End::Done));
        world.assert_rest();
    }
}

#[test]
fn a_caller_that_wants_no_more_ends_the_job_and_pays_what_is_done() {
    let mut world = world(&[Style::Honest; 3], 20);
    world.refuse_answers_after = Some(5);
    let outcome = world.run();
    assert_eq!(outcome.how, End::Cancelled);
    assert_eq!(world.answers.len(), 5);
    world.assert_rest();
}

#[test]
fn a_buyer_killed_at_any_moment_goes_on_and_pays_nobody_twice() {
    for requests in [1, 6] {
        for step in 1..300 {
            let mut world = world(&[Style::Honest; 5], requests);
            world.crash_at = Some(step);
            let outcome = world.run();
            assert_eq!(
                outcome.how,
                End::Done,
                "killed at {step}: {:?}",
                outcome.before
            );
            assert_eq!(world.answers.len(), requests as usize, "killed at {step}");
            world.assert_rest();
        }
    }
}

#[test]
fn a_provider_is_paid_for_a_long_run_that_its_killed_buyer_did_not_see() {
    for step in 1..60 {
        let mut world = world(&[Style::Honest; 3], 1);
        (world.parts, world.legs) = (1, 1);
        world.run_micros = 400_000;
        world.crash_at = Some(step);
        let outcome = world.run();
        assert_eq!(outcome.how, End::Done, "killed at {step}");
        let refused = |fact: &Fact| matches!(fact, Fact::Refused { .. });
        assert_eq!(world.facts(refused), 0, "killed at {step}");
        world.assert_rest();
    }
}

#[test]
fn a_buyer_killed_among_liars_goes_on_and_takes_nothing_of_theirs() {
    // Where there is one part, answers say of all of it who was right.
    for (step, parts) in (1..500).step_by(3).flat_map(|step| [(step, 3), (step, 1)]) {
        let mut styles = vec![Style::Honest; 7];
        styles[1] = Style::Liar;
        let mut world = verified(&styles, 4);
        world.parts = parts;
        world.crash_at = Some(step);
        let outcome = world.run();
        assert_eq!(
            outcome.how,
            End::Done,
            "killed at {step}: {:?}",
            outcome.before
        );
        assert!(
            world.answers.iter().all(|(_, is_right)| *is_right),
            "killed at {step}"
        );
        let liar = liar(1);
        let is_paid = |fact: &Fact| {
            let Fact::Right { receipt } = fact else {
                return false;
            };
            receipt.body.provider == liar && !receipt.body.outputs.is_empty()
        };
        assert_eq!(world.facts(is_paid), 0, "killed at {step}");
        world.assert_rest();
    }
}

#[test]
fn a_journal_that_is_not_written_ends_the_job_and_its_leases() {
    let mut ends = BTreeSet::new();
    for record in 0..12 {
        let mut world = world(&[Style::Vanishes(3), Style::Honest, Style::Honest], 2);
        world.fail_record = Some(record);
        let outcome = world.run();
        match &outcome.how {
            End::Failed(reason) => assert_eq!(reason.code(), "journal"),
            how => assert_eq!(*how, End::Done, "that it is over is written last"),
        }
        ends.insert(matches!(outcome.how, End::Done));
        world.assert_rest();
    }
    assert_eq!(ends.len(), 2);
}

#[test]
fn who_was_not_heard_of_by_the_market_is_done_without() {
    let mut world = world(&[Style::Honest; 4], 1);
    world.unknown = Some(0);
    assert_done(&mut world, 1);
    let before = &world.outcome.as_ref().unwrap().before;
    assert_eq!(before[0].code(), "provider_unknown");
    assert_eq!(
        world.facts(|fact| matches!(fact, Fact::Skipped { n: 0, .. })),
        1
    );
}

#[test]
fn a_gang_of_which_no_answer_came_is_taken_where_it_was_bought() {
    for is_bought in [true, false] {
        let mut world = world(&[Style::Honest; 4], 1);
        world.lose_answer_to_gang = Some(is_bought);
        assert_done(&mut world, 1);
        let skipped = world.facts(|fact| matches!(fact, Fact::Skipped { .. }));
        assert_eq!(skipped, usize::from(!is_bought));
        assert_eq!(world.leases().len(), 2, "none was bought twice");
    }
}

/// A session of a ring: what a request leaves out is what the one before it made.
fn session(styles: &[Style], requests: u32, sequences: u32) -> World {
    World::session(7, styles.to_vec(), requests, sequences)
}

#[test]
fn requests_of_a_session_leave_out_what_is_fed_and_are_answered_in_the_order_of_their_sequences() {
    for (sequences, legs, parts) in [(1, 1, 1), (1, 2, 3), (2, 2, 2), (3, 3, 5)] {
        let mut world = session(&[Style::Honest; 4], 24, sequences);
        (world.legs, world.parts) = (legs, parts);
        assert_done(&mut world, 24);
        let left_out = (0..24).filter(|number| !world.brings(*number)).count();
        assert!(left_out > 10, "{left_out}");
        assert_eq!(paid(&world), legs as usize, "under one gang");
    }
}

#[test]
fn what_feeds_the_next_request_comes_to_the_caller_only_where_it_is_kept() {
    for (legs, parts) in [(1, 1), (2, 3)] {
        let mut world = session(&[Style::Honest; 4], 24, 1);
        (world.legs, world.parts, world.keeps_each) = (legs, parts, 8);
        assert_done(&mut world, 24);
    }
}

#[test]
fn a_session_that_nobody_harms_ends_done_also_step_by_step() {
    for (legs, parts) in [(1, 1), (2, 3)] {
        let mut world = World::session_step_by_step(vec![Style::Honest; 3], 12);
        (world.legs, world.parts) = (legs, parts);
        assert_done(&mut world, 12);
        assert!(world.outcome.as_ref().unwrap().before.is_empty());
        assert_eq!(paid(&world), legs as usize, "under one gang");
    }
}

#[test]
fn requests_are_sent_ahead_though_what_they_read_is_not_made() {
    let mut world = session(&[Style::Honest; 2], 24, 1);
    let mut ahead = 0;
    while world.outcome.is_none() {
        world.step();
        ahead = ahead.max(world.ahead());
    }
    assert_eq!(ahead, 4, "a window of one sequence");
}

#[test]
fn the_first_request_of_a_sequence_that_brings_nothing_ends_the_job_and_blames_nobody() {
    for number in [0, 1] {
        let mut world = session(&[Style::Honest; 3], 12, 2);
        world.forgets = Some(number);
        let outcome = world.run();
        let End::Failed(reason) = &outcome.how else {
            panic!("{outcome:?}");
        };
        assert_eq!(reason.culprit(), None, "{reason}");
        assert!(outcome.before.is_empty());
        world.assert_rest();
    }
}

#[test]
fn a_fed_value_that_is_not_taken_is_handed_on_while_somebody_waits_for_it() {
    // Nothing follows the only request of each sequence, which is known when that is made.
    let mut styles = [Style::Honest; 3];
    styles[0] = Style::Untaking;
    let mut world = session(&styles, 3, 3);
    world.parts = 2;
    while !world.has_said_last {
        world.feed();
    }
    assert_done(&mut world, 3);
    assert!(world.outcome.as_ref().unwrap().before.is_empty());
    // What may follow would wait for it for ever.
    let mut world = session(&styles, 12, 1);
    world.parts = 2;
    let outcome = world.run();
    let End::Failed(reason) = &outcome.how else {
        panic!("{outcome:?}");
    };
    assert_eq!(reason.code(), "untaken");
    world.assert_rest();
}

#[test]
fn a_session_whose_buyer_is_killed_gives_no_answer_of_another_request() {
    for step in (1..300).step_by(3) {
        let mut world = session(&[Style::Honest; 4], 8, 1);
        world.crash_at = Some(step);
        let outcome = world.run();
        let is_right = world.answers.iter().all(|(_, is_right)| *is_right);
        assert!(is_right, "killed at {step}: {:?}", outcome.how);
        world.assert_rest();
    }
}

/// A session of one provider that takes so long for each request, which nobody knew. Its leases end
/// before all requests are answered.
fn slow_session(run_micros: u64) -> World {
    let mut world = session(&[Style::Honest], 60, 1);
    (world.parts, world.legs, world.run_micros) = (1, 1, run_micros);
    world
}

#[test]
fn a_caller_that_is_warned_before_its_leases_end_has_the_answer_to_one_more_request() {
    for run_micros in [200_000, 300_000, 700_000, 1_100_000] {
        let mut world = slow_session(run_micros);
        while world.warned_after.is_empty() {
            world.step();
        }
        world.to_ask.truncate(1);
        let last = world.to_ask[0];
        assert_eq!(world.run().how, End::Done, "{run_micros}");
        assert_eq!(world.answers.last(), Some(&(last, true)), "{run_micros}");
        assert_eq!(world.warned_after.len(), 1, "it is warned once");
        assert_eq!(paid(&world), 1, "under one lease");
        let lease = &world.leases()[0];
        assert!(world.now.log < lease.deadline, "before the lease ends");
    }
}

#[test]
fn a_session_whose_time_is_over_blames_nobody() {
    let mut world = slow_session(700_000);
    let outcome = world.run();
    let End::Failed(reason) = &outcome.how else {
        panic!("{outcome:?}");
    };
    assert_eq!(reason.culprit(), None, "{reason}");
    assert!(outcome.before.is_empty());
    assert_eq!(paid(&world), 1, "what was answered is paid");
    world.assert_rest();
}

#[test]
fn a_job_that_is_no_session_is_not_warned() {
    let mut world = world(&[Style::Honest; 2], 8);
    assert_done(&mut world, 8);
    assert!(world.warned_after.is_empty());
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    let digest = || {
        let mut world = world(&[Style::Honest, Style::Vanishes(5), Style::Honest], 4);
        world.run();
        world.core.digest()
    };
    assert_eq!(digest(), digest());
}

fn style() -> impl Strategy<Value = Style> {
    prop_oneof![
        6 => Just(Style::Honest),
        1 => Just(Style::Liar),
        1 => (1..12_u32).prop_map(Style::Vanishes),
        1 => (1..12_u32).prop_map(Style::Mute),
        1 => Just(Style::Fails),
        1 => (0..4_u32).prop_map(Style::Reclaims),
        1 => (1..12_u32).prop_map(Style::LiesAndVanishes),
        1 => Just(Style::Overbills),
        1 => Just(Style::BillsAll),
        1 => Just(Style::BlamesInput),
        1 => (1..12_u32).prop_map(Style::Freezes),
        1 => Just(Style::Confused),
        1 => Just(Style::Untaking),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        .. ProptestConfig::default()
    })]

    /// Whatever providers do, and however answers are ordered, a job ends, keeps its promises on
    /// the way and leaves nothing running.
    #[test]
    fn every_job_ends_within_its_budget_and_leaves_no_lease(
        seed in any::<u64>(),
        styles in proptest::collection::vec(style(), 1..9),
        requests in prop_oneof![Just(1_u32), 2..12_u32],
        (parts, legs) in (1..6_u32, 1..4_u32),
        copies in 1..3_u32,
        chaos in prop_oneof![Just(0_u64), 0..60_u64],
        budget in proptest::option::of(10_000..200_000_u64),
        crash in proptest::option::of(1..400_u32),
        cancel in proptest::option::weighted(0.2, 1..600_u32),
    ) {
        let budget = budget.map(Credits);
        let limits = Limits { copies, budget, ..limits() };
        let lies = |it: &Style| matches!(it, Style::Liar | Style::LiesAndVanishes(_));
        let is_honest = !styles.iter().any(lies);
        let mut world = World::new(seed, styles, requests, limits);
        (world.parts, world.legs, world.chaos) = (parts, legs, chaos);
        (world.crash_at, world.cancel_at) = (crash, cancel);
        let outcome = world.run();
        world.assert_rest();
        // Liars differ here, so of two runs that agree none is a lie, nor made of one.
        let is_right = world.answers.iter().all(|(_, is_right)| *is_right);
        prop_assert!(is_right || (!is_honest && copies == 1));
        if outcome.how == End::Done {
            prop_assert_eq!(world.answers.len(), requests as usize);
        }
    }
}

/// A job of one part that takes its provider so many seconds, and of which nobody knew that.
fn long_job(seconds: u64, limits: Limits) -> World {
    let mut world = World::new(7, vec![Style::TakesLong(seconds)], 1, limits);
    (world.parts, world.legs, world.is_open_ended) = (1, 1, true);
    world
}

/// How long the only lease of a job became.
fn length(world: &World) -> Millis {
    let leases = world.leases();
    assert_eq!(leases.len(), 1, "no other is bought");
    leases[0].deadline.saturating_since(leases[0].start)
}

#[test]
fn leases_are_extended_while_a_run_of_unknown_length_goes_on() {
    let mut short = long_job(5, limits());
    assert_eq!(short.run().how, End::Done);
    let usual = length(&short);
    let mut long = long_job(90, limits());
    assert_eq!(long.run().how, End::Done);
    assert!(length(&long) >= Millis(90_000), "{:?}", length(&long));
    assert!(usual < Millis(20_000), "{usual:?}");
    assert!(long.answers.iter().all(|(_, is_right)| *is_right));
}

#[test]
fn leases_are_extended_within_the_budget_and_the_time_that_the_user_waits() {
    // Forty seconds of the one provider's price.
    let poor = Limits {
        budget: Some(Credits(40 * 1_000)),
        ..limits()
    };
    let mut world = long_job(90, poor);
    assert_ne!(world.run().how, End::Done);
    assert!(length(&world) > Millis(20_000) && length(&world) <= Millis(40_000));
    let hasty = Limits {
        time_max: Micros::from_seconds(30),
        ..limits()
    };
    let mut world = long_job(90, hasty);
    assert_ne!(world.run().how, End::Done);
    assert!(length(&world) <= Millis(30_000), "{:?}", length(&world));
}

#[test]
fn a_lease_that_was_made_longer_unheard_may_bill_the_time_it_lasted() {
    let mut world = long_job(90, limits());
    world.is_deaf = true;
    let first = |world: &World| world.leases().first().map(|lease| lease.deadline);
    while first(&world).is_none() {
        world.step();
    }
    let bought = first(&world);
    while first(&world) == bought {
        world.step();
    }
    let attempts = world.core.attempts.values();
    let leg = attempts.flat_map(|attempt| &attempt.legs).next();
    let leg = leg.expect("it is at work");
    assert_eq!(Some(leg.terms.deadline), bought, "its buyer does not know");
    assert_eq!(Some(leg.ends_at_most()), first(&world));
}

#[test]
fn a_run_whose_length_is_known_makes_no_lease_longer() {
    let mut world = long_job(90, limits());
    world.is_open_ended = false;
    assert_ne!(world.run().how, End::Done);
    assert!(length(&world) < Millis(20_000));
}
