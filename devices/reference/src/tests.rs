//! Tests the reference kernels with expected values that were worked out by hand, and with inputs
//! that they must refuse.

use super::call::KernelError;
use super::*;

fn run(node: NodeProto, inputs: &[Tensor], opset: i64) -> Result<Vec<Tensor>, KernelError> {
    let scope = Scope::new();
    let inputs = inputs.iter().cloned().map(Some).collect();
    let entry = kernel_entry(&node).unwrap();
    (entry.run)(&Call {
        node: &node,
        inputs,
        scope: &scope,
        opset,
    })
}

fn node(operator: &str) -> NodeProto {
    NodeProto {
        op_type: Some(operator.to_owned()),
        output: vec!["y".to_owned()],
        ..NodeProto::default()
    }
}

#[test]
fn integers_of_64_bits_are_exact() {
    let large = Tensor::from_vec([2], vec![i64::MAX - 1, i64::MIN]).unwrap();
    let one = Tensor::from_vec([1], vec![1i64]).unwrap();
    let sum = run(node("Add"), &[large.clone(), one.clone()], 21).unwrap();
    assert_eq!(sum[0].to_vec::<i64>().unwrap(), [i64::MAX, i64::MIN + 1]);
    let wrapped = run(node("Sub"), &[large, one], 21).unwrap();
    assert_eq!(
        wrapped[0].to_vec::<i64>().unwrap(),
        [i64::MAX - 2, i64::MAX]
    );
}

#[test]
fn a_division_of_integers_by_zero_is_an_error() {
    let one = Tensor::scalar(1i32);
    assert_eq!(
        run(node("Div"), &[one.clone(), Tensor::scalar(0i32)], 21),
        Err(KernelError::DivisionByZero)
    );
}

#[test]
fn shapes_that_do_not_fit_are_an_error() {
    let two = Tensor::from_vec([2], vec![1f32, 2.0]).unwrap();
    let three = Tensor::from_vec([3], vec![1f32, 2.0, 3.0]).unwrap();
    assert_eq!(
        run(node("Add"), &[two, three], 21),
        Err(KernelError::Shapes(vec![2], vec![3]))
    );
}

#[test]
fn a_huge_result_is_refused_before_it_is_made() {
    let dims = Tensor::from_vec([3], vec![1i64 << 20; 3]).unwrap();
    let refused = run(node("ConstantOfShape"), &[dims], 21);
    assert_eq!(refused, Err(KernelError::TooLarge(1 << 60)));
}

/// A tree of one branch whose children are these nodes, and a leaf.
fn tree(yes: i64, no: i64) -> NodeProto {
    NodeProto::for_classical_operator("TreeEnsembleRegressor", &["x"], "y")
        .with("nodes_treeids", vec![0i64; 2])
        .with("nodes_nodeids", vec![0i64, 1])
        .with(
            "nodes_modes",
            ["BRANCH_LEQ", "LEAF"].map(bytes::Bytes::from).to_vec(),
        )
        .with("nodes_featureids", vec![0i64; 2])
        .with("nodes_values", vec![0.5f32, 0.0])
        .with("nodes_truenodeids", vec![yes, 0])
        .with("nodes_falsenodeids", vec![no, 0])
        .with("target_treeids", vec![0i64])
        .with("target_nodeids", vec![1i64])
        .with("target_ids", vec![0i64])
        .with("target_weights", vec![2.0f32])
}

#[test]
fn a_cyclic_tree_has_no_root_to_begin_at() {
    let one = Tensor::from_vec([1, 1], vec![0f32]).unwrap();
    let found = run(tree(1, 1), &[one], 21).unwrap();
    assert_eq!(found[0].to_vec::<f32>().unwrap(), [2.0]);
    for circle in [tree(0, 1), tree(1, 0), tree(0, 0)] {
        // A node that is a child is no root, so the cycle cannot be reached.
        let roots = trees::Ensemble::from_node(&circle).unwrap().roots;
        assert!(roots.iter().all(|it| matches!(it, trees::Child::Leaf(_))));
    }
    assert_eq!(
        trees::Ensemble::from_node(&tree(7, 1)),
        Err("nodes_truenodeids")
    );
}

#[test]
fn a_resize_with_an_unknown_coordinate_transformation_is_refused() {
    let image = Tensor::from_vec([1, 1, 4, 4], (0..16).map(|at| at as f32).collect()).unwrap();
    let scales = Tensor::from_vec([4], vec![1f32, 1.0, 0.75, 0.75]).unwrap();
    let mut scope = Scope::from([("x".to_owned(), image), ("s".to_owned(), scales)]);
    let resize = |transformation: &str| {
        NodeProto::for_operator("Resize", &["x", "", "s"], "y")
            .with("mode", "nearest")
            .with("nearest_mode", "floor")
            .with("coordinate_transformation_mode", transformation)
    };
    // As tf2onnx writes it, whatever the version.
    run_nodes(&[resize("tf_half_pixel_for_nn")], &mut scope, 18).unwrap();
    let expected = [0.0, 2.0, 3.0, 8.0, 10.0, 11.0, 12.0, 14.0, 15.0];
    assert_eq!(scope["y"].to_vec::<f32>().unwrap(), expected);
    let unknown = check_node(&resize("somehow"), &BTreeMap::new());
    let attribute = "coordinate_transformation_mode";
    assert_eq!(unknown, Err(UnsupportedReason::Attribute(attribute)));
}
