//! Tests how leases end early, and how a provider stops.

use souk_market::{Command, Credits, LeaseState, Refusal, Term};

use super::world::*;
use crate::lease::{BuyerMessage, Failure, Opening};
use crate::provider::{Action, Answer, Event, NotDone, Report, Stage, StreamId};

/// A stream of requests of which one is done.
fn streaming(world: &mut World, lease: &souk_market::Lease) -> StreamId {
    let stream = world.open(Opening::Start(Box::new(start(lease, false))));
    world.settle();
    world.say(stream, BuyerMessage::Go);
    world.settle();
    stream
}

fn reclaims(world: &mut World, lease: &souk_market::Lease) {
    let key = key(1);
    let reclaimed = world.carry(&key, Command::Reclaim { lease: lease.id });
    reclaimed.expect("it is spot");
    world.on(Event::Changed);
}

#[test]
fn notice_ends_a_lease_with_what_was_done_and_leaves_the_buyer_time_to_sign() {
    let mut world = World::selling();
    let lease = world.buy(Term::Spot, 100_000);
    let stream = streaming(&mut world, &lease);
    reclaims(&mut world, &lease);
    world.live(3_500);
    assert_eq!(world.messages(stream).last().unwrap(), "made 0.0");
    world.live(750);
    let messages = world.messages(stream);
    let expired = format!("stalled: {}", Failure::Expired);
    assert_eq!(
        messages[messages.len() - 2..],
        [expired, "finished".to_owned()]
    );
    world.sign(stream);
    world.live(5_000);
    // And three seconds for which it waited for a request.
    let paid = world.paid(lease.id).map(|paid| paid.0);
    assert!((300_000..340_000).contains(&paid.unwrap()), "{paid:?}");
}

#[test]
fn what_runs_when_the_lease_is_over_is_stopped_and_what_was_done_is_owed() {
    let mut world = World::selling();
    let lease = world.buy(Term::Spot, 100_000);
    let stream = streaming(&mut world, &lease);
    world.say(stream, BuyerMessage::Next(request(1)));
    world.settle_but(is_run);
    reclaims(&mut world, &lease);
    world.settle_but(is_run);
    world.pass(5_100);
    assert!(world.wanted(is_run).is_none());
    world.settle();
    assert_eq!(world.finished(stream).outputs.len(), 1);
}

#[test]
fn a_lease_whose_time_is_over_before_anything_ran_is_left_to_the_log() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 10_000);
    let stream = world.open(Opening::Start(Box::new(start(&lease, true))));
    world.settle_but(is_bring);
    world.pass(10_100);
    let expired = format!("failed: {}", Failure::Expired);
    assert_eq!(world.messages(stream).last(), Some(&expired));
    let gives_up = Command::GiveUp { lease: lease.id };
    assert!(!world.commands.contains(&gives_up));
    world.live(200_000);
    world.assert_at_rest();
}

#[test]
fn a_lease_that_its_buyer_ends_is_billed_for_what_was_done() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 100_000);
    streaming(&mut world, &lease);
    world.live(1_000);
    let buyer = world.buyer.clone();
    let ended = world.carry(&buyer, Command::EndLease { lease: lease.id });
    ended.expect("it may");
    world.live(200_000);
    let paid = world.paid(lease.id).map(|paid| paid.0);
    assert_eq!(
        paid,
        Some(30_000),
        "the market keeps what it held beyond that"
    );
    world.assert_at_rest();
}

#[test]
fn a_provider_that_stops_withdraws_gives_back_and_ends_when_nothing_is_left() {
    let mut world = World::selling();
    let (kept, begun) = (
        world.buy(Term::Firm, 100_000),
        world.buy(Term::Firm, 100_000),
    );
    let stream = streaming(&mut world, &begun);
    world.on(Event::Stop);
    world.settle();
    assert_eq!(world.exchange.all_asks().count(), 0);
    let state = world.exchange.lease(kept.id).expect("it is known").state;
    assert!(matches!(state, LeaseState::Closed { .. }));
    let late = world.open(Opening::Start(Box::new(start(&kept, true))));
    assert_eq!(
        world.messages(late),
        [format!("failed: {}", Failure::Stopping)]
    );
    // A firm lease goes on as long as there is patience.
    world.say(stream, BuyerMessage::Next(request(1)));
    world.settle();
    assert_eq!(world.messages(stream).last().unwrap(), "made 1.0");
    world.say(stream, BuyerMessage::NoMore);
    world.settle();
    world.sign(stream);
    world.settle();
    assert!(world.is_over, "{:?}", world.core.status());
    assert_eq!(world.paid(begun.id).map(|paid| paid.0), Some(60_000));
    world.assert_at_rest();
}

