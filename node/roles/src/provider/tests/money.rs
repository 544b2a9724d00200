//! Tests what a provider is paid for a lease if the buyer, the market or the provider itself fails.

use souk_market::{CloseReason, Command, LeaseState, Term};

use super::world::*;
use crate::clock::Micros;
use crate::lease::{BuyerMessage, Failure, OfferAnswer, Opening};
use crate::provider::event::{Event, RunResult};
use crate::provider::{Action, Answer, ClaimStage, Fact, Report, StreamId};

/// What a lease of 100 s brings that is held to its end: a tenth of its price.
const HELD_TO_THE_END: u64 = 10_000_000;

/// A lease whose result was told.
fn told(world: &mut World, start: crate::lease::Start) -> StreamId {
    let stream = world.open(Opening::Start(Box::new(start)));
    world.settle();
    world.say(stream, BuyerMessage::Go);
    world.settle();
    assert_eq!(world.messages(stream).last().unwrap(), "finished");
    stream
}

fn notes(world: &World) -> usize {
    let notes = world.commands.iter();
    notes
        .filter(|command| matches!(command, Command::NoteUsage { .. }))
        .count()
}

#[test]
fn a_buyer_that_does_not_sign_is_waited_for_and_then_the_usage_is_noted() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 100_000);
    told(&mut world, start(&lease, true));
    world.live(29_000);
    assert_eq!(notes(&world), 0);
    world.live(2_000);
    assert_eq!(notes(&world), 1);
    world.live(300_000);
    assert_eq!(
        world.paid(lease.id).map(|paid| paid.0),
        Some(HELD_TO_THE_END)
    );
    world.assert_at_rest();
}

#[test]
fn short_work_whose_buyer_told_the_log_nothing_is_paid_by_silence() {
    let mut world = World::selling();
    let lease = world.buy_quietly(Term::Firm, 100_000);
    told(&mut world, start(&lease, true));
    world.live(31_000);
    assert_eq!(notes(&world), 1);
    world.live(300_000);
    assert_eq!(
        world.paid(lease.id).map(|paid| paid.0),
        Some(HELD_TO_THE_END)
    );
    world.assert_at_rest();
}

#[test]
fn a_lease_that_nobody_begins_is_paid_a_tenth_once_the_provider_said_it_is_ready() {
    let mut world = World::selling();
    let lease = world.buy_quietly(Term::Firm, 3_600_000);
    world.live(9_000);
    let ready = Command::StateReady { lease: lease.id };
    assert!(!world.commands.contains(&ready));
    world.live(4_000);
    assert!(world.commands.contains(&ready));
    world.live(70_000);
    let state = world.exchange.lease(lease.id).unwrap().state;
    let LeaseState::Closed { reason, paid, .. } = state else {
        panic!("{state:?}")
    };
    assert_eq!(reason, CloseReason::Unused);
    assert!((7_000_000..7_500_000).contains(&paid.0), "{paid}");
    let said = world.commands.iter().filter(|command| **command == ready);
    assert_eq!(said.count(), 1, "it is said once");
    assert_eq!(
        world.exchange.all_asks().count(),
        1,
        "and the device is on offer"
    );
}

#[test]
fn who_is_served_is_not_said_to_be_away() {
    let mut world = World::selling();
    let lease = world.buy_quietly(Term::Firm, 3_600_000);
    told(&mut world, start(&lease, true));
    world.live(29_000);
    let is_ready = |command: &Command| matches!(command, Command::StateReady { .. });
    assert!(!world.commands.iter().any(is_ready));
}

/// A lease of an hour whose first run is on the device.
fn running_long(world: &mut World) -> (souk_market::Lease, StreamId) {
    let lease = world.buy(Term::Firm, 3_600_000);
    let mut start = start(&lease, true);
    start.parts[0].expected = Micros::from_seconds(1_200);
    let stream = world.open(Opening::Start(Box::new(start)));
    world.settle();
    world.say(stream, BuyerMessage::Go);
    world.settle_but(is_run);
    (lease, stream)
}

