//! Computes `RoutedMatMul`, souk's own operator for mixtures of experts: the product of each row
//! with some of several matrices, which a router chose for that row.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use souk_memory::{Shape, Tensor};

use super::call::{Call, KernelError, Results};
use super::shape::element_count;
use super::value::{from_floats, to_floats};

/// Runs `RoutedMatMul`: multiplies each row by the matrix of each of its chosen experts. A choice
/// must be below the number of experts; experts that no row chose will not be read.
pub(super) fn routed_matmul(call: &Call<'_>) -> Results {
    let (rows, experts) = (call.input(0)?, call.input(1)?);
    let choices = call.input(2)?.dims();
    let &[experts_count, columns, depth] = experts.dims() else {
        return Err(KernelError::Range(1));
    };
    let (&each, outer) = choices.split_last().ok_or(KernelError::Range(2))?;
    let own_rows = [choices, &[depth]].concat();
    let one_for_all = [outer, &[depth]].concat();
    // The choices that share a row: one if each choice has its own row, otherwise all of a row's.
    let share = match rows.dims() {
        dims if dims == own_rows => 1,
        dims if dims == one_for_all => each,
        dims => return Err(KernelError::Shapes(dims.to_vec(), own_rows)),
    };
    let made = [choices, &[columns]].concat();
    let mut values = Vec::with_capacity(element_count(&made)?);
    let rows_floats = to_floats(rows)?;
    let mut matrices: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for (place, index) in call.input_ints(2)?.into_iter().enumerate() {
        let named = usize::try_from(index).ok().filter(|it| *it < experts_count);
        let named = named.ok_or(KernelError::Expert {
            index,
            experts: experts_count,
        })?;
        let row = &rows_floats[place / share * depth..][..depth];
        let matrix = match matrices.entry(named) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(expert_matrix(experts, named)?),
        };
        values.extend((0..columns).map(|column| {
            let factors = &matrix[column * depth..][..depth];
            row.iter().zip(factors).map(|(a, b)| a * b).sum::<f64>()
        }));
    }
    Ok(vec![from_floats(rows.dtype(), &made, values)?])
}

/// Returns the values of one of several matrices.
fn expert_matrix(experts: &Tensor, index: usize) -> Result<Vec<f64>, KernelError> {
    let dims = &experts.dims()[1..];
    let dtype = experts.dtype();
    let size = dims.iter().product::<usize>();
    let bytes = size * dtype.byte_width().ok_or(KernelError::DType(dtype))?;
    let own = experts.bytes().slice(index * bytes..(index + 1) * bytes);
    to_floats(&Tensor::new(dtype, Shape::new(dims)?, own)?)
}

#[cfg(test)]
mod tests {
    use souk_memory::{Bf16, F16};
    use souk_onnx::NodeProto;
    use souk_onnx::custom::DOMAIN;
    use souk_onnx::routing::OPERATOR;

    use super::*;
    use crate::run_nodes;

    /// Four experts of three columns and two rows, the first of no numbers.
    fn experts() -> Vec<f32> {
        let number = |at: usize| if at >= 6 { at as f32 } else { f32::NAN };
        (0..24).map(number).collect()
    }

    fn run(x: Tensor, experts: Tensor, choices: Tensor) -> Result<Tensor, String> {
        let node = NodeProto {
            domain: Some(DOMAIN.to_owned()),
            ..NodeProto::for_operator(OPERATOR, &["x", "experts", "choices"], "y")
        };
        let named = [("x", x), ("experts", experts), ("choices", choices)];
        let mut scope = named.map(|(name, it)| (name.to_owned(), it)).into();
        run_nodes(&[node], &mut scope, 24).map_err(|it| it.to_string())?;
        Ok(scope.remove("y").unwrap())
    }

    fn tensor(dims: &[usize], values: &[f32]) -> Tensor {
        Tensor::from_vec(dims, values.to_vec()).unwrap()
    }

    fn choices(dims: &[usize], values: &[i64]) -> Tensor {
        Tensor::from_vec(dims, values.to_vec()).unwrap()
    }

    #[test]
    fn each_choice_is_the_product_with_its_expert_and_the_others_are_left_alone() {
        let stack = || tensor(&[4, 3, 2], &experts());
        let shared = tensor(&[1, 2, 2], &[1.0, 10.0, 2.0, 0.0]);
        let made = run(shared, stack(), choices(&[1, 2, 2], &[1, 3, 2, 2])).unwrap();
        assert_eq!(made.dims(), [1, 2, 2, 3]);
        let expected = [
            76., 98., 120., 208., 230., 252., 24., 28., 32., 24., 28., 32.,
        ];
        assert_eq!(made.to_vec::<f32>().unwrap(), expected);
        let own = tensor(&[1, 2, 2], &[1.0, 10.0, 2.0, 0.0]);
        let made = run(own, stack(), choices(&[1, 2], &[1, 2])).unwrap();
        assert_eq!(
            made.to_vec::<f32>().unwrap(),
            [76., 98., 120., 24., 28., 32.]
        );
    }

    #[test]
    fn experts_of_halves_are_those_they_stand_for() {
        let row = || tensor(&[1, 2], &[1.0, 10.0]);
        let halves: Vec<F16> = experts().iter().map(|it| F16::from_f32(*it)).collect();
        let brains: Vec<Bf16> = experts().iter().map(|it| Bf16::from_f32(*it)).collect();
        for stack in [
            Tensor::from_vec([4, 3, 2], halves),
            Tensor::from_vec([4, 3, 2], brains),
        ] {
            let made = run(row(), stack.unwrap(), choices(&[1, 1], &[3])).unwrap();
            assert_eq!(made.to_vec::<f32>().unwrap(), [208., 230., 252.]);
        }
    }

    #[test]
    fn an_expert_that_is_not_there_and_shapes_that_do_not_fit_are_errors() {
        let row = || tensor(&[1, 2], &[1.0, 10.0]);
        let stack = || tensor(&[4, 3, 2], &experts());
        for (index, named) in [(4, "expert 4"), (-1, "expert -1")] {
            let refused = run(row(), stack(), choices(&[1, 1], &[index])).unwrap_err();
            let expected = format!("its input 2 names {named}, but there are 4");
            assert!(refused.contains(&expected), "{refused}");
        }
        let none = run(row(), tensor(&[0, 3, 2], &[]), choices(&[1, 1], &[0]));
        assert!(none.unwrap_err().contains("there are 0"));
        let wide = run(tensor(&[1, 3], &[1.0; 3]), stack(), choices(&[1, 1], &[1]));
        assert!(wide.unwrap_err().contains("do not fit"));
        let flat = run(row(), tensor(&[8, 3], &experts()), choices(&[1, 1], &[1]));
        assert!(flat.unwrap_err().contains("input 1 is out of range"));
        let scalar = run(row(), stack(), choices(&[], &[1]));
        assert!(scalar.unwrap_err().contains("input 2 is out of range"));
    }
}
