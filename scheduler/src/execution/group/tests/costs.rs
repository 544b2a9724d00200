//! Tests that a group corrects a profile that is wrong about one class of operators, for that class
//! only, and then places operators accordingly.

mod single_history;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use souk_cpu::Cpu;
use souk_emulated::{EmulatedConfig, EmulatedDevice, Pace};
use souk_memory::{Store, Tensor};
use souk_onnx::subgraph::{CompileError, Port, Subgraph, Unsupported};
use souk_onnx::work::Work;
use souk_onnx::{
    AttributeProto, AttributeType, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    TensorProto, ValueInfoProto, decode_model, encode_model,
};
use souk_vocabulary::history::History;
use souk_vocabulary::processor::{Estimate, Outcome, Processor, Program, RunError};
use souk_vocabulary::profile::{Profile, Throughput};

use super::*;
use crate::execution::timeline::UnixMicros;
use crate::execution::{Clock, GroupConfig, Retrials, RunResult, Runner, Sharing, Task};
use crate::graph::{Bindings, Graph};
use crate::learning::CostHistory;
use crate::learning::estimates::key;
use crate::planning::node_seconds;

/// Channels, and pixels of a side.
const CHANNELS: usize = 8;
const SIDE: usize = 16;
/// The factor by which the second device takes longer than its profile says for the wrong class.
const WRONG: f64 = 8.0;

fn profile() -> Profile {
    let known = souk_vocabulary::catalogue::find_processor("amd-epyc-9654").unwrap();
    let mut profile = known.clone();
    // So slow that handing a tensor over is nothing beside a convolution.
    let slow = Throughput {
        operations_per_second: 1e6,
        sparse: false,
        measured: false,
    };
    profile.throughput.insert(DType::F32, slow);
    profile
}

/// A device that takes the time of its profile for each node, but longer for nodes whose names
/// begin with `wrong`.
struct Uneven {
    inner: EmulatedDevice,
    seconds: Arc<BTreeMap<String, f64>>,
    wrong: &'static str,
}

struct UnevenProgram {
    inner: Box<dyn Program>,
    busy: Duration,
}

impl Processor for Uneven {
    fn profile(&self) -> &Profile {
        self.inner.profile()
    }

    fn check_support(&self, node: &NodeProto) -> Result<(), Unsupported> {
        self.inner.check_support(node)
    }

    fn estimate(&self, work: &Work) -> Estimate {
        self.inner.estimate(work)
    }

    fn compile(&self, subgraph: &Subgraph) -> Result<Box<dyn Program>, CompileError> {
        let nodes = decode_model(subgraph.model.clone())?
            .graph
            .unwrap_or_default();
        let each = nodes.node.iter().map(|node| {
            let stated = self.seconds[node.name()];
            let is_wrong = !self.wrong.is_empty() && node.name().starts_with(self.wrong);
            if is_wrong { WRONG * stated } else { stated }
        });
        Ok(Box::new(UnevenProgram {
            busy: Duration::from_secs_f64(each.sum()),
            inner: self.inner.compile(subgraph)?,
        }))
    }

    fn memory_free_bytes(&self) -> u64 {
        self.inner.memory_free_bytes()
    }

    fn utilisation(&self) -> f64 {
        0.0
    }

    fn meter_joules(&self) -> Option<f64> {
        None
    }
}

impl Program for UnevenProgram {
    fn inputs(&self) -> &[Port] {
        self.inner.inputs()
    }

    fn outputs(&self) -> &[Port] {
        self.inner.outputs()
    }

    fn run(&self, inputs: &BTreeMap<String, Tensor>) -> Result<Outcome, RunError> {
        let outcome = self.inner.run(inputs)?;
        Ok(Outcome {
            busy: self.busy,
            ..outcome
        })
    }
}

fn node(operator: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        op_type: Some(operator.to_owned()),
        name: Some(output.to_owned()),
        input: inputs.iter().map(|&it| it.to_owned()).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    }
}

fn weight(name: &str, dims: &[usize]) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        dims: dims.iter().map(|&size| size as i64).collect(),
        data_type: Some(DType::F32.onnx_code()),
        float_data: vec![0.01; dims.iter().product()],
        ..TensorProto::default()
    }
}

