//! The CPU's engine for ensembles of trees, which it runs over many rows at once. [`TreeNodes`]
//! runs nodes of a graph that are ensembles. The reference kernels run those whose comparisons or
//! inputs do not suit it.
//!
//! Each tree is an array of nodes with the two children of a branch next to each other, so that a
//! step adds the outcome of the comparison to a place. A block of rows goes down a tree together,
//! one step each in turn, so that no row waits for the loads of another. A leaf leads to itself, so
//! a row that has arrived stays there. A tree stays in the nearest cache while a strip of rows
//! passes through it, and threads share the strips.

use std::collections::BTreeMap;
use std::sync::Arc;

use rayon::prelude::*;
use rten::ThreadPool;
use souk_memory::{DType, Tensor};
use souk_onnx::types::Types;
use souk_onnx::{CLASSICAL_DOMAIN, NodeProto};
use souk_reference::Scope;
use souk_reference::trees::{self, Aggregate, Branch, Child, Comparison, Ensemble};

/// Rows that go down a tree together: more than a load takes cycles.
const LANES: usize = 16;

/// Rows of a strip: as many as stay in a core's own caches with their scores.
const STRIP_ROWS: usize = 256;

/// A node of a tree: where to go is `first`, and one further where the comparison fails.
#[derive(Clone, Copy)]
struct TreeStep<T> {
    split: T,
    feature: u32,
    first: u32,
    /// For a branch, whether NaN goes to the first child; for a leaf, its index.
    extra: u32,
}

/// A tree: where its nodes begin, and steps after which all rows can have arrived.
struct Tree {
    start: usize,
    steps_min: usize,
}

/// The number type in which an ensemble computes.
trait Number: Copy + PartialOrd + Send + Sync {
    const NAN: Self;
    fn from_f64(value: f64) -> Self;
    fn next_lower(self) -> Self;
    fn is_no_number(self) -> bool;
}

macro_rules! number {
    ($float:ty) => {
        impl Number for $float {
            const NAN: Self = <$float>::NAN;

            fn from_f64(value: f64) -> Self {
                value as $float
            }

            fn next_lower(self) -> Self {
                self.next_down()
            }

            fn is_no_number(self) -> bool {
                self.is_nan()
            }
        }
    };
}

number!(f32);
number!(f64);

/// An ensemble laid out for a walk.
struct Forest<T> {
    steps: Vec<TreeStep<T>>,
    trees: Vec<Tree>,
    /// Scores of the leaves, and where those of each begin.
    scores: Vec<(u32, f64)>,
    bounds: Vec<u32>,
    targets: usize,
    aggregate: Aggregate,
    /// Columns that a row must have.
    width_min: usize,
    /// Whether NaN ever goes where the comparison would hold.
    takes_missing: bool,
}

/// An ensemble in the width of its inputs.
enum Width {
    Narrow(Forest<f32>),
    Wide(Forest<f64>),
}

/// A node of the graph that is an ensemble.
struct EnsembleNode {
    node: NodeProto,
    forest: Width,
}

/// Consecutive nodes of a graph that are ensembles of trees, ready to run.
pub(super) struct TreeNodes {
    nodes: Vec<EnsembleNode>,
    threads: Arc<ThreadPool>,
}

impl TreeNodes {
    /// Whether a node is an ensemble that this engine can lay out.
    pub(super) fn supports_node(node: &NodeProto) -> bool {
        let is_named = matches!(node.op_type(), "TreeEnsemble" | "TreeEnsembleRegressor");
        is_named && node.operator_domain() == CLASSICAL_DOMAIN
    }

    /// Lays the ensembles out; returns `None` if one of them has a comparison without such a
    /// layout.
    pub(super) fn compile(
        nodes: &[NodeProto],
        types: &Types,
        threads: &Arc<ThreadPool>,
    ) -> Option<Self> {
        let laid_out = |node: &NodeProto| {
            let ensemble = Ensemble::from_node(node).ok()?;
            let input = types.get(node.input_name(0)?).copied();
            let is_narrow = |it: &Branch| f64::from(it.split as f32) == it.split;
            let narrow = input == Some(DType::F32) && ensemble.branches.iter().all(is_narrow);
            let forest = match narrow {
                true => Width::Narrow(Forest::new(&ensemble)?),
                false => Width::Wide(Forest::new(&ensemble)?),
            };
            Some(EnsembleNode {
                node: node.clone(),
                forest,
            })
        };
        Some(Self {
            nodes: nodes.iter().map(laid_out).collect::<Option<_>>()?,
            threads: threads.clone(),
        })
    }

