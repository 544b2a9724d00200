//! Finds the weights that products and gathers can read in their stored form, and sends them to the
//! device in that form. A GPU program does so when it is compiled.
//!
//! A decoder's matrices are halves or blocks of integers with scales. `DequantizeLinear` or `Cast`
//! turns them into floats, and `Transpose` turns them before a product reads them. If only products
//! and gathers of rows read the result, none of these nodes runs: the readers widen the elements,
//! and a matrix stays as small in the device's memory as in the model.

use std::collections::BTreeMap;

use souk_memory::{DType, Tensor};
use souk_onnx::NodeProto;
use souk_onnx::graph::Graph;
use souk_reference::call::KernelError;

use crate::context::Context;
use crate::error::GpuError;
use crate::numbers::halves::is_half;
use crate::numbers::integers::packed_bits;
use crate::program::fusion::FusionRole;
use crate::program::table::Side;
use crate::recording::{Matrix, Scales, Stream, Value, upload_tensor};

/// Where a matrix lies among the weights.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Source {
    pub values: String,
    /// Of integers their scales, and how many share one.
    pub scales: Option<(String, usize)>,
    /// Whether its rows are columns of the resulting matrix.
    is_turned: bool,
}

/// Returns, for each value that need not be made, the weights that it would come from.
pub(crate) fn plan_matrices(graph: &Graph, sides: &[Side]) -> BTreeMap<String, Source> {
    let mut found = BTreeMap::new();
    for (node, side) in graph.nodes().iter().zip(sides) {
        let made = node.output.first().filter(|_| *side == Side::Device);
        let made = made.filter(|name| graph.dtypes.get(*name) == Some(&DType::F32));
        if let Some((made, source)) = made.zip(source(graph, node, &found)) {
            found.insert(made.clone(), source);
        }
    }
    for port in &graph.outputs {
        found.remove(&port.name);
    }
    // A reader comes after the producer: backwards, this loop judges each reader first.
    let mut readers = graph.nodes().iter().zip(sides).collect::<Vec<_>>();
    readers.reverse();
    for (node, side) in readers {
        for (index, name) in node.input.iter().enumerate() {
            let takes = |source: &Source| {
                let is_made = node.output.first().is_some_and(|it| found.contains_key(it));
                *side == Side::Device
                    && can_read_matrix(graph, node, index, source.is_turned, is_made)
            };
            if found.get(name).is_some_and(|source| !takes(source)) {
                found.remove(name);
            }
        }
    }
    found
}

/// Returns the source of the matrix that a node computes, if that is a weight or computed from one.
fn source(graph: &Graph, node: &NodeProto, found: &BTreeMap<String, Source>) -> Option<Source> {
    if !node.operator_domain().is_empty() {
        return None;
    }
    let from = node.input_name(0)?;
    let weight = graph.weights.get(from);
    let plain = |scales| Source {
        values: from.to_owned(),
        scales,
        is_turned: false,
    };
    match node.op_type() {
        "Cast" if is_half(weight?.dtype()) && weight?.dims().len() == 2 => Some(plain(None)),
        "DequantizeLinear" => block_scales(graph, node, weight?).map(|scales| plain(Some(scales))),
        "Transpose" if is_turn(node) => {
            let is_plain =
                |weight: &&Tensor| weight.dtype() == DType::F32 && weight.dims().len() == 2;
            let own = weight.filter(is_plain).map(|_| plain(None));
            let source = own.or_else(|| found.get(from).cloned())?;
            (!source.is_turned).then_some(Source {
                is_turned: true,
                ..source
            })
        }
        _ => None,
    }
}

fn is_turn(node: &NodeProto) -> bool {
    node.ints("perm").is_none_or(|order| order == [1, 0])
}

/// The scales of blocks along the rows of a matrix of integers, and how many share one.
fn block_scales(graph: &Graph, node: &NodeProto, values: &Tensor) -> Option<(String, usize)> {
    let &[rows, depth] = values.dims() else {
        return None;
    };
    let name = node.input_name(1)?;
    let block = usize::try_from(node.int("block_size")?)
        .ok()
        .filter(|it| *it > 0)?;
    let scales = graph.weights.get(name)?;
    let is_float = scales.dtype() == DType::F32 || is_half(scales.dtype());
    let fits = packed_bits(values.dtype()).is_some()
        && node.input_name(2).is_none()
        && matches!(node.int("axis").unwrap_or(1), 1 | -1)
        && scales.dims() == [rows, depth.div_ceil(block)];
    (is_float && fits).then(|| (name.to_owned(), block))
}

/// Whether a node can read a stored matrix as this input. `is_made` says that its own result would
/// also stay unmade.
fn can_read_matrix(
    graph: &Graph,
    node: &NodeProto,
    index: usize,
    is_turned: bool,
    is_made: bool,
) -> bool {
    let is_float = |name: Option<&str>| {
        let dtype = name.and_then(|name| graph.dtypes.get(name));
        dtype == Some(&DType::F32)
    };
    let made = node.output.first().map(String::as_str);
    match (node.op_type(), index) {
        ("MatMul", 1) => is_turned && is_float(node.input_name(0)) && is_float(made),
        ("Gather", 0) => !is_turned && node.int("axis").unwrap_or(0) == 0,
        ("Transpose", 0) => is_made,
        _ => false,
    }
}

/// Skips nodes whose matrix no reader needs.
pub(crate) fn skip_unread(
    graph: &Graph,
    sources: &BTreeMap<String, Source>,
    places: &mut [FusionRole],
) {
    for (node, place) in graph.nodes().iter().zip(places) {
        if node
            .output
            .first()
            .is_some_and(|it| sources.contains_key(it))
        {
            *place = FusionRole::Taken;
        }
    }
}

/// Sends the matrices to the device, and returns them by the values that stay unmade; an error
/// names the weight. Widens scales once.
pub(crate) fn send_matrices(
    context: &Context,
    graph: &Graph,
    sources: &BTreeMap<String, Source>,
    weights: &BTreeMap<String, Value>,
) -> Result<BTreeMap<String, Matrix>, (String, GpuError)> {
    let stream = Stream::new(context);
    let mut wide = BTreeMap::new();
    let mut matrices = BTreeMap::new();
    for (made, source) in sources {
        let failed = |error| (source.values.clone(), error);
        let values = weights.get(&source.values);
        let values = values.ok_or(failed(KernelError::Missing(0).into()))?;
        let values = values.device_array(&stream).map_err(failed)?.clone();
        let mut scales = None;
        if let Some((name, block)) = &source.scales {
            if !wide.contains_key(name) {
                let given =
                    widen_tensor(&graph.weights[name]).map_err(|error| failed(error.into()))?;
                wide.insert(name, upload_tensor(&stream, &given).map_err(failed)?);
            }
            let (array, block) = (wide[name].clone(), *block);
            scales = Some(Scales { array, block });
        }
        matrices.insert(made.clone(), Matrix { values, scales });
    }
    Ok(matrices)
}

/// Floats of 32 bits.
fn widen_tensor(tensor: &Tensor) -> Result<Tensor, KernelError> {
    let values = tensor.to_f64s()?;
    let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
    Ok(Tensor::from_vec(tensor.dims().to_vec(), values)?)
}
