//! Tests the runner on one device: it reads subgraphs from content, and returns the outputs and a
//! correct report.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use souk_cpu::Cpu;
use souk_emulated::{EmulatedConfig, EmulatedDevice, Pace};
use souk_memory::{ContentId, DType, Store, Tensor};
use souk_onnx::subgraph::{CompileError, Port, Subgraph, Unsupported};
use souk_onnx::work::Work;
use souk_onnx::{
    DataLocation, Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    StringStringEntryProto, TensorProto, ValueInfoProto, encode_model,
};
use souk_vocabulary::processor::{Estimate, Outcome, Processor, Program, RunError};
use souk_vocabulary::profile::Profile;

use super::timeline::UnixMicros;
use super::*;

/// Returns a clock that advances by a millisecond with each reading.
fn clock() -> Arc<Clock> {
    let ticks = AtomicU64::new(1_000_000);
    Arc::new(move || UnixMicros(ticks.fetch_add(1_000, Ordering::Relaxed)))
}

fn profile() -> Profile {
    souk_vocabulary::catalogue::find_processor("amd-epyc-9654")
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

/// Returns the model `y = x w`, whose weight is outside the model.
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
                format!("blake3:{}", ContentId::for_content(weight.bytes())),
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
    let float = |name: &str| ValueInfoProto::new_tensor(name, DType::F32.onnx_code(), None);
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
        sequence: 0,
        inputs: BTreeMap::from([("x".to_owned(), x)]),
    }
}

