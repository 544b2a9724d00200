//! Work and traffic of an operation, counted from shapes.
//!
//! A multiplication and an addition are two operations; a transcendental function counts as the
//! few it takes on common hardware. The numbers say how much there is to do, not how long it takes:
//! that is the device's business.

use souk_devices::onnx::NodeProto;
use souk_memory::DType;

use crate::graph::{Node, Value};
use crate::shape::{Fact, Operation, kernel_extents};

/// What kind of work an operation is: devices reach different shares of their peak on each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperatorClass {
    /// Matrix products.
    Matmul,
    /// Convolutions.
    Convolution,
    /// Attention in one operator.
    Attention,
    /// Recurrent networks: long chains of small products.
    Recurrent,
    /// Normalisations and softmax.
    Normalisation,
    /// Reductions and poolings.
    Reduction,
    /// Element by element.
    Elementwise,
    /// Elements moved, none computed.
    Movement,
    /// A new view of the same elements.
    View,
    /// Anything else, the operators with bodies among them.
    #[default]
    Other,
}

/// Work and traffic of one node, for one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Kind of work.
    pub class: OperatorClass,
    /// Element type of the work; `None` if unknown.
    pub dtype: Option<DType>,
    /// Arithmetic operations.
    pub flops: u64,
    /// Bytes read, weights included.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Bytes of constants that must be held to run it.
    pub weight_bytes: u64,
    /// Whether every extent was known; otherwise the counts are lower bounds.
    pub certain: bool,
}

impl Cost {
    /// Cost of `node`, whose ids refer to `values`.
    pub(crate) fn of(node: &Node, values: &[Value]) -> Self {
        let inputs: Vec<Option<&Fact>> = node
            .inputs
            .iter()
            .map(|id| id.map(|id| &values[id.0].fact))
            .collect();
        let outputs: Vec<&Fact> = node.makes().map(|id| &values[id.0].fact).collect();
        let operation = Operation::new(&node.proto, 0, &inputs);
        let class = class_of(&node.proto);
        let bytes = |fact: &Fact| fact.byte_length().unwrap_or(0);
        let written = outputs
            .iter()
            .map(|fact| bytes(fact))
            .fold(0, u64::saturating_add);
        let read = node
            .reads()
            .map(|id| bytes(&values[id.0].fact))
            .fold(0, u64::saturating_add);
        let weights = node.reads().filter_map(|id| values[id.0].weight());
        let known = |fact: &&Fact| fact.byte_length().is_some();
        let (bytes_read, bytes_written) = match class {
            OperatorClass::View => (0, 0),
            OperatorClass::Movement if picks(&node.proto) => (
                written.saturating_mul(2).min(read.saturating_add(written)),
                written,
            ),
            _ => (read, written),
        };
        Self {
            class,
            dtype: dtype_of(&operation, &outputs),
            flops: flops(&operation, class, &outputs),
            bytes_read,
            bytes_written,
            weight_bytes: weights.map(|weight| weight.byte_length).sum(),
            certain: outputs.iter().all(known) && inputs.iter().flatten().all(known),
        }
    }

    /// Bytes moved to and from memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes_read.saturating_add(self.bytes_written)
    }
}

/// Element type of the first floating-point operand, else of the first operand or result.
fn dtype_of(operation: &Operation<'_>, outputs: &[&Fact]) -> Option<DType> {
    let facts = operation.inputs().chain(outputs.iter().copied());
    let dtypes = facts.filter_map(|fact| DType::from_onnx_code(fact.elem? as i32).ok());
    let dtypes: Vec<DType> = dtypes.collect();
    let float = dtypes.iter().find(|dtype| dtype.is_float());
    float.or(dtypes.first()).copied()
}

/// Operators that touch only the elements they move.
fn picks(proto: &NodeProto) -> bool {
    matches!(
        proto.op_type(),
        "Gather" | "GatherElements" | "GatherND" | "Slice" | "Split" | "CenterCropPad" | "Compress"
    )
}

/// The kind of work an operator is.
#[must_use]
pub fn class_of(proto: &NodeProto) -> OperatorClass {
    match proto.op_type() {
        "MatMul" | "Gemm" | "MatMulInteger" | "QLinearMatMul" | "Einsum" | "MatMulNBits"
        | "FusedMatMul" => OperatorClass::Matmul,
        "Conv" | "ConvInteger" | "ConvTranspose" | "DeformConv" | "QLinearConv" => {
            OperatorClass::Convolution
        }
        "Attention" | "MultiHeadAttention" | "GroupQueryAttention" => OperatorClass::Attention,
        "RNN" | "GRU" | "LSTM" => OperatorClass::Recurrent,
        "Softmax"
        | "LogSoftmax"
        | "LayerNormalization"
        | "RMSNormalization"
        | "LRN"
        | "BatchNormalization"
        | "InstanceNormalization"
        | "GroupNormalization"
        | "SimplifiedLayerNormalization"
        | "SkipLayerNormalization"
        | "LpNormalization"
        | "MeanVarianceNormalization"
        | "Hardmax" => OperatorClass::Normalisation,
        "AveragePool" | "MaxPool" | "LpPool" | "GlobalAveragePool" | "GlobalMaxPool"
        | "GlobalLpPool" | "ArgMax" | "ArgMin" | "TopK" | "CumSum" => OperatorClass::Reduction,
        "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten" | "Identity" | "Shape" | "Size"
        | "Dropout" => OperatorClass::View,
        "Transpose" | "Concat" | "Split" | "Slice" | "Gather" | "GatherElements" | "GatherND"
        | "Expand" | "Tile" | "Pad" | "DepthToSpace" | "SpaceToDepth" | "ScatterElements"
        | "ScatterND" | "Scatter" | "CenterCropPad" | "ConstantOfShape" | "OneHot"
        | "ReverseSequence" | "Compress" | "Range" | "EyeLike" | "Trilu" => OperatorClass::Movement,
        "If" | "Loop" | "Scan" => OperatorClass::Other,
        name if name.starts_with("Reduce") => OperatorClass::Reduction,
        name if name.starts_with("Sequence") || name.starts_with("Optional") => OperatorClass::View,
        _ => OperatorClass::Elementwise,
    }
}

