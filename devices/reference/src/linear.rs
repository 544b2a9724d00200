//! Computes products of matrices: plain, scaled, quantised, and in index notation (`Einsum`). Also
//! computes determinants.

use std::collections::BTreeMap;

use souk_host::isa::Isa;
use souk_memory::{DType, Tensor};

use super::call::{Call, KernelError, Results};
use super::shape::{broadcast_places, broadcast_shape, element_count, index_offsets, strides};
use super::value::{from_floats, from_ints, to_floats, to_ints};

/// A batch of matrices: `batch` is the shape of the batch, each matrix is `rows` by `columns`.
pub(super) struct Matrices<T> {
    pub values: Vec<T>,
    pub batch: Vec<usize>,
    pub rows: usize,
    pub columns: usize,
}

/// Numbers with multiplication and addition.
pub(super) trait Number:
    Copy + Default + std::ops::Mul<Output = Self> + std::ops::AddAssign
{
}

impl<T: Copy + Default + std::ops::Mul<Output = T> + std::ops::AddAssign> Number for T {}

/// Returns the products of two batches of matrices, with the smaller batch broadcast. The left
/// matrices must have as many columns as the right ones have rows.
pub(super) fn multiply_batches<T: Number>(
    left: &Matrices<T>,
    right: &Matrices<T>,
) -> Result<Matrices<T>, KernelError> {
    if left.columns != right.rows {
        let shape = |it: &Matrices<T>| vec![it.rows, it.columns];
        return Err(KernelError::Shapes(shape(left), shape(right)));
    }
    let batch = broadcast_shape(&left.batch, &right.batch)?;
    let (rows, depth, columns) = (left.rows, left.columns, right.columns);
    let size = [&batch[..], &[rows, columns]].concat();
    let mut values = vec![T::default(); element_count(&size)?];
    let left_places = broadcast_places(&left.batch, &batch);
    let right_places = broadcast_places(&right.batch, &batch);
    for (index, (from, with)) in left_places.into_iter().zip(right_places).enumerate() {
        let target = &mut values[index * rows * columns..(index + 1) * rows * columns];
        let left = &left.values[from * rows * depth..(from + 1) * rows * depth];
        let right = &right.values[with * depth * columns..(with + 1) * depth * columns];
        multiply_into(target, left, right, (rows, depth, columns));
    }
    Ok(Matrices {
        values,
        batch,
        rows,
        columns,
    })
}

/// Rows and columns of the sums that a block accumulates at once.
const BLOCK_ROWS: usize = 4;
const BLOCK_COLUMNS: usize = 16;

/// Multiplies with the widest vectors available; each width adds up a sum in the same order.
fn multiply_into<T: Number>(
    target: &mut [T],
    left: &[T],
    right: &[T],
    sizes: (usize, usize, usize),
) {
    match Isa::detect_widest() {
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "built for wider vectors")]
        // SAFETY: `Isa::found` returns this variant only if the processor has the instructions.
        Isa::Avx512 => unsafe { multiply_512(target, left, right, sizes) },
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "built for wider vectors")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { multiply_256(target, left, right, sizes) },
        Isa::Plain => multiply_blocks(target, left, right, sizes.0, sizes.1, sizes.2),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx2,fma")]
