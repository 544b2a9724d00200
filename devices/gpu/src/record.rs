//! What records each operator.

use souk_memory::DType;

use super::attention::{attention, rotary};
use super::batch::batch_norm;
use super::blocks::blocks;
use super::convolutions::{conv, conv_transpose};
use super::dropout::dropout;
use super::elementwise::{binary, unary};
use super::error::GpuError;
use super::pool::{local_response, pool};
use super::products::{gemm, matmul};
use super::reduce::{self, reduction};
use super::scatter::scatter;
use super::shaders::Softmax;
use super::steps::Step;
use super::stream::Array;
use super::{casts, elementwise as each, integers, layout, loss, quantise};

/// Records a node that was judged to run on the device.
pub(super) fn record(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let output = step.wanted;
    let operator = step.call.node.op_type();
    if unary(operator).is_some() {
        return each::one(step);
    }
    if operator == "Pow" {
        return casts::power(step);
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
        "Cast" | "CastLike" => casts::cast(step, output.unwrap_or(DType::F32)),
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
        "BatchNormalization" => batch_norm(step),
        "Clip" => each::clip(step),
        "Concat" => layout::concat(step),
        "DequantizeLinear" => quantise::dequantise(step),
        "Dropout" => dropout(step),
        "DynamicQuantizeLinear" => quantise::dynamic(step),
        "MatMulInteger" => integers::matmul_integer(step),
        "QLinearMatMul" => integers::qlinear_matmul(step),
        "Conv" => conv(step),
        "ConvTranspose" => conv_transpose(step),
        "DepthToSpace" | "SpaceToDepth" => blocks(step),
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
        "Scatter" | "ScatterElements" | "ScatterND" => scatter(step),
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
