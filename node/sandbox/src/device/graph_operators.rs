//! Lists the operators that a graph uses, including those of its functions and bodies, so that a
//! provider can refuse those that its owner's limits exclude.
//!
//! The process that runs a lease reads the stranger's graph. The provider's own process receives
//! only this bounded answer, and compares it with the limits.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use souk_folder::limits::{LimitRefusal, ProviderLimits};
use souk_onnx::custom::Custom;
use souk_onnx::{self as onnx, NodeProto};

/// The most operators: ONNX has two hundred.
const NAMES_MAX: usize = 1024;

/// The most bytes of an operator's name: the longest of ONNX has 35.
const NAME_BYTES_MAX: usize = 128;

/// A graph has too many operators, or too long a name of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the graph names more than {NAMES_MAX} operators, or one in over {NAME_BYTES_MAX} bytes")]
pub(crate) struct UnknownOperators;

/// The operators of a graph.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphOperators {
    names: BTreeSet<String>,
    wasm: bool,
    wgsl: bool,
}

impl GraphOperators {
    /// Returns the operators of a model. Returns none for invalid bytes, which the compilation will
    /// report.
    pub(crate) fn from_model(model: Bytes) -> Result<Self, UnknownOperators> {
        let mut found = Self::default();
        let Ok(model) = onnx::decode_model(model) else {
            return Ok(found);
        };
        let bodies = model.functions.iter().flat_map(|function| &function.node);
        let nodes = model.graph.iter().flat_map(|graph| &graph.node);
        nodes.chain(bodies).try_for_each(|node| found.add(node))?;
        Ok(found)
    }

    fn add(&mut self, node: &NodeProto) -> Result<(), UnknownOperators> {
        match Custom::from_node(node) {
            Some(Custom::Wasm) => self.wasm = true,
            Some(Custom::Wgsl) => self.wgsl = true,
            None => {}
        }
        let name = node.op_type();
        if !self.names.contains(name) {
            if name.len() > NAME_BYTES_MAX || self.names.len() >= NAMES_MAX {
                return Err(UnknownOperators);
            }
            self.names.insert(name.to_owned());
        }
        let mut inner = node.subgraphs().flat_map(|graph| &graph.node);
        inner.try_for_each(|node| self.add(node))
    }

    /// Returns whether an honest process can have reported this.
    pub(crate) fn is_sound(&self) -> bool {
        let is_name = |name: &String| name.len() <= NAME_BYTES_MAX;
        self.names.len() <= NAMES_MAX && self.names.iter().all(is_name)
    }

    /// Checks that a provider's limits allow all of them.
    ///
    /// # Errors
    /// The first that they do not allow.
    pub fn check_limits(&self, limits: &ProviderLimits) -> Result<(), LimitRefusal> {
        if self.wasm {
            limits.check_kernel(Custom::Wasm)?;
        }
        if self.wgsl {
            limits.check_kernel(Custom::Wgsl)?;
        }
        let mut names = self.names.iter();
        names.try_for_each(|name| limits.check_operator(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(nodes: Vec<NodeProto>, functions: Vec<NodeProto>) -> Bytes {
        onnx::encode_model(&onnx::ModelProto {
            ir_version: Some(8),
            graph: Some(onnx::GraphProto {
                node: nodes,
                ..onnx::GraphProto::default()
            }),
            functions: vec![onnx::FunctionProto {
                node: functions,
                ..onnx::FunctionProto::default()
            }],
            ..onnx::ModelProto::default()
        })
    }

    #[test]
    fn a_limit_on_operators_holds_in_functions_and_refuses_by_name() {
        let limits = ProviderLimits {
            operators: vec!["Relu".to_owned()],
            ..ProviderLimits::default()
        };
        let of = |name: &str| NodeProto::for_operator(name, &["x"], "y");
        let check = |nodes, functions| {
            let found = GraphOperators::from_model(model(nodes, functions)).unwrap();
            assert!(found.is_sound());
            found
                .check_limits(&limits)
                .map_err(|refusal| refusal.to_string())
        };
        assert_eq!(check(vec![of("Relu")], vec![of("Relu")]), Ok(()));
        let refused = check(vec![of("Relu")], vec![of("Celu")]).unwrap_err();
        assert!(refused.contains("Celu"), "{refused}");
        let none = GraphOperators::from_model(Bytes::from_static(b"no model"));
        assert_eq!(none, Ok(GraphOperators::default()));
    }

    #[test]
    fn a_kernel_of_a_language_that_is_not_run_is_refused() {
        let limits = ProviderLimits {
            wasm: false,
            ..ProviderLimits::default()
        };
        let kernel = NodeProto {
            domain: Some("ai.souk".to_owned()),
            ..NodeProto::for_operator("Wasm", &["kernel"], "y")
        };
        let found = GraphOperators::from_model(model(vec![kernel], Vec::new())).unwrap();
        let refused = found.check_limits(&limits).unwrap_err().to_string();
        assert!(refused.contains("limits.wasm"), "{refused}");
    }

    #[test]
    fn more_operators_than_there_are_and_longer_names_are_not_told() {
        let many = |count: usize| {
            let nodes =
                (0..count).map(|at| NodeProto::for_operator(&format!("N{at}"), &["x"], "y"));
            GraphOperators::from_model(model(nodes.collect(), Vec::new()))
        };
        assert!(many(NAMES_MAX).unwrap().is_sound());
        assert_eq!(many(NAMES_MAX + 1), Err(UnknownOperators));
        let long = NodeProto::for_operator(&"n".repeat(NAME_BYTES_MAX + 1), &["x"], "y");
        let long = GraphOperators::from_model(model(vec![long], Vec::new()));
        assert_eq!(long, Err(UnknownOperators));
    }
}
