//! Computes the work and memory traffic of a graph's node from shapes.
//!
//! It counts arithmetic operations as devices do ([`Work`]). The numbers state an amount of work,
//! not its time, which depends on the device.

use souk_memory::DType;
pub use souk_onnx::schema::OperatorClass;
use souk_onnx::schema::OperatorSchema;
use souk_onnx::work::Work;
use souk_onnx::{NodeProto, routing};

use super::shape::{Fact, InnerWork, node_work};
use super::{Node, Value};

/// Work and memory traffic of one node in one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Kind of work.
    pub class: OperatorClass,
    /// Element type of the work; `None` if unknown.
    pub dtype: Option<DType>,
    /// Arithmetic operations.
    pub flops: u64,
    /// Bytes read, including weights.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Bytes of constants that a device must hold to run the node.
    pub weight_bytes: u64,
    /// The work of the node's nested graphs (those of `If` or `Loop`), times their runs. The counts
    /// above include it.
    pub bodies: Work,
    /// Whether every extent and the number of runs of each body are known. If not, the counts can
    /// be far from those of a run.
    pub certain: bool,
}

impl Cost {
    /// Computes the cost of `node`, whose ids refer to `values`, and of its bodies.
    pub(crate) fn for_node(node: &Node, values: &[Value], inner: InnerWork) -> Self {
        let bodies = inner.work;
        let inputs: Vec<Option<&Fact>> = node
            .inputs
            .iter()
            .map(|id| id.map(|id| &values[id.0].fact))
            .collect();
        let outputs: Vec<&Fact> = node.output_values().map(|id| &values[id.0].fact).collect();
        let class = class_of(&node.proto);
        let bytes = |fact: &Fact| fact.byte_length().unwrap_or(0);
        let written = outputs
            .iter()
            .map(|fact| bytes(fact))
            .fold(0, u64::saturating_add);
        let read = node
            .input_values()
            .map(|id| bytes(&values[id.0].fact))
            .fold(0, u64::saturating_add);
        let weights = node.input_values().filter_map(|id| values[id.0].weight());
        let known = |fact: &&Fact| fact.byte_length().is_some();
        let work = node_work(&node.proto, &inputs, &outputs);
        let (bytes_read, bytes_written) = match class {
            OperatorClass::View => (0, 0),
            // It reads as many bytes as it writes, and an index for each, but no more than there
            // is.
            OperatorClass::Movement if is_element_pick(&node.proto) => (
                written.saturating_mul(2).min(read.saturating_add(written)),
                written,
            ),
            // A routed product reads only the matrices that rows are routed to.
            _ if routing::is_routed(&node.proto) => (work.bytes_read, written),
            _ => (read, written),
        };
        Self {
            class,
            dtype: dtype_of(&inputs, &outputs, bodies),
            flops: work.operations.saturating_add(bodies.operations),
            bytes_read: bytes_read.saturating_add(bodies.bytes_read),
            bytes_written: bytes_written.saturating_add(bodies.bytes_written),
            bodies,
            weight_bytes: weights.map(|weight| weight.byte_length).sum(),
            certain: inner.is_known
                && outputs.iter().all(known)
                && inputs.iter().flatten().all(known),
        }
    }

    /// Multiplies the work by a factor. The weights and the own launch stay: a device holds and
    /// launches them once.
    pub(super) fn scale_by(mut self, times: f64) -> Self {
        let of = |amount: u64| (amount as f64 * times).round() as u64;
        self.flops = of(self.flops);
        self.bytes_read = of(self.bytes_read);
        self.bytes_written = of(self.bytes_written);
        self.bodies = Work {
            operations: of(self.bodies.operations),
            bytes_read: of(self.bodies.bytes_read),
            bytes_written: of(self.bodies.bytes_written),
            launches: of(self.bodies.launches),
            dtype: self.bodies.dtype,
        };
        self
    }

    /// Returns the number of launched operators: its own, and those of its bodies as often as they
    /// run.
    #[must_use]
    pub fn launch_count(&self) -> u64 {
        self.bodies.launches.saturating_add(1)
    }

    /// Returns the bytes that move to and from memory.
    #[must_use]
    pub fn traffic_bytes(&self) -> u64 {
        self.bytes_read.saturating_add(self.bytes_written)
    }
}

/// Returns the element type of most of its bodies' work, else of the first floating-point operand,
/// else of the first operand or result.
fn dtype_of(inputs: &[Option<&Fact>], outputs: &[&Fact], bodies: Work) -> Option<DType> {
    if bodies.operations > 0 {
        return bodies.dtype;
    }
    let facts = inputs.iter().copied().flatten();
    let facts = facts.chain(outputs.iter().copied());
    let dtypes = facts.filter_map(|fact| DType::from_onnx_code(fact.elem? as i32).ok());
    let dtypes: Vec<DType> = dtypes.collect();
    let float = dtypes.iter().find(|dtype| dtype.is_float());
    float.or(dtypes.first()).copied()
}

/// Returns whether an operator reads only the elements that it copies.
fn is_element_pick(proto: &NodeProto) -> bool {
    matches!(
        proto.op_type(),
        "Gather" | "GatherElements" | "GatherND" | "Slice" | "Split" | "CenterCropPad" | "Compress"
    )
}

/// Returns the kind of work of an operator.
#[must_use]
pub fn class_of(proto: &NodeProto) -> OperatorClass {
    OperatorSchema::for_operator(proto.op_type()).class
}

#[cfg(test)]
mod tests;