#[test]
fn what_a_run_has_used_that_goes_on_is_noted_once_where_nobody_answers() {
    let mut world = World::selling();
    let (lease, stream) = running_long(&mut world);
    world.hang(stream);
    let began = world.now.log;
    for _ in 0..500 {
        world.pass(1_000);
        world.settle_but(is_run);
        let now = world.exchange.lease(lease.id).unwrap();
        let used = world.now.log.saturating_since(began).0 * 1_000;
        let risked = used.saturating_sub(now.accepted.0);
        assert!(risked <= 301_000_000, "{risked} at {used}");
    }
    let running = world.exchange.lease(lease.id).unwrap();
    assert_eq!(running.accepted.0, 240_000_000, "by silence");
    assert_eq!(notes(&world), 1);
}

#[test]
fn usage_beyond_what_the_market_takes_from_a_silent_buyer_is_not_noted_again_and_again() {
    let mut world = World::selling();
    let (lease, stream) = running_long(&mut world);
    world.hang(stream);
    for _ in 0..350 {
        world.pass(1_000);
        world.settle_but(is_run);
    }
    let made = RunResult {
        outputs: vec![("y".to_owned(), id("y"))],
        bytes: 10,
        busy: Micros::from_seconds(350),
        promised: None,
        tokens: None,
    };
    world.answer_with(is_run, Answer::Ran(Ok(made)));
    world.settle();
    for _ in 0..300 {
        world.live(1_000);
    }
    let accepted = world.exchange.lease(lease.id).unwrap().accepted;
    assert_eq!(accepted.0, 300_000_000, "the most that silence accepts");
    assert_eq!(notes(&world), 5, "it asks for the rest once more");
}

#[test]
fn what_is_more_than_one_note_may_say_is_noted_one_by_one() {
    let mut world = World::selling();
    let (lease, stream) = running_long(&mut world);
    // The market is not reached for long.
    world.pass(800_000);
    let made = RunResult {
        outputs: vec![("y".to_owned(), id("y"))],
        bytes: 10,
        busy: Micros::from_seconds(790),
        promised: None,
        tokens: None,
    };
    world.answer_with(is_run, Answer::Ran(Ok(made)));
    world.settle();
    world.hang(stream);
    let buyer = world.buyer.clone();
    for _ in 0..400 {
        world.live(1_000);
        let seen = world.exchange.lease(lease.id).unwrap();
        if let Some(souk_market::Note { usage, .. }) = seen.note {
            let lease = lease.id;
            let accept = Command::AcceptNote { lease, usage };
            world.carry(&buyer, accept).expect("the note is open");
        }
    }
    let accepted = world.exchange.lease(lease.id).unwrap().accepted;
    assert_eq!(accepted.0, 790_000_000);
}

#[test]
fn a_signature_is_not_awaited_beyond_the_lease() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 10_000);
    told(&mut world, start(&lease, true));
    world.live(9_000);
    assert_eq!(notes(&world), 0);
    world.live(1_500);
    assert_eq!(notes(&world), 1);
}

#[test]
fn a_buyer_that_refuses_is_noted_at_once() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 100_000);
    let stream = told(&mut world, start(&lease, true));
    let reason = "no".repeat(1_000);
    world.say(stream, BuyerMessage::Refused { reason });
    world.settle();
    assert_eq!(notes(&world), 1);
}

#[test]
fn a_buyer_that_goes_has_as_long_to_sign_as_one_that_stays() {
    let mut world = World::selling();
    let lease = world.buy_quietly(Term::Firm, 100_000);
    let stream = told(&mut world, start(&lease, true));
    world.live(2_000);
    world.hang(stream);
    world.live(27_000);
    assert_eq!(notes(&world), 0);
    world.live(2_000);
    assert_eq!(notes(&world), 1);
}

