//! Counts the work of a graph's nodes in one run, for given shapes of inputs. A provider computes
//! the time that it promises from it.
//!
//! The process that runs a lease reads the stranger's graph. It returns numbers only, from which
//! the provider's own process computes the time by an ask.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use souk_memory::{DType, Tensor};
use souk_onnx::work::Work;
use souk_scheduler::graph::cost::{Cost, OperatorClass};
use souk_scheduler::graph::{Bindings, Graph};

/// The most different nodes. Layers are alike, so that a model of a thousand nodes has some hundred
/// different ones. For a graph with more, the provider will make no promise.
const NODES_MAX: usize = 4096;

/// The name, element type and extents of an input.
pub type Shape = (String, DType, Vec<usize>);

/// Returns the shapes of tensors by name.
pub(crate) fn shapes_of(inputs: &BTreeMap<String, Tensor>) -> Vec<Shape> {
    let shape =
        |(name, tensor): (&String, &Tensor)| (name.clone(), tensor.dtype(), tensor.dims().to_vec());
    inputs.iter().map(shape).collect()
}

/// The work of a graph: it counts equal nodes together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphWork(BTreeMap<NodeWork, u32>);

/// The work of a node, as far as its time by an ask depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct NodeWork {
    kind: NodeKind,
    dtype: Option<DType>,
    flops: u64,
    bytes: u64,
    launches: u64,
}

/// The kinds of work for which asks state a speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum NodeKind {
    Product,
    Convolution,
    Other,
}

impl GraphWork {
    /// Returns the work of one run; none if the model does not determine it before the run.
    pub fn from_model(model: Bytes, inputs: &[Shape]) -> Option<Self> {
        let mut bindings = Bindings::new();
        for (name, dtype, dims) in inputs {
            bindings = bindings.with_input(name, *dtype, dims);
        }
        let graph = Graph::import(model, &bindings).ok()?;
        if !graph.nodes().iter().all(|node| node.cost.certain) {
            return None;
        }
        let mut work = Self::default();
        for node in graph.nodes() {
            let count = work.0.entry(NodeWork::from_cost(&node.cost)).or_default();
            *count = count.saturating_add(1);
        }
        work.is_sound().then_some(work)
    }

    /// Returns whether an honest process can have reported this.
    pub(crate) fn is_sound(&self) -> bool {
        self.0.len() <= NODES_MAX
    }

    /// Returns the cost of each kind of node, and how many nodes share it.
    pub(super) fn node_costs(&self) -> impl Iterator<Item = (Cost, u32)> {
        self.0
            .iter()
            .map(|(node, count)| (node.total_cost(), *count))
    }
}

impl NodeWork {
    fn from_cost(cost: &Cost) -> Self {
        Self {
            kind: match cost.class {
                OperatorClass::Matmul => NodeKind::Product,
                OperatorClass::Convolution => NodeKind::Convolution,
                _ => NodeKind::Other,
            },
            dtype: cost.dtype,
            flops: cost.flops,
            bytes: cost.traffic_bytes(),
            launches: cost.launch_count(),
        }
    }

    fn total_cost(&self) -> Cost {
        Cost {
            class: match self.kind {
                NodeKind::Product => OperatorClass::Matmul,
                NodeKind::Convolution => OperatorClass::Convolution,
                NodeKind::Other => OperatorClass::Elementwise,
            },
            dtype: self.dtype,
            flops: self.flops,
            bytes_read: self.bytes,
            bodies: Work {
                launches: self.launches.saturating_sub(1),
                ..Work::default()
            },
            certain: true,
            ..Cost::default()
        }
    }
}
