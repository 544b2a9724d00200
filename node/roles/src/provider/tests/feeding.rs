//! Tests state feedback: the values that one request of a session leaves for the next one of its
//! sequence.

use souk_market::{Lease, LeaseId, Term};
use souk_memory::ContentId;

use super::world::*;
use crate::lease::{
    BuyerMessage, Feedback, Offer, OfferAnswer, Opening, REQUEST_NUMBER_MAX, Request, Source, Start,
};
use crate::provider::{Action, StreamId};

const YES: OfferAnswer = OfferAnswer::Yes;
const NO: OfferAnswer = OfferAnswer::No;

/// A session at work whose first request waits for the device.
fn session(world: &mut World, start: impl Fn(&Lease) -> Start) -> (Lease, StreamId) {
    let lease = world.buy(Term::Firm, 600_000);
    let stream = world.open(Opening::Start(Box::new(start(&lease))));
    world.settle();
    assert_eq!(world.messages(stream), ["accepted", "fetched", "ready"]);
    world.say(stream, BuyerMessage::Go);
    (lease, stream)
}

fn fed_here(world: &mut World) -> (Lease, StreamId) {
    session(world, |lease| start_of_fed(lease, None))
}

fn fed_from_elsewhere(world: &mut World) -> (Lease, StreamId) {
    session(world, |lease| start_of_fed(lease, Some(maker())))
}

/// One more request, which leaves out what is fed.
fn next(world: &mut World, stream: StreamId, number: u32, sequence: u32) {
    let inputs = Vec::new();
    world.say(
        stream,
        BuyerMessage::Next(Request {
            number,
            sequence,
            inputs,
            keep: true,
        }),
    );
}

/// One more request, which brings it.
fn next_whole(world: &mut World, stream: StreamId, number: u32, sequence: u32) {
    let request = Request {
        sequence,
        ..request(number)
    };
    world.say(stream, BuyerMessage::Next(request));
}

/// The maker offers what it made of a request.
fn offered(world: &mut World, lease: &Lease, number: u32) -> OfferAnswer {
    world.open_as(maker().1, Opening::Offer(offer(lease, number)));
    *world.replies.last().expect("it is answered")
}

/// What the device reads for a request.
fn read(world: &World, number: u32) -> Option<ContentId> {
    world
        .pending
        .iter()
        .find_map(|effect| match &effect.action {
            Action::Run {
                request, inputs, ..
            } if *request == number => Some(inputs[0].1),
            _ => None,
        })
}

/// Carries out all but runs, then the run of this request.
fn run(world: &mut World, number: u32) {
    world.settle_but(is_run);
    let is_it =
        |action: &Action| matches!(action, Action::Run { request, .. } if *request == number);
    let place = world.wanted(is_it).expect("it is run");
    world.carry_out(place, true);
    world.settle_but(is_run);
}

/// Nothing follows: the session is signed for, and nothing of it is held.
fn ends_well(world: &mut World, stream: StreamId) {
    world.say(stream, BuyerMessage::NoMore);
    world.settle();
    assert_eq!(world.messages(stream).last().unwrap(), "finished");
    world.sign(stream);
    world.live(5_000);
    world.assert_at_rest();
}

fn pinned(world: &World, name: &str) -> i64 {
    world.pins.get(&id(name)).copied().unwrap_or(0)
}

fn stalls(world: &World, stream: StreamId) -> bool {
    let messages = world.messages(stream);
    messages
        .iter()
        .any(|message| message.starts_with("stalled"))
}

#[test]
fn a_lease_feeds_itself_and_holds_what_it_made_until_that_was_used() {
    for is_ahead in [true, false] {
        let mut world = World::selling();
        let (_, stream) = fed_here(&mut world);
        if is_ahead {
            next(&mut world, stream, 1, 0);
        }
        run(&mut world, 0);
        if !is_ahead {
            assert_eq!(pinned(&world, "y of 0"), 1, "another may follow");
            next(&mut world, stream, 1, 0);
        }
        assert_eq!(read(&world, 1), Some(id("y of 0")));
        run(&mut world, 1);
        assert_eq!(pinned(&world, "y of 0"), 0, "it was used");
        assert_eq!(pinned(&world, "y of 1"), 1, "another may follow");
        ends_well(&mut world, stream);
    }
}

