//! Reads ensembles of decision trees from a node's attributes, and evaluates them tree by tree
//! without optimisation. The CPU device compiles the same [`Ensemble`] to a faster form.
//!
//! Both of ONNX's representations become one form, where every node is reachable from exactly one
//! root by one path, so an evaluation will end for any model.

use souk_memory::{DType, Tensor};
use souk_onnx::{NodeProto, tensor_from_proto};

use super::call::{Call, KernelError, Results};
use super::value::from_floats;

/// The comparison of a value with a branch's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The value is at most the split.
    AtMost,
    /// The value is less than the split.
    Less,
    /// The value is at least the split.
    AtLeast,
    /// The value is more than the split.
    More,
    /// The value equals the split.
    Equal,
    /// The value differs from the split.
    Unequal,
    /// The value is one of several.
    Member,
}

/// The child of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Child {
    /// Another branch, by its index.
    Branch(usize),
    /// A leaf, by its index.
    Leaf(usize),
}

/// A node that compares.
#[derive(Clone, Debug, PartialEq)]
pub struct Branch {
    /// Index of the column in a row.
    pub feature: usize,
    /// Comparison with the split or the members.
    pub comparison: Comparison,
    /// Value of the split.
    pub split: f64,
    /// Values for [`Comparison::Member`].
    pub members: Vec<f64>,
    /// The child if the comparison holds, and the other child.
    pub children: [Child; 2],
    /// Whether NaN goes to the first child.
    pub takes_missing: bool,
}

/// The combination of the leaves of all trees into one score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregate {
    /// Their mean over all trees.
    Average,
    /// Their sum.
    Sum,
    /// The least of them.
    Min,
    /// The largest of them.
    Max,
}

/// An ensemble of trees.
#[derive(Clone, Debug, PartialEq)]
pub struct Ensemble {
    /// Branches of all trees.
    pub branches: Vec<Branch>,
    /// Leaves of all trees: targets with their weights.
    pub leaves: Vec<Vec<(usize, f64)>>,
    /// The root of each tree.
    pub roots: Vec<Child>,
    /// Number of scores of a row.
    pub targets: usize,
    /// The combination of the leaves into scores.
    pub aggregate: Aggregate,
}

/// An attribute of an ensemble that is missing, malformed or leads in a circle.
type Fault = &'static str;

impl Branch {
    /// Returns the child for a value.
    fn next(&self, value: f64) -> Child {
        let holds = match self.comparison {
            _ if value.is_nan() => self.takes_missing,
            Comparison::AtMost => value <= self.split,
            Comparison::Less => value < self.split,
            Comparison::AtLeast => value >= self.split,
            Comparison::More => value > self.split,
            Comparison::Equal => value == self.split,
            Comparison::Unequal => value != self.split,
            Comparison::Member => self.members.contains(&value),
        };
        self.children[usize::from(!holds)]
    }
}

