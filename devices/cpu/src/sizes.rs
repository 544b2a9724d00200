//! Replaces sizes that a graph computes in each run, although it need not, by constants that every
//! engine reads. Exporters write a reshape's sizes as the `Shape` of the very value to reshape:
//! such a size is a copy, which ONNX writes as zero. The CPU calls it before it compiles a graph.
//!
//! This module identifies sizes by their source, so it does not depend on their values in a run.

use std::collections::{BTreeMap, BTreeSet};

use souk_memory::{DType, Tensor};
use souk_onnx::NodeProto;
use souk_onnx::graph::{Graph, values_read};
use souk_onnx::ranks::Ranks;
use souk_onnx::schema::{Extents, OperatorSchema};

/// A size of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Size {
    Known(usize),
    /// Whatever a value has along an axis.
    Of(String, usize),
}

/// An element of a list of sizes.
#[derive(Clone, Debug)]
enum Element {
    /// As it stands, zero and minus one included.
    Stated(i64),
    Counted(Size),
}

/// Facts about the values of a graph, gathered node by node.
struct Sizes<'a> {
    graph: &'a Graph,
    ranks: Ranks,
    dims: BTreeMap<String, Vec<Size>>,
    lists: BTreeMap<String, Vec<Element>>,
}

/// Operators that only compute sizes, and are removed when no node reads their result.
const TELLS: &[&str] = &[
    "Cast",
    "Concat",
    "Gather",
    "Identity",
    "Shape",
    "Slice",
    "Squeeze",
    "Unsqueeze",
];

/// Returns the graph with constants in place of copied sizes, and without the nodes that computed
/// them.
pub(super) fn fold_copied_sizes(mut graph: Graph) -> Graph {
    let mut found = Vec::new();
    let mut sizes = Sizes::new(&graph);
    for (index, node) in graph.nodes().iter().enumerate() {
        if let Some(stated) = sizes.constant_sizes(node) {
            found.push((index, stated));
        }
        sizes.record_output(node);
    }
    if found.is_empty() {
        return graph;
    }
    for (index, stated) in found {
        let length = stated.len();
        let Ok(tensor) = Tensor::from_vec([length], stated) else {
            continue;
        };
        let node = &mut graph.model.graph.get_or_insert_default().node[index];
        let name = format!("{} (sizes)", node.output[0]);
        node.input[1].clone_from(&name);
        graph.dtypes.insert(name.clone(), DType::I64);
        graph.weights.insert(name, tensor);
    }
    without_idle(graph)
}

/// Returns the graph without nodes that compute sizes for no reader.
fn without_idle(mut graph: Graph) -> Graph {
    let mut read: BTreeSet<String> = graph.outputs.iter().map(|it| it.name.clone()).collect();
    let proto = graph.model.graph.get_or_insert_default();
    let mut kept = Vec::with_capacity(proto.node.len());
    for node in std::mem::take(&mut proto.node).into_iter().rev() {
        let is_read = node.output.iter().any(|name| read.contains(name));
        if is_read || !TELLS.contains(&node.op_type()) || !node.operator_domain().is_empty() {
            read.extend(values_read(&node).into_iter().map(str::to_owned));
            kept.push(node);
        }
    }
    kept.reverse();
    proto.node = kept;
    graph
}

impl<'a> Sizes<'a> {
    fn new(graph: &'a Graph) -> Self {
        let mut sizes = Self {
            graph,
            ranks: Ranks::from_graph(graph),
            dims: BTreeMap::new(),
            lists: BTreeMap::new(),
        };
        for port in &graph.inputs {
            let Some(dims) = &port.dims else { continue };
            let of = |axis| Size::Of(port.name.clone(), axis);
            let each = dims.iter().enumerate();
            let dims = each.map(|(axis, size)| size.map_or_else(|| of(axis), Size::Known));
            sizes.dims.insert(port.name.clone(), dims.collect());
        }
        for (name, weight) in &graph.weights {
            let dims = weight.dims().iter().copied();
            sizes
                .dims
                .insert(name.clone(), dims.map(Size::Known).collect());
            if weight.dtype() == DType::I64
                && weight.dims().len() <= 1
                && let Ok(values) = weight.to_vec::<i64>()
            {
                let list = values.into_iter().map(Element::Stated);
                sizes.lists.insert(name.clone(), list.collect());
            }
        }
        sizes
    }

