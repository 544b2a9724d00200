//! Running subgraphs: content in, outputs and an honest report out.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};

use souk_devices::cpu::Cpu;
use souk_devices::emulated::{Emulated, EmulatedConfig, Pace};
use souk_devices::onnx::{
    DataLocation, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto,
    TensorProto, ValueInfoProto, encode,
};
use souk_devices::profile::Profile;
use souk_memory::DType;

use super::*;

/// A clock that moves by a millisecond each time it is read.
fn clock() -> Arc<Clock> {
    let ticks = AtomicU64::new(1_000_000);
    Arc::new(move || UnixMicros(ticks.fetch_add(1_000, Ordering::Relaxed)))
}

fn profile() -> Profile {
    souk_devices::catalogue::find("amd-epyc-9654")
        .unwrap()
        .clone()
}

fn cpu() -> Arc<Cpu> {
    Arc::new(Cpu::new(
        Profile {
            emulated: false,
            ..profile()
        },
        NonZeroUsize::MIN,
    ))
}

/// `y = x w`, the weight outside the model.
fn model(weight: &Tensor) -> ModelProto {
    let dims = weight.dims().iter().map(|&size| size as i64).collect();
    let initializer = TensorProto {
        name: Some("w".to_owned()),
        dims,
        data_type: Some(weight.dtype().onnx_code()),
        data_location: Some(DataLocation::External as i32),
        external_data: vec![
            StringStringEntryProto::new(
                "location",
                format!("blake3:{}", ContentId::of(weight.bytes())),
            ),
            StringStringEntryProto::new("offset", "0"),
            StringStringEntryProto::new("length", weight.bytes().len().to_string()),
        ],
        ..TensorProto::default()
    };
    let node = NodeProto {
        op_type: Some("MatMul".to_owned()),
        input: vec!["x".to_owned(), "w".to_owned()],
        output: vec!["y".to_owned()],
        ..NodeProto::default()
    };
    let float = |name: &str| ValueInfoProto::tensor(name, DType::F32.onnx_code(), None);
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(17),
        }],
        graph: Some(GraphProto {
            node: vec![node],
            name: Some("product".to_owned()),
            input: vec![float("x")],
            output: vec![float("y")],
            initializer: vec![initializer],
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

fn weight() -> Tensor {
    Tensor::from_vec([2, 2], vec![1f32, 2.0, 3.0, 4.0]).unwrap()
}

fn task(model: ContentId) -> Task {
    let x = Tensor::from_vec([1, 2], vec![10f32, 1.0]).unwrap();
    Task {
        name: "product".to_owned(),
        model,
        inputs: BTreeMap::from([("x".to_owned(), x)]),
    }
}

#[test]
fn a_task_runs_from_content_and_reports_what_it_took() {
    let store = Arc::new(Store::in_memory(1 << 20));
    store.put(weight().bytes().clone()).unwrap();
    let model = store.put(encode(&model(&weight()))).unwrap();
    let runner = Runner::new("cpu0", cpu(), store, clock());
    let first = runner.run(&task(model)).unwrap();
    assert_eq!(first.outputs["y"].to_vec::<f32>().unwrap(), [13.0, 24.0]);
    let device = &first.report.devices["cpu0"];
    assert_eq!(
        (device.tasks, device.operators, device.emulated),
        (1, 1, false)
    );
    assert_eq!(device.bytes_out, 8);
    assert!(device.bytes_in > 8 + 16, "input, weight and model");
    assert_eq!(
        (device.busy_micros, device.idle.data_micros),
        (1_000, 1_000)
    );
    let second = runner.run(&task(model)).unwrap();
    assert_eq!(
        second.report.devices["cpu0"].bytes_in, 8,
        "the program was kept"
    );
}

#[test]
fn a_missing_weight_is_named() {
    let store = Arc::new(Store::in_memory(1 << 20));
    let model = store.put(encode(&model(&weight()))).unwrap();
    let runner = Runner::new("cpu0", cpu(), store, clock());
    assert_eq!(
        runner.weights_of(model).unwrap(),
        [("w".to_owned(), ContentId::of(weight().bytes()))]
    );
    let error = runner.run(&task(model)).unwrap_err();
    assert!(matches!(error, TaskError::WeightMissing { name, .. } if name == "w"));
    let absent = ContentId::of(b"absent");
    assert!(matches!(
        runner.run(&task(absent)),
        Err(TaskError::ModelMissing { .. })
    ));
}

#[test]
fn an_emulated_device_says_so_and_counts_its_own_time() {
    let store = Arc::new(Store::in_memory(1 << 20));
    store.put(weight().bytes().clone()).unwrap();
    let model = store.put(encode(&model(&weight()))).unwrap();
    let config = EmulatedConfig {
        pace: Pace::Virtual,
        speed: 1e-5,
        ..EmulatedConfig::default()
    };
    let device = Emulated::new(profile(), cpu(), config).unwrap();
    let runner = Runner::new("epyc", Arc::new(device), store, clock());
    assert_eq!(runner.label(), "epyc (emulated)");
    let ran = runner.run(&task(model)).unwrap();
    let device = &ran.report.devices["epyc (emulated)"];
    assert!(device.emulated);
    assert_eq!(u128::from(device.busy_micros), ran.busy.as_micros());
    let energy = device.energy.unwrap();
    assert!(energy.modelled_joules > 0.0 && energy.measured_joules == 0.0);
}
