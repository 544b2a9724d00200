//! Tests devices with their own memory: which tensors stay there, which are transferred, and which
//! a run computes again after a device is lost.

use super::card::{Card, Traits};
use super::*;
use crate::execution::report::Fallback;
use crate::execution::timeline::SpanKind;

/// Bytes of one tensor of these graphs.
pub const TENSOR: u64 = (SIZE * SIZE * 4) as u64;

pub fn node(operator: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        op_type: Some(operator.to_owned()),
        name: Some(output.to_owned()),
        input: inputs.iter().map(|input| (*input).to_owned()).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    }
}

/// A graph of these nodes over inputs and a weight `a`, which is the identity halved.
fn model_of(nodes: Vec<NodeProto>, inputs: &[&str], outputs: &[&str]) -> ModelProto {
    let mut values = vec![0f32; SIZE * SIZE];
    (0..SIZE).for_each(|at| values[at * SIZE + at] = 0.5);
    let weight = TensorProto {
        name: Some("a".to_owned()),
        dims: vec![SIZE as i64; 2],
        data_type: Some(DType::F32.onnx_code()),
        float_data: values,
        ..TensorProto::default()
    };
    let float = |name: &str| ValueInfoProto::new_tensor(name, DType::F32.onnx_code(), None);
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(17),
        }],
        graph: Some(GraphProto {
            name: Some("graph".to_owned()),
            node: nodes,
            input: inputs.iter().map(|name| float(name)).collect(),
            output: outputs.iter().map(|name| float(name)).collect(),
            initializer: vec![weight],
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

pub fn model(nodes: Vec<NodeProto>, outputs: &[&str]) -> ModelProto {
    model_of(nodes, &["x"], outputs)
}

pub fn runner(cards: &[&Card], model: &ModelProto, host_bytes_max: u64) -> (Runner, Task) {
    runner_with(cards, model, host_bytes_max, None)
}

pub fn runner_with(
    cards: &[&Card],
    model: &ModelProto,
    host_bytes_max: u64,
    spill: Option<(PathBuf, u64)>,
) -> (Runner, Task) {
    sharing(cards, model, Sharing::Never, (host_bytes_max, spill))
}

pub fn sharing(
    cards: &[&Card],
    model: &ModelProto,
    sharing: Sharing,
    (host_bytes_max, spill): (u64, Option<(PathBuf, u64)>),
) -> (Runner, Task) {
    let config = GroupConfig {
        host_bytes_max,
        spill,
        sharing,
        retrials: Retrials::new(souk_registry::check::recheck_device),
        objective: Objective::Fastest,
    };
    configured(cards, model, config)
}

pub fn configured(cards: &[&Card], model: &ModelProto, config: GroupConfig) -> (Runner, Task) {
    let store = Arc::new(Store::in_memory(1 << 24));
    let model = store.put(encode_model(model)).unwrap();
    let ticks = AtomicU64::new(1_000_000);
    let clock: Arc<Clock> = Arc::new(move || UnixMicros(ticks.fetch_add(10, Ordering::Relaxed)));
    let members = cards.iter().map(|card| card.member()).collect();
    let runner = Runner::new_group("cards", members, store, clock, config).unwrap();
    let values = (0..SIZE * SIZE).map(|at| (at % 7) as f32 - 3.0).collect();
    let task = Task {
        name: "job".to_owned(),
        model,
        sequence: 0,
        inputs: BTreeMap::from([(
            "x".to_owned(),
            Tensor::from_vec([SIZE, SIZE], values).unwrap(),
        )]),
    };
    (runner, task)
}

pub fn group_of(runner: &Runner) -> &DeviceGroup {
    match &runner.engine {
        crate::execution::runner::Engine::Group(device_group) => device_group,
        crate::execution::runner::Engine::One(..) => panic!("it is a group"),
    }
}

/// Asserts that no memory holds a tensor once the prefetcher is idle.
pub fn assert_nothing_is_held(runner: &Runner, cards: &[&Card]) {
    let device_group = group_of(runner);
    device_group.prefetcher.wait_until_idle();
    let space = device_group.memories.lock();
    assert!(space.holdings().is_empty());
    drop(space);
    for card in cards {
        assert_eq!(card.used(), 0, "{:?}", card.seen());
    }
}

pub fn card(label: &str, operators: &[&'static str]) -> Card {
    let traits = Traits {
        operators: operators.to_vec(),
        ..Traits::default()
    };
    Card::new(label, traits)
}

pub fn processor(label: &str, operators: &[&'static str]) -> Card {
    let traits = Traits {
        operators: operators.to_vec(),
        own: false,
        ..Traits::default()
    };
    Card::new(label, traits)
}

/// Returns a graph of products that read `h1 = x a`, and of a `Relu` that a processor computes at
/// the same time.
pub fn beside() -> ModelProto {
    let nodes = vec![
        node("MatMul", &["x", "a"], "h1"),
        node("Relu", &["h1"], "r"),
        node("MatMul", &["h1", "a"], "h2"),
        node("MatMul", &["h2", "r"], "h3"),
        node("MatMul", &["h1", "h3"], "m"),
    ];
    model(nodes, &["m"])
}

pub fn alone(model: &ModelProto) -> BTreeMap<String, Tensor> {
    let host = processor("host", &[]);
    let (runner, task) = runner(&[&host], model, 1 << 24);
    runner.run(&task).unwrap().outputs
}

#[test]
fn only_what_the_processor_reads_leaves_the_card() {
    let (gpu, cpu) = (card("gpu", &["MatMul"]), processor("cpu", &["Relu"]));
    let (runner, task) = runner(&[&gpu, &cpu], &beside(), 1 << 24);
    let ran = runner.run(&task).unwrap();
    assert_eq!(ran.outputs, alone(&beside()));
    let seen = gpu.seen();
    assert_eq!(seen.put, 2 * TENSOR, "x and what the processor made");
    assert_eq!(seen.read, TENSOR, "what the processor reads");
    assert_eq!(seen.with_runs, (0, TENSOR), "the job's output");
    let (moved, _) = runner.memory_stats().unwrap();
    assert_eq!(
        (moved.over.pcie, moved.copied_bytes),
        (4 * TENSOR, 4 * TENSOR)
    );
    let memory = &ran.report.memory;
    let pcie = |name: &str| memory[name].pcie_bytes;
    assert_eq!(pcie("cards"), 4 * TENSOR, "each byte once");
    assert_eq!(pcie("gpu (emulated)"), 4 * TENSOR);
    assert_eq!(pcie("cpu (emulated)"), 0, "it reads host memory");
    assert_nothing_is_held(&runner, &[&gpu, &cpu]);
}

#[test]
fn linked_cards_hand_over_without_the_host() {
    let linked = |label, operators: &[&'static str], group| {
        let traits = Traits {
            operators: operators.to_vec(),
            group,
            ..Traits::default()
        };
        Card::new(label, traits)
    };
    let nodes = || {
        vec![
            node("MatMul", &["x", "a"], "h1"),
            node("Relu", &["h1"], "r"),
            node("MatMul", &["r", "a"], "y"),
        ]
    };
    let model = model(nodes(), &["y"]);
    for group in [Some(1), None] {
        let one = linked("one", &["MatMul"], group);
        let other = linked("other", &["Relu"], group);
        let (runner, task) = runner(&[&one, &other], &model, 1 << 24);
        let ran = runner.run(&task).unwrap();
        assert_eq!(ran.outputs, alone(&model));
        let moved = runner.memory_stats().unwrap().0.over;
        match group {
            Some(_) => {
                assert_eq!((one.seen().taken, other.seen().taken), (TENSOR, TENSOR));
                assert_eq!(
                    (moved.nvlink, moved.pcie),
                    (2 * TENSOR, 2 * TENSOR),
                    "x comes from the host and y goes there"
                );
                assert_eq!((one.seen().read, other.seen().read), (0, 0));
            }
            None => {
                assert_eq!((moved.nvlink, moved.pcie), (0, 6 * TENSOR));
                assert_eq!(
                    one.seen().with_runs.1 + other.seen().with_runs.1,
                    3 * TENSOR
                );
            }
        }
        assert_nothing_is_held(&runner, &[&one, &other]);
    }
}

/// A chain takes as long on two cards as on one, plus the transfer between them.
#[test]
fn a_chain_runs_whole_on_the_best_of_the_cards() {
    let cards = ["one", "two"].map(|label| card(label, &["MatMul", "Relu"]));
    let nodes = vec![
        node("MatMul", &["x", "a"], "m"),
        node("Relu", &["m"], "r"),
        node("MatMul", &["r", "a"], "z"),
    ];
    let (runner, task) = runner(&[&cards[0], &cards[1]], &model(nodes, &["z"]), 1 << 20);
    let report = runner.run(&task).unwrap().report;
    let against = report.against.unwrap();
    let single = against.single.expect("each has all operators and room");
    assert_eq!(single.expected_micros, against.expected_micros);
    let ran: Vec<&String> = report.devices.keys().collect();
    assert_eq!(ran, [&single.device]);
    assert_eq!(report.devices[&single.device].tasks, 1, "one fragment");
}

#[test]
fn what_a_card_refuses_when_it_sees_it_is_planned_on_another() {
    let picky = Traits {
        operators: vec!["Relu"],
        never_alone: Some("Relu"),
        ..Traits::default()
    };
    let slower = Traits {
        operators: vec!["Relu"],
        own: false,
        speed: Traits::default().speed / 4.0,
        ..Traits::default()
    };
    let (gpu, picky) = (card("gpu", &["MatMul"]), Card::new("picky", picky));
    let cpu = Card::new("cpu", slower);
    let (runner, task) = runner(&[&gpu, &picky, &cpu], &beside(), 1 << 24);
    let ran = runner.run(&task).unwrap();
    assert_eq!(ran.outputs, alone(&beside()));
    let devices: Vec<&String> = ran.report.devices.keys().collect();
    assert_eq!(devices, ["cpu (emulated)", "gpu (emulated)"]);
    // The report says who lacked what, and who did it.
    let mut told = ran.report.fallbacks.iter();
    let of = |device: &str, operator: &str, nodes, reason: &str, by: &str| Fallback {
        device: format!("{device} (emulated)"),
        operator: Some(operator.to_owned()),
        nodes,
        reason: reason.to_owned(),
        by: vec![format!("{by} (emulated)")],
    };
    let none = "the device has no such operator";
    assert_eq!(told.next(), Some(&of("cpu", "MatMul", 4, none, "gpu")));
    assert_eq!(told.next(), Some(&of("gpu", "Relu", 1, none, "cpu")));
    assert_eq!(told.next(), Some(&of("picky", "MatMul", 4, none, "gpu")));
    let refused = told.next().unwrap();
    assert_eq!(refused.reason, "it has no work here");
    assert_eq!(refused.by, ["cpu (emulated)"]);
    assert_eq!(told.next(), None);

    let (runner, task) = self::runner(&[&gpu, &picky], &beside(), 1 << 24);
    let error = runner.run(&task).unwrap_err().to_string();
    assert!(error.contains("it has no work here"), "{error}");
}

#[test]
fn what_has_no_room_for_a_weight_is_named_and_another_one_has_it() {
    let small = Traits {
        weight_room: 8,
        ..Traits::default()
    };
    let slower = Traits {
        own: false,
        speed: Traits::default().speed / 4.0,
        ..Traits::default()
    };
    let (gpu, cpu) = (Card::new("gpu", small), Card::new("cpu", slower));
    let (runner, task) = runner(&[&gpu, &cpu], &beside(), 1 << 24);
    let ran = runner.run(&task).unwrap();
    assert_eq!(ran.outputs, alone(&beside()));
    let devices: Vec<&String> = ran.report.devices.keys().collect();
    assert_eq!(devices, ["cpu (emulated)"]);
    let [told] = &ran.report.fallbacks[..] else {
        panic!("{:?}", ran.report.fallbacks)
    };
    assert_eq!(
        (told.device.as_str(), &told.operator),
        ("gpu (emulated)", &None)
    );
    assert!(told.reason.contains("8 are free"), "{}", told.reason);
    assert_eq!(told.by, ["cpu (emulated)"]);
}

#[test]
fn a_card_that_has_no_room_once_is_used_again_by_the_next_run() {
    let full = Traits {
        full_at: Some(0),
        ..Traits::default()
    };
    let slower = Traits {
        own: false,
        speed: Traits::default().speed / 4.0,
        ..Traits::default()
    };
    let (gpu, cpu) = (Card::new("gpu", full), Card::new("cpu", slower));
    let (runner, task) = runner(&[&gpu, &cpu], &beside(), 1 << 24);
    for ran_on in ["cpu (emulated)", "gpu (emulated)"] {
        let ran = runner.run(&task).unwrap();
        assert_eq!(ran.outputs, alone(&beside()));
        let devices: Vec<&String> = ran.report.devices.keys().collect();
        assert_eq!(devices, [ran_on]);
        let told = ran.report.fallbacks.iter().map(|it| it.device.as_str());
        let moved = ran_on.starts_with("cpu");
        assert_eq!(told.collect::<Vec<_>>().contains(&"gpu (emulated)"), moved);
        assert_nothing_is_held(&runner, &[&gpu, &cpu]);
    }
}

#[test]
fn what_lay_only_on_a_card_that_failed_is_made_again() {
    for fails_at in 0..4 {
        let mut traits = Traits {
            operators: vec!["MatMul"],
            fails_at: Some(fails_at),
            ..Traits::default()
        };
        let failing = Card::new("failing", traits.clone());
        traits.fails_at = None;
        let spare = Card::new("spare", traits);
        let cpu = processor("cpu", &["Relu"]);
        let cards = [&failing, &spare, &cpu];
        let (runner, task) = runner(&cards, &beside(), 1 << 24);
        for _ in 0..3 {
            let ran = runner.run(&task).unwrap();
            assert_eq!(ran.outputs, alone(&beside()), "lost in run {fails_at}");
        }
        assert_nothing_is_held(&runner, &cards);
    }
}

#[test]
fn what_the_next_fragment_reads_comes_before_the_one_before_it_has_ended() {
    let traits = Traits {
        operators: vec!["MatMul"],
        emulated: false,
        ..Traits::default()
    };
    let (gpu, cpu) = (Card::new("gpu", traits), processor("cpu", &["Relu"]));
    let nodes = vec![
        node("MatMul", &["x", "a"], "h"),
        node("Relu", &["h"], "r"),
        node("MatMul", &["r", "y"], "m"),
    ];
    let model = model_of(nodes, &["x", "y"], &["m"]);
    let (runner, mut task) = runner(&[&gpu, &cpu], &model, 1 << 24);
    let y = task.inputs["x"].clone();
    task.inputs.insert("y".to_owned(), y);
    gpu.running().let_pass(0);
    let ran = std::thread::scope(|scope| {
        let running = scope.spawn(|| runner.run(&task));
        gpu.running().until_came(1);
        // Its first fragment computes; what the second one reads comes, and x is there.
        gpu.entry().until_came(2);
        group_of(&runner).prefetcher.wait_until_idle();
        assert_eq!(gpu.seen().put, 2 * TENSOR);
        gpu.running().let_pass(u64::MAX);
        running.join().unwrap().unwrap()
    });
    let spans = ran.timeline.spans();
    let find = |name: &str, kind| {
        let mut found = spans.iter();
        found
            .find(|span| span.name == name && span.kind == kind)
            .unwrap_or_else(|| panic!("{name}: {spans:?}"))
    };
    let moved = find("y over PCIe", SpanKind::TransferIn);
    let computed = find("job, fragment 1 of 3", SpanKind::Compute);
    // It was asked for when the first fragment was taken, and may be there when that begins.
    assert!(moved.end < computed.end, "not after it: {spans:?}");
    assert!(ran.report.devices["gpu"].transfer_micros > 0);
    assert_nothing_is_held(&runner, &[&gpu, &cpu]);
}

/// Returns a graph for a card with little room: it must keep `h1` and `k1` for its last products,
/// and read two other tensors in between.
fn tight() -> ModelProto {
    let nodes = vec![
        node("MatMul", &["x", "a"], "h1"),
        node("MatMul", &["h1", "a"], "k1"),
        node("Relu", &["h1"], "r"),
        node("Sigmoid", &["k1"], "s"),
        node("MatMul", &["r", "s"], "h2"),
        node("Relu", &["h2"], "t"),
        node("MatMul", &["h1", "t"], "k2"),
        node("MatMul", &["k1", "k2"], "m"),
    ];
    model(nodes, &["m"])
}

#[test]
fn what_a_card_has_no_room_for_goes_to_the_host_and_comes_back() {
    for stated in [3 * TENSOR, 1 << 30] {
        let traits = Traits {
            operators: vec!["MatMul"],
            room: stated,
            ..Traits::default()
        };
        let gpu = Card::new("gpu", traits);
        // What it says is one thing, what it has another.
        gpu.shrink(3 * TENSOR);
        let cpu = processor("cpu", &["Relu", "Sigmoid"]);
        let (runner, task) = runner(&[&gpu, &cpu], &tight(), 1 << 24);
        for _ in 0..3 {
            let ran = runner.run(&task).unwrap();
            assert_eq!(ran.outputs, alone(&tight()), "{stated} bytes stated");
        }
        // x, r, s and t come from the host; what had to go comes as well.
        assert!(gpu.seen().put > 3 * 4 * TENSOR, "{:?}", gpu.seen());
        assert_nothing_is_held(&runner, &[&gpu, &cpu]);
    }
}

#[test]
fn the_small_inputs_of_a_fragment_come_to_its_device_as_one() {
    let (gpu, other) = (card("gpu", &[]), processor("other", &["Tanh"]));
    let nodes = vec![
        node("Add", &["x", "u"], "s"),
        node("Add", &["v", "w"], "t"),
        node("Mul", &["s", "t"], "y"),
    ];
    let model = model_of(nodes, &["x", "u", "v", "w"], &["y"]);
    let (runner, mut task) = runner(&[&gpu, &other], &model, 1 << 24);
    let x = task.inputs["x"].clone();
    for name in ["u", "v", "w"] {
        task.inputs.insert(name.to_owned(), x.clone());
    }
    runner.run(&task).unwrap();
    let seen = gpu.seen();
    assert_eq!((seen.put, seen.operations), (4 * TENSOR, 1));
    let counts = group_of(&runner).prefetcher.transfer_counts();
    assert_eq!(counts.begun.awaited, 4);
    assert_nothing_is_held(&runner, &[&gpu, &other]);
}

#[test]
fn a_plan_counts_with_the_ways_as_they_were_measured() {
    let traits = Traits {
        emulated: false,
        ..Traits::default()
    };
    let cards = [Card::new("one", traits.clone()), Card::new("other", traits)];
    let (runner, _) = runner(&[&cards[0], &cards[1]], &beside(), 1 << 24);
    let memories = &group_of(&runner).memories;
    let declared = memories.links();
    let bytes = 1 << 20;
    // There is no link between them: from one to the host, and from there to the other.
    let twice = 2.0 * (5e-6 + bytes as f64 / 64e9);
    let counted = declared.between[0][1].transfer_seconds(bytes)
        - declared.buyer[0].transfer_seconds(0)
        + 5e-6;
    assert!(counted >= twice, "{counted} s for {twice} s");
    assert!(declared.buyer[0].transfer_seconds(bytes) >= twice / 2.0);
    let tensor = Tensor::from_vec([1 << 18], vec![1f32; 1 << 18]).unwrap();
    let kept = memories
        .adopt_host("t", &tensor, Location::Host, None)
        .unwrap();
    let to = device_place(0);
    memories.move_and_pin(&kept, to, None).unwrap();
    let measured = memories.links();
    assert!(!Arc::ptr_eq(&declared, &measured), "a move was timed");
    assert!(links::are_links_alike(&measured, &measured, 1.0));
    let mut space = memories.lock();
    space.unpin_copy(kept.handle, to).unwrap();
    space.release_reference(kept.handle).unwrap();
}

#[test]
fn a_way_that_is_slower_than_declared_is_counted_as_it_was_seen() {
    let cards = [card("gpu", &[]), processor("cpu", &[])];
    let members: Vec<GroupDevice> = cards.iter().map(Card::member).collect();
    let (runner, _) = runner(&[&cards[0], &cards[1]], &beside(), 1 << 24);
    let memories = &group_of(&runner).memories;
    let mut space = memories.lock();
    let mut links = |took: Option<Duration>| {
        let hop = souk_memory::paths::Hop {
            from: Location::Host,
            to: device_place(0),
            kind: card::PCIE.kind,
        };
        if let Some(took) = took {
            space.paths_mut().observe_transfer(hop, 1 << 20, took);
        }
        links::build_links(&members, Duration::ZERO, space.holdings().paths())
    };
    let declared = links(None);
    let slow = Some(Duration::from_millis(2));
    assert_eq!(links(slow), declared, "once is no measure");
    links(slow);
    let seen = links(slow);
    let seconds =
        |links: &crate::planning::offer::Links| links.between[1][0].transfer_seconds(1 << 20);
    assert!(seconds(&declared) < 0.000_1, "{declared:?}");
    assert!((seconds(&seen) - 0.002).abs() < 1e-6, "{seen:?}");
    assert_eq!(
        seen.between[0][1], declared.between[0][1],
        "each way by itself"
    );
    assert_eq!(
        seen.buyer[1].transfer_seconds(1 << 20),
        0.0,
        "a processor reads host memory"
    );
    assert!(!links::are_links_alike(&declared, &seen, 1.25));
}

#[test]
fn a_plan_is_made_anew_when_a_link_turned_out_otherwise() {
    let link = |seconds: f64| crate::planning::offer::Link {
        latency_seconds: seconds,
        bytes_per_second: 1e9,
    };
    let links = |seconds| crate::planning::offer::Links::uniform(2, link(seconds));
    assert!(links::are_links_alike(&links(0.010), &links(0.012), 1.25));
    assert!(!links::are_links_alike(&links(0.010), &links(0.013), 1.25));
    let (gpu, cpu) = (card("gpu", &["MatMul"]), processor("cpu", &["Relu"]));
    let (runner, task) = runner(&[&gpu, &cpu], &beside(), 1 << 24);
    let device_group = group_of(&runner);
    let (first, second) = (
        device_group.plan_for_task(&task, None).unwrap(),
        device_group.plan_for_task(&task, None).unwrap(),
    );
    assert!(Arc::ptr_eq(&first, &second), "nothing was learned");
    let speeds = device_group.lock_speeds().clone();
    let costs = lock(&device_group.costs);
    assert!(first.is_fresh(&speeds, &device_group.memories.links(), &costs));
    let mut other = (*device_group.memories.links()).clone();
    other.between[0][1].latency_seconds *= 100.0;
    assert!(!first.is_fresh(&speeds, &Arc::new(other), &costs));
}

#[test]
fn cards_of_the_catalogue_hand_over_by_the_link_it_states() {
    let mut profile = souk_vocabulary::catalogue::find_processor("nvidia-h100-sxm")
        .unwrap()
        .clone();
    // So slow that handing a tensor over is nothing beside a product.
    profile.throughput.insert(DType::F32, slow());
    let member = |index: usize| {
        let cpu = Arc::new(Cpu::new(profile.clone(), NonZeroUsize::MIN));
        let config = EmulatedConfig {
            pace: Pace::Virtual,
            ..EmulatedConfig::default()
        };
        GroupDevice {
            label: format!("h100 {index}"),
            processor: Arc::new(EmulatedDevice::new(profile.clone(), cpu, config).unwrap()),
        }
    };
    let (_, task) = device_group(&[0.0]);
    let store = Arc::new(Store::in_memory(1 << 20));
    store.put(encode_model(&branches())).unwrap();
    let config = GroupConfig {
        host_bytes_max: 1 << 20,
        spill: None,
        sharing: Sharing::WhereItPays,
        retrials: Retrials::new(souk_registry::check::recheck_device),
        objective: Default::default(),
    };
    let members = vec![member(0), member(1)];
    let clock: Arc<Clock> = Arc::new(|| UnixMicros(1));
    let runner = Runner::new_group("cards", members, store, clock, config).unwrap();
    let ran = runner.run(&task).unwrap();
    assert_right(&ran);
    let whole = ran.report.memory["cards"];
    // x to each, the second time from whichever has it then, a branch to the other, the sum back.
    let (link, host) = (whole.nvlink_bytes, whole.pcie_bytes);
    assert_eq!(link + host, 4 * TENSOR);
    assert!(link >= TENSOR && host >= 2 * TENSOR, "{whole:?}");
    assert_nothing_is_held(&runner, &[]);
}
