//! Splits off the part of a model that computes from strings, and runs it on the buyer's machine
//! before the rest of the model.
//!
//! A provider gets the ids of strings instead of strings, so it cannot process them. For example,
//! it cannot lower their case. Models do that first: they lower, split and count their inputs, and
//! the rest of the model reads only numbers. The removed part is cheap, and no string leaves the
//! machine.

mod moves;
pub mod ngrams;
mod string_operators;

use std::collections::{BTreeMap, BTreeSet};

use souk_memory::{DType, Tensor, TensorError};
use thiserror::Error;

use super::RUNTIME_DOMAIN;
use super::string_table::{StringTable, Texts, casts_to_string};
use crate::{GraphProto, NodeProto, ValueInfoProto, constant_value, tensor_from_proto};

/// The nodes that compute from strings before a model runs, and the constants they read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preparation {
    nodes: Vec<NodeProto>,
    constants: BTreeMap<String, Tensor>,
    /// The model's inputs that these nodes read.
    input_names: BTreeSet<String>,
    /// The inputs among these that no other node reads, so the rest of the model does not have
    /// them.
    removed_inputs: BTreeSet<String>,
    /// The values that the rest of the model reads, with their names there.
    outputs: BTreeMap<String, String>,
}

/// Reasons why the preparation fails.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PreparationError {
    /// The caller left out an input.
    #[error("the input {0:?}, an array of texts, is missing")]
    Missing(String),
    /// A node does not accept its input or attributes.
    #[error("node {node:?} ({operator}) is computed before the model runs: {why}")]
    Node {
        /// Name of the node.
        node: String,
        /// Operator of the node.
        operator: String,
        /// Reason for the refusal.
        why: NodeFault,
    },
}

/// Reasons why a node does not accept its input or attributes.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum NodeFault {
    /// A tensor has the wrong shape or type.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The node lacks an input.
    #[error("its input {0} is missing")]
    Missing(usize),
    /// The input has numbers instead of strings.
    #[error("it takes texts, but the array holds numbers: give an array of texts")]
    NotText,
    /// Preparation does not compute this operator.
    #[error("this operator is not computed before the model runs")]
    Operator,
    /// A string does not spell a number.
    #[error("{0:?} is not a number")]
    NoNumber(String),
    /// An attribute has an unsupported value.
    #[error("its attribute {name} is {found:?}")]
    Attribute {
        /// Name of the attribute.
        name: &'static str,
        /// Value of the attribute.
        found: String,
    },
    /// The shape does not fit the operator.
    #[error("the shape {0:?} does not fit")]
    Shape(Vec<usize>),
}

impl Preparation {
    /// Returns the values computed here that the rest of the model reads.
    pub fn produced_values(&self) -> impl Iterator<Item = &String> {
        self.outputs.values()
    }

    /// Returns the model's inputs that are read here; [`Self::run`] will fail if one is missing.
    pub fn required_inputs(&self) -> impl Iterator<Item = &String> {
        self.input_names.iter()
    }

    /// Computes the model's inputs from the user's inputs. `table` must be the model's own; the run
    /// can add strings to it.
    ///
    /// # Errors
    /// [`PreparationError`] if an input is missing or a node does not accept it.
    pub fn run(
        &self,
        table: &mut StringTable,
        inputs: &mut BTreeMap<String, Tensor>,
    ) -> Result<(), PreparationError> {
        let mut values = self.constants.clone();
        for name in &self.input_names {
            let input = inputs.get(name);
            let input = input.ok_or_else(|| PreparationError::Missing(name.clone()))?;
            values.insert(name.clone(), input.clone());
        }
        for node in &self.nodes {
            let outputs =
                compute_outputs(node, &values, table).map_err(|why| PreparationError::Node {
                    node: crate::subgraph::node_name(node),
                    operator: node.op_type().to_owned(),
                    why,
                })?;
            let outputs = node.output.iter().cloned().zip(outputs);
            values.extend(outputs.filter(|(name, _)| !name.is_empty()));
        }
        inputs.retain(|name, _| !self.removed_inputs.contains(name));
        for (output, name) in &self.outputs {
            if let Some(tensor) = values.get(output) {
                inputs.insert(name.clone(), tensor.clone());
            }
        }
        Ok(())
    }
}

