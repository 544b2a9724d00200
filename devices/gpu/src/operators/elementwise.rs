//! Records the kernels of operators that compute each element on its own, such as `Add` or `Sqrt`.
//! A table gives the WGSL expression of each operator, and one kernel is built around any of them.
//!
//! An expression has the inputs `a` to `e`, broadcast to the result's shape, and the numbers `s`,
//! `t` and `u` from the node's attributes. For example, `LeakyRelu` is `select(a, s * a, a < 0.0)`,
//! where `s` is the attribute `alpha`. Neighbouring dimensions are merged where possible, so that
//! inputs of one shape are read straight through.

pub(crate) mod integers;

use souk_memory::DType;
use souk_onnx::NodeProto;
use souk_reference::call::KernelError;
use souk_reference::shape::{broadcast_shape, strides};

use crate::error::GpuError;
use crate::numbers::packed::{compute_dtype, element_type, store_expression};
use crate::recording::{Array, Groups, Step};
use crate::shaders::functions::expression_functions;
use crate::shaders::{BY_THREAD, bindings};

/// The expression and the types of an element-wise operator.
#[derive(Clone, Copy)]
pub(crate) struct Map {
    /// The expression of one element.
    pub expression: &'static str,
    /// The type as which the kernel reads the inputs.
    pub inputs: DType,
    /// The type of the result.
    pub output: DType,
    /// Attributes that become `s`, `t` and `u`, with their defaults.
    pub numbers: &'static [(&'static str, f64)],
}

/// Returns the expression of an operator on one float. A driver can compile a bare choice to a
/// maximum, which loses NaN (`Relu`); and a device's sine has few digits where it is small.
pub(crate) fn unary_map(operator: &str) -> Option<Map> {
    let (expression, numbers): (_, &'static [(&'static str, f64)]) = match operator {
        "Abs" => ("abs(a)", &[]),
        "Acos" => ("acos(a)", &[]),
        "Acosh" => ("log(a + sqrt(a - 1.0) * sqrt(a + 1.0))", &[]),
        "Asin" => ("asin(a)", &[]),
        "Asinh" => ("asinh_(a)", &[]),
        "Atan" => ("atan(a)", &[]),
        "Atanh" => ("0.5 * log1p(2.0 * a / (1.0 - a))", &[]),
        "Ceil" => ("ceil(a)", &[]),
        "Celu" => (
            "larger(a, 0.0) + min(0.0, s * expm1(a / s))",
            &[("alpha", 1.0)],
        ),
        "Cos" => ("cos(a)", &[]),
        "Cosh" => ("(exp(a) + exp(-a)) * 0.5", &[]),
        "Elu" => ("select(a, s * expm1(a), a < 0.0)", &[("alpha", 1.0)]),
        "Erf" => ("erf_(a)", &[]),
        "Exp" => ("exp(a)", &[]),
        "Floor" => ("floor(a)", &[]),
        "HardSigmoid" => (
            "larger(0.0, smaller(1.0, s * a + t))",
            &[("alpha", 0.2), ("beta", 0.5)],
        ),
        "HardSwish" => ("a * larger(0.0, smaller(1.0, a / 6.0 + 0.5))", &[]),
        "LeakyRelu" => ("select(a, s * a, a < 0.0)", &[("alpha", 0.01)]),
        "Log" => ("log(a)", &[]),
        "Mish" => ("a * tanh_(softplus(a))", &[]),
        "Neg" => ("-a", &[]),
        "Reciprocal" => ("1.0 / a", &[]),
        "Relu" => ("select(a, 0.0, a < 0.0 && !is_nan(a))", &[]),
        "Round" => ("round(a)", &[]),
        "Selu" => (
            "t * select(a, s * expm1(a), a <= 0.0)",
            &[
                ("alpha", 1.673_263_192_176_818_8),
                ("gamma", 1.050_701_022_148_132_3),
            ],
        ),
        "Shrink" => (
            "select(select(0.0, a - s, a > t), a + s, a < -t)",
            &[("bias", 0.0), ("lambd", 0.5)],
        ),
        "Sigmoid" => ("sigmoid(a)", &[]),
        "Sign" => ("select(sign(a), a, is_nan(a))", &[]),
        "Sin" => ("select(sin(a), a - a * a * a / 6.0, abs(a) < 0.02)", &[]),
        "Sinh" => ("sinh_(a)", &[]),
        "Softplus" => ("softplus(a)", &[]),
        "Softsign" => ("a / (1.0 + abs(a))", &[]),
        "Sqrt" => ("sqrt(a)", &[]),
        "Swish" => ("a * sigmoid(s * a)", &[("alpha", 1.0)]),
        "Tan" => ("tan(a)", &[]),
        "Tanh" => ("tanh_(a)", &[]),
        "ThresholdedRelu" => ("select(0.0, a, a > s && !is_nan(a))", &[("alpha", 1.0)]),
        "IsNaN" => return Some(test_map("u32(is_nan(a))", &[])),
        "IsInf" => {
            return Some(test_map(
                "u32(is_inf(a) && select(s, t, a > 0.0) != 0.0)",
                &[("detect_negative", 1.0), ("detect_positive", 1.0)],
            ));
        }
        _ => return None,
    };
    Some(Map {
        expression,
        inputs: DType::F32,
        output: DType::F32,
        numbers,
    })
}

