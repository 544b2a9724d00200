//! Builds the ONNX models of a segment's parts, one for each device that shares the segment: an
//! operator that devices split, with the operators that follow it part by part. A part computes
//! some rows, or some output channels with their part of the weights.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use souk_memory::ContentId;
use souk_onnx::{
    DataLocation, Dimension, GraphProto, StringStringEntryProto, TensorProto, ValueInfoProto,
    decode_model, encode_model, type_proto,
};
use thiserror::Error;

use super::{Cut, Segment};
use crate::graph::cut::Subgraph;
use crate::graph::{CONTENT_SCHEME, Graph, Node, ValueId, Weight};

/// The reason why a segment's part has no model.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SplitError {
    /// The values of a weight are missing.
    #[error("the values of weight {name:?} are missing")]
    WeightMissing {
        /// Name of the weight.
        name: String,
    },
}

/// Returns the model of any rows of a segment, which must be cut by rows, from the model of the
/// whole. It leaves the number of rows open, so that other shares can use the same model.
#[must_use]
pub fn rows_model(graph: &Graph, segment: &Segment, whole: &Subgraph) -> Bytes {
    let mut model = decode_model(whole.model.clone()).expect("a cut's model is one");
    let Cut::Rows { lead } = segment.cut else {
        unreachable!("only rows share a model");
    };
    if let Some(proto) = &mut model.graph {
        let open = |dims: &[usize]| {
            let mut open = to_dimensions(&segment.part_dims(dims, 1));
            open[lead - 1] = Dimension::default();
            open
        };
        set_dims(&mut proto.input, &open(&value_dims(graph, segment.input)));
        set_dims(&mut proto.output, &open(&value_dims(graph, segment.output)));
    }
    encode_model(&model)
}

/// Returns the model of some output channels of a segment, with its part of the weights.
///
/// # Errors
/// [`SplitError::WeightMissing`] if `values` does not know a weight.
pub fn channels_model(
    graph: &Graph,
    segment: &Segment,
    whole: &Subgraph,
    channels: Range<usize>,
    values: &dyn Fn(&Weight) -> Option<Bytes>,
) -> Result<(Bytes, BTreeMap<ContentId, Bytes>), SplitError> {
    let mut model = decode_model(whole.model.clone()).expect("a cut's model is one");
    let mut weights = BTreeMap::new();
    if let Some(proto) = &mut model.graph {
        let output = segment.part_dims(&value_dims(graph, segment.output), channels.len());
        set_dims(&mut proto.output, &to_dimensions(&output));
        for (place, &id) in segment.nodes.iter().enumerate() {
            let node = graph.node(id);
            for (input, &value) in node.inputs.iter().enumerate() {
                let Some((value, axis)) =
                    value.zip(weight_axis(graph, segment, node, place, input))
                else {
                    continue;
                };
                let weight = graph.value(value).weight().expect("an axis is a weight's");
                let sliced = slice_weight(weight, axis, &channels, values)?;
                replace_weight(proto, sliced.0, sliced.1, &mut weights);
            }
        }
        add_uncut_weights(proto, values, graph, &mut weights)?;
    }
    Ok((encode_model(&model), weights))
}

fn value_dims(graph: &Graph, value: ValueId) -> Vec<usize> {
    let dims = graph.value(value).dims().expect("a segment's are known");
    dims.into_iter().map(|extent| extent as usize).collect()
}

fn to_dimensions(dims: &[usize]) -> Vec<Dimension> {
    let fixed = |&extent: &usize| Dimension::new_fixed(extent as i64);
    dims.iter().map(fixed).collect()
}

/// Sets the extents of the only input or output.
fn set_dims(infos: &mut [ValueInfoProto], dims: &[Dimension]) {
    for info in infos {
        let elem = info
            .tensor_type()
            .and_then(|tensor: &type_proto::Tensor| tensor.elem_type);
        let name = info.name.clone().unwrap_or_default();
        *info = ValueInfoProto::new_tensor(name, elem.unwrap_or(0), Some(dims.to_vec()));
    }
}

