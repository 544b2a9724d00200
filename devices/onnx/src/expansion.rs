//! Nodes of other operator sets in terms of what every device has.
//!
//! What classical learning (`ai.onnx.ml`) and the tools of ONNX Runtime (`com.microsoft`) write is
//! mostly short for standard operators. It is written out as a model comes in, so that it can be
//! inferred, costed and cut, and runs wherever those run. Left are operators with kernels of their
//! own, in one form each. What is not known stays as it is, and is refused by name.
//!
//! Texts are told apart by numbers: see [`Words`]. What takes them apart is computed before the
//! rest: see [`Preparation`].

mod activation;
mod attention;
mod body;
mod classical;
mod ensemble;
mod facts;
mod fused;
mod lists;
mod optionals;
mod preparation;
mod quantised;
mod scores;
mod sparse;
mod words;

use std::collections::BTreeMap;

use thiserror::Error;

use crate::budget::{Beyond, Usage};
use crate::{CLASSICAL_DOMAIN, GraphProto, ModelProto, NodeProto, OperatorSetIdProto};
use body::Body;
use facts::Facts;
pub use preparation::{Preparation, PreparationError, Wrong, ngrams};
pub use words::{Texts, Words};

/// What ONNX Runtime and its tools write beyond ONNX.
const RUNTIME_DOMAIN: &str = "com.microsoft";

/// The standard operator set of a model that states none: its nodes are all of other sets.
const OPSET_DEFAULT: i64 = 21;

/// A model that cannot be written in terms of numbers.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ExpansionError {
    /// A node that does more with texts than to move and compare them, where only providers are.
    #[error(
        "node {node:?} ({operator}) computes with texts that are not at hand before the model runs"
    )]
    Text {
        /// The node.
        node: String,
        /// Its operator.
        operator: String,
    },
    /// A list whose length is not known before the model runs.
    #[error(
        "output {output:?} is a list of as many tensors as a run makes: join them by \
         ConcatFromSequence, or give each as an output"
    )]
    List {
        /// The output.
        output: String,
    },
    /// What nodes stand for is too much.
    #[error(transparent)]
    Beyond(#[from] Beyond),
}

/// Names of the columns of an output that stood for maps: one a class.
pub type Columns = BTreeMap<String, Vec<Label>>;

/// What a class is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Label {
    /// A number.
    Number(i64),
    /// A text.
    Text(String),
}

/// What a model's values mean that are no longer what the model says they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Meanings {
    /// Inputs and outputs that are texts, and the words there are.
    pub texts: Texts,
    /// Outputs that were lists of maps, each now a matrix with a row for each of them.
    pub columns: Columns,
    /// What is computed from texts before the model runs.
    pub preparation: Preparation,
}

/// Writes out what is short for standard operators.
///
/// # Errors
/// [`ExpansionError`]: a node that computes with texts, an output that is no tensor.
pub fn expand(model: &mut ModelProto) -> Result<Meanings, ExpansionError> {
    let mut meanings = Meanings::default();
    if model.opset("").is_none() {
        model.opset_import.push(OperatorSetIdProto {
            domain: None,
            version: Some(OPSET_DEFAULT),
        });
    }
    let opset = model.opset("").unwrap_or(OPSET_DEFAULT);
    if let Some(graph) = &mut model.graph {
        sparse::resolve(graph);
        optionals::resolve(graph);
        words::number(graph, &mut meanings.texts);
        meanings.preparation = preparation::take(graph, &mut meanings.texts);
        let facts = written_out(graph, &Facts::new(opset), &mut meanings)?;
        lists::give_outputs(graph, &facts, &meanings.columns)?;
        declare_columns(graph, &meanings.columns);
    }
    Ok(meanings)
}

/// Writes out the nodes of a graph, within what is known around it; gives what is known in it.
fn written_out(
    graph: &mut GraphProto,
    around: &Facts,
    meanings: &mut Meanings,
) -> Result<Facts, ExpansionError> {
    let mut facts = around.within(graph);
    let mut written = Vec::with_capacity(graph.node.len());
    for mut node in std::mem::take(&mut graph.node) {
        for attribute in &mut node.attribute {
            for body in attribute.g.iter_mut().chain(&mut attribute.graphs) {
                written_out(body, &facts, meanings)?;
            }
        }
        let mut body = Body::new(&node, &facts, meanings);
        let nodes = if let Some(list) = lists::made(&mut body) {
            let mut nodes = body.written();
            facts.note_list(&node, list);
            nodes.push(node);
            nodes
        } else if expanded(&mut body).is_some() {
            body.written()
        } else {
            vec![node]
        };
        for node in &nodes {
            facts.follow(node, &mut meanings.texts)?;
        }
        written.extend(nodes);
        let usage = Usage {
            nodes: written.len() as u64,
            memory: 0,
        };
        usage.checked()?;
    }
    graph.node = written;
    Ok(facts)
}

/// Writes the node of `body` out; `None` if it stays as it is.
fn expanded(body: &mut Body<'_>) -> Option<()> {
    match body.call().operator_domain() {
        CLASSICAL_DOMAIN => classical::expand(body),
        RUNTIME_DOMAIN => activation::expand(body)
            .or_else(|| fused::expand(body))
            .or_else(|| quantised::expand(body))
            .or_else(|| attention::expand(body)),
        "" => standard(body),
        _ => None,
    }
}

/// Operators that tools write as if they were standard, and casts between texts.
fn standard(body: &mut Body<'_>) -> Option<()> {
    match body.call().op_type() {
        "SimplifiedLayerNormalization" => activation::root_mean_square(body),
        "Cast" if body.is_text(0) && words::is_text_cast(body.call()) => {
            let value = body.input(0)?.to_owned();
            body.give(0, &value);
            Some(())
        }
        _ => lists::expand(body),
    }
}

/// Declares outputs that were lists of maps as the matrices that they are now.
fn declare_columns(graph: &mut GraphProto, columns: &Columns) {
    for output in &mut graph.output {
        if columns.contains_key(output.name()) {
            *output = crate::ValueInfoProto::tensor(output.name(), 0, None);
        }
    }
}

/// What a node is called in an error.
fn text_error(node: &NodeProto) -> ExpansionError {
    ExpansionError::Text {
        node: crate::subgraph::node_name(node),
        operator: node.op_type().to_owned(),
    }
}

#[cfg(test)]
mod tests;
