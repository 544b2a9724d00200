//! Computes the operators that treat each element separately, alone or paired with another
//! tensor's: arithmetic, comparisons, casts and activations.

use souk_memory::{DType, Tensor};

use super::call::{Call, KernelError, Results};
use super::functions::PowerRounding;
use super::shape::{broadcast_places, broadcast_shape};
use super::value::{
    element_bytes, from_bytes, from_floats, from_ints, from_truths, to_floats, to_ints, to_truths,
};

/// Applies a float function to each element.
pub(super) fn unary(call: &Call<'_>, function: impl Fn(f64) -> f64) -> Results {
    let input = call.input(0)?;
    let values = to_floats(input)?.into_iter().map(function).collect();
    Ok(vec![from_floats(input.dtype(), input.dims(), values)?])
}

/// Applies a function to each element, of floats or of integers by the input's type.
pub(super) fn unary_either(
    call: &Call<'_>,
    float: impl Fn(f64) -> f64,
    int: impl Fn(i128) -> i128,
) -> Results {
    let input = call.input(0)?;
    if input.dtype().is_float() {
        return unary(call, float);
    }
    let values = to_ints(input)?.into_iter().map(int).collect();
    Ok(vec![from_ints(input.dtype(), input.dims(), values)?])
}

/// Applies a predicate to each float.
pub(super) fn map_predicate(call: &Call<'_>, question: impl Fn(f64) -> bool) -> Results {
    let input = call.input(0)?;
    let values = to_floats(input)?.into_iter().map(question).collect();
    Ok(vec![from_truths(input.dims(), values)?])
}

pub(super) fn not(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let values = to_truths(input)?.into_iter().map(|value| !value).collect();
    Ok(vec![from_truths(input.dims(), values)?])
}

pub(super) fn is_inf(call: &Call<'_>) -> Results {
    let positive = call.int_attribute("detect_positive", 1) != 0;
    let negative = call.int_attribute("detect_negative", 1) != 0;
    map_predicate(call, |value| {
        value.is_infinite() && if value > 0.0 { positive } else { negative }
    })
}

/// Pairs two inputs of one type element by element, with the smaller one broadcast.
fn zip_broadcast<S: Copy, T>(
    left: &[S],
    left_dims: &[usize],
    right: &[S],
    right_dims: &[usize],
    function: impl Fn(S, S) -> Result<T, KernelError>,
) -> Result<(Vec<usize>, Vec<T>), KernelError> {
    let dims = broadcast_shape(left_dims, right_dims)?;
    if left_dims == right_dims {
        let pairs = left
            .iter()
            .zip(right)
            .map(|(&left, &right)| function(left, right));
        return Ok((dims, pairs.collect::<Result<_, _>>()?));
    }
    let left_places = broadcast_places(left_dims, &dims);
    let right_places = broadcast_places(right_dims, &dims);
    let pairs = left_places.into_iter().zip(right_places);
    let values = pairs.map(|(at, other)| function(left[at], right[other]));
    Ok((dims, values.collect::<Result<_, _>>()?))
}

/// Aligns the second input with the first: operators before version 7 state the axis at which its
/// dimensions begin.
fn align_second_input(
    call: &Call<'_>,
    left: &Tensor,
    right: &Tensor,
) -> Result<Tensor, KernelError> {
    let axis = call
        .node
        .int("axis")
        .filter(|_| call.opset < 7 && call.is_flag_set("broadcast"));
    let Some(axis) = axis else {
        return Ok(right.clone());
    };
    let start = super::call::resolve_axis(axis, left.dims().len())?;
    let after = left.dims().len().saturating_sub(start + right.dims().len());
    let dims = [right.dims(), &vec![1; after]].concat();
    Ok(right.to_shape(dims)?)
}

/// Computes arithmetic on two tensors, in floats or in integers by the first one's type.
pub(super) fn binary(
    call: &Call<'_>,
    float: impl Fn(f64, f64) -> f64,
    int: impl Fn(i128, i128) -> Result<i128, KernelError>,
) -> Results {
    let left = call.input(0)?;
    let right = align_second_input(call, left, call.input(1)?)?;
    Ok(vec![combine_tensors(left, &right, float, int)?])
}

