//! Tests devices that compute on the same cores, against a naive model of their times: a group that
//! has learnt must never be slower than its best device.

use proptest::prelude::*;

use super::card::{Card, Traits};
use super::own_memory::{group_of, model, node, runner};
use super::seeded::{Drawn, drawn, graph};
use super::*;
use crate::execution::group::core_contention::{self, CoreContentionWatch};
use crate::execution::runner::Engine;
use crate::execution::worker_pool::Call;
use crate::graph::NodeId;
use crate::learning::core_sharing::{CoreSharing, CoreUse};

fn cores_of(devices: &[GroupDevice], available: usize) -> CoreSharing {
    let used: Vec<usize> = devices.iter().map(|it| it.processor.host_cores()).collect();
    CoreSharing::new(&used, available)
}

/// The number of runs in which a group learns, and of the last runs, each of which must be right.
const RUNS: usize = 16;
const LAST: usize = 3;
/// The cores of the machine, and of each device that computes on the machine's cores.
const MACHINE: usize = 2;
const OWN: usize = 2;
/// The steps of the naive model in the total time of all fragments.
const STEPS: f64 = 5_000.0;

/// The true times of a device.
#[derive(Clone, Debug)]
struct Truth {
    /// For each operator, the factor of its time relative to the profile, and the factor by which
    /// it takes longer next to others on its cores.
    factors: [(f64, f64); 4],
    on_cores: bool,
}

const OPERATORS: [&str; 4] = ["MatMul", "Relu", "Add", "Neg"];

/// A group, and the true times of its devices for each node: alone, and next to others.
struct World {
    runner: Runner,
    task: Task,
    takes: Vec<BTreeMap<String, [f64; 2]>>,
    on_cores: Vec<bool>,
}

impl World {
    fn new(model: &ModelProto, truths: &[Truth]) -> Self {
        let numbered = truths.iter().enumerate().map(|(index, truth)| {
            let traits = Traits {
                own: false,
                cores: if truth.on_cores { OWN } else { 0 },
                ..Traits::default()
            };
            Card::new(&format!("device {index}"), traits)
        });
        let cards: Vec<Card> = numbered.collect();
        let all: Vec<&Card> = cards.iter().collect();
        let (mut runner, task) = runner(&all, model, 1 << 24);
        let Engine::Group(device_group) = &mut runner.engine else {
            panic!("it is a group")
        };
        let device_group = Arc::get_mut(device_group).expect("nothing runs yet");
        device_group.cores = cores_of(&device_group.members, MACHINE);
        device_group.costs = Mutex::new(new_histories(
            &device_group.members,
            device_group.cores.clone(),
        ));
        let speeds = device_group.lock_speeds().clone();
        let offers = group_problem::load_offers(
            &device_group.group_setting(),
            task.model,
            &task.inputs,
            &speeds,
        )
        .unwrap();
        let takes = truths.iter().map(|truth| {
            let nodes = offers[0].graph.nodes().iter();
            let each = nodes.map(|node| {
                let profile = offers[0].stated.iter();
                let stated = profile.map(|offer| crate::planning::offer::node_seconds(node, offer));
                let stated = stated.fold(f64::INFINITY, f64::min);
                let at = OPERATORS.iter().position(|it| *it == node.proto.op_type());
                let (factor, slower) = truth.factors[at.unwrap()];
                let alone = stated * factor;
                (node.proto.name().to_owned(), [alone, alone * slower])
            });
            each.collect()
        });
        Self {
            takes: takes.collect(),
            on_cores: truths.iter().map(|truth| truth.on_cores).collect(),
            runner,
            task,
        }
    }

    fn device_group(&self) -> &DeviceGroup {
        group_of(&self.runner)
    }