#[test]
fn a_lease_that_its_buyer_ends_unsigned_is_noted_within_the_grace() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 100_000);
    let stream = told(&mut world, start(&lease, true));
    world.hang(stream);
    let buyer = world.buyer.clone();
    let ends = Command::EndLease { lease: lease.id };
    world.carry(&buyer, ends).expect("it is the buyer's");
    world.on(Event::Changed);
    world.live(2_000);
    assert_eq!(notes(&world), 1);
}

#[test]
fn a_provider_that_stops_notes_what_a_buyer_that_is_away_has_not_signed() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 100_000);
    let stream = told(&mut world, start(&lease, true));
    world.hang(stream);
    world.settle();
    assert_eq!(notes(&world), 0);
    world.on(Event::Stop);
    world.settle();
    assert_eq!(notes(&world), 1);
}

#[test]
fn a_signature_under_another_receipt_is_none() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 100_000);
    let stream = told(&mut world, start(&lease, true));
    let mut receipt = world.finished(stream).receipt;
    receipt.body.usage.0 -= 1;
    let receipt = receipt.sign_as_buyer(&world.buyer);
    world.say(stream, BuyerMessage::Signed(Box::new(receipt)));
    world.settle();
    assert_eq!(notes(&world), 1);
    let signed = |fact: &Fact| matches!(fact, Fact::Signed { .. });
    assert!(!world.journal.iter().any(signed));
}

#[test]
fn a_buyer_that_comes_back_is_told_the_result_and_may_still_sign() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 100_000);
    let stream = told(&mut world, start(&lease, true));
    world.hang(stream);
    world.live(31_000);
    assert_eq!(notes(&world), 1);
    let stranger = account(&key(8));
    let asked = world.open_as(stranger, Opening::Resume(lease.id));
    assert_eq!(
        world.messages(asked),
        [format!("failed: {}", Failure::Forgotten)]
    );
    let back = world.open(Opening::Resume(lease.id));
    assert_eq!(world.messages(back), ["finished"]);
    world.sign(back);
    world.live(5_000);
    assert_eq!(world.paid(lease.id).map(|paid| paid.0), Some(30_000));
    world.assert_at_rest();
}

#[test]
fn a_buyer_that_is_lost_has_what_it_began_finished_and_nothing_else() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 100_000);
    let stream = world.open(Opening::Start(Box::new(start(&lease, false))));
    world.settle();
    world.say(stream, BuyerMessage::Go);
    for number in 1..4 {
        world.say(stream, BuyerMessage::Next(request(number)));
    }
    world.settle_but(is_run);
    world.hang(stream);
    world.settle();
    let back = world.open(Opening::Resume(lease.id));
    assert_eq!(world.finished(back).outputs.len(), 1, "the first was begun");
}

#[test]
fn a_tensor_that_nobody_offers_is_not_awaited_for_a_buyer_that_is_lost() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 100_000);
    let stream = world.open(Opening::Start(Box::new(start_of_two(&lease, true))));
    world.settle();
    world.say(stream, BuyerMessage::Go);
    world.settle();
    world.hang(stream);
    world.live(5_000);
    assert_eq!(world.core.status().at_work.len(), 1);
    world.live(1_000);
    assert_eq!(world.core.status().at_work.len(), 0);
    world.live(30_000);
    assert_eq!(notes(&world), 1, "its first part was run");
}

#[test]
fn a_buyer_that_is_back_while_it_is_at_work_is_told_the_rest_there() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 100_000);
    let stream = world.open(Opening::Start(Box::new(start_of_two(&lease, true))));
    world.settle();
    world.say(stream, BuyerMessage::Go);
    world.settle();
    world.hang(stream);
    let back = world.open(Opening::Resume(lease.id));
    world.live(20_000);
    world.open_as(account(&key(3)), Opening::Offer(offer(&lease, 0)));
    assert_eq!(world.replies, [OfferAnswer::Yes]);
    world.settle();
    assert_eq!(
        world.messages(back),
        ["accepted", "running 0.1", "made 0.1", "finished"]
    );
}

