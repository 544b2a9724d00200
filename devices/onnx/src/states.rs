//! States: values that a model carries from one request to the next, such as a decoder's keys and
//! values.
//!
//! A state is an output that is an input of the next request, where one node both reads it and
//! computes its next value. That node must declare it in its own metadata, so the declaration moves
//! with the node, no cut of the graph separates the two, and other tools ignore it.
//!
//! A model declares an output that it feeds back in the same way: it becomes an input of the next
//! request, unless that request brings the input itself. For example, a decoder continues from the
//! last token. Any other node can read it.
//!
//! A model can also declare the values at which the planner can cut it; the planner will then cut
//! nowhere else. This suits models for whose parts some provider has kernels.

use std::collections::BTreeSet;

use thiserror::Error;

use crate::{GraphProto, ModelProto, NodeProto, StringStringEntryProto};

/// The key of a state's entry; its value is the input's and the output's index.
const KEY: &str = "ai.souk.state";

/// The key of a fed output's entry; its value is the output's index and the input's name.
const FED_KEY: &str = "ai.souk.fed";

/// The key of a cut's entry; its value is the index of an output that can go from part to part.
const CUT_KEY: &str = "ai.souk.cut";

/// A state's input, and the output that is its next value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePort {
    /// Name of the input.
    pub input: String,
    /// Name of the output.
    pub output: String,
}

/// Reasons why a model's declaration of states is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StateError {
    /// The entry does not name an input and an output of its node.
    #[error("node {node:?} declares the state {value:?}, which is not INPUT:OUTPUT of that node")]
    Entry {
        /// Name of the node.
        node: String,
        /// Value of the entry.
        value: String,
    },
    /// The state is not an input of the model, or another node reads it too.
    #[error("state {input:?} is not an input of the model that exactly one node reads")]
    Input {
        /// Name of the input.
        input: String,
    },
    /// The state is not an output of the model.
    #[error("state {output:?} is not an output of the model")]
    Output {
        /// Name of the output.
        output: String,
    },
}

/// Returns the metadata entry of a node whose output is the next value of its input.
#[must_use]
pub fn state_entry(input: usize, output: usize) -> StringStringEntryProto {
    StringStringEntryProto::new(KEY, format!("{input}:{output}"))
}

/// Returns the metadata entry of a node whose output feeds an input of the model.
#[must_use]
pub fn fed_entry(output: usize, input: &str) -> StringStringEntryProto {
    StringStringEntryProto::new(FED_KEY, format!("{output}:{input}"))
}

/// Returns the metadata entry of a node at whose output the planner may cut the model.
#[must_use]
pub fn cut_entry(output: usize) -> StringStringEntryProto {
    StringStringEntryProto::new(CUT_KEY, output.to_string())
}

/// Returns the indices of a node's outputs at which the planner may cut the model. Ignores
/// malformed entries.
pub fn cuts_of_node(node: &NodeProto) -> impl Iterator<Item = usize> {
    let entries = node.metadata_props.iter();
    let own = entries.filter(|entry| entry.key() == CUT_KEY);
    let places = own.filter_map(|entry| entry.value().parse().ok());
    places.filter(|place| *place < node.output.len())
}

/// Returns the index of each output of a node that feeds an input, and that input's name. Ignores
/// malformed entries.
pub fn fed_of_node(node: &NodeProto) -> impl Iterator<Item = (usize, &str)> {
    let entries = node.metadata_props.iter();
    let own = entries.filter(|entry| entry.key() == FED_KEY);
    own.filter_map(|entry| {
        let (output, input) = entry.value().split_once(':')?;
        let output = output.parse().ok()?;
        node.output.get(output)?;
        Some((output, input))
    })
}

/// Returns the states of a model in the order of its nodes; none if no node declares any.
///
/// # Errors
/// [`StateError`] if a declaration does not fit the graph.
pub fn model_states(model: &ModelProto) -> Result<Vec<StatePort>, StateError> {
    let Some(graph) = &model.graph else {
        return Ok(Vec::new());
    };
    let stated = graph.node.iter().flat_map(|node| {
        of_node(node).map(move |places| {
            let (input, output) = places?;
            Ok(StatePort {
                input: node.input[input].clone(),
                output: node.output[output].clone(),
            })
        })
    });
    let stated: Vec<StatePort> = stated.collect::<Result<_, _>>()?;
    let inputs: BTreeSet<&str> = graph.input.iter().map(|it| it.name()).collect();
    let outputs: BTreeSet<&str> = graph.output.iter().map(|it| it.name()).collect();
    for StatePort { input, output } in &stated {
        if !inputs.contains(input.as_str()) || count_reads(graph, input) != 1 {
            let input = input.clone();
            return Err(StateError::Input { input });
        }
        if !outputs.contains(output.as_str()) {
            let output = output.clone();
            return Err(StateError::Output { output });
        }
    }
    Ok(stated)
}

