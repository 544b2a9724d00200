//! One device that runs whole subgraphs by itself learns as the devices of a group do.

use super::*;
use crate::planning::offer::Slowness;

/// A convolution by itself.
fn convolution() -> (ModelProto, Vec<usize>) {
    let nodes = vec![node("Conv", &["x", "w"], "conv")];
    let weights = vec![weight("w", &[CHANNELS, CHANNELS, 1, 1])];
    (model(nodes, weights, "conv"), vec![1, CHANNELS, SIDE, SIDE])
}

/// A product by itself.
fn product() -> (ModelProto, Vec<usize>) {
    let nodes = vec![node("MatMul", &["x", "w"], "product")];
    (
        model(nodes, vec![weight("w", &[64, 64])], "product"),
        vec![16, 64],
    )
}

/// A device whose profile has convolutions wrong, and a task of each kind.
fn one() -> (Runner, [Task; 2]) {
    let store = Arc::new(Store::in_memory(1 << 22));
    let cpu = Arc::new(Cpu::new(profile(), NonZeroUsize::MIN));
    let emulated = || {
        let config = EmulatedConfig {
            pace: Pace::Virtual,
            ..EmulatedConfig::default()
        };
        EmulatedDevice::new(profile(), cpu.clone(), config).unwrap()
    };
    let plain = GroupDevice {
        label: "plain".to_owned(),
        processor: Arc::new(emulated()),
    };
    let mut seconds = BTreeMap::new();
    let tasks = [convolution(), product()].map(|(model, dims)| {
        let bytes = encode(&model);
        let bindings = Bindings::new().input("x", DType::F32, &dims);
        let graph = Graph::import(bytes.clone(), &bindings).unwrap();
        let offers = offers::offers(std::slice::from_ref(&plain), &graph);
        for node in graph.nodes() {
            let stated = node_seconds(node, &offers[0]);
            seconds.insert(node.proto.name().to_owned(), stated);
        }
        let x = Tensor::from_vec(dims.clone(), vec![1f32; dims.iter().product()]).unwrap();
        Task {
            name: "one".to_owned(),
            model: store.put(bytes).unwrap(),
            sequence: 0,
            inputs: BTreeMap::from([("x".to_owned(), x)]),
        }
    });
    let ticks = AtomicU64::new(1_000_000);
    let clock: Arc<Clock> = Arc::new(move || UnixMicros(ticks.fetch_add(10, Ordering::Relaxed)));
    let device = Uneven {
        inner: emulated(),
        seconds: Arc::new(seconds),
        wrong: "conv",
    };
    (Runner::new("one", Arc::new(device), store, clock), tasks)
}

/// What a run took of what was expected of it.
fn off(ran: &RunResult) -> f64 {
    let expected = ran.report.against.as_ref().unwrap().expected_micros;
    ran.busy.as_secs_f64() / Duration::from_micros(expected).as_secs_f64()
}

fn known(costs: &CostHistory) -> Slowness {
    costs.slowness("one (emulated)", &profile().model)
}

#[test]
fn a_kind_of_work_that_a_profile_has_wrong_is_corrected_and_the_other_is_not() {
    let (runner, [convolution, product]) = one();
    assert_eq!(known(&runner.costs()), Slowness::default());
    let mut told = CostHistory::default();
    for run in 0..10 {
        let (of_one, of_other) = (
            runner.run(&convolution).unwrap(),
            runner.run(&product).unwrap(),
        );
        let believed = if run == 0 { WRONG } else { 1.0 };
        assert!(
            (off(&of_one) / believed - 1.0).abs() < 0.05,
            "{run}: {}",
            off(&of_one)
        );
        assert!(
            (off(&of_other) - 1.0).abs() < 0.05,
            "{run}: {}",
            off(&of_other)
        );
        let learned = of_one.learned.iter().chain(&of_other.learned);
        learned.for_each(|learned| told.learn(learned));
    }
    let costs = runner.costs();
    assert_eq!(told, costs, "who only hears of the runs knows as much");
    let slowness = known(&costs);
    assert!(
        (slowness.convolution / WRONG - 1.0).abs() < 0.02,
        "{slowness:?}"
    );
    assert!((slowness.product - 1.0).abs() < 0.02, "{slowness:?}");
    assert_eq!(slowness.other, 1.0, "nothing is known of it");
    // Another process begins with what this one knows.
    let (again, [convolution, _]) = one();
    again.recall(&costs);
    assert!((off(&again.run(&convolution).unwrap()) - 1.0).abs() < 0.05);
}
