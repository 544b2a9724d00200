//! The schema of operators: what each makes of what it is given, in one table that all read.
//!
//! Engines, the reference kernels and the planner's inference of shapes differ in what they do with
//! it, not in what it says. An operator that is not listed has a shape rule of its own with whoever
//! knows one, and the type of its first input.

use souk_memory::DType;
use souk_memory::DType::{Bool, F32, I32, I64, U8};

use crate::NodeProto;
use Class::{Compare, Convert, Float, Move};
use Extents::{OfFirst, Own, RankOfFirst, Repeated};
use ResultType::{Fixed, Input, Quantised, Stated, StatedOrInput, Value};

/// The sizes of an operator's first output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extents {
    /// Those of its first input.
    OfFirst,
    /// As many as its first input has.
    RankOfFirst,
    /// Those to which all its inputs are repeated.
    Repeated,
    /// By a rule of its own.
    Own,
}

/// The element type of an operator's first output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultType {
    /// That of an input.
    Input(usize),
    /// Always this.
    Fixed(DType),
    /// What an attribute states, else this.
    Stated(&'static str, Option<DType>),
    /// What an attribute states, else that of an input.
    StatedOrInput(&'static str, usize),
    /// What `output_dtype` states, else that of the zero point, else bytes.
    Quantised,
    /// That of a value among the attributes.
    Value,
}

/// What an operator that rten is trusted with does with its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It computes in 32-bit floats.
    Float,
    /// It moves or counts values without computing with them.
    Move,
    /// It compares.
    Compare,
    /// It converts, which is judged case by case.
    Convert,
}

/// What is known of an operator by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperatorSchema {
    /// The sizes of its first output.
    pub extents: Extents,
    /// The element type of its first output.
    pub result: ResultType,
    /// What it does, if rten is trusted with it.
    pub class: Option<Class>,
}

impl OperatorSchema {
    /// That of an operator of this name.
    #[must_use]
    pub fn of(operator: &str) -> Self {
        let found = TABLE.binary_search_by_key(&operator, |row| row.0);
        let (_, extents, result, class) = found.map_or(("", Own, Input(0), None), |at| TABLE[at]);
        Self {
            extents,
            result,
            class,
        }
    }

    /// Names of the operators that are listed, in order.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TABLE.iter().map(|row| row.0)
    }
}

impl ResultType {
    /// The type of a node's first output in the terms of whoever asks, who says what an input has
    /// and what a code of ONNX stands for.
    pub fn of<T>(
        self,
        node: &NodeProto,
        input: impl Fn(usize) -> Option<T>,
        known: impl Fn(i32) -> Option<T>,
    ) -> Option<T> {
        let stated = |name: &str| known(i32::try_from(node.int(name)?).ok()?);
        let fixed = |dtype: DType| known(dtype.onnx_code());
        match self {
            Input(index) => input(index),
            Fixed(dtype) => fixed(dtype),
            Stated(name, otherwise) => stated(name).or_else(|| otherwise.and_then(fixed)),
            StatedOrInput(name, index) => stated(name).or_else(|| input(index)),
            Quantised => {
                let given = || match node.input_name(2) {
                    Some(_) => input(2),
                    None => fixed(U8),
                };
                stated("output_dtype").or_else(given)
            }
            Value => known(value_code(node)?),
        }
    }
}

/// The ONNX code of the type of a constant, whichever attribute it is stated in.
fn value_code(node: &NodeProto) -> Option<i32> {
    let Some(attribute) = node.attribute.first() else {
        return (node.op_type() == "ConstantOfShape").then(|| F32.onnx_code());
    };
    match attribute.name() {
        "value" => Some(attribute.t.as_ref()?.data_type()),
        "value_float" | "value_floats" => Some(F32.onnx_code()),
        "value_int" | "value_ints" => Some(I64.onnx_code()),
        _ => None,
    }
}