#[test]
fn a_spot_lease_ends_when_its_provider_stops_and_a_firm_one_at_the_last_call() {
    let mut world = World::selling();
    let (spot, firm) = (
        world.buy(Term::Spot, 100_000),
        world.buy(Term::Firm, 100_000),
    );
    let (first, second) = (streaming(&mut world, &spot), streaming(&mut world, &firm));
    world.on(Event::Stop);
    world.settle();
    assert_eq!(world.messages(first).last().unwrap(), "finished");
    assert_eq!(world.messages(second).last().unwrap(), "made 0.0");
    world.live(59_000);
    assert_eq!(world.messages(second).last().unwrap(), "made 0.0");
    world.live(1_500);
    assert_eq!(world.messages(second).last().unwrap(), "finished");
    world.live(10_000);
    assert!(world.is_over);
    let earned = [spot.id, firm.id].map(|lease| {
        let lease = world.exchange.lease(lease).expect("it is known");
        lease.note.is_some() || lease.accepted.0 > 0 || lease.is_closed()
    });
    assert_eq!(earned, [true; 2], "both are noted or paid");
}

#[test]
fn who_is_asked_again_waits_for_five_seconds_more_and_gives_up_what_did_nothing() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 100_000);
    world.open(Opening::Start(Box::new(start(&lease, true))));
    world.settle_but(is_bring);
    world.on(Event::Stop);
    world.on(Event::Hurry);
    world.settle_but(is_bring);
    assert_eq!(world.core.status().stage, Stage::LastCall);
    world.pass(5_100);
    world.settle();
    assert!(world.is_over);
    assert!(
        world
            .commands
            .contains(&Command::GiveUp { lease: lease.id })
    );
    world.assert_at_rest();
}

#[test]
fn a_provider_ends_in_time_where_the_market_does_not_answer() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 100_000);
    streaming(&mut world, &lease);
    let is_market = |action: &Action| {
        matches!(
            action,
            Action::LookAt { .. } | Action::LookAtMarket { .. } | Action::Command(_)
        )
    };
    world.on(Event::Stop);
    world.on(Event::Hurry);
    for _ in 0..40 {
        world.settle_but(is_market);
        world.pass(250);
    }
    assert!(world.is_over, "{:?}", world.core.status());
}

#[test]
fn a_provider_with_nothing_at_work_waits_two_seconds_at_most_for_a_market_that_is_silent() {
    let mut world = World::selling();
    world.on(Event::Stop);
    world.pass(1_000);
    assert!(!world.is_over, "the market may still answer");
    world.pass(1_000);
    assert!(world.is_over, "{:?}", world.core.status());
    let order = world
        .exchange
        .all_asks()
        .next()
        .expect("nobody took it out")
        .order;
    assert!(world.commands.contains(&Command::Cancel { order }));
}

#[test]
fn an_ask_of_an_earlier_life_is_replaced_and_one_that_is_right_stays() {
    let mut world = World::selling();
    let first = world.exchange.all_asks().next().expect("it is there").order;
    world.live(10_000);
    let order = |world: &World| {
        world
            .exchange
            .all_asks()
            .next()
            .map(|listing| listing.order)
    };
    assert_eq!(order(&world), Some(first));
    world.restart();
    world.live(3_000);
    assert_eq!(world.exchange.all_asks().count(), 1);
    assert_ne!(order(&world), Some(first));
}

#[test]
fn another_speed_is_in_the_next_ask_and_none_that_was_sold_by_the_last_changes() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 20_000);
    world.live(3_000);
    let figures = |world: &World| {
        let mut commands = world.commands.iter().rev();
        let placed = commands.find_map(|command| match command {
            Command::PlaceAsk(ask) => Some(ask.resources.clone()),
            _ => None,
        });
        placed.expect("an ask was placed")
    };
    let mut slower = figures(&world);
    let before = slower.memory_bandwidth;
    slower.memory_bandwidth /= 2;
    world.on(Event::SpeedDue(Box::new(slower)));
    world.live(3_000);
    assert_eq!(
        figures(&world).memory_bandwidth,
        before,
        "{} is sold",
        lease.id
    );
    world.live(200_000);
    assert_eq!(figures(&world).memory_bandwidth, before / 2);
}

#[test]
fn an_ask_that_the_market_has_no_place_for_is_told_of_once_and_tried_until_it_has() {
    let is_place = |action: &Action| {
        let Action::Command(command) = action else {
            return false;
        };
        matches!(**command, Command::PlaceAsk(_))
    };
    let mut world = World::empty();
    world.settle_but(is_place);
    for _ in 0..3 {
        let (limit, deposit) = (7, Credits(10_000));
        let full = NotDone::Refused(Refusal::OrdersFull { limit, deposit });
        world.answer_with(is_place, Answer::Commanded(Err(full)));
        for _ in 0..3 {
            world.pass(3_000);
            world.settle_but(is_place);
            assert!(world.wanted(is_place).is_none(), "not at once");
        }
        world.pass(3_000);
        world.settle_but(is_place);
    }
    let told = |report: &&Report| matches!(report, Report::NotPlaced { .. });
    assert_eq!(world.reports.iter().filter(told).count(), 1);
    world.live(1_000);
    assert_eq!(world.exchange.all_asks().count(), 1, "it is on offer");
}