impl Ensemble {
    /// Reads an ensemble from a node.
    ///
    /// # Errors
    /// The name of the attribute that is missing or malformed.
    pub fn from_node(node: &NodeProto) -> Result<Self, &'static str> {
        let ensemble = match node.op_type() {
            "TreeEnsemble" => Self::of_version_5(node)?,
            _ => Self::of_lists(node)?,
        };
        ensemble.check_structure()?;
        Ok(ensemble)
    }

    /// Checks that every branch is reachable once, and that each leaf's target exists.
    fn check_structure(&self) -> Result<(), Fault> {
        let mut seen = vec![false; self.branches.len()];
        let mut ahead = self.roots.clone();
        while let Some(child) = ahead.pop() {
            match child {
                Child::Leaf(leaf) if leaf < self.leaves.len() => {}
                Child::Branch(branch) if branch < seen.len() && !seen[branch] => {
                    seen[branch] = true;
                    ahead.extend(self.branches[branch].children);
                }
                Child::Leaf(_) | Child::Branch(_) => return Err("nodes_truenodeids"),
            }
        }
        let mut scores = self.leaves.iter().flatten();
        match scores.all(|(target, _)| *target < self.targets) {
            true => Ok(()),
            false => Err("n_targets"),
        }
    }

    /// Reads versions 1 and 3: lists of nodes, each with the number of its tree.
    fn of_lists(node: &NodeProto) -> Result<Self, Fault> {
        let lists = Lists::from_node(node)?;
        let targets = node.int("n_targets").unwrap_or(1);
        let aggregate = match node.string("aggregate_function").unwrap_or("SUM") {
            "AVERAGE" => Aggregate::Average,
            "SUM" => Aggregate::Sum,
            "MIN" => Aggregate::Min,
            "MAX" => Aggregate::Max,
            _ => return Err("aggregate_function"),
        };
        let (branches, roots) = lists.build_branches()?;
        Ok(Self {
            branches,
            leaves: lists.build_leaves(node)?,
            roots,
            targets: usize::try_from(targets).map_err(|_| "n_targets")?,
            aggregate,
        })
    }

    fn of_version_5(node: &NodeProto) -> Result<Self, Fault> {
        let aggregate = match node.int("aggregate_function").unwrap_or(1) {
            0 => Aggregate::Average,
            1 => Aggregate::Sum,
            2 => Aggregate::Min,
            3 => Aggregate::Max,
            _ => return Err("aggregate_function"),
        };
        let weights = read_doubles(node, "leaf_weights")?;
        let owners = read_indices(node, "leaf_targetids")?;
        if weights.len() != owners.len() {
            return Err("leaf_targetids");
        }
        let splits = read_doubles(node, "nodes_splits")?;
        let yes = read_children(node, "nodes_truenodeids", "nodes_trueleafs")?;
        let no = read_children(node, "nodes_falsenodeids", "nodes_falseleafs")?;
        let comparisons = read_comparisons(node)?;
        let features = read_indices(node, "nodes_featureids")?;
        let missing = node.ints("nodes_missing_value_tracks_true");
        let mut members = Members::from_node(node)?;
        let count = splits.len();
        let lengths = [yes.len(), no.len(), comparisons.len(), features.len()];
        if lengths.iter().any(|length| *length != count) {
            return Err("nodes_splits");
        }
        let mut branch = |at: usize| Branch {
            feature: features[at],
            comparison: comparisons[at],
            split: splits[at],
            members: match comparisons[at] {
                Comparison::Member => members.next(),
                _ => Vec::new(),
            },
            children: [yes[at], no[at]],
            takes_missing: missing.and_then(|it| it.get(at)).is_some_and(|it| *it != 0),
        };
        let branches: Vec<Branch> = (0..count).map(&mut branch).collect();
        let roots = read_indices(node, "tree_roots")?.into_iter();
        let targets = node.int("n_targets").unwrap_or(1);
        let leaves = owners.into_iter().zip(weights).map(|score| vec![score]);
        // In this version, a tree of one leaf is a branch whose two children are that leaf.
        Ok(Self {
            roots: roots.map(Child::Branch).collect(),
            branches,
            leaves: leaves.collect(),
            targets: usize::try_from(targets).map_err(|_| "n_targets")?,
            aggregate,
        })
    }

    /// Returns the scores of each row of `values`.
    fn score_rows(&self, values: &[f64], width: usize) -> Option<Vec<f64>> {
        let rows = values.chunks_exact(width.max(1));
        let mut scores = Vec::with_capacity(rows.len().checked_mul(self.targets)?);
        for row in rows {
            let mut own: Vec<Option<f64>> = vec![None; self.targets];
            for root in &self.roots {
                let mut child = *root;
                while let Child::Branch(branch) = child {
                    let branch = &self.branches[branch];
                    child = branch.next(*row.get(branch.feature)?);
                }
                let Child::Leaf(leaf) = child else { continue };
                for (target, weight) in &self.leaves[leaf] {
                    own[*target] = Some(match (self.aggregate, own[*target]) {
                        (_, None) => *weight,
                        (Aggregate::Min, Some(held)) => held.min(*weight),
                        (Aggregate::Max, Some(held)) => held.max(*weight),
                        (_, Some(held)) => held + weight,
                    });
                }
            }
            let count = match self.aggregate {
                Aggregate::Average => self.roots.len() as f64,
                _ => 1.0,
            };
            scores.extend(own.into_iter().map(|it| it.unwrap_or(0.0) / count));
        }
        Some(scores)
    }
}

/// The lists of nodes of versions 1 and 3.
struct Lists<'a> {
    comparisons: Vec<Option<Comparison>>,
    features: Vec<usize>,
    splits: Vec<f64>,
    missing: &'a [i64],
    /// The index of each node in the lists, and its index among the branches or the leaves, by tree
    /// and node number; sorted for binary search.
    places: Vec<((i64, i64), usize, Child)>,
    keys: Vec<(i64, i64)>,
    yes: &'a [i64],
    no: &'a [i64],
}

