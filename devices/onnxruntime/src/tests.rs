//! Tests the backend on this CPU with an ONNX Runtime library, if there is one; otherwise the tests
//! report that and pass. `SOUK_TEST_ONNXRUNTIME` can name a library for these tests only, for
//! example the one in ONNX Runtime's Python wheel.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::{Bytes, BytesMut};
use souk_cpu::Cpu;
use souk_memory::{DType, Tensor};
use souk_onnx as onnx;
use souk_onnx::subgraph::node_name;
use souk_onnx::{Dimension, NodeProto, ValueInfoProto};
use souk_testing::{matmul_subgraph, model, node, product_inputs, subgraph, with_ints};
use souk_vocabulary::processor::RunError;
use souk_vocabulary::taxonomy::{NpuFamily, ProcessorKind};

use super::*;

/// The CPU that results are held against.
fn cpu() -> Cpu {
    Cpu::new(souk_testing::cpu_profile(), NonZeroUsize::MIN)
}

/// The device of the last provider, the CPU's; `None` where there is no library.
pub(crate) fn device() -> Option<OnnxRuntime> {
    let named = std::env::var_os("SOUK_TEST_ONNXRUNTIME").map(Into::into);
    let Some(path) = named.or_else(library_path) else {
        eprintln!("SKIPPED: no ONNX Runtime library; SOUK_TEST_ONNXRUNTIME can name one");
        return None;
    };
    let library = Library::open(&path).expect("the library that was found opens");
    let provider = library.host_provider().clone();
    let profile = cpu().profile().clone();
    Some(OnnxRuntime::new(
        library,
        provider,
        profile,
        NonZeroUsize::MIN,
    ))
}

#[test]
fn a_product_is_the_cpus() {
    let Some(device) = device() else { return };
    let program = device.compile(&matmul_subgraph()).unwrap();
    let outcome = program.run(&product_inputs()).unwrap();
    assert_eq!(outcome.outputs["y"].to_vec::<f32>().unwrap(), [13.0, 24.0]);
    let error = program.run(&BTreeMap::new()).unwrap_err();
    assert!(matches!(error, RunError::InputMissing { .. }), "{error}");
}

/// A model that adds a weight to its input, the weight beside it, and the weight's values.
fn beside() -> (Subgraph, Vec<f32>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.onnx");
    let values: Vec<f32> = (0..600).map(|it| it as f32).collect();
    let weight = Tensor::from_vec([600], values.clone()).unwrap();
    let nodes = vec![node("Add", &["x", "w"], &["y"])];
    let proto = model(
        nodes,
        &[("x", DType::F32)],
        &[("y", DType::F32)],
        &[("w", weight)],
    );
    std::fs::write(&path, onnx::encode_model(&proto)).unwrap();
    let split = souk_devices_bench::models::open_model(&path).unwrap();
    assert_eq!(split.weights.len(), 1);
    (split, values)
}

/// The same with its weights where no float may lie.
fn shifted(split: &Subgraph) -> Subgraph {
    let shifted = |bytes: &Bytes| {
        let mut room = BytesMut::zeroed(bytes.len() + 4);
        let odd = |from: &usize| room[*from..].as_ptr().addr() % 4 == 1;
        let from = (0..4).find(odd).expect("of four neighbours one is");
        room[from..from + bytes.len()].copy_from_slice(bytes);
        room.freeze().slice(from..from + bytes.len())
    };
    let weights = split.weights.iter();
    Subgraph {
        weights: weights.map(|(id, bytes)| (*id, shifted(bytes))).collect(),
        ..split.clone()
    }
}

#[test]
fn weights_beside_the_model_are_brought_in() {
    let Some(device) = device() else { return };
    let (split, values) = beside();
    let missing = Subgraph {
        weights: BTreeMap::new(),
        ..split.clone()
    };
    assert!(matches!(
        device.compile(&missing),
        Err(CompileError::WeightMissing { .. })
    ));
    let inputs = BTreeMap::from([("x".to_owned(), Tensor::scalar(1f32))]);
    let expected: Vec<f32> = values.iter().map(|value| value + 1.0).collect();
    for given in [shifted(&split), split] {
        let program = device.compile(&given).unwrap();
        // What a program reads lives as long as it does.
        drop(given);
        let outcome = program.run(&inputs).unwrap();
        assert_eq!(outcome.outputs["y"].to_vec::<f32>().unwrap(), expected);
    }
}

