//! Expands the output of ONNX Runtime's quantisers: integers with scales, which the model
//! dequantises, computes and quantises again, or multiplies as integers where the sums are exact.

use souk_memory::DType;

use super::body::Body;
use crate::{AttributeProto, NodeProto};

/// Expands a node; returns `None` if it is none of these operators.
pub(super) fn expand(body: &mut Body<'_>) -> Option<()> {
    match body.call().op_type() {
        "QLinearAdd" => pair(body, "Add"),
        "QLinearMul" => pair(body, "Mul"),
        "QLinearLeakyRelu" => one(body, "LeakyRelu", &["alpha"]),
        "QLinearSigmoid" => one(body, "Sigmoid", &[]),
        "QLinearSoftmax" => softmax(body),
        "QLinearAveragePool" => pool(body, "AveragePool"),
        "QLinearGlobalAveragePool" => pool(body, "GlobalAveragePool"),
        "QLinearReduceMean" => one(body, "ReduceMean", &["axes", "keepdims"]),
        "QLinearConcat" => concat(body),
        "QLinearWhere" => choice(body),
        "QGemm" => gemm(body),
        "MatMulIntegerToFloat" => product(body),
        "DynamicQuantizeMatMul" => dynamic_product(body),
        "DynamicQuantizeLSTM" => long_memory(body),
        _ => None,
    }
}

/// Expands a quantised `LSTM`: dequantises its weights, and quantises and dequantises its input as
/// ONNX Runtime does. It does not quantise the state, which ONNX Runtime quantises anew at each
/// step.
fn long_memory(body: &mut Body<'_>) -> Option<()> {
    let input = body.input(0)?;
    let quantised = NodeProto::of("DynamicQuantizeLinear", &[input], "");
    let quantised = body.add_many(quantised, 3);
    let quantised: Vec<&str> = quantised.iter().map(String::as_str).collect();
    let input = body.op("DequantizeLinear", &quantised);
    let [weights, recurrence] = [recurrent(body, 1, 8)?, recurrent(body, 2, 10)?];
    let others: Vec<&str> = (3..8)
        .map(|index| body.input(index).unwrap_or(""))
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
    let mut node = NodeProto::of("LSTM", &inputs, "");
    node.attribute = attributes(body, &known);
    let made = body.add_many(node, 3);
    for (index, value) in made.iter().enumerate() {
        body.give(index, value);
    }
    Some(())
}

/// Dequantises and transposes a recurrent network's integer weights into ONNX's order. Their scales
/// and zero points, one per direction or per column, are the inputs from `scale` on.
fn recurrent(body: &mut Body<'_>, index: usize, scale: usize) -> Option<String> {
    let by_column = |body: &mut Body<'_>, index: usize| {
        let name = body.input(index)?;
        match body.rank(name)? {
            1 => Some(body.reshape(name, &[-1, 1, 1])),
            2 => Some(body.unsqueeze(name, 1)),
            _ => None,
        }
    };
    let mut value = body.cast(body.input(index)?, DType::F32);
    if body.input(scale + 1).is_some() {
        let zero = by_column(body, scale + 1)?;
        let zero = body.cast(&zero, DType::F32);
        value = body.op("Sub", &[&value, &zero]);
    }
    let scale = by_column(body, scale)?;
    let value = body.op("Mul", &[&value, &scale]);
    Some(body.transpose(&value, &[0, 2, 1]))
}

/// Dequantises an input, whose scale and zero point are the two inputs after it.
fn meant(body: &mut Body<'_>, index: usize) -> Option<String> {
    let mut inputs = vec![body.input(index)?, body.input(index + 1)?];
    inputs.extend(body.input(index + 2));
    Some(body.op("DequantizeLinear", &inputs))
}

/// Quantises a value by the scale and zero point that are the inputs from `index` on.
fn quantised(body: &mut Body<'_>, value: &str, index: usize) -> Option<String> {
    let mut inputs = vec![value, body.input(index)?];
    inputs.extend(body.input(index + 1));
    Some(body.op("QuantizeLinear", &inputs))
}

fn attributes(body: &Body<'_>, names: &[&str]) -> Vec<AttributeProto> {
    let held = body.call().attribute.iter();
    held.filter(|it| names.contains(&it.name()))
        .cloned()
        .collect()
}

