//! Computes products of matrices: plain, scaled, quantised, and in index notation (`Einsum`). Also
//! computes determinants.

use std::borrow::Cow;
use std::collections::BTreeMap;

use souk_memory::{DType, Tensor};

use super::call::{Call, KernelError, Results};
use super::products::{Factor, Matrices, multiply_batches};
use super::shape::{broadcast_places, broadcast_shape, element_count, index_offsets, strides};
use super::value::{from_floats, from_ints, to_floats, to_ints};

/// Returns the two operands of a matrix product; a vector becomes a row or a column.
fn matrix_operands<'a, T: Copy>(
    left: Cow<'a, [T]>,
    left_dims: &[usize],
    right: Cow<'a, [T]>,
    right_dims: &[usize],
) -> Result<(Matrices<'a, T>, Matrices<'a, T>), KernelError> {
    let left = match left_dims {
        [] => return Err(KernelError::Range(0)),
        &[columns] => Matrices::by_row(left, &[], 1, columns),
        &[ref batch @ .., rows, columns] => Matrices::by_row(left, batch, rows, columns),
    };
    let right = match right_dims {
        [] => return Err(KernelError::Range(1)),
        &[rows] => Matrices::by_row(right, &[], rows, 1),
        &[ref batch @ .., rows, columns] => Matrices::by_row(right, batch, rows, columns),
    };
    Ok((left, right))
}

/// Returns the shape of a product, without the dimension added to a vector.
fn product_dims<T: Clone>(
    product: &Matrices<'_, T>,
    left: &[usize],
    right: &[usize],
) -> Vec<usize> {
    let mut dims = product.batch.clone();
    if left.len() > 1 {
        dims.push(product.rows);
    }
    if right.len() > 1 {
        dims.push(product.columns);
    }
    dims
}

pub(super) fn matmul(call: &Call<'_>) -> Results {
    let (left, right) = (call.input(0)?, call.input(1)?);
    if left.dtype() == DType::F32 && right.dtype() == DType::F32 {
        return multiply_floats::<f32>(call, left.elements()?, right.elements()?);
    }
    if left.dtype().is_float() {
        return multiply_floats::<f64>(call, to_floats(left)?.into(), to_floats(right)?.into());
    }
    let product = multiply_integers(to_ints(left)?, left.dims(), to_ints(right)?, right.dims())?;
    Ok(vec![from_ints(
        left.dtype(),
        &product.dims,
        product.values,
    )?])
}

/// Multiplies the operands of a call, whose elements are these floats.
fn multiply_floats<T: Factor<Sum = f64>>(
    call: &Call<'_>,
    left: Cow<'_, [T]>,
    right: Cow<'_, [T]>,
) -> Results {
    let (first, second) = (call.input(0)?, call.input(1)?);
    let pair = matrix_operands(left, first.dims(), right, second.dims())?;
    let result = multiply_batches(&pair.0, &pair.1)?;
    let dims = product_dims(&result, first.dims(), second.dims());
    let values = result.values.into_owned();
    Ok(vec![from_floats(first.dtype(), &dims, values)?])
}

/// A product of integers, not yet wrapped to a type.
struct IntegerProduct {
    dims: Vec<usize>,
    values: Vec<i128>,
}

fn multiply_integers(
    left: Vec<i128>,
    left_dims: &[usize],
    right: Vec<i128>,
    right_dims: &[usize],
) -> Result<IntegerProduct, KernelError> {
    let pair = matrix_operands(left.into(), left_dims, right.into(), right_dims)?;
    let result = multiply_batches(&pair.0, &pair.1)?;
    Ok(IntegerProduct {
        dims: product_dims(&result, left_dims, right_dims),
        values: result.values.into_owned(),
    })
}

/// Subtracts the zero point from integers: one for all, or one for each row (or column).
fn subtract_zero_point(
    tensor: &Tensor,
    zero: Option<&Tensor>,
    by_row: bool,
) -> Result<Vec<i128>, KernelError> {
    let values = to_ints(tensor)?;
    let Some(zero) = zero else { return Ok(values) };
    let zeros = to_ints(zero)?;
    let columns = tensor.dims().last().copied().unwrap_or(1).max(1);
    let rows = tensor
        .dims()
        .iter()
        .rev()
        .nth(1)
        .copied()
        .unwrap_or(1)
        .max(1);
    let zero_of = |place: usize| match zeros.len() {
        1 => zeros[0],
        _ if by_row => zeros[(place / columns) % rows % zeros.len()],
        _ => zeros[place % columns % zeros.len()],
    };
    Ok(values
        .into_iter()
        .enumerate()
        .map(|(place, value)| value - zero_of(place))
        .collect())
}

pub(super) fn matmul_integer(call: &Call<'_>) -> Results {
    let (left, right) = (call.input(0)?, call.input(1)?);
    let first = subtract_zero_point(left, call.optional_input(2), true)?;
    let second = subtract_zero_point(right, call.optional_input(3), false)?;
    let product = multiply_integers(first, left.dims(), second, right.dims())?;
    Ok(vec![from_ints(DType::I32, &product.dims, product.values)?])
}

