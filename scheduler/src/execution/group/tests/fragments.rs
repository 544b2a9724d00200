//! Tests the fragments into which a group cuts a plan: they keep the times of the plan, and no
//! device waits for a value that is complete before its fragment ends.

use proptest::prelude::*;

use super::card::{Card, Traits};
use super::own_memory::{group_of, model, node, runner};
use super::seeded::{drawn, graph};
use super::*;
use crate::execution::timeline::{Span, SpanKind};

/// The number of runs in which a group learns the times of its devices.
const LEARNING_RUNS: usize = 4;

/// Returns two expected durations of a task by present knowledge: the planner's, before the plan is
/// cut into fragments, and that of the fragments.
fn planned(runner: &Runner, task: &Task) -> (Duration, Duration) {
    let device_group = group_of(runner);
    let speeds = device_group.lock_speeds().clone();
    let setting = device_group.group_setting();
    let offers = group_problem::load_offers(&setting, task.model, &task.inputs, &speeds).unwrap();
    let [group] = &offers[..] else {
        panic!("they share no cores")
    };
    let placed = group
        .divide_graph(&group.plan_options(Objective::Fastest))
        .unwrap();
    let expected = device_group
        .plan_for_task(task, None)
        .unwrap()
        .expected_end(&speeds, &lock(&device_group.costs));
    (Duration::from_secs_f64(placed.makespan_seconds), expected)
}

/// Returns whether a duration is within a tenth of the planned one, plus one handover, for which
/// the group cuts no fragment.
fn is_near(found: Duration, planned: Duration) -> bool {
    found > planned.mul_f64(0.9) && found < planned.mul_f64(1.1) + links::HAND_OVER
}

fn learn(runner: &Runner, task: &Task) {
    for _ in 0..LEARNING_RUNS {
        runner.run(task).unwrap();
    }
}

fn ratio(one: Duration, other: Duration) -> f64 {
    one.as_secs_f64() / other.as_secs_f64()
}

#[test]
fn another_device_begins_with_what_was_made_in_the_middle() {
    let one = own_memory::processor("one", &["MatMul", "Add"]);
    let other = own_memory::processor("other", &["Gemm"]);
    // What the other device begins with is made first, and much follows it.
    let mut nodes = vec![node("MatMul", &["x", "a"], "h0")];
    for at in 1..4 {
        let before = at - 1;
        let [read, made] = [before, at].map(|at| format!("h{at}"));
        nodes.push(node("MatMul", &[&read, "a"], &made));
        let read = if at == 1 { read } else { format!("g{before}") };
        nodes.push(node("Gemm", &[&read, "a"], &format!("g{at}")));
    }
    nodes.push(node("Add", &["h3", "g3"], "m"));
    let (runner, task) = runner(&[&one, &other], &model(nodes, &["m"]), 1 << 24);
    learn(&runner, &task);
    let (planned, expected) = planned(&runner, &task);
    let ran = runner.run(&task).unwrap();
    let measured = ran.makespan;
    assert_eq!(ran.report.devices.len(), 2);
    // A product of 65.5 ms on one, three beside each other, and the sum.
    assert!(measured < Duration::from_millis(270), "{measured:?}");
    assert!(
        ratio(expected, planned) < 1.01,
        "{expected:?} of {planned:?}"
    );
    assert!(
        ratio(measured, planned) < 1.01,
        "{measured:?} of {planned:?}"
    );
}

/// Returns whether each device ran its fragments in the order of the plan.
fn as_planned(runner: &Runner, task: &Task, ran: &RunResult) -> bool {
    let device_group = group_of(runner);
    let plan = device_group.plan_for_task(task, None).unwrap();
    (0..).zip(&device_group.members).all(|(device, member)| {
        let own = |&fragment: &usize| plan.schedule.device[fragment] == device;
        let mut planned: Vec<usize> = (0..plan.fragments.len()).filter(own).collect();
        planned.sort_by_key(|&fragment| plan.schedule.start[fragment]);
        let planned = planned
            .iter()
            .map(|&fragment| &plan.fragments[fragment].name);
        let spans = ran.timeline.spans().iter();
        let computed = |span: &&Span| span.kind == SpanKind::Compute && span.device == member.label;
        let mut spans: Vec<&Span> = spans.filter(computed).collect();
        spans.sort_by_key(|span| span.start);
        planned.eq(spans.iter().map(|span| &span.name))
    })
}

