//! The CPU backend: right results, exact integers, refusals by name.

mod bombs;
mod integers;

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use souk_memory::{ContentId, DType};

use super::*;
use crate::onnx::{
    AttributeProto, AttributeType, Dimension, GraphProto, ModelProto, OperatorSetIdProto,
    ValueInfoProto, encode, tensor_to_proto,
};
use crate::profile::Memory;
use crate::taxonomy::{CpuIsa, Kind, MemoryKind};

pub(crate) fn cpu() -> Cpu {
    let profile = Profile {
        name: "test-cpu".to_owned(),
        vendor: String::new(),
        model: String::new(),
        kind: Kind::Cpu { isa: CpuIsa::Other },
        emulated: false,
        memory: Memory {
            kind: MemoryKind::Unknown,
            bytes: 1 << 30,
            bytes_per_second: 1e10,
        },
        throughput: BTreeMap::new(),
        launch: Duration::ZERO,
        power: None,
        traits: Vec::new(),
        source: "a test".to_owned(),
    };
    Cpu::new(profile, NonZeroUsize::MIN)
}

pub(crate) fn node(operator: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: Some(operator.to_owned()),
        name: Some(format!("{operator}_node")),
        input: inputs.iter().map(ToString::to_string).collect(),
        output: outputs.iter().map(ToString::to_string).collect(),
        ..NodeProto::default()
    }
}

pub(crate) fn model(
    nodes: Vec<NodeProto>,
    inputs: &[(&str, DType)],
    outputs: &[(&str, DType)],
    weights: &[(&str, Tensor)],
) -> ModelProto {
    let value =
        |(name, dtype): &(&str, DType)| ValueInfoProto::tensor(*name, dtype.onnx_code(), None);
    let initializer = weights
        .iter()
        .map(|(name, tensor)| tensor_to_proto(*name, tensor))
        .collect();
    ModelProto {
        ir_version: Some(10),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(21),
        }],
        graph: Some(GraphProto {
            node: nodes,
            name: Some("test".to_owned()),
            input: inputs.iter().map(value).collect(),
            output: outputs.iter().map(value).collect(),
            initializer,
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

pub(crate) fn subgraph(model: &ModelProto) -> Subgraph {
    Subgraph {
        model: encode(model),
        weights: BTreeMap::new(),
    }
}

pub(crate) fn with_ints(mut node: NodeProto, name: &str, ints: &[i64]) -> NodeProto {
    node.attribute.push(AttributeProto {
        name: Some(name.to_owned()),
        ints: ints.to_vec(),
        r#type: Some(AttributeType::Ints as i32),
        ..AttributeProto::default()
    });
    node
}

pub(crate) fn with_int(mut node: NodeProto, name: &str, int: i64) -> NodeProto {
    node.attribute.push(AttributeProto {
        name: Some(name.to_owned()),
        i: Some(int),
        r#type: Some(AttributeType::Int as i32),
        ..AttributeProto::default()
    });
    node
}

/// Values between -1 and 1 that differ by `seed`.
pub(crate) fn noise(dims: &[usize], seed: u64) -> Tensor {
    let count = dims.iter().product();
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..count).map(|_| next()).collect();
    Tensor::from_vec(dims, values).unwrap()
}

/// The model with images of known rank, which its builder leaves open.
pub(crate) fn ranked(mut model: ModelProto, inputs: &[(&str, &[usize])]) -> Subgraph {
    let graph = model.graph.as_mut().unwrap();
    for (name, dims) in inputs {
        let dims = dims.iter().map(|&size| Dimension::fixed(size as i64));
        let value = graph
            .input
            .iter_mut()
            .find(|it| it.name() == *name)
            .unwrap();
        let code = DType::F32.onnx_code();
        *value = ValueInfoProto::tensor(*name, code, Some(dims.collect()));
    }
    subgraph(&model)
}

/// Fails where a result is further off than `tolerance`, relative to the largest.
pub(crate) fn assert_near(
    found: &BTreeMap<String, Tensor>,
    expected: &BTreeMap<String, Tensor>,
    tolerance: f32,
    what: &str,
) {
    for (name, expected) in expected {
        assert_eq!(found[name].dims(), expected.dims(), "{what} {name}");
        let expected = expected.to_vec::<f32>().unwrap();
        let found = found[name].to_vec::<f32>().unwrap();
        let largest = expected
            .iter()
            .fold(1e-3f32, |it, value| it.max(value.abs()));
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let off = (found - expected).abs() / largest;
            assert!(
                off <= tolerance,
                "{what} {name}[{at}]: {found}, not {expected}"
            );
        }
    }
}

