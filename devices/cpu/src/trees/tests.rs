//! Tests the engine for ensembles of trees against a walk of one row at a time, on random forests.

use std::collections::BTreeMap;

use proptest::prelude::*;
use souk_memory::Tensor;
use souk_onnx::NodeProto;
use souk_reference as reference;

use super::*;

/// A tree as a draw of comparisons: each decides whether its node is a leaf.
#[derive(Clone, Debug)]
struct Draw {
    modes: Vec<u8>,
    features: Vec<i64>,
    splits: Vec<f32>,
    missing: Vec<i64>,
    weights: Vec<f32>,
    targets: Vec<i64>,
}

const NODES: usize = 31;
const WIDTH: i64 = 3;
const TARGETS: i64 = 2;

fn draws() -> impl Strategy<Value = Draw> {
    let floats = || prop::collection::vec((-4i8..4).prop_map(|it| f32::from(it) / 2.0), NODES);
    (
        prop::collection::vec(0u8..5, NODES),
        prop::collection::vec(0..WIDTH, NODES),
        floats(),
        prop::collection::vec(0i64..2, NODES),
        floats(),
        prop::collection::vec(0..TARGETS, NODES),
    )
        .prop_map(
            |(modes, features, splits, missing, weights, targets)| Draw {
                modes,
                features,
                splits,
                missing,
                weights,
                targets,
            },
        )
}

/// Lists of a node of version 1, as they grow.
#[derive(Default)]
struct Lists {
    trees: Vec<i64>,
    numbers: Vec<i64>,
    modes: Vec<bytes::Bytes>,
    features: Vec<i64>,
    splits: Vec<f32>,
    missing: Vec<i64>,
    yes: Vec<i64>,
    no: Vec<i64>,
    leaf_trees: Vec<i64>,
    leaf_numbers: Vec<i64>,
    leaf_targets: Vec<i64>,
    leaf_weights: Vec<f32>,
}

impl Lists {
    fn grow(&mut self, tree: i64, draw: &Draw, at: usize) {
        let names: [&'static [u8]; 4] = [b"BRANCH_LEQ", b"BRANCH_LT", b"BRANCH_GTE", b"BRANCH_GT"];
        let (yes, no) = (2 * at + 1, 2 * at + 2);
        let mode = names
            .get(usize::from(draw.modes[at]))
            .filter(|_| no < NODES);
        self.trees.push(tree);
        self.numbers.push(at as i64);
        self.modes
            .push(bytes::Bytes::from_static(mode.copied().unwrap_or(b"LEAF")));
        self.features.push(draw.features[at]);
        self.splits.push(draw.splits[at]);
        self.missing.push(draw.missing[at]);
        self.yes.push(yes as i64);
        self.no.push(no as i64);
        if mode.is_some() {
            self.grow(tree, draw, yes);
            self.grow(tree, draw, no);
            return;
        }
        self.leaf_trees.push(tree);
        self.leaf_numbers.push(at as i64);
        self.leaf_targets.push(draw.targets[at]);
        self.leaf_weights.push(draw.weights[at]);
    }
}

fn ensemble(draws: &[Draw], aggregate: &str) -> NodeProto {
    let mut lists = Lists::default();
    for (tree, draw) in draws.iter().enumerate() {
        lists.grow(tree as i64, draw, 0);
    }
    NodeProto::for_classical_operator("TreeEnsembleRegressor", &["x"], "y")
        .with("n_targets", TARGETS)
        .with("aggregate_function", aggregate)
        .with("nodes_treeids", lists.trees)
        .with("nodes_nodeids", lists.numbers)
        .with("nodes_modes", lists.modes)
        .with("nodes_featureids", lists.features)
        .with("nodes_values", lists.splits)
        .with("nodes_missing_value_tracks_true", lists.missing)
        .with("nodes_truenodeids", lists.yes)
        .with("nodes_falsenodeids", lists.no)
        .with("target_treeids", lists.leaf_trees)
        .with("target_nodeids", lists.leaf_numbers)
        .with("target_ids", lists.leaf_targets)
        .with("target_weights", lists.leaf_weights)
}

fn both(node: &NodeProto, input: &Tensor) -> [Tensor; 2] {
    let mut scope: Scope = BTreeMap::from([("x".to_owned(), input.clone())]);
    let types = Types::from([("x".to_owned(), input.dtype())]);
    let threads = Arc::new(ThreadPool::with_num_threads(2));
    let nodes = std::slice::from_ref(node);
    let walked = TreeNodes::compile(nodes, &types, &threads).unwrap();
    let walked = walked
        .run(&scope, &Scope::new())
        .unwrap()
        .remove("y")
        .unwrap();
    reference::run_nodes(nodes, &mut scope, 21).unwrap();
    [walked, scope.remove("y").unwrap()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_block_of_rows_arrives_where_each_row_does(
        draws in prop::collection::vec(draws(), 1..4),
        aggregate in prop::sample::select(vec!["SUM", "AVERAGE", "MIN", "MAX"]),
        values in prop::collection::vec(-5i8..5, 1..60),
        is_wide in any::<bool>(),
    ) {
        // Halves, so that values meet splits; the least stands for what is no number.
        let value = |it: &i8| if *it == -5 { f64::NAN } else { f64::from(*it) / 2.0 };
        let rows = values.len().div_ceil(3);
        let values: Vec<f64> = values.iter().cycle().take(rows * 3).map(value).collect();
        let input = match is_wide {
            true => Tensor::from_vec([rows, 3], values),
            false => {
                let narrow = values.into_iter().map(|it| it as f32);
                Tensor::from_vec([rows, 3], narrow.collect::<Vec<_>>())
            }
        };
        let [walked, plain] = both(&ensemble(&draws, aggregate), &input.unwrap());
        prop_assert_eq!(walked.to_f64s().unwrap(), plain.to_f64s().unwrap());
    }
}

#[test]
fn rows_that_lack_a_column_are_not_walked() {
    let draw = Draw {
        modes: vec![0; NODES],
        features: vec![2; NODES],
        splits: vec![0.0; NODES],
        missing: vec![0; NODES],
        weights: vec![1.0; NODES],
        targets: vec![0; NODES],
    };
    let forest =
        Forest::<f32>::new(&Ensemble::from_node(&ensemble(&[draw], "SUM")).unwrap()).unwrap();
    assert_eq!(forest.score_rows(&[1.0, 2.0], 1, 2), None);
    assert_eq!(
        forest.score_rows(&[1.0, 2.0, 3.0], 1, 3),
        Some(vec![1.0, 0.0])
    );
}
