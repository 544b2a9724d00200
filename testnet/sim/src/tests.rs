//! Tests that a few seeds keep every promise, and that the checker notices each promise that a test
//! breaks on purpose. `mutants/list.txt` has bugs to plant in the simulated code.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use souk_consensus::batch::BatchId;
use souk_consensus::replica::AppliedEntry;
use souk_consensus::{
    Checkpoint, Digest, History, Incarnation, LogIndex, LogTime, ReplicaId, Term,
};
use souk_market::{AccountKey, LeaseId, Nonce};
use souk_roles::validator::event::ReadMoment;

use super::checker::Checker;
use super::clients::Clients;
use super::machine::{DecodingCache, MarketBreach};
use super::raft_promises::{Pledge, Pledges};
use super::random::Random;
use super::*;

#[test]
fn a_few_seeds_hold_every_promise() {
    // The third once left a learner behind whose word of an installed snapshot was lost, the fourth
    // a log that did not know of the snapshot it went on from.
    for (seed, nodes, rushes) in [
        (0, 5, true),
        (1, 3, true),
        (403_480, 5, false),
        (420_878, 5, false),
    ] {
        let report = run(&Config {
            nodes,
            rushes,
            ..Config::new(seed, 1)
        });
        assert!(report.failure.is_none(), "{report:#?}");
        assert!(report.counts.acknowledged > 100, "{:#?}", report.counts);
    }
}

/// Runs a minute with this fault only.
fn with_fault(fault: Fault) -> Counts {
    let faults = vec![TimedFault {
        at_ms: 10_000,
        fault,
    }];
    let config = Config {
        nodes: 3,
        ..Config::new(5, 1)
    };
    let mut world = World::new(&config, faults);
    assert_eq!(world.run(), None);
    world.counts
}

#[test]
fn one_validator_s_wrong_state_stops_that_one_alone() {
    let counts = with_fault(Fault::WrongState { node: 1 });
    assert_eq!((counts.stopped_alone, counts.replaced), (1, 1));
    assert!(counts.acknowledged > 100);
}

#[test]
fn a_liar_s_state_and_members_are_refused_and_the_market_goes_on() {
    let counts = with_fault(Fault::Lie { node: 2, ms: 5_000 });
    // A state of a time far ahead is refused for that.
    assert!(counts.states_refused + counts.changes_refused > 0);
    assert!(counts.acknowledged > 100);
}

#[test]
fn one_seed_is_one_run() {
    let (one, other) = (run(&Config::new(11, 1)), run(&Config::new(11, 1)));
    assert_eq!(one.history, other.history);
    assert_eq!(one.cores, other.cores);
    assert_eq!(one.counts.events, other.counts.events);
}

#[test]
fn what_never_happened_in_many_runs_is_named() {
    let mut sums = Sums::default();
    for _ in 1..COVERAGE_SEEDS_MIN {
        sums.add(&Counts::default());
    }
    assert!(sums.missing_events().is_empty(), "too few to tell");
    let counts = Counts {
        jobs_finished: 1,
        ..Counts::default()
    };
    sums.add(&counts);
    assert!(sums.missing_events().contains(&"jobs_resumed"));
    assert!(!sums.missing_events().contains(&"jobs_finished"));
}

fn checker() -> Checker {
    let (_, genesis) = Clients::new(Random::new(1, "people"));
    Checker::new(&genesis, Rc::new(RefCell::new(DecodingCache::default())))
}

fn id(number: u64) -> ReplicaId {
    ReplicaId::new(number).expect("one and more")
}

/// Returns the kind of violation that a checker reports after `act`.
fn found(act: impl FnOnce(&mut Checker)) -> Option<&'static str> {
    let mut checker = checker();
    act(&mut checker);
    checker.violation().map(Violation::kind)
}

/// Returns an applied entry with a tick.
fn tick(index: u64, sequence: u64, time: u64, result: &[u8]) -> AppliedEntry {
    AppliedEntry {
        index: LogIndex(index),
        term: Term(1),
        batch: BatchId {
            origin: id(1),
            incarnation: Incarnation(1),
            sequence,
        },
        time: LogTime(time),
        results: vec![(Bytes::new(), result.to_vec())],
    }
}

const LATEST: LogTime = LogTime(1_000);

