//! Records the known facts about a graph's values while the expansion rewrites its nodes in order:
//! rank, type, sizes, the integers of small constants, and the tensors of lists (ONNX sequences). A
//! rewrite reads them through its builder and leaves a node as it is if a fact that it needs is
//! unknown.
//!
//! Texts are strings that the expansion has replaced by ids; this module also refuses nodes that
//! would compute with them.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use souk_memory::{DType, Tensor};

use super::string_table::Texts;
use super::{ExpansionError, string_table, text_error};
use crate::ranks::Ranks;
use crate::schema::{Extents, OperatorSchema};
use crate::{
    DataType, Dimension, DimensionValue, GraphProto, NodeProto, TensorProto, ValueInfoProto,
    constant_value, external_location, tensor_from_proto, types,
};

const INT32: i32 = DataType::Int32 as i32;
const INT64: i32 = DataType::Int64 as i32;

/// Standard operators that can read texts (strings, now ids): they only move them, compare them for
/// equality, or read their sizes.
const TEXT_OPERATORS: &[&str] = &[
    "Compress",
    "Concat",
    "Constant",
    "Equal",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "Reshape",
    "Shape",
    "Size",
    "Slice",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
    "Where",
];

/// The names of the tensors in a list, in order.
pub(super) type List = Rc<[String]>;

/// The sizes of a tensor along its axes, as far as known.
type Sizes = Vec<Option<i64>>;

/// The facts about a graph's values.
pub(super) struct Facts {
    /// The version of the standard operator set.
    pub opset: i64,
    ranks: Ranks,
    types: BTreeMap<String, DType>,
    /// Constants that store their values as bytes, in the model or in an external file. A rewrite
    /// can reinterpret these bytes as another type or shape.
    constants: BTreeMap<String, TensorProto>,
    /// The integers of constants of at most [`INTS_MAX`] elements.
    ints: BTreeMap<String, Vec<i64>>,
    /// Sizes of values, as far as known.
    dims: BTreeMap<String, Sizes>,
    /// The tensors of each list.
    lists: BTreeMap<String, List>,
    /// How many more list tensors the expansion can follow; the facts of nested graphs share this
    /// number.
    listed_left: Rc<Cell<usize>>,
}

/// The facts hold the integers of a constant only if it has at most this many: constants that state
/// indices or sizes are small.
const INTS_MAX: usize = 1024;
/// The expansion can follow at most this many list tensors. It counts a tensor each time that a
/// node creates a list with it, or concatenates a list that contains it.
const LISTED_MAX: usize = 1 << 16;

impl Facts {
    /// Creates an empty record for this version of the standard operator set.
    pub fn new(opset: i64) -> Self {
        Self {
            opset,
            ranks: Ranks::default(),
            types: BTreeMap::new(),
            constants: BTreeMap::new(),
            ints: BTreeMap::new(),
            dims: BTreeMap::new(),
            lists: BTreeMap::new(),
            listed_left: Rc::new(Cell::new(LISTED_MAX)),
        }
    }

    /// Returns the facts for a nested graph: the outer facts that it reads, its declarations and
    /// its initialisers.
    pub fn nested_facts(&self, graph: &GraphProto) -> Self {
        let mut known = self.seen_by(graph);
        known.ranks.record_declarations(graph);
        let declared = graph.input.iter().chain(&graph.value_info);
        for value in declared.chain(&graph.output) {
            let Some(tensor) = value.tensor_type() else {
                continue;
            };
            known.note_type(value.name(), tensor.elem_type());
            if let Some(shape) = &tensor.shape {
                let dims = shape.dim.iter().map(known_size).collect();
                known.dims.insert(value.name().to_owned(), dims);
            }
        }
        for tensor in &graph.initializer {
            known.record_constant(tensor.name(), tensor);
        }
        known
    }

    /// Returns only the outer facts that a graph reads, because copying all of them for each body
    /// would be slow.
    fn seen_by(&self, graph: &GraphProto) -> Self {
        let mut names = BTreeSet::new();
        add_reads(graph, &mut names);
        let own = graph.input.iter().map(ValueInfoProto::name);
        let own: BTreeSet<&str> = own.collect();
        let names: Vec<&str> = names
            .into_iter()
            .filter(|name| !own.contains(name))
            .collect();
        Self {
            opset: self.opset,
            ranks: self.ranks.of_names(&names),
            types: select_entries(&self.types, &names),
            constants: select_entries(&self.constants, &names),
            ints: select_entries(&self.ints, &names),
            dims: select_entries(&self.dims, &names),
            lists: select_entries(&self.lists, &names),
            listed_left: Rc::clone(&self.listed_left),
        }
    }

