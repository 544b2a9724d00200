//! Numbers the values of a plan while it is drafted, and records the step that makes each value and
//! how often later steps read it. The planners ask it whether a node can be fused into the step
//! before.

use std::collections::BTreeMap;

use souk_onnx::graph::Graph;

/// A value, by its number.
pub(crate) type Value = usize;

/// The values of a plan so far, each with the step that makes it and the number of its readers.
pub(crate) struct Values<'a> {
    /// The inputs of a run.
    pub inputs: Vec<(String, Value)>,
    names: BTreeMap<String, Value>,
    /// How often each name is read; an output of the run counts as a read.
    reads: BTreeMap<&'a str, usize>,
    /// How often later steps read each value.
    left: Vec<usize>,
    /// The step that makes each value.
    makers: Vec<Option<usize>>,
}

impl<'a> Values<'a> {
    /// Starts without values, for a graph in which these names are read.
    pub fn new(graph: &'a Graph, read: impl Iterator<Item = &'a String>) -> Self {
        let mut reads = BTreeMap::new();
        let wanted = graph.outputs.iter().map(|port| &port.name);
        for name in read.chain(wanted) {
            *reads.entry(name.as_str()).or_insert(0) += 1;
        }
        Self {
            inputs: Vec::new(),
            names: BTreeMap::new(),
            reads,
            left: Vec::new(),
            makers: Vec::new(),
        }
    }

    /// Returns the value of a name; a name that no step has made becomes an input of the run.
    pub fn value_by_name(&mut self, name: &str) -> Value {
        if let Some(&value) = self.names.get(name) {
            return value;
        }
        let value = self.add_value(name, None);
        self.inputs.push((name.to_owned(), value));
        value
    }

    /// Adds a value that a step makes, or an input.
    pub fn add_value(&mut self, name: &str, maker: Option<usize>) -> Value {
        let value = self.makers.len();
        self.makers.push(maker);
        self.left.push(self.reads.get(name).copied().unwrap_or(0));
        self.names.insert(name.to_owned(), value);
        value
    }

    /// Gives a value another name; the node that did so was one of its readers.
    pub fn rename_value(&mut self, value: Value, name: &str) {
        let reads = self.reads.get(name).copied().unwrap_or(0);
        self.left[value] = (self.left[value] + reads).saturating_sub(1);
        self.names.insert(name.to_owned(), value);
    }

    /// Returns the step that makes a value, if only one later node reads the value.
    pub fn maker_for_one(&self, value: Value) -> Option<usize> {
        self.makers[value].filter(|_| self.left[value] == 1)
    }

    /// Returns two values in the order in which they are made.
    pub fn in_order(&self, one: Value, other: Value) -> (Value, Value) {
        match self.makers[one] > self.makers[other] {
            true => (other, one),
            false => (one, other),
        }
    }

    /// Returns the outputs of a graph; `None` if no step makes one of them.
    pub fn graph_outputs(&self, graph: &Graph) -> Option<Vec<(String, Value)>> {
        let output = |name: &String| Some((name.clone(), *self.names.get(name)?));
        let outputs = graph.outputs.iter().map(|port| output(&port.name));
        outputs.collect()
    }

    /// Returns the number of values.
    pub fn value_count(&self) -> usize {
        self.makers.len()
    }
}
