//! Tests sizes in a run's inputs that exceed any memory: the operator must refuse them before it
//! allocates. An allocation that fails would end the process, and these tests with it.

use super::*;

/// Elements of a side: of two of them a tensor has four tebibytes.
const SIDE: usize = 1 << 20;

fn sizes(values: &[i64]) -> Tensor {
    Tensor::from_vec([values.len()], values.to_vec()).unwrap()
}

fn ones(dims: &[usize]) -> Tensor {
    Tensor::from_vec(dims, vec![1f32; dims.iter().product()]).unwrap()
}

fn refused(nodes: Vec<NodeProto>, inputs: &[(&str, Tensor)], weights: &[(&str, Tensor)]) {
    let named = nodes.last().unwrap().op_type().to_owned();
    let ports: Vec<(&str, DType)> = inputs
        .iter()
        .map(|(name, it)| (*name, it.dtype()))
        .collect();
    let mut proto = model(nodes, &ports, &[("y", DType::F32)], weights);
    // Their ranks are known, so that more is left to the quick engines.
    for value in &mut proto.graph.as_mut().unwrap().input {
        let dims = inputs
            .iter()
            .find(|it| it.0 == value.name())
            .unwrap()
            .1
            .dims();
        let open = vec![Dimension::default(); dims.len()];
        let code = value.tensor_type().unwrap().elem_type();
        *value = ValueInfoProto::new_tensor(value.name().to_owned(), code, Some(open));
    }
    let program = cpu().compile(&subgraph(&proto)).unwrap();
    let given = inputs
        .iter()
        .map(|(name, it)| ((*name).to_owned(), it.clone()));
    let error = program.run(&given.collect()).unwrap_err().to_string();
    assert!(
        error.contains(&named) && error.contains("elements"),
        "{error}"
    );
}

#[test]
fn sizes_given_in_a_run_are_refused() {
    let huge = || ("s", sizes(&[1 << 20, 1 << 20]));
    let one = || ("x", ones(&[1, 1]));
    refused(
        vec![node("ConstantOfShape", &["s"], &["y"])],
        &[huge()],
        &[],
    );
    refused(
        vec![node("Expand", &["x", "s"], &["y"])],
        &[one(), huge()],
        &[],
    );
    refused(
        vec![node("Tile", &["x", "s"], &["y"])],
        &[one(), huge()],
        &[],
    );
    let pads = ("s", sizes(&[1 << 20, 0, 1 << 20, 1 << 20]));
    refused(vec![node("Pad", &["x", "s"], &["y"])], &[one(), pads], &[]);
    let scales = ("s", Tensor::from_vec([2], vec![1e6f32; 2]).unwrap());
    refused(
        vec![node("Resize", &["x", "", "s"], &["y"])],
        &[one(), scales],
        &[],
    );
    let number = |name, value: f32| (name, Tensor::scalar(value));
    let ends = [number("a", 0.0), number("b", 1e12), number("c", 1.0)];
    refused(vec![node("Range", &["a", "b", "c"], &["y"])], &ends, &[]);
    let depth = ("d", Tensor::scalar(1i64 << 40));
    let hot = [("x", sizes(&[1])), depth, ("v", ones(&[2]))];
    refused(vec![node("OneHot", &["x", "d", "v"], &["y"])], &hot, &[]);
}

#[test]
fn sizes_made_in_a_run_are_refused() {
    let nodes = vec![
        node("Shape", &["x"], &["s"]),
        node("Concat", &["s", "s"], &["t"]),
        node("Expand", &["o", "t"], &["y"]),
    ];
    let nodes: Vec<NodeProto> = nodes
        .into_iter()
        .map(|node| {
            if node.op_type() == "Concat" {
                with_int(node, "axis", 0)
            } else {
                node
            }
        })
        .collect();
    refused(nodes, &[("x", ones(&[SIDE])), ("o", ones(&[1]))], &[]);
    let double = |from: &str, to: &str| with_int(node("Concat", &[from, from], &[to]), "axis", 0);
    let names: Vec<String> = (0..40).map(|at| format!("v{at}")).collect();
    let mut doubled: Vec<NodeProto> = names.windows(2).map(|it| double(&it[0], &it[1])).collect();
    doubled.push(double("v39", "y"));
    refused(doubled, &[("v0", ones(&[1]))], &[]);
}

#[test]
fn products_and_pairs_of_vectors_are_refused() {
    let (column, row) = (|| ("a", ones(&[SIDE, 1])), || ("b", ones(&[1, SIDE])));
    for operator in ["Add", "Div", "Max", "Mean", "Pow", "Sum"] {
        refused(
            vec![node(operator, &["a", "b"], &["y"])],
            &[column(), row()],
            &[],
        );
    }
    refused(
        vec![node("MatMul", &["a", "b"], &["y"])],
        &[column(), row()],
        &[],
    );
    refused(
        vec![node("Gemm", &["a", "b"], &["y"])],
        &[column(), row()],
        &[],
    );
    let gathered = vec![node("Gather", &["b", "i"], &["y"])];
    let many = Tensor::from_vec([SIDE], vec![0i64; SIDE]).unwrap();
    refused(gathered, &[row(), ("i", many)], &[]);
}

#[test]
fn products_with_weights_are_refused() {
    // A product with a weight is for kernels of our own.
    let wide = ones(&[1, SIDE]);
    let (given, weights) = ([("a", ones(&[SIDE, 1]))], [("w", wide)]);
    refused(vec![node("MatMul", &["a", "w"], &["y"])], &given, &weights);
    let shift = ("b", ones(&[SIDE]));
    let nodes = vec![
        node("MatMul", &["a", "w"], &["p"]),
        node("Add", &["p", "b"], &["y"]),
    ];
    let weights = [weights[0].clone(), shift];
    let program = {
        let mut proto = model(nodes, &[("a", DType::F32)], &[("y", DType::F32)], &weights);
        let dims = vec![Dimension::default(); 2];
        let code = DType::F32.onnx_code();
        let graph = proto.graph.as_mut().unwrap();
        graph.input[0] = ValueInfoProto::new_tensor("a", code, Some(dims));
        cpu().compile(&subgraph(&proto)).unwrap()
    };
    let given = BTreeMap::from([("a".to_owned(), given[0].1.clone())]);
    let error = program.run(&given).unwrap_err().to_string();
    assert!(error.contains("elements"), "{error}");
}
