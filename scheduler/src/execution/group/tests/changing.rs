//! Tests that a group follows devices that become slower, or fast again, between two requests.

use super::card::{Card, Traits};
use super::own_memory::{TENSOR, model, node, runner};
use super::streams::products;
use super::*;
use crate::execution::Stream;

/// Returns a graph of ten independent products.
fn beside() -> ModelProto {
    let names: Vec<String> = (0..10).map(|at| format!("y{at}")).collect();
    let products = names.iter().map(|name| node("MatMul", &["x", "a"], name));
    let outputs: Vec<&str> = names.iter().map(String::as_str).collect();
    model(products.collect(), &outputs)
}

fn pair() -> [Card; 2] {
    let traits = Traits {
        own: false,
        ..Traits::default()
    };
    [Card::new("one", traits.clone()), Card::new("other", traits)]
}

/// Returns the number of operators that each device ran.
fn operators(ran: &RunResult) -> [u64; 2] {
    let of = |name: &str| ran.report.devices.get(name).map_or(0, |it| it.operators);
    [of("one (emulated)"), of("other (emulated)")]
}

fn in_stream(runner: &Runner, stream: &Stream, task: &Task) -> RunResult {
    let cancel = Cancel::default();
    let ran = runner.run_in_stream(stream, task, Precedence::default(), &cancel);
    ran.unwrap()
}

/// Returns the number of requests after which the work is divided as wanted, and stays so.
fn until(wanted: [u64; 2], request: impl Fn() -> RunResult) -> usize {
    let shared: Vec<[u64; 2]> = (0..20).map(|_| operators(&request())).collect();
    let last = shared.iter().rposition(|shared| *shared != wanted);
    last.map_or(0, |last| last + 1)
}

/// Returns the number of requests until the work is divided anew: after a device becomes four times
/// slower, and after it is as fast as before.
fn slower_and_back(device: &Card, request: impl Fn() -> RunResult) -> [usize; 2] {
    until([5, 5], &request);
    device.slow_down(4);
    let slower = until([8, 2], &request);
    device.slow_down(1);
    [slower, until([5, 5], &request)]
}

#[test]
fn a_group_follows_a_device_that_becomes_slower_after_three_requests_and_back() {
    let [one, other] = pair();
    let (runner, task) = runner(&[&one, &other], &beside(), 1 << 24);
    let request = || runner.run(&task).unwrap();
    assert_eq!(slower_and_back(&other, request), [3, 3]);
}

#[test]
fn a_device_that_is_given_nothing_since_it_was_slow_is_tried_ever_later_and_taken_back() {
    let [one, other] = pair();
    let (runner, task) = runner(&[&one, &other], &beside(), 1 << 24);
    let request = || operators(&runner.run(&task).unwrap());
    until([5, 5], || runner.run(&task).unwrap());
    other.slow_down(100);
    let slow: Vec<[u64; 2]> = (0..600).map(|_| request()).collect();
    let tried: Vec<usize> = (3..600).filter(|&at| slow[at] != [10, 0]).collect();
    assert_eq!(tried.len(), 3, "{tried:?}");
    let apart: Vec<usize> = tried.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(apart[1] > apart[0], "{tried:?}");
    other.slow_down(1);
    let back = (0..600).position(|_| request() == [5, 5]);
    assert!(back.is_some(), "it is quick again");
    assert!((0..20).all(|_| request() == [5, 5]), "and stays");
}

#[test]
fn a_request_that_is_held_up_moves_no_work() {
    let [one, other] = pair();
    let (runner, task) = runner(&[&one, &other], &beside(), 1 << 24);
    let request = || runner.run(&task).unwrap();
    until([5, 5], request);
    let compiled = || one.seen().compiled + other.seen().compiled;
    let before = compiled();
    for times in [20, 1, 1, 8, 20, 1] {
        other.slow_down(times);
        assert_eq!(operators(&request()), [5, 5], "{times} times as long");
    }
    assert_eq!(compiled(), before);
}

#[test]
fn a_stream_follows_a_device_that_becomes_slower_after_three_requests_and_back() {
    let [one, other] = pair();
    let (runner, task) = runner(&[&one, &other], &products(), 1 << 24);
    let stream = Stream::default();
    let request = || in_stream(&runner, &stream, &task);
    assert_eq!(slower_and_back(&other, request), [3, 3]);
}

/// Returns a chain of ten products, each with its own weight.
fn weighed() -> ModelProto {
    let mut model = products();
    let graph = model.graph.as_mut().unwrap();
    let weight = graph.initializer.remove(0);
    for (node, times) in graph.node.iter_mut().zip(1..) {
        let name = format!("w{times}");
        node.input[1].clone_from(&name);
        graph.initializer.push(TensorProto {
            name: Some(name),
            float_data: weight
                .float_data
                .iter()
                .map(|it| it * times as f32)
                .collect(),
            ..weight.clone()
        });
    }
    model
}

#[test]
fn routes_planned_anew_have_the_room_of_those_before_them() {
    // Room for the weights of one route, and not of two.
    let traits = Traits {
        own: false,
        program_room: 9 * TENSOR,
        ..Traits::default()
    };
    let [one, other] = ["one", "other"].map(|name| Card::new(name, traits.clone()));
    let (runner, task) = runner(&[&one, &other], &weighed(), 1 << 24);
    let stream = Stream::default();
    let request = || in_stream(&runner, &stream, &task);
    assert_eq!(until([5, 5], request), 0);
    other.slow_down(4);
    assert_eq!(until([8, 2], request), 3);
    // And so while others are under way, that have what they need until they end.
    other.slow_down(1);
    std::thread::scope(|scope| {
        for _ in 0..runner.stream_ahead() {
            scope.spawn(|| (0..5).for_each(|_| assert_eq!(request().outputs.len(), 1)));
        }
    });
    assert_eq!(until([5, 5], request), 0);
}
