//! Expands nodes of other operator sets into standard ONNX operators, which every device has, when
//! souk loads a model.
//!
//! Operators of classical learning (`ai.onnx.ml`) and of ONNX Runtime's tools (`com.microsoft`) are
//! mostly short for standard ones. Once they are expanded, souk can infer, cost and cut the model,
//! and run it on any device with the standard operators. Operators that have kernels of their own
//! remain, in one form each. Unknown operators remain as they are, and a device will refuse them by
//! name.
//!
//! Strings are replaced by their ids in a table: see [`StringTable`]. Operators that process texts
//! run before the rest of the model: see [`Preparation`].

mod activation;
mod attention;
mod builder;
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
mod string_table;

use std::collections::BTreeMap;

use thiserror::Error;

use crate::budget::{ExceededLimit, Usage};
use crate::{CLASSICAL_DOMAIN, GraphProto, ModelProto, NodeProto, OperatorSetIdProto};
use builder::ExpansionBuilder;
use facts::Facts;
pub use preparation::{NodeFault, Preparation, PreparationError, ngrams};
pub use string_table::{StringTable, Texts};

/// The domain of operators that ONNX Runtime and its tools write beyond ONNX.
const RUNTIME_DOMAIN: &str = "com.microsoft";

/// The standard operator set for a model that states none because all its nodes are of other sets.
const OPSET_DEFAULT: i64 = 21;

/// Reasons why a model cannot be expressed in numbers.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ExpansionError {
    /// A node does more with texts than move and compare them, and would run at a provider, which
    /// must not see texts.
    #[error(
        "node {node:?} ({operator}) computes with texts that are not known before the model runs"
    )]
    Text {
        /// Name of the node.
        node: String,
        /// Operator of the node.
        operator: String,
    },
    /// An output is a list of unknown length.
    #[error(
        "output {output:?} is a list whose length depends on the run: join its tensors with \
         ConcatFromSequence, or make each an output"
    )]
    List {
        /// Name of the output.
        output: String,
    },
    /// The expanded model exceeds a limit.
    #[error(transparent)]
    ExceededLimit(#[from] ExceededLimit),
}

/// Names of the columns of each output that stood for maps, one name per class.
pub type Columns = BTreeMap<String, Vec<Label>>;

/// The label of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Label {
    /// A number.
    Number(i64),
    /// A string.
    Text(String),
}

/// The meanings of values that the expansion changed. The caller must keep them, because only they
/// can turn the model's numbers back into texts and maps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Meanings {
    /// The inputs and outputs that are strings, and the table of the known strings.
    pub texts: Texts,
    /// Outputs that were lists of maps, each now a matrix with a row per map.
    pub columns: Columns,
    /// The part of the model that computes from texts before the rest runs.
    pub preparation: Preparation,
}

/// Expands the operators that are short for standard ones.
///
/// # Errors
/// [`ExpansionError`] if a node computes with texts, an output is a list of unknown length, or the
/// model exceeds a limit.
pub fn expand_model(model: &mut ModelProto) -> Result<Meanings, ExpansionError> {
    let mut meanings = Meanings::default();
    if model.opset("").is_none() {
        model.opset_import.push(OperatorSetIdProto {
            domain: None,
            version: Some(OPSET_DEFAULT),
        });
    }
    let opset = model.opset("").unwrap_or(OPSET_DEFAULT);
    if let Some(graph) = &mut model.graph {
        sparse::resolve_sparse(graph);
        optionals::resolve_optionals(graph);
        string_table::replace_strings(graph, &mut meanings.texts);
        meanings.preparation = preparation::extract_preparation(graph, &mut meanings.texts);
        let facts = written_out(graph, &Facts::new(opset), &mut meanings)?;
        lists::give_outputs(graph, &facts, &meanings.columns)?;
        declare_columns(graph, &meanings.columns);
    }
    Ok(meanings)
}

/// Expands the nodes of a graph, with the facts from the graphs around it, and returns its facts.
fn written_out(
    graph: &mut GraphProto,
    around: &Facts,
    meanings: &mut Meanings,
) -> Result<Facts, ExpansionError> {
    let mut facts = around.nested_facts(graph);
    let mut written = Vec::with_capacity(graph.node.len());
    for mut node in std::mem::take(&mut graph.node) {
        for attribute in &mut node.attribute {
            for body in attribute.g.iter_mut().chain(&mut attribute.graphs) {
                written_out(body, &facts, meanings)?;
            }
        }
        let mut body = ExpansionBuilder::new(&node, &facts, meanings);
        let nodes = if let Some(list) = lists::create_list(&mut body) {
            let mut nodes = body.into_nodes();
            facts.note_list(&node, list);
            nodes.push(node);
            nodes
        } else if expand_node(&mut body).is_some() {
            body.into_nodes()
        } else {
            vec![node]
        };
        for node in &nodes {
            facts.record_outputs(node, &mut meanings.texts)?;
        }
        written.extend(nodes);
        let usage = Usage {
            nodes: written.len() as u64,
            memory: 0,
        };
        usage.check_limits()?;
    }
    graph.node = written;
    Ok(facts)
}

/// Expands the node of `body`; returns `None` if the node remains as it is.
fn expand_node(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    match body.call().operator_domain() {
        CLASSICAL_DOMAIN => classical::expand_node(body),
        RUNTIME_DOMAIN => activation::expand_node(body)
            .or_else(|| fused::expand_node(body))
            .or_else(|| quantised::expand_node(body))
            .or_else(|| attention::expand_node(body)),
        "" => expand_standard(body),
        _ => None,
    }
}

/// Expands operators that tools write as if they were standard, and casts between texts.
fn expand_standard(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    match body.call().op_type() {
        "SimplifiedLayerNormalization" => activation::root_mean_square(body),
        "Cast" if body.is_string(0) && string_table::casts_to_string(body.call()) => {
            let value = body.input_name(0)?.to_owned();
            body.set_output(0, &value);
            Some(())
        }
        _ => lists::expand_node(body),
    }
}

/// Declares outputs that were lists of maps as matrices.
fn declare_columns(graph: &mut GraphProto, columns: &Columns) {
    for output in &mut graph.output {
        if columns.contains_key(output.name()) {
            *output = crate::ValueInfoProto::new_tensor(output.name(), 0, None);
        }
    }
}

/// Returns the error for a node that computes with texts.
fn text_error(node: &NodeProto) -> ExpansionError {
    ExpansionError::Text {
        node: crate::subgraph::node_name(node),
        operator: node.op_type().to_owned(),
    }
}

#[cfg(test)]
mod tests;
