//! Tests the course of a lease step by step: start, requests, offers, receipt and failures.

use souk_market::{Lease, Term, TokenTerms};
use souk_memory::ContentId;

use super::world::*;
use crate::clock::Micros;
use crate::effect::Effect;
use crate::lease::{
    BuyerMessage, Failure, OfferAnswer, Opening, Request, Source, Start, TAB_ANSWER, TAB_REQUEST,
};
use crate::provider::{
    Action, Answer, Event, Fact, FailedRun, ProviderStatus, RunResult, Stage, WorkStage,
};

/// A lease that is ready for the buyer's message.
fn ready(world: &mut World, start: Start) -> crate::provider::StreamId {
    let stream = world.open(Opening::Start(Box::new(start)));
    world.settle();
    assert_eq!(world.messages(stream), ["accepted", "fetched", "ready"]);
    stream
}

#[test]
fn a_lease_of_one_request_is_run_signed_settled_and_closed() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 60_000);
    let stream = ready(&mut world, start(&lease, true));
    world.say(stream, BuyerMessage::Go);
    world.settle();
    let messages = world.messages(stream);
    assert_eq!(messages[3..], ["running 0.0", "made 0.0", "finished"]);
    let finished = world.finished(stream);
    let body = &finished.receipt.body;
    assert_eq!(body.usage.0, 30_000);
    assert_eq!((body.inputs.len(), body.outputs.len()), (1, 1));
    assert_eq!(finished.outputs[0].1[0].0, "y");
    world.sign(stream);
    world.settle();
    assert!(world.hung.contains(&stream));
    assert_eq!(world.paid(lease.id), None, "the buyer may settle");
    world.live(3_000);
    assert_eq!(world.paid(lease.id).map(|paid| paid.0), Some(30_000));
    world.assert_at_rest();
}

#[test]
fn a_buyer_hears_every_three_seconds_that_the_provider_of_its_lease_lives() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 60_000);
    let stream = ready(&mut world, start(&lease, true));
    assert_eq!(world.alive, 0);
    world.live(9_000);
    assert_eq!(
        world.alive, 3,
        "also while the buyer's message is waited for"
    );
    world.say(stream, BuyerMessage::Go);
    world.settle();
    let messages = world.messages(stream);
    assert_eq!(messages.last().map(String::as_str), Some("finished"));
    world.live(9_000);
    assert_eq!(world.alive, 3, "what is done is told");
}

#[test]
fn a_run_that_fails_by_its_inputs_is_told_so_owed_and_no_fault_of_the_provider() {
    for is_alone in [true, false] {
        let mut world = World::selling();
        let lease = world.buy(Term::Firm, 60_000);
        let stream = ready(&mut world, start(&lease, is_alone));
        world.say(stream, BuyerMessage::Go);
        if !is_alone {
            world.settle();
            world.say(stream, BuyerMessage::Next(request(1)));
        }
        world.settle_but(is_run);
        world.pass(10);
        let why = Failure::BadInput("3 is not below 2".to_owned());
        let failed = FailedRun {
            promised: Some(Micros::from_millis(30)),
            ..why.clone().into()
        };
        world.answer_with(is_run, Answer::Ran(Err(failed)));
        world.settle();
        let messages = world.messages(stream);
        let last = [format!("stalled: {why}"), "finished".to_owned()];
        assert_eq!(messages[messages.len() - 2..], last);
        let body = world.finished(stream).receipt.body;
        let before = if is_alone { 0 } else { 30_000 };
        assert_eq!(
            body.usage.0,
            before + 10_000,
            "the time that it took is owed"
        );
        assert_eq!(body.outputs.len(), usize::from(!is_alone));
        world.sign(stream);
        world.live(3_000);
        assert_eq!(world.paid(lease.id).map(|paid| paid.0), Some(body.usage.0));
    }
}