    /// Teaches the group the times of a device that computes alone, operator by operator.
    fn teach(&self, device: usize) {
        let device_group = self.device_group();
        let speeds = device_group.lock_speeds().clone();
        let task = &self.task;
        let offers = group_problem::load_offers(
            &device_group.group_setting(),
            task.model,
            &task.inputs,
            &speeds,
        )
        .unwrap();
        let group = offers.last().unwrap();
        let mut histories = lock(&device_group.costs);
        for operator in OPERATORS {
            let nodes = group.graph.nodes().iter().enumerate();
            let own = nodes.filter(|(_, node)| node.proto.op_type() == operator);
            let (ids, names): (Vec<NodeId>, Vec<&str>) = own
                .map(|(index, node)| (NodeId(index), node.proto.name()))
                .unzip();
            let seconds: f64 = names.iter().map(|name| self.takes[device][*name][0]).sum();
            let shares = group.known.operator_shares(&ids);
            let took = Duration::from_secs_f64(seconds);
            for _ in 0..2 {
                if let Some(measured) = joint_measurement(&shares, device, took, None) {
                    histories.record_measurement(device, measured, 0.0);
                }
            }
        }
    }

    /// Seconds of the best single device.
    fn single(&self) -> f64 {
        let sums = self
            .takes
            .iter()
            .map(|nodes| nodes.values().map(|it| it[0]).sum());
        sums.fold(f64::INFINITY, f64::min)
    }

    /// Plans, runs by the naive model, and learns: seconds that were expected and taken, and how
    /// many devices took part.
    fn run(&self) -> (f64, f64, usize) {
        let device_group = self.device_group();
        let plan = device_group.plan_for_task(&self.task, None).unwrap();
        let expected = plan.expected_end(&device_group.lock_speeds(), &lock(&device_group.costs));
        let expected = expected.as_secs_f64();
        let (taken, makespan) = self.simulate(&plan);
        let devices: std::collections::BTreeSet<usize> =
            taken.iter().map(|taken| taken.call.device).collect();
        for taken in &taken {
            let Call { task, device } = taken.call;
            let beside = |contention: &core_contention::CoreContention| {
                contention.to_contended_time(task, taken.busy, taken.beside)
            };
            let took = plan.contention.as_ref().map_or(taken.busy, beside);
            let stated = plan.problem.exec_time(task, device) as f64;
            let took = crate::planning::time_of(took.as_secs_f64()) as f64;
            device_group
                .lock_speeds()
                .record_ratio(plan.kinds[task], device, stated, took);
        }
        device_group.record_fragments(&plan, taken);
        (expected, makespan, devices.len())
    }

    /// Simulates a run in steps of equal length, in each of which every running fragment makes
    /// progress.
    fn simulate(&self, plan: &ExecutionPlan) -> (Vec<FragmentUsage>, f64) {
        let count = plan.fragments.len();
        let device = &plan.schedule.device;
        let of_piece = |fragment: usize| -> [f64; 2] {
            let bytes = plan.fragments[fragment].subgraph.model.clone();
            let nodes = onnx::decode_model(bytes).unwrap().graph.unwrap().node;
            let each = nodes
                .iter()
                .map(|node| self.takes[device[fragment]][node.name()]);
            each.fold([0.0; 2], |sum, it| [sum[0] + it[0], sum[1] + it[1]])
        };
        let takes: Vec<[f64; 2]> = (0..count).map(of_piece).collect();
        let step = takes.iter().map(|it| it[1]).sum::<f64>() / STEPS;
        let mut done: Vec<Option<f64>> = vec![None; count];
        let mut left = vec![1.0; count];
        let mut spent = vec![[0.0; 2]; count];
        let mut now = 0.0;
        while done.iter().any(Option::is_none) {
            let next = |at: usize| {
                let waiting = (0..count)
                    .filter(|&fragment| done[fragment].is_none() && device[fragment] == at);
                let fragment =
                    waiting.min_by_key(|&fragment| (plan.schedule.start[fragment], fragment))?;
                let mut before = plan.problem.inputs_of(fragment);
                let is_there = before.all(|(from, bytes)| {
                    let way = plan
                        .transfer_time(Some(device[from]), at, bytes)
                        .as_secs_f64();
                    done[from].is_some_and(|end| end + way <= now)
                });
                is_there.then_some(fragment)
            };
            let at_work: Vec<usize> = (0..self.takes.len()).filter_map(next).collect();
            let busy = at_work
                .iter()
                .filter(|&&fragment| self.on_cores[device[fragment]])
                .count();
            now += step;
            for fragment in at_work {
                let beside = usize::from(self.on_cores[device[fragment]] && busy > 1);
                left[fragment] -= step / takes[fragment][beside];
                spent[fragment][beside] += step;
                if left[fragment] <= 0.0 {
                    done[fragment] = Some(now);
                }
            }
        }
        let taken = |fragment: usize| {
            let [alone, beside] = spent[fragment];
            let (task, device) = (fragment, device[fragment]);
            FragmentUsage {
                call: Call { task, device },
                busy: Duration::from_secs_f64(alone + beside),
                beside: beside / (alone + beside),
                energy: None,
            }
        };
        ((0..count).map(taken).collect(), now)
    }
}

