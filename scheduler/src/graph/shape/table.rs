//! Selects the rule that infers the outputs of a standard operator. An operator without a rule
//! yields unknown facts.

use souk_onnx::DataType;
use souk_onnx::schema::{Extents, OperatorSchema};

use super::layout::{self, DepthDirection};
use super::operation::Inference;
use super::{
    Operation, attention, convolution, elementwise, gather, generate, matmul, reduce, resize,
    sequence,
};

/// Returns the facts of the first outputs of `operation`.
pub(super) fn infer_by_rule(operation: &Operation<'_>) -> Inference {
    let name = operation.node.op_type();
    by_extent(name, operation)
        .or_else(|| by_movement(name, operation))
        .or_else(|| by_window(name, operation))
        .or_else(|| by_product(name, operation))
        .unwrap_or_else(|| Ok(Vec::new()))
}

/// Infers operators on single elements.
fn by_extent(name: &str, operation: &Operation<'_>) -> Option<Inference> {
    let facts = match name {
        "Dropout" => elementwise::infer_dropout(operation),
        "LayerNormalization" => elementwise::layer_norm(operation),
        "BatchNormalization" => elementwise::batch_norm(operation),
        "DynamicQuantizeLinear" => elementwise::dynamic_quantize(operation),
        // A slope is broadcast to the value, never the value to the slope.
        "PRelu" => elementwise::infer_same_shape(operation),
        _ => match OperatorSchema::for_operator(name).extents {
            Extents::OfFirst => elementwise::infer_same_shape(operation),
            Extents::Broadcast => elementwise::infer_broadcast(operation),
            Extents::RankOfFirst | Extents::Own => return None,
        },
    };
    Some(facts)
}

/// Infers operators that move, pick or create elements.
fn by_movement(name: &str, operation: &Operation<'_>) -> Option<Inference> {
    let facts = match name {
        "Reshape" => layout::infer_reshape(operation),
        "Flatten" => layout::infer_flatten(operation),
        "Transpose" => layout::infer_transpose(operation),
        "Squeeze" => layout::infer_squeeze(operation),
        "Unsqueeze" => layout::infer_unsqueeze(operation),
        "Concat" => layout::infer_concat(operation),
        "Split" => layout::infer_split(operation),
        "Slice" => layout::infer_slice(operation),
        "Pad" => layout::infer_pad(operation),
        "Expand" => layout::infer_expand(operation),
        "Tile" => layout::infer_tile(operation),
        "DepthToSpace" => layout::depth_space(operation, DepthDirection::No),
        "SpaceToDepth" => layout::depth_space(operation, DepthDirection::Yes),
        "CenterCropPad" => layout::center_crop_pad(operation),
        "Gather" => gather::infer_gather(operation),
        "GatherElements" => gather::gather_elements(operation),
        "GatherND" => gather::gather_nd(operation),
        "TopK" => gather::top_k(operation),
        "NonZero" => gather::non_zero(operation),
        "Compress" => gather::infer_compress(operation),
        "Unique" => gather::infer_unique(operation),
        "OneHot" => gather::one_hot(operation),
        "Shape" => generate::infer_shape(operation),
        "Size" => generate::infer_size(operation),
        "Constant" => generate::infer_constant(operation),
        "ConstantOfShape" => generate::constant_of_shape(operation),
        "Range" => generate::infer_range(operation),
        "RandomNormal" | "RandomUniform" => generate::infer_random(operation),
        "Multinomial" => generate::infer_multinomial(operation),
        "TfIdfVectorizer" => generate::infer_ngrams(operation),
        "BlackmanWindow" | "HammingWindow" | "HannWindow" => generate::infer_window(operation),
        "AffineGrid" => generate::affine_grid(operation),
        _ => return None,
    };
    Some(facts)
}

/// Infers windows over space, reductions and transforms.
fn by_window(name: &str, operation: &Operation<'_>) -> Option<Inference> {
    let facts = match name {
        "Conv" | "ConvInteger" | "DeformConv" => convolution::infer_convolution(operation, 0, 1),
        "QLinearConv" => convolution::infer_convolution(operation, 0, 3),
        "ConvTranspose" => convolution::infer_conv_transpose(operation),
        "AveragePool" | "LpPool" | "MaxPool" => convolution::infer_pool(operation),
        "GlobalAveragePool" | "GlobalLpPool" | "GlobalMaxPool" => {
            convolution::global_pool(operation)
        }
        "MaxUnpool" => convolution::infer_unpool(operation),
        "MaxRoiPool" => {
            let sizes = operation.node.ints("pooled_shape");
            convolution::regions(operation, sizes.and_then(|sizes| sizes.try_into().ok()))
        }
        "RoiAlign" => {
            let size = |name: &str| operation.int_or(name, 1);
            convolution::regions(
                operation,
                Some([size("output_height"), size("output_width")]),
            )
        }
        "ReduceL1" | "ReduceL2" | "ReduceLogSum" | "ReduceLogSumExp" | "ReduceMax"
        | "ReduceMean" | "ReduceMin" | "ReduceProd" | "ReduceSum" | "ReduceSumSquare" => {
            reduce::infer_reduce(operation)
        }
        "ArgMax" | "ArgMin" => reduce::infer_arg(operation),
        "Resize" => resize::infer_resize(operation),
        "Upsample" => resize::infer_upsample(operation),
        "GridSample" => generate::grid_sample(operation),
        "GRU" | "LSTM" | "RNN" => sequence::infer_recurrent(operation),
        "DFT" => sequence::infer_dft(operation),
        _ => return None,
    };
    Some(facts)
}

/// Infers products, attention and losses.
fn by_product(name: &str, operation: &Operation<'_>) -> Option<Inference> {
    let facts = match name {
        "MatMul" | "MatMulInteger" => matmul::infer_product(operation, 0, 1),
        "QLinearMatMul" => matmul::infer_product(operation, 0, 3),
        "Gemm" => matmul::infer_gemm(operation),
        "Einsum" => matmul::infer_einsum(operation),
        "Attention" => attention::infer_attention(operation),
        "NegativeLogLikelihoodLoss" | "SoftmaxCrossEntropyLoss" => generate::infer_loss(operation),
        "Det" => {
            let dims = operation
                .input_dims(0)
                .and_then(|dims| Some(dims[..dims.len().checked_sub(2)?].to_vec()));
            Operation::single_output(operation.input_elem(0), dims)
        }
        "StringNormalizer" | "StringConcat" => {
            Operation::single_output(Some(DataType::String), None)
        }
        "MelWeightMatrix" => Operation::single_output(operation.result_elem(), None),
        _ => return None,
    };
    Some(facts)
}
