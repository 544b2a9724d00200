//! Tests streams of requests: where the tensors between stages are held, how they are transferred,
//! and what the group learns from the stages.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use proptest::prelude::*;

use super::card::{Card, Traits};
use super::own_memory::{
    TENSOR, alone, assert_nothing_is_held, card, group_of, model, node, processor, runner,
    runner_with,
};
use super::seeded::{drawn, graph, traits};
use super::*;
use crate::execution::Stream;
use crate::execution::timeline::{Span, SpanKind};

const REQUESTS: u64 = 8;
/// The number of tries, one each millisecond, within which an expected event must happen.
const PATIENCE: u32 = 10_000;

/// Returns a chain of two products and two other operators.
fn line(outputs: &[&str]) -> ModelProto {
    let nodes = vec![
        node("MatMul", &["x", "a"], "h1"),
        node("MatMul", &["h1", "a"], "h2"),
        node("Relu", &["h2"], "r"),
        node("Neg", &["r"], "y"),
    ];
    model(nodes, outputs)
}

fn cards(group: Option<u8>, emulated: bool) -> [Card; 2] {
    let like = |operators: &[&'static str]| Traits {
        operators: operators.to_vec(),
        group,
        emulated,
        ..Traits::default()
    };
    [
        Card::new("one", like(&["MatMul"])),
        Card::new("other", like(&["Relu", "Neg"])),
    ]
}

/// Streams this many requests with the inputs of the task, and returns the answers.
fn streamed(runner: &Runner, task: &Task, requests: u64) -> Vec<BTreeMap<String, Tensor>> {
    let mut answers = Vec::new();
    let requests = (0..requests).map(|_| task.inputs.clone());
    let streamed = runner.run_stream(task.model, requests, |answer| answers.push(answer));
    streamed.unwrap();
    answers
}

fn assert_right(answers: &[BTreeMap<String, Tensor>], model: &ModelProto) {
    let alone = alone(model);
    assert!(answers.iter().all(|answer| *answer == alone));
}

#[test]
fn only_requests_and_answers_of_a_stream_touch_the_host() {
    let model = line(&["y"]);
    let each = REQUESTS * TENSOR;
    for group in [Some(1), None] {
        let [one, other] = cards(group, true);
        let (runner, task) = runner(&[&one, &other], &model, 1 << 24);
        let answers = streamed(&runner, &task, REQUESTS);
        assert_eq!(answers.len() as u64, REQUESTS);
        assert_right(&answers, &model);
        let (seen, behind) = (one.seen(), other.seen());
        assert_eq!((seen.put, seen.read, seen.taken), (each, 0, 0));
        assert_eq!((behind.read, behind.with_runs), (0, (0, each)));
        let moved = runner.memory_stats().unwrap().0.over;
        match group {
            Some(_) => {
                assert_eq!(
                    (seen.with_runs, behind.put, behind.taken),
                    ((0, 0), 0, each)
                );
                assert_eq!((moved.nvlink, moved.pcie), (each, 2 * each));
            }
            // Through the host is then the shortest way there is.
            None => {
                assert_eq!(
                    (seen.with_runs, behind.put, behind.taken),
                    ((0, each), each, 0)
                );
                assert_eq!((moved.nvlink, moved.pcie), (0, 4 * each));
            }
        }
        assert_nothing_is_held(&runner, &[&one, &other]);
    }
}

#[test]
fn what_an_answer_has_and_a_later_stage_reads_is_copied_to_the_host_once() {
    let model = line(&["h2", "y"]);
    let [one, other] = cards(Some(1), true);
    let (runner, task) = runner(&[&one, &other], &model, 1 << 24);
    assert_right(&streamed(&runner, &task, REQUESTS), &model);
    assert_eq!(other.seen().taken, REQUESTS * TENSOR);
    assert_eq!(one.seen().read + other.seen().read, REQUESTS * TENSOR);
    assert_eq!(one.seen().with_runs, (0, 0));
    assert_nothing_is_held(&runner, &[&one, &other]);
}

#[test]
fn processors_hand_on_what_is_between_stages_by_reference() {
    let one = processor("one", &["MatMul"]);
    let other = processor("other", &["Relu", "Neg"]);
    let model = line(&["y"]);
    let (runner, task) = runner(&[&one, &other], &model, 1 << 24);
    assert_right(&streamed(&runner, &task, REQUESTS), &model);
    let (moved, _) = runner.memory_stats().unwrap();
    assert_eq!(moved.copied_bytes, 0);
    assert!(moved.shared_bytes >= 2 * REQUESTS * TENSOR, "{moved:?}");
    assert_nothing_is_held(&runner, &[]);
}

