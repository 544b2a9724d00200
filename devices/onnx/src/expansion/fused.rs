//! Splits nodes in which ONNX Runtime's optimiser or quantiser fused a product or convolution with
//! other operators, such as `FusedConv` (a convolution with an activation) or `MatMulNBits` (a
//! product with weights of a few bits). The result consists of standard ONNX operators.

use souk_memory::{DType, Tensor};

use super::builder::ExpansionBuilder;
use crate::{AttributeProto, NodeProto};

/// Expands a node; returns `None` if it is none of these operators.
pub(super) fn expand_node(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    match body.call().op_type() {
        "FusedConv" => convolution(body),
        "FusedGemm" => gemm(body),
        "FusedMatMul" | "TransposeMatMul" => expand_matmul(body),
        "MatMulNBits" => narrow_product(body),
        "NhwcConv" => channels_last(body),
        _ => None,
    }
}

/// Returns the node's attributes that the standard operator has too.
fn select_attributes(body: &ExpansionBuilder<'_>, names: &[&str]) -> Vec<AttributeProto> {
    let attributes = body.call().attribute.iter();
    let attributes = attributes.filter(|it| names.contains(&it.name()));
    attributes.cloned().collect()
}

const WINDOW: &[&str] = &[
    "auto_pad",
    "dilations",
    "group",
    "kernel_shape",
    "pads",
    "strides",
];

fn convolution(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let inputs: Vec<&str> = (0..3).filter_map(|index| body.input_name(index)).collect();
    let mut node = NodeProto::for_operator("Conv", &inputs, "");
    node.attribute = select_attributes(body, WINDOW);
    let mut value = body.add(node);
    if let Some(summand) = body.input_name(3) {
        value = body.add_operator("Add", &[&value, summand]);
    }
    let parameters = body.call().floats("activation_params").unwrap_or_default();
    let value = apply_activation(body, &value, parameters)?;
    body.set_output(0, &value);
    Some(())
}

fn gemm(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let inputs: Vec<&str> = (0..3).filter_map(|index| body.input_name(index)).collect();
    let mut node = NodeProto::for_operator("Gemm", &inputs, "");
    node.attribute = select_attributes(body, &["alpha", "beta", "transA", "transB"]);
    let value = body.add(node);
    let call = body.call();
    let stated = ["activation_alpha", "activation_beta"].map(|name| call.float(name));
    let parameters: Vec<f32> = stated.into_iter().flatten().collect();
    let value = apply_activation(body, &value, &parameters)?;
    body.set_output(0, &value);
    Some(())
}

/// Applies the activation that the node names.
fn apply_activation(
    body: &mut ExpansionBuilder<'_>,
    value: &str,
    parameters: &[f32],
) -> Option<String> {
    let activation = body.call().string("activation").unwrap_or("");
    let names: &[&str] = match activation {
        "" => return Some(value.to_owned()),
        "Relu" | "Sigmoid" | "Tanh" | "Softplus" | "Softsign" => &[],
        "Elu" | "LeakyRelu" | "ThresholdedRelu" => &["alpha"],
        "HardSigmoid" => &["alpha", "beta"],
        "Clip" => {
            let [least, largest] = parameters.try_into().ok()?;
            let [least, largest] = [least, largest].map(|bound: f32| body.add_float(bound));
            let raised = body.add_operator("Max", &[value, &least]);
            return Some(body.add_operator("Min", &[&raised, &largest]));
        }
        _ => return None,
    };
    let mut node = NodeProto::for_operator(activation, &[value], "");
    for (name, parameter) in names.iter().zip(parameters) {
        node = node.with(name, *parameter);
    }
    Some(body.add(node))
}

/// Expands a convolution of images with the channels last.
fn channels_last(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let turned = body.add_transpose(body.input_name(0)?, &[0, 3, 1, 2]);
    let weights = body.add_transpose(body.input_name(1)?, &[0, 3, 1, 2]);
    let mut inputs = vec![turned.as_str(), weights.as_str()];
    inputs.extend(body.input_name(2));
    let mut node = NodeProto::for_operator("Conv", &inputs, "");
    node.attribute = select_attributes(body, WINDOW);
    let value = body.add(node);
    let value = body.add_transpose(&value, &[0, 2, 3, 1]);
    body.set_output(0, &value);
    Some(())
}

