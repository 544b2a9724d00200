//! What the GPU backend declares: each operator, what its inputs must be, and what records it.
//!
//! Shapes, axes and indices are read on the host while a run is recorded, so the values that carry
//! them must be there: inputs, weights, and what the host makes of them.

use std::collections::{BTreeMap, BTreeSet};

use souk_memory::DType;

use super::attention::{attention, rotary};
use super::convolutions::{conv, conv_transpose};
use super::elementwise::{self as each, binary, unary};
use super::error::GpuError;
use super::halves::is_half;
use super::integers;
use super::pool::{local_response, pool};
use super::products::{gemm, matmul};
use super::quantise;
use super::quarters::{is_byte, is_quarter_float};
use super::reduce::{self, reduction};
use super::shaders::Softmax;
use super::steps::Step;
use super::stream::Array;
use super::wholes::{self, is_whole};
use super::{layout, loss};
use crate::onnx::NodeProto;
use crate::processor::UnsupportedReason;

/// Before this version arithmetic broadcast by attributes.
const OPSET_MIN: i64 = 7;

/// Where a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// On the host: it only computes sizes, indices or masks of integers.
    Host,
    /// On the device.
    Device,
}

/// What the inputs that the device reads may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    /// Floats of 32 or 16 bits.
    Floats,
    /// Those, or integers of 32 bits or fewer.
    Numbers,
    /// The same, or truths.
    Comparable,
    /// Integers of 32 bits or fewer.
    Whole,
    /// Those without a sign.
    Unsigned,
    /// Truths.
    Truths,
    /// Anything the device has: it is only moved.
    Words,
    /// A truth, then two of one kind.
    Choice,
    /// Floats, and a mask of either kind fourth.
    Masked,
    /// Bytes, 8-bit floats and their scales, by the operator and the place.
    Quantised(&'static str),
}

/// An operator of the device.
struct Declared {
    takes: Takes,
    /// Inputs the host must have.
    host: &'static [usize],
    /// Outputs it gives at most.
    outputs: usize,
}

fn declared(operator: &str) -> Option<Declared> {
    let taking = |takes| {
        Some(Declared {
            takes,
            ..floats(&[])
        })
    };
    if let Some(map) = unary(operator).or_else(|| binary(operator)) {
        return taking(match operator {
            "Equal" => Takes::Comparable,
            _ if map.inputs == DType::Bool => Takes::Truths,
            _ if wholes::of(operator, true).is_some() => Takes::Numbers,
            _ => Takes::Floats,
        });
    }
    if wholes::of(operator, true).is_some() {
        return taking(Takes::Whole);
    }
    if operator.starts_with("Reduce") && reduction(operator).is_some() {
        return Some(floats(&[1]));
    }
    Some(match operator {
        "AveragePool"
        | "BatchNormalization"
        | "Conv"
        | "ConvTranspose"
        | "Gelu"
        | "Gemm"
        | "GlobalAveragePool"
        | "GlobalMaxPool"
        | "GroupNormalization"
        | "InstanceNormalization"
        | "LRN"
        | "LogSoftmax"
        | "LpPool"
        | "MatMul"
        | "MaxPool"
        | "Mean"
        | "RMSNormalization"
        | "Softmax"
        | "ArgMax"
        | "ArgMin" => floats(&[]),
        "ReduceLogSumExp" => floats(&[1]),
        "LayerNormalization" => Declared {
            outputs: 3,
            ..floats(&[])
        },
        "NegativeLogLikelihoodLoss" => floats(&[1]),
        "SoftmaxCrossEntropyLoss" => Declared {
            outputs: 2,
            ..floats(&[1])
        },
        "TopK" => Declared {
            outputs: 2,
            ..floats(&[1])
        },
        "Attention" => Declared {
            takes: Takes::Masked,
            outputs: 3,
            host: &[6],
        },
        "RotaryEmbedding" => floats(&[3]),
        "BitShift" => return taking(Takes::Unsigned),
        "Clip" => return taking(Takes::Numbers),
        "Not" => return taking(Takes::Truths),
        "Where" => return taking(Takes::Choice),
        _ => return declared_move(operator),
    })
}

/// Operators that move words, or make words of others.
fn declared_move(operator: &str) -> Option<Declared> {
    let moves = |host| Declared {
        takes: Takes::Words,
        ..floats(host)
    };
    Some(match operator {
        "Cast" | "CastLike" | "Concat" | "DepthToSpace" | "Flatten" | "Identity"
        | "SpaceToDepth" | "Transpose" => moves(&[]),
        "Dropout" => Declared {
            outputs: 2,
            ..moves(&[])
        },
        "Expand" | "Gather" | "GatherElements" | "GatherND" | "Reshape" | "Scatter"
        | "ScatterElements" | "ScatterND" | "Squeeze" | "Tile" | "Unsqueeze" => moves(&[1]),
        "Pad" => moves(&[1, 2, 3]),
        "Slice" => moves(&[1, 2, 3, 4]),
        "Split" => Declared {
            outputs: usize::MAX,
            ..moves(&[1])
        },
        _ => return declared_quantised(operator),
    })
}