    /// Returns the sizes of a reshape, if the run need not compute any of them.
    fn constant_sizes(&self, node: &NodeProto) -> Option<Vec<i64>> {
        let target = node.input_name(1)?;
        let keeps_zeros = node.int("allowzero").unwrap_or(0) != 0;
        let counts = node.op_type() == "Reshape" && !self.graph.weights.contains_key(target);
        if !counts || keeps_zeros || !node.operator_domain().is_empty() {
            return None;
        }
        let own = self.dims.get(node.input_name(0)?)?;
        let each = self.lists.get(target)?.iter().enumerate();
        let size = |(axis, element): (usize, &Element)| match element {
            Element::Stated(size) => Some(*size),
            Element::Counted(size) if own.get(axis) == Some(size) => Some(0),
            Element::Counted(Size::Known(size)) => i64::try_from(*size).ok(),
            Element::Counted(Size::Of(..)) => None,
        };
        each.map(size).collect()
    }

    /// Records the output of a node.
    fn record_output(&mut self, node: &NodeProto) {
        let Some(output) = node
            .output
            .first()
            .filter(|_| node.operator_domain().is_empty())
        else {
            return;
        };
        if let Some(list) = self.size_list(node) {
            self.lists.insert(output.clone(), list);
        }
        let unknown = |rank| {
            (0..rank)
                .map(|axis| Size::Of(output.clone(), axis))
                .collect()
        };
        let dims = self
            .output_sizes(node)
            .or_else(|| self.ranks.rank(output).map(unknown));
        if let Some(dims) = dims {
            self.dims.insert(output.clone(), dims);
        }
    }

    fn input_sizes(&self, node: &NodeProto, index: usize) -> Option<&Vec<Size>> {
        self.dims.get(node.input_name(index)?)
    }

    /// The sizes of a node's output, where they follow from those of its inputs.
    fn output_sizes(&self, node: &NodeProto) -> Option<Vec<Size>> {
        let first = self.input_sizes(node, 0)?;
        match node.op_type() {
            "MatMul" => {
                let (left, right) = (first.split_last()?.1, self.input_sizes(node, 1)?);
                let (rows, batch) = left.split_last()?;
                let (columns, others) = right.split_last()?;
                let (_, right_batch) = others.split_last()?;
                let mut dims = broadcast_sizes(batch, right_batch)?;
                dims.extend([rows.clone(), columns.clone()]);
                Some(dims)
            }
            "Transpose" => {
                let axes = node.ints("perm")?.iter();
                let axis = |&axis: &i64| first.get(usize::try_from(axis).ok()?).cloned();
                axes.map(axis).collect()
            }
            "Gather" if node.int("axis").unwrap_or(0) == 0 => {
                let places = self.input_sizes(node, 1)?.iter();
                Some(places.chain(first.get(1..)?).cloned().collect())
            }
            "Reshape" => self.reshape_output_sizes(node, first),
            operator => match OperatorSchema::for_operator(operator).extents {
                Extents::OfFirst => Some(first.clone()),
                Extents::Broadcast if node.input.len() == 2 => {
                    broadcast_sizes(first, self.input_sizes(node, 1)?)
                }
                _ => None,
            },
        }
    }

    fn reshape_output_sizes(&self, node: &NodeProto, own: &[Size]) -> Option<Vec<Size>> {
        let each = self.lists.get(node.input_name(1)?)?.iter().enumerate();
        let output = node.output.first()?;
        let keeps_zeros = node.int("allowzero").unwrap_or(0) != 0;
        let size = |(axis, element): (usize, &Element)| match element {
            Element::Counted(size) => Some(size.clone()),
            Element::Stated(-1) => Some(Size::Of(output.clone(), axis)),
            Element::Stated(0) if !keeps_zeros => own.get(axis).cloned(),
            Element::Stated(size) => usize::try_from(*size).ok().map(Size::Known),
        };
        each.map(size).collect()
    }