#[test]
fn a_plan_made_anew_has_the_room_of_the_one_before_it() {
    const EXPERTS: usize = 6;
    // So far from what its profile says that the first run has the next one planned anew. It has
    // room for the programs of one plan, and not of two.
    let quicker = Traits {
        own: false,
        speed: 1e7,
        really: 0.2,
        program_room: 5 * own_memory::TENSOR + own_memory::TENSOR / 2,
        ..Traits::default()
    };
    let (quicker, slower) = (
        Card::new("quicker", quicker),
        own_memory::processor("slower", &[]),
    );
    let names: Vec<String> = (0..EXPERTS).map(|at| format!("w{at}")).collect();
    let made: Vec<String> = (0..EXPERTS).map(|at| format!("y{at}")).collect();
    let products = names.iter().zip(&made);
    let mut nodes: Vec<NodeProto> = products
        .map(|(name, made)| node("MatMul", &["x", name], made))
        .collect();
    let made: Vec<&str> = made.iter().map(String::as_str).collect();
    nodes.push(node("Sum", &made, "z"));
    let mut model = model(nodes, &["z"]);
    let graph = model.graph.as_mut().unwrap();
    let weight = graph.initializer.remove(0);
    let named = |(name, times): (&String, u8)| TensorProto {
        name: Some(name.clone()),
        float_data: weight
            .float_data
            .iter()
            .map(|it| it * f32::from(times))
            .collect(),
        ..weight.clone()
    };
    graph.initializer = names.iter().zip(1..).map(named).collect();
    let (runner, task) = runner(&[&quicker, &slower], &model, 1 << 24);
    // It learns that in the middle of its first run, and moves what it can.
    runner.run(&task).unwrap();
    let first = quicker.seen().compiled;
    for _ in 0..3 {
        let ran = runner.run(&task).unwrap();
        assert_eq!(ran.report.fallbacks, []);
        let devices = &ran.report.devices;
        let operators = devices.get("quicker (emulated)").map(|it| it.operators);
        assert!(operators >= Some(3), "{devices:?}");
    }
    assert!(quicker.seen().compiled > first, "another plan");
}

fn device() -> impl Strategy<Value = Traits> {
    let some = vec![
        vec![],
        vec!["MatMul", "Add"],
        vec!["Relu", "Neg", "Add"],
        vec!["MatMul"],
    ];
    let speeds = vec![1e6, 3e6, 1e8, 1e9];
    let operators = prop::sample::select(some);
    let speed = prop::sample::select(speeds);
    (operators, any::<bool>(), speed).prop_map(|(operators, own, speed)| Traits {
        operators,
        own,
        speed,
        ..Traits::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// On any graph and group, the fragments promise an end within a tenth of the planner's, and
    /// the run keeps it in the devices' own time, in whatever order their threads answer.
    #[test]
    fn fragments_end_when_the_plan_says(
        drawn in prop::collection::vec(drawn(), 4..24),
        traits in prop::collection::vec(device(), 1..4),
    ) {
        let model = graph(&drawn, 1);
        let named = (0..).zip(&traits).map(|(index, traits): (usize, _)| {
            Card::new(&format!("card {index}"), traits.clone())
        });
        let mut cards: Vec<Card> = named.collect();
        cards.push(own_memory::processor("last", &[]));
        let all: Vec<&Card> = cards.iter().collect();
        let (device_group, task) = runner(&all, &model, 1 << 24);
        learn(&device_group, &task);
        let (planned, expected) = planned(&device_group, &task);
        prop_assert!(is_near(expected, planned), "{expected:?} promised of {planned:?} planned");
        let ran = device_group.run(&task).unwrap();
        prop_assert!(as_planned(&device_group, &task, &ran), "{:?}", ran.timeline);
        let measured = ran.makespan;
        prop_assert!(is_near(measured, planned), "{measured:?} of {planned:?} planned");
    }
}