/// Computes the outputs of a node, in order.
fn compute_outputs(
    node: &NodeProto,
    values: &BTreeMap<String, Tensor>,
    table: &mut StringTable,
) -> Result<Vec<Tensor>, NodeFault> {
    let inputs: Vec<Option<&Tensor>> = (0..node.input.len())
        .map(|index| values.get(node.input_name(index)?))
        .collect();
    let input = |index: usize| inputs.get(index).copied().flatten();
    match moves::compute_move(node, &input)? {
        Some(moved) => Ok(vec![moved]),
        None => string_operators::compute_outputs(node, &input, table),
    }
}

/// Removes from a graph the nodes that compute from its strings before anything else.
pub(super) fn extract_preparation(graph: &mut GraphProto, texts: &mut Texts) -> Preparation {
    let Search {
        nodes, available, ..
    } = Search::from_graph(graph, texts);
    if nodes.is_empty() {
        return Preparation::default();
    }
    let mut preparation = Preparation::default();
    let inputs: BTreeSet<String> = graph.input.iter().map(|it| it.name().to_owned()).collect();
    let mut rest = Vec::new();
    for (index, node) in std::mem::take(&mut graph.node).into_iter().enumerate() {
        if nodes.contains(&index) {
            let names = node.input.iter().filter(|name| inputs.contains(*name));
            preparation.input_names.extend(names.cloned());
            preparation.nodes.push(node);
        } else {
            rest.push(node);
        }
    }
    let constant = |name: &String| Some((name.clone(), available.constants.get(name)?.clone()));
    let names = preparation.nodes.iter().flat_map(|node| &node.input);
    preparation.constants = names.filter_map(constant).collect();
    graph.node = rest;
    connect_outputs(graph, texts, &mut preparation);
    preparation
}

/// Makes the results of the removed nodes inputs of the remaining graph, if it reads them.
fn connect_outputs(graph: &mut GraphProto, texts: &mut Texts, preparation: &mut Preparation) {
    let read = collect_reads(&graph.node);
    let outputs: BTreeSet<String> = graph.output.iter().map(|it| it.name().to_owned()).collect();
    for node in preparation.nodes.clone() {
        for (index, output) in node.output.iter().enumerate() {
            if outputs.contains(output) {
                // No provider computes this output; the graph passes it through.
                let name = format!("{output} (prepared)");
                let identity = NodeProto::for_operator("Identity", &[&name], output);
                graph.node.push(identity);
                declare_input(graph, texts, &node, index, &name);
                preparation.outputs.insert(output.clone(), name);
            } else if read.contains(output) {
                declare_input(graph, texts, &node, index, output);
                preparation.outputs.insert(output.clone(), output.clone());
            }
        }
    }
    let still_read = collect_reads(&graph.node);
    let is_needed = |name: &str| still_read.contains(name) || outputs.contains(name);
    let removed = preparation.input_names.iter();
    let removed = removed.filter(|name| !is_needed(name));
    preparation.removed_inputs = removed.cloned().collect();
    let removed = &preparation.removed_inputs;
    graph.input.retain(|input| !removed.contains(input.name()));
    graph.initializer.retain(|weight| is_needed(weight.name()));
}

/// Returns all values that nodes and their bodies read.
fn collect_reads(nodes: &[NodeProto]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for node in nodes {
        names.extend(node.input.iter().cloned());
        for body in node.subgraphs() {
            names.extend(collect_reads(&body.node));
            names.extend(body.output.iter().map(|output| output.name().to_owned()));
        }
    }
    names
}

