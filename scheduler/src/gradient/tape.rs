//! Differentiates a graph in reverse mode: visits its nodes from the last to the first, and writes
//! the nodes that compute the gradients of its parameters.

use std::collections::{BTreeMap, BTreeSet};

use super::GradientError;
use super::node_view::NodeView;
use super::rules;
use super::writer::Writer;
use crate::graph::{Graph, ValueId};

/// A graph whose gradients are being written.
pub(super) struct Tape<'a> {
    graph: &'a Graph,
    /// Values that depend on a parameter.
    wanted: BTreeSet<ValueId>,
    /// Contributions to the gradient of each value, in the order of their writing.
    contributions: BTreeMap<ValueId, Vec<String>>,
}

impl<'a> Tape<'a> {
    /// Creates a tape that differentiates by these inputs of the graph.
    pub fn new(graph: &'a Graph, parameters: &BTreeSet<ValueId>) -> Self {
        let mut wanted = parameters.clone();
        for node in graph.nodes() {
            let depends = node.input_values().any(|input| wanted.contains(&input));
            // Numbers of other types than floats, such as a shape, have no gradient.
            let is_float = |id: &ValueId| graph.value(*id).dtype().is_none_or(|it| it.is_float());
            if depends {
                wanted.extend(node.output_values().filter(is_float));
            }
        }
        Self {
            graph,
            wanted,
            contributions: BTreeMap::new(),
        }
    }

    /// Writes the gradients of all values before `of`, whose own gradient is `seed`. Returns the
    /// names of the gradients of those parameters that have one.
    ///
    /// # Errors
    /// [`GradientError`] for the first operator, in reverse order, that has no rule.
    pub fn differentiate(
        mut self,
        of: ValueId,
        seed: String,
        writer: &mut Writer,
    ) -> Result<BTreeMap<ValueId, String>, GradientError> {
        self.contributions.insert(of, vec![seed]);
        for node in self.graph.nodes().iter().rev() {
            let outputs = node.output_values();
            let is_reached = |id: &ValueId| self.contributions.contains_key(id);
            let reached: Vec<ValueId> = outputs.filter(is_reached).collect();
            let Some(output) = reached.first().copied() else {
                continue;
            };
            let view = NodeView::new(self.graph, node, &self.wanted);
            if !(0..node.inputs.len()).any(|place| view.is_wanted(place)) {
                continue;
            }
            if reached.len() > 1 || node.outputs.first().copied().flatten() != Some(output) {
                return Err(view.unsupported("a gradient comes to another output than its first"));
            }
            let gradient = add_up(&self.contributions[&output], writer);
            let gradients = rules::differentiate_node(&view, &gradient, writer)?;
            for (input, gradient) in node.inputs.iter().zip(gradients) {
                if let (Some(input), Some(gradient)) = (input, gradient)
                    && self.wanted.contains(input)
                {
                    self.contributions.entry(*input).or_default().push(gradient);
                }
            }
        }
        let graph = self.graph;
        let inputs = graph.inputs().iter();
        let found = inputs.filter_map(|id| {
            let contributions = self.contributions.get(id)?;
            (!contributions.is_empty()).then(|| (*id, add_up(contributions, writer)))
        });
        Ok(found.collect())
    }
}

/// Adds the contributions to one gradient in their order.
fn add_up(contributions: &[String], writer: &mut Writer) -> String {
    let (first, more) = contributions
        .split_first()
        .expect("a reached value has a contribution");
    let sum = |sum: String, next: &String| writer.add("Add", &[&sum, next]);
    more.iter().fold(first.clone(), sum)
}
