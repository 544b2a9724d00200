//! Infers the rank (number of dimensions) of each value, as far as it follows from a graph before
//! its inputs are known. The expansion and the CPU's engines use it.

use std::collections::BTreeMap;

use super::graph::Graph;
use super::schema::{Extents, OperatorSchema};
use crate::{GraphProto, NodeProto};

/// The known ranks of values.
#[derive(Clone, Debug, Default)]
pub struct Ranks {
    ranks: BTreeMap<String, usize>,
    /// Known lengths of vectors, because a reshape by a vector of n sizes gives rank n.
    lengths: BTreeMap<String, usize>,
}

impl Ranks {
    /// Infers ranks from weights and declared values, node by node.
    pub fn from_graph(graph: &Graph) -> Self {
        let mut ranks = Self::default();
        for (name, weight) in &graph.weights {
            ranks.record_constant(name, weight.dims());
        }
        ranks.record_declarations(graph.graph_proto());
        for node in graph.nodes() {
            ranks.record_outputs(node);
        }
        ranks
    }

    /// Returns the known ranks and lengths of the values with these names.
    pub(crate) fn of_names(&self, names: &[&str]) -> Self {
        let only = |map: &BTreeMap<String, usize>| {
            let found = names.iter().filter_map(|name| map.get_key_value(*name));
            found.map(|(name, &it)| (name.clone(), it)).collect()
        };
        Self {
            ranks: only(&self.ranks),
            lengths: only(&self.lengths),
        }
    }

    /// Notes a constant of these sizes.
    pub(crate) fn record_constant(&mut self, name: &str, dims: &[usize]) {
        self.record_rank(name, dims.len());
        if let [length] = dims {
            self.lengths.insert(name.to_owned(), *length);
        }
    }

    /// Notes the ranks that a graph declares.
    pub(crate) fn record_declarations(&mut self, proto: &GraphProto) {
        let inner = proto.input.iter().chain(&proto.value_info);
        for value in inner.chain(&proto.output) {
            let shape = value.tensor_type().and_then(|tensor| tensor.shape.as_ref());
            if let Some(shape) = shape {
                self.record_rank(value.name(), shape.dim.len());
            }
        }
    }

    /// Returns whether both operands of a product are known to be matrices, or batches of them.
    pub fn are_matrices(&self, node: &NodeProto) -> bool {
        (0..2).all(|index| self.input_rank(node, index).is_some_and(|rank| rank >= 2))
    }

    /// Returns the rank of a value, if known.
    pub fn rank(&self, name: &str) -> Option<usize> {
        self.ranks.get(name).copied()
    }

    fn record_rank(&mut self, name: &str, rank: usize) {
        if !name.is_empty() {
            self.ranks.insert(name.to_owned(), rank);
        }
    }

    fn input_rank(&self, node: &NodeProto, index: usize) -> Option<usize> {
        self.ranks.get(node.input_name(index)?).copied()
    }

    fn input_length(&self, node: &NodeProto, index: usize) -> Option<usize> {
        self.lengths.get(node.input_name(index)?).copied()
    }

    /// Notes the rank of a node's output. The caller must have noted those of its inputs before.
    pub(crate) fn record_outputs(&mut self, node: &NodeProto) {
        if let Some(rank) = self.result_rank(node) {
            // Among operators with several outputs, only those of a split have the same rank.
            let alike = match node.op_type() {
                "Split" => node.output.len(),
                _ => 1,
            };
            for name in node.output.iter().take(alike) {
                if !self.ranks.contains_key(name) {
                    self.record_rank(name, rank);
                }
            }
        }
        if let (Some(length), Some(name)) = (self.result_length(node), node.output.first()) {
            self.lengths.insert(name.clone(), length);
        }
    }

    /// Returns the rank of a node's first output.
    fn result_rank(&self, node: &NodeProto) -> Option<usize> {
        let first = self.input_rank(node, 0);
        match node.op_type() {
            "Shape" => Some(1),
            "Size" => Some(0),
            "Range" => Some(1),
            "Flatten" | "NonZero" => Some(2),
            "Reshape" => self.input_length(node, 1).or(node
                .ints("shape")
                .filter(|it| !it.is_empty())
                .map(<[_]>::len)),
            "ConstantOfShape" => self.input_length(node, 0),
            "Expand" => Some(first?.max(self.input_length(node, 1)?)),
            "Gather" => (first? + self.input_rank(node, 1)?).checked_sub(1),
            "Unsqueeze" => Some(first? + self.axis_count(node)?),
            "Squeeze" => first?.checked_sub(self.axis_count(node)?),
            "MatMul" => {
                let (left, right) = (first?, self.input_rank(node, 1)?);
                (left >= 2 && right >= 2).then(|| left.max(right))
            }
            operator => match OperatorSchema::for_operator(operator).extents {
                Extents::OfFirst | Extents::RankOfFirst => first,
                Extents::Broadcast => {
                    let inputs = 0..node.input.len();
                    let ranks = inputs.map(|index| self.input_rank(node, index));
                    ranks.collect::<Option<Vec<usize>>>()?.into_iter().max()
                }
                Extents::Own => {
                    let reduces = operator.starts_with("Reduce") || operator.starts_with("Arg");
                    first.filter(|_| reduces && node.int("keepdims").unwrap_or(1) != 0)
                }
            },
        }
    }

    /// Returns the number of axes that a node names.
    fn axis_count(&self, node: &NodeProto) -> Option<usize> {
        node.ints("axes")
            .filter(|it| !it.is_empty())
            .map(<[i64]>::len)
            .or(self.input_length(node, 1))
    }

    /// Returns the length of a node's output, if it is a vector.
    fn result_length(&self, node: &NodeProto) -> Option<usize> {
        let is_scalar = |index| self.input_rank(node, index) == Some(0);
        match node.op_type() {
            "Shape" if node.attribute.is_empty() => self.input_rank(node, 0),
            "Unsqueeze" if is_scalar(0) => Some(1),
            "Gather"
                if self.input_rank(node, 1) == Some(1) && self.input_rank(node, 0) == Some(1) =>
            {
                self.input_length(node, 1)
            }
            "Concat" => (0..node.input.len())
                .map(|index| self.input_length(node, index))
                .sum(),
            "Cast" | "Identity" => self.input_length(node, 0),
            _ => None,
        }
    }
}