#[test]
fn weights_stay_where_they_lie_if_elements_may_lie_there() {
    let (split, _) = beside();
    let lies = |loaded: LoadedModel| loaded.beside.first().map(|(_, it)| it.bytes().as_ptr());
    let own = split.weights.values().next().map(|bytes| bytes.as_ptr());
    assert_eq!(
        lies(LoadedModel::with_external_weights(&split).unwrap()),
        own
    );
    assert_eq!(
        lies(LoadedModel::with_external_weights(&shifted(&split)).unwrap()),
        None
    );
    assert_eq!(
        lies(LoadedModel::with_embedded_weights(&split).unwrap()),
        None
    );
}

#[test]
fn every_type_goes_in_and_comes_out() {
    let Some(device) = device() else { return };
    let tensors = [
        Tensor::from_vec([2], vec![1.5f32, f32::NAN]).unwrap(),
        Tensor::from_vec([2], vec![1.5f64, -0.0]).unwrap(),
        Tensor::from_vec([1], vec![i64::MIN]).unwrap(),
        Tensor::from_vec([3], vec![1i32, -2, 3]).unwrap(),
        Tensor::from_vec([2], vec![0u8, 255]).unwrap(),
        Tensor::from_vec([2], vec![souk_memory::F16::from_f32(0.5); 2]).unwrap(),
        Tensor::from_bools([2], &[true, false]).unwrap(),
        Tensor::from_vec([0, 3], Vec::<f32>::new()).unwrap(),
        Tensor::scalar(7f32),
    ];
    for tensor in tensors {
        let dtype = tensor.dtype();
        let proto = model(
            vec![node("Identity", &["x"], &["y"])],
            &[("x", dtype)],
            &[("y", dtype)],
            &[],
        );
        let program = device.compile(&subgraph(&proto)).unwrap();
        let inputs = BTreeMap::from([("x".to_owned(), tensor.clone())]);
        let found = &program.run(&inputs).unwrap().outputs["y"];
        assert_eq!(found.bytes(), tensor.bytes(), "{dtype}");
        assert_eq!(found.dims(), tensor.dims(), "{dtype}");
    }
}

#[test]
fn what_it_gets_wrong_is_refused_by_name() {
    let Some(device) = device() else { return };
    let dft = model(
        vec![node("DFT", &["x"], &["y"])],
        &[("x", DType::F32)],
        &[("y", DType::F32)],
        &[],
    );
    let error = device.compile(&subgraph(&dft)).err().expect("refused");
    assert!(error.to_string().contains("DFT"), "{error}");
    let unknown = model(
        vec![node("Frobnicate", &["x"], &["y"])],
        &[("x", DType::F32)],
        &[("y", DType::F32)],
        &[],
    );
    assert!(device.compile(&subgraph(&unknown)).is_err());
}

/// What multiplies the largest of u8 by the largest of i8, as one node or between dequantisations.
fn products_of_bytes() -> [(Vec<NodeProto>, DType); 3] {
    let dequantised = ["a", "b"].map(|name| {
        let (zero, out) = (format!("{name}_zero"), format!("{name}_wide"));
        NodeProto {
            name: Some(format!("{name}_node")),
            ..node("DequantizeLinear", &[name, "one", &zero], &[&out])
        }
    });
    let [a, b] = dequantised;
    let between = vec![
        a,
        b,
        node("MatMul", &["a_wide", "b_wide"], &["wide"]),
        node("QuantizeLinear", &["wide", "scale", "a_zero"], &["y"]),
    ];
    let linear = [
        "a", "one", "a_zero", "b", "one", "b_zero", "scale", "a_zero",
    ];
    [
        (vec![node("MatMulInteger", &["a", "b"], &["y"])], DType::I32),
        (vec![node("QLinearMatMul", &linear, &["y"])], DType::U8),
        (between, DType::U8),
    ]
}

