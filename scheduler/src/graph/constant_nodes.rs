//! Finds the nodes that read constants only. Planners treat their outputs like constants: every
//! part that needs them computes them once for itself, and no part sends them.

use std::collections::BTreeSet;

use super::{Graph, Node, NodeId, Value};

/// Prefixes of operators with random outputs. Such operators inside bodies are not detected.
const DRAWS: [&str; 4] = ["Random", "Bernoulli", "Multinomial", "Dropout"];

impl Graph {
    /// Returns for each node whether it reads constants only.
    #[must_use]
    pub fn constant_only_nodes(&self) -> Vec<bool> {
        let mut fixed = vec![false; self.nodes().len()];
        for (index, node) in self.nodes().iter().enumerate() {
            let operator = node.proto.op_type();
            let may_draw = DRAWS.iter().any(|name| operator.starts_with(name))
                || node.proto.subgraphs().next().is_some();
            fixed[index] = !may_draw
                && node
                    .input_values()
                    .all(|id| self.value(id).is_known(&fixed));
        }
        fixed
    }

    /// Returns for each node whether it is only in its assigned part. Nodes that read constants
    /// only are in every part that needs them, unless they produce an output of the job.
    pub(crate) fn single_part_nodes(&self, fixed: &[bool]) -> Vec<bool> {
        let wanted = |node: &Node| node.output_values().any(|id| self.outputs().contains(&id));
        let nodes = self.nodes().iter().zip(fixed);
        nodes.map(|(node, fixed)| !fixed || wanted(node)).collect()
    }

    /// Returns the indices of the nodes that read a value and stay in their parts. Behind nodes
    /// that do not stay, it follows the readers of their outputs.
    pub(crate) fn readers_beyond(&self, value: &Value, stays: &[bool]) -> Vec<usize> {
        let mut readers = BTreeSet::new();
        let mut open: Vec<NodeId> = value.readers.clone();
        while let Some(node) = open.pop() {
            if readers.insert(node.0) && !stays[node.0] {
                let made = self.node(node).output_values();
                open.extend(made.flat_map(|id| &self.value(id).readers));
            }
        }
        readers.into_iter().filter(|node| stays[*node]).collect()
    }
}

impl Value {
    /// Returns whether the value is a constant or computed from constants alone.
    pub(crate) fn is_known(&self, fixed: &[bool]) -> bool {
        self.is_constant() || self.producer().is_some_and(|node| fixed[node.0])
    }
}
