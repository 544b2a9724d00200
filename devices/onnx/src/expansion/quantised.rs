//! Rewrites the operators of ONNX Runtime's quantisers, whose values are integers with scales, as
//! standard ONNX operators. These dequantise, compute and quantise again, or multiply as integers
//! where the sums are exact.

use souk_memory::DType;

use super::builder::ExpansionBuilder;
use crate::{AttributeProto, NodeProto};

/// Expands a node; returns `None` if it is none of these operators.
pub(super) fn expand_node(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    match body.call().op_type() {
        "QLinearAdd" => expand_binary(body, "Add"),
        "QLinearMul" => expand_binary(body, "Mul"),
        "QLinearLeakyRelu" => expand_unary(body, "LeakyRelu", &["alpha"]),
        "QLinearSigmoid" => expand_unary(body, "Sigmoid", &[]),
        "QLinearSoftmax" => softmax(body),
        "QLinearAveragePool" => pool(body, "AveragePool"),
        "QLinearGlobalAveragePool" => pool(body, "GlobalAveragePool"),
        "QLinearReduceMean" => expand_unary(body, "ReduceMean", &["axes", "keepdims"]),
        "QLinearConcat" => concat(body),
        "QLinearWhere" => expand_where(body),
        "QGemm" => gemm(body),
        "MatMulIntegerToFloat" => integer_product(body),
        "DynamicQuantizeMatMul" => dynamic_product(body),
        "DynamicQuantizeLSTM" => long_memory(body),
        _ => None,
    }
}

/// Expands a quantised `LSTM`: dequantises its weights, and quantises and dequantises its input as
/// ONNX Runtime does. It does not quantise the state, which ONNX Runtime quantises anew at each
/// step.
fn long_memory(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let input = body.input_name(0)?;
    let quantised = NodeProto::for_operator("DynamicQuantizeLinear", &[input], "");
    let quantised = body.add_many(quantised, 3);
    let quantised: Vec<&str> = quantised.iter().map(String::as_str).collect();
    let input = body.add_operator("DequantizeLinear", &quantised);
    let [weights, recurrence] = [
        dequantise_recurrent(body, 1, 8)?,
        dequantise_recurrent(body, 2, 10)?,
    ];
    let others: Vec<&str> = (3..8)
        .map(|index| body.input_name(index).unwrap_or(""))
        .collect();
    let inputs = [&[&*input, &*weights, &*recurrence], &*others].concat();
    let known = [
        "activation_alpha",
        "activation_beta",
        "activations",
        "clip",
        "direction",
        "hidden_size",
        "input_forget",
    ];
    let mut node = NodeProto::for_operator("LSTM", &inputs, "");
    node.attribute = select_attributes(body, &known);
    let made = body.add_many(node, 3);
    for (index, value) in made.iter().enumerate() {
        body.set_output(index, value);
    }
    Some(())
}

/// Dequantises and transposes a recurrent network's integer weights into ONNX's order. Their scales
/// and zero points, one per direction or per column, are the inputs from `scale` on.
fn dequantise_recurrent(
    body: &mut ExpansionBuilder<'_>,
    index: usize,
    scale: usize,
) -> Option<String> {
    let by_column = |body: &mut ExpansionBuilder<'_>, index: usize| {
        let name = body.input_name(index)?;
        match body.rank(name)? {
            1 => Some(body.add_reshape(name, &[-1, 1, 1])),
            2 => Some(body.add_unsqueeze(name, 1)),
            _ => None,
        }
    };
    let mut value = body.add_cast(body.input_name(index)?, DType::F32);
    if body.input_name(scale + 1).is_some() {
        let zero = by_column(body, scale + 1)?;
        let zero = body.add_cast(&zero, DType::F32);
        value = body.add_operator("Sub", &[&value, &zero]);
    }
    let scale = by_column(body, scale)?;
    let value = body.add_operator("Mul", &[&value, &scale]);
    Some(body.add_transpose(&value, &[0, 2, 1]))
}

/// Dequantises an input, whose scale and zero point are the two inputs after it.
fn dequantise_input(body: &mut ExpansionBuilder<'_>, index: usize) -> Option<String> {
    let mut inputs = vec![body.input_name(index)?, body.input_name(index + 1)?];
    inputs.extend(body.input_name(index + 2));
    Some(body.add_operator("DequantizeLinear", &inputs))
}

/// Quantises a value by the scale and zero point that are the inputs from `index` on.
fn quantise_value(body: &mut ExpansionBuilder<'_>, value: &str, index: usize) -> Option<String> {
    let mut inputs = vec![value, body.input_name(index)?];
    inputs.extend(body.input_name(index + 1));
    Some(body.add_operator("QuantizeLinear", &inputs))
}

fn select_attributes(body: &ExpansionBuilder<'_>, names: &[&str]) -> Vec<AttributeProto> {
    let held = body.call().attribute.iter();
    held.filter(|it| names.contains(&it.name()))
        .cloned()
        .collect()
}

