//! States: what a model keeps from one request to the next, such as the keys and values that a
//! decoder has seen.
//!
//! A state is an output that is an input of the next request, and one node reads it and makes it
//! anew. That node says so in its own metadata, so it stays said wherever the node goes, no cut of
//! the graph parts the two, and other tools read past it.
//!
//! An output that is fed back is told of the same way: it is an input of the next request where
//! that does not bring it, such as the token that a decoder goes on with. Another node reads it,
//! wherever that is.
//!
//! A model may say where it is to be cut: at values whose nodes say so, and then nowhere else. It
//! is for models whose parts somebody has kernels for, and knows which.

use std::collections::BTreeSet;

use thiserror::Error;

use crate::{GraphProto, ModelProto, NodeProto, StringStringEntryProto};

/// The key of the entry; its value are the places of the input and the output in their lists.
const KEY: &str = "ai.souk.state";

/// The key of the other entry; its value are the place of the output and the name of the input.
const FED_KEY: &str = "ai.souk.fed";

/// The key of the entry of a node whose output may go from part to part; its value is the place.
const CUT_KEY: &str = "ai.souk.cut";

/// An input, and the output that is its next value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePort {
    /// The input.
    pub input: String,
    /// The output.
    pub output: String,
}

/// Why what a model says of its states does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StateError {
    /// The entry names no input and output of its node.
    #[error("node {node:?} says of its states {value:?}, which is not INPUT:OUTPUT of it")]
    Entry {
        /// The node.
        node: String,
        /// What it says.
        value: String,
    },
    /// It is no input of the model, or another node reads it too.
    #[error("state {input:?} is no input of the model that one node alone reads")]
    Input {
        /// The name.
        input: String,
    },
    /// It is no output of the model.
    #[error("state {output:?} is no output of the model")]
    Output {
        /// The name.
        output: String,
    },
}

/// The entry of a node's metadata by which its output is the next value of its input.
#[must_use]
pub fn entry(input: usize, output: usize) -> StringStringEntryProto {
    StringStringEntryProto::new(KEY, format!("{input}:{output}"))
}

/// The entry of a node's metadata by which its output is fed to an input of the model.
#[must_use]
pub fn fed_entry(output: usize, input: &str) -> StringStringEntryProto {
    StringStringEntryProto::new(FED_KEY, format!("{output}:{input}"))
}

/// The entry of a node's metadata by which the model may be cut at its output.
#[must_use]
pub fn cut_entry(output: usize) -> StringStringEntryProto {
    StringStringEntryProto::new(CUT_KEY, output.to_string())
}

/// The places of a node's outputs at which the model may be cut. What is said wrongly says nothing.
pub fn cuts_of_node(node: &NodeProto) -> impl Iterator<Item = usize> {
    let entries = node.metadata_props.iter();
    let own = entries.filter(|entry| entry.key() == CUT_KEY);
    let places = own.filter_map(|entry| entry.value().parse().ok());
    places.filter(|place| *place < node.output.len())
}

/// What a node's outputs are fed to: each's place, and the name of the input. What is said wrongly
/// feeds nothing.
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

/// The states a model has, in the order of its nodes; none where no node says so.
///
/// # Errors
/// [`StateError`]: what a node says does not fit the graph.
pub fn states(model: &ModelProto) -> Result<Vec<StatePort>, StateError> {
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
        if !inputs.contains(input.as_str()) || reads(graph, input) != 1 {
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

/// The states that a node reads and makes anew: the places of each among its inputs and outputs.
///
/// # Errors
/// [`StateError::Entry`]: it has no such input and output.
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

/// How often nodes read a value.
fn reads(graph: &GraphProto, name: &str) -> usize {
    let read = graph.node.iter().flat_map(crate::graph::values_read);
    read.filter(|read| *read == name).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ValueInfoProto;

    fn model(nodes: Vec<NodeProto>) -> ModelProto {
        let value = |name: &str| ValueInfoProto::tensor(name, 1, None);
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
            ..NodeProto::of("Concat", &["past", "x"], "present")
        }
    }

    #[test]
    fn a_state_is_read_by_the_one_node_that_makes_it() {
        let y = || NodeProto::of("Relu", &["present"], "y");
        let found = states(&model(vec![joined("0:0"), y()])).unwrap();
        let port = StatePort {
            input: "past".to_owned(),
            output: "present".to_owned(),
        };
        assert_eq!(found, [port]);
        assert_eq!(entry(0, 0), joined("0:0").metadata_props[0]);
        let spy = NodeProto::of("Relu", &["past"], "y");
        let refused = states(&model(vec![joined("0:0"), spy]));
        assert!(
            matches!(refused, Err(StateError::Input { .. })),
            "{refused:?}"
        );
    }

    #[test]
    fn what_does_not_fit_the_graph_is_refused() {
        let of = |node: NodeProto| states(&model(vec![node]));
        for value in ["", "0", "2:0", "0:1", "a:b", "0:0:0"] {
            let refused = of(joined(value));
            assert!(matches!(refused, Err(StateError::Entry { .. })), "{value}");
        }
        let inner = NodeProto {
            output: vec!["inner".to_owned()],
            ..joined("0:0")
        };
        assert!(matches!(of(inner), Err(StateError::Output { .. })));
        assert_eq!(of(NodeProto::of("Relu", &["x"], "y")), Ok(Vec::new()));
    }

    #[test]
    fn a_node_says_at_which_of_its_outputs_a_model_is_cut() {
        let mut node = NodeProto::of("Add", &["x", "y"], "sum");
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