#[test]
fn an_output_that_the_buyer_does_not_keep_feeds_the_next_request_and_is_not_sent() {
    let mut world = World::selling();
    let (_, stream) = fed_here(&mut world);
    let unkept = Request {
        keep: false,
        inputs: Vec::new(),
        ..request(1)
    };
    world.say(stream, BuyerMessage::Next(unkept));
    next(&mut world, stream, 2, 0);
    run(&mut world, 0);
    let wants = |world: &World, number: u32| {
        world
            .pending
            .iter()
            .find_map(|effect| match &effect.action {
                Action::Run { request, work, .. } if *request == number => {
                    Some(work.outputs.iter().any(|output| output.is_wanted))
                }
                _ => None,
            })
    };
    assert_eq!(wants(&world, 1), Some(false));
    run(&mut world, 1);
    assert_eq!(wants(&world, 2), Some(true));
    assert_eq!(read(&world, 2), Some(id("y of 1")));
    run(&mut world, 2);
    assert_eq!(pinned(&world, "y of 1"), 0, "it was used");
    ends_well(&mut world, stream);
}

#[test]
fn what_a_request_brings_goes_before_what_it_would_be_fed() {
    let mut world = World::selling();
    let (_, stream) = fed_here(&mut world);
    next_whole(&mut world, stream, 1, 0);
    run(&mut world, 0);
    assert_eq!(read(&world, 1), Some(id("x of 1")));
    run(&mut world, 1);
    ends_well(&mut world, stream);
    let mut world = World::selling();
    let (lease, stream) = fed_from_elsewhere(&mut world);
    next_whole(&mut world, stream, 1, 0);
    assert_eq!(offered(&mut world, &lease, 0), YES);
    run(&mut world, 0);
    assert_eq!(pinned(&world, "z of 0"), 0, "nobody fetches it");
    assert_eq!(read(&world, 1), Some(id("x of 1")));
    run(&mut world, 1);
    ends_well(&mut world, stream);
}

#[test]
fn another_lease_feeds_a_request_whenever_it_makes_its_offer() {
    // Before the next request and after it, while the first is open and when it is done.
    for (is_done, is_first) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut world = World::selling();
        let (lease, stream) = fed_from_elsewhere(&mut world);
        if is_done {
            run(&mut world, 0);
        }
        if is_first {
            assert_eq!(offered(&mut world, &lease, 0), YES);
            assert_eq!(pinned(&world, "z of 0"), 0, "nobody reads it yet");
        }
        next(&mut world, stream, 1, 0);
        if !is_first {
            world.settle_but(is_run);
            assert_eq!(read(&world, 1), None, "it waits");
            assert_eq!(offered(&mut world, &lease, 0), YES);
        }
        assert_eq!(pinned(&world, "z of 0"), 1, "it comes, once");
        if !is_done {
            run(&mut world, 0);
        }
        world.settle_but(is_run);
        assert_eq!(read(&world, 1), Some(id("z of 0")));
        run(&mut world, 1);
        assert_eq!(pinned(&world, "z of 0"), 0, "it was used");
        ends_well(&mut world, stream);
    }
}

