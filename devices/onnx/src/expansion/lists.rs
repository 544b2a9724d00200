//! Replaces lists of tensors (ONNX sequences) whose length is known with the tensors that they
//! hold.
//!
//! When PyTorch splits a tensor or scikit-learn stacks several, the list has a known length, so no
//! node needs to handle lists. The nodes that create a list remain for those that read it as a
//! list: a loop that carries it, or a condition that returns it. If nothing reads it, a later pass
//! will remove them with all other unused nodes.

use std::rc::Rc;

use super::builder::ExpansionBuilder;
use super::facts::{Facts, List};
use super::{Columns, ExpansionError};
use crate::{GraphProto, NodeProto, ValueInfoProto, type_proto};

/// A list can have at most this many tensors; a longer one remains a list when the model runs.
const LENGTH_MAX: usize = 1024;

/// Expands a node that reads lists; returns `None` if their tensors are not known.
pub(super) fn expand_node(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    match body.call().op_type() {
        "SequenceAt" => {
            let list = body.input_list(0)?;
            let at = list_index(body, 1, list.len(), list.len())?;
            body.set_output(0, list.get(at)?);
        }
        "SequenceLength" => {
            let length = body.input_list(0)?.len();
            let length = body.add_int(i64::try_from(length).ok()?);
            body.set_output(0, &length);
        }
        "ConcatFromSequence" => concat_sequence(body)?,
        _ => return None,
    }
    Some(())
}

/// Returns the list that a node creates, if it is known; adds the nodes that its tensors need to
/// `body`.
pub(super) fn create_list(body: &mut ExpansionBuilder<'_>) -> Option<List> {
    let list: List = match body.call().op_type() {
        _ if !body.call().operator_domain().is_empty() => return None,
        "SequenceEmpty" => Rc::new([]),
        "SequenceConstruct" => {
            let names = body.call().input.iter();
            body.reserve_list_tensors(names.len())?;
            names.cloned().collect()
        }
        "SequenceInsert" => {
            let mut names = body.input_list(0)?.to_vec();
            let at = match body.input_name(2) {
                Some(_) => list_index(body, 2, names.len(), names.len() + 1)?,
                None => names.len(),
            };
            body.reserve_list_tensors(names.len() + 1)?;
            names.insert(at, body.input_name(1)?.to_owned());
            names.into()
        }
        "SequenceErase" => {
            let mut names = body.input_list(0)?.to_vec();
            let at = match body.input_name(1) {
                Some(_) => list_index(body, 1, names.len(), names.len())?,
                None => names.len().checked_sub(1)?,
            };
            body.reserve_list_tensors(names.len())?;
            names.remove(at);
            names.into()
        }
        "SplitToSequence" => split_sequence(body)?,
        "Identity" => body.input_list(0)?,
        _ => return None,
    };
    (list.len() <= LENGTH_MAX).then_some(list)
}

/// Returns the index that an input states, counted from either end of a list of `length`, if it is
/// below `end`.
fn list_index(
    body: &ExpansionBuilder<'_>,
    input: usize,
    length: usize,
    end: usize,
) -> Option<usize> {
    let &[stated] = body.constant_ints(input)? else {
        return None;
    };
    let length = i64::try_from(length).ok()?;
    let place = if stated < 0 { stated + length } else { stated };
    usize::try_from(place).ok().filter(|place| *place < end)
}

fn split_sequence(body: &mut ExpansionBuilder<'_>) -> Option<List> {
    let source = body.input_name(0)?;
    let axis = body.call().int("axis").unwrap_or(0);
    let extent = || {
        let dims = body.open_dims(0)?;
        let rank = i64::try_from(dims.len()).ok()?;
        let axis = if axis < 0 { axis + rank } else { axis };
        *dims.get(usize::try_from(axis).ok()?)?
    };
    let is_stated = body.input_name(1).is_some();
    let sizes = match (is_stated, body.constant_ints(1)) {
        (true, Some(sizes)) if body.rank(body.input_name(1)?) == Some(1) => sizes.to_vec(),
        (true, Some(&[size])) => piece_sizes(extent()?, size)?,
        (true, _) => return None,
        (false, _) => piece_sizes(extent()?, 1)?,
    };
    let keeps = is_stated || body.call().int("keepdims").unwrap_or(1) != 0;
    if sizes.is_empty() || sizes.len() > LENGTH_MAX {
        return None;
    }
    body.reserve_list_tensors(sizes.len())?;
    let parts = body.split_along(source, &sizes, axis);
    let parts = parts.into_iter();
    Some(match keeps {
        true => parts.collect(),
        false => parts.map(|part| body.add_squeeze(&part, axis)).collect(),
    })
}

/// Divides an extent into pieces of a size; the last can be smaller.
fn piece_sizes(extent: i64, size: i64) -> Option<Vec<i64>> {
    if size <= 0 || extent < 0 || extent / size > LENGTH_MAX as i64 {
        return None;
    }
    let whole = std::iter::repeat_n(size, usize::try_from(extent / size).ok()?);
    let rest = Some(extent % size).filter(|rest| *rest > 0);
    Some(whole.chain(rest).collect())
}

fn concat_sequence(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let list = body.input_list(0).filter(|list| !list.is_empty())?;
    let axis = body.call().int("axis")?;
    body.reserve_list_tensors(list.len())?;
    let parts: Vec<String> = match body.call().int("new_axis").unwrap_or(0) {
        0 => list.to_vec(),
        _ => list
            .iter()
            .map(|part| body.add_unsqueeze(part, axis))
            .collect(),
    };
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let joined = body.add(NodeProto::for_operator("Concat", &parts, "").with("axis", axis));
    body.set_output(0, &joined);
    Some(())
}

/// Replaces each output that is a list with an output per tensor: `name.0`, `name.1`, ...
///
/// # Errors
/// [`ExpansionError::List`] if only a run determines the length of one.
pub(super) fn give_outputs(
    graph: &mut GraphProto,
    facts: &Facts,
    columns: &Columns,
) -> Result<(), ExpansionError> {
    let mut outputs = Vec::with_capacity(graph.output.len());
    for output in std::mem::take(&mut graph.output) {
        let Some(code) =
            list_element_type(&output).filter(|_| !columns.contains_key(output.name()))
        else {
            outputs.push(output);
            continue;
        };
        let unknown = || ExpansionError::List {
            output: output.name().to_owned(),
        };
        let list = facts.known_list(output.name()).ok_or_else(unknown)?;
        for (place, value) in list.iter().enumerate() {
            let name = format!("{}.{place}", output.name());
            graph
                .node
                .push(NodeProto::for_operator("Identity", &[value], &name));
            outputs.push(ValueInfoProto::new_tensor(name, code, None));
        }
    }
    graph.output = outputs;
    Ok(())
}

/// Returns the element type of the tensors in a value that is declared as a list.
fn list_element_type(value: &ValueInfoProto) -> Option<i32> {
    let type_proto::Value::SequenceType(list) = value.r#type.as_ref()?.value.as_ref()? else {
        return None;
    };
    let element = list.elem_type.as_ref().and_then(|it| it.value.as_ref());
    match element {
        Some(type_proto::Value::TensorType(tensor)) => Some(tensor.elem_type()),
        _ => Some(0),
    }
}