    /// Runs the nodes in order and returns their results; `None` if the inputs do not suit them.
    pub(super) fn run(&self, scope: &Scope, weights: &Scope) -> Option<Scope> {
        let mut made: Scope = BTreeMap::new();
        for node in &self.nodes {
            let name = node.node.input_name(0)?;
            let held = made.get(name).or_else(|| scope.get(name));
            let input = held.or_else(|| weights.get(name))?;
            let scores = self.threads.run(|| node.run(input))?;
            made.insert(node.node.output.first()?.clone(), scores);
        }
        Some(made)
    }
}

impl EnsembleNode {
    fn run(&self, input: &Tensor) -> Option<Tensor> {
        let (rows, width) = trees::matrix_dims(input).ok()?;
        let (scores, targets) = match &self.forest {
            Width::Narrow(forest) => {
                let values = input.elements::<f32>().ok()?;
                (forest.score_rows(&values, rows, width)?, forest.targets)
            }
            Width::Wide(forest) => {
                let values = souk_reference::to_floats(input).ok()?;
                (forest.score_rows(&values, rows, width)?, forest.targets)
            }
        };
        match trees::result_type(&self.node, input) {
            DType::F32 => {
                let scores: Vec<f32> = scores.into_iter().map(|score| score as f32).collect();
                Tensor::from_vec([rows, targets], scores).ok()
            }
            DType::F64 => Tensor::from_vec([rows, targets], scores).ok(),
            _ => None,
        }
    }
}

impl<T: Number> Forest<T> {
    fn new(ensemble: &Ensemble) -> Option<Self> {
        let mut forest = Self {
            steps: Vec::new(),
            trees: Vec::new(),
            scores: Vec::new(),
            bounds: vec![0],
            targets: ensemble.targets,
            aggregate: ensemble.aggregate,
            width_min: 0,
            takes_missing: false,
        };
        for leaf in &ensemble.leaves {
            let scores = leaf.iter();
            forest
                .scores
                .extend(scores.map(|(target, weight)| (*target as u32, *weight)));
            forest.bounds.push(u32::try_from(forest.scores.len()).ok()?);
        }
        for root in &ensemble.roots {
            let tree = forest.lay_out(ensemble, *root)?;
            forest.trees.push(tree);
        }
        Some(forest)
    }

    /// Puts a tree's nodes in rows, one level after the other.
    fn lay_out(&mut self, ensemble: &Ensemble, root: Child) -> Option<Tree> {
        let start = self.steps.len();
        let (mut level, mut depth, mut steps_min) = (vec![root], 0, None);
        // Places count from the tree's start; the root is one alone, all others come in pairs.
        let mut placed = 1;
        while !level.is_empty() {
            let mut below = Vec::new();
            for child in &level {
                let own = u32::try_from(self.steps.len() - start).ok()?;
                match *child {
                    Child::Leaf(leaf) => {
                        steps_min.get_or_insert(depth);
                        self.steps.push(TreeStep {
                            split: T::NAN,
                            feature: 0,
                            first: own.wrapping_sub(1),
                            extra: u32::try_from(leaf).ok()?,
                        });
                    }
                    Child::Branch(branch) => {
                        let (step, children) = build_step(&ensemble.branches[branch], placed)?;
                        self.width_min = self.width_min.max(step.feature as usize + 1);
                        self.takes_missing |= step.extra != 0;
                        self.steps.push(step);
                        below.extend(children);
                        placed += 2;
                    }
                }
            }
            level = below;
            depth += 1;
        }
        Some(Tree {
            start,
            steps_min: steps_min.unwrap_or(0),
        })
    }

    /// The scores of each row; `None` if rows lack columns.
    fn score_rows(&self, values: &[T], rows: usize, width: usize) -> Option<Vec<f64>> {
        if width < self.width_min || (width == 0 && rows > 0) {
            return None;
        }
        let mut scores = vec![0.0; rows.checked_mul(self.targets)?];
        if self.targets == 0 || rows == 0 {
            return Some(scores);
        }
        // Fewer rows to a strip where there are too few for all threads.
        let shared = rows.div_ceil(rayon::current_num_threads()).max(LANES);
        let strip = shared.min(STRIP_ROWS);
        let strips = scores.par_chunks_mut(strip * self.targets);
        strips
            .zip(values.par_chunks(strip * width))
            .for_each(|(scores, values)| match self.takes_missing {
                true => self.score_strip::<true>(values, width, scores),
                false => self.score_strip::<false>(values, width, scores),
            });
        Some(scores)
    }

