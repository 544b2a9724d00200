//! What the GPU backend declares: each operator, and what its inputs must be.
//!
//! Shapes, axes and indices are read on the host while a run is recorded, so the values that carry
//! them must be there: inputs, weights, and what the host makes of them.

use std::collections::{BTreeMap, BTreeSet};

use souk_memory::DType;

use super::doubles::{fits_floats, is_double};
use super::elementwise::{binary, unary};
use super::halves::is_half;
use super::packed::is_small_float;
use super::quarters::is_byte;
use super::reduce::reduction;
use super::scatter::is_known;
use super::wholes::{self, is_whole};
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
    /// Floats, truths, or integers of 16 bits or fewer: floats of 32 have all their values.
    Short,
    /// Floats, or integers of 8 bits.
    Bytes,
    /// A number, and a power it is raised to, which may be an integer of 64 bits that the host has.
    Powers,
    /// Anything the device has, or the host in 64 bits.
    Cast,
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

/// Operators of floats alone, with one output, of which the host need know nothing.
const FLOATS: &[&str] = &[
    "ArgMax",
    "ArgMin",
    "AveragePool",
    "Conv",
    "ConvTranspose",
    "Gelu",
    "Gemm",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "GroupNormalization",
    "InstanceNormalization",
    "LRN",
    "LogSoftmax",
    "LpPool",
    "MatMul",
    "Mean",
    "RMSNormalization",
    "Softmax",
];

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
            "Pow" => Takes::Powers,
            _ if map.inputs == DType::Bool => Takes::Truths,
            _ if wholes::of(operator, true).is_some() => Takes::Numbers,
            _ => Takes::Floats,
        });
    }
    if operator == "Mod" {
        return taking(Takes::Numbers);
    }
    if wholes::of(operator, true).is_some() {
        return taking(Takes::Whole);
    }
    if operator.starts_with("Reduce") && reduction(operator).is_some() {
        let takes = match operator {
            "ReduceMax" | "ReduceMin" => Takes::Short,
            _ => Takes::Floats,
        };
        return Some(Declared {
            takes,
            ..floats(&[1])
        });
    }
    if FLOATS.contains(&operator) {
        return Some(floats(&[]));
    }
    declared_by_name(operator).or_else(|| declared_move(operator))
}

/// Operators whose inputs or outputs are of more than one kind.
fn declared_by_name(operator: &str) -> Option<Declared> {
    let taking = |takes| Declared {
        takes,
        ..floats(&[])
    };
    Some(match operator {
        "BatchNormalization" => Declared {
            outputs: 3,
            ..floats(&[])
        },
        "MaxPool" => Declared {
            takes: Takes::Bytes,
            outputs: 2,
            host: &[],
        },
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
            outputs: 4,
            host: &[6],
        },
        "RotaryEmbedding" => floats(&[3]),
        "BitShift" => taking(Takes::Whole),
        "Clip" => taking(Takes::Numbers),
        "Not" => taking(Takes::Truths),
        "Where" => taking(Takes::Choice),
        _ => return None,
    })
}