fn plain(on_cores: bool, slower: f64) -> Truth {
    Truth {
        factors: [(1.0, slower); 4],
        on_cores,
    }
}

/// Three experts and their sum.
fn experts() -> ModelProto {
    let mut nodes = Vec::new();
    for expert in ["p", "q", "r"] {
        let names: Vec<String> = (0..3).map(|at| format!("{expert}{at}")).collect();
        nodes.push(node("MatMul", &["x", "a"], &names[0]));
        nodes.push(node("Relu", &[&names[0]], &names[1]));
        nodes.push(node("MatMul", &[&names[1], "a"], &names[2]));
    }
    nodes.push(node("Add", &["p2", "q2"], "s"));
    nodes.push(node("Add", &["s", "r2"], "y"));
    model(nodes, &["y"])
}

#[test]
fn who_slows_another_by_as_much_as_it_does_itself_is_left_out() {
    let world = World::new(&experts(), &[plain(true, 2.1), plain(true, 2.1)]);
    let (_, first, devices) = world.run();
    assert!(
        devices == 1 && first < 1.01 * world.single(),
        "alone at first"
    );
    let runs: Vec<_> = (1..RUNS).map(|_| world.run()).collect();
    let last = runs.last().unwrap();
    assert!(last.1 < 1.01 * world.single() && last.2 == 1, "{runs:?}");
    let known = world.device_group().cost_history();
    for (name, history) in known.devices() {
        let right = if name.contains("beside") { 2.1 } else { 1.0 };
        let records = history.records().into_iter();
        for (key, record) in records.filter(|(key, _)| key.operator == "MatMul") {
            let off = record.mean.exp() / right - 1.0;
            assert!(off.abs() < 0.05, "{name}: {key:?} {record:?}");
        }
    }
}

#[test]
fn who_hardly_slows_another_shares_its_work() {
    let world = World::new(&experts(), &[plain(true, 1.1), plain(true, 1.1)]);
    let runs: Vec<_> = (0..RUNS).map(|_| world.run()).collect();
    let (expected, makespan, devices) = *runs.last().unwrap();
    // Two experts on one device and one on the other.
    assert!(devices == 2 && makespan < 0.75 * world.single(), "{runs:?}");
    assert!((expected / makespan - 1.0).abs() < 0.05, "{runs:?}");
}

#[test]
fn a_promise_follows_what_a_device_does_though_it_does_little_of_the_graph() {
    let drawn = [
        ("Neg", [0, 0]),
        ("MatMul", [0, 0]),
        ("Relu", [1, 0]),
        ("Relu", [83, 0]),
        ("Add", [68, 19]),
        ("Add", [28, 20]),
        ("Add", [0, 0]),
        ("Add", [0, 0]),
        ("Add", [0, 0]),
        ("MatMul", [0, 0]),
        ("Add", [5, 1]),
    ];
    let fast = (0.4, 1.0);
    let truths = [
        [fast, (2.24, 1.0), fast, fast],
        [fast, (0.4, 1.52), fast, (2.03, 2.22)],
    ];
    promises_hold(&drawn, &truths);
}

#[test]
fn a_promise_follows_what_fragments_take_alone_though_their_plan_is_kept() {
    let drawn = [
        ("MatMul", [0, 0]),
        ("Relu", [35, 0]),
        ("MatMul", [0, 0]),
        ("Add", [19, 1]),
        ("Add", [32, 20]),
        ("Neg", [60, 0]),
        ("Add", [56, 0]),
        ("MatMul", [0, 0]),
        ("Relu", [34, 0]),
        ("Add", [62, 44]),
    ];
    let fast = (0.4, 1.0);
    let truths = [
        [fast, (0.4, 2.369_928_5), (2.408_510_7, 1.0), fast],
        [fast, fast, (2.393_219_2, 1.0), fast],
        [
            fast,
            (1.953_967_3, 1.0),
            (0.513_152_3, 1.161_259_2),
            (2.387_986_7, 2.121_176_2),
        ],
    ];
    promises_hold(&drawn, &truths);
}