fn combine_tensors(
    left: &Tensor,
    right: &Tensor,
    float: impl Fn(f64, f64) -> f64,
    int: impl Fn(i128, i128) -> Result<i128, KernelError>,
) -> Result<Tensor, KernelError> {
    let (left_dims, right_dims) = (left.dims(), right.dims());
    if left.dtype().is_float() || right.dtype().is_float() {
        let (first, second) = (to_floats(left)?, to_floats(right)?);
        let function = |left, right| Ok(float(left, right));
        let (dims, values) = zip_broadcast(&first, left_dims, &second, right_dims, function)?;
        return from_floats(left.dtype(), &dims, values);
    }
    let (first, second) = (to_ints(left)?, to_ints(right)?);
    let (dims, values) = zip_broadcast(&first, left_dims, &second, right_dims, int)?;
    from_ints(left.dtype(), &dims, values)
}

/// Combines any number of tensors one after another.
pub(super) fn variadic(
    call: &Call<'_>,
    float: impl Fn(f64, f64) -> f64,
    int: impl Fn(i128, i128) -> i128,
) -> Results {
    let mut result = call.input(0)?.clone();
    for index in 1..call.inputs.len() {
        result = combine_tensors(&result, call.input(index)?, &float, |a, b| Ok(int(a, b)))?;
    }
    Ok(vec![result])
}

/// Returns the sum of all inputs, with its shape.
fn total<T: Copy + std::ops::Add<Output = T>>(
    call: &Call<'_>,
    read: impl Fn(&Tensor) -> Result<Vec<T>, KernelError>,
) -> Result<(Vec<usize>, Vec<T>), KernelError> {
    let first = call.input(0)?;
    let (mut dims, mut values) = (first.dims().to_vec(), read(first)?);
    for index in 1..call.inputs.len() {
        let next = call.input(index)?;
        (dims, values) =
            zip_broadcast(&values[..], &dims[..], &read(next)?, next.dims(), |a, b| {
                Ok(a + b)
            })?;
    }
    Ok((dims, values))
}

pub(super) fn sum(call: &Call<'_>) -> Results {
    divide_sum(call, 1)
}

/// Computes the mean of all inputs; truncates integers towards zero.
pub(super) fn mean(call: &Call<'_>) -> Results {
    divide_sum(call, call.inputs.len())
}

/// Divides the sum of all inputs by a count.
fn divide_sum(call: &Call<'_>, count: usize) -> Results {
    let dtype = call.input(0)?.dtype();
    if dtype.is_float() {
        let (dims, sums) = total(call, to_floats)?;
        let values = sums.into_iter().map(|sum| sum / count as f64).collect();
        return Ok(vec![from_floats(dtype, &dims, values)?]);
    }
    let (dims, sums) = total(call, to_ints)?;
    let values = sums.into_iter().map(|sum| sum / count as i128).collect();
    Ok(vec![from_ints(dtype, &dims, values)?])
}

/// Compares two tensors.
pub(super) fn compare(
    call: &Call<'_>,
    float: impl Fn(f64, f64) -> bool,
    int: impl Fn(i128, i128) -> bool,
) -> Results {
    let left = call.input(0)?;
    let right = align_second_input(call, left, call.input(1)?)?;
    let (left_dims, right_dims) = (left.dims(), right.dims());
    let (dims, values) = if left.dtype().is_float() {
        let (left, right) = (to_floats(left)?, to_floats(&right)?);
        zip_broadcast(&left, left_dims, &right, right_dims, |a, b| Ok(float(a, b)))?
    } else {
        let (left, right) = (to_ints(left)?, to_ints(&right)?);
        zip_broadcast(&left, left_dims, &right, right_dims, |a, b| Ok(int(a, b)))?
    };
    Ok(vec![from_truths(&dims, values)?])
}

/// Divides; truncates integers towards zero.
pub(super) fn divide(call: &Call<'_>) -> Results {
    binary(
        call,
        |left, right| left / right,
        |left, right| left.checked_div(right).ok_or(KernelError::DivisionByZero),
    )
}

