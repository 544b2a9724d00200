//! Records the kernels of a node, which adds them to the work of a run: [`record_node`] finds the
//! function for the node's operator, and the modules below contain these functions. A run of a GPU
//! program calls it for each node that was judged to run on the device.

mod attention;
mod batch;
mod blocks;
mod casts;
mod convolutions;
mod dropout;
pub(crate) mod elementwise;
mod gather;
pub(crate) mod integers;
mod layout;
mod loss;
mod pool;
pub(crate) mod products;
mod quantise;
pub(crate) mod reduce;
pub(crate) mod scatter;
pub(crate) mod unfolding;

use souk_memory::DType;

use crate::error::GpuError;
use crate::recording::{Array, Step};
use crate::shaders::Softmax;
use attention::attention;
use attention::rotary_embedding;
use batch::batch_norm;
use blocks::rearrange_blocks;
use convolutions::conv;
use convolutions::conv_transpose;
use dropout::dropout;
use elementwise::binary_map;
use elementwise::unary_map;
use pool::local_response;
use pool::pool;
use products::gemm;
use products::matmul;
use reduce::find_reduction;
use scatter::scatter;

/// Records a node, which must have been judged to run on the device.
pub(crate) fn record_node(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let output = step.wanted;
    let operator = step.call.node.op_type();
    if unary_map(operator).is_some() {
        return elementwise::apply_unary(step);
    }
    if operator == "Pow" {
        return casts::power(step);
    }
    if binary_map(operator).is_some() {
        return elementwise::apply_chain(step);
    }
    match operator {
        "BitwiseNot" => elementwise::apply_unary(step),
        "BitShift" | "BitwiseAnd" | "BitwiseOr" | "BitwiseXor" | "Mod" => {
            elementwise::apply_chain(step)
        }
        "GlobalAveragePool" | "GlobalMaxPool" => {
            let by = find_reduction(operator).expect("both are in the table");
            reduce::global_pool(step, by)
        }
        "Cast" | "CastLike" => casts::cast(step, output.unwrap_or(DType::F32)),
        "QuantizeLinear" => quantise::quantise(step, output),
        _ => match find_reduction(operator) {
            Some(by) => reduce::reduce_axes(step, by),
            None => record_named(step),
        },
    }
}

fn record_named(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    match step.call.node.op_type() {
        "ArgMax" | "ArgMin" => reduce::arg_extreme(step),
        "Attention" => attention(step),
        "AveragePool" | "LpPool" | "MaxPool" => pool(step),
        "BatchNormalization" => batch_norm(step),
        "Clip" => elementwise::clip(step),
        "Concat" => layout::concat(step),
        "DequantizeLinear" => quantise::dequantise(step),
        "Dropout" => dropout(step),
        "DynamicQuantizeLinear" => quantise::quantise_dynamic(step),
        "MatMulInteger" => integers::matmul_integer(step),
        "QLinearMatMul" => integers::qlinear_matmul(step),
        "Conv" => conv(step),
        "ConvTranspose" => conv_transpose(step),
        "DepthToSpace" | "SpaceToDepth" => rearrange_blocks(step),
        "Expand" => layout::expand(step),
        "Gather" => match step.matrix {
            Some(matrix) => products::matrix::gather_rows(step, matrix),
            None => gather::gather(step),
        },
        "GatherElements" => gather::gather_elements(step),
        "GatherND" => gather::gather_nd(step),
        "Gelu" => elementwise::gelu(step),
        "Gemm" => gemm(step),
        "GroupNormalization" | "InstanceNormalization" => reduce::group_norm(step),
        "LRN" => local_response(step),
        "LayerNormalization" | "RMSNormalization" => reduce::layer_norm(step),
        "LogSoftmax" => reduce::apply_softmax(step, Softmax::Log),
        "MatMul" => matmul(step),
        "Mean" => elementwise::mean(step),
        "NegativeLogLikelihoodLoss" => loss::negative_log_likelihood(step),
        "Not" => elementwise::not(step),
        "Pad" => layout::pad(step),
        "ReduceLogSumExp" => reduce::log_sum_exp(step),
        "RotaryEmbedding" => rotary_embedding(step),
        "Scatter" | "ScatterElements" | "ScatterND" => scatter(step),
        "Slice" => layout::slice(step),
        "SoftmaxCrossEntropyLoss" => loss::cross_entropy(step),
        "Softmax" => reduce::apply_softmax(step, Softmax::Plain),
        "Split" => layout::split(step),
        "TensorScatter" => scatter::tensor_scatter(step),
        "Tile" => layout::tile(step),
        "TopK" => reduce::top_k(step),
        "Transpose" => layout::transpose(step),
        "Where" => elementwise::select(step),
        _ => layout::change_shape(step),
    }
}