#[test]
fn a_task_runs_from_content_and_reports_what_it_took() {
    let store = Arc::new(Store::in_memory(1 << 20));
    store.put(weight().bytes().clone()).unwrap();
    let model = store.put(encode_model(&model(&weight()))).unwrap();
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

/// A CPU whose memory has room for the weights of a limited number of programs.
struct Tight {
    cpu: Arc<Cpu>,
    room: u64,
    used: Arc<AtomicU64>,
}

struct TightProgram {
    program: Box<dyn Program>,
    bytes: u64,
    used: Arc<AtomicU64>,
}

impl Processor for Tight {
    fn profile(&self) -> &Profile {
        self.cpu.profile()
    }

    fn check_support(&self, node: &NodeProto) -> Result<(), Unsupported> {
        self.cpu.check_support(node)
    }

    fn estimate(&self, work: &Work) -> Estimate {
        self.cpu.estimate(work)
    }

    fn compile(&self, subgraph: &Subgraph) -> Result<Box<dyn Program>, CompileError> {
        let weights = subgraph.weights.values().map(|bytes| bytes.len() as u64);
        let bytes = subgraph.model.len() as u64 + weights.sum::<u64>();
        self.used.fetch_add(bytes, Ordering::SeqCst);
        Ok(Box::new(TightProgram {
            program: self.cpu.compile(subgraph)?,
            bytes,
            used: self.used.clone(),
        }))
    }

    fn memory_free_bytes(&self) -> u64 {
        self.room.saturating_sub(self.used.load(Ordering::SeqCst))
    }

    fn utilisation(&self) -> f64 {
        0.0
    }

    fn meter_joules(&self) -> Option<f64> {
        None
    }
}

impl Program for TightProgram {
    fn inputs(&self) -> &[Port] {
        self.program.inputs()
    }

    fn outputs(&self) -> &[Port] {
        self.program.outputs()
    }

    fn run(&self, inputs: &BTreeMap<String, Tensor>) -> Result<Outcome, RunError> {
        self.program.run(inputs)
    }
}

impl Drop for TightProgram {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

#[test]
fn programs_are_let_go_of_where_a_devices_memory_has_no_room_for_another() {
    let store = Arc::new(Store::in_memory(1 << 20));
    let put = |number: u16| {
        let weight = Tensor::from_vec([2, 2], vec![f32::from(number), 2.0, 3.0, 4.0]).unwrap();
        store.put(weight.bytes().clone()).unwrap();
        store.put(encode_model(&model(&weight))).unwrap()
    };
    let models: Vec<ContentId> = (0..6).map(put).collect();
    let bytes = encode_model(&model(&weight())).len() as u64 + 16;
    // Beside two of them there is not twice the room that the next one takes.
    let (room, used) = (bytes * 7 / 2, Arc::new(AtomicU64::new(0)));
    let (cpu, counted) = (cpu(), used.clone());
    let device = Arc::new(Tight { cpu, room, used });
    let runner = Runner::new("cpu0", device, store, clock());
    for (number, &model) in models.iter().enumerate() {
        let ran = runner.run(&task(model)).unwrap();
        let expected = [10.0 * number as f32 + 3.0, 24.0];
        assert_eq!(ran.outputs["y"].to_vec::<f32>().unwrap(), expected);
        let held = counted.load(Ordering::SeqCst);
        assert!(held <= bytes * 2, "{held} bytes of programs of {bytes}");
    }
    let again = runner.run(&task(models[5])).unwrap();
    let kept = again.report.devices["cpu0"].bytes_in == 8;
    assert!(kept, "the last one stays");
}

#[test]
fn a_missing_weight_is_named() {
    let store = Arc::new(Store::in_memory(1 << 20));
    let model = store.put(encode_model(&model(&weight()))).unwrap();
    let runner = Runner::new("cpu0", cpu(), store, clock());
    assert_eq!(
        runner.weights_of(model).unwrap(),
        [("w".to_owned(), ContentId::for_content(weight().bytes()))]
    );
    let error = runner.run(&task(model)).unwrap_err();
    assert!(matches!(error, TaskError::WeightMissing { name, .. } if name == "w"));
    let absent = ContentId::for_content(b"absent");
    assert!(matches!(
        runner.run(&task(absent)),
        Err(TaskError::ModelMissing { .. })
    ));
}

#[test]
fn an_emulated_device_says_so_and_counts_its_own_time() {
    let store = Arc::new(Store::in_memory(1 << 20));
    store.put(weight().bytes().clone()).unwrap();
    let model = store.put(encode_model(&model(&weight()))).unwrap();
    let config = EmulatedConfig {
        pace: Pace::Virtual,
        speed: 1e-5,
        ..EmulatedConfig::default()
    };
    let device = EmulatedDevice::new(profile(), cpu(), config).unwrap();
    let runner = Runner::new("epyc", Arc::new(device), store, clock());
    assert_eq!(runner.label(), "epyc (emulated)");
    let ran = runner.run(&task(model)).unwrap();
    let device = &ran.report.devices["epyc (emulated)"];
    assert!(device.emulated);
    assert_eq!(u128::from(device.busy_micros), ran.busy.as_micros());
    let energy = device.energy.unwrap();
    assert!(energy.modelled_joules > 0.0 && energy.measured_joules == 0.0);
}

/// `d = a + b + c`.
fn sum() -> ModelProto {
    let float = |name: &str| ValueInfoProto::new_tensor(name, DType::F32.onnx_code(), None);
    let add = |read: [&str; 2], made: &str| NodeProto {
        op_type: Some("Add".to_owned()),
        input: read.map(str::to_owned).to_vec(),
        output: vec![made.to_owned()],
        ..NodeProto::default()
    };
    let mut sum = model(&weight());
    sum.graph = Some(GraphProto {
        node: vec![add(["a", "b"], "s"), add(["s", "c"], "d")],
        name: Some("sum".to_owned()),
        input: ["a", "b", "c"].map(float).to_vec(),
        output: vec![float("d")],
        ..GraphProto::default()
    });
    sum
}

/// Returns a group of two devices whose memory has room for one tensor of 400 bytes.
fn narrow_group(spill: &std::path::Path, store: Arc<Store>) -> Runner {
    let members = ["one", "other"].map(|label| GroupDevice {
        label: label.to_owned(),
        processor: cpu(),
    });
    let config = GroupConfig {
        host_bytes_max: 600,
        spill: Some((spill.to_owned(), 1 << 20)),
        sharing: Sharing::WhereItPays,
        retrials: Retrials::new(souk_registry::check::recheck_device),
        objective: Default::default(),
    };
    Runner::new_group("group", members.into(), store, clock(), config).unwrap()
}

#[cfg(unix)]
#[test]
fn a_run_whose_inputs_wait_for_a_disk_is_cancelled_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::in_memory(1 << 20));
    let model = store.put(encode_model(&sum())).unwrap();
    let runner = narrow_group(folder.path(), store);
    let tensor = |rows: usize| Tensor::from_vec([rows, 100], vec![1f32; rows * 100]).unwrap();
    // The first input goes to a disk that takes nothing until somebody reads from it; for the last
    // there is no room at all, so that the run does not begin.
    let (first, last) = (tensor(1), tensor(2));
    let second = Tensor::from_vec([1, 100], vec![2f32; 100]).unwrap();
    let name = ContentId::for_content(first.bytes()).to_string();
    let shelf = folder.path().join(&name[..2]);
    std::fs::create_dir(&shelf).unwrap();
    let pipe = shelf.join(format!("{name}.{}-0.part", std::process::id()));
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let task = Task {
        name: "sum".to_owned(),
        model,
        sequence: 0,
        inputs: BTreeMap::from([
            ("a".to_owned(), first.clone()),
            ("b".to_owned(), second),
            ("c".to_owned(), last),
        ]),
    };
    let cancel = Cancel::default();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let ran = runner.run_until(&task, Precedence::default(), &cancel);
            tell.send(ran).unwrap();
        });
        while runner.memory_stats().unwrap().1.used == 0 {
            if let Ok(ran) = told.try_recv() {
                panic!("it has not waited: {:?}", ran.err());
            }
            std::thread::yield_now();
        }
        cancel.cancel();
        // So long that only who waits for the disk is late.
        let answered = told.recv_timeout(Duration::from_secs(20));
        assert_eq!(std::fs::read(&pipe).unwrap(), *first.bytes());
        let error = answered.expect("nobody waits for the disk").unwrap_err();
        assert!(
            matches!(error, TaskError::Group(GroupRunError::Cancelled)),
            "{error}"
        );
    });
    while runner.memory_stats().unwrap().1.used > 0 {
        std::thread::yield_now();
    }
}

