//! Builds the nodes that replace one node of a model during the expansion. An expansion adds its
//! operators in order, each after those that it reads; each method that adds one returns the name
//! of its result.

use std::collections::BTreeMap;

use bytes::Bytes;
use souk_memory::{DType, Shape, Tensor};

use super::facts::{Facts, List};
use super::{Columns, Meanings};
use crate::{NodeProto, TensorProto, tensor_to_proto};

/// A node and its expansion so far.
pub(super) struct ExpansionBuilder<'a> {
    call: &'a NodeProto,
    facts: &'a Facts,
    meanings: &'a mut Meanings,
    nodes: Vec<NodeProto>,
    /// Values that become outputs of the node, with the names of those outputs.
    outputs: Vec<(String, String)>,
}

impl<'a> ExpansionBuilder<'a> {
    pub fn new(call: &'a NodeProto, facts: &'a Facts, meanings: &'a mut Meanings) -> Self {
        Self {
            call,
            facts,
            meanings,
            nodes: Vec::new(),
            outputs: Vec::new(),
        }
    }

    /// Returns the node to replace.
    pub fn call(&self) -> &'a NodeProto {
        self.call
    }

    /// Returns the version of the standard operator set.
    pub fn opset(&self) -> i64 {
        self.facts.opset
    }

    /// Returns input `index`, if the node has it.
    pub fn input_name(&self, index: usize) -> Option<&'a str> {
        self.call.input_name(index)
    }

    /// Returns whether the node needs output `index`.
    pub fn needs_output(&self, index: usize) -> bool {
        let output = self.call.output.get(index);
        output.is_some_and(|name| !name.is_empty())
    }

    /// Returns the number of dimensions of a value, or `None` if it is unknown or the value is a
    /// result of the expansion itself.
    pub fn rank(&self, value: &str) -> Option<usize> {
        let own = self.nodes.iter().any(|node| node.output[0] == value);
        if own { None } else { self.facts.rank(value) }
    }

    /// Returns the type of input `index`, if known.
    pub fn input_dtype(&self, index: usize) -> Option<DType> {
        self.facts.dtype(self.input_name(index)?)
    }

    /// Returns the sizes of input `index`, if all are known.
    pub fn input_dims(&self, index: usize) -> Option<Vec<i64>> {
        let dims = self.facts.dims(self.input_name(index)?)?;
        dims.iter().copied().collect()
    }

    /// Returns the sizes of input `index`, as far as known.
    pub fn open_dims(&self, index: usize) -> Option<&'a [Option<i64>]> {
        self.facts.dims(self.input_name(index)?)
    }

    /// Returns the integers of input `index`, if it is a small constant.
    pub fn constant_ints(&self, index: usize) -> Option<&'a [i64]> {
        self.facts.ints(self.input_name(index)?)
    }

    /// Returns the tensors of the list that is input `index`, if they are known.
    pub fn input_list(&self, index: usize) -> Option<List> {
        self.facts.known_list(self.input_name(index)?)
    }

    /// Reserves `count` more list tensors; returns `None` if that exceeds the limit.
    pub fn reserve_list_tensors(&self, count: usize) -> Option<()> {
        self.facts.reserve_list_tensors(count)
    }

    /// Returns the last size of input `index`, if known.
    pub fn input_width(&self, index: usize) -> Option<i64> {
        *self.facts.dims(self.input_name(index)?)?.last()?
    }

    /// Reinterprets the bytes of a constant input as elements of another type and shape. `None` if
    /// these take another number of bytes: a node can state any sizes.
    pub fn reinterpret_constant(
        &mut self,
        index: usize,
        dtype: DType,
        dims: &[i64],
    ) -> Option<String> {
        let held = self.facts.constant(self.input_name(index)?)?;
        let shape = Shape::from_i64(dims).ok()?;
        if constant_length(held) != Some(shape.byte_length(dtype)) {
            return None;
        }
        let tensor = TensorProto {
            name: None,
            dims: dims.to_vec(),
            data_type: Some(dtype.onnx_code()),
            ..held.clone()
        };
        Some(self.add(NodeProto::for_operator("Constant", &[], "").with("value", tensor)))
    }

    /// Returns whether input `index` is text.
    pub fn is_string(&self, index: usize) -> bool {
        let texts = &self.meanings.texts;
        self.input_name(index)
            .is_some_and(|name| texts.is_string(name))
    }

    /// Notes that output `index` is text.
    pub fn note_text(&mut self, index: usize) {
        if let Some(name) = self.call.output.get(index) {
            self.meanings.texts.mark_string(name);
        }
    }

    /// Returns the numbers that stand for texts.
    pub fn text_numbers(&mut self, texts: &[Bytes]) -> Vec<i64> {
        let words = &mut self.meanings.texts.words;
        let number = |text: &Bytes| words.intern_string(&String::from_utf8_lossy(text));
        texts.iter().map(number).collect()
    }

    /// Replaces a tensor of texts with a tensor of their numbers, and returns any other tensor as
    /// it is.
    pub fn number_texts(&mut self, tensor: &TensorProto) -> TensorProto {
        let words = &mut self.meanings.texts.words;
        super::string_table::list_ids(tensor, words).unwrap_or_else(|| tensor.clone())
    }

    /// Returns the outputs that stand for maps.
    pub fn columns(&mut self) -> &mut Columns {
        &mut self.meanings.columns
    }

    /// Adds an operator and returns its result.
    pub fn add_operator(&mut self, operator: &str, inputs: &[&str]) -> String {
        self.add(NodeProto::for_operator(operator, inputs, ""))
    }

    /// Adds a node, which gets a name and an output of its own, and returns its result.
    pub fn add(&mut self, mut node: NodeProto) -> String {
        let made = self.new_name(node.op_type());
        node.name = Some(made.clone());
        node.output = vec![made.clone()];
        self.nodes.push(node);
        made
    }

    /// Adds a node with `count` results.
    pub fn add_many(&mut self, mut node: NodeProto, count: usize) -> Vec<String> {
        let first = self.new_name(node.op_type());
        let named = (0..count).map(|index| match index {
            0 => first.clone(),
            _ => format!("{first}.{index}"),
        });
        let made: Vec<String> = named.collect();
        node.name = Some(first);
        node.output.clone_from(&made);
        self.nodes.push(node);
        made
    }

    /// Returns a new name for an operator's result.
    fn new_name(&self, operator: &str) -> String {
        let outputs = &self.call.output;
        let prefix = outputs.iter().find(|name| !name.is_empty());
        let prefix = prefix.map_or("", String::as_str);
        format!("{prefix}/{operator}.{}", self.nodes.len())
    }

    /// Adds a constant.
    pub fn add_constant(&mut self, tensor: &Tensor) -> String {
        let tensor = tensor_to_proto("", tensor);
        self.add(NodeProto::for_operator("Constant", &[], "").with("value", tensor))
    }

    /// Adds a constant of floats.
    pub fn add_floats(&mut self, dims: &[usize], values: Vec<f32>) -> Option<String> {
        let tensor = Tensor::from_vec(dims, values).ok()?;
        Some(self.add_constant(&tensor))
    }

    /// Adds a constant vector of integers.
    pub fn add_ints(&mut self, values: Vec<i64>) -> String {
        let tensor = super::string_table::encode_vector("", values);
        self.add(NodeProto::for_operator("Constant", &[], "").with("value", tensor))
    }

    /// Adds a constant float.
    pub fn add_float(&mut self, value: f32) -> String {
        self.add_constant(&Tensor::scalar(value))
    }

    /// Adds a constant integer.
    pub fn add_int(&mut self, value: i64) -> String {
        self.add_constant(&Tensor::scalar(value))
    }

    /// Casts a value to another type.
    pub fn add_cast(&mut self, value: &str, dtype: DType) -> String {
        let to = i64::from(dtype.onnx_code());
        self.add(NodeProto::for_operator("Cast", &[value], "").with("to", to))
    }

    /// Returns input `index` as 32-bit floats.
    pub fn as_floats(&mut self, index: usize) -> Option<String> {
        let input = self.input_name(index)?;
        Some(match self.input_dtype(index) {
            Some(DType::F32) => input.to_owned(),
            _ => self.add_cast(input, DType::F32),
        })
    }

    /// Reshapes a value.
    pub fn add_reshape(&mut self, value: &str, sizes: &[i64]) -> String {
        let sizes = self.add_ints(sizes.to_vec());
        self.add_operator("Reshape", &[value, &sizes])
    }

    /// Reorders the axes of a value.
    pub fn add_transpose(&mut self, value: &str, axes: &[i64]) -> String {
        self.add(NodeProto::for_operator("Transpose", &[value], "").with("perm", axes.to_vec()))
    }

    /// Adds an axis to a value.
    pub fn add_unsqueeze(&mut self, value: &str, axis: i64) -> String {
        if self.opset() < 13 {
            let node = NodeProto::for_operator("Unsqueeze", &[value], "");
            return self.add(node.with("axes", vec![axis]));
        }
        let axes = self.add_ints(vec![axis]);
        self.add_operator("Unsqueeze", &[value, &axes])
    }

    /// Removes an axis of a value.
    pub fn add_squeeze(&mut self, value: &str, axis: i64) -> String {
        if self.opset() < 13 {
            let node = NodeProto::for_operator("Squeeze", &[value], "");
            return self.add(node.with("axes", vec![axis]));
        }
        let axes = self.add_ints(vec![axis]);
        self.add_operator("Squeeze", &[value, &axes])
    }

    /// Reduces a value along an axis. States the axis in the form that the operator set's version
    /// reads.
    pub fn add_reduction(&mut self, operator: &str, value: &str, axis: i64, keep: i64) -> String {
        let by_input = self.opset() >= if operator == "ReduceSum" { 13 } else { 18 };
        let node = if by_input {
            let axes = self.add_ints(vec![axis]);
            NodeProto::for_operator(operator, &[value, &axes], "")
        } else {
            NodeProto::for_operator(operator, &[value], "").with("axes", vec![axis])
        };
        self.add(node.with("keepdims", keep))
    }

    /// Splits a value along its last axis into parts of these sizes.
    pub fn split_last_axis(&mut self, value: &str, sizes: &[i64]) -> Vec<String> {
        self.split_along(value, sizes, -1)
    }

    /// Splits a value along an axis into parts of these sizes.
    pub fn split_along(&mut self, value: &str, sizes: &[i64], axis: i64) -> Vec<String> {
        let node = if self.opset() >= 13 {
            let list = self.add_ints(sizes.to_vec());
            NodeProto::for_operator("Split", &[value, &list], "")
        } else {
            NodeProto::for_operator("Split", &[value], "").with("split", sizes.to_vec())
        };
        self.add_many(node.with("axis", axis), sizes.len())
    }

    /// Makes a value output `index` of the node. A value can become several outputs.
    pub fn set_output(&mut self, index: usize, value: &str) {
        let Some(output) = self.call.output.get(index).filter(|it| !it.is_empty()) else {
            return;
        };
        self.outputs.push((value.to_owned(), output.clone()));
    }

    /// Returns the nodes, with the outputs named as those of the original node.
    pub fn into_nodes(self) -> Vec<NodeProto> {
        let mut nodes = self.nodes;
        let mut renamed: BTreeMap<String, String> = BTreeMap::new();
        for (value, output) in self.outputs {
            let is_made = nodes.iter().any(|node| node.output.contains(&value));
            if !is_made {
                let source = renamed.get(&value).unwrap_or(&value);
                nodes.push(NodeProto {
                    name: Some(output.clone()),
                    ..NodeProto::for_operator("Identity", &[source], &output)
                });
                continue;
            }
            for node in &mut nodes {
                let names = node.input.iter_mut().chain(&mut node.output);
                names
                    .filter(|name| **name == value)
                    .for_each(|name| name.clone_from(&output));
            }
            renamed.insert(value, output);
        }
        nodes
    }
}

/// Returns the bytes that a constant takes: by its sizes if they are outside the model.
fn constant_length(tensor: &TensorProto) -> Option<usize> {
    match &tensor.raw_data {
        Some(bytes) => Some(bytes.len()),
        None => {
            let dtype = DType::from_onnx_code(tensor.data_type()).ok()?;
            dtype.byte_length(tensor.element_count()?)
        }
    }
}
