//! Contains one table with a row for each ONNX operator: how the sizes and the element type of its
//! result follow from its inputs, what kind of work it is (for example a matrix product), and
//! whether the CPU engine rten can run it. Engines, the reference kernels and the planner's shape
//! inference all read this table. If it lacks an operator, that operator's shape follows a rule in
//! the module that reads it, if any, and its type is that of its first input.

use souk_memory::DType;
use souk_memory::DType::{Bool, F32, I32, I64, U8};

use crate::NodeProto;
use Extents::{Broadcast, OfFirst, Own, RankOfFirst};
use OperatorClass::{
    Attention, Convolution, Elementwise, Matmul, Movement, Normalisation, Other, Recurrent,
    Reduction, View,
};
use ResultType::{Fixed, Input, OfTensorAttribute, Quantised, Stated, StatedOrInput, Value};
use RtenClass::{Compare, Convert, Float, Move};

/// How the sizes of an operator's first output follow from its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extents {
    /// The sizes of its first input.
    OfFirst,
    /// The rank of its first input; the sizes follow another rule.
    RankOfFirst,
    /// The sizes to which all its inputs broadcast.
    Broadcast,
    /// Sizes by another rule, which the module that reads the table implements.
    Own,
}

/// How the element type of an operator's first output follows from its inputs and attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultType {
    /// The type of an input.
    Input(usize),
    /// Always this type.
    Fixed(DType),
    /// The type that an attribute states, or else this one.
    Stated(&'static str, Option<DType>),
    /// The type that an attribute states, or else that of an input.
    StatedOrInput(&'static str, usize),
    /// The type that `output_dtype` states, else that of the zero point, else bytes.
    Quantised,
    /// The type of a value among the attributes.
    Value,
    /// The type of a tensor in an attribute.
    OfTensorAttribute(&'static str),
}

/// The kind of an operation's work; devices reach different shares of their peak on each.
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
    /// Arithmetic on each element separately.
    Elementwise,
    /// Operators that move elements without arithmetic.
    Movement,
    /// A new view of the same elements.
    View,
    /// Anything else, including the operators with bodies.
    #[default]
    Other,
}

/// How an operator that rten (the CPU's engine) can run uses its values: this decides in which
/// element types rten computes it correctly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RtenClass {
    /// It computes in 32-bit floats.
    Float,
    /// It moves or counts values without computing with them.
    Move,
    /// It compares values.
    Compare,
    /// It converts types, which the engine checks case by case.
    Convert,
}

/// One row of the table: the properties of an operator that follow from its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperatorSchema {
    /// The sizes of its first output.
    pub extents: Extents,
    /// The element type of its first output.
    pub result: ResultType,
    /// The kind of its work.
    pub class: OperatorClass,
    /// The operator's use of values, if it can run in rten.
    pub rten: Option<RtenClass>,
}

impl OperatorSchema {
    /// Returns the schema of the operator with this name.
    #[must_use]
    pub fn for_operator(operator: &str) -> Self {
        match TABLE.binary_search_by_key(&operator, |row| row.0) {
            Ok(at) => TABLE[at].1,
            Err(_) => Self {
                extents: Own,
                result: Input(0),
                class: fallback_class(operator),
                rten: None,
            },
        }
    }

    /// Returns the names of the operators in the table, in order.
    pub fn operator_names() -> impl Iterator<Item = &'static str> {
        TABLE.iter().map(|row| row.0)
    }
}

impl ResultType {
    /// Returns the type of a node's first output as a `T`. `input` returns the type of an input,
    /// and `known` converts an ONNX code.
    pub fn output_type<T>(
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
            OfTensorAttribute(name) => known(node.tensor(name)?.data_type()),
        }
    }
}

/// Returns whether an operator draws its output at random.
#[must_use]
pub fn is_drawn(operator: &str) -> bool {
    operator.starts_with("Random") || matches!(operator, "Bernoulli" | "Multinomial")
}

/// Returns the class of an operator that the table lacks.
fn fallback_class(operator: &str) -> OperatorClass {
    match operator {
        _ if operator.starts_with("Reduce") => Reduction,
        _ if operator.starts_with("Sequence") || operator.starts_with("Optional") => View,
        _ => Elementwise,
    }
}

/// Returns the ONNX code of a constant's type, in any of its attributes.
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

/// Builds the table from one row per operator: its name, then the fields of its schema.
macro_rules! table {
    ($($name:literal => $extents:ident, $result:expr, $class:ident, $rten:expr;)*) => {
        &[$((
            $name,
            OperatorSchema {
                extents: $extents,
                result: $result,
                class: $class,
                rten: $rten,
            },
        )),*]
    };
}