fn expand_binary(body: &mut ExpansionBuilder<'_>, operator: &str) -> Option<()> {
    let operands = [dequantise_input(body, 0)?, dequantise_input(body, 3)?];
    let value = body.add_operator(operator, &[&operands[0], &operands[1]]);
    let value = quantise_value(body, &value, 6)?;
    body.set_output(0, &value);
    Some(())
}

fn expand_unary(body: &mut ExpansionBuilder<'_>, operator: &str, names: &[&str]) -> Option<()> {
    let operand = dequantise_input(body, 0)?;
    let mut node = NodeProto::for_operator(operator, &[&operand], "");
    node.attribute = select_attributes(body, names);
    let value = body.add(node);
    let value = quantise_value(body, &value, 3)?;
    body.set_output(0, &value);
    Some(())
}

/// Before version 13 a softmax covers all axes from its own on, so the model's version must compute
/// the same.
fn softmax(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let is_old = body.call().int("opset").unwrap_or(13) < 13;
    if is_old != (body.opset() < 13) {
        return None;
    }
    expand_unary(body, "Softmax", &["axis"])
}

fn pool(body: &mut ExpansionBuilder<'_>, operator: &str) -> Option<()> {
    if body.call().int("channels_last").unwrap_or(0) != 0 {
        return None;
    }
    let names = [
        "auto_pad",
        "ceil_mode",
        "count_include_pad",
        "kernel_shape",
        "pads",
        "strides",
    ];
    expand_unary(body, operator, &names)
}

/// Expands a concatenation: the result's scale and zero point come first, then three inputs per
/// part.
fn concat(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let count = body.call().input.len().checked_sub(2)? / 3;
    let parts: Option<Vec<String>> = (0..count)
        .map(|at| dequantise_input(body, 2 + 3 * at))
        .collect();
    let parts = parts?;
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let mut node = NodeProto::for_operator("Concat", &parts, "");
    node.attribute = select_attributes(body, &["axis"]);
    let joined = body.add(node);
    let value = quantise_value(body, &joined, 0)?;
    body.set_output(0, &value);
    Some(())
}

fn expand_where(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let operands = [dequantise_input(body, 1)?, dequantise_input(body, 4)?];
    let value = body.add_operator("Where", &[body.input_name(0)?, &operands[0], &operands[1]]);
    let value = quantise_value(body, &value, 7)?;
    body.set_output(0, &value);
    Some(())
}

/// Multiplies integers exactly, and scales the product by the product of the scales.
fn add_scaled_product(
    body: &mut ExpansionBuilder<'_>,
    operands: [&str; 2],
    zeros: [Option<&str>; 2],
    scales: [&str; 2],
    added: Option<&str>,
) -> String {
    let mut inputs = operands.to_vec();
    match zeros {
        [None, None] => {}
        [left, None] => inputs.extend(left),
        [left, Some(right)] => inputs.extend([left.unwrap_or(""), right]),
    }
    let mut sums = body.add_operator("MatMulInteger", &inputs);
    if let Some(added) = added {
        sums = body.add_operator("Add", &[&sums, added]);
    }
    let sums = body.add_cast(&sums, DType::F32);
    let scale = body.add_operator("Mul", &scales);
    body.add_operator("Mul", &[&sums, &scale])
}

fn integer_product(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let operands = [body.input_name(0)?, body.input_name(1)?];
    let scales = [body.input_name(2)?, body.input_name(3)?];
    let zeros = [body.input_name(4), body.input_name(5)];
    let mut value = add_scaled_product(body, operands, zeros, scales, None);
    if let Some(bias) = body.input_name(6) {
        value = body.add_operator("Add", &[&value, bias]);
    }
    body.set_output(0, &value);
    Some(())
}

fn dynamic_product(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let node = NodeProto::for_operator("DynamicQuantizeLinear", &[body.input_name(0)?], "");
    let made = body.add_many(node, 3);
    let operands = [made[0].as_str(), body.input_name(1)?];
    let scales = [made[1].as_str(), body.input_name(2)?];
    let zeros = [Some(made[2].as_str()), body.input_name(3)];
    let mut value = add_scaled_product(body, operands, zeros, scales, None);
    if let Some(bias) = body.input_name(4) {
        value = body.add_operator("Add", &[&value, bias]);
    }
    body.set_output(0, &value);
    Some(())
}

fn gemm(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let call = body.call();
    let mut operands = Vec::new();
    for (index, name) in [(0, "transA"), (3, "transB")] {
        let operand = body.input_name(index)?;
        operands.push(match call.int(name).unwrap_or(0) {
            0 => operand.to_owned(),
            _ => body.add_transpose(operand, &[1, 0]),
        });
    }
    let alpha = call.float("alpha").unwrap_or(1.0);
    if alpha != 1.0 {
        return None;
    }
    let operands = [operands[0].as_str(), operands[1].as_str()];
    let zeros = [body.input_name(2), body.input_name(5)];
    let scales = [body.input_name(1)?, body.input_name(4)?];
    let value = add_scaled_product(body, operands, zeros, scales, body.input_name(6));
    let value = match body.input_name(7) {
        Some(_) => quantise_value(body, &value, 7)?,
        None => value,
    };
    body.set_output(0, &value);
    Some(())
}