/// Returns three stages, each with two independent convolutions and their sum: depthwise, with nine
/// taps, and with one tap.
fn convolutions() -> (ModelProto, Vec<usize>) {
    let int = |name: &str, value: i64| AttributeProto {
        name: Some(name.to_owned()),
        i: Some(value),
        r#type: Some(AttributeType::Int as i32),
        ..AttributeProto::default()
    };
    let pads = |pad: i64| AttributeProto {
        name: Some("pads".to_owned()),
        ints: vec![pad; 4],
        r#type: Some(AttributeType::Ints as i32),
        ..AttributeProto::default()
    };
    let (mut nodes, mut weights, mut last) = (Vec::new(), Vec::new(), "x".to_owned());
    let kinds = [
        ("deep", 1, 3),
        ("large", CHANNELS, 3),
        ("small", CHANNELS, 1),
    ];
    for (name, channels, taps) in kinds {
        for side in ["0", "1"] {
            let (output, held) = (format!("{name}{side}"), format!("w {name}{side}"));
            let mut convolution = node("Conv", &[&last, &held], &output);
            convolution.attribute.push(pads(taps as i64 / 2));
            convolution
                .attribute
                .push(int("group", (CHANNELS / channels) as i64));
            nodes.push(convolution);
            weights.push(weight(&held, &[CHANNELS, channels, taps, taps]));
        }
        let sum = format!("sum {name}");
        nodes.push(node(
            "Add",
            &[&format!("{name}0"), &format!("{name}1")],
            &sum,
        ));
        last = sum;
    }
    (model(nodes, weights, &last), vec![1, CHANNELS, SIDE, SIDE])
}

/// Returns two such stages: one of small products, and one of large products.
fn products() -> (ModelProto, Vec<usize>) {
    let (mut nodes, mut weights, mut last) = (Vec::new(), Vec::new(), "x".to_owned());
    let kinds = [("small", [64, 64]), ("large", [64, 256])];
    for (name, dims) in kinds {
        for side in ["0", "1"] {
            let (output, held) = (format!("{name}{side}"), format!("w {name}{side}"));
            nodes.push(node("MatMul", &[&last, &held], &output));
            weights.push(weight(&held, &dims));
        }
        let sum = format!("sum {name}");
        nodes.push(node(
            "Add",
            &[&format!("{name}0"), &format!("{name}1")],
            &sum,
        ));
        last = sum;
    }
    (model(nodes, weights, &last), vec![16, 64])
}

