//! States: what a model keeps from one request to the next, such as the keys and values that a
//! decoder has seen.
//!
//! A state is an output that is an input of the next request. Which are is said in the model's own
//! metadata, so that it stays said wherever the model goes; other tools read past it. One node
//! reads a state and makes it anew, so no cut of the graph can part the two.

use std::collections::BTreeSet;

use thiserror::Error;

use crate::{GraphProto, ModelProto, NodeProto, StringStringEntryProto};

/// What the keys of the entries begin with; the input's name follows.
const KEY: &str = "ai.souk.state:";

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
    /// There is no such input, or it is said twice.
    #[error("state {input:?} is no input of the model, or stated twice")]
    Input {
        /// The name.
        input: String,
    },
    /// There is no such output, or it is said twice.
    #[error("state {output:?} is no output of the model, or stated twice")]
    Output {
        /// The name.
        output: String,
    },
    /// More than one node reads it, or another makes it.
    #[error("state {input:?} is not read by one node alone that makes {output:?}")]
    Parted {
        /// The input.
        input: String,
        /// The output.
        output: String,
    },
}

impl StatePort {
    /// The entry of a model's metadata that says so.
    #[must_use]
    pub fn entry(&self) -> StringStringEntryProto {
        StringStringEntryProto::new(format!("{KEY}{}", self.input), self.output.clone())
    }
}

/// The states a model says it has, in its order; none where it says nothing.
///
/// # Errors
/// [`StateError`]: what it says does not fit its graph.
pub fn states(model: &ModelProto) -> Result<Vec<StatePort>, StateError> {
    let stated = model.metadata_props.iter().filter_map(|entry| {
        Some(StatePort {
            input: entry.key().strip_prefix(KEY)?.to_owned(),
            output: entry.value().to_owned(),
        })
    });
    let stated: Vec<StatePort> = stated.collect();
    let none = GraphProto::default();
    let graph = model.graph.as_ref().unwrap_or(&none);
    let mut inputs: BTreeSet<&str> = graph.input.iter().map(|it| it.name()).collect();
    let mut outputs: BTreeSet<&str> = graph.output.iter().map(|it| it.name()).collect();
    for state in &stated {
        check(state, graph, &mut inputs, &mut outputs)?;
    }
    Ok(stated)
}

fn check(
    state: &StatePort,
    graph: &GraphProto,
    inputs: &mut BTreeSet<&str>,
    outputs: &mut BTreeSet<&str>,
) -> Result<(), StateError> {
    let StatePort { input, output } = state.clone();
    if !inputs.remove(input.as_str()) {
        return Err(StateError::Input { input });
    }
    if !outputs.remove(output.as_str()) {
        return Err(StateError::Output { output });
    }
    let reads = |node: &&NodeProto| crate::graph::values_read(node).contains(&input.as_str());
    let mut readers = graph.node.iter().filter(reads);
    match (readers.next(), readers.next()) {
        (Some(node), None) if node.output.contains(&output) => Ok(()),
        _ => Err(StateError::Parted { input, output }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ValueInfoProto;

    fn model(nodes: Vec<NodeProto>, states: &[(&str, &str)]) -> ModelProto {
        let value = |name: &str| ValueInfoProto::tensor(name, 1, None);
        let entry = |(input, output): &(&str, &str)| {
            let port = StatePort {
                input: (*input).to_owned(),
                output: (*output).to_owned(),
            };
            port.entry()
        };
        ModelProto {
            graph: Some(GraphProto {
                node: nodes,
                input: vec![value("past"), value("x")],
                output: vec![value("present"), value("y")],
                ..GraphProto::default()
            }),
            metadata_props: states.iter().map(entry).collect(),
            ..ModelProto::default()
        }
    }

    fn joined() -> NodeProto {
        NodeProto::of("Concat", &["past", "x"], "present")
    }

    #[test]
    fn a_state_is_read_and_made_by_one_node() {
        let y = || NodeProto::of("Relu", &["present"], "y");
        let whole = model(vec![joined(), y()], &[("past", "present")]);
        assert_eq!(states(&whole).unwrap()[0].output, "present");
        let spy = NodeProto::of("Relu", &["past"], "y");
        let parted = states(&model(vec![joined(), spy], &[("past", "present")]));
        assert!(matches!(parted, Err(StateError::Parted { .. })));
        let apart = states(&model(vec![joined(), y()], &[("past", "y")]));
        assert!(matches!(apart, Err(StateError::Parted { .. })));
    }

    #[test]
    fn states_are_named_once_and_by_names_there_are() {
        let of = |stated: &[(&str, &str)]| states(&model(vec![joined()], stated));
        assert!(matches!(
            of(&[("z", "present")]),
            Err(StateError::Input { .. })
        ));
        assert!(matches!(
            of(&[("past", "z")]),
            Err(StateError::Output { .. })
        ));
        let twice = of(&[("past", "present"), ("x", "present")]);
        assert!(matches!(twice, Err(StateError::Output { .. })));
        assert_eq!(of(&[]), Ok(Vec::new()));
    }
}