/// Computes the remainder with the divisor's sign, or with `fmod` the dividend's.
pub(super) fn modulo(call: &Call<'_>) -> Results {
    let fmod = call.is_flag_set("fmod");
    let float = |left: f64, right: f64| {
        let rest = left % right;
        let shift = !fmod && rest != 0.0 && (rest < 0.0) != (right < 0.0);
        if shift { rest + right } else { rest }
    };
    binary(call, float, |left, right| {
        let rest = left.checked_rem(right).ok_or(KernelError::DivisionByZero)?;
        let shift = !fmod && rest != 0 && (rest < 0) != (right < 0);
        Ok(if shift { rest + right } else { rest })
    })
}

/// Computes a power of the base's type; integers wrap.
pub(super) fn power(call: &Call<'_>) -> Results {
    let (base, exponent) = (call.input(0)?, call.input(1)?);
    let whole = |base, exponent| Ok(whole_power(base, exponent));
    if base.dtype().is_float() || !exponent.dtype().is_float() {
        return binary(call, f64::powf, whole);
    }
    // If all float exponents are integers, an integer base stays one.
    let values = to_floats(exponent)?;
    if values
        .iter()
        .all(|it| it.fract() == 0.0 && it.abs() < i64::MAX as f64)
    {
        let exponent = from_floats(DType::I64, exponent.dims(), values)?;
        return Ok(vec![combine_tensors(base, &exponent, f64::powf, whole)?]);
    }
    binary(call, f64::powf, whole)
}