const fn test_map(expression: &'static str, numbers: &'static [(&'static str, f64)]) -> Map {
    Map {
        expression,
        inputs: DType::F32,
        output: DType::Bool,
        numbers,
    }
}

/// Returns the expression of an operator on two elements.
pub(crate) fn binary_map(operator: &str) -> Option<Map> {
    let float = |expression| Map {
        expression,
        inputs: DType::F32,
        output: DType::F32,
        numbers: &[],
    };
    let truth = |expression| Map {
        expression,
        inputs: DType::Bool,
        output: DType::Bool,
        numbers: &[],
    };
    Some(match operator {
        "Add" | "Sum" => float("a + b"),
        "Sub" => float("a - b"),
        "Mul" => float("a * b"),
        "Div" => float("a / b"),
        "Pow" => float("power(a, b)"),
        "PRelu" => float("select(a, b * a, a < 0.0)"),
        "Max" => float("larger(a, b)"),
        "Min" => float("smaller(a, b)"),
        "Equal" => test_map("u32(a == b)", &[]),
        "Greater" => test_map("u32(a > b)", &[]),
        "GreaterOrEqual" => test_map("u32(a >= b)", &[]),
        "Less" => test_map("u32(a < b)", &[]),
        "LessOrEqual" => test_map("u32(a <= b)", &[]),
        "And" => truth("a & b"),
        "Or" => truth("a | b"),
        "Xor" => truth("a ^ b"),
        _ => return None,
    })
}

/// Records an expression over inputs repeated to their common shape.
pub(crate) fn map(
    step: &mut Step<'_, '_>,
    expression: &str,
    inputs: &[(&Array, DType)],
    output: DType,
    numbers: [f64; 3],
) -> Result<Array, GpuError> {
    let mut dims = Vec::new();
    for (array, _) in inputs {
        dims = broadcast_shape(&dims, &array.dims)?;
    }
    let result = step.stream.allocate_array(output, &dims)?;
    map_into(step, expression, inputs, &result, numbers)?;
    Ok(result)
}

pub(crate) fn map_into(
    step: &mut Step<'_, '_>,
    expression: &str,
    inputs: &[(&Array, DType)],
    result: &Array,
    numbers: [f64; 3],
) -> Result<(), GpuError> {
    let steps: Vec<Vec<usize>> = inputs
        .iter()
        .map(|(array, _)| broadcast_steps(&array.dims, &result.dims))
        .collect();
    let (dims, steps) = merge_dimensions(&result.dims, &steps);
    let source = map_kernel(expression, inputs, result);
    let mut sizes = vec![result.count(), dims.len()];
    sizes.extend(numbers.map(|number| (number as f32).to_bits() as usize));
    sizes.extend(&dims);
    sizes.extend(steps.iter().flatten());
    let mut arrays: Vec<&Array> = inputs.iter().map(|(array, _)| *array).collect();
    arrays.push(result);
    let is_wide = |array: &&Array| array.is_double && array.dtype == DType::F64;
    if arrays.iter().any(is_wide) {
        let words = |number: f64| [number.to_bits() as u32, (number.to_bits() >> 32) as u32];
        sizes.extend(
            numbers
                .into_iter()
                .flat_map(words)
                .map(|word| word as usize),
        );
    }
    step.record_kernel(&source, &sizes, &arrays, Groups::Threads(result.count()))
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const ARRAYS: [&str; 5] = ["xa", "xb", "xc", "xd", "xe"];

fn map_kernel(expression: &str, inputs: &[(&Array, DType)], output: &Array) -> String {
    let is_half = |input: usize| inputs[input].0.dtype == DType::F16;
    let lies = |(input, (array, dtype)): (usize, &(&Array, DType))| match is_half(input) {
        true => element_type(DType::F16, false),
        false => element_type(*dtype, array.is_double),
    };
    let elements = inputs.iter().enumerate().map(lies);
    let mut arrays: Vec<(&str, &str)> = ARRAYS.iter().copied().zip(elements).collect();
    arrays.push(("y", element_type(output.dtype, output.is_double)));
    let arrays = bindings(&arrays, 1);
    let count = inputs.len();
    let each = |line: &dyn Fn(usize) -> String| (0..count).map(line).collect::<String>();
    let places = each(&|input| format!("  var p{} = 0u;\n", NAMES[input]));
    let walk = each(&|input| {
        let (name, list) = (NAMES[input], input + 1);
        format!("    p{name} += at * p[4u + k + {list}u * p[1]];\n")
    });
    let loads = each(&|input| {
        let (name, array) = (NAMES[input], ARRAYS[input]);
        match is_half(input) {
            true => format!("  let {name} = f32({array}[p{name}]);\n"),
            false => format!("  let {name} = {array}[p{name}];\n"),
        }
    });
    let functions = expression_functions(&arrays);
    let numbers = numbers_of(&arrays, count);
    let value = store_expression(output.dtype, expression);
    format!(
        r"{functions}{arrays}{BY_THREAD}
{numbers}{places}  var rest = i;
  for (var k = p[1]; k > 0u; k--) {{
    let at = rest % p[4u + k];
    rest = rest / p[4u + k];
{walk}  }}
{loads}  y[i] = {value};
}}"
    )
}

/// Returns lines that read the numbers `s`, `t` and `u` in the type of these arrays; `inputs`
/// counts the input arrays.
fn numbers_of(arrays: &str, inputs: usize) -> String {
    if !arrays.contains("f64") {
        return "  let s = f(2u);\n  let t = f(3u);\n  let u = f(4u);\n".to_owned();
    }
    let lists = inputs + 1;
    format!(
        "  let first = 5u + {lists}u * p[1];\n  let s = number(first);\n  \
         let t = number(first + 2u);\n  let u = number(first + 4u);\n"
    )
}

/// Returns the steps through an array of `own` sizes that is repeated to `dims`.
pub(crate) fn broadcast_steps(own: &[usize], dims: &[usize]) -> Vec<usize> {
    let missing = dims.len() - own.len();
    let steps = strides(own);
    let step = |axis: usize| match axis.checked_sub(missing) {
        Some(inside) if own[inside] != 1 => steps[inside],
        _ => 0,
    };
    (0..dims.len()).map(step).collect()
}

/// Neighbouring dimensions that every input walks through evenly, as one.
fn merge_dimensions(dims: &[usize], steps: &[Vec<usize>]) -> (Vec<usize>, Vec<Vec<usize>>) {
    let mut sizes: Vec<usize> = Vec::new();
    let mut walks: Vec<Vec<usize>> = vec![Vec::new(); steps.len()];
    for (axis, &size) in dims.iter().enumerate() {
        if size == 1 {
            continue;
        }
        let even =
            |(walk, steps): (&Vec<usize>, &Vec<usize>)| walk.last() == Some(&(steps[axis] * size));
        if !sizes.is_empty() && walks.iter().zip(steps).all(even) {
            *sizes.last_mut().expect("it is not empty") *= size;
            for (walk, steps) in walks.iter_mut().zip(steps) {
                *walk.last_mut().expect("as long as the sizes") = steps[axis];
            }
        } else {
            sizes.push(size);
            for (walk, steps) in walks.iter_mut().zip(steps) {
                walk.push(steps[axis]);
            }
        }
    }
    (sizes, walks)
}

/// Returns the function of a node for elements of a type.
fn map_of(step: &Step<'_, '_>, dtype: DType) -> Result<Map, GpuError> {
    let operator = step.call.node.op_type();
    let is_signed = matches!(dtype, DType::I32 | DType::I64);
    let of_whole = || match operator {
        "Mod" if step.call.is_flag_set("fmod") => Some(integers::plain_map("a % b", is_signed)),
        "BitShift" => {
            let to_left = step.call.text_attribute("direction", "LEFT") == "LEFT";
            Some(integers::plain_map(
                integers::shift_expression(to_left, dtype),
                is_signed,
            ))
        }
        _ => integers::integer_map(operator, is_signed),
    };
    let found = match dtype {
        DType::Bool if operator == "Equal" => {
            integers::integer_map(operator, false).map(|equal| Map {
                inputs: DType::Bool,
                ..equal
            })
        }
        DType::I32 | DType::U32 => of_whole(),
        DType::I64 | DType::U64 => of_whole().map(|map| integers::to_long(map, dtype)),
        _ if operator == "Mod" => Some(integers::float_modulo_map(step.call.is_flag_set("fmod"))),
        _ => unary_map(operator).or_else(|| binary_map(operator)),
    };
    let found = found.map(|map| match (dtype, map.inputs) {
        (DType::F64, DType::F32) => integers::to_long(map, dtype),
        _ => map,
    });
    found.ok_or(KernelError::DType(dtype).into())
}

/// Records an operator on one element, with the numbers from the node's attributes.
pub(crate) fn apply_unary(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.native_array(0)?;
    let map_of = map_of(step, input.dtype)?;
    let numbers = attribute_numbers(step.call.node, map_of.numbers);
    let inputs = [(&input, map_of.inputs)];
    let output = output_dtype(step, map_of.output);
    Ok(vec![map(
        step,
        map_of.expression,
        &inputs,
        output,
        numbers,
    )?])
}

/// Returns the type in which the last kernel of a node writes a result of some type.
pub(crate) fn output_dtype(step: &Step<'_, '_>, output: DType) -> DType {
    match output {
        DType::F32 => step.output_dtype(),
        output => output,
    }
}

/// Attributes that become `s`, `t` and `u`, or their defaults.
pub(crate) fn attribute_numbers(node: &NodeProto, names: &[(&str, f64)]) -> [f64; 3] {
    let mut numbers = [0.0; 3];
    for (number, (name, default)) in numbers.iter_mut().zip(names) {
        let whole = node.int(name).map_or(*default, |value| value as f64);
        *number = node.float(name).map_or(whole, f64::from);
    }
    numbers
}

/// Records an operator that chains a function of two elements over all its inputs, such as `Max`.
pub(crate) fn apply_chain(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let first = step.native_array(0)?;
    let map_of = map_of(step, first.dtype)?;
    if matches!(step.call.node.op_type(), "Div" | "Mod") && !map_of.inputs.is_float() {
        no_zero(step)?;
    }
    let last = output_dtype(step, map_of.output);
    combine_inputs(step, first, map_of, last)
}

/// The host has the divisors of integers, and sees before the run that none is zero.
fn no_zero(step: &Step<'_, '_>) -> Result<(), GpuError> {
    let divisors = step.call.input(1)?;
    let mut each = divisors.bytes().chunks(divisors.dtype().bit_width() / 8);
    match each.any(|bytes| bytes.iter().all(|&byte| byte == 0)) {
        true => Err(KernelError::DivisionByZero.into()),
        false => Ok(()),
    }
}

/// Combines all inputs one after the other; the last result has type `last`.
fn combine_inputs(
    step: &mut Step<'_, '_>,
    first: Array,
    map_of: Map,
    last: DType,
) -> Result<Vec<Array>, GpuError> {
    let mut result = first;
    let count = step.values.len();
    for index in 1..count {
        let next = step.native_array(index)?;
        let inputs = [(&result, map_of.inputs), (&next, map_of.inputs)];
        let output = if index + 1 == count {
            last
        } else {
            map_of.output
        };
        result = map(step, map_of.expression, &inputs, output, [0.0; 3])?;
    }
    Ok(vec![result])
}

/// `Mean` of all inputs.
pub(crate) fn mean(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let count = step.values.len() as f64;
    let first = step.native_array(0)?;
    let mut sum = binary_map("Sum").expect("it is in the table");
    if first.dtype == DType::F64 {
        sum = integers::to_long(sum, first.dtype);
    }
    let sum = combine_inputs(step, first, sum, sum.output)?;
    let (inputs, output) = ([(&sum[0], sum[0].dtype)], output_dtype(step, sum[0].dtype));
    let divided = map(step, "a / s", &inputs, output, [count, 0.0, 0.0])?;
    Ok(vec![divided])
}

/// `Gelu`, exact or by the hyperbolic tangent.
pub(crate) fn gelu(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let is_tanh = step.call.text_attribute("approximate", "none") == "tanh";
    apply_expression(step, gelu_expression(is_tanh))
}

/// `Gelu` of one element.
pub(crate) fn gelu_expression(is_tanh: bool) -> &'static str {
    match is_tanh {
        true => "0.5 * a * (1.0 + tanh_(0.7978845608028654 * (a + 0.044715 * a * a * a)))",
        false => "0.5 * a * (1.0 + erf_(a * 0.7071067811865476))",
    }
}