#[test]
fn what_a_stage_reads_comes_while_it_is_at_the_request_before() {
    let [one, other] = cards(Some(1), false);
    let (runner, task) = runner(&[&one, &other], &line(&["y"]), 1 << 24);
    other.running().let_pass(0);
    let (timeline, came) = std::thread::scope(|scope| {
        let requests = (0..REQUESTS).map(|_| task.inputs.clone());
        let running = scope.spawn(|| runner.run_stream(task.model, requests, drop));
        other.running().until_came(1);
        // It is at the first request, and what it reads of the second one comes: unless the way
        // between the two was seen to be slow, which leaves the last hop to the stage.
        let mut looks = 0..PATIENCE;
        while other.entry().came() < 2 && looks.next().is_some() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let came = other.entry().came() >= 2;
        other.running().let_pass(u64::MAX);
        (running.join().unwrap().unwrap(), came)
    });
    let moves = timeline.spans().iter().filter(|span| {
        let came = span.device == "other" && span.kind == SpanKind::TransferIn;
        // Over which way is by what moves took so far.
        came && span.name.starts_with("h2 over ")
    });
    let moves: Vec<_> = moves.collect();
    assert_eq!(moves.len() as u64, REQUESTS, "each is in the trace");
    let direct = |span: &&&Span| span.name == "h2 over NVLink";
    let direct = moves.iter().filter(direct).count() as u64;
    assert!(came || direct < REQUESTS, "by the quick way it comes early");
    assert_nothing_is_held(&runner, &[&one, &other]);
}

#[test]
fn a_long_stream_holds_no_more_than_a_few_requests() {
    let [one, other] = cards(Some(1), true);
    let (runner, task) = runner(&[&one, &other], &line(&["y"]), 1 << 24);
    assert_eq!(streamed(&runner, &task, 200).len(), 200);
    let device_group = group_of(&runner);
    for device in 0..2 {
        let peak = device_group
            .memories
            .lock()
            .pool_use(device_place(device))
            .peak;
        // Of each request one tensor before a stage and one behind it: in the feeder's hand, in a
        // buffer, in a stage and on its way to the next buffer.
        assert!(peak <= 8 * TENSOR, "{peak} bytes on device {device}");
    }
    assert_nothing_is_held(&runner, &[&one, &other]);
}

#[test]
fn a_stream_through_cards_without_room_goes_by_the_host() {
    let narrow = |label: &str, operators: &[&'static str]| {
        let traits = Traits {
            operators: operators.to_vec(),
            group: Some(1),
            room: 2 * TENSOR,
            ..Traits::default()
        };
        Card::new(label, traits)
    };
    let model = line(&["y"]);
    let (one, other) = (
        narrow("one", &["MatMul"]),
        narrow("other", &["Relu", "Neg"]),
    );
    let folder = tempfile::tempdir().unwrap();
    let spill = Some((folder.path().to_owned(), 1 << 20));
    let (runner, task) = runner_with(&[&one, &other], &model, 1 << 20, spill);
    for _ in 0..3 {
        assert_right(&streamed(&runner, &task, REQUESTS), &model);
        assert_nothing_is_held(&runner, &[&one, &other]);
    }
}

#[test]
fn a_stream_that_fails_leaves_nothing_behind() {
    let traits = |fails_at| Traits {
        operators: vec!["Relu", "Neg"],
        fails_at: Some(fails_at),
        ..Traits::default()
    };
    let model = line(&["y"]);
    for fails_at in 0..4 {
        let one = card("one", &["MatMul"]);
        let other = Card::new("other", traits(fails_at));
        let (runner, task) = runner(&[&one, &other], &model, 1 << 24);
        let mut answers = Vec::new();
        let requests = (0..REQUESTS).map(|_| task.inputs.clone());
        let streamed = runner.run_stream(task.model, requests, |answer| answers.push(answer));
        let error = streamed.unwrap_err().to_string();
        let named =
            format!("runs request {fails_at}, fragment 2 of 2; the failed ones reported: other");
        assert!(error.contains(&named), "{error}");
        assert_eq!(
            answers.len() as u64,
            fails_at,
            "those before it are answered"
        );
        assert_right(&answers, &model);
        assert_nothing_is_held(&runner, &[&one, &other]);
    }
}

/// Returns a chain of ten products.
pub fn products() -> ModelProto {
    let value = |at: usize| format!("h{at}");
    let mut nodes = vec![node("MatMul", &["x", "a"], "h1")];
    nodes.extend((1..10).map(|at| node("MatMul", &[&value(at), "a"], &value(at + 1))));
    model(nodes, &["h10"])
}

/// Runs one request, and returns the number of its operators that each device ran.
fn products_of(runner: &Runner, task: &Task) -> BTreeMap<String, u64> {
    let cancel = Cancel::default();
    let ran = runner.run_in_stream(&Stream::default(), task, Precedence::default(), &cancel);
    let devices = ran.unwrap().report.devices.into_iter();
    devices
        .map(|(name, device)| (name, device.operators))
        .collect()
}

