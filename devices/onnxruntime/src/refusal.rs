//! Explains why the library opened no session for a model, and names the nodes at fault. A session
//! refuses nodes that a provider leaves to the host's CPU, because a device that is sold as an NPU
//! must compute on it or not at all.

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

/// Beginning of the log lines that list a provider's nodes, and its form for the CPU.
const PLACED: &str = "placed on [";
const ON_CPU: &str = "placed on [CPUExecutionProvider]";

/// Reasons why there is no session.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The provider leaves nodes to the host's CPU: those in the log, if there are any.
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
    /// Converts the refusal of a graph by a provider into an error.
    pub fn into_error(self, graph: &Graph, provider: &str) -> CompileError {
        let left = match self {
            Self::FallsBackToCpu(left) => left,
            Self::Library(reason) => {
                return CompileError::Engine {
                    engine: ENGINE,
                    reason,
                };
            }
        };
        let others = match left.len() {
            0 | 1 => String::new(),
            some => format!(" and {} other nodes", some - 1),
        };
        let reason = format!("{provider} leaves it{others} to the host's CPU");
        let reason = UnsupportedReason::Engine(reason);
        let first = left.first();
        let node = match first {
            Some(left) => graph.nodes().iter().find(|node| left.is_same_node(node)),
            None => graph.nodes().first(),
        };
        match (node, first) {
            (Some(node), _) => Unsupported::new(node, reason).into(),
            // A node that the library made from others.
            (None, Some(left)) => Unsupported {
                operator: left.operator.clone(),
                node: left.name.clone(),
                reason,
            }
            .into(),
            (None, None) => CompileError::Engine {
                engine: ENGINE,
                reason: reason.to_string(),
            },
        }
    }
}

impl FallbackNode {
    /// Parses a line of the log: operator, and the node's name in brackets.
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

/// Finds the nodes that go to the host's CPU in a session's log, which must be verbose.
#[derive(Clone, Default)]
pub(super) struct Placements {
    read: Arc<Mutex<PlacementLog>>,
}

#[derive(Default)]
struct PlacementLog {
    is_cpu: bool,
    left: Vec<FallbackNode>,
}

impl Placements {
    /// Returns the logger for a session.
    pub fn new_logger(&self) -> LoggerFunction {
        let read = self.read.clone();
        Arc::new(move |_, _, _, _, line| {
            let mut read = read.lock().unwrap_or_else(PoisonError::into_inner);
            read.parse_line(line);
        })
    }

    /// Returns the nodes found.
    pub fn fallback_nodes(&self) -> Vec<FallbackNode> {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.left.clone()
    }
}

impl PlacementLog {
    fn parse_line(&mut self, line: &str) {
        if line.contains(PLACED) {
            self.is_cpu = line.contains(ON_CPU);
        } else if self.is_cpu {
            match FallbackNode::read(line) {
                Some(node) => self.left.push(node),
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
        let mut read = PlacementLog::default();
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
            read.parse_line(line);
        }
        let node = |operator: &str, name: &str| FallbackNode {
            operator: operator.to_owned(),
            name: name.to_owned(),
        };
        let left = [node("Tile", "tiles (of four)"), node("Det", "")];
        assert_eq!(read.left, left);
    }
}