#[test]
fn a_buyer_that_states_no_time_owes_for_a_failed_run_by_the_provider_s_own_figure() {
    let millis = |millis| Some(Micros::from_millis(millis));
    let figures = [
        // Ten milliseconds of a part of known length, and of one that only a run can tell.
        (1, millis(10), 10_000),
        (1, millis(4), 4_000),
        (1, None, 10_000),
        (0, millis(4), 4_000),
    ];
    for (flops, promised, owed) in figures {
        let mut world = World::selling();
        let lease = world.buy(Term::Firm, 60_000);
        let mut work = start(&lease, true);
        (work.parts[0].expected, work.parts[0].flops) = (Micros(0), flops);
        let stream = ready(&mut world, work);
        world.say(stream, BuyerMessage::Go);
        world.settle_but(is_run);
        world.pass(10);
        let failure = Failure::BadInput("3 is not below 2".to_owned());
        let failed = FailedRun { failure, promised };
        world.answer_with(is_run, Answer::Ran(Err(failed)));
        world.settle();
        assert_eq!(world.finished(stream).receipt.body.usage.0, owed);
    }
}

#[test]
fn nothing_is_accepted_before_it_is_on_the_disk_that_it_begins() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 60_000);
    let stream = world.open(Opening::Start(Box::new(start(&lease, true))));
    world.settle_but(|action| matches!(action, Action::Record(_)));
    assert!(world.messages(stream).is_empty());
    assert!(world.wanted(is_bring).is_none());
    world.settle();
    assert_eq!(world.messages(stream)[0], "accepted");
}

#[test]
fn what_is_not_open_between_the_two_is_refused_and_nothing_is_put_down() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 60_000);
    let stranger = account(&key(8));
    let work = start(&lease, true);
    let stream = world.open_as(stranger, Opening::Start(Box::new(work.clone())));
    world.settle();
    assert!(world.messages(stream)[0].contains("another buyer's"));
    let mut other = work.clone();
    other.job.0[0] ^= 1;
    let stream = world.open(Opening::Start(Box::new(other)));
    world.settle();
    assert!(world.messages(stream)[0].contains("another job"));
    assert!(world.journal.is_empty() && world.commands.len() == 1);
    // Its own buyer may start it all the same, and once.
    ready(&mut world, work.clone());
    let again = world.open(Opening::Start(Box::new(work)));
    world.settle();
    let started = Failure::Started;
    assert_eq!(world.messages(again), [format!("failed: {started}")]);
}

#[test]
fn requests_are_run_one_behind_the_other_and_told_in_the_order_in_which_they_were_begun() {
    let mut world = World::selling();
    world.slots = 2;
    let lease = world.buy(Term::Firm, 60_000);
    let stream = ready(&mut world, start(&lease, false));
    world.say(stream, BuyerMessage::Go);
    for number in 1..4 {
        world.say(stream, BuyerMessage::Next(request(number)));
    }
    world.settle_but(is_run);
    assert_eq!(world.messages(stream)[3..], ["running 0.0", "running 1.0"]);
    // The second is done before the first.
    let second = world.pending.iter().rposition(|e| is_run(&e.action));
    world.carry_out(second.expect("both run"), true);
    assert_eq!(
        world.messages(stream).len(),
        5,
        "it is told after the first"
    );
    world.settle();
    world.say(stream, BuyerMessage::NoMore);
    world.settle();
    let messages = world.messages(stream);
    let made = messages
        .iter()
        .filter(|message| message.starts_with("made"));
    let made: Vec<&String> = made.collect();
    assert_eq!(made, ["made 0.0", "made 1.0", "made 2.0", "made 3.0"]);
    assert_eq!(messages.last().map(String::as_str), Some("finished"));
    assert_eq!(world.finished(stream).receipt.body.usage.0, 4 * 30_000);
}

