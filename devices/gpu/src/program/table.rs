//! The table of ONNX operators that the GPU backend can run. For each operator it gives the types
//! that its inputs can have, the number of its outputs, and the inputs that the host must know.
//!
//! The compiler of GPU programs asks it whether a node is supported. The host reads shapes, axes
//! and indices while it records a run, so it must have those values: they are inputs, weights, or
//! results that the host computed from them.

mod judge;

use std::collections::BTreeMap;

use souk_memory::DType;
use souk_onnx::NodeProto;

use crate::numbers::doubles::{DoubleSupport, is_double, is_long};
use crate::numbers::integers::{is_whole, packed_bits};
use crate::numbers::packed::is_small_float;
use crate::numbers::quarters::is_byte;
use crate::operators::elementwise::{binary_map, integers, unary_map};
use crate::operators::reduce::find_reduction;
use judge::is_float;
pub(crate) use judge::{Judge, Takeover};

/// Before this version arithmetic broadcast by attributes.
const OPSET_MIN: i64 = 7;

/// Where a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// On the host: it only computes sizes, indices or masks of integers, or draws tokens.
    Host,
    /// On the device.
    Device,
}

/// The types that an operator's device inputs can have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InputTypes {
    /// Floats of 32 or 16 bits.
    Floats,
    /// Floats, also of 64 bits.
    Reals,
    /// Reals, and integers of 8 bits or more.
    Numbers,
    /// Numbers, and truth values.
    Comparable,
    /// Integers of 8 bits or more.
    Whole,
    /// Reals, truths, or integers of 16 bits or fewer: floats of 32 have all their values.
    Short,
    /// Floats, or integers of 8 bits.
    Bytes,
    /// A number, and a power it is raised to, which can be an integer of 64 bits that the host has.
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

/// The requirements of an operator on the device.
struct OperatorRequirements {
    takes: InputTypes,
    /// Inputs the host must have.
    host: &'static [usize],
    /// Upper bound on the outputs.
    outputs: usize,
}

/// Operators that take only floats of 32 or 16 bits, have one output, and need no input on the
/// host.
const FLOATS: &[&str] = &[
    "AveragePool",
    "Conv",
    "ConvTranspose",
    "Gemm",
    "GroupNormalization",
    "InstanceNormalization",
    "LRN",
    "LpPool",
    "MatMul",
    "RMSNormalization",
];

/// Operators like [`FLOATS`], but of floats of any width.
const REALS: &[&str] = &[
    "Gelu",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "LogSoftmax",
    "Mean",
    "Softmax",
];

/// Functions that WGSL has only for 32-bit floats. With 64 bits, a large angle would have to be
/// reduced by more digits of pi than 64 bits hold.
const CIRCULAR: &[&str] = &["Cos", "Sin", "Tan"];

fn find_requirements(operator: &str) -> Option<OperatorRequirements> {
    let taking = |takes| {
        Some(OperatorRequirements {
            takes,
            ..floats_declaration(&[])
        })
    };
    if let Some(map) = unary_map(operator).or_else(|| binary_map(operator)) {
        return taking(match operator {
            "Equal" => InputTypes::Comparable,
            "Pow" => InputTypes::Powers,
            _ if map.inputs == DType::Bool => InputTypes::Truths,
            _ if integers::integer_map(operator, true).is_some() => InputTypes::Numbers,
            _ if CIRCULAR.contains(&operator) => InputTypes::Floats,
            _ => InputTypes::Reals,
        });
    }
    if operator == "Mod" {
        return taking(InputTypes::Numbers);
    }
    if integers::integer_map(operator, true).is_some() {
        return taking(InputTypes::Whole);
    }
    if operator.starts_with("Reduce") && find_reduction(operator).is_some() {
        let takes = match operator {
            "ReduceMax" | "ReduceMin" => InputTypes::Short,
            _ => InputTypes::Reals,
        };
        return Some(OperatorRequirements {
            takes,
            ..floats_declaration(&[1])
        });
    }
    if FLOATS.contains(&operator) {
        return Some(floats_declaration(&[]));
    }
    if REALS.contains(&operator) {
        return taking(InputTypes::Reals);
    }
    declared_by_name(operator).or_else(|| declared_move(operator))
}