/// `Clip`: bounds from inputs or attributes.
pub(crate) fn clip(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let mut result = step.native_array(0)?;
    let dtype = compute_dtype(result.dtype);
    let output = output_dtype(step, dtype);
    let bounds = match dtype {
        DType::F32 | DType::F64 => [("min", 1, "larger(a, b)"), ("max", 2, "smaller(a, b)")],
        _ => [("min", 1, "max(a, b)"), ("max", 2, "min(a, b)")],
    };
    for (name, index, expression) in bounds {
        let bound = match (step.optional_wide(index)?, step.call.node.float(name)) {
            (Some(array), _) => array,
            (None, Some(value)) if dtype == DType::F64 => {
                let bytes = f64::from(value).to_le_bytes();
                step.stream.upload_words(dtype, &[], &bytes)?
            }
            (None, Some(value)) => {
                step.stream
                    .upload_words(DType::F32, &[], &value.to_le_bytes())?
            }
            (None, None) => continue,
        };
        let inputs = [(&result, dtype), (&bound, dtype)];
        result = map(step, expression, &inputs, output, [0.0; 3])?;
    }
    Ok(vec![result])
}

/// `Where`: words of either input by a truth.
pub(crate) fn select(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let (condition, yes, no) = (
        step.wide_array(0)?,
        step.native_array(1)?,
        step.native_array(2)?,
    );
    if yes.dtype != no.dtype {
        return Err(KernelError::DType(no.dtype).into());
    }
    let dtype = compute_dtype(yes.dtype);
    let output = output_dtype(step, dtype);
    let inputs = [(&condition, DType::Bool), (&yes, dtype), (&no, dtype)];
    Ok(vec![map(
        step,
        "select(c, b, a != 0u)",
        &inputs,
        output,
        [0.0; 3],
    )?])
}

/// `Not`.
pub(crate) fn not(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.wide_array(0)?;
    let inputs = [(&input, DType::Bool)];
    Ok(vec![map(step, "1u - a", &inputs, DType::Bool, [0.0; 3])?])
}

/// An expression of one float.
fn apply_expression(step: &mut Step<'_, '_>, expression: &str) -> Result<Vec<Array>, GpuError> {
    let input = step.native_array(0)?;
    let dtype = compute_dtype(input.dtype);
    let inputs = [(&input, dtype)];
    let output = output_dtype(step, dtype);
    Ok(vec![map(step, expression, &inputs, output, [0.0; 3])?])
}