#[test]
fn a_group_that_does_not_agree_is_noticed() {
    let leaders = found(|checker| {
        checker.on_leader(Term(2), id(1));
        checker.on_leader(Term(2), id(1));
        checker.on_leader(Term(3), id(2));
    });
    assert_eq!(leaders, None);
    let leaders = found(|checker| {
        checker.on_leader(Term(2), id(1));
        checker.on_leader(Term(2), id(3));
    });
    assert_eq!(leaders, Some("two_leaders"));
    let mut other = History::default();
    other.push(Digest([1; 32]), &mut Vec::new());
    let histories = found(|checker| {
        checker.on_history(id(1), LogIndex(7), &History::default());
        checker.on_history(id(2), LogIndex(7), &other);
    });
    assert_eq!(histories, Some("histories_differ"));
    let states = found(|checker| {
        for (replica, state) in [(1, 5), (2, 5), (3, 6)] {
            let checkpoint = Checkpoint {
                index: LogIndex(128),
                term: Term(1),
                size: 9,
                history: Digest([1; 32]),
                state: Digest([state; 32]),
            };
            checker.on_checkpoint(id(replica), &checkpoint, None);
        }
    });
    assert_eq!(states, Some("states_differ"));
}

#[test]
fn a_log_that_repeats_itself_or_goes_back_in_time_is_noticed() {
    let well = found(|checker| {
        checker.on_applied(&tick(2, 1, 10, b""), LATEST);
        checker.on_applied(&tick(3, 2, 10, b""), LATEST);
    });
    assert_eq!(well, None);
    let twice = found(|checker| {
        checker.on_applied(&tick(2, 1, 10, b""), LATEST);
        checker.on_applied(&tick(3, 1, 11, b""), LATEST);
    });
    assert_eq!(twice, Some("applied_twice"));
    let back = found(|checker| {
        checker.on_applied(&tick(2, 1, 10, b""), LATEST);
        checker.on_applied(&tick(3, 2, 9, b""), LATEST);
    });
    assert_eq!(back, Some("time_went_back"));
    let ahead = found(|checker| checker.on_applied(&tick(2, 1, 1_001, b""), LATEST));
    assert_eq!(ahead, Some("time_ran_away"));
    let other = found(|checker| checker.on_applied(&tick(2, 1, 10, b"else"), LATEST));
    assert_eq!(other, Some("replay_differs"));
}

#[test]
fn a_client_that_is_told_what_is_not_so_is_noticed() {
    let lost = found(|checker| {
        checker.on_acknowledged(4, Digest([9; 32]));
        checker.check_acknowledged();
    });
    assert_eq!(lost, Some("acknowledged_lost"));
    let old = found(|checker| {
        checker.on_completed(1, LogIndex(5), LogIndex(5));
        let wanted = checker.required_index();
        checker.on_completed(2, wanted, LogIndex(4));
    });
    assert_eq!(old, Some("not_linearizable"));
    let moment = |applied, time, age_ms| ReadMoment {
        applied: LogIndex(applied),
        time: LogTime(time),
        age_ms,
    };
    let glance = |said| found(|checker| checker.on_glance(3, moment(4, 10, 700), said));
    assert_eq!(glance(moment(4, 10, 720)), None);
    for said in [moment(4, 10, 0), moment(3, 10, 700), moment(4, 11, 700)] {
        assert_eq!(glance(said), Some("age_untrue"));
    }
    let carried = checker().has_carried(AccountKey([1; 32]), &[Nonce(1)], Vec::new());
    assert!(!carried, "nothing is in the log");
    let breach = MarketBreach::ClosedTwice(LeaseId(1));
    let market = found(|checker| checker.on_breach(id(1), &breach));
    assert_eq!(market, Some("market"));
}

#[test]
fn a_replica_that_breaks_its_word_is_noticed() {
    let pledge = |term, last, vote| Pledge { term, last, vote };
    let mut pledges = Pledges::default();
    for (term, last, vote) in [(2, 7, 0), (3, 0, 2), (3, 8, 0), (3, 5, 2), (2, 0, 1)] {
        assert_eq!(pledges.on_told(id(1), pledge(term, last, vote)), None);
    }
    let knows = |term, last| pledges.on_start(id(1), Term(term), LogIndex(last));
    assert_eq!((knows(3, 8), knows(4, 0)), (None, None));
    assert!(knows(3, 7).is_some(), "an entry that it acknowledged");
    assert!(knows(2, 9).is_some(), "the term in which it voted");
    assert_eq!(pledges.on_start(id(2), Term(0), LogIndex(0)), None);
    assert!(pledges.on_told(id(1), pledge(3, 0, 4)).is_some(), "a vote");
}