fn flops(operation: &Operation<'_>, class: OperatorClass, outputs: &[&Fact]) -> u64 {
    let output = outputs.first().and_then(|fact| fact.count()).unwrap_or(0);
    let input = operation.input(0).and_then(Fact::count).unwrap_or(0);
    match class {
        OperatorClass::Matmul => matmul_flops(operation, output),
        OperatorClass::Convolution => convolution_flops(operation, input, output),
        OperatorClass::Attention => attention_flops(operation, output),
        OperatorClass::Recurrent => recurrent_flops(operation),
        OperatorClass::Normalisation => input.saturating_mul(NORMALISATION_FLOPS),
        OperatorClass::Reduction => {
            let window = kernel_extents(operation, usize::MAX);
            let window = window.map(|kernel| kernel.iter().product::<u64>());
            window.map_or(input, |window| output.saturating_mul(window))
        }
        OperatorClass::Elementwise => output.saturating_mul(elementwise_flops(operation.node)),
        OperatorClass::Movement | OperatorClass::View | OperatorClass::Other => 0,
    }
}

/// Two passes for mean and deviation or maximum and sum, one to scale: about this many an element.
const NORMALISATION_FLOPS: u64 = 8;

fn elementwise_flops(proto: &NodeProto) -> u64 {
    match proto.op_type() {
        "Erf" | "Exp" | "Log" | "Tanh" | "Sigmoid" | "Gelu" | "FastGelu" | "BiasGelu" | "Pow"
        | "Softplus" | "Mish" | "Swish" | "Sin" | "Cos" | "Tan" | "Elu" | "Selu" | "Celu" => 10,
        "RotaryEmbedding" => 6,
        _ => 1,
    }
}

fn matmul_flops(operation: &Operation<'_>, output: u64) -> u64 {
    if operation.node.op_type() == "Einsum" {
        return einsum_flops(operation);
    }
    let left = operation.dims(0);
    let transposed = operation.node.op_type() == "Gemm" && operation.int_or("transA", 0) != 0;
    let inner = left.and_then(|dims| {
        let back = if transposed { 2 } else { 1 };
        dims.get(dims.len().checked_sub(back)?).copied().flatten()
    });
    inner.map_or(0, |inner| output.saturating_mul(inner).saturating_mul(2))
}

/// Twice the product of all extents that occur.
fn einsum_flops(operation: &Operation<'_>) -> u64 {
    let equation = operation
        .node
        .string("equation")
        .unwrap_or("")
        .replace(' ', "");
    let terms = equation.split("->").next().unwrap_or("");
    let mut extents = std::collections::BTreeMap::new();
    for (index, term) in terms.split(',').enumerate() {
        let Some(dims) = operation.dims(index) else {
            return 0;
        };
        for (letter, dim) in term.chars().zip(dims) {
            let known = extents.entry(letter).or_insert(1);
            *known = dim.unwrap_or(1).max(*known);
        }
    }
    extents
        .values()
        .fold(2, |product: u64, extent| product.saturating_mul(*extent))
}

fn convolution_flops(operation: &Operation<'_>, input: u64, output: u64) -> u64 {
    let weights = if operation.node.op_type() == "QLinearConv" {
        3
    } else {
        1
    };
    let each = operation.dims(weights).and_then(|dims| {
        // Of [outer channels, inner channels, kernel...] all but the first count for each element.
        dims.get(1..)?
            .iter()
            .copied()
            .try_fold(2u64, |product, dim| product.checked_mul(dim?))
    });
    let elements = match operation.node.op_type() {
        "ConvTranspose" => input,
        _ => output,
    };
    each.map_or(0, |each| elements.saturating_mul(each))
}

/// Queries by keys and the weights by values: 4 x output x keys.
fn attention_flops(operation: &Operation<'_>, output: u64) -> u64 {
    let keys = operation
        .dims(1)
        .and_then(|dims| dims.get(dims.len().checked_sub(2)?).copied()?);
    let past = operation
        .dims(4)
        .and_then(|dims| dims.get(2).copied().flatten())
        .unwrap_or(0);
    let keys = keys.unwrap_or(1).saturating_add(past);
    output.saturating_mul(keys).saturating_mul(4)
}

/// Each step multiplies input and state by the weights of every gate.
fn recurrent_flops(operation: &Operation<'_>) -> u64 {
    let weights = |index: usize| operation.input(index).and_then(Fact::count).unwrap_or(0);
    let positions = operation.dims(0).and_then(|dims| {
        let [first, second] = [*dims.first()?, *dims.get(1)?];
        first?.checked_mul(second?)
    });
    let each = weights(1).saturating_add(weights(2)).saturating_mul(2);
    positions.map_or(0, |positions| positions.saturating_mul(each))
}