#[test]
fn steps_of_different_sequences_are_run_at_once_and_those_of_one_in_their_order() {
    let mut world = World::selling();
    world.slots = 2;
    let lease = world.buy(Term::Firm, 60_000);
    let session = Start {
        sequences: 2,
        ..start(&lease, false)
    };
    let stream = ready(&mut world, session);
    world.say(stream, BuyerMessage::Go);
    let step = |number, sequence| {
        BuyerMessage::Next(Request {
            sequence,
            ..request(number)
        })
    };
    for (number, sequence) in [(1, 0), (2, 1)] {
        world.say(stream, step(number, sequence));
    }
    world.settle_but(is_run);
    assert_eq!(world.messages(stream)[3..], ["running 0.0", "running 2.0"]);
    // The second's is done before the first's: neither waits for the other's.
    let second = world.pending.iter().rposition(|e| is_run(&e.action));
    world.carry_out(second.expect("both run"), true);
    assert_eq!(world.messages(stream)[5..], ["made 2.0"]);
    world.settle();
    let messages = world.messages(stream);
    let made = messages
        .iter()
        .filter(|message| message.starts_with("made"));
    let made: Vec<&String> = made.collect();
    assert_eq!(made, ["made 2.0", "made 0.0", "made 1.0"]);
    // A sequence that was not stated has no room.
    world.say(stream, step(3, 2));
    world.settle();
    let messages = world.messages(stream);
    assert!(
        messages
            .iter()
            .any(|message| message.starts_with("stalled")),
        "{messages:?}"
    );
    assert_eq!(messages.last().map(String::as_str), Some("finished"));
}

#[test]
fn a_second_part_waits_for_what_another_lease_gives_and_takes_it_once() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 60_000);
    let stream = ready(&mut world, start_of_two(&lease, true));
    world.say(stream, BuyerMessage::Go);
    world.settle();
    let maker = account(&key(3));
    world.open_as(account(&key(4)), Opening::Offer(offer(&lease, 0)));
    world.open_as(maker, Opening::Offer(offer(&lease, 1)));
    world.open_as(maker, Opening::Offer(offer(&lease, 0)));
    world.open_as(maker, Opening::Offer(offer(&lease, 0)));
    let no = OfferAnswer::No;
    world.open_as(account(&key(4)), Opening::Offer(offer(&lease, 0)));
    // Its maker may not have heard the answer.
    let yes = OfferAnswer::Yes;
    assert_eq!(world.replies, [no, no, yes, yes, no]);
    // Its buyer may not know that it came.
    world.open(Opening::Offer(offer(&lease, 0)));
    assert_eq!(world.replies.last(), Some(&OfferAnswer::Yes));
    world.settle();
    assert_eq!(world.messages(stream).last().unwrap(), "finished");
    let body = world.finished(stream).receipt.body;
    assert_eq!((body.inputs.len(), body.outputs.len()), (2, 2));
}

#[test]
fn a_second_run_reads_the_first_runs_tensors_and_not_its_own() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 60_000);
    let mut start = start_of_two(&lease, true);
    start.parts[0] = part(&[("x", Source::Buyer)], "z");
    start.parts[1].inputs.retain(|input| input.name == "z");
    let stream = ready(&mut world, start);
    world.say(stream, BuyerMessage::Go);
    world.settle();
    let messages = world.messages(stream);
    assert_eq!(messages.last().map(String::as_str), Some("made 0.0"));
    world.open_as(account(&key(3)), Opening::Offer(offer(&lease, 0)));
    world.settle();
    let body = world.finished(stream).receipt.body;
    let read = offer(&lease, 0).tensor;
    assert!(body.inputs.iter().any(|id| id.0 == *read.as_bytes()));
}

#[test]
fn what_is_offered_early_is_kept_within_the_window_and_no_further() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 60_000);
    let stream = ready(&mut world, start_of_two(&lease, false));
    let maker = account(&key(3));
    for number in [1, 40, 63, 2_000_000] {
        world.open_as(maker, Opening::Offer(offer(&lease, number)));
    }
    assert_eq!(world.replies, [OfferAnswer::Yes; 4]);
    for number in 100..200 {
        world.open_as(maker, Opening::Offer(offer(&lease, number)));
    }
    let taken = world
        .replies
        .iter()
        .filter(|taken| **taken == OfferAnswer::Yes);
    assert_eq!(taken.count(), 63, "one is open, and so many may be early");
    assert!(world.wanted(is_bring).is_none(), "none is open yet");
    world.say(stream, BuyerMessage::Go);
    world.say(stream, BuyerMessage::Next(request(1)));
    let comes = |what: &str| {
        let of = |e: &Effect<Action>| matches!(&e.action, Action::Bring { contents, .. } if contents[0].what == what);
        world.pending.iter().filter(|e| of(e)).count()
    };
    assert_eq!((comes("x"), comes("z")), (1, 1));
}