    /// Notes all facts about a constant.
    fn record_constant(&mut self, name: &str, tensor: &TensorProto) {
        self.note_type(name, tensor.data_type());
        let dims: Vec<usize> = tensor.dims.iter().map(|&dim| dim.max(0) as usize).collect();
        self.ranks.record_constant(name, &dims);
        let dims = tensor.dims.iter().map(|&dim| Some(dim)).collect();
        self.dims.insert(name.to_owned(), dims);
        // A constant that stores its values in typed fields has no bytes to reinterpret.
        if tensor.raw_data.is_some() || external_location(tensor).is_some() {
            self.constants.insert(name.to_owned(), tensor.clone());
        }
        let is_whole = matches!(tensor.data_type(), INT32 | INT64);
        if is_whole
            && tensor
                .element_count()
                .is_some_and(|count| count <= INTS_MAX)
        {
            self.record_ints(name, tensor_from_proto(tensor).ok());
        }
    }

    /// Notes the integers of a constant, if it is a small one of 32-bit or 64-bit integers.
    fn record_ints(&mut self, name: &str, tensor: Option<Tensor>) {
        let narrow =
            |tensor: &Tensor| Some(tensor.to_vec::<i32>().ok()?.into_iter().map(i64::from));
        let ints = tensor.and_then(|tensor| match tensor.to_vec::<i64>() {
            Ok(ints) => Some(ints),
            Err(_) => Some(narrow(&tensor)?.collect()),
        });
        if let Some(ints) = ints.filter(|ints| ints.len() <= INTS_MAX) {
            self.ints.insert(name.to_owned(), ints);
        }
    }

    fn note_type(&mut self, name: &str, code: i32) {
        if let Ok(dtype) = DType::from_onnx_code(code) {
            self.types.insert(name.to_owned(), dtype);
        }
    }

    /// Notes the facts about a node's outputs, and marks those that are texts. The caller must pass
    /// the nodes in the graph's order, because these facts follow from those of the inputs.
    ///
    /// # Errors
    /// [`ExpansionError::Text`] if the node would compute with texts, or make texts of numbers.
    pub fn record_outputs(
        &mut self,
        node: &NodeProto,
        texts: &mut Texts,
    ) -> Result<(), ExpansionError> {
        let reads_text = node.input.iter().any(|name| texts.is_string(name));
        let plain = node.operator_domain().is_empty() && TEXT_OPERATORS.contains(&node.op_type());
        let encodes = node.operator_domain() == crate::CLASSICAL_DOMAIN;
        // A cast to strings would make texts that the table does not have.
        let texts_made = string_table::casts_to_string(node) && node.op_type() == "Cast";
        if (reads_text && !plain && !encodes) || texts_made {
            return Err(text_error(node));
        }
        if reads_text && plain && !matches!(node.op_type(), "Equal" | "Shape" | "Size") {
            node.output.iter().for_each(|name| texts.mark_string(name));
        }
        mark_body_texts(node, texts);
        if node.op_type() == "Constant"
            && let Some(name) = node.output.first()
        {
            match node.tensor("value") {
                Some(tensor) => self.record_constant(name, tensor),
                None => {
                    let value = constant_value(node);
                    if let Some(value) = &value {
                        self.ranks.record_constant(name, value.dims());
                    }
                    self.record_ints(name, value);
                }
            }
        }
        self.ranks.record_outputs(node);
        self.follow_dims(node);
        if let Some(dtype) = types::first_type(node, &self.types)
            && let Some(name) = node.output.first()
        {
            self.types.insert(name.clone(), dtype);
        }
        Ok(())
    }

    /// Notes the sizes of a node's first output, if they follow from its operator: those of the
    /// first input, of a matrix product, or of a broadcast.
    fn follow_dims(&mut self, node: &NodeProto) {
        let of = |index| self.input_sizes(node, index);
        let made = match (
            node.op_type(),
            OperatorSchema::for_operator(node.op_type()).extents,
        ) {
            ("MatMul", _) => of(0)
                .zip(of(1))
                .and_then(|(left, right)| product_sizes(&left, &right)),
            (_, Extents::OfFirst) => of(0),
            (_, Extents::Broadcast) => {
                let inputs: Option<Vec<Sizes>> = (0..node.input.len()).map(of).collect();
                inputs.map(|inputs| broadcast_sizes(&inputs))
            }
            _ => None,
        };
        if let (Some(dims), Some(name)) = (made, node.output.first())
            && !self.dims.contains_key(name)
        {
            self.dims.insert(name.clone(), dims);
        }
    }

    /// Returns the sizes of a node's input. If only its rank is known, each size is `None`.
    fn input_sizes(&self, node: &NodeProto, index: usize) -> Option<Sizes> {
        let name = node.input_name(index)?;
        let of_rank = || Some(vec![None; self.rank(name)?]);
        self.dims.get(name).cloned().or_else(of_rank)
    }

