//! The names of the ONNX operators behind the numbers in [`Operators`], which asks and bids carry.
//! An operator outside the standard domain has its domain in front. A number must never change its
//! meaning: new ones must come at the end.

use souk_market::Operators;

/// Operators by number.
pub const NAMES: [&str; 226] = [
    "Abs",
    "Acos",
    "Acosh",
    "Add",
    "AffineGrid",
    "And",
    "ArgMax",
    "ArgMin",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Attention",
    "AveragePool",
    "BatchNormalization",
    "Bernoulli",
    "BitCast",
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "BlackmanWindow",
    "Cast",
    "CastLike",
    "CausalConvWithState",
    "Ceil",
    "Celu",
    "CenterCropPad",
    "Clip",
    "Col2Im",
    "Compress",
    "Concat",
    "ConcatFromSequence",
    "Constant",
    "ConstantOfShape",
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "Cos",
    "Cosh",
    "CumProd",
    "CumSum",
    "DFT",
    "DeformConv",
    "DepthToSpace",
    "DequantizeLinear",
    "Det",
    "Div",
    "Dropout",
    "DynamicQuantizeLinear",
    "Einsum",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Expand",
    "EyeLike",
    "Flatten",
    "FlexAttention",
    "Floor",
    "GRU",
    "Gather",
    "GatherElements",
    "GatherND",
    "Gelu",
    "Gemm",
    "GlobalAveragePool",
    "GlobalLpPool",
    "GlobalMaxPool",
    "Greater",
    "GreaterOrEqual",
    "GridSample",
    "GroupNormalization",
    "HammingWindow",
    "HannWindow",
    "HardSigmoid",
    "HardSwish",
    "Hardmax",
    "Identity",
    "If",
    "ImageDecoder",
    "InstanceNormalization",
    "Inverse",
    "IsInf",
    "IsNaN",
    "LRN",
    "LSTM",
    "LayerNormalization",
    "LeakyRelu",
    "Less",
    "LessOrEqual",
    "LinearAttention",
    "Log",
    "LogSoftmax",
    "Loop",
    "LpNormalization",
    "LpPool",
    "MatMul",
    "MatMulInteger",
    "Max",
    "MaxPool",
    "MaxRoiPool",
    "MaxUnpool",
    "Mean",
    "MeanVarianceNormalization",
    "MelWeightMatrix",
    "Min",
    "Mish",
    "Mod",
    "Mul",
    "Multinomial",
    "Neg",
    "NegativeLogLikelihoodLoss",
    "NonMaxSuppression",
    "NonZero",
    "Not",
    "OneHot",
    "Optional",
    "OptionalGetElement",
    "OptionalHasElement",
    "Or",
    "PRelu",
    "Pad",
    "Pow",
    "QLinearConv",
    "QLinearMatMul",
    "QuantizeLinear",
    "RMSNormalization",
    "RNN",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Range",
    "Reciprocal",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
    "RegexFullMatch",
    "Relu",
    "Reshape",
    "Resize",
    "ReverseSequence",
    "RoiAlign",
    "RotaryEmbedding",
    "Round",
    "STFT",
    "Scan",
    "Scatter",
    "ScatterElements",
    "ScatterND",
    "Selu",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "SequenceMap",
    "Shape",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Size",
    "Slice",
    "Softmax",
    "SoftmaxCrossEntropyLoss",
    "Softplus",
    "Softsign",
    "SpaceToDepth",
    "Split",
    "SplitToSequence",
    "Sqrt",
    "Squeeze",
    "StringConcat",
    "StringNormalizer",
    "StringSplit",
    "Sub",
    "Sum",
    "SwiGLU",
    "Swish",
    "Tan",
    "Tanh",
    "TensorScatter",
    "TfIdfVectorizer",
    "ThresholdedRelu",
    "Tile",
    "TopK",
    "Transpose",
    "Trilu",
    "Unique",
    "Unsqueeze",
    "Upsample",
    "Where",
    "Xor",
    "ai.onnx.ml.ArrayFeatureExtractor",
    "ai.onnx.ml.Binarizer",
    "ai.onnx.ml.CastMap",
    "ai.onnx.ml.CategoryMapper",
    "ai.onnx.ml.DictVectorizer",
    "ai.onnx.ml.FeatureVectorizer",
    "ai.onnx.ml.Imputer",
    "ai.onnx.ml.LabelEncoder",
    "ai.onnx.ml.LinearClassifier",
    "ai.onnx.ml.LinearRegressor",
    "ai.onnx.ml.Normalizer",
    "ai.onnx.ml.OneHotEncoder",
    "ai.onnx.ml.SVMClassifier",
    "ai.onnx.ml.SVMRegressor",
    "ai.onnx.ml.Scaler",
    "ai.onnx.ml.TreeEnsemble",
    "ai.onnx.ml.TreeEnsembleClassifier",
    "ai.onnx.ml.TreeEnsembleRegressor",
    "ai.onnx.ml.ZipMap",
    "ai.souk.Sample",
    "ai.souk.RoutedMatMul",
];

/// Returns the number of an operator; none if it is not listed.
#[must_use]
pub fn operator_number(name: &str) -> Option<usize> {
    NAMES.iter().position(|known| *known == name)
}

/// Returns the name of an operator's number.
#[must_use]
pub fn name(number: usize) -> &'static str {
    NAMES.get(number).copied().unwrap_or("one of a later souk")
}

/// Returns the names of the operators that are in `needed` and not in `there`.
pub fn missing_names(needed: &Operators, there: &Operators) -> impl Iterator<Item = &'static str> {
    needed
        .numbers()
        .filter(|it| !there.has_operator(*it))
        .map(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_keeps_its_meaning() {
        let listed = NAMES.join(" ");
        let kept = blake3::hash(listed.as_bytes()).to_hex();
        assert_eq!((NAMES.len(), &kept[..16]), (226, "558e3f7e1a4a1ead"));
        assert_eq!(
            NAMES.map(operator_number),
            std::array::from_fn(Some),
            "each has one number"
        );
        assert!(NAMES.len() <= Operators::BYTES_MAX * 8, "all fit a set");
    }

    #[test]
    fn what_is_missing_is_named() {
        let set = |names: &[&str]| {
            Operators::from_numbers(names.iter().filter_map(|name| operator_number(name)))
        };
        let needed = set(&["Add", "MatMul", "Relu"]);
        let names: Vec<_> = missing_names(&needed, &set(&["Relu"])).collect();
        assert_eq!(names, ["Add", "MatMul"]);
        assert_eq!(operator_number("com.example.Fold"), None);
    }
}
