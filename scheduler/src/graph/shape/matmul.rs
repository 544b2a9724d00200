//! Infers the outputs of matrix products: `MatMul` and its quantised forms, `Gemm`, `Einsum`.

use std::collections::BTreeMap;

use super::operation::{Inference, broadcast_dims};
use super::{Dims, Operation, ShapeFault};

/// Infers the matrix product of inputs `left` and `right`, with batches broadcast.
pub(super) fn infer_product(operation: &Operation<'_>, left: usize, right: usize) -> Inference {
    let elem = operation.result_elem();
    let pair = operation
        .dims_of_rank(left, 1)?
        .zip(operation.dims_of_rank(right, 1)?);
    let dims = pair
        .map(|(left, right)| product_dims(left, right))
        .transpose()?;
    Operation::single_output(elem, dims)
}

fn product_dims(left: &Dims, right: &Dims) -> Result<Dims, ShapeFault> {
    let mut a = left.clone();
    let mut b = right.clone();
    if left.len() == 1 {
        a.insert(0, Some(1));
    }
    if right.len() == 1 {
        b.push(Some(1));
    }
    let (rows, inner) = (a[a.len() - 2], a[a.len() - 1]);
    let (other, columns) = (b[b.len() - 2], b[b.len() - 1]);
    if let (Some(inner), Some(other)) = (inner, other)
        && inner != other
    {
        return Err(ShapeFault::Inner {
            left: left.clone(),
            right: right.clone(),
        });
    }
    let mut dims = broadcast_dims(&a[..a.len() - 2].to_vec(), &b[..b.len() - 2].to_vec())?;
    if left.len() > 1 {
        dims.push(rows);
    }
    if right.len() > 1 {
        dims.push(columns);
    }
    Ok(dims)
}

/// Infers `Gemm`: two matrices, each possibly transposed.
pub(super) fn infer_gemm(operation: &Operation<'_>) -> Inference {
    let pair = operation
        .dims_of_rank(0, 2)?
        .zip(operation.dims_of_rank(1, 2)?);
    let Some((left, right)) = pair else {
        return Operation::single_output(operation.input_elem(0), None);
    };
    let flip = |dims: &Dims, name: &str| match operation.int_or(name, 0) {
        0 => (dims[0], dims[1]),
        _ => (dims[1], dims[0]),
    };
    let (rows, inner) = flip(left, "transA");
    let (other, columns) = flip(right, "transB");
    match (inner, other) {
        (Some(inner), Some(other)) if inner != other => Err(ShapeFault::Inner {
            left: left.clone(),
            right: right.clone(),
        }),
        _ => Operation::single_output(operation.input_elem(0), Some(vec![rows, columns])),
    }
}

/// Infers `Einsum`: extents by letter; with an ellipsis only the type of the result is known.
pub(super) fn infer_einsum(operation: &Operation<'_>) -> Inference {
    let equation = operation
        .node
        .string("equation")
        .unwrap_or("")
        .replace(' ', "");
    let mut letters: BTreeMap<char, Option<u64>> = BTreeMap::new();
    let (terms, output) = match equation.split_once("->") {
        Some((terms, output)) => (terms.to_owned(), output.to_owned()),
        None => (equation.clone(), implicit_output(&equation)),
    };
    for (index, term) in terms.split(',').enumerate() {
        let Some(dims) = operation.input_dims(index) else {
            return Operation::single_output(operation.input_elem(0), None);
        };
        if term.contains('.') {
            return Operation::single_output(operation.input_elem(0), None);
        }
        if dims.len() != term.chars().count() {
            return Err(ShapeFault::Rank {
                input: index,
                expected: term.chars().count(),
                found: dims.len(),
            });
        }
        for (letter, dim) in term.chars().zip(dims) {
            let known = letters.entry(letter).or_insert(*dim);
            *known = known.filter(|&extent| extent != 1).or(*dim);
        }
    }
    let dims = output
        .chars()
        .map(|letter| letters.get(&letter).copied().flatten())
        .collect();
    Operation::single_output(operation.input_elem(0), Some(dims))
}

/// Returns the letters that occur once, in alphabetical order: the output of an equation without an
/// arrow.
fn implicit_output(equation: &str) -> String {
    let mut counts: BTreeMap<char, usize> = BTreeMap::new();
    for letter in equation.chars().filter(|letter| letter.is_alphabetic()) {
        *counts.entry(letter).or_insert(0) += 1;
    }
    let once = counts.into_iter().filter(|(_, count)| *count == 1);
    once.map(|(letter, _)| letter).collect()
}
