//! Replaces the strings in a model with i64 ids, and keeps the table of strings and ids.
//!
//! The size of a tensor of strings does not follow from its shape, so souk could not plan its
//! memory, and trained models only move strings and compare them. So each string of a model has an
//! id, and a tensor of strings becomes a tensor of ids, which souk plans, sends and computes like
//! any other. The table stays with the owner of the model. An input can contain strings that are
//! not in the model; they get new ids.

use std::collections::{BTreeMap, BTreeSet};

use souk_memory::Tensor;

use crate::{
    DataType, GraphProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, tensor_to_proto,
    type_proto,
};

/// The known strings; the id of each is its index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StringTable {
    texts: Vec<String>,
    numbers: BTreeMap<String, i64>,
}

/// The values of a model that are strings, and the table of their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts {
    /// The strings and their ids.
    pub words: StringTable,
    /// Names of inputs.
    pub inputs: BTreeSet<String>,
    /// Names of outputs.
    pub outputs: BTreeSet<String>,
    /// Names of all values that are strings.
    values: BTreeSet<String>,
}

impl StringTable {
    /// Returns the id of a string, which will never change, and adds the string if it is new.
    pub fn intern_string(&mut self, text: &str) -> i64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = i64::try_from(self.texts.len()).expect("the table fits in memory");
        self.texts.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }

    /// Returns the string of an id.
    #[must_use]
    pub fn find_string(&self, number: i64) -> Option<&str> {
        let text = self.texts.get(usize::try_from(number).ok()?)?;
        Some(text)
    }
}

impl Texts {
    /// Returns whether a value is a string.
    #[must_use]
    pub fn is_string(&self, value: &str) -> bool {
        self.values.contains(value)
    }

    pub(super) fn mark_string(&mut self, value: &str) {
        self.values.insert(value.to_owned());
    }
}

/// Replaces the strings that a graph contains or declares with ids, including those in the bodies
/// of its control-flow nodes.
pub(super) fn replace_strings(graph: &mut GraphProto, texts: &mut Texts) {
    texts.inputs.extend(retype_string_values(&mut graph.input));
    texts
        .outputs
        .extend(retype_string_values(&mut graph.output));
    let inner = retype_string_values(&mut graph.value_info);
    texts.values.extend(inner);
    texts.values.extend(texts.inputs.iter().cloned());
    texts.values.extend(texts.outputs.iter().cloned());
    replace_constants(graph, texts);
}

fn replace_constants(graph: &mut GraphProto, texts: &mut Texts) {
    for tensor in &mut graph.initializer {
        if let Some(numbers) = list_ids(tensor, &mut texts.words) {
            texts.mark_string(tensor.name());
            *tensor = numbers;
        }
    }
    for node in &mut graph.node {
        if node.op_type() == "Constant" && replace_constant(node, &mut texts.words) {
            node.output.iter().for_each(|name| texts.mark_string(name));
        }
        for attribute in &mut node.attribute {
            for body in attribute.g.iter_mut().chain(&mut attribute.graphs) {
                let declared = body.input.iter_mut().chain(&mut body.output);
                let declared = declared.chain(&mut body.value_info);
                let named: Vec<String> = declared.filter_map(retype_string_value).collect();
                texts.values.extend(named);
                replace_constants(body, texts);
            }
        }
    }
}

/// Replaces the strings of a `Constant` node with ids; returns whether it had any.
fn replace_constant(node: &mut NodeProto, words: &mut StringTable) -> bool {
    let Some(attribute) = node.attribute.first_mut() else {
        return false;
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let tensor = match attribute.name() {
        "value" => match attribute.t.as_ref().and_then(|it| list_ids(it, words)) {
            Some(tensor) => tensor,
            None => return false,
        },
        "value_string" => {
            let number = words.intern_string(&text(attribute.s.as_deref().unwrap_or_default()));
            tensor_to_proto("", &Tensor::scalar(number))
        }
        "value_strings" => {
            let numbers = attribute
                .strings
                .iter()
                .map(|it| words.intern_string(&text(it)));
            encode_vector("", numbers.collect())
        }
        _ => return false,
    };
    *attribute = crate::AttributeProto::from_value("value", tensor);
    true
}

/// Encodes a vector of numbers as a `TensorProto`.
pub(super) fn encode_vector(name: &str, numbers: Vec<i64>) -> TensorProto {
    let tensor = Tensor::from_vec([numbers.len()], numbers);
    tensor_to_proto(name, &tensor.expect("the shape has as many elements"))
}

/// Returns the ids of a tensor of strings; `None` if its elements are not strings.
pub(super) fn list_ids(tensor: &TensorProto, words: &mut StringTable) -> Option<TensorProto> {
    if tensor.data_type() != DataType::String as i32 {
        return None;
    }
    let texts = tensor.string_data.iter();
    let numbers = texts.map(|text| words.intern_string(&String::from_utf8_lossy(text)));
    let numbers: Vec<u8> = numbers.flat_map(i64::to_le_bytes).collect();
    Some(TensorProto {
        dims: tensor.dims.clone(),
        data_type: Some(DataType::Int64 as i32),
        name: tensor.name.clone(),
        raw_data: Some(numbers.into()),
        ..TensorProto::default()
    })
}

/// Declares string values as i64 values, and returns their names.
fn retype_string_values(values: &mut [ValueInfoProto]) -> Vec<String> {
    values.iter_mut().filter_map(retype_string_value).collect()
}

fn retype_string_value(value: &mut ValueInfoProto) -> Option<String> {
    let name = value.name().to_owned();
    let declared = value.r#type.as_mut()?;
    match declared {
        TypeProto {
            value: Some(type_proto::Value::TensorType(tensor)),
            ..
        } if tensor.elem_type() == DataType::String as i32 => {
            tensor.elem_type = Some(DataType::Int64 as i32);
            Some(name)
        }
        _ => None,
    }
}

/// Returns whether a cast is to strings.
pub(super) fn casts_to_string(node: &NodeProto) -> bool {
    node.int("to") == Some(i64::from(DataType::String as i32))
}
