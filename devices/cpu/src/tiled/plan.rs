//! The plan into which the image and sequence engines turn a graph: a list of steps over numbered
//! values, each step one pass over the data. [`Drafter`] builds it step by step.

use souk_onnx::graph::Graph;

use super::values::{Value, Values};

/// A graph as steps; `A` is the operation of a step.
#[derive(Debug)]
pub(crate) struct Plan<A> {
    pub steps: Vec<Step<A>>,
    /// Inputs of a run by name.
    pub inputs: Vec<(String, Value)>,
    /// Outputs of a run by name.
    pub outputs: Vec<(String, Value)>,
    pub values: usize,
}

/// One pass over values.
#[derive(Debug)]
pub(crate) struct Step<A> {
    pub action: A,
    pub inputs: Vec<Value>,
    pub output: Value,
}

/// A plan being drafted.
pub(crate) struct Drafter<'a, A> {
    pub graph: &'a Graph,
    pub steps: Vec<Step<A>>,
    pub values: Values<'a>,
}

impl<'a, A> Drafter<'a, A> {
    /// A plan without steps of a graph in which these names are read.
    pub fn new(graph: &'a Graph, read: impl Iterator<Item = &'a String>) -> Self {
        Self {
            graph,
            steps: Vec::new(),
            values: Values::new(graph, read),
        }
    }

    /// Adds a step that makes a value of this name; it must follow the steps that make its inputs.
    pub fn push(&mut self, action: A, inputs: Vec<Value>, name: &str) {
        let output = self.values.add_value(name, Some(self.steps.len()));
        self.steps.push(Step {
            action,
            inputs,
            output,
        });
    }

    /// Returns the step that makes a value, if only the current node reads the value.
    pub fn maker_for_one(&mut self, value: Value) -> Option<&mut Step<A>> {
        let maker = self.values.maker_for_one(value)?;
        Some(&mut self.steps[maker])
    }

    /// Returns the plan; `None` if no step makes an output of the graph.
    pub fn into_plan(self) -> Option<Plan<A>> {
        Some(Plan {
            outputs: self.values.graph_outputs(self.graph)?,
            steps: self.steps,
            values: self.values.value_count(),
            inputs: self.values.inputs,
        })
    }
}