/// Multiplies quantised matrices, and quantises the product.
pub(super) fn qlinear_matmul(call: &Call<'_>) -> Results {
    let (left, right, zero) = (call.input(0)?, call.input(3)?, call.input(7)?);
    let first = subtract_zero_point(left, call.optional_input(2), true)?;
    let second = subtract_zero_point(right, call.optional_input(5), false)?;
    let product = multiply_integers(first, left.dims(), second, right.dims())?;
    let scale = |index| {
        call.optional_scalar_float(index)?
            .ok_or(KernelError::Missing(index))
    };
    let factor = scale(1)? * scale(4)? / scale(6)?;
    let offset = to_floats(zero)?
        .first()
        .copied()
        .ok_or(KernelError::Range(7))?;
    let quantise = |value: i128| {
        let rounded = super::functions::round_half_even(value as f64 * factor) + offset;
        super::quantize::clamp_to_type(zero.dtype(), rounded)
    };
    let values = product.values.into_iter().map(quantise).collect();
    Ok(vec![from_ints(zero.dtype(), &product.dims, values)?])
}

pub(super) fn gemm(call: &Call<'_>) -> Results {
    let (left, right) = (call.input(0)?, call.input(1)?);
    if left.dtype() == DType::F32 && right.dtype() == DType::F32 {
        return multiply_scaled::<f32>(call, left.elements()?, right.elements()?);
    }
    multiply_scaled::<f64>(call, to_floats(left)?.into(), to_floats(right)?.into())
}

/// Computes a `Gemm` whose matrices have these elements.
fn multiply_scaled<T: Factor<Sum = f64>>(
    call: &Call<'_>,
    left: Cow<'_, [T]>,
    right: Cow<'_, [T]>,
) -> Results {
    let (first, second) = (call.input(0)?, call.input(1)?);
    let (&[a, b], &[c, d]) = (first.dims(), second.dims()) else {
        return Err(KernelError::Shapes(
            first.dims().to_vec(),
            second.dims().to_vec(),
        ));
    };
    let left = Matrices::of_one(left, [a, b], call.is_flag_set("transA"));
    let right = Matrices::of_one(right, [c, d], call.is_flag_set("transB"));
    let (alpha, beta) = (
        call.float_attribute("alpha", 1.0),
        call.float_attribute("beta", 1.0),
    );
    let result = multiply_batches(&left, &right)?;
    let dims = [result.rows, result.columns];
    let mut values = result.values.into_owned();
    values.iter_mut().for_each(|value| *value *= alpha);
    if let Some(bias) = call.optional_input(2) {
        if broadcast_shape(bias.dims(), &dims)? != dims {
            return Err(KernelError::Shapes(bias.dims().to_vec(), dims.to_vec()));
        }
        let added = to_floats(bias)?;
        let places = broadcast_places(bias.dims(), &dims);
        for (value, place) in values.iter_mut().zip(places) {
            *value += beta * added[place];
        }
    }
    Ok(vec![from_floats(first.dtype(), &dims, values)?])
}

/// Computes the determinant of each matrix, by elimination with the largest pivot.
pub(super) fn det(call: &Call<'_>) -> Results {
    let input = call.input(0)?;
    let &[ref batch @ .., rows, columns] = input.dims() else {
        return Err(KernelError::Range(0));
    };
    if rows != columns {
        return Err(KernelError::Shapes(vec![rows], vec![columns]));
    }
    let values = to_floats(input)?;
    let matrices = values.chunks_exact((rows * rows).max(1));
    let results = matrices
        .map(|matrix| determinant(matrix.to_vec(), rows))
        .collect();
    Ok(vec![from_floats(input.dtype(), batch, results)?])
}

fn determinant(mut matrix: Vec<f64>, size: usize) -> f64 {
    let mut result = 1.0;
    for step in 0..size {
        let by_size = |&a: &usize, &b: &usize| {
            matrix[a * size + step]
                .abs()
                .total_cmp(&matrix[b * size + step].abs())
        };
        let pivot = (step..size).max_by(by_size).unwrap_or(step);
        if pivot != step {
            (0..size).for_each(|at| matrix.swap(pivot * size + at, step * size + at));
            result = -result;
        }
        let head = matrix[step * size + step];
        result *= head;
        if head == 0.0 {
            return 0.0;
        }
        for row in step + 1..size {
            let factor = matrix[row * size + step] / head;
            for at in step..size {
                matrix[row * size + at] -= factor * matrix[step * size + at];
            }
        }
    }
    result
}