    /// Returns the rank (number of dimensions) of a value, if known.
    pub fn rank(&self, name: &str) -> Option<usize> {
        self.ranks.rank(name)
    }

    /// Returns the element type of a value, if known.
    pub fn dtype(&self, name: &str) -> Option<DType> {
        self.types.get(name).copied()
    }

    /// Returns the sizes of a value along its axes, each `None` if unknown.
    pub fn dims(&self, name: &str) -> Option<&[Option<i64>]> {
        self.dims.get(name).map(Vec::as_slice)
    }

    /// Returns the integers of a constant, if it is small (at most 1,024 integers).
    pub fn ints(&self, name: &str) -> Option<&[i64]> {
        self.ints.get(name).map(Vec::as_slice)
    }

    /// Returns the names of the tensors in a list, in order, if they are known.
    pub fn known_list(&self, name: &str) -> Option<List> {
        self.lists.get(name).cloned()
    }

    /// Notes the list that a node creates.
    pub fn note_list(&mut self, node: &NodeProto, list: List) {
        if let Some(name) = node.output.first() {
            self.lists.insert(name.clone(), list);
        }
    }

    /// Reserves `count` more list tensors; returns `None` if that exceeds the limit.
    pub fn reserve_list_tensors(&self, count: usize) -> Option<()> {
        self.listed_left
            .set(self.listed_left.get().checked_sub(count)?);
        Some(())
    }

    /// Returns the constant with this name, if it stores its values as bytes, which a rewrite can
    /// reinterpret as another type or shape.
    pub fn constant(&self, name: &str) -> Option<&TensorProto> {
        self.constants.get(name)
    }
}

/// Marks an output of a control-flow node as text if one of the node's bodies returns a text for
/// it.
fn mark_body_texts(node: &NodeProto, texts: &mut Texts) {
    // The first result of a loop's body is the condition to continue; it has no output.
    let first = usize::from(node.op_type() == "Loop");
    for body in node.subgraphs() {
        let results = body.output.iter().skip(first);
        for (result, output) in results.zip(&node.output) {
            if texts.is_string(result.name()) {
                texts.mark_string(output);
            }
        }
    }
}

/// Adds the names that a graph reads: the inputs of its nodes, also in bodies, and its outputs.
fn add_reads<'a>(graph: &'a GraphProto, names: &mut BTreeSet<&'a str>) {
    for node in &graph.node {
        names.extend(node.input.iter().map(String::as_str));
        node.subgraphs().for_each(|body| add_reads(body, names));
    }
    names.extend(graph.output.iter().map(ValueInfoProto::name));
}

/// Returns the entries of a map under these names.
fn select_entries<T: Clone>(map: &BTreeMap<String, T>, names: &[&str]) -> BTreeMap<String, T> {
    let found = names.iter().filter_map(|name| map.get_key_value(*name));
    found.map(|(name, it)| (name.clone(), it.clone())).collect()
}

/// Returns the sizes to which tensors of these sizes broadcast.
fn broadcast_sizes(inputs: &[Sizes]) -> Sizes {
    let rank = inputs.iter().map(Vec::len).max().unwrap_or(0);
    let size = |axis: usize| {
        // A tensor of lower rank lacks the first axes.
        let along = |sizes: &Sizes| {
            let own = (axis + sizes.len()).checked_sub(rank);
            own.map_or(Some(1), |own| sizes[own])
        };
        let mut others = inputs.iter().map(along).filter(|size| *size != Some(1));
        // A known size other than 1 is the result, even if other sizes are unknown.
        let decided = others.clone().flatten().next();
        decided.or_else(|| others.next().is_none().then_some(1))
    };
    (0..rank).map(size).collect()
}

/// Returns the sizes of a product of matrices or vectors: those of its batch, then the rows of the
/// left side and the columns of the right side. A vector on the left has no rows, and one on the
/// right no columns.
fn product_sizes(left: &Sizes, right: &Sizes) -> Option<Sizes> {
    let (_, left) = left.split_last()?;
    let (rows, left_batch) = match left.split_last() {
        Some((rows, batch)) => (Some(*rows), batch),
        None => (None, left),
    };
    let (columns, right_batch) = match right.as_slice() {
        [] => return None,
        [_] => (None, &[][..]),
        [batch @ .., _, columns] => (Some(*columns), batch),
    };
    let mut sizes = broadcast_sizes(&[left_batch.to_vec(), right_batch.to_vec()]);
    sizes.extend(rows.into_iter().chain(columns));
    Some(sizes)
}

fn known_size(dim: &Dimension) -> Option<i64> {
    match dim.value {
        Some(DimensionValue::DimValue(size)) if size > 0 => Some(size),
        _ => None,
    }
}