/// Operators whose inputs or outputs are of more than one kind.
fn declared_by_name(operator: &str) -> Option<OperatorRequirements> {
    let taking = |takes| OperatorRequirements {
        takes,
        ..floats_declaration(&[])
    };
    Some(match operator {
        "BatchNormalization" => OperatorRequirements {
            outputs: 3,
            ..floats_declaration(&[])
        },
        "MaxPool" => OperatorRequirements {
            takes: InputTypes::Bytes,
            outputs: 2,
            host: &[],
        },
        "ArgMax" | "ArgMin" => taking(InputTypes::Numbers),
        "ReduceLogSumExp" => OperatorRequirements {
            takes: InputTypes::Reals,
            ..floats_declaration(&[1])
        },
        "LayerNormalization" => OperatorRequirements {
            outputs: 3,
            ..floats_declaration(&[])
        },
        "NegativeLogLikelihoodLoss" => floats_declaration(&[1]),
        "SoftmaxCrossEntropyLoss" => OperatorRequirements {
            outputs: 2,
            ..floats_declaration(&[1])
        },
        "TopK" => OperatorRequirements {
            takes: InputTypes::Numbers,
            outputs: 2,
            host: &[1],
        },
        "Attention" => OperatorRequirements {
            takes: InputTypes::Masked,
            outputs: 4,
            host: &[6],
        },
        "RotaryEmbedding" => floats_declaration(&[3]),
        "BitShift" => taking(InputTypes::Whole),
        "Clip" => taking(InputTypes::Numbers),
        "Not" => taking(InputTypes::Truths),
        "Where" => taking(InputTypes::Choice),
        _ => return None,
    })
}

/// Operators that move words, or make words of others.
fn declared_move(operator: &str) -> Option<OperatorRequirements> {
    let moves = |host| OperatorRequirements {
        takes: InputTypes::Words,
        ..floats_declaration(host)
    };
    Some(match operator {
        "Cast" | "CastLike" => OperatorRequirements {
            takes: InputTypes::Cast,
            ..moves(&[])
        },
        "Concat" | "DepthToSpace" | "Flatten" | "Identity" | "SpaceToDepth" | "Transpose" => {
            moves(&[])
        }
        "Dropout" => OperatorRequirements {
            outputs: 2,
            ..moves(&[1, 2])
        },
        "Expand" | "Gather" | "GatherElements" | "GatherND" | "Reshape" | "Scatter"
        | "ScatterElements" | "ScatterND" | "Squeeze" | "Tile" | "Unsqueeze" => moves(&[1]),
        "Pad" => moves(&[1, 3]),
        "TensorScatter" => moves(&[2]),
        "Slice" => moves(&[1, 2, 3, 4]),
        "Split" => OperatorRequirements {
            outputs: usize::MAX,
            ..moves(&[1])
        },
        _ => return declared_quantised(operator),
    })
}

/// Operators of bytes, 8-bit floats and their scales.
fn declared_quantised(operator: &str) -> Option<OperatorRequirements> {
    let known = [
        ("DequantizeLinear", 1),
        ("DynamicQuantizeLinear", 3),
        ("MatMulInteger", 1),
        ("QLinearMatMul", 1),
        ("QuantizeLinear", 1),
    ];
    let (name, outputs) = known.into_iter().find(|(name, _)| *name == operator)?;
    Some(OperatorRequirements {
        takes: InputTypes::Quantised(name),
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
    packed_bits(dtype).is_some()
}

fn floats_declaration(host: &'static [usize]) -> OperatorRequirements {
    OperatorRequirements {
        takes: InputTypes::Floats,
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
pub(crate) fn is_declared(operator: &str) -> bool {
    find_requirements(operator).is_some()
}

/// Whether there is an operator of this name, on the device or on its host.
pub(crate) fn is_known(operator: &str) -> bool {
    is_declared(operator) || HOST.contains(&operator) || matches!(operator, "Shape" | "Size")
}

/// The values that the host must have for a node: sizes, indices, and divisors of integers.
pub(crate) fn read_by_host<'a>(
    node: &'a NodeProto,
    side: Side,
    types: &BTreeMap<String, DType>,
    doubles: DoubleSupport,
) -> Vec<&'a str> {
    let of = |index| node.input_name(index).and_then(|name| types.get(name));
    let divisor = || of(1);
    let is_wide = |index| of(index).is_some_and(|&it| is_double(it) && !doubles.has_dtype(it));
    let divides = |&dtype: &DType| is_whole(dtype) || is_long(dtype);
    let indices: Vec<usize> = match (side, node.op_type()) {
        (Side::Host, "Shape" | "Size") => Vec::new(),
        (Side::Host, _) => (0..node.input.len()).collect(),
        (Side::Device, "Cast" | "CastLike") if is_wide(0) => vec![0],
        (Side::Device, "Pow") if is_wide(1) => vec![1],
        (Side::Device, "Div" | "Mod") if divisor().is_some_and(divides) => vec![1],
        (Side::Device, operator) => find_requirements(operator)
            .map_or(&[][..], |it| it.host)
            .to_vec(),
    };
    let named = indices
        .into_iter()
        .filter_map(|index| node.input_name(index));
    named.collect()
}
