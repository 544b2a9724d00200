//! Requests of a stream, each a run of its own: several under way, each told what it took.

use super::card::{Card, Traits};
use super::own::{TENSOR, alone, assert_nothing_is_held, model, node, processor, runner};
use super::*;
use crate::report::Report;
use crate::run::Stream;
use crate::timeline::{SpanKind, Timeline};

const REQUESTS: usize = 6;

/// Two products, and what follows them.
fn line() -> ModelProto {
    let nodes = vec![
        node("MatMul", &["x", "a"], "h1"),
        node("MatMul", &["h1", "a"], "h2"),
        node("Relu", &["h2"], "r"),
        node("Neg", &["r"], "y"),
    ];
    model(nodes, &["y"])
}

/// A card for the first stage of it, and one for the other.
fn cards() -> [Card; 2] {
    let like = |operators: &[&'static str]| Traits {
        operators: operators.to_vec(),
        ..Traits::default()
    };
    [
        Card::new("one", like(&["MatMul"])),
        Card::new("other", like(&["Relu", "Neg"])),
    ]
}

fn owned() -> Precedence {
    Precedence {
        owner: Some(7),
        ..Precedence::default()
    }
}

fn run(runner: &Runner, stream: &Stream, task: &Task) -> Result<Ran, TaskError> {
    runner.run_in_stream(stream, task, owned(), &Cancel::default())
}

/// Runs so many requests with as many under way as the stream should have.
fn run_all(runner: &Runner, stream: &Stream, task: &Task) -> Vec<Ran> {
    let (next, rans) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..runner.stream_ahead() {
            scope.spawn(|| {
                while next.fetch_add(1, Ordering::SeqCst) < REQUESTS as u64 {
                    let ran = run(runner, stream, task).unwrap();
                    flow::lock(&rans).push(ran);
                }
            });
        }
    });
    rans.into_inner().unwrap()
}

/// Microseconds that each device computed, by a report.
fn busy(report: &Report) -> BTreeMap<String, u64> {
    let devices = report.devices.iter();
    let each = devices.map(|(name, device)| (name.clone(), device.busy_micros));
    each.collect()
}

#[test]
fn devices_are_at_several_requests_of_a_stream_and_each_is_told_what_it_took() {
    let [one, other] = cards();
    let (runner, task) = runner(&[&one, &other], &line(), 1 << 24);
    assert_eq!(runner.stream_ahead(), 3);
    let stream = Stream::default();
    other.running().let_pass(0);
    let rans = std::thread::scope(|scope| {
        let running = scope.spawn(|| run_all(&runner, &stream, &task));
        other.running().until_came(1);
        // The first request is on the last device, and two are behind it on the first one's.
        one.running().until_came(3);
        other.running().let_pass(u64::MAX);
        running.join().unwrap()
    });
    assert_eq!(rans.len(), REQUESTS);
    let right = alone(&line());
    let mut timeline = Timeline::default();
    for ran in &rans {
        assert_eq!(ran.outputs, right);
        assert_eq!(ran.report.devices.len(), 2, "a stage on each");
        assert!(ran.report.devices.values().all(|device| device.tasks == 1));
        timeline.merge(ran.timeline.clone());
    }

    // Device by device what each request took is all there was: no two were on one at once.
    let mut whole = Report::default();
    for ran in &rans {
        whole.merge(ran.report.clone(), &timeline);
    }
    for (device, all) in busy(&whole) {
        let each = rans.iter().map(|ran| busy(&ran.report)[&device]);
        assert_eq!(each.sum::<u64>(), all, "{device}");
    }
    // Of the team as one each moment counts once, however many of its devices were at work.
    let charged: Duration = rans.iter().map(|ran| ran.busy).sum();
    let computing = timeline.computing_micros();
    assert_eq!(charged, Duration::from_micros(computing));
    let of_each = busy(&whole).values().sum::<u64>();
    assert!(computing < of_each, "{computing} us of {of_each} at once");
    // And what was moved is told once.
    let moved = rans.iter().map(|ran| ran.report.memory["cards"].pcie_bytes);
    let over = runner.memory().unwrap().0.over.pcie;
    assert_eq!(moved.sum::<u64>(), over);
    assert_eq!(over, 4 * TENSOR * REQUESTS as u64);
    assert_nothing_is_held(&runner, &[&one, &other]);
}

