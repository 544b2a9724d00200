//! Splits off the part of a model that computes from texts, and runs it on the buyer's machine
//! before the rest of the model.
//!
//! A provider gets numbers instead of texts, so it cannot process texts. For example, it cannot
//! lower their case. Models do that first: they lower, split and count their inputs, and the rest
//! of the model reads only numbers. The removed part is cheap, and no text leaves the machine.

mod moves;
pub mod ngrams;
mod operators;

use std::collections::{BTreeMap, BTreeSet};

use souk_memory::{DType, Tensor, TensorError};
use thiserror::Error;

use super::RUNTIME_DOMAIN;
use super::text_numbers::{Texts, Words, is_text_cast};
use crate::{GraphProto, NodeProto, ValueInfoProto, constant_value, tensor_from_proto};

/// The nodes that compute from texts before a model runs, and the constants they read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preparation {
    nodes: Vec<NodeProto>,
    constants: BTreeMap<String, Tensor>,
    /// The model's inputs that these nodes read.
    reads: BTreeSet<String>,
    /// Those inputs that no other node reads.
    taken: BTreeSet<String>,
    /// The values that the rest of the model reads, with their names there.
    makes: BTreeMap<String, String>,
}

/// Reasons why texts cannot be prepared.
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
    /// The input has numbers instead of texts.
    #[error("it takes texts, but the array holds numbers: give an array of texts")]
    NotText,
    /// A text does not spell a number.
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
        self.makes.values()
    }

    /// Returns the model's inputs that are read here; [`Self::run`] will fail if one is missing.
    pub fn required_inputs(&self) -> impl Iterator<Item = &String> {
        self.reads.iter()
    }

    /// Computes the model's inputs from the user's inputs. `words` must be the model's own; the run
    /// can add to them.
    ///
    /// # Errors
    /// [`PreparationError`] if an input is missing or a node does not accept it.
    pub fn run(
        &self,
        words: &mut Words,
        inputs: &mut BTreeMap<String, Tensor>,
    ) -> Result<(), PreparationError> {
        let mut known = self.constants.clone();
        for name in &self.reads {
            let given = inputs.get(name);
            let given = given.ok_or_else(|| PreparationError::Missing(name.clone()))?;
            known.insert(name.clone(), given.clone());
        }
        for node in &self.nodes {
            let made =
                compute_outputs(node, &known, words).map_err(|why| PreparationError::Node {
                    node: crate::subgraph::node_name(node),
                    operator: node.op_type().to_owned(),
                    why,
                })?;
            let named = node.output.iter().cloned().zip(made);
            known.extend(named.filter(|(name, _)| !name.is_empty()));
        }
        inputs.retain(|name, _| !self.taken.contains(name));
        for (made, name) in &self.makes {
            if let Some(tensor) = known.get(made) {
                inputs.insert(name.clone(), tensor.clone());
            }
        }
        Ok(())
    }
}

/// Computes the outputs of a node, in order.
fn compute_outputs(
    node: &NodeProto,
    known: &BTreeMap<String, Tensor>,
    words: &mut Words,
) -> Result<Vec<Tensor>, NodeFault> {
    let inputs: Vec<Option<&Tensor>> = (0..node.input.len())
        .map(|index| known.get(node.input_name(index)?))
        .collect();
    let input = |index: usize| inputs.get(index).copied().flatten();
    match moves::compute_move(node, &input)? {
        Some(moved) => Ok(vec![moved]),
        None => operators::compute_outputs(node, &input, words),
    }
}

/// Removes from a graph the nodes that compute from its texts before anything else.
pub(super) fn extract_preparation(graph: &mut GraphProto, texts: &mut Texts) -> Preparation {
    let Search { nodes, known, .. } = Search::from_graph(graph, texts);
    if nodes.is_empty() {
        return Preparation::default();
    }
    let mut preparation = Preparation::default();
    let inputs: BTreeSet<String> = graph.input.iter().map(|it| it.name().to_owned()).collect();
    let mut rest = Vec::new();
    for (index, node) in std::mem::take(&mut graph.node).into_iter().enumerate() {
        if nodes.contains(&index) {
            let read = node.input.iter().filter(|name| inputs.contains(*name));
            preparation.reads.extend(read.cloned());
            preparation.nodes.push(node);
        } else {
            rest.push(node);
        }
    }
    let named = |name: &String| Some((name.clone(), known.constants.get(name)?.clone()));
    let read = preparation.nodes.iter().flat_map(|node| &node.input);
    preparation.constants = read.filter_map(named).collect();
    graph.node = rest;
    hand_on(graph, texts, &mut preparation);
    preparation
}

