//! Tests which nodes are fused: a bias and a function go into the product before them; values that
//! others read stay.

use souk_memory::Tensor;
use souk_testing::{model, node, subgraph};

use super::*;

/// The plan of a graph from `x`, with weights `w` of 4 by 6 and `b` of 6, whose nodes all run on
/// the device.
fn planned(nodes: Vec<NodeProto>, outputs: &[&str]) -> Vec<FusionRole> {
    let weight = |dims: &[usize]| {
        let count = dims.iter().product();
        Tensor::from_vec(dims, vec![0.5f32; count]).unwrap()
    };
    let outputs: Vec<(&str, DType)> = outputs.iter().map(|name| (*name, DType::F32)).collect();
    let weights = [
        ("w", weight(&[4, 6])),
        ("b", weight(&[6])),
        ("short", weight(&[1])),
    ];
    let proto = model(nodes, &[("x", DType::F32)], &outputs, &weights);
    let graph = Graph::from_subgraph(&subgraph(&proto)).unwrap();
    let sides = vec![Side::Device; graph.nodes().len()];
    plan_fusion(&graph, &sides, false)
}

fn head(place: &FusionRole) -> &Fusion {
    match place {
        FusionRole::Head(fused) => fused,
        place => panic!("{place:?}"),
    }
}

#[test]
fn a_bias_and_a_function_go_into_the_product_before_them() {
    let roles = planned(
        vec![
            node("MatMul", &["x", "w"], &["p"]),
            node("Add", &["b", "p"], &["q"]),
            node("Relu", &["q"], &["y"]),
        ],
        &["y"],
    );
    let fused = head(&roles[0]);
    assert_eq!((fused.bias.as_deref(), &*fused.output), (Some("b"), "y"));
    let then = fused.epilogue.then.as_ref().unwrap();
    assert_eq!(then.known, Some(FusedFunction::Relu));
    assert_eq!(roles[1..], [FusionRole::Absorbed, FusionRole::Absorbed]);
}

#[test]
fn what_others_read_stays() {
    let product = || node("MatMul", &["x", "w"], &["p"]);
    let relu = || node("Relu", &["p"], &["y"]);
    let both = planned(vec![product(), relu()], &["y", "p"]);
    assert_eq!(both, [FusionRole::Alone, FusionRole::Alone]);
    let twice = vec![product(), relu(), node("Neg", &["p"], &["z"])];
    assert_eq!(planned(twice, &["y", "z"])[0], FusionRole::Alone);
    let doubled = vec![product(), node("Add", &["p", "p"], &["y"])];
    assert_eq!(planned(doubled, &["y"])[0], FusionRole::Alone);
}

#[test]
fn only_a_weight_as_long_as_the_columns_is_a_bias() {
    let with = |other: &str| {
        let nodes = vec![
            node("MatMul", &["x", "w"], &["p"]),
            node("Add", &["p", other], &["y"]),
        ];
        planned(nodes, &["y"])[0].clone()
    };
    assert_eq!(with("short"), FusionRole::Alone);
    assert_eq!(with("x"), FusionRole::Alone);
    assert!(matches!(with("b"), FusionRole::Head(_)));
    // A Gemm that has its bias keeps it, and takes only the function.
    let nodes = vec![
        node("Gemm", &["x", "w", "b"], &["p"]),
        node("Add", &["p", "b"], &["q"]),
        node("Tanh", &["q"], &["y"]),
    ];
    assert_eq!(planned(nodes, &["y"]), vec![FusionRole::Alone; 3]);
}

#[test]
fn an_exact_gelu_is_not_the_librarys() {
    let with = |approximate: &[u8]| {
        let mut gelu = node("Gelu", &["p"], &["y"]);
        gelu.attribute.push(souk_onnx::AttributeProto {
            name: Some("approximate".to_owned()),
            s: Some(bytes::Bytes::copy_from_slice(approximate)),
            ..Default::default()
        });
        let nodes = vec![node("MatMul", &["x", "w"], &["p"]), gelu];
        let roles = planned(nodes, &["y"]);
        head(&roles[0]).epilogue.then.as_ref().unwrap().known
    };
    assert_eq!(with(b"none"), None);
    assert_eq!(with(b"tanh"), Some(FusedFunction::GeluTanh));
}