#[test]
fn a_command_that_the_market_does_not_answer_is_given_again() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 100_000);
    let stream = told(&mut world, start(&lease, true));
    world.hang(stream);
    world.pass(30_000);
    let is_note = |action: &Action| matches!(action, Action::Command(_));
    for _ in 0..3 {
        let place = world.wanted(is_note).expect("it is noted again");
        world.carry_out(place, false);
        world.pass(2_000);
    }
    world.live(300_000);
    let paid = world.paid(lease.id).expect("it is closed").0;
    assert!(
        (9_800_000..9_900_000).contains(&paid),
        "it says that it is ready: {paid}"
    );
}

#[test]
fn a_provider_that_dies_gives_back_what_it_only_began() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 100_000);
    let work = start(&lease, true);
    let stream = world.open(Opening::Start(Box::new(work.clone())));
    world.settle();
    world.say(stream, BuyerMessage::Go);
    world.settle_but(is_run);
    world.restart();
    world.settle();
    assert!(
        world
            .commands
            .contains(&Command::GiveUp { lease: lease.id })
    );
    let again = world.open(Opening::Start(Box::new(work)));
    world.settle();
    assert!(
        world.messages(again)[0].starts_with("failed"),
        "never again"
    );
    world.live(5_000);
    world.assert_at_rest();
}

#[test]
fn a_provider_that_dies_after_the_work_is_paid_and_can_still_hand_it_over() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 100_000);
    told(&mut world, start(&lease, true));
    world.restart();
    world.settle();
    assert_eq!(notes(&world), 1);
    let back = world.open(Opening::Resume(lease.id));
    assert_eq!(world.messages(back), ["finished"]);
    world.sign(back);
    world.live(5_000);
    assert_eq!(world.paid(lease.id).map(|paid| paid.0), Some(30_000));
    world.assert_at_rest();
}

#[test]
fn a_provider_that_dies_after_both_signed_settles() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 100_000);
    let stream = told(&mut world, start(&lease, true));
    world.sign(stream);
    world.settle();
    world.restart();
    world.settle();
    let settles = |command: &Command| matches!(command, Command::Settle(_));
    assert!(world.commands.iter().any(settles));
    world.live(3_000);
    assert_eq!(world.paid(lease.id).map(|paid| paid.0), Some(30_000));
    world.assert_at_rest();
}

#[test]
fn a_receipt_is_kept_although_the_buyer_settled_before_it_was_on_the_disk() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 100_000);
    let stream = told(&mut world, start(&lease, true));
    world.sign(stream);
    let buyer = world.buyer.clone();
    let receipt = world.finished(stream).receipt.sign_as_buyer(&buyer);
    let settled = world.carry(&buyer, Command::Settle(Box::new(receipt.clone())));
    settled.expect("both have signed");
    world.on(Event::Changed);
    world.settle_but(|action| matches!(action, Action::Record(_)));
    let kept = |report: &Report| matches!(report, Report::Settled(it) if **it == receipt);
    assert!(!world.reports.iter().any(kept), "it is not on the disk yet");
    world.settle();
    assert_eq!(world.reports.iter().filter(|it| kept(it)).count(), 1);
    assert!(world.paid(lease.id).is_some());
    world.assert_at_rest();
}

#[test]
fn a_provider_that_starts_while_nobody_answers_asks_until_somebody_does() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 100_000);
    told(&mut world, start(&lease, true));
    world.restart();
    for _ in 0..3 {
        while let Some(place) = world.wanted(|action| matches!(action, Action::LookAt { .. })) {
            world.carry_out(place, false);
        }
        let owed = world.core.status().owed;
        assert_eq!(owed, [(lease.id, ClaimStage::Recovering)]);
        world.pass(2_000);
    }
    world.settle();
    assert_eq!(notes(&world), 1);
}