#[test]
fn what_a_lease_makes_is_bounded_in_sum_and_what_was_made_before_is_owed() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 60_000);
    let work = start(&lease, false);
    let stream = ready(&mut world, work.clone());
    world.say(stream, BuyerMessage::Go);
    world.say(stream, BuyerMessage::Next(request(1)));
    world.settle_but(is_run);
    let first = world.wanted(is_run).expect("it runs");
    world.carry_out(first, true);
    world.settle_but(is_run);
    // It made 10 of 1,000,000 bytes.
    let too_much = RunResult {
        bytes: 999_991,
        ..ran(&work.parts[0], 1)
    };
    world.answer_with(is_run, Answer::Ran(Ok(too_much)));
    world.settle();
    let messages = world.messages(stream);
    let is_told = |message: &String| message.contains("999990 are left of what limits.outputs_mib");
    assert!(messages.iter().any(is_told), "{messages:?}");
    assert_eq!(messages.last().unwrap(), "finished");
    assert_eq!(world.finished(stream).receipt.body.outputs.len(), 1);
}

#[test]
fn a_request_beyond_the_window_stalls_the_lease_and_what_was_done_is_owed() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 60_000);
    let stream = ready(&mut world, start(&lease, false));
    world.say(stream, BuyerMessage::Go);
    world.settle();
    world.say(stream, BuyerMessage::Next(request(0)));
    world.settle();
    let messages = world.messages(stream);
    assert!(
        messages
            .iter()
            .any(|message| message.contains("beyond its window"))
    );
    assert_eq!(messages.last().unwrap(), "finished");
    assert!(world.commands.len() == 1, "nothing is given up");
}

#[test]
fn a_receipt_names_no_more_tensors_than_it_holds() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 600_000);
    let stream = ready(&mut world, start(&lease, false));
    world.say(stream, BuyerMessage::Go);
    for number in 1..300 {
        world.say(stream, BuyerMessage::Next(request(number)));
        world.settle();
    }
    let body = world.finished(stream).receipt.body;
    assert_eq!((body.inputs.len(), body.outputs.len()), (256, 256));
    world.sign(stream);
    world.live(5_000);
    assert!(world.paid(lease.id).is_some_and(|paid| paid.0 > 0));
}

#[test]
fn an_input_that_does_not_come_ends_the_lease_with_what_was_done() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 60_000);
    let stream = ready(&mut world, start_of_two(&lease, true));
    world.say(stream, BuyerMessage::Go);
    world.settle();
    world.open_as(account(&key(3)), Opening::Offer(offer(&lease, 0)));
    let place = world.wanted(is_bring).expect("it is fetched");
    world.carry_out(place, false);
    world.settle();
    let messages = world.messages(stream);
    assert!(
        messages
            .iter()
            .any(|message| message.starts_with("stalled"))
    );
    assert_eq!(messages.last().unwrap(), "finished");
    let body = world.finished(stream).receipt.body;
    assert_eq!(body.graph.0, *id("graph of y").as_bytes(), "of one part");
}

#[test]
fn no_work_is_owed_where_none_was_done_and_an_own_fault_gives_the_lease_up() {
    let mut world = World::selling();
    for kind in 0..4 {
        let lease = world.buy(Term::Firm, 60_000);
        let stream = world.open(Opening::Start(Box::new(start(&lease, true))));
        world.settle_but(|action| match kind {
            0 => is_bring(action),
            1 => matches!(action, Action::Check { .. }),
            2 => matches!(action, Action::Sandbox { .. }),
            _ => matches!(action, Action::Prepare { .. }),
        });
        world.carry_out(0, false);
        world.settle();
        assert!(world.messages(stream).last().unwrap().starts_with("failed"));
        assert!(world.hung.contains(&stream));
        let gives_up = souk_market::Command::GiveUp { lease: lease.id };
        let is_own = kind > 0;
        assert_eq!(world.commands.contains(&gives_up), is_own, "{kind}");
        world.live(200_000);
        // What others are at fault for, the time of the device is claimed for.
        let held = if is_own { 0 } else { 6_000_000 };
        assert_eq!(world.paid(lease.id).map(|paid| paid.0), Some(held));
        world.assert_at_rest();
    }
}