/// Operators of bytes, 8-bit floats and their scales.
fn declared_quantised(operator: &str) -> Option<Declared> {
    let known = [
        ("DequantizeLinear", 1),
        ("DynamicQuantizeLinear", 3),
        ("MatMulInteger", 1),
        ("QLinearMatMul", 1),
        ("QuantizeLinear", 1),
    ];
    let (name, outputs) = known.into_iter().find(|(name, _)| *name == operator)?;
    Some(Declared {
        takes: Takes::Quantised(name),
        outputs,
        host: &[],
    })
}

/// Whether a quantising operator takes a type at a place.
fn takes_quantised(operator: &str, index: usize, dtype: DType) -> bool {
    match (operator, index) {
        ("QuantizeLinear" | "DequantizeLinear", 1) | ("QuantizeLinear", 0) => is_float(dtype),
        ("DynamicQuantizeLinear", _) | ("QLinearMatMul", 1 | 4 | 6) => dtype == DType::F32,
        ("MatMulInteger" | "QLinearMatMul", _) => is_byte(dtype),
        ("DequantizeLinear", _) => is_quantised(dtype) || dtype == DType::I32,
        _ => is_quantised(dtype),
    }
}

/// Whether floats are quantised to a type.
fn is_quantised(dtype: DType) -> bool {
    is_quarter_float(dtype) || is_packed(dtype)
}

/// Whether several integers of a type lie in a word.
fn is_packed(dtype: DType) -> bool {
    wholes::packed_bits(dtype).is_some()
}

fn floats(host: &'static [usize]) -> Declared {
    Declared {
        takes: Takes::Floats,
        host,
        outputs: 1,
    }
}

/// Integer operators that the host computes while it records: sizes, indices and masks.
const HOST: &[&str] = &[
    "Abs",
    "Add",
    "And",
    "Cast",
    "CastLike",
    "Concat",
    "ConstantOfShape",
    "CumSum",
    "Div",
    "Equal",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Greater",
    "GreaterOrEqual",
    "Identity",
    "Less",
    "LessOrEqual",
    "Max",
    "Min",
    "Mod",
    "Mul",
    "Neg",
    "Not",
    "Or",
    "Range",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "Reshape",
    "ScatterND",
    "Slice",
    "Split",
    "Squeeze",
    "Sub",
    "Transpose",
    "Trilu",
    "Tile",
    "Unsqueeze",
    "Where",
    "Xor",
];

/// Whether the device has an operator of this name.
pub(super) fn is_declared(operator: &str) -> bool {
    declared(operator).is_some()
}

/// The values that the host must have for a node: sizes, indices, and divisors of integers.
pub(super) fn read_by_host<'a>(
    node: &'a NodeProto,
    side: Side,
    types: &BTreeMap<String, DType>,
) -> Vec<&'a str> {
    let divisor = || node.input_name(1).and_then(|name| types.get(name));
    let indices: Vec<usize> = match (side, node.op_type()) {
        (Side::Host, "Shape" | "Size") => Vec::new(),
        (Side::Host, _) => (0..node.input.len()).collect(),
        (Side::Device, "Div" | "Mod") if divisor().is_some_and(|&it| is_whole(it)) => vec![1],
        (Side::Device, operator) => declared(operator).map_or(&[][..], |it| it.host).to_vec(),
    };
    let named = indices
        .into_iter()
        .filter_map(|index| node.input_name(index));
    named.collect()
}

/// Judges the nodes of a graph in order.
pub(super) struct Judge<'a> {
    /// Whether the device has what it can of integers, too, rather than the host.
    pub prefers_device: bool,
    pub types: &'a BTreeMap<String, DType>,
    pub opset: i64,
    /// Values the host has.
    pub on_host: BTreeSet<&'a str>,
}

impl<'a> Judge<'a> {
    /// Where a node runs; its outputs are followed along.
    pub fn side(&mut self, node: &'a NodeProto) -> Result<Side, UnsupportedReason> {
        if self.opset < OPSET_MIN && node.op_type() != "Not" {
            return Err(UnsupportedReason::Version(self.opset));
        }
        if super::custom::is_kernel(node) {
            return Ok(Side::Device);
        }
        if !node.operator_domain().is_empty() {
            return Err(UnsupportedReason::Operator);
        }
        let is_taken = self.prefers_device && self.check(node).is_ok();
        let side = if self.is_for_host(node) && !is_taken {
            let outputs = node.output.iter().map(String::as_str);
            self.on_host.extend(outputs.filter(|name| !name.is_empty()));
            Side::Host
        } else {
            self.check(node)?;
            Side::Device
        };
        Ok(side)
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        self.types.get(name).copied()
    }

