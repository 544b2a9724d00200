//! Tests that ten thousand runs of a group of devices leak no memory.

#![expect(clippy::unwrap_used, reason = "a test that fails stops at once")]

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use souk_cpu::Cpu;
use souk_emulated::{EmulatedConfig, EmulatedDevice, Pace};
use souk_memory::{DType, Store, Tensor};
use souk_onnx::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto,
    encode_model,
};
use souk_scheduler::execution::timeline::UnixMicros;
use souk_scheduler::execution::{Clock, GroupConfig, GroupDevice, Retrials, Runner, Sharing, Task};

/// The number of runs, and of the first ones, after which the memory is measured.
const RUNS: usize = 10_000;
const WARM: usize = 500;
/// The most growth of resident memory. A run's tensors have 128 KiB, so the test finds a leak in
/// one of a hundred runs.
const GROWN_BYTES_MAX: u64 = 8 << 20;

/// The variable that is set in the process that runs only this test.
const ALONE: &str = "SOUK_SOAK_ALONE";

/// `y = relu(x + w)`, of 64 KiB in and out.
fn model() -> ModelProto {
    let node = |operator: &str, inputs: &[&str], output: &str| NodeProto {
        op_type: Some(operator.to_owned()),
        input: inputs.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    };
    let float = |name: &str| ValueInfoProto::new_tensor(name, DType::F32.onnx_code(), None);
    let weight = TensorProto {
        name: Some("w".to_owned()),
        dims: vec![1],
        data_type: Some(DType::F32.onnx_code()),
        float_data: vec![1.0],
        ..TensorProto::default()
    };
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(17),
        }],
        graph: Some(GraphProto {
            name: Some("soak".to_owned()),
            node: vec![node("Add", &["x", "w"], "h"), node("Relu", &["h"], "y")],
            input: vec![float("x")],
            output: vec![float("y")],
            initializer: vec![weight],
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

fn member(index: usize) -> GroupDevice {
    let profile = souk_vocabulary::catalogue::find_processor("amd-epyc-9654").unwrap();
    let cpu = Arc::new(Cpu::new(profile.clone(), NonZeroUsize::MIN));
    let config = EmulatedConfig {
        pace: Pace::Virtual,
        ..EmulatedConfig::default()
    };
    GroupDevice {
        label: format!("device {index}"),
        processor: Arc::new(EmulatedDevice::new(profile.clone(), cpu, config).unwrap()),
    }
}

/// Runs a test of this program again in its own process, because resident memory counts the whole
/// process, with all tests that run in it.
fn run_alone(test: &str) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env(ALONE, "1");
    let ended = child.output().unwrap();
    let printed = String::from_utf8_lossy(&ended.stdout);
    let failed = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{printed}\n{failed}");
    assert!(printed.contains("1 passed"), "{printed}");
}

/// Resident bytes; zero on anything but Linux.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}

#[test]
fn ten_thousand_runs_of_a_group_leave_nothing_behind() {
    if std::env::var_os(ALONE).is_none() {
        return run_alone("soak::ten_thousand_runs_of_a_group_leave_nothing_behind");
    }
    let store = Arc::new(Store::in_memory(1 << 20));
    let model = store.put(encode_model(&model())).unwrap();
    let ticks = AtomicU64::new(1);
    let clock: Arc<Clock> = Arc::new(move || UnixMicros(ticks.fetch_add(1, Ordering::Relaxed)));
    let config = GroupConfig {
        host_bytes_max: 1 << 20,
        spill: None,
        sharing: Sharing::WhereItPays,
        retrials: Retrials::new(souk_registry::check::recheck_device),
        objective: Default::default(),
    };
    let runner =
        Runner::new_group("group", vec![member(0), member(1)], store, clock, config).unwrap();
    let mut before = 0;
    for run in 0..RUNS {
        let x = Tensor::from_vec([128, 128], vec![run as f32; 128 * 128]).unwrap();
        let task = Task {
            name: "soak".to_owned(),
            model,
            sequence: 0,
            inputs: BTreeMap::from([("x".to_owned(), x)]),
        };
        let ran = runner.run(&task).unwrap();
        assert_eq!(
            ran.outputs["y"].elements::<f32>().unwrap()[0],
            run as f32 + 1.0
        );
        assert_eq!(
            runner.memory_stats().unwrap().1.used,
            0,
            "every tensor was given back"
        );
        if run == WARM {
            before = resident_bytes();
        }
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < GROWN_BYTES_MAX, "{grown} bytes more are resident");
}
