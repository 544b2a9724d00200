//! Element by element: one table of expressions, one kernel around each.
//!
//! An expression is of the inputs `a` to `e`, repeated to the result's shape, and of three numbers
//! `s`, `t` and `u` from the node's attributes. Equal neighbouring dimensions are merged first, so
//! that inputs of one shape are read straight through.

use souk_memory::DType;
use souk_onnx::NodeProto;
use souk_reference::call::KernelError;
use souk_reference::shape::{broadcast, strides};

use super::doubles::POWERS;
use super::error::GpuError;
use super::packed::{element, stored, wide};
use super::shaders::{BY_THREAD, bindings, prelude};
use super::steps::Step;
use super::stream::{Array, Groups};
use super::wholes;

/// Functions the expressions use beside those of WGSL.
pub(super) const FUNCTIONS: &str = r"
fn log1p(x: f32) -> f32 {
  if (abs(x) < 0.3) {
    let r = x / (2.0 + x);
    let q = r * r;
    return 2.0 * r * (1.0 + q * (0.33333334 + q * (0.2 + q * 0.14285715)));
  }
  let v = 1.0 + x;
  if (is_inf(v)) { return v; }
  return log(v) * (x / (v - 1.0));
}
fn expm1(x: f32) -> f32 {
  if (abs(x) < 0.05) { return x * (1.0 + x * (0.5 + x * (0.16666667 + x * 0.041666668))); }
  return exp(x) - 1.0;
}
fn tanh_(x: f32) -> f32 {
  let q = x * x;
  if (abs(x) < 0.1) { return x * (1.0 + q * (-0.33333334 + q * (0.13333334 - q * 0.053968254))); }
  let v = exp(-2.0 * abs(x));
  let r = (1.0 - v) / (1.0 + v);
  return select(r, -r, x < 0.0);
}
fn erf_(x: f32) -> f32 {
  let v = abs(x);
  let q = x * x;
  if (v < 0.5) {
    return x * (1.1283792 + q * (-0.37612638 + q * (0.11283792 + q * (-0.026866171
      + q * (0.0052239776 - q * 0.00085483274)))));
  }
  let k = 1.0 / (1.0 + 0.3275911 * v);
  let r = 1.0 - k * (0.2548296 + k * (-0.28449672 + k * (1.4214138
    + k * (-1.4531521 + k * 1.0614054)))) * exp(-q);
  return select(r, -r, x < 0.0);
}
fn sigmoid(x: f32) -> f32 { return 1.0 / (1.0 + exp(-x)); }
fn softplus(x: f32) -> f32 { return larger(x, 0.0) + log1p(exp(-abs(x))); }
fn power(x: f32, y: f32) -> f32 {
  if (y == 0.0 || x == 1.0) { return 1.0; }
  if (y == 1.0) { return x; }
  if (y == 2.0) { return x * x; }
  if (y == 0.5) { return sqrt(x); }
  if (is_nan(x) || is_nan(y)) { return x + y; }
  let odd = floor(y) == y && fract(abs(y) * 0.5) != 0.0;
  if (x == 0.0) {
    let r = select(infinity(), 0.0, y > 0.0);
    return select(r, x * r, odd && y > 0.0);
  }
  let r = pow(abs(x), y);
  if (x > 0.0) { return r; }
  if (floor(y) != y) { return not_a_number(); }
  return select(r, -r, odd);
}
fn sinh_(x: f32) -> f32 {
  let q = x * x;
  if (abs(x) < 0.3) { return x * (1.0 + q * (0.16666667 + q * (0.008333334 + q * 0.0001984127))); }
  return (exp(x) - exp(-x)) * 0.5;
}
fn asinh_(x: f32) -> f32 {
  let v = abs(x);
  let r = log1p(v + v * v / (1.0 + sqrt(1.0 + v * v)));
  return select(r, -r, x < 0.0);
}
";