/// Returns the axis of a node's input that counts output channels, if the input is a weight with
/// such an axis.
fn weight_axis(
    graph: &Graph,
    segment: &Segment,
    node: &Node,
    place: usize,
    input: usize,
) -> Option<usize> {
    let value = node.inputs[input]?;
    graph.value(value).weight()?;
    let extents = value_dims(graph, value);
    let rank = value_dims(graph, segment.output).len();
    // A broadcast weight such as a bias: its last extents are the output's.
    let broadcast = (extents.len() + segment.axis).checked_sub(rank);
    let broadcast = broadcast.filter(|&axis| extents.get(axis) == Some(&segment.units));
    match (place, node.proto.op_type(), input) {
        (0, "Conv", _) => Some(0),
        (0, "Gemm", 1) if node.proto.int("transB").unwrap_or(0) != 0 => Some(0),
        (0, "Gemm" | "MatMul", 1) => Some(1),
        _ => broadcast,
    }
}

/// Returns a range of a weight along an axis, without a copy for the first axis.
fn slice_weight(
    weight: &Weight,
    axis: usize,
    range: &Range<usize>,
    values: &dyn Fn(&Weight) -> Option<Bytes>,
) -> Result<(TensorProto, Bytes), SplitError> {
    let mut proto = weight.proto.clone();
    let bytes = values(weight).ok_or_else(|| SplitError::WeightMissing {
        name: proto.name().to_owned(),
    })?;
    let extents: Vec<usize> = proto.dims.iter().map(|&extent| extent as usize).collect();
    let outer: usize = extents[..axis].iter().product();
    let row = bytes.len() / outer.max(1);
    let unit = row / extents[axis].max(1);
    let of_row = |start: usize| start + unit * range.start..start + unit * range.end;
    let taken = match outer {
        1 => bytes.slice(of_row(0)),
        _ => {
            let mut taken = Vec::with_capacity(outer * unit * range.len());
            (0..outer).for_each(|at| taken.extend_from_slice(&bytes[of_row(at * row)]));
            Bytes::from(taken)
        }
    };
    proto.dims[axis] = range.len() as i64;
    Ok((proto, taken))
}

/// Replaces a whole weight by its part, inside the model if the part is small.
fn replace_weight(
    proto: &mut GraphProto,
    mut tensor: TensorProto,
    bytes: Bytes,
    weights: &mut BTreeMap<ContentId, Bytes>,
) {
    tensor.float_data.clear();
    tensor.raw_data = None;
    tensor.external_data.clear();
    if (bytes.len() as u64) < Weight::EXTERNAL_BYTES_MIN {
        tensor.data_location = Some(DataLocation::Default as i32);
        tensor.raw_data = Some(bytes);
    } else {
        let id = ContentId::for_content(&bytes);
        tensor.data_location = Some(DataLocation::External as i32);
        tensor.external_data = vec![
            StringStringEntryProto::new("location", format!("{CONTENT_SCHEME}{id}")),
            StringStringEntryProto::new("length", bytes.len().to_string()),
        ];
        weights.insert(id, bytes);
    }
    let name = tensor.name().to_owned();
    proto.initializer.retain(|held| held.name() != name);
    proto.initializer.push(tensor);
}

/// Adds the uncut weights, which every part needs.
fn add_uncut_weights(
    proto: &GraphProto,
    values: &dyn Fn(&Weight) -> Option<Bytes>,
    graph: &Graph,
    weights: &mut BTreeMap<ContentId, Bytes>,
) -> Result<(), SplitError> {
    for held in &proto.initializer {
        let weight = graph.find_value(held.name()).map(|id| graph.value(id));
        let Some(weight) = weight.and_then(|value| value.weight()) else {
            continue;
        };
        let Some(id) = weight.id.filter(|_| held.dims == weight.proto.dims) else {
            continue;
        };
        let bytes = values(weight).ok_or_else(|| SplitError::WeightMissing {
            name: held.name().to_owned(),
        })?;
        weights.insert(id, bytes);
    }
    Ok(())
}
