//! Selects the rule of differentiation for each operator. A rule states how the gradients of the
//! operator's inputs follow from the gradient of its output. The tests compare each rule with
//! finite differences in 64 bits.

mod convolution;
mod gather;
mod linear;
pub mod loss;
mod norm;
mod pointwise;
mod pooling;
mod rotary;
mod shape;

use super::GradientError;
use super::node_view::NodeView;
use super::writer::Writer;

/// The gradients of a node's inputs, in their order; none where none is needed.
type Gradients = Result<Vec<Option<String>>, GradientError>;

/// Writes the gradients of a node's inputs.
///
/// # Errors
/// [`GradientError::Operator`] if the operator has no rule, and
/// [`GradientError::Unsupported`] if its rule does not cover this use.
pub(super) fn differentiate_node(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    match view.node.operator_name().as_str() {
        "MatMul" => linear::differentiate_matmul(view, gradient, writer),
        "Gemm" => linear::differentiate_gemm(view, gradient, writer),
        "Add" | "Sub" => pointwise::differentiate_sum(view, gradient, writer),
        "Mul" => pointwise::differentiate_product(view, gradient, writer),
        "Div" => pointwise::differentiate_quotient(view, gradient, writer),
        "Pow" => pointwise::differentiate_power(view, gradient, writer),
        "Neg" | "Relu" | "LeakyRelu" | "Sigmoid" | "Tanh" | "Exp" | "Log" | "Sqrt" | "Erf"
        | "Reciprocal" | "Abs" => pointwise::differentiate_function(view, gradient, writer),
        "Swish" => pointwise::differentiate_swish(view, gradient, writer),
        "Softmax" | "LogSoftmax" => norm::differentiate_softmax(view, gradient, writer),
        "ReduceSum" | "ReduceMean" => norm::differentiate_reduction(view, gradient, writer),
        "LayerNormalization" => norm::differentiate_layer_norm(view, gradient, writer),
        "RMSNormalization" => norm::differentiate_rms_norm(view, gradient, writer),
        "RotaryEmbedding" => rotary::differentiate_rotation(view, gradient, writer),
        "BatchNormalization" => norm::differentiate_batch_norm(view, gradient, writer),
        "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" => {
            shape::differentiate_reshape(view, gradient, writer)
        }
        "Identity" | "Dropout" => shape::differentiate_identity(view, gradient),
        "Transpose" => shape::differentiate_transpose(view, gradient, writer),
        "Concat" => shape::differentiate_concat(view, gradient, writer),
        "Expand" => shape::differentiate_expand(view, gradient, writer),
        "Gather" => gather::differentiate_gather(view, gradient, writer),
        "Conv" => convolution::differentiate_conv(view, gradient, writer),
        "MaxPool" => pooling::differentiate_max_pool(view, gradient, writer),
        "AveragePool" | "GlobalAveragePool" => {
            pooling::differentiate_average_pool(view, gradient, writer)
        }
        _ => Err(GradientError::Operator {
            node: view.node.name().to_owned(),
            operator: view.node.operator_name(),
        }),
    }
}