/// Makes the results of the removed nodes inputs of the remaining graph, if it reads them.
fn hand_on(graph: &mut GraphProto, texts: &mut Texts, preparation: &mut Preparation) {
    let read = collect_reads(&graph.node);
    let outputs: BTreeSet<String> = graph.output.iter().map(|it| it.name().to_owned()).collect();
    for node in preparation.nodes.clone() {
        for (place, made) in node.output.iter().enumerate() {
            if outputs.contains(made) {
                // No provider computes this output; the graph passes it through.
                let name = format!("{made} (prepared)");
                let through = NodeProto::for_operator("Identity", &[&name], made);
                graph.node.push(through);
                declare_input(graph, texts, &node, place, &name);
                preparation.makes.insert(made.clone(), name);
            } else if read.contains(made) {
                declare_input(graph, texts, &node, place, made);
                preparation.makes.insert(made.clone(), made.clone());
            }
        }
    }
    let still = collect_reads(&graph.node);
    let gone = |name: &String| !still.contains(name) && !outputs.contains(name);
    let taken = preparation.reads.iter().filter(|name| gone(name));
    preparation.taken = taken.cloned().collect();
    let taken = &preparation.taken;
    graph.input.retain(|input| !taken.contains(input.name()));
    graph
        .initializer
        .retain(|it| still.contains(it.name()) || outputs.contains(it.name()));
}

/// Returns every value that nodes read, including in their bodies.
fn collect_reads(nodes: &[NodeProto]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for node in nodes {
        found.extend(node.input.iter().cloned());
        for body in node.subgraphs() {
            found.extend(collect_reads(&body.node));
            found.extend(body.output.iter().map(|it| it.name().to_owned()));
        }
    }
    found
}

/// Declares an output of a removed node as an input.
fn declare_input(
    graph: &mut GraphProto,
    texts: &mut Texts,
    node: &NodeProto,
    place: usize,
    name: &str,
) {
    let dtype = numbers_made(node, place);
    if dtype.is_none() {
        texts.mark_text(name);
    }
    let code = dtype.unwrap_or(DType::I64).onnx_code();
    graph
        .input
        .push(ValueInfoProto::new_tensor(name, code, None));
}

/// Returns the type of an output of a node that runs here; `None` if it is text.
fn numbers_made(node: &NodeProto, place: usize) -> Option<DType> {
    match node.op_type() {
        "TfIdfVectorizer" => Some(DType::F32),
        "RegexFullMatch" => Some(DType::Bool),
        "StringSplit" if place == 1 => Some(DType::I64),
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
    made: BTreeMap<String, usize>,
    inputs: BTreeSet<String>,
}

/// A search for the nodes to remove.
struct Search {
    nodes: BTreeSet<usize>,
    known: AvailableValues,
}

impl Search {
    /// Finds the nodes that compute from available texts, and the nodes that these need.
    fn from_graph(graph: &GraphProto, texts: &mut Texts) -> Self {
        let mut search = Self {
            nodes: BTreeSet::new(),
            known: AvailableValues::default(),
        };
        let known = &mut search.known;
        known.inputs = texts.inputs.clone();
        for tensor in &graph.initializer {
            if moves::is_small(tensor)
                && let Ok(value) = tensor_from_proto(tensor)
            {
                known.constants.insert(tensor.name().to_owned(), value);
            }
        }
        let mut computing = Vec::new();
        for (index, node) in graph.node.iter().enumerate() {
            if let (Some(value), Some(name)) = (constant_value(node), node.output.first()) {
                known.constants.insert(name.clone(), value);
                continue;
            }
            let computes = is_text_computation(node, texts);
            let at_hand = node.input.iter().all(|name| known.has_value(name));
            if !at_hand || !(computes || moves::is_move(node, texts)) {
                continue;
            }
            for (place, name) in node.output.iter().enumerate() {
                known.made.insert(name.clone(), index);
                if numbers_made(node, place).is_none() {
                    texts.mark_text(name);
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
        let mut open = vec![index];
        while let Some(index) = open.pop() {
            if self.nodes.insert(index) {
                let read = graph.node[index].input.iter();
                open.extend(read.filter_map(|name| self.known.made.get(name)));
            }
        }
    }
}

impl AvailableValues {
    fn has_value(&self, name: &str) -> bool {
        name.is_empty()
            || self.constants.contains_key(name)
            || self.made.contains_key(name)
            || self.inputs.contains(name)
    }
}

/// Returns whether a node computes with texts.
fn is_text_computation(node: &NodeProto, texts: &Texts) -> bool {
    let reads_text = node.input.iter().any(|name| texts.is_text(name));
    match (node.operator_domain(), node.op_type()) {
        (RUNTIME_DOMAIN, "Tokenizer") => true,
        ("", "StringNormalizer" | "StringConcat" | "StringSplit" | "RegexFullMatch") => true,
        ("", "TfIdfVectorizer") => reads_text,
        ("", "Cast") => reads_text && !is_text_cast(node),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
