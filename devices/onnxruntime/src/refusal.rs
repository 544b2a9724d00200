//! Explains why the library opened no session for a model, and names the nodes at fault. A session
//! refuses nodes that a provider leaves to the host's CPU, because a device that is sold as an NPU
//! must compute on that NPU or not at all.

use std::sync::{Arc, Mutex, PoisonError};

use ort::logging::LoggerFunction;
use souk_onnx::NodeProto;
use souk_onnx::graph::Graph;
use souk_onnx::subgraph::{CompileError, Unsupported, UnsupportedReason, node_name};

use super::ENGINE;

/// ONNX Runtime's error when a provider would leave nodes to the CPU although that is disabled, and
/// OpenVINO's error for a whole model.
const CPU_FALLBACK_ERRORS: [&str; 2] = [
    "fallback to CPU EP has been explicitly disabled",
    "Enable CPU fallback or try another device",
];

/// Text of the log line before each provider's list of nodes, and the text for the CPU's list.
const NODES_PLACED: &str = "placed on [";
const NODES_ON_CPU: &str = "placed on [CPUExecutionProvider]";

/// The reason why the library opened no session.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The provider leaves nodes to the host's CPU: those that the log names, perhaps none.
    FallsBackToCpu(Vec<FallbackNode>),
    /// Any other reason, in the library's words.
    Library(String),
}

/// A node that a provider leaves to the host's CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FallbackNode {
    operator: String,
    /// Name of the node in the model; empty if it has none.
    name: String,
}

/// Returns whether the error says that the provider leaves nodes to the host's CPU.
pub(super) fn is_cpu_fallback(error: &str) -> bool {
    CPU_FALLBACK_ERRORS
        .iter()
        .any(|words| error.contains(words))
}

impl Refusal {
    /// Converts the refusal into an error about the first node left to the CPU. If the log names
    /// none, the error is about the only node, or about the whole graph.
    pub fn into_error(self, graph: &Graph, provider: &str) -> CompileError {
        let engine = ENGINE;
        let nodes = match self {
            Self::FallsBackToCpu(nodes) => nodes,
            Self::Library(reason) => return CompileError::Engine { engine, reason },
        };
        let Some(first) = nodes.first() else {
            return match graph.nodes() {
                [node] => {
                    let reason = format!("{provider} leaves it to the host's CPU");
                    Unsupported::new(node, UnsupportedReason::Engine(reason)).into()
                }
                _ => {
                    let reason = format!("{provider} leaves nodes of the graph to the host's CPU");
                    CompileError::Engine { engine, reason }
                }
            };
        };
        let others = match nodes.len() - 1 {
            0 => String::new(),
            1 => " and another node".to_owned(),
            others => format!(" and {others} other nodes"),
        };
        let reason = format!("{provider} leaves it{others} to the host's CPU");
        let reason = UnsupportedReason::Engine(reason);
        match graph.nodes().iter().find(|node| first.is_same_node(node)) {
            Some(node) => Unsupported::new(node, reason).into(),
            // The library made this node from others: the graph has no node of its name.
            None => Unsupported {
                operator: first.operator.clone(),
                node: first.name.clone(),
                reason,
            }
            .into(),
        }
    }
}

impl FallbackNode {
    /// Parses a line of the log: the operator, then the node's name in parentheses.
    fn read(line: &str) -> Option<Self> {
        let (operator, rest) = line.trim().split_once(" (")?;
        let (name, _) = rest.rsplit_once(')')?;
        let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
        (!operator.is_empty() && operator.chars().all(is_word)).then(|| Self {
            operator: operator.to_owned(),
            name: name.to_owned(),
        })
    }

    fn is_same_node(&self, node: &NodeProto) -> bool {
        let is_named = self.name.is_empty() || self.name == node_name(node);
        is_named && node.op_type() == self.operator
    }
}

/// Collects the nodes left to the host's CPU from the log of a session, which must be verbose.
#[derive(Clone, Default)]
pub(super) struct PlacementLog {
    parser: Arc<Mutex<PlacementParser>>,
}

#[derive(Default)]
struct PlacementParser {
    is_cpu: bool,
    fallback_nodes: Vec<FallbackNode>,
}

impl PlacementLog {
    /// Returns the logger for a session.
    pub fn new_logger(&self) -> LoggerFunction {
        let parser = self.parser.clone();
        Arc::new(move |_, _, _, _, line| {
            let mut parser = parser.lock().unwrap_or_else(PoisonError::into_inner);
            parser.parse_line(line);
        })
    }

    /// Returns the nodes found.
    pub fn fallback_nodes(&self) -> Vec<FallbackNode> {
        let parser = self.parser.lock().unwrap_or_else(PoisonError::into_inner);
        parser.fallback_nodes.clone()
    }
}

impl PlacementParser {
    fn parse_line(&mut self, line: &str) {
        if line.contains(NODES_PLACED) {
            self.is_cpu = line.contains(NODES_ON_CPU);
        } else if self.is_cpu {
            match FallbackNode::read(line) {
                Some(node) => self.fallback_nodes.push(node),
                None => self.is_cpu = false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_on_the_cpu_are_read_off_the_log() {
        let mut parser = PlacementParser::default();
        for line in [
            "Node placements",
            " Node(s) placed on [OpenVINOExecutionProvider]. Number of nodes: 1",
            "  OpenVINOExecutionProvider_OpenVINO-EP-subgraph_1_0 (OpenVINO_0)",
            " Node(s) placed on [CPUExecutionProvider]. Number of nodes: 2",
            "  Tile (tiles (of four))",
            "  Det ()",
            "SaveMLValueNameIndexMapping",
            "  Conv (elsewhere)",
        ] {
            parser.parse_line(line);
        }
        let node = |operator: &str, name: &str| FallbackNode {
            operator: operator.to_owned(),
            name: name.to_owned(),
        };
        let left = [node("Tile", "tiles (of four)"), node("Det", "")];
        assert_eq!(parser.fallback_nodes, left);
    }
}