fn pair(body: &mut Body<'_>, operator: &str) -> Option<()> {
    let operands = [meant(body, 0)?, meant(body, 3)?];
    let value = body.op(operator, &[&operands[0], &operands[1]]);
    let value = quantised(body, &value, 6)?;
    body.give(0, &value);
    Some(())
}

fn one(body: &mut Body<'_>, operator: &str, names: &[&str]) -> Option<()> {
    let operand = meant(body, 0)?;
    let mut node = NodeProto::of(operator, &[&operand], "");
    node.attribute = attributes(body, names);
    let value = body.add(node);
    let value = quantised(body, &value, 3)?;
    body.give(0, &value);
    Some(())
}

/// Before version 13 a softmax covers all axes from its own on.
fn softmax(body: &mut Body<'_>) -> Option<()> {
    let is_old = body.call().int("opset").unwrap_or(13) < 13;
    if is_old != (body.opset() < 13) {
        return None;
    }
    one(body, "Softmax", &["axis"])
}

fn pool(body: &mut Body<'_>, operator: &str) -> Option<()> {
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
    one(body, operator, &names)
}

/// Expands a concatenation: the result's scale and zero point come first, then three inputs per
/// part.
fn concat(body: &mut Body<'_>) -> Option<()> {
    let count = body.call().input.len().checked_sub(2)? / 3;
    let parts: Option<Vec<String>> = (0..count).map(|at| meant(body, 2 + 3 * at)).collect();
    let parts = parts?;
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let mut node = NodeProto::of("Concat", &parts, "");
    node.attribute = attributes(body, &["axis"]);
    let joined = body.add(node);
    let value = quantised(body, &joined, 0)?;
    body.give(0, &value);
    Some(())
}

fn choice(body: &mut Body<'_>) -> Option<()> {
    let operands = [meant(body, 1)?, meant(body, 4)?];
    let value = body.op("Where", &[body.input(0)?, &operands[0], &operands[1]]);
    let value = quantised(body, &value, 7)?;
    body.give(0, &value);
    Some(())
}

/// Multiplies integers exactly, and scales the product by the product of the scales.
fn scaled(
    body: &mut Body<'_>,
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
    let mut sums = body.op("MatMulInteger", &inputs);
    if let Some(added) = added {
        sums = body.op("Add", &[&sums, added]);
    }
    let sums = body.cast(&sums, DType::F32);
    let scale = body.op("Mul", &scales);
    body.op("Mul", &[&sums, &scale])
}

fn product(body: &mut Body<'_>) -> Option<()> {
    let operands = [body.input(0)?, body.input(1)?];
    let scales = [body.input(2)?, body.input(3)?];
    let zeros = [body.input(4), body.input(5)];
    let mut value = scaled(body, operands, zeros, scales, None);
    if let Some(bias) = body.input(6) {
        value = body.op("Add", &[&value, bias]);
    }
    body.give(0, &value);
    Some(())
}

fn dynamic_product(body: &mut Body<'_>) -> Option<()> {
    let node = NodeProto::of("DynamicQuantizeLinear", &[body.input(0)?], "");
    let made = body.add_many(node, 3);
    let operands = [made[0].as_str(), body.input(1)?];
    let scales = [made[1].as_str(), body.input(2)?];
    let zeros = [Some(made[2].as_str()), body.input(3)];
    let mut value = scaled(body, operands, zeros, scales, None);
    if let Some(bias) = body.input(4) {
        value = body.op("Add", &[&value, bias]);
    }
    body.give(0, &value);
    Some(())
}

fn gemm(body: &mut Body<'_>) -> Option<()> {
    let call = body.call();
    let mut operands = Vec::new();
    for (index, name) in [(0, "transA"), (3, "transB")] {
        let operand = body.input(index)?;
        operands.push(match call.int(name).unwrap_or(0) {
            0 => operand.to_owned(),
            _ => body.transpose(operand, &[1, 0]),
        });
    }
    let alpha = call.float("alpha").unwrap_or(1.0);
    if alpha != 1.0 {
        return None;
    }
    let operands = [operands[0].as_str(), operands[1].as_str()];
    let zeros = [body.input(2), body.input(5)];
    let scales = [body.input(1)?, body.input(4)?];
    let value = scaled(body, operands, zeros, scales, body.input(6));
    let value = match body.input(7) {
        Some(_) => quantised(body, &value, 7)?,
        None => value,
    };
    body.give(0, &value);
    Some(())
}
