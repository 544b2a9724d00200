//! A build without WebAssembly: it cannot take such a node, so the compiler will refuse the graph
//! by the operator.

use souk_onnx::NodeProto;
use souk_onnx::graph::Graph;
use souk_onnx::subgraph::CompileError;
use souk_reference::Scope;
use souk_vocabulary::processor::RunError;

/// Nodes of which there are none.
pub(super) enum WasmNodes {}

impl WasmNodes {
    pub(super) fn supports_node(_: &NodeProto) -> bool {
        false
    }

    pub(super) fn compile(nodes: &[NodeProto], _: &Graph) -> Result<Self, CompileError> {
        unreachable!("none of {} nodes is taken", nodes.len())
    }

    pub(super) fn run(&self, _: &mut Scope, _: &Scope) -> Result<(), RunError> {
        match *self {}
    }
}