    /// The scores of the rows of a strip.
    fn score_strip<const MISSING: bool>(&self, values: &[T], width: usize, scores: &mut [f64]) {
        let mut reached = vec![
            false;
            match self.aggregate {
                Aggregate::Min | Aggregate::Max => scores.len(),
                Aggregate::Average | Aggregate::Sum => 0,
            }
        ];
        for (at, tree) in self.trees.iter().enumerate() {
            let end = self
                .trees
                .get(at + 1)
                .map_or(self.steps.len(), |next| next.start);
            let steps = &self.steps[tree.start..end];
            for (block, values) in values.chunks(LANES * width).enumerate() {
                let places = walk_tree::<T, MISSING>(steps, tree.steps_min, values, width);
                for lane in 0..values.len() / width {
                    let leaf = steps[places[lane] as usize].extra as usize;
                    self.add(leaf, block * LANES + lane, scores, &mut reached);
                }
            }
        }
        if self.aggregate == Aggregate::Average {
            let count = self.trees.len() as f64;
            scores.iter_mut().for_each(|score| *score /= count);
        }
    }

    /// Adds the weights of a leaf to the scores of a row.
    fn add(&self, leaf: usize, row: usize, scores: &mut [f64], reached: &mut [bool]) {
        let own = self.bounds[leaf] as usize..self.bounds[leaf + 1] as usize;
        for (target, weight) in &self.scores[own] {
            let at = row * self.targets + *target as usize;
            let score = &mut scores[at];
            match self.aggregate {
                Aggregate::Average | Aggregate::Sum => *score += weight,
                _ if !std::mem::replace(&mut reached[at], true) => *score = *weight,
                Aggregate::Min => *score = score.min(*weight),
                Aggregate::Max => *score = score.max(*weight),
            }
        }
    }
}

/// A branch in terms of "at most", with its children in that order.
fn build_step<T: Number>(branch: &Branch, first: u32) -> Option<(TreeStep<T>, [Child; 2])> {
    let [yes, no] = branch.children;
    let split = T::from_f64(branch.split);
    let (split, children, swapped) = match branch.comparison {
        Comparison::AtMost => (split, [yes, no], false),
        Comparison::Less => (split.next_lower(), [yes, no], false),
        Comparison::More => (split, [no, yes], true),
        Comparison::AtLeast => (split.next_lower(), [no, yes], true),
        Comparison::Equal | Comparison::Unequal | Comparison::Member => return None,
    };
    // No value is below the least one, and no comparison with NaN holds.
    let has_below = matches!(branch.comparison, Comparison::AtMost | Comparison::More)
        || branch.split.is_finite();
    if !has_below || branch.split.is_nan() {
        return None;
    }
    let step = TreeStep {
        split,
        feature: u32::try_from(branch.feature).ok()?,
        first,
        extra: u32::from(branch.takes_missing != swapped),
    };
    Some((step, children))
}

/// Where each row of a block arrives in a tree.
fn walk_tree<T: Number, const MISSING: bool>(
    steps: &[TreeStep<T>],
    steps_min: usize,
    values: &[T],
    width: usize,
) -> [u32; LANES] {
    let mut places = [0_u32; LANES];
    let mut starts = [0_usize; LANES];
    let rows = values.len() / width;
    // Lanes without a row of their own go along with the last one.
    for (lane, start) in starts.iter_mut().enumerate() {
        *start = lane.min(rows - 1) * width;
    }
    let mut done = 0;
    loop {
        let mut moved = 0;
        for (place, start) in places.iter_mut().zip(&starts) {
            let step = &steps[*place as usize];
            let value = values[start + step.feature as usize];
            let mut holds = value <= step.split;
            if MISSING {
                // The split of a leaf is NaN, and the index of a leaf says nothing about missing
                // values.
                let is_branch = !step.split.is_no_number();
                holds |= value.is_no_number() & is_branch & (step.extra != 0);
            }
            let next = step.first.wrapping_add(u32::from(!holds));
            moved |= next ^ *place;
            *place = next;
        }
        done += 1;
        if done > steps_min && moved == 0 {
            return places;
        }
    }
}

#[cfg(test)]
mod tests;