#[test]
fn a_request_that_comes_late_goes_along_the_stages_of_those_before_it() {
    let [one, other] = cards();
    let (runner, task) = runner(&[&one, &other], &line(), 1 << 24);
    let stream = Stream::default();
    let rans = run_all(&runner, &stream, &task);
    let compiled = [&one, &other].map(|card| card.seen().compiled);
    let late = run(&runner, &stream, &task).unwrap();
    assert_eq!(late.outputs, alone(&line()));
    assert_eq!([&one, &other].map(|card| card.seen().compiled), compiled);
    let computing = late.timeline.spans().iter();
    let computing = computing.filter(|span| span.kind == SpanKind::Compute);
    assert_eq!(computing.count(), 2);
    // In the devices' own time the request before it may be on the second one still.
    let all = rans.iter().chain([&late]);
    let mut timeline = Timeline::default();
    all.clone()
        .for_each(|ran| timeline.merge(ran.timeline.clone()));
    let charged: Duration = all.map(|ran| ran.busy).sum();
    assert_eq!(charged, Duration::from_micros(timeline.computing_micros()));
    assert_nothing_is_held(&runner, &[&one, &other]);
}

#[test]
fn who_cancels_one_request_of_a_stream_holds_up_no_other() {
    let [one, other] = cards();
    let (runner, task) = runner(&[&one, &other], &line(), 1 << 24);
    let (stream, cancel) = (Stream::default(), Cancel::default());
    other.running().let_pass(0);
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| run(&runner, &stream, &task));
        other.running().until_came(1);
        let second = || runner.run_in_stream(&stream, &task, owned(), &cancel);
        let second = scope.spawn(second);
        one.running().until_came(2);
        cancel.cancel();
        // The device before which it waits is at the first one still.
        let second = second.join().unwrap();
        other.running().let_pass(u64::MAX);
        (first.join().unwrap(), second)
    });
    let cancelled = matches!(second, Err(TaskError::Team(TeamRunError::Cancelled)));
    assert!(cancelled, "{:?}", second.err());
    assert_eq!(first.unwrap().outputs, alone(&line()));
    let third = run(&runner, &stream, &task).unwrap();
    assert_eq!(third.report.devices.len(), 2, "the line is there still");
    // What the cancelled one was at ends by itself.
    drop(stream);
    let team = own::team_of(&runner);
    while !team.memories.lock().holdings().is_empty() {
        std::thread::yield_now();
    }
    assert_nothing_is_held(&runner, &[&one, &other]);
}

#[test]
fn what_a_device_of_the_line_fails_at_is_done_by_another() {
    for fails_at in 0..3 {
        let one = Card::new("one", Traits::default());
        let traits = Traits {
            fails_at: Some(fails_at),
            ..Traits::default()
        };
        let other = Card::new("other", traits);
        let (runner, task) = runner(&[&one, &other], &line(), 1 << 24);
        let stream = Stream::default();
        let rans = run_all(&runner, &stream, &task);
        let right = alone(&line());
        assert!(rans.iter().all(|ran| ran.outputs == right));
        let late = run(&runner, &stream, &task).unwrap();
        assert_eq!(late.report.devices.len(), 1, "one is left");
        assert_nothing_is_held(&runner, &[&one]);
    }
}

#[test]
fn requests_for_which_there_is_no_room_together_are_run_one_by_one() {
    let one = processor("one", &["MatMul"]);
    let other = processor("other", &["Relu", "Neg"]);
    // One request holds what it was given or what it gives, and what is between the stages.
    let (runner, task) = runner(&[&one, &other], &line(), 2 * TENSOR);
    let rans = run_all(&runner, &Stream::default(), &task);
    let right = alone(&line());
    assert!(rans.iter().all(|ran| ran.outputs == right));
    assert_nothing_is_held(&runner, &[]);
}

#[test]
fn a_request_that_fails_wherever_it_runs_is_told_why() {
    let [one, other] = cards();
    let (runner, task) = runner(&[&one, &other], &line(), 1 << 24);
    let stream = Stream::default();
    run(&runner, &stream, &task).unwrap();
    let nothing = Task {
        inputs: BTreeMap::new(),
        ..task.clone()
    };
    assert!(run(&runner, &stream, &nothing).is_err());
    assert_eq!(
        run(&runner, &stream, &task).unwrap().outputs,
        alone(&line())
    );
    assert_nothing_is_held(&runner, &[&one, &other]);
}

#[test]
fn what_is_no_line_is_run_one_by_one() {
    let single = model(vec![node("MatMul", &["x", "a"], "y")], &["y"]);
    let [one, other] = ["one", "other"].map(|name| Card::new(name, Traits::default()));
    let (runner, task) = runner(&[&one, &other], &single, 1 << 24);
    let stream = Stream::default();
    let rans = run_all(&runner, &stream, &task);
    let right = alone(&single);
    assert!(rans.iter().all(|ran| ran.outputs == right));
    let charged: Duration = rans.iter().map(|ran| ran.busy).sum();
    let each = rans.iter().map(|ran| ran.timeline.computing_micros());
    assert_eq!(
        charged,
        Duration::from_micros(each.sum()),
        "none beside another"
    );
    assert_nothing_is_held(&runner, &[&one, &other]);
}
