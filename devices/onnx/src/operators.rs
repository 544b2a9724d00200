//! What is known of operators by their names: which rten is trusted with, and which keep the number
//! of dimensions of their first input.

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

/// The class for rten, if it is trusted with the operator, and whether the rank is kept.
type Facts = (Option<Class>, bool);

/// What is known of an operator; of most of ONNX nothing.
pub fn facts(operator: &str) -> Facts {
    use Class::{Compare, Convert, Float, Move};
    match operator {
        "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" => (Some(Compare), false),
        "Cast" => (Some(Convert), true),
        "Acos" | "Acosh" | "Add" | "Asin" | "Asinh" | "Atan" | "Atanh" | "Cosh" | "Div"
        | "MatMul" | "Max" | "Mean" | "Min" | "Mul" | "PRelu" | "Pow" | "ReduceL1" | "ReduceL2"
        | "ReduceLogSum" | "ReduceLogSumExp" | "ReduceMax" | "ReduceMean" | "ReduceMin"
        | "ReduceProd" | "ReduceSum" | "ReduceSumSquare" | "Sinh" | "Softplus" | "Softsign"
        | "Sub" | "Sum" | "Swish" | "Tan" => (Some(Float), false),
        "Abs"
        | "AveragePool"
        | "BatchNormalization"
        | "Ceil"
        | "Clip"
        | "Conv"
        | "ConvTranspose"
        | "Cos"
        | "Elu"
        | "Erf"
        | "Exp"
        | "Floor"
        | "Gelu"
        | "Gemm"
        | "GlobalAveragePool"
        | "GlobalMaxPool"
        | "HardSigmoid"
        | "HardSwish"
        | "InstanceNormalization"
        | "LayerNormalization"
        | "LeakyRelu"
        | "Log"
        | "LogSoftmax"
        | "MaxPool"
        | "Neg"
        | "RMSNormalization"
        | "Reciprocal"
        | "Relu"
        | "Round"
        | "Sigmoid"
        | "Sin"
        | "Softmax"
        | "Sqrt"
        | "Tanh" => (Some(Float), true),
        "Constant" | "ConstantOfShape" | "Expand" | "Flatten" | "Gather" | "Reshape" | "Shape"
        | "Size" | "Squeeze" | "Unsqueeze" | "Where" => (Some(Move), false),
        "Concat" | "Identity" | "Slice" | "Split" | "Tile" | "Transpose" => (Some(Move), true),
        "Dropout" | "LRN" | "Not" | "Pad" => (None, true),
        _ => (None, false),
    }
}
