//! Nodes that read constants only. What they give is as good as a constant: every part that wants
//! it computes it, once, and it is sent nowhere.

use std::collections::BTreeSet;

use super::{Graph, Node, NodeId, Value};

/// Operators that may give something else each time, by how they begin; and those in bodies are not
/// looked for.
const DRAWS: [&str; 4] = ["Random", "Bernoulli", "Multinomial", "Dropout"];

impl Graph {
    /// Of each node, whether it reads constants only.
    #[must_use]
    pub fn fixed(&self) -> Vec<bool> {
        let mut fixed = vec![false; self.nodes().len()];
        for (index, node) in self.nodes().iter().enumerate() {
            let operator = node.proto.op_type();
            let may_draw = DRAWS.iter().any(|name| operator.starts_with(name))
                || node.proto.subgraphs().next().is_some();
            fixed[index] = !may_draw && node.reads().all(|id| self.value(id).is_known(&fixed));
        }
        fixed
    }

    /// Of each node, whether it is in the part that it was given to and nowhere else: those that
    /// read constants only are wherever they are wanted, but for what the job wants of them.
    pub(crate) fn stays(&self, fixed: &[bool]) -> Vec<bool> {
        let wanted = |node: &Node| node.makes().any(|id| self.outputs().contains(&id));
        let nodes = self.nodes().iter().zip(fixed);
        nodes.map(|(node, fixed)| !fixed || wanted(node)).collect()
    }

    /// The nodes that read a value and stay where they are, by their places; beyond those that do
    /// not, who reads what they give.
    pub(crate) fn readers_beyond(&self, value: &Value, stays: &[bool]) -> Vec<usize> {
        let mut readers = BTreeSet::new();
        let mut open: Vec<NodeId> = value.readers.clone();
        while let Some(node) = open.pop() {
            if readers.insert(node.0) && !stays[node.0] {
                let made = self.node(node).makes();
                open.extend(made.flat_map(|id| &self.value(id).readers));
            }
        }
        readers.into_iter().filter(|node| stays[*node]).collect()
    }
}

impl Value {
    /// Whether it is a constant, or made of constants alone.
    pub(crate) fn is_known(&self, fixed: &[bool]) -> bool {
        self.is_constant() || self.producer().is_some_and(|node| fixed[node.0])
    }
}