pub(crate) fn named(tensors: &[(&str, Tensor)]) -> BTreeMap<String, Tensor> {
    tensors
        .iter()
        .map(|(name, tensor)| ((*name).to_owned(), tensor.clone()))
        .collect()
}

fn matmul() -> ModelProto {
    let weight = Tensor::from_vec([2, 2], vec![1f32, 2.0, 3.0, 4.0]).unwrap();
    let nodes = vec![node("MatMul", &["x", "w"], &["y"])];
    model(
        nodes,
        &[("x", DType::F32)],
        &[("y", DType::F32)],
        &[("w", weight)],
    )
}

pub(crate) fn product() -> Subgraph {
    subgraph(&matmul())
}

pub(crate) fn product_inputs() -> BTreeMap<String, Tensor> {
    named(&[("x", Tensor::from_vec([1, 2], vec![10f32, 1.0]).unwrap())])
}

#[test]
fn a_product_is_right_and_its_work_known() {
    let cpu = cpu();
    let program = cpu.compile(&subgraph(&matmul())).unwrap();
    let inputs = named(&[("x", Tensor::from_vec([1, 2], vec![10f32, 1.0]).unwrap())]);
    let outcome = program.run(&inputs).unwrap();
    assert_eq!(outcome.outputs["y"].to_vec::<f32>().unwrap(), [13.0, 24.0]);
    assert_eq!(outcome.operators, 1);
    let work = cpu.work_of(&subgraph(&matmul()), &inputs).unwrap();
    assert_eq!(work[0].operations, 2 * 2 * 2);
}

#[test]
fn weights_outside_the_model_are_bound_by_id() {
    let weight = Tensor::from_vec([64, 8], (0..512).map(|it| it as f32).collect()).unwrap();
    let id = ContentId::of(weight.bytes());
    let mut model = matmul();
    let initializer = &mut model.graph.as_mut().unwrap().initializer[0];
    *initializer = crate::onnx::TensorProto {
        name: Some("w".to_owned()),
        dims: vec![64, 8],
        data_type: Some(1),
        data_location: Some(crate::onnx::DataLocation::External as i32),
        external_data: vec![
            crate::onnx::StringStringEntryProto::new("location", format!("blake3:{id}")),
            crate::onnx::StringStringEntryProto::new("offset", "0"),
            crate::onnx::StringStringEntryProto::new("length", "2048"),
        ],
        ..crate::onnx::TensorProto::default()
    };
    let without = subgraph(&model);
    let missing = cpu().compile(&without).err().unwrap();
    assert!(matches!(missing, CompileError::WeightMissing { name, .. } if name == "w"));
    let weights = BTreeMap::from([(id, weight.bytes().clone())]);
    let program = cpu().compile(&Subgraph { weights, ..without }).unwrap();
    let mut row = vec![0f32; 64];
    row[63] = 1.0;
    let inputs = named(&[("x", Tensor::from_vec([1, 64], row).unwrap())]);
    let outputs = program.run(&inputs).unwrap().outputs;
    let expected: Vec<f32> = (504..512).map(|it| it as f32).collect();
    assert_eq!(outputs["y"].to_vec::<f32>().unwrap(), expected);
}

#[test]
fn an_unknown_operator_is_named_with_its_node() {
    let nodes = vec![node("Frobnicate", &["x"], &["y"])];
    let model = model(nodes, &[("x", DType::F32)], &[("y", DType::F32)], &[]);
    let error = cpu().compile(&subgraph(&model)).err().unwrap();
    assert_eq!(
        error.to_string(),
        "operator Frobnicate (node \"Frobnicate_node\") is not supported: the device has no such \
         operator"
    );
}

#[test]
fn integers_beyond_32_bits_are_exact() {
    let mut cast = node("Cast", &["ids"], &["y"]);
    cast.attribute.push(AttributeProto {
        name: Some("to".to_owned()),
        i: Some(1),
        ..AttributeProto::default()
    });
    let model = model(
        vec![cast],
        &[("ids", DType::I64)],
        &[("y", DType::F32)],
        &[],
    );
    let program = cpu().compile(&subgraph(&model)).unwrap();
    let run = |value: i64| program.run(&named(&[("ids", Tensor::scalar(value))]));
    assert_eq!(run(7).unwrap().outputs["y"].to_vec::<f32>().unwrap(), [7.0]);
    let large = run((1 << 40) + (1 << 20)).unwrap();
    assert_eq!(
        large.outputs["y"].to_vec::<f32>().unwrap(),
        [1_099_512_676_352.0]
    );
}

