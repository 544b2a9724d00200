//! A device in a process of its own: right results, errors by name, and a lost process.
//!
//! This test has no harness: it starts itself again to be the other process.

#![expect(clippy::unwrap_used, reason = "a test that fails stops at once")]

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use souk_cpu::Cpu;
use souk_memory::{DType, Store, Tensor};
use souk_onnx::subgraph::Subgraph;
use souk_onnx::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto, encode_model,
};
use souk_scheduler::execution::timeline::UnixMicros;
use souk_scheduler::execution::{Clock, GroupConfig, GroupDevice, Retrials, Runner, Sharing, Task};
use souk_scheduler_bench::subprocess::{SubprocessDevice, SubprocessError, serve_parent};
use souk_vocabulary::processor::{Processor, RunError};

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("--as-the-device") => {
            serve_parent(&cpu(), std::io::stdin(), std::io::stdout()).unwrap();
        }
        Some("--as-a-device-of-three-cores") => {
            let cpu = cpu_of(NonZeroUsize::new(3).unwrap());
            serve_parent(&cpu, std::io::stdin(), std::io::stdout()).unwrap();
        }
        Some("--as-a-device-that-dies") => dies_in_its_second_run(),
        Some("--list") => {}
        _ => {
            results_are_those_of_this_process();
            refusals_come_with_their_reason();
            work_of_a_process_that_dies_ends_elsewhere();
            a_process_that_is_no_device_is_told_apart();
            the_cores_that_its_process_computes_on_are_the_devices();
            println!("5 facts hold");
        }
    }
}

fn cpu() -> Cpu {
    cpu_of(NonZeroUsize::MIN)
}

fn cpu_of(threads: NonZeroUsize) -> Cpu {
    let profile = souk_vocabulary::catalogue::find_processor("amd-epyc-9654").unwrap();
    Cpu::new(profile.clone(), threads)
}

fn child(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(role);
    command
}

/// Hands on what a device process says up to its third answer, then is gone.
fn dies_in_its_second_run() {
    struct Mortal(u64);
    impl std::io::Write for Mortal {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            std::io::stdout().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            self.0 += 1;
            if self.0 > 7 {
                std::process::abort();
            }
            std::io::stdout().flush()
        }
    }
    serve_parent(&cpu(), std::io::stdin(), Mortal(0)).unwrap();
}

fn node(operator: &str, input: &str, output: &str) -> NodeProto {
    NodeProto {
        op_type: Some(operator.to_owned()),
        input: vec![input.to_owned()],
        output: vec![output.to_owned()],
        ..NodeProto::default()
    }
}

fn model(operator: &str) -> ModelProto {
    let float = |name: &str| ValueInfoProto::new_tensor(name, DType::F32.onnx_code(), None);
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(17),
        }],
        graph: Some(GraphProto {
            name: Some("apart".to_owned()),
            node: vec![node(operator, "x", "y")],
            input: vec![float("x")],
            output: vec![float("y")],
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

fn subgraph(operator: &str) -> Subgraph {
    Subgraph {
        model: encode_model(&model(operator)),
        weights: BTreeMap::new(),
    }
}

fn input() -> BTreeMap<String, Tensor> {
    let x = Tensor::from_vec([3], vec![-1f32, 0.0, 2.5]).unwrap();
    BTreeMap::from([("x".to_owned(), x)])
}

fn results_are_those_of_this_process() {
    let device = SubprocessDevice::start(child("--as-the-device")).unwrap();
    assert_eq!(device.profile(), cpu().profile());
    let there = device.compile(&subgraph("Exp")).unwrap();
    let here = cpu().compile(&subgraph("Exp")).unwrap();
    assert_eq!(there.inputs(), here.inputs());
    for _ in 0..100 {
        let (one, other) = (there.run(&input()).unwrap(), here.run(&input()).unwrap());
        assert_eq!(one.outputs["y"].bytes(), other.outputs["y"].bytes());
        assert_eq!(one.operators, 1);
    }
}

fn refusals_come_with_their_reason() {
    let device = SubprocessDevice::start(child("--as-the-device")).unwrap();
    assert!(device.check_support(&node("Exp", "x", "y")).is_ok());
    let unknown = device
        .check_support(&node("Nonsense", "x", "y"))
        .unwrap_err();
    assert!(
        unknown.to_string().contains("no such operator"),
        "{unknown}"
    );
    let refused = device
        .compile(&subgraph("Nonsense"))
        .err()
        .unwrap()
        .to_string();
    assert!(refused.contains("Nonsense"), "{refused}");
    let program = device.compile(&subgraph("Exp")).unwrap();
    let missing = program.run(&BTreeMap::new()).unwrap_err();
    assert!(
        matches!(missing, RunError::InputMissing { .. }),
        "{missing}"
    );
    assert!(program.run(&input()).is_ok(), "and it goes on");
}

/// The process dies; its device is lost, and the device_group's other one does the work.
fn work_of_a_process_that_dies_ends_elsewhere() {
    let device = SubprocessDevice::start(child("--as-a-device-that-dies")).unwrap();
    let member = |label: &str, processor| GroupDevice {
        label: label.to_owned(),
        processor,
    };
    let members = vec![
        member("apart", Arc::new(device) as Arc<dyn Processor>),
        member("here", Arc::new(cpu())),
    ];
    let store = Arc::new(Store::in_memory(1 << 20));
    let model = store.put(encode_model(&model("Exp"))).unwrap();
    let ticks = AtomicU64::new(1);
    let clock: Arc<Clock> = Arc::new(move || UnixMicros(ticks.fetch_add(1, Ordering::Relaxed)));
    let config = GroupConfig {
        host_bytes_max: 1 << 20,
        spill: None,
        sharing: Sharing::Never,
        retrials: Retrials::new(souk_registry::check::recheck_device),
        objective: Default::default(),
    };
    let runner = Runner::new_group("both", members, store, clock, config).unwrap();
    let task = Task {
        name: "exp".to_owned(),
        model,
        sequence: 0,
        inputs: input(),
    };
    let mut devices = Vec::new();
    for _ in 0..12 {
        let ran = runner.run(&task).unwrap();
        devices.extend(ran.report.devices.into_keys());
    }
    assert!(devices[0].starts_with("apart"), "{devices:?}");
    assert!(devices[11].starts_with("here"), "{devices:?}");
}

fn a_process_that_is_no_device_is_told_apart() {
    let gone = SubprocessDevice::start(Command::new("/bin/true"))
        .err()
        .unwrap();
    assert!(matches!(gone, SubprocessError::Process(_)), "{gone}");
    let mut talks = Command::new("/bin/echo");
    talks.arg("this is no frame, whatever else it may be");
    assert!(SubprocessDevice::start(talks).is_err());
}

/// Whoever places work sees that it shares them with others.
fn the_cores_that_its_process_computes_on_are_the_devices() {
    for (role, cores) in [("--as-the-device", 1), ("--as-a-device-of-three-cores", 3)] {
        let device = SubprocessDevice::start(child(role)).unwrap();
        assert_eq!(device.host_cores(), cores, "{role}");
    }
}