#[test]
fn a_run_that_fails_is_told_and_nothing_of_the_lease_is_billed() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 60_000);
    let stream = ready(&mut world, start(&lease, false));
    world.say(stream, BuyerMessage::Go);
    world.settle();
    world.say(stream, BuyerMessage::Next(request(1)));
    world.settle_but(is_run);
    world.carry_out(0, false);
    assert!(world.places.is_empty(), "its process ends first");
    world.live(1_000);
    assert!(world.messages(stream).last().unwrap().starts_with("failed"));
    assert_eq!(world.paid(lease.id).map(|paid| paid.0), Some(0));
}

#[test]
fn a_process_that_ends_by_itself_ends_its_lease() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 60_000);
    let stream = ready(&mut world, start(&lease, true));
    world.on(Event::SandboxLost {
        lease: lease.id,
        fault: Failure::Crashed("signal 9".to_owned()),
    });
    world.live(1_000);
    assert!(world.messages(stream).last().unwrap().contains("signal 9"));
    world.assert_at_rest();
}

#[test]
fn graphs_are_looked_at_in_the_place_of_their_lease_whose_end_ends_that_lease_alone() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 60_000);
    let stream = world.open(Opening::Start(Box::new(start(&lease, true))));
    world.settle_but(|action| matches!(action, Action::Check { .. }));
    assert!(world.places.contains_key(&lease.id), "it has its process");
    world.on(Event::SandboxLost {
        lease: lease.id,
        fault: Failure::Crashed("signal 6".to_owned()),
    });
    world.live(1_000);
    assert!(world.messages(stream).last().unwrap().contains("signal 6"));
    let next = world.buy(Term::Firm, 60_000);
    let stream = ready(&mut world, start(&next, true));
    assert_eq!(world.messages(stream).last().unwrap(), "ready");
}

#[test]
fn what_was_offered_and_not_taken_is_told_before_the_result() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 60_000);
    let mut work = start(&lease, true);
    let consumer = (souk_market::LeaseId(78), account(&key(4)));
    work.parts[0].outputs[0].consumers = vec![consumer];
    let stream = ready(&mut world, work);
    world.say(stream, BuyerMessage::Go);
    let is_offer = |action: &Action| matches!(action, Action::Offer { .. });
    world.settle_but(is_offer);
    assert_eq!(world.messages(stream).last().unwrap(), "made 0.0");
    world.answer_with(is_offer, Answer::Offered(Ok(OfferAnswer::No)));
    world.settle();
    assert_eq!(world.messages(stream)[5..], ["untaken y", "finished"]);
}

#[test]
fn a_limit_ends_each_request_with_its_first_parts_and_none_ends_all_at_once() {
    let mut world = World::selling();
    let lease = world.buy(Term::Firm, 60_000);
    let stream = ready(&mut world, start_of_two(&lease, true));
    world.say(stream, BuyerMessage::Go);
    world.say(stream, BuyerMessage::Limit { parts: 1 });
    world.settle();
    assert_eq!(world.messages(stream).last().unwrap(), "finished");
    let lease = world.buy(Term::Firm, 60_000);
    let stream = ready(&mut world, start(&lease, true));
    world.say(stream, BuyerMessage::Go);
    world.settle_but(is_run);
    world.say(stream, BuyerMessage::Limit { parts: 0 });
    assert!(world.wanted(is_run).is_none(), "what runs is stopped");
    world.settle();
    let last = world.messages(stream).pop().unwrap();
    assert!(last.contains("the buyer wants nothing of it any more"));
}

#[test]
fn a_buyers_lower_lease_waits_while_its_higher_one_runs() {
    let mut world = World::selling();
    let (high, low) = (world.buy(Term::Firm, 60_000), world.buy(Term::Firm, 60_000));
    let mut urgent = start(&high, true);
    urgent.priority = 2;
    let (first, second) = (
        ready(&mut world, urgent),
        ready(&mut world, start(&low, true)),
    );
    world.say(first, BuyerMessage::Go);
    world.say(second, BuyerMessage::Go);
    let runs = |world: &World| world.pending.iter().filter(|e| is_run(&e.action)).count();
    assert_eq!(runs(&world), 1);
    let place = world.wanted(is_run).unwrap();
    world.carry_out(place, true);
    assert_eq!(runs(&world), 1, "its turn has come");
    world.settle();
    assert_eq!(world.messages(second).last().unwrap(), "finished");
}