/// Evaluates index notation: letters name axes, repeated ones are multiplied, missing ones summed.
pub(super) fn einsum(call: &Call<'_>) -> Results {
    let tensors: Vec<&Tensor> = call.inputs.iter().flatten().collect();
    let equation: String = call
        .text_attribute("equation", "")
        .chars()
        .filter(|letter| !letter.is_whitespace())
        .collect();
    let notation = Einsum::read(&equation, &tensors)?;
    let dtype = tensors.first().ok_or(KernelError::Missing(0))?.dtype();
    let sizes = |letters: &[char]| -> Vec<usize> {
        letters
            .iter()
            .map(|letter| notation.sizes[letter])
            .collect()
    };
    let dims = sizes(&notation.output);
    let outer = |steps: &BTreeMap<char, usize>, letters: &[char]| {
        let steps: Vec<usize> = letters
            .iter()
            .map(|letter| steps.get(letter).copied().unwrap_or(0))
            .collect();
        index_offsets(&sizes(letters), &steps)
    };
    let kept: Vec<Vec<usize>> = notation
        .steps
        .iter()
        .map(|steps| outer(steps, &notation.output))
        .collect();
    let summed: Vec<Vec<usize>> = notation
        .steps
        .iter()
        .map(|steps| outer(steps, &notation.summed))
        .collect();
    let values: Vec<Vec<f64>> = tensors
        .iter()
        .map(|it| to_floats(it))
        .collect::<Result<_, _>>()?;
    let terms = element_count(&sizes(&notation.summed))?;
    let one = |place: usize| -> f64 {
        let term = |step: usize| -> f64 {
            let factors = values.iter().zip(&kept).zip(&summed);
            factors
                .map(|((values, kept), summed)| values[kept[place] + summed[step]])
                .product()
        };
        (0..terms).map(term).sum()
    };
    let results = (0..element_count(&dims)?).map(one).collect();
    Ok(vec![from_floats(dtype, &dims, results)?])
}

/// An equation with the shapes of its operands. Digits, counted from the last axis, serve as the
/// letters of an ellipsis's axes.
struct Einsum {
    output: Vec<char>,
    summed: Vec<char>,
    sizes: BTreeMap<char, usize>,
    /// Elements to step for each letter, for each operand; repeated letters step together.
    steps: Vec<BTreeMap<char, usize>>,
}

impl Einsum {
    fn read(equation: &str, tensors: &[&Tensor]) -> Result<Self, KernelError> {
        let malformed = KernelError::Attribute("equation");
        let (left, right) = match equation.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (equation, None),
        };
        let terms: Vec<&str> = left.split(',').collect();
        if terms.len() != tensors.len() {
            return Err(malformed);
        }
        let mut sizes = BTreeMap::new();
        let mut steps = Vec::new();
        let mut letters_of = Vec::new();
        for (term, tensor) in terms.iter().zip(tensors) {
            let letters = operand_letters(term, tensor.dims().len()).ok_or(malformed.clone())?;
            let mut own: BTreeMap<char, usize> = BTreeMap::new();
            let strides = strides(tensor.dims());
            for ((&letter, &size), &step) in letters.iter().zip(tensor.dims()).zip(&strides) {
                let known = sizes.entry(letter).or_insert(size);
                if *known == 1 {
                    *known = size;
                }
                if size != *known && size != 1 {
                    return Err(KernelError::Shapes(vec![*known], vec![size]));
                }
                *own.entry(letter).or_insert(0) += if size == 1 { 0 } else { step };
            }
            steps.push(own);
            letters_of.push(letters);
        }
        let output = match right {
            Some(right) => {
                let dots = sizes
                    .keys()
                    .filter(|letter| letter.is_ascii_digit())
                    .count();
                let named = right
                    .chars()
                    .filter(|letter| letter.is_alphabetic())
                    .count();
                let dots = if right.contains("...") { dots } else { 0 };
                operand_letters(right, named + dots).ok_or(malformed.clone())?
            }
            None => implicit_output(&letters_of),
        };
        if output.iter().any(|letter| !sizes.contains_key(letter)) {
            return Err(malformed);
        }
        let summed = sizes
            .keys()
            .filter(|letter| !output.contains(letter))
            .copied()
            .collect();
        Ok(Self {
            output,
            summed,
            sizes,
            steps,
        })
    }
}

/// Returns the letters of one operand of `rank` dimensions.
fn operand_letters(term: &str, rank: usize) -> Option<Vec<char>> {
    let named = term.chars().filter(|letter| letter.is_alphabetic()).count();
    let dots = rank.checked_sub(named).filter(|&dots| dots < 10)?;
    if !term.contains("...") {
        return (dots == 0).then(|| term.chars().collect());
    }
    let (before, after) = term.split_once("...")?;
    let digits = (0..dots)
        .rev()
        .filter_map(|digit| char::from_digit(digit as u32, 10));
    Some(before.chars().chain(digits).chain(after.chars()).collect())
}

/// Returns the implied output: the ellipsis, then letters that appear once, in alphabetical order.
fn implicit_output(letters_of: &[Vec<char>]) -> Vec<char> {
    let mut counts: BTreeMap<char, usize> = BTreeMap::new();
    for &letter in letters_of.iter().flatten() {
        *counts.entry(letter).or_insert(0) += 1;
    }
    let mut digits: Vec<char> = counts
        .keys()
        .copied()
        .filter(char::is_ascii_digit)
        .collect();
    digits.reverse();
    let once = counts
        .iter()
        .filter(|(letter, count)| letter.is_alphabetic() && **count == 1);
    digits
        .into_iter()
        .chain(once.map(|(letter, _)| *letter))
        .collect()
}
