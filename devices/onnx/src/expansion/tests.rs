//! Tests the expansion: which standard ONNX operators replace the operators of other sets, such as
//! those of classical machine learning (`ai.onnx.ml`).

use bytes::Bytes;

use super::*;
use crate::{AttributeProto, DataType, NodeProto, TensorProto, ValueInfoProto};

fn node(domain: &str, operator: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        domain: Some(domain.to_owned()),
        output: outputs.iter().map(ToString::to_string).collect(),
        ..NodeProto::for_operator(operator, inputs, "")
    }
}

fn value(name: &str, elem: DataType, rank: usize) -> ValueInfoProto {
    let dims = vec![crate::Dimension::default(); rank];
    ValueInfoProto::new_tensor(name, elem as i32, Some(dims))
}

fn model(
    nodes: Vec<NodeProto>,
    inputs: &[ValueInfoProto],
    outputs: &[ValueInfoProto],
) -> ModelProto {
    ModelProto {
        graph: Some(GraphProto {
            node: nodes,
            input: inputs.to_vec(),
            output: outputs.to_vec(),
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

/// The operators of a model once written out, constants apart, and the name of the last value.
fn written(mut model: ModelProto) -> (Vec<String>, String) {
    expand_model(&mut model).unwrap();
    let nodes = model.graph.unwrap().node;
    let named = nodes.iter().filter(|node| node.op_type() != "Constant");
    let operators = named.map(|node| node.op_type().to_owned()).collect();
    (operators, nodes.last().unwrap().output[0].clone())
}

fn texts(texts: &[&str]) -> Vec<Bytes> {
    texts
        .iter()
        .map(|text| Bytes::from(text.to_string()))
        .collect()
}

#[test]
fn a_scaler_is_a_difference_and_a_product() {
    let scaler = node(CLASSICAL_DOMAIN, "Scaler", &["x"], &["y"])
        .with("offset", vec![1.0f32])
        .with("scale", vec![2.0f32]);
    let x = value("x", DataType::Float, 2);
    let (operators, last) = written(model(vec![scaler.clone()], &[x], &[]));
    assert_eq!(operators, ["Sub", "Mul"]);
    assert_eq!(last, "y");
    let whole = value("x", DataType::Int64, 2);
    let (operators, _) = written(model(vec![scaler], &[whole], &[]));
    assert_eq!(operators, ["Cast", "Sub", "Mul"]);
}

#[test]
fn what_is_not_known_stays_as_it_is() {
    let beam = node(RUNTIME_DOMAIN, "BeamSearch", &["x"], &["y"]);
    let x = value("x", DataType::Float, 2);
    let mut given = model(vec![beam.clone()], &[x], &[]);
    expand_model(&mut given).unwrap();
    assert_eq!(given.graph.unwrap().node, [beam]);
}

#[test]
fn a_model_of_other_sets_alone_gets_a_version_of_the_standard_one() {
    let mut given = model(Vec::new(), &[], &[]);
    expand_model(&mut given).unwrap();
    assert_eq!(given.opset(""), Some(OPSET_DEFAULT));
}

#[test]
fn a_product_is_transposed_by_its_rank() {
    let product = node(RUNTIME_DOMAIN, "FusedMatMul", &["a", "b"], &["y"])
        .with("transB", 1i64)
        .with("alpha", 0.5f32);
    let inputs = [
        value("a", DataType::Float, 3),
        value("b", DataType::Float, 3),
    ];
    let mut given = model(vec![product.clone()], &inputs, &[]);
    expand_model(&mut given).unwrap();
    let nodes = given.graph.unwrap().node;
    assert_eq!(nodes[0].ints("perm"), Some(&[0, 2, 1][..]));
    let open = [inputs[0].clone(), ValueInfoProto::new_tensor("b", 1, None)];
    let (operators, _) = written(model(vec![product], &open, &[]));
    assert_eq!(operators, ["Einsum", "MatMul", "Mul"]);
}

#[test]
fn one_value_for_two_outputs_is_made_once() {
    let skip = node(
        RUNTIME_DOMAIN,
        "SkipLayerNormalization",
        &["x", "z", "g"],
        &["y", "", "", "s"],
    );
    let inputs = ["x", "z", "g"].map(|name| value(name, DataType::Float, 3));
    let mut given = model(vec![skip], &inputs, &[]);
    expand_model(&mut given).unwrap();
    let nodes = given.graph.unwrap().node;
    assert_eq!(nodes.len(), 2);
    assert_eq!(nodes[0].output, ["s"]);
    assert_eq!(nodes[1].input, ["s", "g"]);
}

#[test]
fn texts_become_numbers_and_are_told_again() {
    let encoder = node(CLASSICAL_DOMAIN, "LabelEncoder", &["town"], &["code"])
        .with("keys_strings", texts(&["Bonn", "Lima"]))
        .with("values_int64s", vec![5i64, 6]);
    let label = node(CLASSICAL_DOMAIN, "LabelEncoder", &["code"], &["label"])
        .with("keys_int64s", vec![5i64, 6])
        .with("values_strings", texts(&["Lima", "north"]));
    let outputs = [value("label", DataType::String, 1)];
    let mut given = model(
        vec![encoder, label],
        &[value("town", DataType::String, 1)],
        &outputs,
    );
    let mut meanings = expand_model(&mut given).unwrap();
    let graph = given.graph.unwrap();
    let elem = |value: &ValueInfoProto| value.tensor_type().unwrap().elem_type();
    assert_eq!(elem(&graph.input[0]), DataType::Int64 as i32);
    assert_eq!(elem(&graph.output[0]), DataType::Int64 as i32);
    assert!(meanings.texts.inputs.contains("town") && meanings.texts.outputs.contains("label"));
    let words = &mut meanings.texts.words;
    assert_eq!(
        [words.intern_string("Bonn"), words.intern_string("Lima")],
        [0, 1]
    );
    let told = words.intern_string("north");
    assert_eq!(words.find_string(told), Some("north"));
    assert_eq!(words.intern_string("Rome"), words.intern_string("Rome"));
    assert_eq!(words.find_string(99), None);
}

#[test]
fn no_number_becomes_a_text() {
    let written = NodeProto::for_operator("Cast", &["n"], "y").with("to", DataType::String as i64);
    let inputs = [value("n", DataType::Int64, 1)];
    let error = expand_model(&mut model(vec![written], &inputs, &[])).unwrap_err();
    let (node, operator) = ("y".to_owned(), "Cast".to_owned());
    assert_eq!(error, ExpansionError::Text { node, operator });
}

#[test]
fn maps_become_a_matrix_with_named_columns() {
    let zip = node(CLASSICAL_DOMAIN, "ZipMap", &["p"], &["maps"])
        .with("classlabels_strings", texts(&["cat", "dog"]));
    let mut given = model(
        vec![zip],
        &[value("p", DataType::Float, 2)],
        &[value("maps", DataType::Undefined, 0)],
    );
    let meanings = expand_model(&mut given).unwrap();
    let labels = ["cat", "dog"].map(|text| Label::Text(text.to_owned()));
    assert_eq!(meanings.columns["maps"], labels);
    let shape = given.graph.unwrap().output[0]
        .tensor_type()
        .unwrap()
        .shape
        .clone();
    assert_eq!(shape, None);
}

#[test]
fn weights_of_four_bits_keep_their_bytes() {
    let product = node(RUNTIME_DOMAIN, "MatMulNBits", &["x", "b", "s"], &["y"])
        .with("K", 32i64)
        .with("N", 2i64)
        .with("block_size", 16i64);
    let mut given = model(vec![product], &[value("x", DataType::Float, 2)], &[]);
    let bytes = Bytes::from((0..32).collect::<Vec<u8>>());
    given.graph.as_mut().unwrap().initializer = vec![TensorProto {
        name: Some("b".to_owned()),
        dims: vec![2, 2, 8],
        data_type: Some(DataType::Uint8 as i32),
        raw_data: Some(bytes.clone()),
        ..TensorProto::default()
    }];
    expand_model(&mut given).unwrap();
    let nodes = given.graph.unwrap().node;
    let weights = nodes[0].tensor("value").unwrap();
    assert_eq!(weights.dims, [2, 32]);
    assert_eq!(weights.data_type(), DataType::Uint4 as i32);
    assert_eq!(weights.raw_data, Some(bytes));
    let scales: Vec<&AttributeProto> = nodes
        .iter()
        .filter_map(|it| it.attribute("block_size"))
        .collect();
    assert_eq!(scales[0].i, Some(16));
}

#[test]
fn a_product_that_states_more_weights_than_there_are_stays_as_it_is() {
    let bytes = |length: usize| TensorProto {
        name: Some("b".to_owned()),
        dims: vec![2, 2, 8],
        data_type: Some(DataType::Uint8 as i32),
        raw_data: Some(vec![0; length].into()),
        ..TensorProto::default()
    };
    for (columns, depth, weights) in [
        (1 << 20, 32, bytes(32)),
        (2, 64, bytes(32)),
        (2, 32, bytes(31)),
        (i64::MAX, 1 << 40, bytes(32)),
    ] {
        let product = node(RUNTIME_DOMAIN, "MatMulNBits", &["x", "b", "s"], &["y"])
            .with("K", depth)
            .with("N", columns)
            .with("block_size", 16i64);
        let x = value("x", DataType::Float, 2);
        let mut given = model(vec![product.clone()], &[x], &[]);
        given.graph.as_mut().unwrap().initializer = vec![weights];
        expand_model(&mut given).unwrap();
        assert_eq!(given.graph.unwrap().node, [product], "{depth} by {columns}");
    }
}

/// Declares a tensor with sizes, of which a negative one is unknown.
fn sized(name: &str, elem: DataType, sizes: &[i64]) -> ValueInfoProto {
    let dimension = |&size: &i64| crate::Dimension {
        value: (size >= 0).then_some(crate::DimensionValue::DimValue(size)),
        ..crate::Dimension::default()
    };
    let dims = sizes.iter().map(dimension).collect();
    ValueInfoProto::new_tensor(name, elem as i32, Some(dims))
}

/// Returns the size of a node's output along an axis, as the expansion of a list of its parts shows
/// it; the inputs have these sizes. `None` if the expansion leaves the list to the run.
fn inferred_size(operator: &str, inputs: &[&[i64]], axis: i64) -> Option<i64> {
    let names: Vec<String> = (0..inputs.len()).map(|index| format!("x{index}")).collect();
    let declared: Vec<ValueInfoProto> = names
        .iter()
        .zip(inputs)
        .map(|(name, sizes)| sized(name, DataType::Float, sizes))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let nodes = vec![
        NodeProto::for_operator(operator, &names, "c"),
        NodeProto::for_operator("SplitToSequence", &["c"], "list").with("axis", axis),
        NodeProto::for_operator("SequenceLength", &["list"], "length"),
    ];
    let mut given = model(nodes, &declared, &[value("length", DataType::Int64, 0)]);
    expand_model(&mut given).unwrap();
    let nodes = given.graph.unwrap().node;
    let last = nodes.last().unwrap();
    let length = crate::constant_value(last)?;
    Some(length.to_vec::<i64>().unwrap()[0])
}

#[test]
fn the_sizes_of_an_output_are_those_to_which_all_inputs_broadcast() {
    assert_eq!(inferred_size("Add", &[&[1, 4], &[3, 4]], 0), Some(3));
    assert_eq!(inferred_size("Add", &[&[3, 4], &[4]], 0), Some(3));
    assert_eq!(inferred_size("Add", &[&[4], &[3, 1]], 1), Some(4));
    assert_eq!(inferred_size("Sum", &[&[1], &[1], &[5]], 0), Some(5));
    assert_eq!(
        inferred_size("Max", &[&[1, 1], &[1, 1], &[2, 1]], 0),
        Some(2)
    );
    assert_eq!(
        inferred_size("Where", &[&[1, 1], &[2, 1], &[1, 6]], 1),
        Some(6)
    );
    assert_eq!(inferred_size("Add", &[&[1, 4], &[-1, 4]], 0), None);
    assert_eq!(inferred_size("Add", &[&[3, 4], &[-1, 4]], 0), Some(3));
    assert_eq!(inferred_size("Add", &[&[1, 4], &[1, 4]], 0), Some(1));
}

#[test]
fn the_sizes_of_a_product_come_from_both_sides() {
    assert_eq!(inferred_size("MatMul", &[&[5, 4], &[4, 6]], 1), Some(6));
    assert_eq!(inferred_size("MatMul", &[&[5, 4], &[3, 4, 6]], 0), Some(3));
    assert_eq!(
        inferred_size("MatMul", &[&[1, 5, 4], &[3, 4, 6]], 0),
        Some(3)
    );
    assert_eq!(inferred_size("MatMul", &[&[2, 5, 4], &[4, 6]], 1), Some(5));
    assert_eq!(inferred_size("MatMul", &[&[4], &[3, 4, 6]], 0), Some(3));
    assert_eq!(inferred_size("MatMul", &[&[4], &[4, 6]], 0), Some(6));
    assert_eq!(inferred_size("MatMul", &[&[3, 5, 4], &[4]], 1), Some(5));
}

/// Builds a body without inputs that moves values of the graph around it.
fn moving_body(moves: &[(&str, &str)]) -> GraphProto {
    let node = |(from, to): &(&str, &str)| NodeProto::for_operator("Identity", &[from], to);
    let output = |(_, to): &(&str, &str)| ValueInfoProto::new_tensor(*to, 0, None);
    GraphProto {
        node: moves.iter().map(node).collect(),
        output: moves.iter().map(output).collect(),
        ..GraphProto::default()
    }
}

fn with_body(mut node: NodeProto, name: &str, body: GraphProto) -> NodeProto {
    node.attribute.push(AttributeProto {
        name: Some(name.to_owned()),
        g: Some(body),
        ..AttributeProto::default()
    });
    node
}

#[test]
fn texts_that_a_body_returns_stay_texts() {
    let inputs = [
        value("s", DataType::String, 1),
        value("t", DataType::String, 1),
        value("c", DataType::Bool, 0),
        value("n", DataType::Int64, 0),
    ];
    let [then, other] = [("s", "a"), ("t", "b")].map(|both| moving_body(&[both]));
    let chosen = NodeProto::for_operator("If", &["c"], "y");
    let chosen = with_body(chosen, "then_branch", then);
    let chosen = with_body(chosen, "else_branch", other);
    let repeated = NodeProto::for_operator("Loop", &["n", ""], "y");
    let repeated = with_body(
        repeated,
        "body",
        moving_body(&[("c", "again"), ("s", "row")]),
    );
    let scanned = node("", "Scan", &["n"], &["rest", "y"]);
    let scanned = with_body(
        scanned,
        "body",
        moving_body(&[("n", "state"), ("s", "row")]),
    );
    for made in [chosen, repeated, scanned] {
        let cast = NodeProto::for_operator("Cast", &["y"], "z").with("to", DataType::Float as i64);
        let error = expand_model(&mut model(vec![made.clone(), cast], &inputs, &[])).unwrap_err();
        let (node, operator) = ("z".to_owned(), "Cast".to_owned());
        assert_eq!(error, ExpansionError::Text { node, operator });
        let moved = NodeProto::for_operator("Identity", &["y"], "z");
        expand_model(&mut model(vec![made, moved], &inputs, &[])).unwrap();
    }
}

#[test]
fn attention_without_heads_stays_as_it_is() {
    let x = sized("x", DataType::Float, &[1, 2, 24]);
    for (heads, own) in [
        (0, 0),
        (2, -1),
        (-2, 1),
        (1, -1),
        (4, 0),
        (1, i64::MAX),
        (i64::MIN, 1 << 62),
    ] {
        let attention = node(RUNTIME_DOMAIN, "GroupQueryAttention", &["x"], &["y"])
            .with("num_heads", heads)
            .with("kv_num_heads", own);
        let mut given = model(vec![attention.clone()], std::slice::from_ref(&x), &[]);
        expand_model(&mut given).unwrap();
        assert_eq!(given.graph.unwrap().node, [attention], "{heads} and {own}");
    }
}

/// Attention with queries of one position over keys of four, and a mask with so many lengths.
fn cross_attention(lengths: i64) -> ModelProto {
    let inputs = ["q", "k", "v", "", "m"];
    let attention = node(RUNTIME_DOMAIN, "MultiHeadAttention", &inputs, &["y"]);
    let given = [
        sized("q", DataType::Float, &[2, 1, 8]),
        sized("k", DataType::Float, &[2, 4, 8]),
        sized("v", DataType::Float, &[2, 4, 8]),
        sized("m", DataType::Int32, &[lengths]),
    ];
    model(vec![attention.with("num_heads", 2i64)], &given, &[])
}

#[test]
fn a_mask_of_lengths_is_over_the_positions_of_the_keys() {
    let mut given = cross_attention(2);
    expand_model(&mut given).unwrap();
    let nodes = given.graph.unwrap().node;
    let shape = nodes.iter().find(|node| node.op_type() == "Shape");
    assert_eq!(shape.unwrap().input, ["k"]);
}

#[test]
fn a_mask_of_ends_and_starts_is_refused() {
    for lengths in [4, 8] {
        let mut given = cross_attention(lengths);
        let before = given.clone();
        expand_model(&mut given).unwrap();
        let [left, right] = [given, before].map(|it| it.graph.unwrap().node);
        assert_eq!(left, right, "{lengths}");
    }
}

#[test]
fn heads_turn_as_far_as_the_tables_reach() {
    let inputs = ["q", "k", "v", "", "", "n", "t", "cos", "sin"];
    let attention = node(RUNTIME_DOMAIN, "GroupQueryAttention", &inputs, &["y"])
        .with("num_heads", 2i64)
        .with("kv_num_heads", 1i64)
        .with("do_rotary", 1i64);
    let given = [
        sized("q", DataType::Float, &[1, 3, 32]),
        sized("k", DataType::Float, &[1, 3, 16]),
        sized("v", DataType::Float, &[1, 3, 16]),
        sized("n", DataType::Int32, &[1]),
        sized("t", DataType::Int32, &[]),
        sized("cos", DataType::Float, &[8, 4]),
        sized("sin", DataType::Float, &[8, 4]),
    ];
    let mut given = model(vec![attention], &given, &[]);
    expand_model(&mut given).unwrap();
    let nodes = given.graph.unwrap().node;
    let turned = nodes.iter().filter(|it| it.op_type() == "RotaryEmbedding");
    let widths: Vec<_> = turned.map(|it| it.int("rotary_embedding_dim")).collect();
    assert_eq!(widths, [Some(8), Some(8)]);
}