/// Asserts that the last runs of a group that has learnt end at their promised time.
fn promises_hold(drawn: &[(&'static str, [usize; 2])], truths: &[[(f64, f64); 4]]) {
    let drawn: Vec<Drawn> = drawn
        .iter()
        .map(|&(operator, reads)| Drawn { operator, reads })
        .collect();
    let truths: Vec<Truth> = truths
        .iter()
        .map(|&factors| Truth {
            factors,
            on_cores: true,
        })
        .collect();
    let world = World::new(&graph(&drawn, 1), &truths);
    (0..truths.len()).for_each(|device| world.teach(device));
    let runs: Vec<_> = (0..RUNS).map(|_| world.run()).collect();
    for (expected, makespan, _) in &runs[RUNS - LAST..] {
        assert!((0.9..1.1).contains(&(makespan / expected)), "{runs:?}");
    }
}

#[test]
fn members_with_cores_enough_are_told_apart_by_nothing() {
    let cards = [Traits::default(), Traits::default()].map(|traits| {
        let traits = Traits { cores: 1, ..traits };
        Card::new("card", traits).member()
    });
    let enough = cores_of(&cards, 2);
    assert_eq!(enough.arrangements(), [[CoreUse::Alone; 2]]);
    assert!(!enough.is_shared(0) && !enough.is_shared(1));
    let few = cores_of(&cards, 1);
    assert_eq!(few.arrangements().len(), 3);
    assert!(few.is_shared(0) && few.slow == 2f64.sqrt());
}

#[test]
fn what_is_computed_beside_others_is_counted_while_both_do() {
    let cards = [Traits::default(), Traits::default(), Traits::default()];
    let cards: Vec<GroupDevice> = (0..)
        .zip(cards)
        .map(|(index, traits)| {
            let cores = if index < 2 { 2 } else { 0 };
            Card::new("card", Traits { cores, ..traits }).member()
        })
        .collect();
    let mut watch = CoreContentionWatch::new(cores_of(&cards, 2));
    let at = |micros: u64| UnixMicros(1_000 + micros);
    watch.begin_compute(2, at(0));
    watch.begin_compute(0, at(0));
    watch.begin_compute(1, at(30));
    assert_eq!(watch.end_compute(0, at(100)), 70);
    watch.begin_compute(0, at(120));
    assert_eq!(watch.end_compute(1, at(130)), 80);
    assert_eq!(watch.end_compute(0, at(200)), 10);
    assert_eq!(
        watch.end_compute(2, at(300)),
        0,
        "it has no part in the cores"
    );
}

fn truth() -> impl Strategy<Value = Truth> {
    let each = || (0.4f64..2.5, 1.0f64..2.6);
    let factors = [each(), each(), each(), each()];
    (factors, prop::bool::weighted(0.8)).prop_map(|(factors, on_cores)| Truth { factors, on_cores })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// With any true times of devices that were measured alone, and any errors of their profiles: a
    /// group that has learnt ends no later than its best device, and at the time that it promised.
    #[test]
    fn a_group_is_never_slower_than_its_best_device(
        drawn in prop::collection::vec(drawn(), 4..16),
        truths in prop::collection::vec(truth(), 2..4),
    ) {
        let world = World::new(&graph(&drawn, 1), &truths);
        (0..truths.len()).for_each(|device| world.teach(device));
        let runs: Vec<_> = (0..RUNS).map(|_| world.run()).collect();
        let single = world.single();
        for (expected, makespan, _) in &runs[RUNS - LAST..] {
            prop_assert!(*makespan <= 1.03 * single, "{single} alone: {runs:?}");
            let off = makespan / expected;
            prop_assert!((0.9..1.1).contains(&off), "{runs:?}");
        }
    }
}
