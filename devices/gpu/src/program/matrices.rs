//! Finds the weights that products and gathers can read in their stored form, and uploads them in
//! that form. A GPU program does so when it is compiled.
//!
//! A decoder stores its matrices as 16-bit floats or as blocks of integers with scales.
//! `DequantizeLinear` or `Cast` converts them to floats, and `Transpose` transposes them before a
//! product reads them. If only products and gathers of rows read the result, none of these nodes
//! runs: the readers convert the elements, and a matrix stays as small in the device's memory as in
//! the model.

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

/// The weights from which a matrix comes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Source {
    /// Name of the weight with the elements.
    pub values: String,
    /// For integers, the name of the weight with their scales, and how many integers share one.
    pub scales: Option<(String, usize)>,
    /// Whether the matrix is the transpose of the weight.
    is_transposed: bool,
}

/// Returns, for each value that need not be computed, the weights from which it would come.
pub(crate) fn plan_matrices(graph: &Graph, sides: &[Side]) -> BTreeMap<String, Source> {
    let mut found = BTreeMap::new();
    for (node, side) in graph.nodes().iter().zip(sides) {
        let output = node.output.first().filter(|_| *side == Side::Device);
        let output = output.filter(|name| graph.dtypes.get(*name) == Some(&DType::F32));
        if let Some((output, source)) = output.zip(find_source(graph, node, &found)) {
            found.insert(output.clone(), source);
        }
    }
    for port in &graph.outputs {
        found.remove(&port.name);
    }
    // A reader comes after its producer. In reverse order, this loop judges each reader first.
    let mut readers = graph.nodes().iter().zip(sides).collect::<Vec<_>>();
    readers.reverse();
    for (node, side) in readers {
        for (index, name) in node.input.iter().enumerate() {
            let can_read = |source: &Source| {
                let is_replaced = node.output.first().is_some_and(|it| found.contains_key(it));
                *side == Side::Device
                    && can_read_matrix(graph, node, index, source.is_transposed, is_replaced)
            };
            if found.get(name).is_some_and(|source| !can_read(source)) {
                found.remove(name);
            }
        }
    }
    found
}

/// Returns the source of the matrix that a node computes, if that is a weight or computed from one.
fn find_source(
    graph: &Graph,
    node: &NodeProto,
    found: &BTreeMap<String, Source>,
) -> Option<Source> {
    if !node.operator_domain().is_empty() {
        return None;
    }
    let from = node.input_name(0)?;
    let weight = graph.weights.get(from);
    let plain = |scales| Source {
        values: from.to_owned(),
        scales,
        is_transposed: false,
    };
    match node.op_type() {
        "Cast" if is_half(weight?.dtype()) && weight?.dims().len() == 2 => Some(plain(None)),
        "DequantizeLinear" => block_scales(graph, node, weight?).map(|scales| plain(Some(scales))),
        "Transpose" if is_transposition(node) => {
            let is_plain =
                |weight: &&Tensor| weight.dtype() == DType::F32 && weight.dims().len() == 2;
            let own = weight.filter(is_plain).map(|_| plain(None));
            let source = own.or_else(|| found.get(from).cloned())?;
            (!source.is_transposed).then_some(Source {
                is_transposed: true,
                ..source
            })
        }
        _ => None,
    }
}

fn is_transposition(node: &NodeProto) -> bool {
    node.ints("perm").is_none_or(|order| order == [1, 0])
}

/// Returns the name of the scales of blocks along the rows of a matrix of integers, and how many
/// integers share one.
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

/// Returns whether a node can read a stored matrix as this input. `is_replaced` says that the
/// readers of its own output can read a stored matrix, too.
fn can_read_matrix(
    graph: &Graph,
    node: &NodeProto,
    index: usize,
    is_transposed: bool,
    is_replaced: bool,
) -> bool {
    let is_float = |name: Option<&str>| {
        let dtype = name.and_then(|name| graph.dtypes.get(name));
        dtype == Some(&DType::F32)
    };
    let output = node.output.first().map(String::as_str);
    match (node.op_type(), index) {
        ("MatMul", 1) => is_transposed && is_float(node.input_name(0)) && is_float(output),
        ("Gather", 0) => !is_transposed && node.int("axis").unwrap_or(0) == 0,
        ("Transpose", 0) => is_replaced,
        _ => false,
    }
}

/// Skips the nodes that would compute a value of `sources`, because its readers read the stored
/// weight instead.
pub(crate) fn skip_unread(
    graph: &Graph,
    sources: &BTreeMap<String, Source>,
    roles: &mut [FusionRole],
) {
    for (node, role) in graph.nodes().iter().zip(roles) {
        let output = node.output.first();
        if output.is_some_and(|name| sources.contains_key(name)) {
            *role = FusionRole::Absorbed;
        }
    }
}

/// Uploads the matrices, and returns them by the names of the values that they replace. Widens
/// scales once.
///
/// # Errors
/// The name of the weight that could not be uploaded, and the reason.
pub(crate) fn upload_matrices(
    context: &Context,
    graph: &Graph,
    sources: &BTreeMap<String, Source>,
    weights: &BTreeMap<String, Value>,
) -> Result<BTreeMap<String, Matrix>, (String, GpuError)> {
    let stream = Stream::new(context);
    let mut wide = BTreeMap::new();
    let mut matrices = BTreeMap::new();
    for (replaced, source) in sources {
        let failed = |error| (source.values.clone(), error);
        let values = weights.get(&source.values);
        let values = values.ok_or_else(|| failed(GpuError::NoValue(source.values.clone())))?;
        let values = values.device_array(&stream).map_err(failed)?.clone();
        let mut scales = None;
        if let Some((name, block)) = &source.scales {
            if !wide.contains_key(name) {
                let widened = widen_tensor(&graph.weights[name]);
                let widened = widened.map_err(|error| failed(error.into()))?;
                wide.insert(name, upload_tensor(&stream, &widened).map_err(failed)?);
            }
            let (array, block) = (wide[name].clone(), *block);
            scales = Some(Scales { array, block });
        }
        matrices.insert(replaced.clone(), Matrix { values, scales });
    }
    Ok(matrices)
}

/// Widens a tensor to 32-bit floats.
fn widen_tensor(tensor: &Tensor) -> Result<Tensor, KernelError> {
    let values = tensor.to_f64s()?;
    let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
    Ok(Tensor::from_vec(tensor.dims().to_vec(), values)?)
}