#[test]
fn products_of_bytes_lose_no_digits() {
    let Some(device) = device() else { return };
    let (depth, columns) = (16, 8);
    let weights = [
        (
            "b",
            Tensor::from_vec([depth, columns], vec![127i8; depth * columns]).unwrap(),
        ),
        ("one", Tensor::scalar(1f32)),
        ("scale", Tensor::scalar(8192f32)),
        ("a_zero", Tensor::scalar(0u8)),
        ("b_zero", Tensor::scalar(0i8)),
    ];
    let a = Tensor::from_vec([1, depth], vec![255u8; depth]).unwrap();
    let inputs = BTreeMap::from([("a".to_owned(), a)]);
    for (nodes, made) in products_of_bytes() {
        let named = |(name, _): &&(&str, Tensor)| {
            nodes
                .iter()
                .any(|node| node.input.iter().any(|it| it == name))
        };
        let used: Vec<_> = weights.iter().filter(named).cloned().collect();
        let whole = nodes.len() > 1;
        let proto = model(nodes, &[("a", DType::U8)], &[("y", made)], &used);
        let program = match device.compile(&subgraph(&proto)) {
            Ok(program) => program,
            Err(error) => {
                assert!(error.to_string().contains("VNNI"), "{error}");
                assert!(!whole && !rules::multiplies_bytes_exactly(), "{error}");
                continue;
            }
        };
        let expected = cpu().compile(&subgraph(&proto)).unwrap().run(&inputs);
        let found = program.run(&inputs).unwrap();
        assert_eq!(
            found.outputs["y"].bytes(),
            expected.unwrap().outputs["y"].bytes()
        );
    }
}

/// Whether OpenVINO's rules refuse a model of one node with inputs of floats.
fn openvino_refuses(node: NodeProto) -> bool {
    let names: Vec<String> = node.input.clone();
    let inputs: Vec<(&str, DType)> = names.iter().map(|it| (it.as_str(), DType::F32)).collect();
    let proto = model(vec![node], &inputs, &[("y", DType::F32)], &[]);
    let graph = Graph::from_subgraph(&subgraph(&proto)).unwrap();
    let provider = |name: &str| Provider {
        name: name.to_owned(),
        device: None,
        kind: cpu().profile().kind.clone(),
    };
    let plain = rules::check_graph(&graph, &provider("CPUExecutionProvider"));
    assert!(
        plain.is_ok(),
        "only this provider is known to fail: {plain:?}"
    );
    rules::check_graph(&graph, &provider("OpenVINOExecutionProvider")).is_err()
}

#[test]
fn what_openvino_gets_wrong_is_refused_of_it_alone() {
    let ints = |operator, inputs: &[&str], name, values| {
        with_ints(node(operator, inputs, &["y"]), name, values)
    };
    assert!(openvino_refuses(node("Max", &["a"], &["y"])));
    assert!(!openvino_refuses(node("Max", &["a", "b"], &["y"])));
    assert!(openvino_refuses(node("ReduceMax", &["a"], &["y"])));
    assert!(!openvino_refuses(node("ReduceMin", &["a"], &["y"])));
    assert!(openvino_refuses(node("Shape", &["a"], &["y"])));
    assert!(openvino_refuses(node("Tile", &["a", "b"], &["y"])));
    assert!(openvino_refuses(ints("Split", &["a"], "split", &[3, 0])));
    assert!(!openvino_refuses(ints("Split", &["a"], "split", &[2, 1])));
}

#[test]
fn a_file_that_is_no_library_is_refused_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libonnxruntime.so");
    std::fs::write(&path, "no library").unwrap();
    // A process has one library: another test can open it at any moment.
    let open = |path: &Path| {
        let error = Library::open(path).unwrap_err();
        Some(error).filter(|error| !matches!(error, LoadError::OtherOpen { .. }))
    };
    if let Some(error) = open(&path) {
        assert!(matches!(error, LoadError::NotLoadable { .. }), "{error}");
        assert!(error.to_string().contains("libonnxruntime.so"), "{error}");
    }
    let gone = dir.path().join("gone.so");
    if let Some(error) = open(&gone) {
        assert_eq!(error, LoadError::Missing { path: gone });
    }
}

#[test]
fn each_provider_has_a_kind_and_the_cpus_is_last() {
    let Some(device) = device() else { return };
    let providers = device.library.providers();
    assert_eq!(providers.last().unwrap().name, "CPUExecutionProvider");
    for provider in providers {
        let runs = OnnxRuntime::new(
            device.library.clone(),
            provider.clone(),
            device.profile.clone(),
            NonZeroUsize::MIN,
        );
        // A provider whose processor this machine lacks says so when a model is loaded.
        match runs.compile(&matmul_subgraph()) {
            Ok(program) => {
                let found = program.run(&product_inputs()).unwrap();
                assert_eq!(found.outputs["y"].to_vec::<f32>().unwrap(), [13.0, 24.0]);
                eprintln!("{} ran", provider.title());
            }
            Err(error) => eprintln!("{}: {error}", provider.title()),
        }
    }
}