#[test]
fn a_fed_value_is_taken_once_from_its_maker_or_the_buyer_and_while_it_is_of_use() {
    let mut world = World::selling();
    let (lease, stream) = fed_from_elsewhere(&mut world);
    let by = |world: &mut World, peer, offer: Offer| {
        world.open_as(peer, Opening::Offer(offer));
        *world.replies.last().expect("it is answered")
    };
    let (stranger, buyer) = (account(&key(4)), account(&key(2)));
    let of = |number| offer(&lease, number);
    assert_eq!(by(&mut world, stranger, of(0)), NO);
    let other = Offer {
        name: "y".to_owned(),
        ..of(0)
    };
    assert_eq!(by(&mut world, maker().1, other), NO, "it is fed by z");
    let other = Offer {
        from: LeaseId(78),
        ..of(0)
    };
    assert_eq!(by(&mut world, maker().1, other), NO, "of another lease");
    next(&mut world, stream, 1, 0);
    assert_eq!(by(&mut world, maker().1, of(0)), YES);
    assert_eq!(by(&mut world, maker().1, of(0)), YES, "it heard no answer");
    assert_eq!(by(&mut world, buyer, of(0)), YES, "nor did the buyer");
    let other = Offer {
        tensor: id("another"),
        ..of(0)
    };
    assert_eq!(by(&mut world, maker().1, other), NO, "it is taken once");
    assert_eq!(by(&mut world, stranger, of(0)), NO);
    run(&mut world, 0);
    run(&mut world, 1);
    let late = "it was used, which neither may know";
    assert_eq!(by(&mut world, maker().1, of(0)), YES, "{late}");
    assert_eq!(by(&mut world, buyer, of(0)), YES, "{late}");
    // Handed on by the buyer it is as good.
    next(&mut world, stream, 2, 0);
    assert_eq!(by(&mut world, buyer, of(1)), YES);
    run(&mut world, 2);
    ends_well(&mut world, stream);
}

#[test]
fn what_is_fed_is_kept_for_what_may_follow_and_no_further() {
    let mut world = World::selling();
    let (lease, stream) = fed_from_elsewhere(&mut world);
    run(&mut world, 0);
    for number in 1..=20 {
        assert_eq!(offered(&mut world, &lease, number - 1), YES);
        next(&mut world, stream, number, 0);
        run(&mut world, number);
        let late = "it was used, which its maker may not know";
        assert_eq!(offered(&mut world, &lease, number - 1), YES, "{late}");
    }
    let pinned: i64 = world.pins.values().sum();
    assert_eq!(pinned, 3, "graph, weights and the first input's");
    // Of requests that are not open yet so many may be offered.
    for number in 100..200 {
        offered(&mut world, &lease, number);
    }
    let taken = world.replies.iter().rev().take(100);
    assert_eq!(taken.filter(|taken| **taken == YES).count(), 64);
    ends_well(&mut world, stream);
}

#[test]
fn two_sequences_are_fed_each_its_own() {
    let mut world = World::selling();
    let (lease, stream) = fed_from_elsewhere(&mut world);
    next_whole(&mut world, stream, 1, 1);
    next(&mut world, stream, 2, 1);
    next(&mut world, stream, 3, 0);
    next(&mut world, stream, 4, 1);
    assert_eq!(offered(&mut world, &lease, 1), YES);
    assert_eq!(offered(&mut world, &lease, 0), YES);
    run(&mut world, 0);
    run(&mut world, 1);
    assert_eq!(read(&world, 2), Some(id("z of 1")));
    assert_eq!(read(&world, 3), Some(id("z of 0")));
    run(&mut world, 2);
    assert_eq!(read(&world, 4), None, "it is fed by the second of its own");
    assert_eq!(offered(&mut world, &lease, 2), YES);
    run(&mut world, 3);
    run(&mut world, 4);
    ends_well(&mut world, stream);
    let mut world = World::selling();
    let (_, stream) = fed_here(&mut world);
    next_whole(&mut world, stream, 1, 1);
    next(&mut world, stream, 2, 1);
    next(&mut world, stream, 3, 0);
    run(&mut world, 1);
    run(&mut world, 0);
    assert_eq!(read(&world, 2), Some(id("y of 1")));
    assert_eq!(read(&world, 3), Some(id("y of 0")));
    world.settle();
    ends_well(&mut world, stream);
}

#[test]
fn the_first_request_of_a_sequence_brings_all_and_no_request_lacks_what_is_not_fed() {
    for is_second in [false, true] {
        let mut world = World::selling();
        let (_, stream) = fed_here(&mut world);
        run(&mut world, 0);
        match is_second {
            true => next(&mut world, stream, 1, 1),
            false => next(&mut world, stream, 1, 0),
        }
        world.settle();
        assert_eq!(stalls(&world, stream), is_second, "nothing came before it");
    }
    let mut world = World::selling();
    let (_, stream) = session(&mut world, |lease| {
        let mut start = start_of_fed(lease, None);
        let second = part(&[("w", Source::Buyer)], "v");
        start.parts.push(second);
        start.first.inputs.push(("w".to_owned(), id("w")));
        start
    });
    world.settle();
    next(&mut world, stream, 1, 0);
    world.settle();
    assert!(stalls(&world, stream), "w is not fed");
    assert_eq!(world.messages(stream).last().unwrap(), "finished");
}

