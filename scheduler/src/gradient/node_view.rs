//! Describes a node to its rule of differentiation: names and extents of its inputs and outputs,
//! attributes, constants, and which gradients are needed.

use std::collections::BTreeSet;

use super::GradientError;
use crate::graph::{Graph, Node, ValueId};

/// A node with the facts that its rule of differentiation needs.
pub(super) struct NodeView<'a> {
    graph: &'a Graph,
    /// The node whose rule reads this.
    pub node: &'a Node,
    wanted: &'a BTreeSet<ValueId>,
}

impl<'a> NodeView<'a> {
    /// Creates a view; `wanted` are the values whose gradients are needed.
    pub fn new(graph: &'a Graph, node: &'a Node, wanted: &'a BTreeSet<ValueId>) -> Self {
        Self {
            graph,
            node,
            wanted,
        }
    }

    /// Returns whether the gradient of an input is needed.
    pub fn is_wanted(&self, place: usize) -> bool {
        let input = self.node.inputs.get(place).copied().flatten();
        input.is_some_and(|id| self.wanted.contains(&id))
    }

    /// Returns the name of an input.
    pub fn input(&self, place: usize) -> Result<&str, GradientError> {
        let id = self.node.inputs.get(place).copied().flatten();
        let id = id.ok_or_else(|| self.unsupported("an input is missing"))?;
        Ok(&self.graph.value(id).name)
    }

    /// Returns the name of the first output.
    pub fn output(&self) -> Result<&str, GradientError> {
        let id = self.node.outputs.first().copied().flatten();
        let id = id.ok_or_else(|| self.unsupported("its output is missing"))?;
        Ok(&self.graph.value(id).name)
    }

    /// Returns the extents of an input.
    pub fn input_dims(&self, place: usize) -> Result<Vec<usize>, GradientError> {
        let id = self.node.inputs.get(place).copied().flatten();
        let id = id.ok_or_else(|| self.unsupported("an input is missing"))?;
        known_dims(self.graph, id)
    }

    /// Returns the extents of the first output.
    pub fn output_dims(&self) -> Result<Vec<usize>, GradientError> {
        let id = self.node.outputs.first().copied().flatten();
        let id = id.ok_or_else(|| self.unsupported("its output is missing"))?;
        known_dims(self.graph, id)
    }

    /// Returns the integers that an input holds, if they are known before the run.
    pub fn input_ints(&self, place: usize) -> Option<&[i64]> {
        let id = self.node.inputs.get(place).copied().flatten()?;
        self.graph.value(id).fact.ints.as_deref()
    }

    /// Returns the floats that an input holds, if they are known before the run.
    pub fn input_floats(&self, place: usize) -> Option<Vec<f64>> {
        let id = self.node.inputs.get(place).copied().flatten()?;
        let tensor = self.graph.value(id).weight()?.to_tensor()?;
        tensor.to_f64s().ok()
    }

    /// Returns an integer attribute or its default.
    pub fn int(&self, name: &str, default: i64) -> i64 {
        self.node.proto.int(name).unwrap_or(default)
    }

    /// Returns an attribute that names an axis of a value of this rank.
    pub fn axis(&self, default: i64, rank: usize) -> Result<usize, GradientError> {
        let axis = self.int("axis", default);
        self.find_axis(axis, rank)
    }

    /// Returns the axis of a value of this rank by a number that counts from the end if negative.
    pub fn find_axis(&self, axis: i64, rank: usize) -> Result<usize, GradientError> {
        let from_end = if axis < 0 { axis + rank as i64 } else { axis };
        let found = usize::try_from(from_end).ok().filter(|axis| *axis < rank);
        found.ok_or_else(|| self.unsupported("it names an axis that its input does not have"))
    }

    /// Returns the error for a use of the operator that its rule does not cover.
    pub fn unsupported(&self, why: &'static str) -> GradientError {
        GradientError::Unsupported {
            node: self.node.name().to_owned(),
            operator: self.node.operator_name(),
            why,
        }
    }
}

/// Returns the extents of a value, which must be known.
pub(super) fn known_dims(graph: &Graph, id: ValueId) -> Result<Vec<usize>, GradientError> {
    let value = graph.value(id);
    let dims = value.dims().and_then(|dims| {
        let dims = dims.into_iter().map(|dim| usize::try_from(dim).ok());
        dims.collect::<Option<Vec<usize>>>()
    });
    dims.ok_or_else(|| GradientError::UnknownShape {
        value: value.name.clone(),
    })
}