/// Expands a product with either operand transposed, and a factor.
fn expand_matmul(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let call = body.call();
    let is_set = |name: &str| call.int(name).unwrap_or(0) != 0;
    if is_set("transBatchA") || is_set("transBatchB") {
        return None;
    }
    let mut operands = Vec::new();
    for (index, name) in [(0, "transA"), (1, "transB")] {
        let operand = body.input_name(index)?;
        // The transpose of a vector is the vector itself.
        let is_vector = body.rank(operand) == Some(1);
        operands.push(match is_set(name) && !is_vector {
            true => swap_last_axes(body, operand)?,
            false => operand.to_owned(),
        });
    }
    let mut value = body.add_operator("MatMul", &[&operands[0], &operands[1]]);
    let alpha = call.float("alpha").unwrap_or(1.0);
    if alpha != 1.0 {
        let factor = body.add_float(alpha);
        let factor = match body.input_dtype(0) {
            Some(DType::F32) => factor,
            _ => body.add_operator("CastLike", &[&factor, &value]),
        };
        value = body.add_operator("Mul", &[&value, &factor]);
    }
    body.set_output(0, &value);
    Some(())
}

/// Swaps the last two axes of a value. If the rank is unknown, only an `Einsum` can do so.
fn swap_last_axes(body: &mut ExpansionBuilder<'_>, value: &str) -> Option<String> {
    let Some(rank) = body.rank(value) else {
        let einsum = NodeProto::for_operator("Einsum", &[value], "");
        return Some(body.add(einsum.with("equation", "...ij->...ji")));
    };
    let mut axes: Vec<i64> = (0..i64::try_from(rank).ok()?).collect();
    axes.swap(rank.checked_sub(2)?, rank - 1);
    Some(body.add_transpose(value, &axes))
}

/// Expands a product with weights of few bits and one scale per block of a column.
fn narrow_product(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let call = body.call();
    let size = |name: &str| call.int(name).filter(|it| *it > 0);
    let (depth, columns) = (size("K")?, size("N")?);
    let (bits, block) = (size("bits").unwrap_or(4), size("block_size")?);
    // ONNX's layout matches only whole blocks, in their original order.
    if depth % block != 0 || !matches!(bits, 4 | 8) || body.input_name(4).is_some() {
        return None;
    }
    let blocks = depth / block;
    let dtype = if bits == 4 { DType::U4 } else { DType::U8 };
    let weights = body.reinterpret_constant(1, dtype, &[columns, depth])?;
    let zeros = match body.input_name(3) {
        Some(_) if bits == 4 && blocks % 2 != 0 => return None,
        Some(_) => body.reinterpret_constant(3, dtype, &[columns, blocks])?,
        None => middle_zero_points(body, dtype, columns, blocks)?,
    };
    let scales = body.add_reshape(body.input_name(2)?, &[columns, blocks]);
    let node = NodeProto::for_operator("DequantizeLinear", &[&weights, &scales, &zeros], "");
    let node = node.with("axis", 1i64).with("block_size", block);
    let dense = body.add(node);
    let dense = body.add_transpose(&dense, &[1, 0]);
    let mut value = body.add_operator("MatMul", &[body.input_name(0)?, &dense]);
    if let Some(bias) = body.input_name(5) {
        value = body.add_operator("Add", &[&value, bias]);
    }
    body.set_output(0, &value);
    Some(())
}

/// Returns zero points at the middle of the range.
fn middle_zero_points(
    body: &mut ExpansionBuilder<'_>,
    dtype: DType,
    columns: i64,
    blocks: i64,
) -> Option<String> {
    let count = usize::try_from(columns.checked_mul(blocks)?).ok()?;
    let (byte, length) = match dtype {
        DType::U4 => (0x88, count.div_ceil(2)),
        _ => (0x80, count),
    };
    let shape = souk_memory::Shape::new([columns as usize, blocks as usize]).ok()?;
    let tensor = Tensor::new(dtype, shape, vec![byte; length].into()).ok()?;
    Some(body.add_constant(&tensor))
}