#[test]
fn two_requests_of_one_number_are_never_open_however_great_the_number_is() {
    for last in [REQUEST_NUMBER_MAX, REQUEST_NUMBER_MAX + 1] {
        let mut world = World::selling();
        let (_, stream) = fed_here(&mut world);
        next_whole(&mut world, stream, last, 1);
        world.settle_but(is_run);
        assert_eq!(stalls(&world, stream), last > REQUEST_NUMBER_MAX);
        next_whole(&mut world, stream, last, 0);
        world.settle();
        assert!(stalls(&world, stream), "the number is not new");
        assert_eq!(world.messages(stream).last().unwrap(), "finished");
        world.sign(stream);
        world.live(5_000);
        world.assert_at_rest();
    }
}

#[test]
fn a_fed_value_that_does_not_come_stalls_the_lease() {
    let mut world = World::selling();
    let (lease, stream) = fed_from_elsewhere(&mut world);
    run(&mut world, 0);
    next(&mut world, stream, 1, 0);
    assert_eq!(offered(&mut world, &lease, 0), YES);
    let place = world.wanted(is_bring).expect("it is fetched");
    world.carry_out(place, false);
    world.settle();
    assert!(stalls(&world, stream));
    assert_eq!(world.messages(stream).last().unwrap(), "finished");
    world.sign(stream);
    world.live(5_000);
    world.assert_at_rest();
}

#[test]
fn what_was_begun_is_fed_though_its_buyer_is_lost_and_what_was_not_is_let_go() {
    let mut world = World::selling();
    let (lease, stream) = fed_here(&mut world);
    next(&mut world, stream, 1, 0);
    next(&mut world, stream, 2, 0);
    run(&mut world, 0);
    assert_eq!(read(&world, 1), Some(id("y of 0")));
    world.hang(stream);
    world.settle();
    let again = world.open(Opening::Resume(lease.id));
    let finished = world.finished(again);
    let made: Vec<u32> = finished.outputs.iter().map(|(number, _)| *number).collect();
    assert_eq!(made, [0, 1]);
    world.sign(again);
    world.live(5_000);
    world.assert_at_rest();
}

#[test]
fn a_start_whose_inputs_are_fed_otherwise_than_they_may_be_is_refused() {
    let refused = |change: &dyn Fn(&mut Start)| {
        let mut world = World::selling();
        let lease = world.buy(Term::Firm, 60_000);
        let mut start = start_of_fed(&lease, Some(maker()));
        change(&mut start);
        let stream = world.open(Opening::Start(Box::new(start)));
        world.settle();
        world.messages(stream)[0].contains("x has no source")
    };
    let fed = |name: &str, maker| {
        let name = name.to_owned();
        Some(Feedback { name, maker })
    };
    assert!(!refused(&|_| {}));
    assert!(refused(&|start| start.sequences = 0), "it is no session");
    assert!(refused(&|start| {
        start.parts[0].inputs[0].fed = fed("z", None);
    }));
    let own = |start: &mut Start| start.parts[0].inputs[0].fed = fed("y", Some(maker()));
    assert!(refused(&own), "it is made here");
    assert!(refused(&|start| {
        start.parts[0].inputs[0].fed = fed("z", Some((start.lease, maker().1)));
    }));
    let (lease, provider) = maker();
    assert!(refused(&|start| {
        start.parts[0].inputs[0].source = Source::Lease { lease, provider };
        start.first.inputs.clear();
    }));
    assert!(refused(&|start| {
        let mut other = part(&[("x", Source::Buyer)], "v");
        other.inputs[0].fed = fed("y", None);
        start.parts.push(other);
    }));
    assert!(refused(&|start| {
        let other = Source::Lease {
            lease: LeaseId(78),
            provider,
        };
        let other = part(&[("z", other)], "v");
        start.parts.push(other);
    }));
}