#[test]
fn a_wrong_profile_is_corrected_by_a_stream() {
    let device = |index: usize, speed: f64| {
        let cpu = Arc::new(Cpu::new(profile(), NonZeroUsize::MIN));
        let config = EmulatedConfig {
            pace: Pace::Virtual,
            speed,
            ..EmulatedConfig::default()
        };
        GroupDevice {
            label: format!("device {index}"),
            processor: Arc::new(EmulatedDevice::new(profile(), cpu, config).unwrap()),
        }
    };
    let (plain, task) = runner(&[&processor("any", &[])], &products(), 1 << 24);
    let store = plain.store.clone();
    let config = GroupConfig {
        host_bytes_max: 1 << 24,
        spill: None,
        sharing: Sharing::Never,
        retrials: Retrials::new(souk_registry::check::recheck_device),
        objective: Default::default(),
    };
    let ticks = AtomicU64::new(1_000_000);
    let clock: Arc<Clock> = Arc::new(move || UnixMicros(ticks.fetch_add(10, Ordering::Relaxed)));
    // The second one takes eight times as long as its profile says.
    let members = vec![device(0, 1.0), device(1, 1.0 / 8.0)];
    let runner = Runner::new_group("both", members, store, clock, config).unwrap();
    let believed = products_of(&runner, &task);
    assert_eq!(believed.values().max(), Some(&5), "{believed:?}");
    streamed(&runner, &task, REQUESTS);
    let known = products_of(&runner, &task);
    let known: Vec<u64> = known.into_values().collect();
    assert_eq!(known, [9, 1]);
    // Whole runs go by it, too: nobody gives the slow one a part of a chain.
    let ran = runner.run(&task).unwrap();
    let against = ran.report.against.unwrap();
    let promised = Duration::from_micros(against.expected_micros);
    let off = ran.makespan.as_secs_f64() / promised.as_secs_f64();
    assert!((off - 1.0).abs() < 0.05, "{off} of what was promised");
    assert_eq!(against.single.unwrap().device, "device 0 (emulated)");
}

#[test]
fn a_stream_follows_a_device_that_becomes_slower_in_the_middle_of_it() {
    let traits = |really| Traits {
        own: false,
        really,
        ..Traits::default()
    };
    let cards = |really| {
        [
            Card::new("one", traits(1.0)),
            Card::new("other", traits(really)),
        ]
    };
    // In the time of a product on the one: what the busier of them takes for a request.
    let period = |ran: &RunResult| {
        let operators = |name: &str| ran.report.devices.get(name).map_or(0, |it| it.operators);
        operators("one (emulated)").max(4 * operators("other (emulated)"))
    };
    let send = |runner: &Runner, stream: &Stream, task: &Task, requests: u64| {
        let cancel = Cancel::default();
        let run = || runner.run_in_stream(stream, task, Precedence::default(), &cancel);
        let ahead = runner.stream_ahead() as u64;
        std::thread::scope(|scope| {
            for _ in 0..ahead {
                scope.spawn(|| (0..requests / ahead).for_each(|_| drop(run().unwrap())));
            }
        });
        run().unwrap()
    };
    // What is planned where all is known from the beginning.
    let [one, other] = cards(0.25);
    let (knowing, task) = runner(&[&one, &other], &products(), 1 << 24);
    send(&knowing, &Stream::default(), &task, 30);
    let fresh = period(&send(&knowing, &Stream::default(), &task, 0));
    assert_eq!(fresh, 8);

    let [one, other] = cards(1.0);
    let (runner, task) = runner(&[&one, &other], &products(), 1 << 24);
    let stream = Stream::default();
    let alike = send(&runner, &stream, &task, 30);
    assert!(period(&alike) >= 16, "each has five of ten");
    let compiled = |card: &Card| card.seen().compiled;
    let before = compiled(&one) + compiled(&other);
    send(&runner, &stream, &task, 30);
    assert_eq!(
        compiled(&one) + compiled(&other),
        before,
        "nothing has changed"
    );
    other.slow_down(4);
    assert_eq!(
        period(&send(&runner, &stream, &task, 12)),
        fresh,
        "it follows in 12 requests"
    );
    assert_eq!(
        period(&send(&runner, &stream, &task, 30)),
        fresh,
        "and stays there"
    );
    assert_nothing_is_held(&runner, &[&one, &other]);
}

