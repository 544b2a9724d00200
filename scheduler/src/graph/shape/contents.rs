//! Computes the contents of small tensors during shape inference, because models compute shapes
//! with operators such as `Shape`, `Gather` and `Concat`.

use souk_onnx::DataType;

use super::arithmetic::{self, Operand};
use super::generate::shape_range;
use super::layout::axis_cuts;
use super::{Fact, Operation, tensor_fact};

/// Adds the contents to `fact`, the only output of `operation`, if they are known and few.
pub(super) fn attach_contents(operation: &Operation<'_>, fact: &mut Fact) {
    let few = |count: u64| count <= Fact::CONTENTS_MAX as u64;
    let Some(count) = fact.element_count().filter(|&count| few(count)) else {
        return;
    };
    let Some((ints, floats)) = compute_contents(operation, fact) else {
        return;
    };
    let fits = |length: usize| length as u64 == count;
    fact.ints = ints.filter(|ints| fits(ints.len()) && in_range(ints, fact.elem));
    fact.floats = floats.filter(|floats| fits(floats.len()));
}

type Contents = (Option<Vec<i64>>, Option<Vec<f32>>);

fn int_contents(values: Option<Vec<i64>>) -> Option<Contents> {
    values.map(|values| (Some(values), None))
}

/// Returns whether an element type can hold the contents. Otherwise the kernel would wrap, so they
/// count as unknown.
fn in_range(values: &[i64], elem: Option<DataType>) -> bool {
    let (least, most) = match elem {
        Some(DataType::Int64) => (i64::MIN, i64::MAX),
        Some(DataType::Int32) => (i64::from(i32::MIN), i64::from(i32::MAX)),
        Some(DataType::Bool) => (0, 1),
        Some(DataType::Uint8) => (0, 255),
        Some(DataType::Int8) => (-128, 127),
        _ => return false,
    };
    values.iter().all(|value| (least..=most).contains(value))
}

fn compute_contents(operation: &Operation<'_>, fact: &Fact) -> Option<Contents> {
    if !operation.node.operator_domain().is_empty() {
        return None;
    }
    match operation.node.op_type() {
        "Shape" => {
            let dims = operation.input_dims(0)?.get(shape_range(operation)?)?;
            let known = dims.iter().map(|dim| i64::try_from((*dim)?).ok());
            int_contents(known.collect())
        }
        "Size" => {
            let count = operation.input_fact(0)?.element_count()?;
            int_contents(Some(vec![i64::try_from(count).ok()?]))
        }
        "Identity" | "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten" => {
            let input = operation.input_fact(0)?;
            Some((input.ints.clone(), input.floats.clone()))
        }
        "Cast" => cast_contents(operation, fact),
        "Gather" => pick_elements(operation, gather_places(operation)?),
        "Slice" => pick_elements(operation, slice_places(operation)?),
        "Concat" => concat_lists(operation),
        "ConstantOfShape" => fill_contents(operation, fact),
        "Range" => range_contents(operation, fact),
        "Expand" => {
            let operand = int_operand(operation, 0)?;
            let dims = known_dims(fact)?;
            int_contents(arithmetic::broadcast_operand(&operand, &dims))
        }
        "ReduceProd" | "ReduceSum" | "ReduceMax" | "ReduceMin" => {
            int_contents(reduce_list(operation, fact))
        }
        "Where" => {
            let operands = [
                int_operand(operation, 0)?,
                int_operand(operation, 1)?,
                int_operand(operation, 2)?,
            ];
            int_contents(arithmetic::select(&operands, &known_dims(fact)?))
        }
        name => compute_elementwise(operation, name, fact),
    }
}

fn known_dims(fact: &Fact) -> Option<Vec<u64>> {
    fact.dims.as_ref()?.iter().copied().collect()
}

fn int_operand<'a>(operation: &Operation<'a>, index: usize) -> Option<Operand<'a>> {
    let fact = operation.input_fact(index)?;
    Some(Operand {
        dims: known_dims(fact)?,
        ints: fact.ints.as_deref()?,
    })
}

/// Returns the contents at `places` of the first input, in row-major order.
fn pick_elements(operation: &Operation<'_>, places: Vec<usize>) -> Option<Contents> {
    let input = operation.input_fact(0)?;
    let ints = input.ints.as_ref();
    let floats = input.floats.as_ref();
    let ints = ints.map(|ints| places.iter().map(|&at| ints.get(at).copied()).collect());
    let floats = floats.map(|floats| places.iter().map(|&at| floats.get(at).copied()).collect());
    Some((ints.unwrap_or(None), floats.unwrap_or(None)))
}

/// Returns the places that a `Gather` takes from a list by a list or a scalar index.
fn gather_places(operation: &Operation<'_>) -> Option<Vec<usize>> {
    let dims = known_dims(operation.input_fact(0)?)?;
    let [size] = dims.as_slice() else {
        return None;
    };
    let size = i64::try_from(*size).ok()?;
    let places = operation.input_ints(1)?.iter().map(|&index| {
        let index = if index < 0 { index + size } else { index };
        usize::try_from(index).ok()
    });
    places.collect()
}

/// Returns the places that a `Slice` takes from a list.
fn slice_places(operation: &Operation<'_>) -> Option<Vec<usize>> {
    let dims = known_dims(operation.input_fact(0)?)?;
    let [size] = dims.as_slice() else {
        return None;
    };
    let cuts = axis_cuts(operation, 1).ok()??;
    let [(0, Some(cut))] = cuts.as_slice() else {
        return None;
    };
    cut.axis_places(*size)
        .map(|place| usize::try_from(place).ok())
        .collect()
}