impl<'a> Lists<'a> {
    fn from_node(node: &'a NodeProto) -> Result<Self, Fault> {
        let trees = node.ints("nodes_treeids").unwrap_or_default();
        let numbers = node.ints("nodes_nodeids").unwrap_or_default();
        let modes = node.strings("nodes_modes").unwrap_or_default();
        let comparisons: Vec<Option<Comparison>> = modes
            .iter()
            .map(|it| parse_comparison(it))
            .collect::<Result<_, _>>()?;
        let lists = Self {
            features: read_indices(node, "nodes_featureids")?,
            splits: read_doubles(node, "nodes_values")?,
            missing: node.ints("nodes_missing_value_tracks_true").unwrap_or(&[]),
            places: Vec::new(),
            keys: trees.iter().copied().zip(numbers.iter().copied()).collect(),
            yes: node.ints("nodes_truenodeids").unwrap_or_default(),
            no: node.ints("nodes_falsenodeids").unwrap_or_default(),
            comparisons,
        };
        let count = trees.len();
        let lengths = [
            numbers.len(),
            lists.comparisons.len(),
            lists.features.len(),
            lists.splits.len(),
            lists.yes.len(),
            lists.no.len(),
        ];
        match lengths.iter().all(|length| *length == count) {
            true => lists.place_nodes(),
            false => Err("nodes_treeids"),
        }
    }

    fn place_nodes(mut self) -> Result<Self, Fault> {
        let (mut branches, mut leaves) = (0, 0);
        for (at, (key, comparison)) in self.keys.iter().zip(&self.comparisons).enumerate() {
            let child = match comparison {
                Some(_) => Child::Branch(branches),
                None => Child::Leaf(leaves),
            };
            branches += usize::from(comparison.is_some());
            leaves += usize::from(comparison.is_none());
            self.places.push((*key, at, child));
        }
        self.places.sort_unstable_by_key(|place| place.0);
        match self.places.windows(2).all(|pair| pair[0].0 != pair[1].0) {
            true => Ok(self),
            false => Err("nodes_nodeids"),
        }
    }

    /// Finds a node of a tree: its index in the lists, and its branch or leaf.
    fn find_node(&self, key: (i64, i64)) -> Option<(usize, Child)> {
        let found = self.places.binary_search_by_key(&key, |place| place.0);
        let (_, at, child) = self.places[found.ok()?];
        Some((at, child))
    }

    /// Returns the branches, and the roots: nodes that are no node's child.
    fn build_branches(&self) -> Result<(Vec<Branch>, Vec<Child>), Fault> {
        let mut branches = Vec::new();
        let mut reached = vec![false; self.keys.len()];
        for (at, (tree, _)) in self.keys.iter().enumerate() {
            let Some(comparison) = self.comparisons[at] else {
                continue;
            };
            let mut child = |number: i64, fault: Fault| -> Result<Child, Fault> {
                let (place, child) = self.find_node((*tree, number)).ok_or(fault)?;
                reached[place] = true;
                Ok(child)
            };
            branches.push(Branch {
                feature: self.features[at],
                comparison,
                split: self.splits[at],
                members: Vec::new(),
                children: [
                    child(self.yes[at], "nodes_truenodeids")?,
                    child(self.no[at], "nodes_falsenodeids")?,
                ],
                takes_missing: self.missing.get(at).is_some_and(|it| *it != 0),
            });
        }
        let mut roots: Vec<_> = self.places.iter().filter(|it| !reached[it.1]).collect();
        roots.sort_unstable_by_key(|place| place.1);
        Ok((branches, roots.into_iter().map(|place| place.2).collect()))
    }

    /// Returns each leaf's targets with their weights.
    fn build_leaves(&self, node: &NodeProto) -> Result<Vec<Vec<(usize, f64)>>, Fault> {
        let count = self.comparisons.iter().filter(|it| it.is_none()).count();
        let mut leaves = vec![Vec::new(); count];
        let trees = node.ints("target_treeids").unwrap_or_default();
        let numbers = node.ints("target_nodeids").unwrap_or_default();
        let targets = read_indices(node, "target_ids")?;
        let weights = read_doubles(node, "target_weights")?;
        let lengths = [numbers.len(), targets.len(), weights.len()];
        if lengths.iter().any(|length| *length != trees.len()) {
            return Err("target_treeids");
        }
        for (at, key) in trees
            .iter()
            .copied()
            .zip(numbers.iter().copied())
            .enumerate()
        {
            match self.find_node(key) {
                Some((_, Child::Leaf(leaf))) => leaves[leaf].push((targets[at], weights[at])),
                _ => return Err("target_nodeids"),
            }
        }
        Ok(leaves)
    }
}