    fn is_for_host(&self, node: &NodeProto) -> bool {
        let operator = node.op_type();
        if matches!(operator, "Shape" | "Size") {
            return true;
        }
        if !HOST.contains(&operator) {
            return false;
        }
        // Narrow integers that become floats are values, not sizes.
        let of = |name: Option<&str>| name.and_then(|name| self.dtype(name));
        let made = of(node.output.first().map(String::as_str));
        if of(node.input_name(0)).is_some_and(is_packed) && made.is_some_and(|it| it.is_float()) {
            return false;
        }
        let mut inputs = node.input.iter().filter(|name| !name.is_empty());
        inputs.all(|name| {
            let whole = self.dtype(name).is_some_and(|dtype| !dtype.is_float());
            whole && self.on_host.contains(name.as_str())
        })
    }

    /// Whether the device runs the node.
    fn check(&self, node: &NodeProto) -> Result<(), UnsupportedReason> {
        let declared = declared(node.op_type()).ok_or(UnsupportedReason::Operator)?;
        let engine = |reason: &str| Err(UnsupportedReason::Engine(reason.to_owned()));
        for (index, name) in node.input.iter().enumerate() {
            // Of the second input of a CastLike only the type is read.
            if name.is_empty() || (index == 1 && node.op_type() == "CastLike") {
                continue;
            }
            if declared.host.contains(&index) {
                if !self.on_host.contains(name.as_str()) {
                    return engine("a shape or index is only known on the device");
                }
                continue;
            }
            let dtype = self.dtype(name).ok_or(UnsupportedReason::UnknownDType)?;
            if !self.takes(declared.takes, index, name, dtype) {
                return Err(UnsupportedReason::DType(dtype));
            }
        }
        let wanted = node.output.iter().rposition(|name| !name.is_empty());
        if wanted.is_some_and(|last| last >= declared.outputs) {
            return engine("not all of these outputs are made on this device");
        }
        let divisor = node.input_name(1).unwrap_or_default();
        let divides = matches!(node.op_type(), "Div" | "Mod");
        if divides && self.dtype(divisor).is_some_and(is_whole) && !self.on_host.contains(divisor) {
            return engine("a divisor of integers is only known on the device");
        }
        self.check_attributes(node)
    }

    fn takes(&self, takes: Takes, index: usize, name: &str, dtype: DType) -> bool {
        // Integers of 64 bits are exact there only if the device itself counted them.
        let is_float = is_float(dtype);
        let is_number = is_float || is_whole(dtype);
        let moved = is_number
            || dtype == DType::Bool
            || is_quantised(dtype)
            || (dtype == DType::I64 && !self.on_host.contains(name));
        match takes {
            Takes::Floats => is_float,
            Takes::Numbers => is_number,
            Takes::Comparable => is_number || dtype == DType::Bool,
            Takes::Whole => is_whole(dtype),
            Takes::Unsigned => matches!(dtype, DType::U8 | DType::U16 | DType::U32),
            Takes::Truths => dtype == DType::Bool,
            Takes::Words => moved,
            Takes::Choice if index == 0 => dtype == DType::Bool,
            Takes::Choice => is_number || dtype == DType::Bool,
            Takes::Quantised(operator) => takes_quantised(operator, index, dtype),
            Takes::Masked => is_float || (index == 3 && dtype == DType::Bool),
        }
    }

    /// Attributes that would ask for something else.
    fn check_attributes(&self, node: &NodeProto) -> Result<(), UnsupportedReason> {
        let refused = |name| Err(UnsupportedReason::Attribute(name));
        let output = node.output.first().and_then(|name| self.dtype(name));
        let input = node.input_name(0).and_then(|name| self.dtype(name));
        match node.op_type() {
            "BatchNormalization" if node.int("training_mode").unwrap_or(0) != 0 => {
                refused("training_mode")
            }
            "BatchNormalization" if node.int("spatial") == Some(0) => refused("spatial"),
            "Dropout" if node.input_name(2).is_some() || node.int("is_test") == Some(0) => {
                refused("training_mode")
            }
            "Scatter" | "ScatterElements" | "ScatterND" => match node.string("reduction") {
                None | Some("none") => Ok(()),
                Some(_) => refused("reduction"),
            },
            "Pad" if !output.is_some_and(|it| is_float(it) || is_whole(it)) => {
                Err(type_reason(output))
            }
            "QuantizeLinear" | "DequantizeLinear" => self.check_scales(node, output),
            "Cast" | "CastLike" => {
                let is_known = |dtype| {
                    is_float(dtype)
                        || is_quantised(dtype)
                        || is_whole(dtype)
                        || dtype == DType::Bool
                };
                match (input, output) {
                    (Some(DType::I64), Some(to)) if is_known(to) => Ok(()),
                    (Some(from), Some(to)) if is_known(to) && is_known(from) => Ok(()),
                    (from, Some(to)) if is_known(to) => Err(type_reason(from)),
                    _ => Err(type_reason(output)),
                }
            }
            _ => Ok(()),
        }
    }
}

