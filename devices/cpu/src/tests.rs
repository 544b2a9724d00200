//! Tests the CPU backend: right results, exact integers, and refusals that name the node.

mod bombs;
mod integers;

use std::collections::BTreeMap;

use proptest::prelude::*;
use souk_memory::{ContentId, DType};
use souk_onnx::{AttributeProto, Dimension, ValueInfoProto, encode_model};
use souk_testing::{
    cpu_profile, custom_node, matmul_model, model, named_tensors, node, product_inputs, subgraph,
    with_int,
};

use super::*;

pub(crate) fn cpu() -> Cpu {
    Cpu::new(cpu_profile(), NonZeroUsize::MIN)
}

#[test]
fn a_product_is_right_and_its_work_known() {
    let cpu = cpu();
    let program = cpu.compile(&subgraph(&matmul_model())).unwrap();
    let inputs = named_tensors(&[("x", Tensor::from_vec([1, 2], vec![10f32, 1.0]).unwrap())]);
    let outcome = program.run(&inputs).unwrap();
    assert_eq!(outcome.outputs["y"].to_vec::<f32>().unwrap(), [13.0, 24.0]);
    assert_eq!(outcome.operators, 1);
    let work = cpu.work_of(&subgraph(&matmul_model()), &inputs).unwrap();
    assert_eq!(work[0].operations, 2 * 2 * 2);
}

#[test]
fn weights_outside_the_model_are_bound_by_id() {
    let weight = Tensor::from_vec([64, 8], (0..512).map(|it| it as f32).collect()).unwrap();
    let id = ContentId::for_content(weight.bytes());
    let mut model = matmul_model();
    let initializer = &mut model.graph.as_mut().unwrap().initializer[0];
    *initializer = souk_onnx::TensorProto {
        name: Some("w".to_owned()),
        dims: vec![64, 8],
        data_type: Some(1),
        data_location: Some(souk_onnx::DataLocation::External as i32),
        external_data: vec![
            souk_onnx::StringStringEntryProto::new("location", format!("blake3:{id}")),
            souk_onnx::StringStringEntryProto::new("offset", "0"),
            souk_onnx::StringStringEntryProto::new("length", "2048"),
        ],
        ..souk_onnx::TensorProto::default()
    };
    let without = subgraph(&model);
    let missing = cpu().compile(&without).err().unwrap();
    assert!(matches!(missing, CompileError::WeightMissing { name, .. } if name == "w"));
    let weights = BTreeMap::from([(id, weight.bytes().clone())]);
    let program = cpu().compile(&Subgraph { weights, ..without }).unwrap();
    let mut row = vec![0f32; 64];
    row[63] = 1.0;
    let inputs = named_tensors(&[("x", Tensor::from_vec([1, 64], row).unwrap())]);
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
    let run = |value: i64| program.run(&named_tensors(&[("ids", Tensor::scalar(value))]));
    assert_eq!(run(7).unwrap().outputs["y"].to_vec::<f32>().unwrap(), [7.0]);
    let large = run((1 << 40) + (1 << 20)).unwrap();
    assert_eq!(
        large.outputs["y"].to_vec::<f32>().unwrap(),
        [1_099_512_676_352.0]
    );
}

#[test]
fn inputs_that_do_not_fit_are_named() {
    let program = cpu().compile(&subgraph(&matmul_model())).unwrap();
    let missing = program.run(&BTreeMap::new()).unwrap_err();
    assert_eq!(missing.to_string(), "input \"x\" (f32) is missing");
    let unknown = program
        .run(&named_tensors(&[("z", Tensor::scalar(1f32))]))
        .unwrap_err();
    assert_eq!(unknown.to_string(), "there is no input \"z\"; there are: x");
    let typed = program
        .run(&named_tensors(&[("x", Tensor::scalar(1i64))]))
        .unwrap_err();
    assert_eq!(typed.to_string(), "input \"x\" should be f32, but is i64");
    let shaped = program.run(&named_tensors(&[(
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
        let mut bytes = subgraph(&matmul_model()).model.to_vec();
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

mod wasm {
    use souk_onnx::ModelProto;
    use souk_testing::median_kernel;

    use super::*;

    fn median_model(module: Vec<u8>) -> ModelProto {
        let length = module.len();
        let kernel = Tensor::from_vec([length], module).unwrap();
        let nodes = vec![
            node("Neg", &["x"], &["a"]),
            custom_node("Wasm", &["kernel", "a"], &["b"], &[1]),
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
        let model = median_model(median_kernel());
        let given = Tensor::from_vec([1, 5], vec![1.0f32, 9.0, 2.0, -7.0, 3.0]).unwrap();
        let inputs = BTreeMap::from([("x".to_owned(), given)]);
        let subgraph = Subgraph {
            model: encode_model(&model),
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
            model: encode_model(&median_model(b"not a module".to_vec())),
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
    let nodes = vec![custom_node("Wgsl", &["kernel", "x"], &["y"], &[1])];
    let model = model(
        nodes,
        &[("x", DType::F32)],
        &[("y", DType::F32)],
        &[("kernel", kernel)],
    );
    let subgraph = Subgraph {
        model: encode_model(&model),
        ..Subgraph::default()
    };
    let refused = cpu().compile(&subgraph).err().unwrap().to_string();
    assert!(refused.contains("ai.souk.Wgsl"), "{refused}");
}