/// Computes a power of integers, which wraps. With a negative exponent, truncates the result to an
/// integer.
fn whole_power(mut base: i128, mut exponent: i128) -> i128 {
    if exponent < 0 {
        return match (base, exponent % 2 == 0) {
            (0, _) => i128::MAX,
            (1, _) | (-1, true) => 1,
            (-1, false) => -1,
            _ => 0,
        };
    }
    let mut power = 1i128;
    while exponent > 0 {
        if exponent % 2 == 1 {
            power = power.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exponent /= 2;
    }
    power
}

/// Shifts bits. A shift to the right keeps the sign; if it is negative or exceeds the bits, only
/// the sign remains.
pub(super) fn bit_shift(call: &Call<'_>) -> Results {
    let left = call.text_attribute("direction", "") == "LEFT";
    let bits = call.input(0)?.dtype().bit_width() as i128;
    binary(
        call,
        |_, _| f64::NAN,
        move |value, by| {
            let inside = (0..bits).contains(&by);
            match (left, inside) {
                (true, true) => Ok(value << by),
                (true, false) => Ok(0),
                // The shift moves out every bit, and only the sign remains.
                (false, false) => Ok(value >> 127),
                (false, true) => Ok(value >> by),
            }
        },
    )
}

pub(super) fn clip(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    if input.dtype().is_float() {
        let low = call
            .optional_scalar_float(1)?
            .or(call.node.float("min").map(f64::from));
        let high = call
            .optional_scalar_float(2)?
            .or(call.node.float("max").map(f64::from));
        return unary(call, |value| {
            let value = low.map_or(value, |low| if value < low { low } else { value });
            high.map_or(value, |high| if value > high { high } else { value })
        });
    }
    let bound = |index: usize| -> Result<Option<i128>, KernelError> {
        let Some(tensor) = call.optional_input(index) else {
            return Ok(None);
        };
        to_ints(tensor)?
            .first()
            .copied()
            .map(Some)
            .ok_or(KernelError::Range(index))
    };
    let (low, high) = (bound(1)?, bound(2)?);
    unary_either(
        call,
        |value| value,
        |value| {
            let value = low.map_or(value, |low| value.max(low));
            high.map_or(value, |high| value.min(high))
        },
    )
}

pub(super) fn select_elements(call: &Call<'_>) -> Results {
    let (condition, first, second) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let dims = broadcast_shape(
        &broadcast_shape(condition.dims(), first.dims())?,
        second.dims(),
    )?;
    let size = element_bytes(first)?;
    let choice = broadcast_places(condition.dims(), &dims);
    let first_places = broadcast_places(first.dims(), &dims);
    let second_places = broadcast_places(second.dims(), &dims);
    let conditions = to_truths(condition)?;
    let mut bytes = Vec::with_capacity(choice.len() * size);
    for (index, at) in choice.into_iter().enumerate() {
        let (source, place) = if conditions[at] {
            (first, first_places[index])
        } else {
            (second, second_places[index])
        };
        bytes.extend_from_slice(&source.bytes()[place * size..(place + 1) * size]);
    }
    Ok(vec![from_bytes(first.dtype(), &dims, bytes)?])
}

/// Casts to the type of the attribute `to`.
pub(super) fn cast(call: &Call<'_>) -> Results {
    let code =
        i32::try_from(call.int_attribute("to", 0)).map_err(|_| KernelError::Attribute("to"))?;
    let to = DType::from_onnx_code(code).map_err(|_| KernelError::Attribute("to"))?;
    cast_to(call, to)
}

pub(super) fn cast_like(call: &Call<'_>) -> Results {
    let to = call.input(1)?.dtype();
    cast_to(call, to)
}

fn cast_to(call: &Call<'_>, to: DType) -> Results {
    let input = call.input(0)?;
    let from = input.dtype();
    if from == to {
        return Ok(vec![input.clone()]);
    }
    if super::functions::is_small_float(to) {
        let saturate = call.int_attribute("saturate", 1) != 0;
        let encode = |value| super::functions::encode_small(to, value, saturate);
        let bytes = to_floats(input)?.into_iter().map(encode).collect();
        return Ok(vec![from_bytes(to, input.dims(), bytes)?]);
    }
    if to == DType::F8E8M0 {
        let saturate = call.int_attribute("saturate", 1) != 0;
        let rounding = match call.text_attribute("round_mode", "up") {
            "up" => PowerRounding::Up,
            "down" => PowerRounding::Down,
            "nearest" => PowerRounding::Nearest,
            _ => return Err(KernelError::Attribute("round_mode")),
        };
        let encode = |value| super::functions::encode_power(value, rounding, saturate);
        let bytes = to_floats(input)?.into_iter().map(encode).collect();
        return Ok(vec![from_bytes(to, input.dims(), bytes)?]);
    }
    if from.is_float() || from == DType::F8E8M0 {
        return Ok(vec![from_floats(to, input.dims(), to_floats(input)?)?]);
    }
    Ok(vec![from_ints(to, input.dims(), to_ints(input)?)?])
}

/// Reinterprets the bytes as another type, which must have the same size.
pub(super) fn bit_cast(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let code =
        i32::try_from(call.int_attribute("to", 0)).map_err(|_| KernelError::Attribute("to"))?;
    let to = DType::from_onnx_code(code).map_err(|_| KernelError::Attribute("to"))?;
    if to.bit_width() != input.dtype().bit_width() {
        return Err(KernelError::Attribute("to"));
    }
    Ok(vec![Tensor::new(
        to,
        input.shape().clone(),
        input.bytes().clone(),
    )?])
}

pub(super) fn gelu(call: &Call<'_>) -> Results {
    if call.text_attribute("approximate", "none") == "tanh" {
        let scale = (2.0 / std::f64::consts::PI).sqrt();
        return unary(call, |x| {
            0.5 * x * (1.0 + (scale * (x + 0.044715 * x.powi(3))).tanh())
        });
    }
    unary(call, |x| {
        0.5 * x * (1.0 + super::functions::erf(x * std::f64::consts::FRAC_1_SQRT_2))
    })
}

/// Returns one at the first largest element along an axis, zero elsewhere.
pub(super) fn hardmax(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let rank = input.dims().len();
    let default = if call.opset < 13 { 1 } else { -1 };
    let axis = super::call::resolve_axis(call.int_attribute("axis", default), rank)?;
    let (outer, size, inner) = if call.opset < 13 {
        (
            input.dims()[..axis].iter().product(),
            input.dims()[axis..].iter().product(),
            1,
        )
    } else {
        super::shape::split_at_axis(input.dims(), axis)
    };
    let values = to_floats(input)?;
    let mut marks = vec![0.0; values.len()];
    for lane in 0..outer * inner {
        let start = (lane / inner) * size * inner + lane % inner;
        let best = (0..size).fold(0, |best, index| {
            let better = values[start + index * inner] > values[start + best * inner];
            if better { index } else { best }
        });
        if size > 0 {
            marks[start + best * inner] = 1.0;
        }
    }
    Ok(vec![from_floats(input.dtype(), input.dims(), marks)?])
}
