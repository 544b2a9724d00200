//! Tests operators that unlike devices share: the results must equal those of one device, the
//! shares must fit the speeds of the devices, and joining must copy each byte of an output only
//! once.

#![expect(clippy::unwrap_used, reason = "a test that fails stops at once")]

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use souk_cpu::Cpu;
use souk_emulated::{EmulatedConfig, EmulatedDevice, Pace};
use souk_memory::{DType, Store, Tensor};
use souk_onnx::{
    AttributeProto, Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    ValueInfoProto, encode_model, tensor_to_proto,
};
use souk_scheduler::execution::report::DeviceReport;
use souk_scheduler::execution::timeline::UnixMicros;
use souk_scheduler::execution::{
    Clock, GroupConfig, GroupDevice, Retrials, RunResult, Runner, Sharing, Task,
};
use souk_scheduler_bench::emulated_pairs;
use souk_vocabulary::profile::{Profile, Throughput};

/// A device that states so many operations per second, and is faster than that by a factor.
#[derive(Clone, Copy)]
struct Device {
    rate: f64,
    speed: f64,
    memory_bytes: u64,
    failures: f64,
}

const DEVICE: Device = Device {
    rate: 1e9,
    speed: 1.0,
    memory_bytes: 1 << 30,
    failures: 0.0,
};

fn member(index: usize, device: Device) -> GroupDevice {
    let found = souk_vocabulary::catalogue::find_processor("amd-epyc-9654");
    let mut profile: Profile = found.expect("the catalogue has it").clone();
    let rate = Throughput {
        operations_per_second: device.rate,
        sparse: false,
        measured: false,
    };
    profile.throughput.insert(DType::F32, rate);
    profile.memory.bytes = device.memory_bytes;
    let cpu = Arc::new(Cpu::new(profile.clone(), NonZeroUsize::MIN));
    let config = EmulatedConfig {
        pace: Pace::Virtual,
        speed: device.speed,
        failures: device.failures,
        ..EmulatedConfig::default()
    };
    GroupDevice {
        label: format!("device {index}"),
        processor: Arc::new(EmulatedDevice::new(profile, cpu, config).unwrap()),
    }
}

/// Values that repeat after a prime number of elements.
fn tensor(dims: &[usize]) -> Tensor {
    let count = dims.iter().product::<usize>();
    let value = |index: usize| (index % 97) as f32 / 97.0 - 0.5;
    Tensor::from_vec(dims.to_vec(), (0..count).map(value).collect::<Vec<f32>>()).unwrap()
}

fn node(operator: &str, inputs: &[&str], output: &str, attributes: &[(&str, i64)]) -> NodeProto {
    let attribute = |&(name, value): &(&str, i64)| AttributeProto {
        name: Some(name.to_owned()),
        r#type: Some(2),
        i: Some(value),
        ..AttributeProto::default()
    };
    NodeProto {
        op_type: Some(operator.to_owned()),
        name: Some(output.to_owned()),
        input: inputs.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.to_owned()],
        attribute: attributes.iter().map(attribute).collect(),
        ..NodeProto::default()
    }
}

