//! What is known of values while nodes are written out: how many dimensions, of which type.

use std::collections::BTreeMap;

use souk_memory::DType;

use super::words::Texts;
use super::{ExpansionError, text_error, words};
use crate::ranks::Ranks;
use crate::schema::{Extents, OperatorSchema};
use crate::{Dimension, DimensionValue, GraphProto, NodeProto, TensorProto, location, types};

/// Operators that move texts and do nothing else with them, or tell equal ones.
const MOVES: &[&str] = &[
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

/// What is known of a graph's values.
#[derive(Clone)]
pub(super) struct Facts {
    pub opset: i64,
    ranks: Ranks,
    types: BTreeMap<String, DType>,
    /// Constants: their sizes, and those that may be held in another form.
    constants: BTreeMap<String, TensorProto>,
    /// Sizes of inputs and inner values, as far as they are declared.
    dims: BTreeMap<String, Vec<Option<i64>>>,
}

impl Facts {
    /// Nothing, in a version of the standard operator set.
    pub fn new(opset: i64) -> Self {
        Self {
            opset,
            ranks: Ranks::default(),
            types: BTreeMap::new(),
            constants: BTreeMap::new(),
            dims: BTreeMap::new(),
        }
    }

    /// What is known in a graph, of what is around it and of what it declares.
    pub fn within(&self, graph: &GraphProto) -> Self {
        let mut known = self.clone();
        known.ranks.declare(graph);
        let declared = graph.input.iter().chain(&graph.value_info);
        for value in declared.chain(&graph.output) {
            let Some(tensor) = value.tensor_type() else {
                continue;
            };
            known.note_type(value.name(), tensor.elem_type());
            if let Some(shape) = &tensor.shape {
                let dims = shape.dim.iter().map(size).collect();
                known.dims.insert(value.name().to_owned(), dims);
            }
        }
        for tensor in &graph.initializer {
            known.hold(tensor.name(), tensor);
        }
        known
    }

    fn hold(&mut self, name: &str, tensor: &TensorProto) {
        self.note_type(name, tensor.data_type());
        let dims: Vec<usize> = tensor.dims.iter().map(|&dim| dim.max(0) as usize).collect();
        self.ranks.hold(name, &dims);
        let dims = tensor.dims.iter().map(|&dim| Some(dim)).collect();
        self.dims.insert(name.to_owned(), dims);
        // What is in fields of its own would be copied.
        if tensor.raw_data.is_some() || location(tensor).is_some() {
            self.constants.insert(name.to_owned(), tensor.clone());
        }
    }

    fn note_type(&mut self, name: &str, code: i32) {
        if let Ok(dtype) = DType::from_onnx_code(code) {
            self.types.insert(name.to_owned(), dtype);
        }
    }

    /// Notes what a node makes.
    pub fn follow(&mut self, node: &NodeProto, texts: &mut Texts) -> Result<(), ExpansionError> {
        let reads_text = node.input.iter().any(|name| texts.has(name));
        let plain = node.operator_domain().is_empty() && MOVES.contains(&node.op_type());
        let encodes = node.operator_domain() == crate::CLASSICAL_DOMAIN;
        let texts_made = words::is_text_cast(node) && node.op_type() == "Cast";
        if (reads_text && !plain && !encodes) || texts_made {
            return Err(text_error(node));
        }
        if reads_text && plain && !matches!(node.op_type(), "Equal" | "Shape" | "Size") {
            node.output.iter().for_each(|name| texts.note(name));
        }
        if let Some(tensor) = node.tensor("value")
            && node.op_type() == "Constant"
            && let Some(name) = node.output.first()
        {
            self.hold(name, tensor);
        }
        self.ranks.follow(node);
        self.follow_dims(node);
        if let Some(dtype) = types::first_type(node, &self.types)
            && let Some(name) = node.output.first()
        {
            self.types.insert(name.clone(), dtype);
        }
        Ok(())
    }

    /// Notes the sizes of what a node makes, where they are those of an input, or its last one.
    fn follow_dims(&mut self, node: &NodeProto) {
        let of = |index| self.dims.get(node.input_name(index)?);
        let made = match (node.op_type(), OperatorSchema::of(node.op_type()).extents) {
            ("MatMul", _) => of(0).zip(of(1)).and_then(|(left, right)| {
                let mut dims = left.clone();
                *dims.last_mut()? = *right.last()?;
                Some(dims)
            }),
            (_, Extents::OfFirst) => of(0).cloned(),
            (_, Extents::Repeated) => match (of(0), of(1)) {
                (Some(left), Some(right)) if right.len() > left.len() => Some(right.clone()),
                (left, _) => left.cloned(),
            },
            _ => None,
        };
        if let (Some(dims), Some(name)) = (made, node.output.first())
            && !self.dims.contains_key(name)
        {
            self.dims.insert(name.clone(), dims);
        }
    }

    pub fn rank(&self, name: &str) -> Option<usize> {
        self.ranks.rank(name)
    }

    pub fn dtype(&self, name: &str) -> Option<DType> {
        self.types.get(name).copied()
    }

    /// The sizes of a value, as far as known.
    pub fn dims(&self, name: &str) -> Option<&[Option<i64>]> {
        self.dims.get(name).map(Vec::as_slice)
    }

    /// A constant whose bytes may be had in another form.
    pub fn constant(&self, name: &str) -> Option<&TensorProto> {
        self.constants.get(name)
    }
}

fn size(dim: &Dimension) -> Option<i64> {
    match dim.value {
        Some(DimensionValue::DimValue(size)) if size > 0 => Some(size),
        _ => None,
    }
}