#[test]
fn a_provider_is_found_by_the_beginning_of_its_title_first() {
    let Some(device) = device() else { return };
    let library = &device.library;
    assert_eq!(library.find_provider("cpu"), Some(library.host_provider()));
    assert_eq!(
        library.find_provider("CPUExecutionProvider"),
        Some(library.host_provider())
    );
    assert_eq!(
        library.find_provider("executionprovider"),
        library.providers().first()
    );
    assert_eq!(library.find_provider(""), library.providers().first());
    assert_eq!(library.find_provider("abacus"), None);
}

/// OpenVINO's provider on the CPU, which says it is another processor: what a test can have of one.
fn elsewhere() -> Option<OnnxRuntime> {
    let device = device()?;
    let mut provider = match device.library.find_provider("openvino:cpu") {
        Some(provider) => provider.clone(),
        None => {
            let must = std::env::var_os("SOUK_TEST_OPENVINO").is_some();
            assert!(
                !must,
                "OpenVINO's CPU does not open in a library that has its provider"
            );
            eprintln!("SKIPPED: this library has no provider of OpenVINO");
            return None;
        }
    };
    assert_eq!(provider.title(), "OpenVINOExecutionProvider:CPU");
    provider.kind = ProcessorKind::Npu {
        family: NpuFamily::IntelVpu,
    };
    let profile = device.profile.clone();
    Some(OnnxRuntime::new(
        device.library,
        provider,
        profile,
        NonZeroUsize::MIN,
    ))
}

/// A model over a matrix of two by two, whose sizes it states: OpenVINO takes no others.
fn squares(nodes: Vec<NodeProto>) -> Subgraph {
    let weight = Tensor::from_vec([2, 2], vec![1.0_f32, 2.0, 3.0, 4.0]).unwrap();
    let mut proto = model(nodes, &[], &[("y", DType::F32)], &[("w", weight)]);
    let sizes = vec![Dimension::new_fixed(2), Dimension::new_fixed(2)];
    let x = ValueInfoProto::new_tensor("x", DType::F32.onnx_code(), Some(sizes));
    proto.graph.as_mut().unwrap().input = vec![x];
    subgraph(&proto)
}

#[test]
fn what_a_provider_leaves_to_the_cpu_is_refused_by_node() {
    let Some(device) = elsewhere() else { return };
    let program = device.compile(&squares(vec![node("MatMul", &["x", "w"], &["y"])]));
    let x = Tensor::from_vec([2, 2], vec![1.0_f32, 0.0, 1.0, 1.0]).unwrap();
    let inputs = BTreeMap::from([("x".to_owned(), x)]);
    let outcome = program.expect("all of it runs there").run(&inputs).unwrap();
    let found = outcome.outputs["y"].to_vec::<f32>().unwrap();
    assert_eq!(found, [1.0, 2.0, 4.0, 6.0]);
    let mut determinant = node("Det", &["z"], &["y"]);
    determinant.name = Some("the determinant".to_owned());
    for nodes in [
        vec![node("MatMul", &["x", "w"], &["z"]), determinant],
        vec![node("Det", &["x"], &["y"])],
    ] {
        let name = node_name(nodes.last().unwrap());
        match device.compile(&squares(nodes)).err() {
            Some(CompileError::Unsupported(refused)) => {
                assert_eq!((&*refused.operator, refused.node), ("Det", name));
                let reason = refused.reason.to_string();
                assert!(reason.contains("leaves it to the host's CPU"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn only_the_hosts_own_processor_has_its_load_and_its_meter() {
    let Some(device) = elsewhere() else { return };
    assert_eq!(device.meter_joules(), None);
    device.utilisation();
    assert_eq!(
        device.utilisation(),
        0.0,
        "nothing ran, whatever the host does"
    );
    let host = device.library.host_provider().clone();
    let cpu = OnnxRuntime::new(
        device.library.clone(),
        host,
        device.profile.clone(),
        NonZeroUsize::MIN,
    );
    assert_eq!(cpu.meter_joules().is_some(), Meter::for_machine().is_some());
}