struct Case {
    nodes: Vec<NodeProto>,
    input: Vec<usize>,
    weights: Vec<(&'static str, Vec<usize>)>,
}

fn model(case: &Case) -> ModelProto {
    let open = |name: &str| ValueInfoProto::new_tensor(name, DType::F32.onnx_code(), None);
    let extents = case
        .input
        .iter()
        .map(|&size| Dimension::new_fixed(size as i64));
    let input = ValueInfoProto::new_tensor("x", DType::F32.onnx_code(), Some(extents.collect()));
    let weights = case.weights.iter();
    let output = case.nodes.last().expect("there is a node").output[0].clone();
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(17),
        }],
        graph: Some(GraphProto {
            name: Some("case".to_owned()),
            node: case.nodes.clone(),
            input: vec![input],
            output: vec![open(&output)],
            initializer: weights
                .map(|(name, dims)| tensor_to_proto(*name, &tensor(dims)))
                .collect(),
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

fn runner(case: &Case, devices: &[Device], sharing: Sharing) -> (Runner, Task) {
    let members = devices.iter().enumerate();
    let members = members.map(|(index, &device)| member(index, device));
    runner_of(case, members.collect(), sharing)
}

fn runner_of(case: &Case, members: Vec<GroupDevice>, sharing: Sharing) -> (Runner, Task) {
    let store = Arc::new(Store::in_memory(64 << 20));
    let model = store.put(encode_model(&model(case))).unwrap();
    let ticks = AtomicU64::new(1_000_000);
    let clock: Arc<Clock> = Arc::new(move || UnixMicros(ticks.fetch_add(10, Ordering::Relaxed)));
    let config = GroupConfig {
        host_bytes_max: 1 << 30,
        spill: None,
        sharing,
        retrials: Retrials::new(souk_registry::check::recheck_device),
        objective: Default::default(),
    };
    let runner = Runner::new_group("group", members, store, clock, config).unwrap();
    let task = Task {
        name: "case".to_owned(),
        model,
        sequence: 0,
        inputs: BTreeMap::from([("x".to_owned(), tensor(&case.input))]),
    };
    (runner, task)
}

/// Runs a case shared and on one device, and compares the outputs. Returns the shared run.
fn same_as_alone(case: &Case, devices: &[Device]) -> RunResult {
    let (alone, task) = runner(case, &[DEVICE], Sharing::Never);
    let expected = alone.run(&task).unwrap();
    let (shared, task) = runner(case, devices, Sharing::WhereItPays);
    let ran = shared.run(&task).unwrap();
    assert_eq!(ran.outputs.len(), expected.outputs.len());
    for (name, tensor) in &ran.outputs {
        let other = &expected.outputs[name];
        assert_eq!(tensor.dims(), other.dims(), "{name}");
        let pairs = tensor.to_f64s().unwrap().into_iter();
        for (one, other) in pairs.zip(other.to_f64s().unwrap()) {
            assert!(
                (one - other).abs() <= 1e-4 * (1.0 + other.abs()),
                "{one} {other}"
            );
        }
    }
    assert_eq!(ran.report.devices.len(), devices.len(), "{:?}", ran.report);
    let (moved, host) = shared.memory_stats().unwrap();
    assert_eq!(
        (moved.copied_bytes, host.used),
        (0, 0),
        "inputs go by reference"
    );
    ran
}

fn output_bytes(ran: &RunResult) -> u64 {
    ran.outputs
        .values()
        .map(|tensor| tensor.bytes().len() as u64)
        .sum()
}

fn two(rates: [f64; 2]) -> Vec<Device> {
    rates.map(|rate| Device { rate, ..DEVICE }).to_vec()
}

fn product() -> Case {
    Case {
        nodes: vec![node("MatMul", &["x", "w"], "y", &[])],
        input: vec![400, 128],
        weights: vec![("w", vec![128, 256])],
    }
}

#[test]
fn a_product_is_shared_by_rows_as_fast_as_each_is() {
    let ran = same_as_alone(&product(), &two([1e9, 3e9]));
    assert_eq!(
        ran.report.joined_bytes,
        output_bytes(&ran),
        "each byte is copied once"
    );
    let busy: Vec<u64> = ran
        .report
        .devices
        .values()
        .map(|device| device.busy_micros)
        .collect();
    let apart = busy[0].abs_diff(busy[1]) as f64 / busy[0] as f64;
    assert!(apart < 0.05, "they end together: {busy:?}");
    let against = ran.report.against.as_ref().unwrap();
    let (expected, single) = (
        against.expected_micros as f64,
        against.single.as_ref().unwrap(),
    );
    assert_eq!(single.device, "device 1 (emulated)");
    assert!(
        expected < 0.8 * single.expected_micros as f64,
        "{against:?}"
    );
    let off = ran.makespan.as_secs_f64() * 1e6 / expected - 1.0;
    assert!(
        off.abs() < 0.03,
        "planned {expected}, ran {:?}",
        ran.makespan
    );
}

#[test]
fn rows_of_a_batch_of_sequences_are_shared_through_what_follows() {
    let case = Case {
        nodes: vec![
            node("MatMul", &["x", "w"], "h", &[]),
            node("Add", &["b", "h"], "a", &[]),
            node("Relu", &["a"], "r", &[]),
            node("MatMul", &["r", "v"], "y", &[]),
            node("Softmax", &["y"], "z", &[]),
        ],
        input: vec![3, 41, 128],
        weights: vec![
            ("w", vec![128, 256]),
            ("b", vec![256]),
            ("v", vec![256, 128]),
        ],
    };
    let ran = same_as_alone(&case, &two([1e9, 2e9]));
    assert_eq!(
        ran.report.joined_bytes,
        3 * 41 * 128 * 4,
        "joined once, behind the last product"
    );
    let waited = |device: &&DeviceReport| device.idle.dependency_micros >= 20;
    let waiting = ran.report.devices.values().filter(waited).count();
    assert_eq!(
        waiting, 1,
        "who goes on waits for the other: {:?}",
        ran.report
    );
}

#[test]
fn one_row_is_shared_by_output_channels() {
    let case = Case {
        nodes: vec![
            node("Gemm", &["x", "w", "b"], "h", &[("transB", 1)]),
            node("Add", &["h", "c"], "a", &[]),
            node("Sigmoid", &["a"], "y", &[]),
        ],
        input: vec![1, 1024],
        weights: vec![
            ("w", vec![2048, 1024]),
            ("b", vec![2048]),
            ("c", vec![1, 2048]),
        ],
    };
    let ran = same_as_alone(&case, &two([1e9, 2e9]));
    assert_eq!(ran.report.joined_bytes, output_bytes(&ran));
}

#[test]
fn convolutions_are_shared_by_batch_and_by_channels() {
    let mut convolution = Case {
        nodes: vec![
            node("Conv", &["x", "w", "b"], "h", &[]),
            node("Relu", &["h"], "r", &[]),
            node("GlobalAveragePool", &["r"], "y", &[]),
        ],
        input: vec![40, 8, 20, 20],
        weights: vec![("w", vec![32, 8, 3, 3]), ("b", vec![32])],
    };
    let ran = same_as_alone(&convolution, &two([1e9, 2e9]));
    assert_eq!(
        ran.report.joined_bytes,
        40 * 32 * 4,
        "joined behind the pool"
    );
    convolution.input[0] = 1;
    let ran = same_as_alone(&convolution, &two([1e9, 2e9]));
    assert_eq!(
        ran.report.joined_bytes,
        32 * 18 * 18 * 4,
        "channels are joined before the pool"
    );
}

#[test]
fn rows_of_several_products_come_out_in_their_places_by_channels() {
    let mut case = product();
    case.input = vec![2, 3, 512];
    case.weights = vec![("w", vec![512, 2048])];
    let (alone, task) = runner(&case, &two([1e9, 1e9]), Sharing::Never);
    let expected = alone.run(&task).unwrap();
    // Three rows for four devices: channels go farther.
    let devices = vec![DEVICE; 7];
    let (shared, task) = runner(&case, &devices, Sharing::WhereItPays);
    let ran = shared.run(&task).unwrap();
    assert_eq!(ran.report.devices.len(), 7);
    assert_eq!(ran.outputs["y"].dims(), expected.outputs["y"].dims());
    let pairs = ran.outputs["y"].to_f64s().unwrap().into_iter();
    for (one, other) in pairs.zip(expected.outputs["y"].to_f64s().unwrap()) {
        assert!(
            (one - other).abs() <= 1e-4 * (1.0 + other.abs()),
            "{one} {other}"
        );
    }
}

#[test]
fn nothing_is_shared_for_less_than_a_fifth() {
    let (runner, task) = runner(&product(), &two([1e9, 1e8]), Sharing::WhereItPays);
    let ran = runner.run(&task).unwrap();
    assert_eq!(ran.report.joined_bytes, 0);
    assert_eq!(ran.report.devices.len(), 1);
}

#[test]
fn memory_limits_the_share_of_a_device() {
    let mut devices = two([1e9, 4e9]);
    // Room for the weights and about a quarter of the rows, where four fifths would be its share.
    devices[1].memory_bytes = 128 * 256 * 4 + 100 * (128 + 256) * 4;
    let ran = same_as_alone(&product(), &devices);
    let rows = |device: &str| ran.report.devices[device].bytes_out / (256 * 4);
    assert_eq!(rows("device 1 (emulated)"), 100);
    assert_eq!(rows("device 0 (emulated)"), 300);
}

#[test]
fn what_no_device_has_room_for_alone_is_shared() {
    let mut devices = two([1e9, 1e9]);
    // Room for the weights and for a little more than half of the rows.
    let room = 128 * 256 * 4 + 240 * (128 + 256) * 4;
    devices
        .iter_mut()
        .for_each(|device| device.memory_bytes = room);
    let ran = same_as_alone(&product(), &devices);
    let against = ran.report.against.unwrap();
    assert_eq!(against.single, None);
}

#[test]
fn the_part_of_a_failed_device_is_made_by_another() {
    let mut devices = two([1e9, 3e9]);
    devices[1].failures = 1.0;
    let (runner, task) = runner(&product(), &devices, Sharing::WhereItPays);
    let ran = runner.run(&task).unwrap();
    assert_eq!(ran.report.joined_bytes, output_bytes(&ran));
    let devices: Vec<&String> = ran.report.devices.keys().collect();
    assert_eq!(devices, ["device 0 (emulated)"]);
}

#[test]
fn shares_follow_measured_speed_to_within_three_percent_of_the_best() {
    let mut devices = two([1e9, 1e9]);
    // Its profile promises twice what it does.
    devices[1].speed = 0.5;
    let (learning, task) = runner(&product(), &devices, Sharing::WhereItPays);
    let runs: Vec<RunResult> = (0..10).map(|_| learning.run(&task).unwrap()).collect();
    let of_rows = |rows: usize| {
        let parts = vec![(400 - rows) as f64, rows as f64];
        let (given, task) = runner(&product(), &devices, Sharing::Given(parts));
        given.run(&task).unwrap().makespan
    };
    let best = (10..400).step_by(10).map(of_rows).min().unwrap();
    let last = runs.last().unwrap().makespan;
    let (first, learned) = (
        runs[0].makespan.div_duration_f64(best),
        last.div_duration_f64(best),
    );
    assert!(
        first > 1.4 && learned < 1.03,
        "{first} at first, {learned} in the end"
    );
}

#[test]
fn cards_share_what_comes_from_the_host_to_within_three_percent_of_the_best() {
    let pair = emulated_pairs().swap_remove(0).members;
    let case = Case {
        input: vec![2048, 512],
        weights: vec![("w", vec![512, 512])],
        ..product()
    };
    let (learning, task) = runner_of(&case, pair.clone(), Sharing::WhereItPays);
    let runs: Vec<RunResult> = (0..10).map(|_| learning.run(&task).unwrap()).collect();
    let last = runs.last().unwrap();
    assert_eq!(last.report.devices.len(), 2, "{:?}", last.report);
    let of_part = |part: f64| {
        let parts = Sharing::Given(vec![part, 1.0 - part]);
        let (given, task) = runner_of(&case, pair.clone(), parts);
        given.run(&task).unwrap().makespan
    };
    let best = (1..16).map(|part| of_part(f64::from(part) / 16.0));
    let best = best.min().unwrap();
    let single = pair.iter().map(|member| {
        let (alone, task) = runner_of(&case, vec![member.clone()], Sharing::Never);
        alone.run(&task).unwrap().makespan
    });
    let single = single.min().unwrap();
    assert!(best.div_duration_f64(single) < 0.8, "{best:?} {single:?}");
    let to_best = last.makespan.div_duration_f64(best);
    assert!(to_best < 1.03, "{to_best} of {best:?}");
}