/// Returns lists joined end to end; it does not follow tensors of higher rank.
fn concat_lists(operation: &Operation<'_>) -> Option<Contents> {
    let lists = operation.input_facts().map(|fact| match fact.rank() {
        Some(1) => Some((fact.ints.as_ref(), fact.floats.as_ref())),
        _ => None,
    });
    let lists: Vec<_> = lists.collect::<Option<_>>()?;
    let ints: Option<Vec<&Vec<i64>>> = lists.iter().map(|list| list.0).collect();
    let floats: Option<Vec<&Vec<f32>>> = lists.iter().map(|list| list.1).collect();
    Some((
        ints.map(|lists| lists.into_iter().flatten().copied().collect()),
        floats.map(|lists| lists.into_iter().flatten().copied().collect()),
    ))
}

fn fill_contents(operation: &Operation<'_>, fact: &Fact) -> Option<Contents> {
    let count = usize::try_from(fact.element_count()?).ok()?;
    let Some(value) = operation.node.tensor("value") else {
        return Some((None, Some(vec![0.0; count])));
    };
    let value = tensor_fact(value)?;
    let first_int = value.ints.and_then(|ints| ints.first().copied());
    let first_float = value.floats.and_then(|floats| floats.first().copied());
    Some((
        first_int.map(|int| vec![int; count]),
        first_float.map(|float| vec![float; count]),
    ))
}

fn range_contents(operation: &Operation<'_>, fact: &Fact) -> Option<Contents> {
    let first = |index: usize| operation.input_ints(index)?.first().copied();
    let (start, step) = (first(0)?, first(2)?);
    let count = i64::try_from(fact.element_count()?).ok()?;
    let place = |index: i64| start.checked_add(step.checked_mul(index)?);
    int_contents((0..count).map(place).collect())
}

fn cast_contents(operation: &Operation<'_>, fact: &Fact) -> Option<Contents> {
    let input = operation.input_fact(0)?;
    match (&input.ints, &input.floats, fact.elem?) {
        (Some(ints), _, DataType::Float) => {
            Some((None, Some(ints.iter().map(|&int| int as f32).collect())))
        }
        (Some(values), _, DataType::Bool) => int_contents(Some(
            values.iter().map(|&int| i64::from(int != 0)).collect(),
        )),
        (Some(values), _, _) => int_contents(Some(values.clone())),
        (_, Some(floats), DataType::Float) => Some((None, Some(floats.clone()))),
        (_, Some(floats), DataType::Int64 | DataType::Int32) => {
            let whole = floats.iter().map(|&float| {
                let safe = float.is_finite() && float.abs() < 2f32.powi(31);
                safe.then_some(float as i64)
            });
            int_contents(whole.collect())
        }
        _ => None,
    }
}

/// Returns the reduction of a whole list to one element.
fn reduce_list(operation: &Operation<'_>, fact: &Fact) -> Option<Vec<i64>> {
    let whole = fact.element_count()? == 1;
    let values = operation
        .input_ints(0)
        .filter(|values| whole && !values.is_empty())?;
    let mut values = values.iter().copied();
    let total = match operation.node.op_type() {
        "ReduceProd" => values.try_fold(1i64, i64::checked_mul),
        "ReduceSum" => values.try_fold(0i64, i64::checked_add),
        "ReduceMax" => values.max(),
        _ => values.min(),
    };
    total.map(|total| vec![total])
}

/// Returns the result of element-wise arithmetic.
fn compute_elementwise(operation: &Operation<'_>, name: &str, fact: &Fact) -> Option<Contents> {
    if let Some(unary) = arithmetic::float_unary(name) {
        let floats = operation.input_floats(0)?;
        return Some((
            None,
            Some(floats.iter().map(|&float| unary(float)).collect()),
        ));
    }
    if let Some(binary) = arithmetic::int_binary(name) {
        let operands = [int_operand(operation, 0), int_operand(operation, 1)];
        if let [Some(left), Some(right)] = &operands {
            let two = operation.input_facts().count() == 2;
            return two.then_some(int_contents(arithmetic::broadcast_zip(
                left,
                right,
                &known_dims(fact)?,
                binary,
            )))?;
        }
    }
    if let Some(binary) = arithmetic::float_binary(name) {
        let (left, right) = (operation.input_floats(0)?, operation.input_floats(1)?);
        let same = left.len() == right.len() || left.len() == 1 || right.len() == 1;
        let count = left.len().max(right.len());
        let at = |list: &[f32], index: usize| list[if list.len() == 1 { 0 } else { index }];
        let values = (0..count).map(|index| binary(at(left, index), at(right, index)));
        return same.then(|| (None, Some(values.collect())));
    }
    match name {
        "Neg" => int_contents(
            operation
                .input_ints(0)?
                .iter()
                .map(|int| int.checked_neg())
                .collect(),
        ),
        "Abs" => int_contents(
            operation
                .input_ints(0)?
                .iter()
                .map(|int| int.checked_abs())
                .collect(),
        ),
        "Not" => int_contents(Some(
            operation
                .input_ints(0)?
                .iter()
                .map(|&int| i64::from(int == 0))
                .collect(),
        )),
        "Transpose" if operation.input_fact(0)?.rank()? < 2 => {
            int_contents(operation.input_ints(0).map(<[i64]>::to_vec))
        }
        _ => None,
    }
}