/// Returns the model `present = past + x` with the output `y = present`; the next request reads
/// `present` as its `past`.
fn counter() -> ModelProto {
    let vector = || Some(vec![Dimension::new_fixed(2)]);
    let float = |name: &str| ValueInfoProto::new_tensor(name, DType::F32.onnx_code(), vector());
    let sum = NodeProto {
        metadata_props: vec![souk_onnx::states::state_entry(0, 0)],
        ..NodeProto::for_operator("Add", &["past", "x"], "present")
    };
    let graph = GraphProto {
        node: vec![sum, NodeProto::for_operator("Identity", &["present"], "y")],
        name: Some("counter".to_owned()),
        input: vec![float("past"), float("x")],
        output: vec![float("present"), float("y")],
        ..GraphProto::default()
    };
    ModelProto {
        graph: Some(graph),
        ..model(&weight())
    }
}

#[test]
fn a_process_of_a_leases_own_keeps_states_that_tasks_do_not_bring() {
    let store = Arc::new(Store::in_memory(1 << 20));
    let model = store.put(encode_model(&counter())).unwrap();
    let runner = Runner::new("cpu0", cpu(), store, clock());
    let given = |names: &[&str]| {
        let one = || Tensor::from_vec([2], vec![1f32, 10.0]).unwrap();
        let inputs = names.iter().map(|name| ((*name).to_owned(), one()));
        Task {
            name: "counter".to_owned(),
            model,
            sequence: 0,
            inputs: inputs.collect(),
        }
    };
    let y = |task: Task| runner.run(&task).map(|ran| ran.outputs["y"].clone());
    let missing = y(given(&["x"])).unwrap_err();
    assert!(missing.to_string().contains("past"), "{missing}");
    runner.keep_sessions();
    for times in 1..4 {
        let ran = runner.run(&given(&["x"])).unwrap();
        assert_eq!(ran.outputs.keys().collect::<Vec<_>>(), ["y"]);
        let found = ran.outputs["y"].to_vec::<f32>().unwrap();
        assert_eq!(found, [times as f32, 10.0 * times as f32]);
    }
    // Another sequence has states of its own.
    let other = |sequence| Task {
        sequence,
        ..given(&["x"])
    };
    assert_eq!(y(other(7)).unwrap().to_vec::<f32>().unwrap(), [1.0, 10.0]);
    assert_eq!(y(other(0)).unwrap().to_vec::<f32>().unwrap(), [4.0, 40.0]);
    // What brings its states is by itself.
    let whole = y(given(&["past", "x"])).unwrap();
    assert_eq!(whole.to_vec::<f32>().unwrap(), [2.0, 20.0]);
}

#[test]
fn states_are_known_by_their_nodes() {
    let shape = [2_usize];
    let bindings = crate::graph::Bindings::new()
        .with_input("past", DType::F32, &shape)
        .with_input("x", DType::F32, &shape);
    let graph = crate::graph::Graph::import(encode_model(&counter()), &bindings).unwrap();
    let states = graph.state_values().into_iter();
    let names: Vec<&str> = states.map(|id| graph.value(id).name.as_str()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(
        names.contains(&"past") && names.contains(&"present"),
        "{names:?}"
    );
}

#[test]
fn what_another_import_differs_in_is_left_open_where_it_is_cut() {
    let symbol = |name: &str| Some(vec![Dimension::new_fixed(1), Dimension::new_symbol(name)]);
    let float = |name: &str, dims| ValueInfoProto::new_tensor(name, DType::F32.onnx_code(), dims);
    let graph = GraphProto {
        node: vec![
            NodeProto::for_operator("Neg", &["x"], "y"),
            NodeProto::for_operator("Neg", &["w"], "z"),
        ],
        name: Some("two".to_owned()),
        input: vec![float("x", symbol("sequence")), float("w", symbol("room"))],
        output: vec![float("y", None), float("z", None)],
        ..GraphProto::default()
    };
    let of = encode_model(&ModelProto {
        graph: Some(graph),
        ..model(&weight())
    });
    let import = |sequence: usize| {
        let bindings = crate::graph::Bindings::new()
            .with_input("x", DType::F32, &[1, sequence])
            .with_input("w", DType::F32, &[1, 8]);
        crate::graph::Graph::import(of.clone(), &bindings).unwrap()
    };
    let open = import(1).open_to(&import(2));
    let whole = crate::graph::cut::whole_graph(&open).unwrap();
    assert_eq!(
        whole.inputs[0].dims,
        Some(vec![Some(1), Some(1)]),
        "it is known here"
    );
    let program = cpu().compile(&Subgraph {
        model: whole.model,
        ..Subgraph::default()
    });
    let program = program.unwrap();
    let dims: Vec<_> = program
        .inputs()
        .iter()
        .map(|port| port.dims.clone())
        .collect();
    assert_eq!(
        dims,
        [Some(vec![Some(1), None]), Some(vec![Some(1), Some(8)])]
    );
}
