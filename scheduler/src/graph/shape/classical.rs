//! Infers the outputs of classical learning operators (tree ensembles, support vector machines,
//! label encoders) that remain after the expansion of a model to standard operators.

use souk_onnx::DataType;

use super::{Dims, Fact, Operation};

/// Returns the element type and dimensions of each output.
pub(super) fn infer_classical(operation: &Operation<'_>) -> Vec<Fact> {
    let elem = operation.result_elem();
    let columns = |count: Option<u64>| row_count(operation).map(|rows| vec![rows, count]);
    let fact = |elem, dims: Option<Dims>| Fact {
        elem,
        dims,
        ..Fact::default()
    };
    match operation.node.op_type() {
        "LabelEncoder" => vec![fact(elem, operation.input_dims(0).cloned())],
        "TreeEnsemble" | "TreeEnsembleRegressor" => {
            let targets = operation.int_or("n_targets", 1);
            vec![fact(elem, columns(u64::try_from(targets).ok()))]
        }
        "SVMRegressor" => vec![fact(elem, columns(Some(1)))],
        "SVMClassifier" => vec![
            fact(elem, row_count(operation).map(|rows| vec![rows])),
            fact(Some(DataType::Float), columns(Some(score_count(operation)))),
        ],
        _ => Vec::new(),
    }
}

/// Returns the number of rows of the first input; a vector counts as one.
fn row_count(operation: &Operation<'_>) -> Option<Option<u64>> {
    match operation.input_dims(0)?.as_slice() {
        [_] => Some(Some(1)),
        [rows, _] => Some(*rows),
        _ => None,
    }
}

/// Returns the number of scores of a row: one for each class, or for each pair of classes.
fn score_count(operation: &Operation<'_>) -> u64 {
    let length = |name: &str| operation.node.ints(name).map_or(0, <[i64]>::len) as u64;
    let classes = length("classlabels_ints");
    let kept = operation.node.ints("vectors_per_class").unwrap_or_default();
    let is_linear = kept.iter().all(|count| *count == 0);
    let is_likely = operation
        .node
        .floats("prob_a")
        .is_some_and(|it| !it.is_empty());
    match classes {
        _ if is_linear || is_likely => classes,
        0..=2 => 2,
        _ => classes * (classes - 1) / 2,
    }
}
