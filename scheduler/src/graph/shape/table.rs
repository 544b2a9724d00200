//! Selects the rule that infers an operator. An operator without a rule yields unknown facts.

use souk_onnx::DataType;
use souk_onnx::schema::{Extents, OperatorSchema};

use super::layout::{self, Deeper};
use super::operation::Inference;
use super::{
    Operation, attention, convolution, elementwise, gather, generate, matmul, reduce, resize,
    sequence,
};

/// Returns the facts of the first outputs of `operation`.
pub(super) fn infer(operation: &Operation<'_>) -> Inference {
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
        "Dropout" => elementwise::dropout(operation),
        "LayerNormalization" => elementwise::layer_norm(operation),
        "BatchNormalization" => elementwise::batch_norm(operation),
        "DynamicQuantizeLinear" => elementwise::dynamic_quantize(operation),
        // A slope is broadcast to the value, never the value to the slope.
        "PRelu" => elementwise::same(operation),
        _ => match OperatorSchema::of(name).extents {
            Extents::OfFirst => elementwise::same(operation),
            Extents::Repeated => elementwise::repeated(operation),
            Extents::RankOfFirst | Extents::Own => return None,
        },
    };
    Some(facts)
}

/// Infers operators that move, pick or create elements.
fn by_movement(name: &str, operation: &Operation<'_>) -> Option<Inference> {
    let facts = match name {
        "Reshape" => layout::reshape(operation),
        "Flatten" => layout::flatten(operation),
        "Transpose" => layout::transpose(operation),
        "Squeeze" => layout::squeeze(operation),
        "Unsqueeze" => layout::unsqueeze(operation),
        "Concat" => layout::concat(operation),
        "Split" => layout::split(operation),
        "Slice" => layout::slice(operation),
        "Pad" => layout::pad(operation),
        "Expand" => layout::expand(operation),
        "Tile" => layout::tile(operation),
        "DepthToSpace" => layout::depth_space(operation, Deeper::No),
        "SpaceToDepth" => layout::depth_space(operation, Deeper::Yes),
        "CenterCropPad" => layout::center_crop_pad(operation),
        "Gather" => gather::gather(operation),
        "GatherElements" => gather::gather_elements(operation),
        "GatherND" => gather::gather_nd(operation),
        "TopK" => gather::top_k(operation),
        "NonZero" => gather::non_zero(operation),
        "Compress" => gather::compress(operation),
        "Unique" => gather::unique(operation),
        "OneHot" => gather::one_hot(operation),
        "Shape" => generate::shape(operation),
        "Size" => generate::size(operation),
        "Constant" => generate::constant(operation),
        "ConstantOfShape" => generate::constant_of_shape(operation),
        "Range" => generate::range(operation),
        "RandomNormal" | "RandomUniform" => generate::random(operation),
        "Multinomial" => generate::multinomial(operation),
        "TfIdfVectorizer" => generate::ngrams(operation),
        "BlackmanWindow" | "HammingWindow" | "HannWindow" => generate::window(operation),
        "AffineGrid" => generate::affine_grid(operation),
        _ => return None,
    };
    Some(facts)
}

/// Infers windows over space, reductions and transforms.
fn by_window(name: &str, operation: &Operation<'_>) -> Option<Inference> {
    let facts = match name {
        "Conv" | "ConvInteger" | "DeformConv" => convolution::convolution(operation, 0, 1),
        "QLinearConv" => convolution::convolution(operation, 0, 3),
        "ConvTranspose" => convolution::transposed(operation),
        "AveragePool" | "LpPool" | "MaxPool" => convolution::pool(operation),
        "GlobalAveragePool" | "GlobalLpPool" | "GlobalMaxPool" => {
            convolution::global_pool(operation)
        }
        "MaxUnpool" => convolution::unpool(operation),
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
            reduce::reduce(operation)
        }
        "ArgMax" | "ArgMin" => reduce::arg(operation),
        "Resize" => resize::resize(operation),
        "Upsample" => resize::upsample(operation),
        "GridSample" => generate::grid_sample(operation),
        "GRU" | "LSTM" | "RNN" => sequence::recurrent(operation),
        "DFT" => sequence::dft(operation),
        _ => return None,
    };
    Some(facts)
}

/// Infers products, attention and losses.
fn by_product(name: &str, operation: &Operation<'_>) -> Option<Inference> {
    let facts = match name {
        "MatMul" | "MatMulInteger" => matmul::product(operation, 0, 1),
        "QLinearMatMul" => matmul::product(operation, 0, 3),
        "Gemm" => matmul::gemm(operation),
        "Einsum" => matmul::einsum(operation),
        "Attention" => attention::attention(operation),
        "NegativeLogLikelihoodLoss" | "SoftmaxCrossEntropyLoss" => generate::loss(operation),
        "Det" => {
            let dims = operation
                .dims(0)
                .and_then(|dims| Some(dims[..dims.len().checked_sub(2)?].to_vec()));
            Operation::one(operation.elem(0), dims)
        }
        "StringNormalizer" | "StringConcat" => Operation::one(Some(DataType::String), None),
        "MelWeightMatrix" => Operation::one(operation.result_elem(), None),
        _ => return None,
    };
    Some(facts)
}