fn multiply_512<T: Number>(t: &mut [T], left: &[T], right: &[T], sizes: (usize, usize, usize)) {
    multiply_blocks(t, left, right, sizes.0, sizes.1, sizes.2);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn multiply_256<T: Number>(t: &mut [T], left: &[T], right: &[T], sizes: (usize, usize, usize)) {
    multiply_blocks(t, left, right, sizes.0, sizes.1, sizes.2);
}

#[inline(always)]
fn multiply_blocks<T: Number>(
    target: &mut [T],
    left: &[T],
    right: &[T],
    rows: usize,
    depth: usize,
    columns: usize,
) {
    let (whole_rows, whole_columns) = (
        rows / BLOCK_ROWS * BLOCK_ROWS,
        columns / BLOCK_COLUMNS * BLOCK_COLUMNS,
    );
    for row in (0..whole_rows).step_by(BLOCK_ROWS) {
        for column in (0..whole_columns).step_by(BLOCK_COLUMNS) {
            let mut sums = [[T::default(); BLOCK_COLUMNS]; BLOCK_ROWS];
            let lefts: [&[T]; BLOCK_ROWS] =
                std::array::from_fn(|at| &left[(row + at) * depth..(row + at + 1) * depth]);
            for step in 0..depth {
                let line = &right[step * columns + column..][..BLOCK_COLUMNS];
                for (sums, left) in sums.iter_mut().zip(&lefts) {
                    let factor = left[step];
                    for (sum, &value) in sums.iter_mut().zip(line) {
                        *sum += factor * value;
                    }
                }
            }
            for (at, sums) in sums.iter().enumerate() {
                target[(row + at) * columns + column..][..BLOCK_COLUMNS].copy_from_slice(sums);
            }
        }
    }
    // The remainder: columns after whole blocks, and rows below them.
    for row in 0..rows {
        let first = if row < whole_rows { whole_columns } else { 0 };
        let sums = &mut target[row * columns + first..(row + 1) * columns];
        for step in 0..depth {
            let factor = left[row * depth + step];
            let line = &right[step * columns + first..(step + 1) * columns];
            for (sum, &value) in sums.iter_mut().zip(line) {
                *sum += factor * value;
            }
        }
    }
}

/// Returns the two operands of a matrix product; a vector becomes a row or a column.
fn matrix_operands<T>(
    left: Vec<T>,
    left_dims: &[usize],
    right: Vec<T>,
    right_dims: &[usize],
) -> Result<(Matrices<T>, Matrices<T>), KernelError> {
    let left = match left_dims {
        [] => return Err(KernelError::Range(0)),
        &[columns] => Matrices {
            values: left,
            batch: vec![],
            rows: 1,
            columns,
        },
        &[ref batch @ .., rows, columns] => Matrices {
            values: left,
            batch: batch.to_vec(),
            rows,
            columns,
        },
    };
    let right = match right_dims {
        [] => return Err(KernelError::Range(1)),
        &[rows] => Matrices {
            values: right,
            batch: vec![],
            rows,
            columns: 1,
        },
        &[ref batch @ .., rows, columns] => Matrices {
            values: right,
            batch: batch.to_vec(),
            rows,
            columns,
        },
    };
    Ok((left, right))
}

/// Returns the shape of a product, without the dimension added to a vector.
fn product_dims<T>(product: &Matrices<T>, left: &[usize], right: &[usize]) -> Vec<usize> {
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
    if left.dtype().is_float() {
        let pair = matrix_operands(
            to_floats(left)?,
            left.dims(),
            to_floats(right)?,
            right.dims(),
        )?;
        let result = multiply_batches(&pair.0, &pair.1)?;
        let dims = product_dims(&result, left.dims(), right.dims());
        return Ok(vec![from_floats(left.dtype(), &dims, result.values)?]);
    }
    let pair = matrix_operands(to_ints(left)?, left.dims(), to_ints(right)?, right.dims())?;
    let result = multiply_batches(&pair.0, &pair.1)?;
    let dims = product_dims(&result, left.dims(), right.dims());
    Ok(vec![from_ints(left.dtype(), &dims, result.values)?])
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
    let pair = matrix_operands(first, left.dims(), second, right.dims())?;
    let result = multiply_batches(&pair.0, &pair.1)?;
    let dims = product_dims(&result, left.dims(), right.dims());
    Ok(vec![from_ints(DType::I32, &dims, result.values)?])
}

/// Multiplies quantised matrices, and quantises the product.
pub(super) fn qlinear_matmul(call: &Call<'_>) -> Results {
    let (left, right, zero) = (call.input(0)?, call.input(3)?, call.input(7)?);
    let first = subtract_zero_point(left, call.optional_input(2), true)?;
    let second = subtract_zero_point(right, call.optional_input(5), false)?;
    let pair = matrix_operands(first, left.dims(), second, right.dims())?;
    let result = multiply_batches(&pair.0, &pair.1)?;
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
    let dims = product_dims(&result, left.dims(), right.dims());
    Ok(vec![from_ints(
        zero.dtype(),
        &dims,
        result.values.into_iter().map(quantise).collect(),
    )?])
}

pub(super) fn gemm(call: &Call<'_>) -> Results {
    let (left, right) = (call.input(0)?, call.input(1)?);
    let (&[a, b], &[c, d]) = (left.dims(), right.dims()) else {
        return Err(KernelError::Shapes(
            left.dims().to_vec(),
            right.dims().to_vec(),
        ));
    };
    let first = build_matrix(to_floats(left)?, a, b, call.is_flag_set("transA"));
    let second = build_matrix(to_floats(right)?, c, d, call.is_flag_set("transB"));
    let (alpha, beta) = (
        call.float_attribute("alpha", 1.0),
        call.float_attribute("beta", 1.0),
    );
    let result = multiply_batches(&first, &second)?;
    let dims = [result.rows, result.columns];
    let mut values: Vec<f64> = result
        .values
        .into_iter()
        .map(|value| alpha * value)
        .collect();
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
    Ok(vec![from_floats(left.dtype(), &dims, values)?])
}

/// Returns a matrix, transposed if `turn`.
fn build_matrix(values: Vec<f64>, rows: usize, columns: usize, turn: bool) -> Matrices<f64> {
    if !turn {
        return Matrices {
            values,
            batch: vec![],
            rows,
            columns,
        };
    }
    let order = index_offsets(&[columns, rows], &[1, columns]);
    let values = order.into_iter().map(|place| values[place]).collect();
    Matrices {
        values,
        batch: vec![],
        rows: columns,
        columns: rows,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_of_any_size_adds_up_each_sum_in_order() {
        let sizes = [
            (1, 1, 1),
            (4, 3, 16),
            (5, 7, 17),
            (9, 2, 40),
            (3, 5, 100),
            (8, 0, 16),
        ];
        for (rows, depth, columns) in sizes {
            let wave = |count: usize| (0..count).map(|at| (at as f64 * 0.7).sin() / 3.0);
            let left: Vec<f64> = wave(rows * depth).collect();
            let right: Vec<f64> = wave(depth * columns).collect();
            let mut found = vec![0.0; rows * columns];
            multiply_into(&mut found, &left, &right, (rows, depth, columns));
            for (at, found) in found.into_iter().enumerate() {
                let (row, column) = (at / columns, at % columns);
                let mut sum = 0.0;
                for step in 0..depth {
                    sum += left[row * depth + step] * right[step * columns + column];
                }
                assert_eq!(
                    found.to_bits(),
                    sum.to_bits(),
                    "{rows} {depth} {columns} at {at}"
                );
            }
        }
    }
}