/// Returns the comparison with this name; `None` for a leaf.
fn parse_comparison(mode: &[u8]) -> Result<Option<Comparison>, Fault> {
    Ok(Some(match mode {
        b"LEAF" => return Ok(None),
        b"BRANCH_LEQ" => Comparison::AtMost,
        b"BRANCH_LT" => Comparison::Less,
        b"BRANCH_GTE" => Comparison::AtLeast,
        b"BRANCH_GT" => Comparison::More,
        b"BRANCH_EQ" => Comparison::Equal,
        b"BRANCH_NEQ" => Comparison::Unequal,
        _ => return Err("nodes_modes"),
    }))
}

/// Returns the comparisons of version 5, where they are numbers.
fn read_comparisons(node: &NodeProto) -> Result<Vec<Comparison>, Fault> {
    let numbers = read_doubles(node, "nodes_modes")?.into_iter();
    let known = numbers.map(|number| match number as i64 {
        0 => Ok(Comparison::AtMost),
        1 => Ok(Comparison::Less),
        2 => Ok(Comparison::AtLeast),
        3 => Ok(Comparison::More),
        4 => Ok(Comparison::Equal),
        5 => Ok(Comparison::Unequal),
        6 => Ok(Comparison::Member),
        _ => Err("nodes_modes"),
    });
    known.collect()
}

/// Returns the children of version 5: indices, each with whether it refers to a leaf.
fn read_children(
    node: &NodeProto,
    ids: &'static str,
    leaves: &'static str,
) -> Result<Vec<Child>, Fault> {
    let flags = node.ints(leaves).unwrap_or_default();
    let child = |(at, place): (usize, usize)| match flags.get(at) {
        Some(0) => Child::Branch(place),
        _ => Child::Leaf(place),
    };
    Ok(read_indices(node, ids)?
        .into_iter()
        .enumerate()
        .map(child)
        .collect())
}

/// The sets of version 5: one after the other, each ended by NaN.
struct Members(std::vec::IntoIter<f64>);

impl Members {
    fn from_node(node: &NodeProto) -> Result<Self, Fault> {
        let values = match node.attribute("membership_values") {
            Some(_) => read_doubles(node, "membership_values")?,
            None => Vec::new(),
        };
        Ok(Self(values.into_iter()))
    }

    fn next(&mut self) -> Vec<f64> {
        self.0
            .by_ref()
            .take_while(|value| !value.is_nan())
            .collect()
    }
}

fn read_indices(node: &NodeProto, name: &'static str) -> Result<Vec<usize>, Fault> {
    let ints = node.ints(name).unwrap_or_default().iter();
    ints.map(|&it| usize::try_from(it).map_err(|_| name))
        .collect()
}

/// Reads numbers: a list of floats, a tensor, or a tensor in an attribute of that name with a
/// suffix.
fn read_doubles(node: &NodeProto, name: &'static str) -> Result<Vec<f64>, Fault> {
    if let Some(floats) = node.floats(name).filter(|it| !it.is_empty()) {
        return Ok(floats.iter().copied().map(f64::from).collect());
    }
    let held = node.tensor(name);
    let Some(proto) = held.or_else(|| node.tensor(&format!("{name}_as_tensor"))) else {
        return Ok(Vec::new());
    };
    let tensor = tensor_from_proto(proto).map_err(|_| name)?;
    super::value::to_floats(&tensor).map_err(|_| name)
}

pub(super) fn run(call: &Call<'_>) -> Results {
    let ensemble = Ensemble::from_node(call.node).map_err(KernelError::Attribute)?;
    let input = call.input(0)?;
    let (rows, width) = matrix_dims(input)?;
    let values = call.input_floats(0)?;
    let scores = ensemble.score_rows(&values, width);
    let scores = scores.ok_or(KernelError::Range(0))?;
    let dims = [rows, ensemble.targets];
    Ok(vec![from_floats(
        result_type(call.node, input),
        &dims,
        scores,
    )?])
}

/// Returns the type of the scores: version 5 keeps the type of its input.
pub fn result_type(node: &NodeProto, input: &Tensor) -> DType {
    match node.op_type() {
        "TreeEnsemble" => input.dtype(),
        _ => DType::F32,
    }
}

/// Returns the rows and columns of the input, which must be one row or a matrix.
pub fn matrix_dims(input: &Tensor) -> Result<(usize, usize), KernelError> {
    match *input.dims() {
        [width] => Ok((1, width)),
        [rows, width] => Ok((rows, width)),
        _ => Err(KernelError::Range(0)),
    }
}