/// What an element-wise operator is made of.
#[derive(Clone, Copy)]
pub(super) struct Map {
    /// The expression of one element.
    pub expression: &'static str,
    /// What the inputs are taken for.
    pub inputs: DType,
    /// What the result is.
    pub output: DType,
    /// Attributes that become `s`, `t` and `u`, with their defaults.
    pub numbers: &'static [(&'static str, f64)],
}

/// Functions of one float.
pub(super) fn unary(operator: &str) -> Option<Map> {
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
        "Relu" => ("select(a, 0.0, a < 0.0)", &[]),
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
        "Sin" => ("sin(a)", &[]),
        "Sinh" => ("sinh_(a)", &[]),
        "Softplus" => ("softplus(a)", &[]),
        "Softsign" => ("a / (1.0 + abs(a))", &[]),
        "Sqrt" => ("sqrt(a)", &[]),
        "Swish" => ("a * sigmoid(s * a)", &[("alpha", 1.0)]),
        "Tan" => ("tan(a)", &[]),
        "Tanh" => ("tanh_(a)", &[]),
        "ThresholdedRelu" => ("select(0.0, a, a > s && !is_nan(a))", &[("alpha", 1.0)]),
        "IsNaN" => return Some(test("u32(is_nan(a))", &[])),
        "IsInf" => {
            return Some(test(
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

const fn test(expression: &'static str, numbers: &'static [(&'static str, f64)]) -> Map {
    Map {
        expression,
        inputs: DType::F32,
        output: DType::Bool,
        numbers,
    }
}

/// Functions of two elements.
pub(super) fn binary(operator: &str) -> Option<Map> {
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
        "Equal" => test("u32(a == b)", &[]),
        "Greater" => test("u32(a > b)", &[]),
        "GreaterOrEqual" => test("u32(a >= b)", &[]),
        "Less" => test("u32(a < b)", &[]),
        "LessOrEqual" => test("u32(a <= b)", &[]),
        "And" => truth("a & b"),
        "Or" => truth("a | b"),
        "Xor" => truth("a ^ b"),
        _ => return None,
    })
}

/// Records an expression over inputs repeated to their common shape.
pub(super) fn map(
    step: &mut Step<'_, '_>,
    expression: &str,
    inputs: &[(&Array, DType)],
    output: DType,
    numbers: [f64; 3],
) -> Result<Array, GpuError> {
    let mut dims = Vec::new();
    for (array, _) in inputs {
        dims = broadcast(&dims, &array.dims)?;
    }
    let result = step.stream.array(output, &dims)?;
    map_into(step, expression, inputs, &result, numbers)?;
    Ok(result)
}

pub(super) fn map_into(
    step: &mut Step<'_, '_>,
    expression: &str,
    inputs: &[(&Array, DType)],
    result: &Array,
    numbers: [f64; 3],
) -> Result<(), GpuError> {
    let steps: Vec<Vec<usize>> = inputs
        .iter()
        .map(|(array, _)| repeated(&array.dims, &result.dims))
        .collect();
    let (dims, steps) = merged(&result.dims, &steps);
    let source = kernel(expression, inputs, result);
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
    step.kernel(&source, &sizes, &arrays, Groups::Threads(result.count()))
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const ARRAYS: [&str; 5] = ["xa", "xb", "xc", "xd", "xe"];

fn kernel(expression: &str, inputs: &[(&Array, DType)], output: &Array) -> String {
    let is_half = |input: usize| inputs[input].0.dtype == DType::F16;
    let lies = |(input, (array, dtype)): (usize, &(&Array, DType))| match is_half(input) {
        true => element(DType::F16, false),
        false => element(*dtype, array.is_double),
    };
    let elements = inputs.iter().enumerate().map(lies);
    let mut arrays: Vec<(&str, &str)> = ARRAYS.iter().copied().zip(elements).collect();
    arrays.push(("y", element(output.dtype, output.is_double)));
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
    let functions = functions(&arrays);
    let numbers = numbers_of(&arrays, count);
    let value = stored(output.dtype, expression);
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

/// The functions that expressions use, in the types of these arrays.
fn functions(arrays: &str) -> String {
    let (has_floats, has_integers) = (arrays.contains("f64"), arrays.contains("64>"));
    let prelude = prelude(arrays);
    let floats = match has_floats {
        true => String::new(),
        false => format!("{FUNCTIONS}{}", wholes::RESTS),
    };
    match has_integers {
        true if has_floats => format!("{prelude}{}{POWERS}", wholes::long_functions()),
        true => format!("{prelude}{floats}{}", wholes::long_functions()),
        false => format!("{prelude}{floats}{}", wholes::FUNCTIONS),
    }
}

/// Lines that read the numbers `s`, `t` and `u` in the type of these arrays, of which so many are
/// inputs.
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

/// Steps through an array of `own` sizes as it is repeated to `dims`.
pub(super) fn repeated(own: &[usize], dims: &[usize]) -> Vec<usize> {
    let missing = dims.len() - own.len();
    let steps = strides(own);
    let step = |axis: usize| match axis.checked_sub(missing) {
        Some(inside) if own[inside] != 1 => steps[inside],
        _ => 0,
    };
    (0..dims.len()).map(step).collect()
}

/// Neighbouring dimensions that every input walks through evenly, as one.
fn merged(dims: &[usize], steps: &[Vec<usize>]) -> (Vec<usize>, Vec<Vec<usize>>) {
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

/// What a node does with elements of a type.
fn map_of(step: &Step<'_, '_>, dtype: DType) -> Result<Map, GpuError> {
    let operator = step.call.node.op_type();
    let is_signed = matches!(dtype, DType::I32 | DType::I64);
    let of_whole = || match operator {
        "Mod" if step.call.flag("fmod") => Some(wholes::plain("a % b", is_signed)),
        "BitShift" => {
            let to_left = step.call.text("direction", "LEFT") == "LEFT";
            Some(wholes::plain(wholes::shift(to_left, dtype), is_signed))
        }
        _ => wholes::of(operator, is_signed),
    };
    let found = match dtype {
        DType::Bool if operator == "Equal" => wholes::of(operator, false).map(|equal| Map {
            inputs: DType::Bool,
            ..equal
        }),
        DType::I32 | DType::U32 => of_whole(),
        DType::I64 | DType::U64 => of_whole().map(|map| wholes::long(map, dtype)),
        _ if operator == "Mod" => Some(wholes::rest(step.call.flag("fmod"))),
        _ => unary(operator).or_else(|| binary(operator)),
    };
    let found = found.map(|map| match (dtype, map.inputs) {
        (DType::F64, DType::F32) => wholes::long(map, dtype),
        _ => map,
    });
    found.ok_or(KernelError::DType(dtype).into())
}

/// A function of one element, its numbers read from the attributes.
pub(super) fn one(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.light(0)?;
    let map_of = map_of(step, input.dtype)?;
    let numbers = numbers(step.call.node, map_of.numbers);
    let inputs = [(&input, map_of.inputs)];
    let output = made(step, map_of.output);
    Ok(vec![map(
        step,
        map_of.expression,
        &inputs,
        output,
        numbers,
    )?])
}

/// What the last kernel of a node writes for a result of some type.
pub(super) fn made(step: &Step<'_, '_>, output: DType) -> DType {
    match output {
        DType::F32 => step.made(),
        output => output,
    }
}

/// Attributes that become `s`, `t` and `u`, or their defaults.
pub(super) fn numbers(node: &NodeProto, names: &[(&str, f64)]) -> [f64; 3] {
    let mut numbers = [0.0; 3];
    for (number, (name, default)) in numbers.iter_mut().zip(names) {
        let whole = node.int(name).map_or(*default, |value| value as f64);
        *number = node.float(name).map_or(whole, f64::from);
    }
    numbers
}

/// A function of two elements, chained over as many inputs as there are.
pub(super) fn chain(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let first = step.light(0)?;
    let map_of = map_of(step, first.dtype)?;
    if matches!(step.call.node.op_type(), "Div" | "Mod") && !map_of.inputs.is_float() {
        no_zero(step)?;
    }
    let last = made(step, map_of.output);
    chained(step, first, map_of, last)
}

/// The host has the divisors of integers, and sees before the run that none is zero.
fn no_zero(step: &Step<'_, '_>) -> Result<(), GpuError> {
    let divisors = step.call.input(1)?;
    let mut each = divisors.bytes().chunks(divisors.dtype().bits() / 8);
    match each.any(|bytes| bytes.iter().all(|&byte| byte == 0)) {
        true => Err(KernelError::DivisionByZero.into()),
        false => Ok(()),
    }
}

/// All inputs after another, what comes of the last as type `last`.
fn chained(
    step: &mut Step<'_, '_>,
    first: Array,
    map_of: Map,
    last: DType,
) -> Result<Vec<Array>, GpuError> {
    let mut result = first;
    let count = step.values.len();
    for index in 1..count {
        let next = step.light(index)?;
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
pub(super) fn mean(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let count = step.values.len() as f64;
    let first = step.light(0)?;
    let mut sum = binary("Sum").expect("it is in the table");
    if first.dtype == DType::F64 {
        sum = wholes::long(sum, first.dtype);
    }
    let sum = chained(step, first, sum, sum.output)?;
    let (inputs, output) = ([(&sum[0], sum[0].dtype)], made(step, sum[0].dtype));
    let divided = map(step, "a / s", &inputs, output, [count, 0.0, 0.0])?;
    Ok(vec![divided])
}

/// `Gelu`, exact or by the hyperbolic tangent.
pub(super) fn gelu(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let is_tanh = step.call.text("approximate", "none") == "tanh";
    simple(step, gelu_expression(is_tanh))
}

/// `Gelu` of one element.
pub(super) fn gelu_expression(is_tanh: bool) -> &'static str {
    match is_tanh {
        true => "0.5 * a * (1.0 + tanh_(0.7978845608028654 * (a + 0.044715 * a * a * a)))",
        false => "0.5 * a * (1.0 + erf_(a * 0.7071067811865476))",
    }
}

/// `Clip`: bounds from inputs or attributes.
pub(super) fn clip(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let mut result = step.light(0)?;
    let dtype = wide(result.dtype);
    let output = made(step, dtype);
    let bounds = match dtype {
        DType::F32 | DType::F64 => [("min", 1, "larger(a, b)"), ("max", 2, "smaller(a, b)")],
        _ => [("min", 1, "max(a, b)"), ("max", 2, "min(a, b)")],
    };
    for (name, index, expression) in bounds {
        let bound = match (step.optional(index)?, step.call.node.float(name)) {
            (Some(array), _) => array,
            (None, Some(value)) if dtype == DType::F64 => {
                let bytes = f64::from(value).to_le_bytes();
                step.stream.words(dtype, &[], &bytes)?
            }
            (None, Some(value)) => step.stream.words(DType::F32, &[], &value.to_le_bytes())?,
            (None, None) => continue,
        };
        let inputs = [(&result, dtype), (&bound, dtype)];
        result = map(step, expression, &inputs, output, [0.0; 3])?;
    }
    Ok(vec![result])
}

/// `Where`: words of either input by a truth.
pub(super) fn select(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let (condition, yes, no) = (step.array(0)?, step.light(1)?, step.light(2)?);
    if yes.dtype != no.dtype {
        return Err(KernelError::DType(no.dtype).into());
    }
    let dtype = wide(yes.dtype);
    let output = made(step, dtype);
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
pub(super) fn not(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.array(0)?;
    let inputs = [(&input, DType::Bool)];
    Ok(vec![map(step, "1u - a", &inputs, DType::Bool, [0.0; 3])?])
}

/// An expression of one float.
fn simple(step: &mut Step<'_, '_>, expression: &str) -> Result<Vec<Array>, GpuError> {
    let input = step.light(0)?;
    let dtype = wide(input.dtype);
    let inputs = [(&input, dtype)];
    let output = made(step, dtype);
    Ok(vec![map(step, expression, &inputs, output, [0.0; 3])?])
}