/// A name, and what is known by it.
type Row = (&'static str, Extents, ResultType, Option<Class>);

/// The operators, by name.
const TABLE: &[Row] = &[
    ("Abs", OfFirst, Input(0), Some(Float)),
    ("Acos", OfFirst, Input(0), Some(Float)),
    ("Acosh", OfFirst, Input(0), Some(Float)),
    ("Add", Repeated, Input(0), Some(Float)),
    ("And", Repeated, Fixed(Bool), None),
    ("ArgMax", Own, Fixed(I64), None),
    ("ArgMin", Own, Fixed(I64), None),
    ("Asin", OfFirst, Input(0), Some(Float)),
    ("Asinh", OfFirst, Input(0), Some(Float)),
    ("Atan", OfFirst, Input(0), Some(Float)),
    ("Atanh", OfFirst, Input(0), Some(Float)),
    ("AveragePool", RankOfFirst, Input(0), Some(Float)),
    ("BatchNormalization", OfFirst, Input(0), Some(Float)),
    ("Bernoulli", OfFirst, StatedOrInput("dtype", 0), None),
    ("BiasGelu", Repeated, Input(0), None),
    ("BitCast", OfFirst, Stated("to", None), None),
    ("BitShift", Repeated, Input(0), None),
    ("BitwiseAnd", Repeated, Input(0), None),
    ("BitwiseNot", OfFirst, Input(0), None),
    ("BitwiseOr", Repeated, Input(0), None),
    ("BitwiseXor", Repeated, Input(0), None),
    (
        "BlackmanWindow",
        Own,
        Stated("output_datatype", Some(F32)),
        None,
    ),
    ("Cast", OfFirst, Stated("to", None), Some(Convert)),
    ("CastLike", OfFirst, Input(1), None),
    ("Ceil", OfFirst, Input(0), Some(Float)),
    ("Celu", OfFirst, Input(0), None),
    ("Clip", OfFirst, Input(0), Some(Float)),
    ("Concat", RankOfFirst, Input(0), Some(Move)),
    ("Constant", Own, Value, Some(Move)),
    ("ConstantOfShape", Own, Value, Some(Move)),
    ("Conv", RankOfFirst, Input(0), Some(Float)),
    ("ConvInteger", Own, Fixed(I32), None),
    ("ConvTranspose", RankOfFirst, Input(0), Some(Float)),
    ("Cos", OfFirst, Input(0), Some(Float)),
    ("Cosh", OfFirst, Input(0), Some(Float)),
    ("CumProd", OfFirst, Input(0), None),
    ("CumSum", OfFirst, Input(0), None),
    (
        "DequantizeLinear",
        OfFirst,
        StatedOrInput("output_dtype", 1),
        None,
    ),
    ("Div", Repeated, Input(0), Some(Float)),
    ("Dropout", OfFirst, Input(0), None),
    ("DynamicQuantizeLinear", Own, Fixed(U8), None),
    ("Elu", OfFirst, Input(0), Some(Float)),
    ("Equal", Repeated, Fixed(Bool), Some(Compare)),
    ("Erf", OfFirst, Input(0), Some(Float)),
    ("Exp", OfFirst, Input(0), Some(Float)),
    ("Expand", Own, Input(0), Some(Move)),
    ("EyeLike", OfFirst, StatedOrInput("dtype", 0), None),
    ("FastGelu", OfFirst, Input(0), None),
    ("Flatten", Own, Input(0), Some(Move)),
    ("Floor", OfFirst, Input(0), Some(Float)),
    ("Gather", Own, Input(0), Some(Move)),
    ("Gelu", OfFirst, Input(0), Some(Float)),
    ("Gemm", RankOfFirst, Input(0), Some(Float)),
    ("GlobalAveragePool", RankOfFirst, Input(0), Some(Float)),
    ("GlobalMaxPool", RankOfFirst, Input(0), Some(Float)),
    ("Greater", Repeated, Fixed(Bool), Some(Compare)),
    ("GreaterOrEqual", Repeated, Fixed(Bool), Some(Compare)),
    ("GroupNormalization", OfFirst, Input(0), None),
    (
        "HammingWindow",
        Own,
        Stated("output_datatype", Some(F32)),
        None,
    ),
    (
        "HannWindow",
        Own,
        Stated("output_datatype", Some(F32)),
        None,
    ),
    ("HardSigmoid", OfFirst, Input(0), Some(Float)),
    ("HardSwish", OfFirst, Input(0), Some(Float)),
    ("Hardmax", OfFirst, Input(0), None),
    ("Identity", OfFirst, Input(0), Some(Move)),
    ("ImageDecoder", Own, Fixed(U8), None),
    ("InstanceNormalization", OfFirst, Input(0), Some(Float)),
    ("IsInf", OfFirst, Fixed(Bool), None),
    ("IsNaN", OfFirst, Fixed(Bool), None),
    ("LRN", OfFirst, Input(0), None),
    ("LayerNormalization", OfFirst, Input(0), Some(Float)),
    ("LeakyRelu", OfFirst, Input(0), Some(Float)),
    ("Less", Repeated, Fixed(Bool), Some(Compare)),
    ("LessOrEqual", Repeated, Fixed(Bool), Some(Compare)),
    ("Log", OfFirst, Input(0), Some(Float)),
    ("LogSoftmax", OfFirst, Input(0), Some(Float)),
    ("LpNormalization", OfFirst, Input(0), None),
    ("MatMul", Own, Input(0), Some(Float)),
    ("MatMulInteger", Own, Fixed(I32), None),
    ("Max", Repeated, Input(0), Some(Float)),
    ("MaxPool", RankOfFirst, Input(0), Some(Float)),
    ("Mean", Repeated, Input(0), Some(Float)),
    ("MeanVarianceNormalization", OfFirst, Input(0), None),
    (
        "MelWeightMatrix",
        Own,
        Stated("output_datatype", Some(F32)),
        None,
    ),
    ("Min", Repeated, Input(0), Some(Float)),
    ("Mish", OfFirst, Input(0), None),
    ("Mod", Repeated, Input(0), None),
    ("Mul", Repeated, Input(0), Some(Float)),
    ("Multinomial", Own, Stated("dtype", Some(I32)), None),
    ("Neg", OfFirst, Input(0), Some(Float)),
    ("NonMaxSuppression", Own, Fixed(I64), None),
    ("NonZero", Own, Fixed(I64), None),
    ("Not", OfFirst, Fixed(Bool), None),
    ("OneHot", Own, Input(2), None),
    ("Or", Repeated, Fixed(Bool), None),
    ("PRelu", Repeated, Input(0), Some(Float)),
    ("Pad", RankOfFirst, Input(0), None),
    ("Pow", Repeated, Input(0), Some(Float)),
    ("QLinearConv", Own, Input(7), None),
    ("QLinearMatMul", Own, Input(7), None),
    ("QuantizeLinear", OfFirst, Quantised, None),
    ("QuickGelu", OfFirst, Input(0), None),
    ("RMSNormalization", OfFirst, Input(0), Some(Float)),
    ("RandomNormal", Own, Stated("dtype", Some(F32)), None),
    ("RandomNormalLike", OfFirst, StatedOrInput("dtype", 0), None),
    ("RandomUniform", Own, Stated("dtype", Some(F32)), None),
    (
        "RandomUniformLike",
        OfFirst,
        StatedOrInput("dtype", 0),
        None,
    ),
    ("Reciprocal", OfFirst, Input(0), Some(Float)),
    ("ReduceL1", Own, Input(0), Some(Float)),
    ("ReduceL2", Own, Input(0), Some(Float)),
    ("ReduceLogSum", Own, Input(0), Some(Float)),
    ("ReduceLogSumExp", Own, Input(0), Some(Float)),
    ("ReduceMax", Own, Input(0), Some(Float)),
    ("ReduceMean", Own, Input(0), Some(Float)),
    ("ReduceMin", Own, Input(0), Some(Float)),
    ("ReduceProd", Own, Input(0), Some(Float)),
    ("ReduceSum", Own, Input(0), Some(Float)),
    ("ReduceSumSquare", Own, Input(0), Some(Float)),
    ("RegexFullMatch", OfFirst, Fixed(Bool), None),
    ("Relu", OfFirst, Input(0), Some(Float)),
    ("Reshape", Own, Input(0), Some(Move)),
    ("ReverseSequence", OfFirst, Input(0), None),
    ("RotaryEmbedding", OfFirst, Input(0), None),
    ("Round", OfFirst, Input(0), Some(Float)),
    ("Scatter", OfFirst, Input(0), None),
    ("ScatterElements", OfFirst, Input(0), None),
    ("ScatterND", OfFirst, Input(0), None),
    ("Selu", OfFirst, Input(0), None),
    ("Shape", Own, Fixed(I64), Some(Move)),
    ("Shrink", OfFirst, Input(0), None),
    ("Sigmoid", OfFirst, Input(0), Some(Float)),
    ("Sign", OfFirst, Input(0), None),
    ("SimplifiedLayerNormalization", OfFirst, Input(0), None),
    ("Sin", OfFirst, Input(0), Some(Float)),
    ("Sinh", OfFirst, Input(0), Some(Float)),
    ("Size", Own, Fixed(I64), Some(Move)),
    ("SkipLayerNormalization", OfFirst, Input(0), None),
    ("SkipSimplifiedLayerNormalization", OfFirst, Input(0), None),
    ("Slice", RankOfFirst, Input(0), Some(Move)),
    ("Softmax", OfFirst, Input(0), Some(Float)),
    ("Softplus", OfFirst, Input(0), Some(Float)),
    ("Softsign", OfFirst, Input(0), Some(Float)),
    ("Split", RankOfFirst, Input(0), Some(Move)),
    ("Sqrt", OfFirst, Input(0), Some(Float)),
    ("Squeeze", Own, Input(0), Some(Move)),
    ("Sub", Repeated, Input(0), Some(Float)),
    ("Sum", Repeated, Input(0), Some(Float)),
    ("Swish", OfFirst, Input(0), Some(Float)),
    ("Tan", OfFirst, Input(0), Some(Float)),
    ("Tanh", OfFirst, Input(0), Some(Float)),
    ("TensorScatter", OfFirst, Input(0), None),
    ("ThresholdedRelu", OfFirst, Input(0), None),
    ("Tile", RankOfFirst, Input(0), Some(Move)),
    ("Transpose", RankOfFirst, Input(0), Some(Move)),
    ("Trilu", OfFirst, Input(0), None),
    ("Unsqueeze", Own, Input(0), Some(Move)),
    ("Where", Repeated, Input(1), Some(Move)),
    ("Xor", Repeated, Fixed(Bool), None),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_so_that_each_is_found() {
        assert!(TABLE.is_sorted_by(|left, right| left.0 < right.0));
        assert_eq!(OperatorSchema::of("Where").extents, Repeated);
        assert_eq!(OperatorSchema::of("MatMulNBits").result, Input(0));
    }
}
