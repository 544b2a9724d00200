//! Computes the operators that only move texts, such as `Reshape`, `Concat` and `Gather`, on their
//! way to operators that compute with texts. It is part of the preparation, which runs on the
//! buyer's machine before the rest of the model.

use souk_memory::Tensor;

use super::super::text_numbers::Texts;
use super::NodeFault;
use crate::{NodeProto, TensorProto};

/// A constant that says where texts go can have at most this many elements; a larger one must be a
/// weight.
const SMALL_MAX: usize = 1 << 16;

/// Returns whether a move can read this constant.
pub fn is_small(tensor: &TensorProto) -> bool {
    let count = tensor.element_count();
    crate::external_location(tensor).is_none() && count.is_some_and(|count| count <= SMALL_MAX)
}

/// Returns whether a node moves texts in a way that this module supports.
pub fn is_move(node: &NodeProto, texts: &Texts) -> bool {
    let moves = matches!(
        node.op_type(),
        "Identity" | "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" | "Concat" | "Gather"
    );
    moves && node.operator_domain().is_empty() && node.input.iter().any(|name| texts.is_text(name))
}

/// Returns the result of a move; `None` if the node does not move texts.
pub fn compute_move<'a>(
    node: &NodeProto,
    input: &impl Fn(usize) -> Option<&'a Tensor>,
) -> Result<Option<Tensor>, NodeFault> {
    if !node.operator_domain().is_empty() {
        return Ok(None);
    }
    let first = || input(0).ok_or(NodeFault::Missing(0));
    let made = match node.op_type() {
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
    Ok(Some(made))
}

/// Returns sizes or axes from an attribute or an input.
fn int_list(node: &NodeProto, name: &str, input: Option<&Tensor>) -> Result<Vec<i64>, NodeFault> {
    match (input, node.ints(name)) {
        (Some(tensor), _) => Ok(tensor.to_vec::<i64>()?),
        (None, Some(list)) => Ok(list.to_vec()),
        (None, None) => Ok(Vec::new()),
    }
}

/// Returns an index that can be counted from the end; it must be below `count`.
fn resolve_index(at: i64, count: usize) -> Result<usize, NodeFault> {
    let signed = i64::try_from(count).unwrap_or(i64::MAX);
    let found = usize::try_from(if at < 0 { at + signed } else { at }).ok();
    let wrong = || NodeFault::Shape(vec![count]);
    found.filter(|&found| found < count).ok_or_else(wrong)
}

fn reshape_tensor(node: &NodeProto, tensor: &Tensor, wanted: &[i64]) -> Result<Tensor, NodeFault> {
    let dims = tensor.dims();
    let wrong = || NodeFault::Shape(dims.to_vec());
    let keeps = node.int("allowzero").unwrap_or(0) == 0;
    let mut made = Vec::with_capacity(wanted.len());
    let mut open = None;
    for (index, &size) in wanted.iter().enumerate() {
        let size = match size {
            -1 if open.is_none() => {
                open = Some(index);
                1
            }
            0 if keeps => *dims.get(index).ok_or_else(wrong)?,
            size => usize::try_from(size).map_err(|_| wrong())?,
        };
        made.push(size);
    }
    if let Some(open) = open {
        let fixed: usize = made.iter().product();
        made[open] = tensor.shape().dims().iter().product::<usize>() / fixed.max(1);
    }
    Ok(tensor.to_shape(made)?)
}

fn squeeze_axes(tensor: &Tensor, axes: &[i64]) -> Result<Tensor, NodeFault> {
    let dims = tensor.dims();
    let axes = axes.iter().map(|&axis| resolve_index(axis, dims.len()));
    let axes = axes.collect::<Result<Vec<usize>, NodeFault>>()?;
    let goes = |axis: usize, size: usize| match axes.is_empty() {
        true => size == 1,
        false => axes.contains(&axis),
    };
    let kept = dims
        .iter()
        .enumerate()
        .filter(|&(axis, &size)| !goes(axis, size));
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
            && (0..dims.len()).all(|at| at == axis || part.dims()[at] == dims[at]);
        if !fits {
            return Err(NodeFault::Shape(part.dims().to_vec()));
        }
        dims[axis] += part.dims()[axis];
    }
    let values = parts.iter().map(|part| part.to_vec::<i64>());
    let values = values.collect::<Result<Vec<_>, _>>()?;
    let before: usize = dims[..axis].iter().product();
    let mut made = Vec::new();
    for row in 0..before {
        for (part, values) in parts.iter().zip(&values) {
            let run: usize = part.dims()[axis..].iter().product();
            made.extend_from_slice(&values[row * run..(row + 1) * run]);
        }
    }
    Ok(Tensor::from_vec(dims, made)?)
}

fn gather_values(node: &NodeProto, tensor: &Tensor, indices: &Tensor) -> Result<Tensor, NodeFault> {
    let dims = tensor.dims();
    let axis = resolve_index(node.int("axis").unwrap_or(0), dims.len())?;
    let found = indices
        .to_vec::<i64>()?
        .into_iter()
        .map(|at| resolve_index(at, dims[axis]));
    let found = found.collect::<Result<Vec<usize>, NodeFault>>()?;
    let values = tensor.to_vec::<i64>()?;
    let before: usize = dims[..axis].iter().product();
    let run: usize = dims[axis + 1..].iter().product();
    let mut made = Vec::new();
    for row in 0..before {
        for at in &found {
            let start = (row * dims[axis] + at) * run;
            made.extend_from_slice(&values[start..start + run]);
        }
    }
    let sizes = [&dims[..axis], indices.dims(), &dims[axis + 1..]].concat();
    Ok(Tensor::from_vec(sizes, made)?)
}
