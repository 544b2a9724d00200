//! Compiles and runs nodes whose kernels are WebAssembly modules that a buyer wrote. They run as
//! segments of a graph between those of the CPU's other engines, within the provider's limits.

use std::collections::BTreeMap;

use souk_memory::{DType, Tensor};
use souk_onnx::NodeProto;
use souk_onnx::custom::{self, Custom, CustomError};
use souk_onnx::graph::Graph;
use souk_onnx::subgraph::{CompileError, Unsupported, UnsupportedReason, node_name};
use souk_reference::Scope;
use souk_vocabulary::processor::RunError;
use souk_wasm::{Kernel, WasmError, WasmLimits};

/// Consecutive nodes with WebAssembly kernels, their modules compiled.
pub(super) struct WasmNodes(Vec<WasmNode>);

struct WasmNode {
    node: NodeProto,
    kernel: Kernel,
    outputs: Vec<DType>,
}

impl WasmNodes {
    /// Whether the kernel of a node is a WebAssembly module.
    pub(super) fn supports_node(node: &NodeProto) -> bool {
        Custom::from_node(node) == Some(Custom::Wasm)
    }

    /// Compiles the modules of nodes; a module that several nodes share is compiled once.
    pub(super) fn compile(nodes: &[NodeProto], graph: &Graph) -> Result<Self, CompileError> {
        let mut known: BTreeMap<(&str, u64), Kernel> = BTreeMap::new();
        let mut compiled = Vec::with_capacity(nodes.len());
        for node in nodes {
            let refused = |reason: String| {
                let reason = UnsupportedReason::Engine(reason);
                CompileError::from(Unsupported::new(node, reason))
            };
            let custom = |error: CustomError| refused(error.to_string());
            let source = custom::source(node, &graph.weights).map_err(custom)?;
            let outputs = custom::output_types(node).map_err(custom)?;
            custom::output_shapes(node).map_err(custom)?;
            let limits = node_limits(node);
            let key = (node.input_name(0).unwrap_or_default(), limits.fuel);
            let kernel = match known.get(&key) {
                Some(kernel) => kernel.clone(),
                None => {
                    let kernel = Kernel::compile(source.bytes(), limits);
                    kernel.map_err(|error: WasmError| refused(error.to_string()))?
                }
            };
            known.insert(key, kernel.clone());
            compiled.push(WasmNode {
                node: node.clone(),
                kernel,
                outputs,
            });
        }
        Ok(Self(compiled))
    }

    /// Runs the nodes in order, and adds their outputs to the scope.
    pub(super) fn run(&self, scope: &mut Scope, weights: &Scope) -> Result<(), RunError> {
        for node in &self.0 {
            let made = node
                .run(scope, weights)
                .map_err(|error| RunError::Operator {
                    operator: format!("{}.{}", custom::DOMAIN, node.node.op_type()),
                    node: node_name(&node.node),
                    reason: error.to_string(),
                })?;
            for (name, tensor) in node.node.output.iter().zip(made) {
                if !name.is_empty() {
                    scope.insert(name.clone(), tensor);
                }
            }
        }
        Ok(())
    }
}

/// Why a kernel among other nodes failed.
#[derive(Debug, thiserror::Error)]
enum NodeError {
    #[error("its input {0:?} is missing")]
    Missing(String),
    #[error(transparent)]
    Custom(#[from] CustomError),
    #[error(transparent)]
    Kernel(#[from] WasmError),
    #[error("output {index} has the shape {found:?}, its node says {stated:?}")]
    Shape {
        index: usize,
        found: Vec<usize>,
        stated: Vec<usize>,
    },
}

impl WasmNode {
    fn run(&self, scope: &Scope, weights: &Scope) -> Result<Vec<Tensor>, NodeError> {
        let held = |name: &String| {
            let tensor = scope.get(name).or_else(|| weights.get(name)).cloned();
            tensor.ok_or_else(|| NodeError::Missing(name.clone()))
        };
        let inputs = self.node.input.iter().skip(1).map(held);
        let inputs: Vec<Tensor> = inputs.collect::<Result<_, _>>()?;
        let given: Vec<&[usize]> = inputs.iter().map(Tensor::dims).collect();
        let stated = custom::output_dims(&self.node, &given)?;
        let made = self.kernel.run(&inputs, &self.outputs)?;
        let stated = stated.unwrap_or_default();
        for (index, (stated, made)) in stated.into_iter().zip(&made).enumerate() {
            if stated != made.dims() {
                let found = made.dims().to_vec();
                return Err(NodeError::Shape {
                    index,
                    found,
                    stated,
                });
            }
        }
        Ok(made)
    }
}

/// Returns the provider's limits, with less fuel where the node states less.
fn node_limits(node: &NodeProto) -> WasmLimits {
    let limits = WasmLimits::default();
    let asked = node.int("fuel").and_then(|fuel| u64::try_from(fuel).ok());
    WasmLimits {
        fuel: asked.map_or(limits.fuel, |asked| asked.min(limits.fuel)),
        ..limits
    }
}
