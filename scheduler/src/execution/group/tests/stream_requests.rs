//! Tests streams in which each request is a run of its own: several requests run at the same time,
//! and each has its own report, cancellation and error.

use super::card::{Card, Traits};
use super::own_memory::{TENSOR, alone, assert_nothing_is_held, model, node, processor, runner};
use super::*;
use crate::execution::Stream;
use crate::execution::report::Report;
use crate::execution::timeline::{Span, SpanKind, Timeline};

const REQUESTS: usize = 6;

/// Returns a chain of two products and two other operators.
fn line() -> ModelProto {
    let nodes = vec![
        node("MatMul", &["x", "a"], "h1"),
        node("MatMul", &["h1", "a"], "h2"),
        node("Relu", &["h2"], "r"),
        node("Neg", &["r"], "y"),
    ];
    model(nodes, &["y"])
}

/// Returns a card for the products, and one for the other operators.
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

fn run(runner: &Runner, stream: &Stream, task: &Task) -> Result<RunResult, TaskError> {
    runner.run_in_stream(stream, task, owned(), &Cancel::default())
}

/// Runs all requests, with as many at the same time as the stream should have.
fn run_all(runner: &Runner, stream: &Stream, task: &Task) -> Vec<RunResult> {
    let (next, rans) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..runner.stream_ahead() {
            scope.spawn(|| {
                while next.fetch_add(1, Ordering::SeqCst) < REQUESTS as u64 {
                    let ran = run(runner, stream, task).unwrap();
                    lock(&rans).push(ran);
                }
            });
        }
    });
    rans.into_inner().unwrap()
}

/// Returns the busy microseconds of each device in a report.
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
    // Of the group as one each moment counts once, however many of its devices were at work.
    let charged: Duration = rans.iter().map(|ran| ran.busy).sum();
    let computing = timeline.computing_micros();
    assert_eq!(charged, Duration::from_micros(computing));
    let of_each = busy(&whole).values().sum::<u64>();
    assert!(computing < of_each, "{computing} us of {of_each} at once");
    // And what was moved is told once.
    let moved = rans.iter().map(|ran| ran.report.memory["cards"].pcie_bytes);
    let over = runner.memory_stats().unwrap().0.over.pcie;
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
    let cancelled = matches!(second, Err(TaskError::Group(GroupRunError::Cancelled)));
    assert!(cancelled, "{:?}", second.err());
    assert_eq!(first.unwrap().outputs, alone(&line()));
    let third = run(&runner, &stream, &task).unwrap();
    assert_eq!(third.report.devices.len(), 2, "the line is there still");
    // What the cancelled one was at ends by itself.
    drop(stream);
    let device_group = own_memory::group_of(&runner);
    while !device_group.memories.lock().holdings().is_empty() {
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

/// Returns a model that cannot be cut.
fn product() -> ModelProto {
    model(vec![node("MatMul", &["x", "a"], "y")], &["y"])
}

/// Returns two cards, each slower than the fastest speed by its factor.
fn unlike(slower: [f64; 2]) -> [Card; 2] {
    let card = |name: &str, slower: f64| {
        let speed = slow().operations_per_second / slower;
        let traits = Traits {
            speed,
            ..Traits::default()
        };
        Card::new(name, traits)
    };
    [card("one", slower[0]), card("other", slower[1])]
}

#[test]
fn requests_that_cannot_be_cut_go_to_different_devices_by_their_speed() {
    for (slower, under_way) in [
        ([1.0, 1.0], [2, 1]),
        ([1.0, 2.0], [2, 1]),
        ([2.0, 1.0], [1, 2]),
    ] {
        let [one, other] = unlike(slower);
        let (runner, task) = runner(&[&one, &other], &product(), 1 << 24);
        one.running().let_pass(0);
        other.running().let_pass(0);
        let inputs = |request: u32| {
            let x = Tensor::from_vec([SIZE, SIZE], vec![request as f32; SIZE * SIZE]).unwrap();
            BTreeMap::from([("x".to_owned(), x)])
        };
        let mut answers = Vec::new();
        let timeline = std::thread::scope(|scope| {
            let take = |outputs: BTreeMap<String, Tensor>| {
                answers.push(outputs["y"].to_vec::<f32>().unwrap()[0]);
            };
            let requests = (0..20).map(inputs);
            let running = scope.spawn(|| runner.run_stream(task.model, requests, take));
            // Three are under way: what comes to each device first waits in it.
            one.running().until_came(1);
            other.running().until_came(1);
            let most = usize::from(under_way[1] > under_way[0]);
            let cards = [&one, &other];
            // The one that is at more of them is given its second one while the other waits.
            cards[most].running().let_pass(1);
            cards[most].running().until_came(2);
            assert_eq!(cards[1 - most].running().came(), 1);
            for card in cards {
                card.running().let_pass(u64::MAX);
            }
            running.join().unwrap().unwrap()
        });
        let right: Vec<f32> = (0..20).map(|request| request as f32 * 0.5).collect();
        assert_eq!(answers, right, "in their order");
        let tasks = |name: &str| {
            let spans = timeline.spans().iter();
            let own = |span: &&Span| span.device == name && span.kind == SpanKind::Compute;
            spans.filter(own).count()
        };
        assert_eq!(tasks("one (emulated)") + tasks("other (emulated)"), 20);
        assert_nothing_is_held(&runner, &[&one, &other]);
    }
}

#[test]
fn a_device_too_slow_to_be_of_help_is_given_no_request() {
    let [one, other] = unlike([10.0, 1.0]);
    let (runner, task) = runner(&[&one, &other], &product(), 1 << 24);
    let rans = run_all(&runner, &Stream::default(), &task);
    let right = alone(&product());
    assert!(rans.iter().all(|ran| ran.outputs == right));
    assert_eq!((one.seen().compiled, one.running().came()), (0, 0));
}

#[test]
fn a_device_without_room_for_all_weights_is_given_no_request() {
    let [one, other] = unlike([1.0, 1.0]);
    let traits = Traits {
        room: 3 * TENSOR,
        ..Traits::default()
    };
    let narrow = Card::new("narrow", traits);
    let (runner, task) = runner(&[&narrow, &one, &other], &product(), 1 << 24);
    let rans = run_all(&runner, &Stream::default(), &task);
    let right = alone(&product());
    assert!(rans.iter().all(|ran| ran.outputs == right));
    assert_eq!((narrow.seen().compiled, narrow.running().came()), (0, 0));
    assert_eq!([&one, &other].map(|card| card.seen().compiled), [1, 1]);
}

#[test]
fn what_is_no_line_is_run_one_by_one() {
    let single = product();
    let [one, other] = cards();
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
