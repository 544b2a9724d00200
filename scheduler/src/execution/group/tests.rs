//! Tests a group of several devices that runs one subgraph: equal results, failed devices, streams,
//! deadlines, and memory that is given back.

mod card;
mod changing;
mod costs;
mod device_requirements;
mod fragments;
mod lost_devices;
mod objectives;
mod own_memory;
mod seeded;
mod shared_cores;
mod shared_operators;
mod shrinking;
mod stream_requests;
mod streams;
mod transfers;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};

use souk_cpu::Cpu;
use souk_emulated::{EmulatedConfig, EmulatedDevice, Pace};
use souk_memory::{DType, Tensor};
use souk_onnx::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto,
    encode_model,
};
use souk_vocabulary::profile::{Profile, Throughput};

use super::links::device_place;
use super::*;
use crate::execution::Runner;
use crate::execution::run_figures::bytes_of_all;
use crate::execution::timeline::UnixMicros;

const SIZE: usize = 32;

/// Returns a graph of two independent branches `y1 = (x a) a` and `y2 = (x b) b`, and their sum
/// `z`.
fn branches() -> ModelProto {
    let node = |operator: &str, inputs: [&str; 2], output: &str| NodeProto {
        op_type: Some(operator.to_owned()),
        name: Some(output.to_owned()),
        input: inputs.map(str::to_owned).to_vec(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    };
    let weight = |name: &str, value: f32| TensorProto {
        name: Some(name.to_owned()),
        dims: vec![SIZE as i64; 2],
        data_type: Some(DType::F32.onnx_code()),
        float_data: vec![value; SIZE * SIZE],
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
            name: Some("branches".to_owned()),
            node: vec![
                node("MatMul", ["x", "a"], "h1"),
                node("MatMul", ["h1", "a"], "y1"),
                node("MatMul", ["x", "b"], "h2"),
                node("MatMul", ["h2", "b"], "y2"),
                node("Add", ["y1", "y2"], "z"),
            ],
            input: vec![float("x")],
            output: vec![float("z")],
            initializer: vec![weight("a", 0.5), weight("b", 0.25)],
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

/// Returns a speed so low that the handover of a tensor takes almost no time in comparison to a
/// product.
fn slow() -> Throughput {
    Throughput {
        operations_per_second: 1e6,
        sparse: false,
        measured: false,
    }
}

fn profile() -> Profile {
    let mut profile = souk_vocabulary::catalogue::find_processor("amd-epyc-9654")
        .unwrap()
        .clone();
    profile.throughput.insert(DType::F32, slow());
    profile
}

fn member(label: &str, failures: f64) -> GroupDevice {
    let cpu = Arc::new(Cpu::new(profile(), NonZeroUsize::MIN));
    let config = EmulatedConfig {
        pace: Pace::Virtual,
        failures,
        ..EmulatedConfig::default()
    };
    GroupDevice {
        label: label.to_owned(),
        processor: Arc::new(EmulatedDevice::new(profile(), cpu, config).unwrap()),
    }
}

fn device_group(failures: &[f64]) -> (Runner, Task) {
    let store = Arc::new(Store::in_memory(1 << 20));
    let model = store.put(encode_model(&branches())).unwrap();
    let ticks = AtomicU64::new(1_000_000);
    let clock: Arc<Clock> = Arc::new(move || UnixMicros(ticks.fetch_add(10, Ordering::Relaxed)));
    let members = (0..).zip(failures);
    let members = members.map(|(index, &failures)| member(&format!("device {index}"), failures));
    let config = GroupConfig {
        host_bytes_max: 1 << 20,
        spill: None,
        sharing: Sharing::WhereItPays,
        retrials: Retrials::new(souk_registry::check::recheck_device),
        objective: Default::default(),
    };
    let runner = Runner::new_group("both", members.collect(), store, clock, config).unwrap();
    let x = Tensor::from_vec([SIZE, SIZE], vec![1f32; SIZE * SIZE]).unwrap();
    let task = Task {
        name: "branches".to_owned(),
        model,
        sequence: 0,
        inputs: BTreeMap::from([("x".to_owned(), x)]),
    };
    (runner, task)
}

/// Asserts the value of `z`: 32 x 0.5 = 16 in each column of `y1`, times 16; and 8 x 8 for `y2`.
fn assert_right(ran: &RunResult) {
    let z = ran.outputs["z"].to_vec::<f32>().unwrap();
    assert!(
        z.iter().all(|&value| value == 256.0 + 64.0),
        "{:?}",
        &z[..4]
    );
}

#[test]
fn branches_run_on_both_devices_and_no_byte_is_copied() {
    let (runner, task) = device_group(&[0.0, 0.0]);
    runner.prepare_model(task.model).unwrap();
    for _ in 0..3 {
        let ran = runner.run(&task).unwrap();
        assert_right(&ran);
        assert_eq!(ran.report.devices.len(), 2, "{:?}", ran.report);
        assert!(
            ran.report
                .devices
                .values()
                .all(|device| device.emulated && device.tasks > 0)
        );
        assert_eq!(
            ran.report
                .devices
                .values()
                .map(|device| device.operators)
                .sum::<u64>(),
            5
        );
    }
    let (moved, host) = runner.memory_stats().unwrap();
    assert_eq!((moved.copied_bytes, moved.spilled_bytes), (0, 0));
    assert_eq!(host.used, 0, "every tensor was given back");
}

#[test]
fn a_failed_devices_fragments_run_on_the_other() {
    let (runner, task) = device_group(&[1.0, 0.0]);
    let ran = runner.run(&task).unwrap();
    assert_right(&ran);
    let devices: Vec<&String> = ran.report.devices.keys().collect();
    assert_eq!(devices, ["device 1 (emulated)"]);
    assert_eq!(runner.memory_stats().unwrap().1.used, 0);
}

#[test]
fn without_a_device_left_the_failures_are_told() {
    let (runner, task) = device_group(&[1.0, 1.0]);
    let error = runner.run(&task).unwrap_err().to_string();
    assert!(
        error.contains("no remaining device") && error.contains("as configured"),
        "{error}"
    );
}

#[test]
fn a_stream_keeps_both_devices_at_work_and_answers_in_order() {
    let (runner, task) = device_group(&[0.0, 0.0]);
    let request = |number: u32| {
        let x = Tensor::from_vec([SIZE, SIZE], vec![number as f32; SIZE * SIZE]).unwrap();
        BTreeMap::from([("x".to_owned(), x)])
    };
    let mut answers = Vec::new();
    let take = |mut outputs: BTreeMap<String, Tensor>| {
        let z = outputs.remove("z").expect("the answer has it");
        assert!(outputs.is_empty(), "and nothing else");
        answers.push(z.to_vec::<f32>().unwrap()[0]);
    };
    let timeline = runner
        .run_stream(task.model, (0..20).map(request), take)
        .unwrap();
    assert_eq!(
        answers,
        (0..20)
            .map(|number| 320.0 * number as f32)
            .collect::<Vec<_>>()
    );
    assert_eq!(timeline.device_names().len(), 2, "a stage on each");
}

#[test]
fn one_device_answers_a_stream_one_by_one() {
    let (runner, task) = paced(1);
    let wrong = BTreeMap::from([("x".to_owned(), Tensor::scalar(1.0f32))]);
    let requests = [task.inputs.clone(), task.inputs.clone(), wrong];
    let mut answers = 0;
    let streamed = runner.run_stream(task.model, requests.into_iter(), |outputs| {
        let z = outputs["z"].to_vec::<f32>().unwrap();
        assert_eq!(z[0], 320.0);
        answers += 1;
    });
    let error = streamed.unwrap_err().to_string();
    assert!(error.starts_with("request 2: "), "{error}");
    assert_eq!((runner.stream_ahead(), answers), (1, 2));
}

#[test]
fn a_request_that_does_not_fit_is_named() {
    let (runner, task) = device_group(&[0.0, 0.0]);
    let wrong = BTreeMap::from([("x".to_owned(), Tensor::scalar(1.0f32))]);
    let requests = [task.inputs.clone(), wrong].into_iter();
    let error = runner
        .run_stream(task.model, requests, |_| ())
        .unwrap_err()
        .to_string();
    assert!(error.contains("request 1: node \"h1\""), "{error}");
}

#[test]
fn a_run_past_its_deadline_ends_by_name() {
    // A device by itself has turns where leases own the runs.
    for (runner, task) in [device_group(&[0.0, 0.0]), paced(1)] {
        runner.run(&task).unwrap();
        let owned = Precedence {
            owner: Some(7),
            ..Precedence::default()
        };
        assert_right(&runner.run_as(&task, owned).unwrap());
        let precedence = Precedence {
            deadline: Some(Moment::now()),
            ..owned
        };
        let late = runner.run_as(&task, precedence).unwrap_err();
        assert!(
            matches!(late, TaskError::Group(GroupRunError::Deadline)),
            "{late}"
        );
    }
}

/// Returns a runner over devices whose runs take their stated time.
fn paced(devices: usize) -> (Runner, Task) {
    let (_, task) = device_group(&[0.0]);
    let store = Arc::new(Store::in_memory(1 << 20));
    store.put(encode_model(&branches())).unwrap();
    let clock: Arc<Clock> = Arc::new(|| UnixMicros(1));
    let member = |index: usize| {
        let cpu = Arc::new(Cpu::new(profile(), NonZeroUsize::MIN));
        let device = EmulatedDevice::new(profile(), cpu, EmulatedConfig::default()).unwrap();
        GroupDevice {
            label: format!("device {index}"),
            processor: Arc::new(device),
        }
    };
    let members: Vec<GroupDevice> = (0..devices).map(member).collect();
    let config = GroupConfig {
        host_bytes_max: 1 << 20,
        spill: None,
        sharing: Sharing::WhereItPays,
        retrials: Retrials::new(souk_registry::check::recheck_device),
        objective: Default::default(),
    };
    let runner = match devices {
        1 => Runner::new("one", members[0].processor.clone(), store, clock),
        _ => Runner::new_group("several", members, store, clock, config).unwrap(),
    };
    (runner, task)
}

#[test]
fn who_cancels_a_run_is_answered_before_it_could_end() {
    for (devices, owner) in [(1, None), (1, Some(7)), (2, Some(7))] {
        let (runner, task) = paced(devices);
        let cancel = Cancel::default();
        let precedence = Precedence {
            owner,
            ..Precedence::default()
        };
        let answer = std::thread::scope(|scope| {
            let run = || runner.run_until(&task, precedence, &cancel);
            let running = scope.spawn(run);
            cancel.cancel();
            running.join().unwrap()
        });
        // A run that is let finish gives outputs.
        let cancelled = matches!(answer, Err(TaskError::Group(GroupRunError::Cancelled)));
        assert!(cancelled && cancel.is_cancelled(), "{devices} devices");
        let late = runner.run_until(&task, precedence, &cancel);
        assert!(late.is_err(), "a word said before counts as well");
        let other = Cancel::default();
        let ran = runner.run_until(&task, precedence, &other).unwrap();
        assert_right(&ran);
    }
}

#[test]
fn a_group_of_nobody_is_refused() {
    let store = Arc::new(Store::in_memory(1));
    let config = GroupConfig {
        host_bytes_max: 1,
        spill: None,
        sharing: Sharing::WhereItPays,
        retrials: Retrials::new(souk_registry::check::recheck_device),
        objective: Default::default(),
    };
    let refused = Runner::new_group(
        "none",
        Vec::new(),
        store,
        Arc::new(|| UnixMicros(0)),
        config,
    );
    assert!(matches!(refused.err(), Some(GroupError::Empty)));
}
