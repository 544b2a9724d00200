//! What the nodes of a graph take in one run, with inputs of these shapes.
//!
//! A stranger's graph is read where its lease is run. What comes of it are numbers, and the time
//! that an ask states for them is reckoned by the provider's own process.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use souk_memory::{DType, Tensor};
use souk_onnx::work::Work;
use souk_scheduler::graph::cost::{Cost, OperatorClass};
use souk_scheduler::graph::{Bindings, Graph};

/// Nodes that differ in what they take, at most: layers are alike, so that a model of a thousand
/// of them has some hundred. Of a graph with more nothing is promised.
const NODES_MAX: usize = 4096;

/// Element type and extents of an input, by its name.
pub(crate) type Shape = (String, DType, Vec<usize>);

/// Those of tensors by name.
pub(crate) fn shapes_of(inputs: &BTreeMap<String, Tensor>) -> Vec<Shape> {
    let shape =
        |(name, tensor): (&String, &Tensor)| (name.clone(), tensor.dtype(), tensor.dims().to_vec());
    inputs.iter().map(shape).collect()
}

/// What a graph takes: nodes that take the same are counted together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GraphWork(BTreeMap<NodeWork, u32>);

/// What a node takes, as far as its time by an ask depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct NodeWork {
    kind: NodeKind,
    dtype: Option<DType>,
    flops: u64,
    bytes: u64,
    launches: u64,
}

/// Kinds of work that asks state a speed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum NodeKind {
    Product,
    Convolution,
    Other,
}

impl GraphWork {
    /// What one run takes; none where the model does not say it before it is run.
    pub(crate) fn of(model: Bytes, inputs: &[Shape]) -> Option<Self> {
        let mut bindings = Bindings::new();
        for (name, dtype, dims) in inputs {
            bindings = bindings.input(name, *dtype, dims);
        }
        let graph = Graph::import(model, &bindings).ok()?;
        if !graph.nodes().iter().all(|node| node.cost.certain) {
            return None;
        }
        let mut work = Self::default();
        for node in graph.nodes() {
            let count = work.0.entry(NodeWork::of(&node.cost)).or_default();
            *count = count.saturating_add(1);
        }
        work.is_sound().then_some(work)
    }

    /// Whether a process that reads graphs can have said this.
    pub(crate) fn is_sound(&self) -> bool {
        self.0.len() <= NODES_MAX
    }

    /// What its nodes take, and how many of them the same.
    pub(super) fn costs(&self) -> impl Iterator<Item = (Cost, u32)> {
        self.0.iter().map(|(node, count)| (node.cost(), *count))
    }
}

impl NodeWork {
    fn of(cost: &Cost) -> Self {
        Self {
            kind: match cost.class {
                OperatorClass::Matmul => NodeKind::Product,
                OperatorClass::Convolution => NodeKind::Convolution,
                _ => NodeKind::Other,
            },
            dtype: cost.dtype,
            flops: cost.flops,
            bytes: cost.bytes(),
            launches: cost.launches(),
        }
    }

    fn cost(&self) -> Cost {
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