impl Judge<'_> {
    /// Attributes of what quantises or gives back.
    fn check_scales(
        &self,
        node: &NodeProto,
        output: Option<DType>,
    ) -> Result<(), UnsupportedReason> {
        for name in ["block_size", "precision"] {
            if node.int(name).unwrap_or(0) != 0 {
                return Err(UnsupportedReason::Attribute(name));
            }
        }
        let makes = match node.op_type() {
            "QuantizeLinear" => is_quantised,
            _ => is_float,
        };
        match output.is_some_and(makes) {
            true => Ok(()),
            false => Err(type_reason(output)),
        }
    }
}

/// Whether the device computes with floats of this type.
fn is_float(dtype: DType) -> bool {
    dtype == DType::F32 || is_half(dtype)
}

fn type_reason(dtype: Option<DType>) -> UnsupportedReason {
    dtype.map_or(UnsupportedReason::UnknownDType, UnsupportedReason::DType)
}

/// Records a node that was judged to run on the device.
pub(super) fn record(
    step: &mut Step<'_, '_>,
    output: Option<DType>,
) -> Result<Vec<Array>, GpuError> {
    let operator = step.call.node.op_type();
    if unary(operator).is_some() {
        return each::one(step);
    }
    if binary(operator).is_some() {
        return each::chain(step);
    }
    match operator {
        "BitwiseNot" => each::one(step),
        "BitShift" | "BitwiseAnd" | "BitwiseOr" | "BitwiseXor" | "Mod" => each::chain(step),
        "GlobalAveragePool" | "GlobalMaxPool" => {
            let by = reduction(operator).expect("both are in the table");
            reduce::global(step, by)
        }
        "Cast" | "CastLike" => each::cast(step, output.unwrap_or(DType::F32)),
        "QuantizeLinear" => quantise::quantise(step, output),
        _ => match reduction(operator) {
            Some(by) => reduce::reduced(step, by),
            None => record_named(step),
        },
    }
}

fn record_named(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    match step.call.node.op_type() {
        "ArgMax" | "ArgMin" => reduce::extreme(step),
        "Attention" => attention(step),
        "AveragePool" | "LpPool" | "MaxPool" => pool(step),
        "BatchNormalization" => each::batch_norm(step),
        "Clip" => each::clip(step),
        "Concat" => layout::concat(step),
        "DequantizeLinear" => quantise::dequantise(step),
        "Dropout" => each::dropout(step),
        "DynamicQuantizeLinear" => quantise::dynamic(step),
        "MatMulInteger" => integers::matmul_integer(step),
        "QLinearMatMul" => integers::qlinear_matmul(step),
        "Conv" => conv(step),
        "ConvTranspose" => conv_transpose(step),
        "DepthToSpace" | "SpaceToDepth" => layout::blocks(step),
        "Expand" => layout::expand(step),
        "Gather" => layout::gather(step),
        "GatherElements" => layout::gather_elements(step),
        "GatherND" => layout::gather_nd(step),
        "Gelu" => each::gelu(step),
        "Gemm" => gemm(step),
        "GroupNormalization" | "InstanceNormalization" => reduce::group_norm(step),
        "LRN" => local_response(step),
        "LayerNormalization" | "RMSNormalization" => reduce::layer_norm(step),
        "LogSoftmax" => reduce::soft(step, Softmax::Log),
        "MatMul" => matmul(step),
        "Mean" => each::mean(step),
        "NegativeLogLikelihoodLoss" => loss::negative_log_likelihood(step),
        "Not" => each::not(step),
        "Pad" => layout::pad(step),
        "ReduceLogSumExp" => reduce::log_sum_exp(step),
        "RotaryEmbedding" => rotary(step),
        "Scatter" | "ScatterElements" | "ScatterND" => layout::scatter(step),
        "Slice" => layout::slice(step),
        "SoftmaxCrossEntropyLoss" => loss::cross_entropy(step),
        "Softmax" => reduce::soft(step, Softmax::Plain),
        "Split" => layout::split(step),
        "Tile" => layout::tile(step),
        "TopK" => reduce::top_k(step),
        "Transpose" => layout::transpose(step),
        "Where" => each::select(step),
        _ => layout::renamed(step),
    }
}