    /// Returns the list of sizes that a node computes, if it computes one.
    fn size_list(&self, node: &NodeProto) -> Option<Vec<Element>> {
        let given = || self.lists.get(node.input_name(0)?);
        let length = || given().map(Vec::len);
        match node.op_type() {
            "Shape" => {
                let dims = self.input_sizes(node, 0)?;
                let range = clamp_range(node.int("start"), node.int("end"), dims.len());
                let sizes = dims.get(range)?.iter().cloned();
                Some(sizes.map(Element::Counted).collect())
            }
            "Gather" if node.int("axis").unwrap_or(0) == 0 => {
                let given = given()?;
                let places = self.stated_list(node, 1)?.into_iter();
                let place = |at: i64| given.get(resolve_index(at, given.len())?).cloned();
                places.map(place).collect()
            }
            "Slice" => {
                let one = |index| self.stated_list(node, index).filter(|it| it.len() == 1);
                let steps = node
                    .input_name(4)
                    .is_none_or(|_| one(4).is_some_and(|it| it == [1]));
                let (start, end) = (one(1)?[0], one(2)?[0]);
                let range = clamp_range(Some(start), Some(end), length()?);
                steps.then(|| given()?.get(range).map(<[_]>::to_vec))?
            }
            "Concat" => {
                let lists = node.input.iter().map(|name| self.lists.get(name));
                let lists: Vec<&Vec<Element>> = lists.collect::<Option<_>>()?;
                Some(lists.into_iter().flatten().cloned().collect())
            }
            "Cast" if node.int("to") != Some(i64::from(DType::I64.onnx_code())) => None,
            // Of a number a list of one, and back.
            "Cast" | "Identity" | "Squeeze" | "Unsqueeze" => {
                (length()? <= 1 || node.op_type() != "Unsqueeze").then(|| given().cloned())?
            }
            _ => None,
        }
    }

    fn stated_list(&self, node: &NodeProto, index: usize) -> Option<Vec<i64>> {
        let list = self.lists.get(node.input_name(index)?)?.iter();
        let stated = |element: &Element| match element {
            Element::Stated(size) => Some(*size),
            Element::Counted(_) => None,
        };
        list.map(stated).collect()
    }
}

/// Sizes of two values repeated to a common shape; `None` where one can be 1 and must not.
fn broadcast_sizes(left: &[Size], right: &[Size]) -> Option<Vec<Size>> {
    let (long, short) = match left.len() < right.len() {
        true => (right, left),
        false => (left, right),
    };
    let missing = long.len() - short.len();
    let size = |(axis, own): (usize, &Size)| {
        let other = axis
            .checked_sub(missing)
            .map_or(&Size::Known(1), |at| &short[at]);
        match (own, other) {
            (own, other) if own == other => Some(own.clone()),
            (Size::Known(1), other) => Some(other.clone()),
            (own, Size::Known(1)) => Some(own.clone()),
            (Size::Known(size), Size::Of(..)) | (Size::Of(..), Size::Known(size)) => {
                Some(Size::Known(*size))
            }
            _ => None,
        }
    };
    long.iter().enumerate().map(size).collect()
}

/// Counts a place from the front of this many; a negative place counts from the end.
fn resolve_index(place: i64, length: usize) -> Option<usize> {
    let length = i64::try_from(length).ok()?;
    usize::try_from(if place < 0 { place + length } else { place }).ok()
}

/// Returns a range of a list, with its ends cut to the list.
fn clamp_range(start: Option<i64>, end: Option<i64>, length: usize) -> std::ops::Range<usize> {
    let cut = |place: Option<i64>, default| match place {
        None => default,
        Some(place) => resolve_index(place, length).unwrap_or(0).min(length),
    };
    let start = cut(start, 0);
    start..cut(end, length).max(start)
}

#[cfg(test)]
mod tests;