/// Returns the states that a node reads and updates: the index of each among its inputs and
/// outputs.
///
/// # Errors
/// [`StateError::Entry`] if the node has no such input and output.
pub fn of_node(node: &NodeProto) -> impl Iterator<Item = Result<(usize, usize), StateError>> + '_ {
    let entries = node.metadata_props.iter();
    let own = entries.filter(|entry| entry.key() == KEY);
    own.map(|entry| {
        let value = entry.value();
        let places = value.split_once(':');
        let places =
            places.and_then(|(input, output)| Some((input.parse().ok()?, output.parse().ok()?)));
        let places = places.filter(|(input, output): &(usize, usize)| {
            node.input_name(*input).is_some() && node.output.get(*output).is_some()
        });
        places.ok_or_else(|| StateError::Entry {
            node: crate::subgraph::node_name(node),
            value: value.to_owned(),
        })
    })
}

/// Counts how many times nodes read a value.
fn count_reads(graph: &GraphProto, name: &str) -> usize {
    let read = graph.node.iter().flat_map(crate::graph::values_read);
    read.filter(|read| *read == name).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ValueInfoProto;

    fn model(nodes: Vec<NodeProto>) -> ModelProto {
        let value = |name: &str| ValueInfoProto::new_tensor(name, 1, None);
        ModelProto {
            graph: Some(GraphProto {
                node: nodes,
                input: vec![value("past"), value("x")],
                output: vec![value("present"), value("y")],
                ..GraphProto::default()
            }),
            ..ModelProto::default()
        }
    }

    fn joined(value: &str) -> NodeProto {
        NodeProto {
            metadata_props: vec![StringStringEntryProto::new(KEY, value)],
            ..NodeProto::for_operator("Concat", &["past", "x"], "present")
        }
    }

    #[test]
    fn a_state_is_read_by_the_one_node_that_makes_it() {
        let y = || NodeProto::for_operator("Relu", &["present"], "y");
        let found = model_states(&model(vec![joined("0:0"), y()])).unwrap();
        let port = StatePort {
            input: "past".to_owned(),
            output: "present".to_owned(),
        };
        assert_eq!(found, [port]);
        assert_eq!(state_entry(0, 0), joined("0:0").metadata_props[0]);
        let spy = NodeProto::for_operator("Relu", &["past"], "y");
        let refused = model_states(&model(vec![joined("0:0"), spy]));
        assert!(
            matches!(refused, Err(StateError::Input { .. })),
            "{refused:?}"
        );
    }

    #[test]
    fn what_does_not_fit_the_graph_is_refused() {
        let of = |node: NodeProto| model_states(&model(vec![node]));
        for value in ["", "0", "2:0", "0:1", "a:b", "0:0:0"] {
            let refused = of(joined(value));
            assert!(matches!(refused, Err(StateError::Entry { .. })), "{value}");
        }
        let inner = NodeProto {
            output: vec!["inner".to_owned()],
            ..joined("0:0")
        };
        assert!(matches!(of(inner), Err(StateError::Output { .. })));
        assert_eq!(
            of(NodeProto::for_operator("Relu", &["x"], "y")),
            Ok(Vec::new())
        );
    }

    #[test]
    fn a_node_says_at_which_of_its_outputs_a_model_is_cut() {
        let mut node = NodeProto::for_operator("Add", &["x", "y"], "sum");
        assert_eq!(cuts_of_node(&node).count(), 0);
        node.metadata_props = vec![
            cut_entry(0),
            // It has no such output.
            cut_entry(1),
            StringStringEntryProto::new(CUT_KEY, "sum".to_owned()),
        ];
        assert_eq!(cuts_of_node(&node).collect::<Vec<_>>(), [0]);
    }
}
