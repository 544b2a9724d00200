//! Tests how often a provider asks the market: seldom while a validator reports changes, and often
//! enough without.

use souk_market::{Command, Credits, Refusal, Term};

use super::world::*;
use crate::lease::Opening;
use crate::provider::{Action, Answer, Event, NotDone};

const MINUTE: u64 = 60_000;

/// A provider that is on offer, whose account a validator watches.
fn watched() -> World {
    let mut world = World::selling();
    world.on(Event::Changed);
    world.settle();
    world.looks = 0;
    world
}

/// Returns whether the next look is within this time.
fn looks_within(world: &mut World, millis: u64) -> bool {
    let before = world.looks;
    world.live(millis);
    world.looks > before
}

#[test]
fn an_idle_provider_whose_account_is_watched_is_quiet() {
    let mut world = watched();
    world.live(60 * MINUTE);
    assert!((40..=120).contains(&world.looks), "{}", world.looks);
}

#[test]
fn a_provider_at_work_whose_account_is_watched_is_quiet_until_the_work_ends() {
    let mut world = watched();
    let lease = world.buy(Term::Firm, 60 * MINUTE);
    world.on(Event::Changed);
    let stream = world.open(Opening::Start(Box::new(start(&lease, false))));
    world.settle();
    // The look after the trade came before the work.
    world.live(11_000);
    world.looks = 0;
    world.live(10 * MINUTE);
    assert!((6..=20).contains(&world.looks), "{}", world.looks);
    world.hang(stream);
    assert!(looks_within(&mut world, 10_500), "the lease may be open");
}

#[test]
fn a_provider_looks_often_while_nobody_reports_changes() {
    let mut world = watched();
    world.on(Event::WatchLost);
    world.live(MINUTE);
    assert!((28..=32).contains(&world.looks), "{}", world.looks);
    world.on(Event::Changed);
    world.settle();
    world.looks = 0;
    world.live(10 * MINUTE);
    assert!(world.looks <= 20, "{}", world.looks);
}

#[test]
fn a_change_and_other_terms_are_looked_at_at_once() {
    let mut world = watched();
    for event in [Event::Changed, Event::TermsChanged] {
        let before = world.looks;
        world.on(event);
        world.settle();
        assert_eq!(world.looks, before + 1);
    }
}

#[test]
fn a_failure_is_looked_at_again_soon() {
    let mut world = watched();
    world.on(Event::Changed);
    let silence = Answer::NotSeen("no validator answered".to_owned());
    world.answer_with(
        |action| matches!(action, Action::LookAtMarket { .. }),
        silence,
    );
    assert!(looks_within(&mut world, 2_500), "the market did not answer");

    let mut world = World::empty();
    world.on(Event::Changed);
    world.settle_but(|action| matches!(action, Action::Command(_)));
    let is_ask = |action: &Action| matches!(action, Action::Command(command) if matches!(**command, Command::PlaceAsk(_)));
    let lost = NotDone::Uncertain("no answer".to_owned());
    world.answer_with(is_ask, Answer::Commanded(Err(lost)));
    assert!(looks_within(&mut world, 2_500), "the ask may not be there");
    assert_eq!(world.exchange.all_asks().count(), 1, "it is on offer");
}

#[test]
fn an_ask_without_room_is_placed_as_soon_as_the_core_may_try_again() {
    let mut world = World::empty();
    world.on(Event::Changed);
    world.settle_but(|action| matches!(action, Action::Command(_)));
    let full = Refusal::OrdersFull {
        limit: 1,
        deposit: Credits(1),
    };
    let is_command = |action: &Action| matches!(action, Action::Command(_));
    world.answer_with(is_command, Answer::Commanded(Err(NotDone::Refused(full))));
    world.settle();
    world.live(11_000);
    assert_eq!(world.exchange.all_asks().count(), 1, "there is room again");
}

#[test]
fn a_lease_whose_buyer_is_not_heard_of_is_stated_ready_in_time() {
    let mut world = watched();
    let lease = world.buy(Term::Firm, 100_000);
    world.on(Event::Changed);
    world.settle();
    world.live(21_000);
    let is_ready =
        |command: &Command| matches!(command, Command::StateReady { lease: of } if *of == lease.id);
    assert!(world.commands.iter().any(is_ready), "{:?}", world.commands);
}