#[test]
fn both_devices_are_at_requests_of_a_stream_at_once_and_the_trace_shows_it() {
    let [one, other] = cards(Some(1), true);
    let (runner, task) = runner(&[&one, &other], &line(&["y"]), 1 << 24);
    other.running().let_pass(0);
    let timeline = std::thread::scope(|scope| {
        let requests = (0..REQUESTS).map(|_| task.inputs.clone());
        let running = scope.spawn(|| runner.run_stream(task.model, requests, drop));
        other.running().until_came(1);
        // The first request is on the last device, and two are behind it.
        one.running().until_came(3);
        other.running().let_pass(u64::MAX);
        running.join().unwrap().unwrap()
    });
    let computing = timeline.spans().iter();
    let computing = computing.filter(|span| span.kind == SpanKind::Compute);
    let each: u64 = computing
        .map(|span| span.end.micros_since(span.start))
        .sum();
    let whole = timeline.computing_micros();
    assert!(whole < each, "{whole} us of {each} at once");
}

#[test]
fn who_takes_answers_slowly_holds_up_the_requests() {
    let [one, other] = cards(Some(1), true);
    let (runner, task) = runner(&[&one, &other], &line(&["y"]), 1 << 24);
    let (begun, ahead) = (AtomicU64::new(0), runner.stream_ahead() as u64);
    let requests = (0..REQUESTS).map(|_| {
        begun.fetch_add(1, Ordering::SeqCst);
        task.inputs.clone()
    });
    let mut taken = 0;
    let take = |_| {
        let begun = || begun.load(Ordering::SeqCst);
        // All that may be under way is, and no more.
        while begun() < (taken + ahead).min(REQUESTS) {
            std::thread::yield_now();
        }
        assert_eq!(begun(), (taken + ahead).min(REQUESTS));
        taken += 1;
    };
    runner.run_stream(task.model, requests, take).unwrap();
    assert_eq!(taken, REQUESTS);
}

#[test]
fn who_panics_with_an_answer_or_a_request_ends_the_stream() {
    let [one, other] = cards(Some(1), true);
    let (runner, task) = runner(&[&one, &other], &line(&["y"]), 1 << 24);
    let all = || (0..).map(|_| task.inputs.clone());
    let taking = || runner.run_stream(task.model, all(), |_| panic!("it is full"));
    assert!(std::panic::catch_unwind(AssertUnwindSafe(taking)).is_err());
    let asking = || {
        let requests = all()
            .take(2)
            .chain(std::iter::from_fn(|| panic!("it is torn")));
        runner.run_stream(task.model, requests, drop)
    };
    assert!(std::panic::catch_unwind(AssertUnwindSafe(asking)).is_err());
    assert_eq!(streamed(&runner, &task, 2).len(), 2);
    let device_group = group_of(&runner);
    while !device_group.memories.lock().holdings().is_empty() {
        std::thread::yield_now();
    }
    assert_nothing_is_held(&runner, &[&one, &other]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// On any group, with any paths and rooms: the answers are those of one processor, in order; no
    /// memory holds a tensor afterwards, and each transferred byte is counted once.
    #[test]
    fn any_group_streams_what_one_processor_gives(
        drawn in prop::collection::vec(drawn(), 2..14),
        outputs in 1usize..3,
        traits in prop::collection::vec(traits(), 1..4),
        emulated: bool,
    ) {
        let model = graph(&drawn, outputs);
        let named = (0..).zip(&traits).map(|(index, traits): (usize, _)| {
            let traits = Traits { emulated, fails_at: None, ..traits.clone() };
            Card::new(&format!("card {index}"), traits)
        });
        let mut cards: Vec<Card> = named.collect();
        cards.push(processor("last", &[]));
        let all: Vec<&Card> = cards.iter().collect();
        let (device_group, task) = runner(&all, &model, 1 << 24);
        let host = processor("host", &[]);
        let (alone, _) = runner(&[&host], &model, 1 << 24);
        let inputs = |request: u64| {
            let values = (0..SIZE * SIZE).map(|at| ((at as u64 + request) % 7) as f32 - 3.0);
            let x = Tensor::from_vec([SIZE, SIZE], values.collect()).unwrap();
            BTreeMap::from([("x".to_owned(), x)])
        };
        let mut answers = Vec::new();
        let requests = (0..REQUESTS).map(inputs);
        device_group.run_stream(task.model, requests, |answer| answers.push(answer)).unwrap();
        for (request, answer) in (0..).zip(answers) {
            let single = Task { inputs: inputs(request), ..task.clone() };
            prop_assert_eq!(answer, alone.run(&single).unwrap().outputs);
        }
        assert_nothing_is_held(&device_group, &all);
        let seen: Vec<_> = cards.iter().map(Card::seen).collect();
        let taken: u64 = seen.iter().map(|seen| seen.taken).sum();
        let passed = seen.iter().map(|seen| seen.put + seen.read + seen.with_runs.1);
        let over = device_group.memory_stats().unwrap().0.over;
        prop_assert_eq!((over.nvlink, over.pcie), (taken, passed.sum()));
        prop_assert!(seen.iter().all(|seen| seen.with_runs.0 == 0), "inputs are there before");
    }
}