/// Operators that move words, or make words of others.
fn declared_move(operator: &str) -> Option<Declared> {
    let moves = |host| Declared {
        takes: Takes::Words,
        ..floats(host)
    };
    Some(match operator {
        "Cast" | "CastLike" => Declared {
            takes: Takes::Cast,
            ..moves(&[])
        },
        "Concat" | "DepthToSpace" | "Flatten" | "Identity" | "SpaceToDepth" | "Transpose" => {
            moves(&[])
        }
        "Dropout" => Declared {
            outputs: 2,
            ..moves(&[])
        },
        "Expand" | "Gather" | "GatherElements" | "GatherND" | "Reshape" | "Scatter"
        | "ScatterElements" | "ScatterND" | "Squeeze" | "Tile" | "Unsqueeze" => moves(&[1]),
        "Pad" => moves(&[1, 3]),
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
        ("DynamicQuantizeLinear", _) => dtype == DType::F32,
        ("QLinearMatMul", 1 | 4 | 6) => is_float(dtype),
        ("MatMulInteger" | "QLinearMatMul", _) => is_byte(dtype),
        ("DequantizeLinear", _) => is_quantised(dtype) || dtype == DType::I32,
        _ => is_quantised(dtype),
    }
}

/// Whether floats are quantised to a type.
fn is_quantised(dtype: DType) -> bool {
    is_small_float(dtype) || is_packed(dtype)
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
    let of = |index| node.input_name(index).and_then(|name| types.get(name));
    let divisor = || of(1);
    let is_wide = |index| of(index).is_some_and(|&it| is_double(it));
    let indices: Vec<usize> = match (side, node.op_type()) {
        (Side::Host, "Shape" | "Size") => Vec::new(),
        (Side::Host, _) => (0..node.input.len()).collect(),
        (Side::Device, "Cast" | "CastLike") if is_wide(0) => vec![0],
        (Side::Device, "Pow") if is_wide(1) => vec![1],
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
        // What has 64 bits is exact there only if the device itself counted or widened it.
        let is_float = is_float(dtype);
        let is_number = is_float || is_whole(dtype);
        let moved = is_number
            || dtype == DType::Bool
            || is_quantised(dtype)
            || (is_double(dtype) && !self.on_host.contains(name));
        match takes {
            Takes::Floats => is_float,
            Takes::Numbers => is_number,
            Takes::Comparable => is_number || dtype == DType::Bool,
            Takes::Whole => is_whole(dtype),
            Takes::Short => is_float || dtype == DType::Bool || is_narrow_whole(dtype),
            Takes::Bytes => is_float || is_byte(dtype),
            Takes::Powers if index == 0 => is_number,
            Takes::Powers => is_number || is_double(dtype),
            Takes::Cast => moved || is_double(dtype),
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
            "BatchNormalization" if node.int("spatial") == Some(0) => refused("spatial"),
            "BatchNormalization" if node.int("training_mode").unwrap_or(0) == 0 => {
                match node.output.iter().skip(1).all(String::is_empty) {
                    true => Ok(()),
                    false => refused("training_mode"),
                }
            }
            "Dropout" if node.input_name(2).is_some() || node.int("is_test") == Some(0) => {
                refused("training_mode")
            }
            "Scatter" | "ScatterElements" | "ScatterND" => match node.string("reduction") {
                None | Some("none") => Ok(()),
                Some(name) if !is_known(name) => refused("reduction"),
                _ if input.is_some_and(|it| is_float(it) || is_whole(it)) => Ok(()),
                _ => Err(type_reason(input)),
            },
            "Pow" => self.check_power(node, input),
            "Pad" if !output.is_some_and(|it| is_float(it) || is_whole(it)) => {
                Err(type_reason(output))
            }
            "QuantizeLinear" | "DequantizeLinear" => self.check_scales(node, output),
            "Cast" | "CastLike" => check_cast(input, output),
            _ => Ok(()),
        }
    }
}

impl Judge<'_> {
    /// Integers are raised to integers of 32 bits or fewer, and floats to anything.
    fn check_power(&self, node: &NodeProto, base: Option<DType>) -> Result<(), UnsupportedReason> {
        let exponent = node.input_name(1).and_then(|name| self.dtype(name));
        let is_plain = exponent.is_some_and(is_whole) || base.is_some_and(is_float);
        match is_plain {
            true => Ok(()),
            false => Err(type_reason(exponent)),
        }
    }

    /// Attributes of what quantises or gives back.
    fn check_scales(
        &self,
        node: &NodeProto,
        output: Option<DType>,
    ) -> Result<(), UnsupportedReason> {
        if node.int("precision").unwrap_or(0) != 0 {
            return Err(UnsupportedReason::Attribute("precision"));
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

/// Whether the device computes with integers of this type, all of whose values floats have.
fn is_narrow_whole(dtype: DType) -> bool {
    is_whole(dtype) && fits_floats(dtype)
}

/// Whether the device computes with floats of this type.
fn is_float(dtype: DType) -> bool {
    dtype == DType::F32 || is_half(dtype)
}

/// Whether the device casts one type to another. What has 64 bits comes from the host; a float of
/// 64 is made of what 32 hold.
fn check_cast(from: Option<DType>, to: Option<DType>) -> Result<(), UnsupportedReason> {
    let is_known = |dtype: DType| {
        is_float(dtype) || is_quantised(dtype) || is_whole(dtype) || dtype == DType::Bool
    };
    match (from, to) {
        (Some(from), Some(to)) if is_known(to) && (is_known(from) || is_double(from)) => Ok(()),
        (Some(from), Some(DType::F64)) if is_known(from) && fits_floats(from) => Ok(()),
        (from, Some(to)) if is_known(to) || to == DType::F64 => Err(type_reason(from)),
        _ => Err(type_reason(to)),
    }
}

fn type_reason(dtype: Option<DType>) -> UnsupportedReason {
    dtype.map_or(UnsupportedReason::UnknownDType, UnsupportedReason::DType)
}
