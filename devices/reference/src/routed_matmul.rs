//! Computes `RoutedMatMul`, souk's own operator for mixtures of experts: multiplies each row by the
//! matrices of the experts that a router chose for that row.
//!
//! The inputs are rows, `[.., depth]` or `[.., choices, depth]`, the matrices of the experts,
//! `[experts, columns, depth]`, and the indices of the chosen experts, `[.., choices]`. The output
//! is `[.., choices, columns]`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use souk_memory::{Shape, Tensor};

use super::call::{Call, KernelError, Results};
use super::shape::element_count;
use super::value::{from_floats, to_floats};

/// Runs `RoutedMatMul`. A choice must be below the number of experts. The matrices of experts that
/// no row chose are not read.
pub(super) fn routed_matmul(call: &Call<'_>) -> Results {
    let (rows, experts) = (call.input(0)?, call.input(1)?);
    let choices = call.input(2)?.dims();
    let &[experts_count, columns, depth] = experts.dims() else {
        return Err(KernelError::Rank(1));
    };
    let (&choices_per_row, outer) = choices.split_last().ok_or(KernelError::Rank(2))?;
    let dims_per_choice = [choices, &[depth]].concat();
    let dims_per_row = [outer, &[depth]].concat();
    // Either each choice has an input row of its own, or all choices of a row share one.
    let choices_per_input_row = match rows.dims() {
        dims if dims == dims_per_choice => 1,
        dims if dims == dims_per_row => choices_per_row,
        dims => return Err(KernelError::Shapes(dims.to_vec(), dims_per_choice)),
    };
    let output_dims = [choices, &[columns]].concat();
    let mut values = Vec::with_capacity(element_count(&output_dims)?);
    let rows_floats = to_floats(rows)?;
    let mut matrices: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for (choice, index) in call.input_ints(2)?.into_iter().enumerate() {
        let expert = usize::try_from(index).ok();
        let expert = expert.filter(|expert| *expert < experts_count);
        let expert = expert.ok_or(KernelError::Expert {
            index,
            experts: experts_count,
        })?;
        let input_row = choice / choices_per_input_row;
        let row = &rows_floats[input_row * depth..][..depth];
        let matrix = match matrices.entry(expert) {
            Entry::Occupied(matrix) => matrix.into_mut(),
            Entry::Vacant(entry) => entry.insert(read_expert_matrix(experts, expert)?),
        };
        values.extend((0..columns).map(|column| {
            let factors = &matrix[column * depth..][..depth];
            row.iter().zip(factors).map(|(a, b)| a * b).sum::<f64>()
        }));
    }
    Ok(vec![from_floats(rows.dtype(), &output_dims, values)?])
}

/// Reads the matrix of one expert as floats.
fn read_expert_matrix(experts: &Tensor, expert: usize) -> Result<Vec<f64>, KernelError> {
    let dims = &experts.dims()[1..];
    let dtype = experts.dtype();
    let size = dims.iter().product::<usize>();
    let bytes = size * dtype.byte_width().ok_or(KernelError::DType(dtype))?;
    let matrix = experts.bytes().slice(expert * bytes..(expert + 1) * bytes);
    to_floats(&Tensor::new(dtype, Shape::new(dims)?, matrix)?)
}

#[cfg(test)]
mod tests {
    use souk_memory::{Bf16, F16};
    use souk_onnx::NodeProto;
    use souk_onnx::custom::DOMAIN;
    use souk_onnx::routing::OPERATOR;

    use super::*;
    use crate::run_nodes;

    /// Returns the elements of four experts with three columns and depth 2. Those of the first are
    /// NaN, so that a read of them shows in the result.
    fn experts() -> Vec<f32> {
        let element = |index: usize| if index >= 6 { index as f32 } else { f32::NAN };
        (0..24).map(element).collect()
    }

    fn run(x: Tensor, experts: Tensor, choices: Tensor) -> Result<Tensor, String> {
        let node = NodeProto {
            domain: Some(DOMAIN.to_owned()),
            ..NodeProto::for_operator(OPERATOR, &["x", "experts", "choices"], "y")
        };
        let inputs = [("x", x), ("experts", experts), ("choices", choices)];
        let mut scope = inputs
            .map(|(name, tensor)| (name.to_owned(), tensor))
            .into();
        run_nodes(&[node], &mut scope, 24).map_err(|error| error.to_string())?;
        Ok(scope.remove("y").unwrap())
    }

    fn tensor(dims: &[usize], values: &[f32]) -> Tensor {
        Tensor::from_vec(dims, values.to_vec()).unwrap()
    }

    fn choices(dims: &[usize], values: &[i64]) -> Tensor {
        Tensor::from_vec(dims, values.to_vec()).unwrap()
    }

    #[test]
    fn each_choice_is_multiplied_by_its_expert_and_other_experts_are_not_read() {
        let stack = || tensor(&[4, 3, 2], &experts());
        let shared = tensor(&[1, 2, 2], &[1.0, 10.0, 2.0, 0.0]);
        let output = run(shared, stack(), choices(&[1, 2, 2], &[1, 3, 2, 2])).unwrap();
        assert_eq!(output.dims(), [1, 2, 2, 3]);
        let expected = [
            76., 98., 120., 208., 230., 252., 24., 28., 32., 24., 28., 32.,
        ];
        assert_eq!(output.to_vec::<f32>().unwrap(), expected);
        let own = tensor(&[1, 2, 2], &[1.0, 10.0, 2.0, 0.0]);
        let output = run(own, stack(), choices(&[1, 2], &[1, 2])).unwrap();
        assert_eq!(
            output.to_vec::<f32>().unwrap(),
            [76., 98., 120., 24., 28., 32.]
        );
    }

    #[test]
    fn experts_of_16_bits_compute_like_those_of_32_bits() {
        let row = || tensor(&[1, 2], &[1.0, 10.0]);
        let halves: Vec<F16> = experts().iter().map(|x| F16::from_f32(*x)).collect();
        let brain_floats: Vec<Bf16> = experts().iter().map(|x| Bf16::from_f32(*x)).collect();
        for stack in [
            Tensor::from_vec([4, 3, 2], halves),
            Tensor::from_vec([4, 3, 2], brain_floats),
        ] {
            let output = run(row(), stack.unwrap(), choices(&[1, 1], &[3])).unwrap();
            assert_eq!(output.to_vec::<f32>().unwrap(), [208., 230., 252.]);
        }
    }

    #[test]
    fn an_unknown_expert_and_shapes_that_do_not_fit_are_errors() {
        let row = || tensor(&[1, 2], &[1.0, 10.0]);
        let stack = || tensor(&[4, 3, 2], &experts());
        for (index, name) in [(4, "expert 4"), (-1, "expert -1")] {
            let refused = run(row(), stack(), choices(&[1, 1], &[index])).unwrap_err();
            let expected = format!("its input 2 names {name}, but there are 4");
            assert!(refused.contains(&expected), "{refused}");
        }
        let none = run(row(), tensor(&[0, 3, 2], &[]), choices(&[1, 1], &[0]));
        assert!(none.unwrap_err().contains("there are 0"));
        let wide = run(tensor(&[1, 3], &[1.0; 3]), stack(), choices(&[1, 1], &[1]));
        assert!(wide.unwrap_err().contains("do not fit"));
        let flat = run(row(), tensor(&[8, 3], &experts()), choices(&[1, 1], &[1]));
        assert!(flat.unwrap_err().contains("input 1 has the wrong rank"));
        let scalar = run(row(), stack(), choices(&[], &[1]));
        assert!(scalar.unwrap_err().contains("input 2 has the wrong rank"));
    }
}