#[test]
fn inputs_that_do_not_fit_are_named() {
    let program = cpu().compile(&subgraph(&matmul())).unwrap();
    let missing = program.run(&BTreeMap::new()).unwrap_err();
    assert_eq!(missing.to_string(), "input \"x\" (f32) is missing");
    let unknown = program
        .run(&named(&[("z", Tensor::scalar(1f32))]))
        .unwrap_err();
    assert_eq!(unknown.to_string(), "there is no input \"z\"; there are: x");
    let typed = program
        .run(&named(&[("x", Tensor::scalar(1i64))]))
        .unwrap_err();
    assert_eq!(typed.to_string(), "input \"x\" should be f32, but is i64");
    let shaped = program.run(&named(&[(
        "x",
        Tensor::from_vec([3], vec![0f32; 3]).unwrap(),
    )]));
    assert_eq!(
        shaped.unwrap_err().to_string(),
        "operator MatMul (node \"MatMul_node\") failed: its shapes do not fit: [1, 3] and [2, 2]"
    );
}

#[test]
fn sizes_beyond_any_machine_are_an_error_not_an_abort() {
    let sizes = Tensor::from_vec([2], vec![1i64 << 20; 2]).unwrap();
    let nodes = vec![node("ConstantOfShape", &["sizes"], &["y"])];
    let model = model(nodes, &[], &[("y", DType::F32)], &[("sizes", sizes)]);
    let program = cpu().compile(&subgraph(&model)).unwrap();
    let error = program.run(&BTreeMap::new()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "operator ConstantOfShape (node \"ConstantOfShape_node\") failed: its result would have \
         1099511627776 elements"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_change_of_a_model_makes_the_backend_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = subgraph(&matmul()).model.to_vec();
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        let changed = Subgraph { model: bytes.into(), weights: BTreeMap::new() };
        if let Ok(program) = cpu().compile(&changed) {
            let _ = program.run(&product_inputs());
        }
    }
}

/// A node whose kernel is the weight `kernel`.
pub(crate) fn custom(
    operator: &str,
    inputs: &[&str],
    outputs: &[&str],
    types: &[i64],
) -> NodeProto {
    let mut node = node(operator, inputs, outputs);
    node.domain = Some(crate::custom::DOMAIN.to_owned());
    node.attribute.push(AttributeProto {
        name: Some("output_types".to_owned()),
        ints: types.to_vec(),
        ..AttributeProto::default()
    });
    node
}

#[cfg(feature = "wasm")]
mod wasm {
    use super::*;
    use crate::wasm::tests::median;

    fn median_model(module: Vec<u8>) -> ModelProto {
        let length = module.len();
        let kernel = Tensor::from_vec([length], module).unwrap();
        let nodes = vec![
            node("Neg", &["x"], &["a"]),
            custom("Wasm", &["kernel", "a"], &["b"], &[1]),
            node("Neg", &["b"], &["y"]),
        ];
        model(
            nodes,
            &[("x", DType::F32)],
            &[("y", DType::F32)],
            &[("kernel", kernel)],
        )
    }

    #[test]
    fn a_buyers_module_runs_among_other_nodes() {
        let model = median_model(median());
        let given = Tensor::from_vec([1, 5], vec![1.0f32, 9.0, 2.0, -7.0, 3.0]).unwrap();
        let inputs = BTreeMap::from([("x".to_owned(), given)]);
        let subgraph = Subgraph {
            model: encode(&model),
            ..Subgraph::default()
        };
        let program = cpu().compile(&subgraph).unwrap();
        let made = program.run(&inputs).unwrap().outputs;
        assert_eq!(
            made["y"].to_vec::<f32>().unwrap(),
            [1.0, 2.0, 2.0, 2.0, 3.0]
        );
        let work = cpu().work_of(&subgraph, &inputs).unwrap();
        assert_eq!(
            work[1].dtype,
            Some(DType::F32),
            "the kernel is not what it computes with"
        );
    }

    #[test]
    fn a_module_that_is_none_is_refused_with_its_node() {
        let subgraph = Subgraph {
            model: encode(&median_model(b"not a module".to_vec())),
            ..Subgraph::default()
        };
        let refused = cpu().compile(&subgraph).err().unwrap().to_string();
        assert!(
            refused.contains("Wasm_node") && refused.contains("malformed"),
            "{refused}"
        );
    }
}

#[test]
fn a_kernel_in_wgsl_is_refused_by_name() {
    let kernel = Tensor::from_vec([1], vec![0u8]).unwrap();
    let nodes = vec![custom("Wgsl", &["kernel", "x"], &["y"], &[1])];
    let model = model(
        nodes,
        &[("x", DType::F32)],
        &[("y", DType::F32)],
        &[("kernel", kernel)],
    );
    let subgraph = Subgraph {
        model: encode(&model),
        ..Subgraph::default()
    };
    let refused = cpu().compile(&subgraph).err().unwrap().to_string();
    assert!(refused.contains("ai.souk.Wgsl"), "{refused}");
}
