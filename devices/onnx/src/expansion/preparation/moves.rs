//! Computes the operators that only rearrange strings, such as `Reshape`, `Concat` and `Gather`, if
//! a later operator on strings needs the result. This is a part of the preparation, which runs on
//! the buyer's machine before the rest of the model.

use souk_memory::Tensor;

use super::super::string_table::Texts;
use super::NodeFault;
use crate::{NodeProto, TensorProto};

/// Maximum number of elements of a constant that a move can read, such as a shape or indices. A
/// larger constant is a weight.
const SMALL_MAX: usize = 1 << 16;

/// Returns whether a move can read this constant.
pub fn is_small(tensor: &TensorProto) -> bool {
    let count = tensor.element_count();
    crate::external_location(tensor).is_none() && count.is_some_and(|count| count <= SMALL_MAX)
}

/// Returns whether a node moves strings in a way that this module supports.
pub fn is_move(node: &NodeProto, texts: &Texts) -> bool {
    let moves = matches!(
        node.op_type(),
        "Identity" | "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" | "Concat" | "Gather"
    );
    moves
        && node.operator_domain().is_empty()
        && node.input.iter().any(|name| texts.is_string(name))
}

/// Returns the result of a move; `None` if the node does not move strings.
pub fn compute_move<'a>(
    node: &NodeProto,
    input: &impl Fn(usize) -> Option<&'a Tensor>,
) -> Result<Option<Tensor>, NodeFault> {
    if !node.operator_domain().is_empty() {
        return Ok(None);
    }
    let first = || input(0).ok_or(NodeFault::Missing(0));
    let output = match node.op_type() {
        "Identity" => first()?.clone(),
        "Reshape" => reshape_tensor(node, first()?, &int_list(node, "shape", input(1))?)?,
        "Flatten" => {
            let tensor = first()?;
            let axis = resolve_index(node.int("axis").unwrap_or(1), tensor.dims().len() + 1)?;
            let (front, back) = tensor.dims().split_at(axis);
            tensor.to_shape([front.iter().product(), back.iter().product()])?
        }
        "Squeeze" => squeeze_axes(first()?, &int_list(node, "axes", input(1))?)?,
        "Unsqueeze" => unsqueeze_axes(first()?, &int_list(node, "axes", input(1))?)?,
        "Concat" => concat_tensors(node, input)?,
        "Gather" => gather_values(node, first()?, input(1).ok_or(NodeFault::Missing(1))?)?,
        _ => return Ok(None),
    };
    Ok(Some(output))
}

/// Returns sizes or axes from an attribute or an input.
fn int_list(node: &NodeProto, name: &str, input: Option<&Tensor>) -> Result<Vec<i64>, NodeFault> {
    match (input, node.ints(name)) {
        (Some(tensor), _) => Ok(tensor.to_vec::<i64>()?),
        (None, Some(list)) => Ok(list.to_vec()),
        (None, None) => Ok(Vec::new()),
    }
}

/// Resolves an index, which counts from the end if it is negative, to one below `count`.
fn resolve_index(index: i64, count: usize) -> Result<usize, NodeFault> {
    let signed = i64::try_from(count).unwrap_or(i64::MAX);
    let from_front = if index < 0 { index + signed } else { index };
    let resolved = usize::try_from(from_front).ok();
    let out_of_range = || NodeFault::Shape(vec![count]);
    resolved
        .filter(|&resolved| resolved < count)
        .ok_or_else(out_of_range)
}

fn reshape_tensor(node: &NodeProto, tensor: &Tensor, wanted: &[i64]) -> Result<Tensor, NodeFault> {
    let dims = tensor.dims();
    let invalid = || NodeFault::Shape(dims.to_vec());
    let zero_keeps_size = node.int("allowzero").unwrap_or(0) == 0;
    let mut new_dims = Vec::with_capacity(wanted.len());
    let mut inferred_axis = None;
    for (index, &size) in wanted.iter().enumerate() {
        let size = match size {
            -1 if inferred_axis.is_none() => {
                inferred_axis = Some(index);
                1
            }
            0 if zero_keeps_size => *dims.get(index).ok_or_else(invalid)?,
            size => usize::try_from(size).map_err(|_| invalid())?,
        };
        new_dims.push(size);
    }
    if let Some(axis) = inferred_axis {
        let other_sizes: usize = new_dims.iter().product();
        let count = tensor.shape().dims().iter().product::<usize>();
        new_dims[axis] = count / other_sizes.max(1);
    }
    Ok(tensor.to_shape(new_dims)?)
}