/// The operators, which must be sorted by name for the binary search.
const TABLE: &[(&str, OperatorSchema)] = table! {
    "Abs" => OfFirst, Input(0), Elementwise, Some(Float);
    "Acos" => OfFirst, Input(0), Elementwise, Some(Float);
    "Acosh" => OfFirst, Input(0), Elementwise, Some(Float);
    "Add" => Broadcast, Input(0), Elementwise, Some(Float);
    "And" => Broadcast, Fixed(Bool), Elementwise, None;
    "ArgMax" => Own, Fixed(I64), Reduction, None;
    "ArgMin" => Own, Fixed(I64), Reduction, None;
    "Asin" => OfFirst, Input(0), Elementwise, Some(Float);
    "Asinh" => OfFirst, Input(0), Elementwise, Some(Float);
    "Atan" => OfFirst, Input(0), Elementwise, Some(Float);
    "Atanh" => OfFirst, Input(0), Elementwise, Some(Float);
    "Attention" => Own, Input(0), Attention, None;
    "AveragePool" => RankOfFirst, Input(0), Reduction, Some(Float);
    "BatchNormalization" => OfFirst, Input(0), Normalisation, Some(Float);
    "Bernoulli" => OfFirst, StatedOrInput("dtype", 0), Elementwise, None;
    "BitCast" => OfFirst, Stated("to", None), Elementwise, None;
    "BitShift" => Broadcast, Input(0), Elementwise, None;
    "BitwiseAnd" => Broadcast, Input(0), Elementwise, None;
    "BitwiseNot" => OfFirst, Input(0), Elementwise, None;
    "BitwiseOr" => Broadcast, Input(0), Elementwise, None;
    "BitwiseXor" => Broadcast, Input(0), Elementwise, None;
    "BlackmanWindow" => Own, Stated("output_datatype", Some(F32)), Elementwise, None;
    "Cast" => OfFirst, Stated("to", None), Elementwise, Some(Convert);
    "CastLike" => OfFirst, Input(1), Elementwise, None;
    "Ceil" => OfFirst, Input(0), Elementwise, Some(Float);
    "Celu" => OfFirst, Input(0), Elementwise, None;
    "CenterCropPad" => Own, Input(0), Movement, None;
    "Clip" => OfFirst, Input(0), Elementwise, Some(Float);
    "Compress" => Own, Input(0), Movement, None;
    "Concat" => RankOfFirst, Input(0), Movement, Some(Move);
    "ConcatFromSequence" => Own, Input(0), Movement, None;
    "Constant" => Own, Value, Elementwise, Some(Move);
    "ConstantOfShape" => Own, Value, Movement, Some(Move);
    "Conv" => RankOfFirst, Input(0), Convolution, Some(Float);
    "ConvInteger" => Own, Fixed(I32), Convolution, None;
    "ConvTranspose" => RankOfFirst, Input(0), Convolution, Some(Float);
    "Cos" => OfFirst, Input(0), Elementwise, Some(Float);
    "Cosh" => OfFirst, Input(0), Elementwise, Some(Float);
    "CumProd" => OfFirst, Input(0), Elementwise, None;
    "CumSum" => OfFirst, Input(0), Reduction, None;
    "DeformConv" => Own, Input(0), Convolution, None;
    "DepthToSpace" => Own, Input(0), Movement, None;
    "DequantizeLinear" => OfFirst, StatedOrInput("output_dtype", 1), Elementwise, None;
    "Div" => Broadcast, Input(0), Elementwise, Some(Float);
    "Dropout" => OfFirst, Input(0), View, None;
    "DynamicQuantizeLinear" => Own, Fixed(U8), Elementwise, None;
    "Einsum" => Own, Input(0), Matmul, None;
    "Elu" => OfFirst, Input(0), Elementwise, Some(Float);
    "Equal" => Broadcast, Fixed(Bool), Elementwise, Some(Compare);
    "Erf" => OfFirst, Input(0), Elementwise, Some(Float);
    "Exp" => OfFirst, Input(0), Elementwise, Some(Float);
    "Expand" => Own, Input(0), Movement, Some(Move);
    "EyeLike" => OfFirst, StatedOrInput("dtype", 0), Movement, None;
    "Flatten" => Own, Input(0), View, Some(Move);
    "Floor" => OfFirst, Input(0), Elementwise, Some(Float);
    "GRU" => Own, Input(0), Recurrent, None;
    "Gather" => Own, Input(0), Movement, Some(Move);
    "GatherElements" => Own, Input(0), Movement, None;
    "GatherND" => Own, Input(0), Movement, None;
    "Gelu" => OfFirst, Input(0), Elementwise, Some(Float);
    "Gemm" => RankOfFirst, Input(0), Matmul, Some(Float);
    "GlobalAveragePool" => RankOfFirst, Input(0), Reduction, Some(Float);
    "GlobalLpPool" => Own, Input(0), Reduction, None;
    "GlobalMaxPool" => RankOfFirst, Input(0), Reduction, Some(Float);
    "Greater" => Broadcast, Fixed(Bool), Elementwise, Some(Compare);
    "GreaterOrEqual" => Broadcast, Fixed(Bool), Elementwise, Some(Compare);
    "GroupNormalization" => OfFirst, Input(0), Normalisation, None;
    "HammingWindow" => Own, Stated("output_datatype", Some(F32)), Elementwise, None;
    "HannWindow" => Own, Stated("output_datatype", Some(F32)), Elementwise, None;
    "HardSigmoid" => OfFirst, Input(0), Elementwise, Some(Float);
    "HardSwish" => OfFirst, Input(0), Elementwise, Some(Float);
    "Hardmax" => OfFirst, Input(0), Normalisation, None;
    "Identity" => OfFirst, Input(0), View, Some(Move);
    "If" => Own, Input(0), Other, None;
    "ImageDecoder" => Own, Fixed(U8), Elementwise, None;
    "InstanceNormalization" => OfFirst, Input(0), Normalisation, Some(Float);
    "IsInf" => OfFirst, Fixed(Bool), Elementwise, None;
    "IsNaN" => OfFirst, Fixed(Bool), Elementwise, None;
    "LRN" => OfFirst, Input(0), Normalisation, None;
    "LSTM" => Own, Input(0), Recurrent, None;
    "LabelEncoder" => OfFirst, OfTensorAttribute("values_tensor"), Movement, None;
    "LayerNormalization" => OfFirst, Input(0), Normalisation, Some(Float);
    "LeakyRelu" => OfFirst, Input(0), Elementwise, Some(Float);
    "Less" => Broadcast, Fixed(Bool), Elementwise, Some(Compare);
    "LessOrEqual" => Broadcast, Fixed(Bool), Elementwise, Some(Compare);
    "Log" => OfFirst, Input(0), Elementwise, Some(Float);
    "LogSoftmax" => OfFirst, Input(0), Normalisation, Some(Float);
    "Loop" => Own, Input(0), Other, None;
    "LpNormalization" => OfFirst, Input(0), Normalisation, None;
    "LpPool" => Own, Input(0), Reduction, None;
    "MatMul" => Own, Input(0), Matmul, Some(Float);
    "MatMulInteger" => Own, Fixed(I32), Matmul, None;
    "Max" => Broadcast, Input(0), Elementwise, Some(Float);
    "MaxPool" => RankOfFirst, Input(0), Reduction, Some(Float);
    "Mean" => Broadcast, Input(0), Elementwise, Some(Float);
    "MeanVarianceNormalization" => OfFirst, Input(0), Normalisation, None;
    "MelWeightMatrix" => Own, Stated("output_datatype", Some(F32)), Elementwise, None;
    "Min" => Broadcast, Input(0), Elementwise, Some(Float);
    "Mish" => OfFirst, Input(0), Elementwise, None;
    "Mod" => Broadcast, Input(0), Elementwise, None;
    "Mul" => Broadcast, Input(0), Elementwise, Some(Float);
    "Multinomial" => Own, Stated("dtype", Some(I32)), Elementwise, None;
    "Neg" => OfFirst, Input(0), Elementwise, Some(Float);
    "NonMaxSuppression" => Own, Fixed(I64), Elementwise, None;
    "NonZero" => Own, Fixed(I64), Elementwise, None;
    "Not" => OfFirst, Fixed(Bool), Elementwise, None;
    "OneHot" => Own, Input(2), Movement, None;
    "Or" => Broadcast, Fixed(Bool), Elementwise, None;
    "PRelu" => Broadcast, Input(0), Elementwise, Some(Float);
    "Pad" => RankOfFirst, Input(0), Movement, None;
    "Pow" => Broadcast, Input(0), Elementwise, Some(Float);
    "QLinearConv" => Own, Input(7), Convolution, None;
    "QLinearMatMul" => Own, Input(7), Matmul, None;
    "QuantizeLinear" => OfFirst, Quantised, Elementwise, None;
    "RMSNormalization" => OfFirst, Input(0), Normalisation, Some(Float);
    "RNN" => Own, Input(0), Recurrent, None;
    "RandomNormal" => Own, Stated("dtype", Some(F32)), Elementwise, None;
    "RandomNormalLike" => OfFirst, StatedOrInput("dtype", 0), Elementwise, None;
    "RandomUniform" => Own, Stated("dtype", Some(F32)), Elementwise, None;
    "RandomUniformLike" => OfFirst, StatedOrInput("dtype", 0), Elementwise, None;
    "Range" => Own, Input(0), Movement, None;
    "Reciprocal" => OfFirst, Input(0), Elementwise, Some(Float);
    "ReduceL1" => Own, Input(0), Reduction, Some(Float);
    "ReduceL2" => Own, Input(0), Reduction, Some(Float);
    "ReduceLogSum" => Own, Input(0), Reduction, Some(Float);
    "ReduceLogSumExp" => Own, Input(0), Reduction, Some(Float);
    "ReduceMax" => Own, Input(0), Reduction, Some(Float);
    "ReduceMean" => Own, Input(0), Reduction, Some(Float);
    "ReduceMin" => Own, Input(0), Reduction, Some(Float);
    "ReduceProd" => Own, Input(0), Reduction, Some(Float);
    "ReduceSum" => Own, Input(0), Reduction, Some(Float);
    "ReduceSumSquare" => Own, Input(0), Reduction, Some(Float);
    "RegexFullMatch" => OfFirst, Fixed(Bool), Elementwise, None;
    "Relu" => OfFirst, Input(0), Elementwise, Some(Float);
    "Reshape" => Own, Input(0), View, Some(Move);
    "ReverseSequence" => OfFirst, Input(0), Movement, None;
    "RotaryEmbedding" => OfFirst, Input(0), Elementwise, None;
    "Round" => OfFirst, Input(0), Elementwise, Some(Float);
    "RoutedMatMul" => Own, Input(0), Matmul, None;
    "SVMClassifier" => Own, Fixed(I64), Other, None;
    "SVMRegressor" => Own, Fixed(F32), Other, None;
    "Sample" => Own, Fixed(I64), Reduction, None;
    "Scan" => Own, Input(0), Other, None;
    "Scatter" => OfFirst, Input(0), Movement, None;
    "ScatterElements" => OfFirst, Input(0), Movement, None;
    "ScatterND" => OfFirst, Input(0), Movement, None;
    "Selu" => OfFirst, Input(0), Elementwise, None;
    "SequenceEmpty" => Own, Stated("dtype", Some(F32)), View, None;
    "SequenceInsert" => Own, Input(1), View, None;
    "SequenceLength" => Own, Fixed(I64), View, None;
    "SequenceMap" => Own, Input(0), Other, None;
    "Shape" => Own, Fixed(I64), View, Some(Move);
    "Shrink" => OfFirst, Input(0), Elementwise, None;
    "Sigmoid" => OfFirst, Input(0), Elementwise, Some(Float);
    "Sign" => OfFirst, Input(0), Elementwise, None;
    "Sin" => OfFirst, Input(0), Elementwise, Some(Float);
    "Sinh" => OfFirst, Input(0), Elementwise, Some(Float);
    "Size" => Own, Fixed(I64), View, Some(Move);
    "Slice" => RankOfFirst, Input(0), Movement, Some(Move);
    "Softmax" => OfFirst, Input(0), Normalisation, Some(Float);
    "Softplus" => OfFirst, Input(0), Elementwise, Some(Float);
    "Softsign" => OfFirst, Input(0), Elementwise, Some(Float);
    "SpaceToDepth" => Own, Input(0), Movement, None;
    "Split" => RankOfFirst, Input(0), Movement, Some(Move);
    "SplitToSequence" => Own, Input(0), Movement, None;
    "Sqrt" => OfFirst, Input(0), Elementwise, Some(Float);
    "Squeeze" => Own, Input(0), View, Some(Move);
    "Sub" => Broadcast, Input(0), Elementwise, Some(Float);
    "Sum" => Broadcast, Input(0), Elementwise, Some(Float);
    "Swish" => OfFirst, Input(0), Elementwise, Some(Float);
    "Tan" => OfFirst, Input(0), Elementwise, Some(Float);
    "Tanh" => OfFirst, Input(0), Elementwise, Some(Float);
    "TensorScatter" => OfFirst, Input(0), Elementwise, None;
    "TfIdfVectorizer" => Own, Fixed(F32), Other, None;
    "ThresholdedRelu" => OfFirst, Input(0), Elementwise, None;
    "Tile" => RankOfFirst, Input(0), Movement, Some(Move);
    "TopK" => Own, Input(0), Reduction, None;
    "Transpose" => RankOfFirst, Input(0), Movement, Some(Move);
    "TreeEnsemble" => Own, Input(0), Other, None;
    "TreeEnsembleRegressor" => Own, Fixed(F32), Other, None;
    "Trilu" => OfFirst, Input(0), Movement, None;
    "Unsqueeze" => Own, Input(0), View, Some(Move);
    "Where" => Broadcast, Input(1), Elementwise, Some(Move);
    "Xor" => Broadcast, Fixed(Bool), Elementwise, None;
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_so_that_each_is_found() {
        assert!(TABLE.is_sorted_by(|left, right| left.0 < right.0));
        assert_eq!(OperatorSchema::for_operator("Where").extents, Broadcast);
        assert_eq!(OperatorSchema::for_operator("SequenceAt").class, View);
        assert_eq!(OperatorSchema::for_operator("Unheard").result, Input(0));
    }
}