#[test]
fn what_the_market_has_forgotten_is_closed_and_nobody_knows_what_it_was_paid() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 100_000);
    told(&mut world, start(&lease, true));
    world.restart();
    let is_look = |action: &Action| matches!(action, Action::LookAt { .. });
    world.answer_with(is_look, Answer::LeaseSeen(None));
    world.settle();
    let forgotten = |fact: &Fact| matches!(fact, Fact::Closed { paid: None, .. });
    assert!(world.journal.iter().any(forgotten));
    world.assert_at_rest();
}

#[test]
fn a_session_that_waits_for_its_buyer_is_billed_the_price_of_a_device_that_is_held() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 100_000);
    let stream = world.open(Opening::Start(Box::new(start(&lease, false))));
    world.settle();
    world.say(stream, BuyerMessage::Go);
    world.live(41_000);
    world.say(stream, BuyerMessage::NoMore);
    world.settle();
    let body = world.finished(stream).receipt.body;
    // The first second between two requests is free.
    assert_eq!((body.usage.0, body.idle.0), (30_000, 39_750_000));
    assert_eq!(body.amount.0, 30_000 + 3_975_000);
    world.sign(stream);
    world.live(5_000);
    assert_eq!(world.paid(lease.id), Some(body.amount));
}

#[test]
fn a_buyer_that_holds_a_session_and_sends_nothing_is_asked_and_loses_the_lease() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 3_600_000);
    let stream = world.open(Opening::Start(Box::new(start(&lease, false))));
    world.settle();
    world.say(stream, BuyerMessage::Go);
    world.live(119_000);
    let ready = Command::StateReady { lease: lease.id };
    assert!(!world.commands.contains(&ready));
    world.live(2_000);
    assert!(world.commands.contains(&ready));
    world.live(60_000);
    assert!(!world.exchange.lease(lease.id).unwrap().is_running());
    world.live(300_000);
    let paid = world.paid(lease.id).expect("it is closed").0;
    assert!(
        (18_000_000..18_200_000).contains(&paid),
        "a tenth of 180 s: {paid}"
    );
    world.assert_at_rest();
}

#[test]
fn a_device_that_was_held_and_not_begun_is_claimed_once_the_lease_is_over() {
    let mut world = World::selling();
    let lease = world.buy_quietly(Term::Firm, 3_600_000);
    world.live(5_000);
    let buyer = world.buyer.clone();
    let ended = world.carry(&buyer, Command::EndLease { lease: lease.id });
    ended.expect("it may");
    world.live(3_000);
    let claimed = world.exchange.lease(lease.id).unwrap();
    let paid = claimed.cost.0;
    assert!(
        claimed.is_closed() && (500_000..600_000).contains(&paid),
        "a tenth of 5 s: {paid}"
    );
}

#[test]
fn work_that_is_refused_earns_nothing_and_costs_the_price_of_a_device_that_is_held() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 100_000);
    let stream = told(&mut world, start(&lease, true));
    world.live(1_000);
    let buyer = world.buyer.clone();
    let disputed = world.carry(&buyer, Command::Dispute { lease: lease.id });
    disputed.expect("it may");
    let reason = "no".to_owned();
    world.say(stream, BuyerMessage::Refused { reason });
    world.live(5_000);
    let closed = world.exchange.lease(lease.id).unwrap();
    assert_eq!(closed.refused.0, 30_000, "it states what it used");
    let LeaseState::Closed { reason, paid, .. } = closed.state else {
        panic!("{:?}", closed.state)
    };
    assert_eq!(reason, CloseReason::Disputed);
    // Nothing of the work was accepted: a second and its way at a tenth is the market's.
    assert_eq!(paid.0, 0);
    let cost = closed.cost.0;
    assert!((100_000..130_000).contains(&cost), "{cost}");
}