fn squeeze_axes(tensor: &Tensor, axes: &[i64]) -> Result<Tensor, NodeFault> {
    let dims = tensor.dims();
    let axes = axes.iter().map(|&axis| resolve_index(axis, dims.len()));
    let axes = axes.collect::<Result<Vec<usize>, NodeFault>>()?;
    let is_removed = |axis: usize, size: usize| match axes.is_empty() {
        true => size == 1,
        false => axes.contains(&axis),
    };
    let kept = dims
        .iter()
        .enumerate()
        .filter(|&(axis, &size)| !is_removed(axis, size));
    Ok(tensor.to_shape(kept.map(|(_, &size)| size).collect::<Vec<_>>())?)
}

fn unsqueeze_axes(tensor: &Tensor, axes: &[i64]) -> Result<Tensor, NodeFault> {
    let rank = tensor.dims().len() + axes.len();
    let axes = axes.iter().map(|&axis| resolve_index(axis, rank));
    let axes = axes.collect::<Result<Vec<usize>, NodeFault>>()?;
    let mut rest = tensor.dims().iter().copied();
    let size = |axis| {
        if axes.contains(&axis) {
            1
        } else {
            rest.next().unwrap_or(1)
        }
    };
    Ok(tensor.to_shape((0..rank).map(size).collect::<Vec<_>>())?)
}

fn concat_tensors<'a>(
    node: &NodeProto,
    input: &impl Fn(usize) -> Option<&'a Tensor>,
) -> Result<Tensor, NodeFault> {
    let parts = (0..node.input.len()).map(|index| input(index).ok_or(NodeFault::Missing(index)));
    let parts = parts.collect::<Result<Vec<&Tensor>, NodeFault>>()?;
    let first = parts.first().ok_or(NodeFault::Missing(0))?.dims();
    let axis = resolve_index(node.int("axis").unwrap_or(0), first.len())?;
    let mut dims = first.to_vec();
    dims[axis] = 0;
    for part in &parts {
        let fits = part.dims().len() == dims.len()
            && (0..dims.len()).all(|other| other == axis || part.dims()[other] == dims[other]);
        if !fits {
            return Err(NodeFault::Shape(part.dims().to_vec()));
        }
        dims[axis] += part.dims()[axis];
    }
    let values = parts.iter().map(|part| part.to_vec::<i64>());
    let values = values.collect::<Result<Vec<_>, _>>()?;
    let rows: usize = dims[..axis].iter().product();
    let mut elements = Vec::new();
    for row in 0..rows {
        for (part, values) in parts.iter().zip(&values) {
            let row_length: usize = part.dims()[axis..].iter().product();
            elements.extend_from_slice(&values[row * row_length..(row + 1) * row_length]);
        }
    }
    Ok(Tensor::from_vec(dims, elements)?)
}

fn gather_values(node: &NodeProto, tensor: &Tensor, indices: &Tensor) -> Result<Tensor, NodeFault> {
    let dims = tensor.dims();
    let axis = resolve_index(node.int("axis").unwrap_or(0), dims.len())?;
    let resolved = indices
        .to_vec::<i64>()?
        .into_iter()
        .map(|index| resolve_index(index, dims[axis]));
    let resolved = resolved.collect::<Result<Vec<usize>, NodeFault>>()?;
    let values = tensor.to_vec::<i64>()?;
    let rows: usize = dims[..axis].iter().product();
    let slice_length: usize = dims[axis + 1..].iter().product();
    let mut elements = Vec::new();
    for row in 0..rows {
        for index in &resolved {
            let start = (row * dims[axis] + index) * slice_length;
            elements.extend_from_slice(&values[start..start + slice_length]);
        }
    }
    let output_dims = [&dims[..axis], indices.dims(), &dims[axis + 1..]].concat();
    Ok(Tensor::from_vec(output_dims, elements)?)
}
