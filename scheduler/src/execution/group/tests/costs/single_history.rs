//! Tests that a device that runs whole subgraphs alone learns its times in the same way as the
//! devices of a group.

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

/// Returns a device whose profile is wrong about convolutions, and a task of each kind.
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
        let bytes = encode_model(&model);
        let bindings = Bindings::new().with_input("x", DType::F32, &dims);
        let graph = Graph::import(bytes.clone(), &bindings).unwrap();
        let offers = offers::profile_offers(std::slice::from_ref(&plain), &graph);
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

/// Returns the time of a run relative to the expected time.
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
    assert_eq!(known(&runner.cost_history()), Slowness::default());
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
        learned.for_each(|learned| told.record_measurement(learned));
    }
    let costs = runner.cost_history();
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
    again.load_history(&costs);
    assert!((off(&again.run(&convolution).unwrap()) - 1.0).abs() < 0.05);
}

/// Returns a product, followed by a loop over a hyperbolic tangent whose number of rounds is known
/// only in the run.
fn repeated() -> ModelProto {
    let port = |name: &str, dtype: DType, dims: &[i64]| {
        let dims = dims
            .iter()
            .map(|size| souk_onnx::Dimension::new_fixed(*size));
        ValueInfoProto::new_tensor(name, dtype.onnx_code(), Some(dims.collect()))
    };
    let named = |operator: &str, input: &[&str], output: &[&str]| NodeProto {
        op_type: Some(operator.to_owned()),
        name: Some(output[0].to_owned()),
        input: input.iter().map(|&name| name.to_owned()).collect(),
        output: output.iter().map(|&name| name.to_owned()).collect(),
        ..NodeProto::default()
    };
    let body = GraphProto {
        name: Some("turn".to_owned()),
        node: vec![
            named("Identity", &["go"], &["on"]),
            named("Tanh", &["v"], &["u"]),
        ],
        input: vec![
            port("i", DType::I64, &[]),
            port("go", DType::Bool, &[]),
            port("v", DType::F32, &[16, 64]),
        ],
        output: vec![
            port("on", DType::Bool, &[]),
            port("u", DType::F32, &[16, 64]),
        ],
        ..GraphProto::default()
    };
    let mut turns = named("Loop", &["m", "", "product"], &["y"]);
    turns.attribute.push(AttributeProto {
        name: Some("body".to_owned()),
        r#type: Some(AttributeType::Graph as i32),
        g: Some(body),
        ..AttributeProto::default()
    });
    let product = node("MatMul", &["x", "w"], "product");
    let mut model = model(vec![product, turns], vec![weight("w", &[64, 64])], "y");
    let graph = model.graph.as_mut().unwrap();
    graph.input = vec![port("x", DType::F32, &[16, 64]), port("m", DType::I64, &[])];
    model
}

#[test]
fn a_loop_whose_count_comes_in_the_run_teaches_what_its_model_takes_and_no_operator() {
    let store = Arc::new(Store::in_memory(1 << 22));
    let cpu = Arc::new(Cpu::new(profile(), NonZeroUsize::MIN));
    let ticks = AtomicU64::new(1_000_000);
    let clock: Arc<Clock> = Arc::new(move || UnixMicros(ticks.fetch_add(10, Ordering::Relaxed)));
    let model = store.put(encode_model(&repeated())).unwrap();
    let runner = Runner::new("one", cpu, store, clock);
    let x = Tensor::from_vec([16, 64], vec![0.5_f32; 16 * 64]).unwrap();
    let run = |turns: i64| {
        let task = Task {
            name: "loop".to_owned(),
            model,
            sequence: 0,
            inputs: BTreeMap::from([
                ("x".to_owned(), x.clone()),
                ("m".to_owned(), Tensor::scalar(turns)),
            ]),
        };
        runner.run(&task).unwrap()
    };
    let first = run(2_000);
    for ran in [&first, &run(2_000), &run(2_000)] {
        let parts: Vec<_> = ran
            .learned
            .iter()
            .flat_map(|it| &it.measured.parts)
            .collect();
        assert!(parts.len() == 1 && parts[0].key.is_model(), "{parts:?}");
    }
    let last = run(2_000);
    let off = off(&last);
    assert!((0.1..10.0).contains(&off), "its own runs have told: {off}");
    let costs = runner.cost_history();
    assert_eq!(costs.slowness("one", &profile().model), Slowness::default());
    let (_, history) = costs.devices().next().unwrap();
    assert!(history.records().keys().all(|key| key.is_model()));
}