fn model(nodes: Vec<NodeProto>, weights: Vec<TensorProto>, output: &str) -> ModelProto {
    let float = |name: &str| ValueInfoProto::new_tensor(name, DType::F32.onnx_code(), None);
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(17),
        }],
        graph: Some(GraphProto {
            name: Some("stages".to_owned()),
            node: nodes,
            input: vec![float("x")],
            output: vec![float(output)],
            initializer: weights,
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

/// Returns a group of two devices with equal profiles, of which the second takes longer for nodes
/// whose names begin with `wrong`.
fn device_group(wrong: &'static str, (model, dims): (ModelProto, Vec<usize>)) -> (Runner, Task) {
    let store = Arc::new(Store::in_memory(1 << 22));
    let bytes = encode_model(&model);
    let bindings = Bindings::new().with_input("x", DType::F32, &dims);
    let graph = Graph::import(bytes.clone(), &bindings).unwrap();
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
    let offer = offers::profile_offers(std::slice::from_ref(&plain), &graph).remove(0);
    let nodes = graph.nodes().iter();
    let seconds = nodes.map(|node| (node.proto.name().to_owned(), node_seconds(node, &offer)));
    let seconds: Arc<BTreeMap<String, f64>> = Arc::new(seconds.collect());
    let member = |label: &str, wrong| GroupDevice {
        label: label.to_owned(),
        processor: Arc::new(Uneven {
            inner: emulated(),
            seconds: seconds.clone(),
            wrong,
        }),
    };
    let ticks = AtomicU64::new(1_000_000);
    let clock: Arc<Clock> = Arc::new(move || UnixMicros(ticks.fetch_add(10, Ordering::Relaxed)));
    let config = GroupConfig {
        host_bytes_max: 1 << 22,
        spill: None,
        sharing: Sharing::Never,
        retrials: Retrials::new(souk_registry::check::recheck_device),
        objective: Default::default(),
    };
    let task = Task {
        name: "stages".to_owned(),
        model: store.put(bytes).unwrap(),
        sequence: 0,
        inputs: BTreeMap::from([(
            "x".to_owned(),
            Tensor::from_vec(dims.clone(), vec![1f32; dims.iter().product()]).unwrap(),
        )]),
    };
    let members = vec![member("first", ""), member("second", wrong)];
    let runner = Runner::new_group("both", members, store, clock, config).unwrap();
    (runner, task)
}

/// Returns the factor by which the second device's profile is corrected for the first operator with
/// a name.
fn factor(costs: &CostHistory, task: &Task, model: &ModelProto, name: &str) -> Option<f64> {
    let input = &task.inputs["x"];
    let bindings = Bindings::new().with_input("x", input.dtype(), input.dims());
    let graph = Graph::import(encode_model(model), &bindings).unwrap();
    let found = graph
        .nodes()
        .iter()
        .find(|node| node.proto.name().starts_with(name));
    let (key, _) = key(&graph, found.unwrap()).unwrap();
    let second = costs.devices().find(|(name, _)| name.starts_with("second"));
    Some(second?.1.find_record(&key)?.mean.exp())
}

fn runs(runner: &Runner, task: &Task, count: usize) -> Vec<RunResult> {
    (0..count).map(|_| runner.run(task).unwrap()).collect()
}

/// Runs a task ten times while the second device's profile is wrong about one class, and asserts
/// the makespans and the learned corrections.
fn corrected(wrong: &'static str, built: (ModelProto, Vec<usize>), names: &[&str]) {
    let (model, dims) = built;
    let (runner, task) = device_group(wrong, (model.clone(), dims.clone()));
    let ran = runs(&runner, &task, 10);
    let costs = runner.cost_history();
    assert!(costs.is_sound());
    for name in names {
        let Some(found) = factor(&costs, &task, &model, name) else {
            assert_ne!(*name, wrong, "it ran there at first");
            continue;
        };
        let right = if *name == wrong { WRONG } else { 1.0 };
        let off = (found / right - 1.0).abs();
        // A sum runs in one fragment with what is wrong, of which it is a twentieth.
        let most = if *name == "sum" { 0.2 } else { 0.1 };
        assert!(
            off < most,
            "{wrong} is wrong: {name} is corrected by {found}"
        );
    }
    let (first, last) = (ran[0].makespan, ran[9].makespan);
    assert!(
        last < first.mul_f64(0.9),
        "{wrong}: {first:?}, then {last:?}"
    );
    let against = ran[9].report.against.as_ref().unwrap();
    let expected = Duration::from_micros(against.expected_micros).as_secs_f64();
    let off = (expected / last.as_secs_f64() - 1.0).abs();
    assert!(
        off < 0.05,
        "{wrong}: {expected} s were expected of {last:?}"
    );
    // Another group of these devices begins with what this one knows.
    let (again, task) = device_group(wrong, (model, dims));
    again.load_history(&costs);
    let begun = again.run(&task).unwrap().makespan;
    assert!(
        begun <= last.mul_f64(1.01),
        "{wrong}: {begun:?} instead of {last:?}"
    );
    let told = ran.iter().flat_map(|ran| &ran.learned);
    let mut kept = CostHistory::default();
    told.for_each(|learned| kept.record_measurement(learned));
    assert_eq!(kept, costs, "who only hears of the runs knows as much");
}

#[test]
fn a_class_of_convolutions_that_a_profile_has_wrong_is_corrected_alone() {
    let names = ["deep", "large", "small", "sum"];
    corrected("deep", convolutions(), &names);
    corrected("large", convolutions(), &names);
    corrected("small", convolutions(), &names);
}

#[test]
fn small_and_large_products_are_corrected_apart() {
    let names = ["small", "large", "sum"];
    corrected("small", products(), &names);
    corrected("large", products(), &names);
}

#[test]
fn a_right_profile_stays_and_its_plan_is_kept() {
    let (runner, task) = device_group("", convolutions());
    let ran = runs(&runner, &task, 10);
    assert!(ran.iter().all(|it| it.makespan == ran[0].makespan));
    for (device, history) in runner.cost_history().devices() {
        for (key, record) in history.records() {
            assert!(
                (record.mean.exp() - 1.0).abs() < 0.02,
                "{device} {key:?} {record:?}"
            );
        }
    }
}

#[test]
fn what_is_kept_of_other_devices_changes_nothing() {
    let (runner, task) = device_group("deep", convolutions());
    let stranger = ("third: of another make".to_owned(), History::default());
    let strangers = CostHistory::of_devices([stranger].into_iter());
    runner.load_history(&strangers);
    runs(&runner, &task, 1);
    assert_eq!(runner.cost_history().devices().count(), 2);
}