/// Declares an output of a removed node as an input of the graph.
fn declare_input(
    graph: &mut GraphProto,
    texts: &mut Texts,
    node: &NodeProto,
    output: usize,
    name: &str,
) {
    let dtype = output_dtype(node, output);
    if dtype.is_none() {
        texts.mark_string(name);
    }
    let code = dtype.unwrap_or(DType::I64).onnx_code();
    graph
        .input
        .push(ValueInfoProto::new_tensor(name, code, None));
}

/// Returns the element type of an output of a node that runs here; `None` for strings.
fn output_dtype(node: &NodeProto, output: usize) -> Option<DType> {
    match node.op_type() {
        "TfIdfVectorizer" => Some(DType::F32),
        "RegexFullMatch" => Some(DType::Bool),
        "StringSplit" if output == 1 => Some(DType::I64),
        "Cast" => {
            let code = node.int("to").and_then(|code| i32::try_from(code).ok())?;
            DType::from_onnx_code(code).ok()
        }
        _ => None,
    }
}

/// The values that are available before a model runs.
#[derive(Default)]
struct AvailableValues {
    constants: BTreeMap<String, Tensor>,
    /// Values computed here, each with the index of its node.
    computed: BTreeMap<String, usize>,
    inputs: BTreeSet<String>,
}

/// A search for the nodes to remove.
struct Search {
    nodes: BTreeSet<usize>,
    available: AvailableValues,
}

impl Search {
    /// Finds the nodes that compute from available strings, and the nodes that these need.
    fn from_graph(graph: &GraphProto, texts: &mut Texts) -> Self {
        let mut search = Self {
            nodes: BTreeSet::new(),
            available: AvailableValues::default(),
        };
        let available = &mut search.available;
        available.inputs = texts.inputs.clone();
        for tensor in &graph.initializer {
            if moves::is_small(tensor)
                && let Ok(value) = tensor_from_proto(tensor)
            {
                available.constants.insert(tensor.name().to_owned(), value);
            }
        }
        let mut computing = Vec::new();
        for (index, node) in graph.node.iter().enumerate() {
            if let (Some(value), Some(name)) = (constant_value(node), node.output.first()) {
                available.constants.insert(name.clone(), value);
                continue;
            }
            let computes = is_text_computation(node, texts);
            let has_inputs = node.input.iter().all(|name| available.has_value(name));
            if !has_inputs || !(computes || moves::is_move(node, texts)) {
                continue;
            }
            for (output, name) in node.output.iter().enumerate() {
                available.computed.insert(name.clone(), index);
                if output_dtype(node, output).is_none() {
                    texts.mark_string(name);
                }
            }
            if computes {
                computing.push(index);
            }
        }
        for index in computing {
            search.require_node(graph, index);
        }
        search
    }

    fn require_node(&mut self, graph: &GraphProto, index: usize) {
        let mut required = vec![index];
        while let Some(index) = required.pop() {
            if self.nodes.insert(index) {
                let names = graph.node[index].input.iter();
                required.extend(names.filter_map(|name| self.available.computed.get(name)));
            }
        }
    }
}

impl AvailableValues {
    fn has_value(&self, name: &str) -> bool {
        name.is_empty()
            || self.constants.contains_key(name)
            || self.computed.contains_key(name)
            || self.inputs.contains(name)
    }
}

/// Returns whether a node computes with strings.
fn is_text_computation(node: &NodeProto, texts: &Texts) -> bool {
    let reads_strings = node.input.iter().any(|name| texts.is_string(name));
    match (node.operator_domain(), node.op_type()) {
        (RUNTIME_DOMAIN, "Tokenizer") => true,
        ("", "StringNormalizer" | "StringConcat" | "StringSplit" | "RegexFullMatch") => true,
        ("", "TfIdfVectorizer") => reads_strings,
        ("", "Cast") => reads_strings && !casts_to_string(node),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