#[test]
fn so_many_leases_are_at_work_and_no_more() {
    let mut world = World::selling();
    let leases: Vec<_> = (0..17).map(|_| world.buy(Term::Firm, 60_000)).collect();
    for lease in &leases[..16] {
        ready(&mut world, start(lease, true));
    }
    let stream = world.open(Opening::Start(Box::new(start(&leases[16], true))));
    world.settle();
    assert_eq!(
        world.messages(stream),
        [format!("failed: {}", Failure::Full)]
    );
    let ProviderStatus { at_work, .. } = world.core.status();
    assert!(at_work.iter().all(|(_, stage)| *stage == WorkStage::Ready));
    assert_eq!(at_work.len(), 16);
}

#[test]
fn a_disk_that_takes_nothing_lets_nothing_begin_until_it_does() {
    let mut world = World::selling();
    world.is_disk_full = true;
    let (first, second) = (world.buy(Term::Firm, 60_000), world.buy(Term::Firm, 60_000));
    let stream = world.open(Opening::Start(Box::new(start(&first, true))));
    world.settle();
    let said = world.messages(stream).pop().unwrap();
    assert!(said.contains("cannot write its journal"), "{said}");
    assert!(!world.core.status().is_writable);
    let stream = world.open(Opening::Start(Box::new(start(&second, true))));
    assert!(world.messages(stream)[0].contains("cannot write its journal"));
    world.is_disk_full = false;
    world.live(5_000);
    assert!(world.core.status().is_writable);
    let stream = ready(&mut world, start(&second, true));
    world.say(stream, BuyerMessage::Go);
    world.settle();
    world.sign(stream);
    world.live(5_000);
    world.assert_at_rest();
    let began = world.journal.iter();
    let began = began.filter(|fact| matches!(fact, Fact::Began { .. }));
    assert_eq!(began.count(), 2);
}

#[test]
fn two_cores_with_the_same_past_do_the_same() {
    let run = || {
        let mut world = World::selling();
        let lease = world.buy(Term::Firm, 60_000);
        let stream = ready(&mut world, start(&lease, false));
        world.say(stream, BuyerMessage::Go);
        world.live(2_000);
        assert_eq!(world.core.status().stage, Stage::Selling);
        world.core.digest()
    };
    assert_eq!(run(), run());
}

#[test]
fn a_provider_of_a_model_takes_tabs_of_it_alone() {
    let card = crate::tokens::card::TextCard::new("qwen/qwen3-8b").unwrap();
    let mut world = World::selling_model(&card, TokenTerms::USUAL);
    let lease = world.buy(Term::Firm, 60_000);
    // Work of a device, an output of another name, and many at once in one slot.
    let tab = tab_start(&lease, card.id());
    let mut other_output = tab.clone();
    other_output.parts[0].outputs[0].name = "text".to_owned();
    let many = Start {
        sequences: 64,
        ..tab.clone()
    };
    let mut other_model = tab.clone();
    other_model.parts[0].graph = id("another card");
    for wrong in [start(&lease, true), other_output, many, other_model] {
        let stream = world.open(Opening::Start(Box::new(wrong)));
        world.settle();
        let said = world.messages(stream).join(" ");
        assert!(said.contains("sells tabs of qwen/qwen3-8b alone"), "{said}");
    }
    let stream = world.open(Opening::Start(Box::new(tab)));
    world.settle();
    assert_eq!(world.messages(stream)[0], "accepted");
}

/// A tab as its buyer begins it.
fn tab_start(lease: &Lease, card: ContentId) -> Start {
    let mut start = start(lease, false);
    start.sequences = 1;
    start.first.inputs[0].0 = TAB_REQUEST.to_owned();
    let part = &mut start.parts[0];
    part.graph = card;
    part.weights.clear();
    part.inputs[0].name = TAB_REQUEST.to_owned();
    part.outputs[0].name = TAB_ANSWER.to_owned();
    (part.flops, part.expected) = (0, Micros(0));
    start
}
