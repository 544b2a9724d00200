//! Adds methods to the ONNX messages, so that callers read names, attributes and shapes without the
//! protobuf's nested options, and build nodes in one line.

use bytes::Bytes;

use super::{
    AttributeProto, AttributeType, Dimension, DimensionValue, GraphProto, ModelProto, NodeProto,
    StringStringEntryProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto, type_proto,
};

/// The domain of classical machine learning: trees, linear models, encoders.
pub const CLASSICAL_DOMAIN: &str = "ai.onnx.ml";

impl ModelProto {
    /// Returns the version of the operator set of `domain`; `""` and `"ai.onnx"` are the same
    /// domain.
    #[must_use]
    pub fn opset(&self, domain: &str) -> Option<i64> {
        let wanted = standard_as_empty(domain);
        let mut sets = self.opset_import.iter();
        let set = sets.find(|set| standard_as_empty(set.domain()) == wanted)?;
        Some(set.version())
    }
}

fn standard_as_empty(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

impl NodeProto {
    /// Creates a node with one output and no attributes, which you can add by [`Self::with`].
    #[must_use]
    pub fn for_operator(operator: &str, inputs: &[&str], output: &str) -> Self {
        Self {
            op_type: Some(operator.to_owned()),
            input: inputs.iter().map(ToString::to_string).collect(),
            output: vec![output.to_owned()],
            ..Self::default()
        }
    }

    /// Creates a node of the classical domain with one output and no attributes.
    #[must_use]
    pub fn for_classical_operator(operator: &str, inputs: &[&str], output: &str) -> Self {
        Self {
            domain: Some(CLASSICAL_DOMAIN.to_owned()),
            ..Self::for_operator(operator, inputs, output)
        }
    }

    /// Returns the node with one more attribute.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<AttributeValue>) -> Self {
        self.attribute.push(AttributeProto::from_value(name, value));
        self
    }

    /// Returns the operator's domain, empty for both spellings of the standard one.
    #[must_use]
    pub fn operator_domain(&self) -> &str {
        standard_as_empty(self.domain())
    }

    /// Returns the name of input `index`, or `None` if the node leaves it out.
    #[must_use]
    pub fn input_name(&self, index: usize) -> Option<&str> {
        let name = self.input.get(index)?;
        (!name.is_empty()).then_some(name)
    }

    /// Returns the attribute called `name`.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&AttributeProto> {
        self.attribute
            .iter()
            .find(|attribute| attribute.name() == name)
    }

    /// Returns an integer attribute.
    #[must_use]
    pub fn int(&self, name: &str) -> Option<i64> {
        self.attribute(name)?.i
    }

    /// Returns a float attribute.
    #[must_use]
    pub fn float(&self, name: &str) -> Option<f32> {
        self.attribute(name)?.f
    }

    /// Returns a string attribute, if it is UTF-8.
    #[must_use]
    pub fn string(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.attribute(name)?.s.as_ref()?).ok()
    }

    /// Returns an attribute that is a list of integers. An attribute of another kind will give an
    /// empty list, so callers should not rely on a length.
    #[must_use]
    pub fn ints(&self, name: &str) -> Option<&[i64]> {
        self.attribute(name)
            .map(|attribute| attribute.ints.as_slice())
    }

    /// Returns an attribute that is a list of floats.
    #[must_use]
    pub fn floats(&self, name: &str) -> Option<&[f32]> {
        self.attribute(name)
            .map(|attribute| attribute.floats.as_slice())
    }

    /// Returns an attribute that is a list of strings.
    #[must_use]
    pub fn strings(&self, name: &str) -> Option<&[Bytes]> {
        self.attribute(name)
            .map(|attribute| attribute.strings.as_slice())
    }

    /// Returns a tensor attribute.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorProto> {
        self.attribute(name)?.t.as_ref()
    }

    /// Returns the graphs among the attributes: the bodies of `If`, `Loop` and `Scan`.
    pub fn subgraphs(&self) -> impl Iterator<Item = &GraphProto> {
        let attributes = self.attribute.iter();
        attributes.flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs))
    }
}

/// The value of an attribute.
pub enum AttributeValue {
    /// A float.
    Float(f32),
    /// An integer.
    Int(i64),
    /// A string.
    Text(String),
    /// A tensor.
    Tensor(Box<TensorProto>),
    /// Floats.
    Floats(Vec<f32>),
    /// Integers.
    Ints(Vec<i64>),
    /// Strings.
    Texts(Vec<Bytes>),
}

impl From<f32> for AttributeValue {
    fn from(value: f32) -> Self {
        Self::Float(value)
    }
}

impl From<i64> for AttributeValue {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<&str> for AttributeValue {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<TensorProto> for AttributeValue {
    fn from(value: TensorProto) -> Self {
        Self::Tensor(Box::new(value))
    }
}

impl From<Vec<f32>> for AttributeValue {
    fn from(values: Vec<f32>) -> Self {
        Self::Floats(values)
    }
}

impl From<Vec<i64>> for AttributeValue {
    fn from(values: Vec<i64>) -> Self {
        Self::Ints(values)
    }
}

impl From<Vec<Bytes>> for AttributeValue {
    fn from(values: Vec<Bytes>) -> Self {
        Self::Texts(values)
    }
}

impl AttributeProto {
    /// Creates an attribute.
    #[must_use]
    pub fn from_value(name: &str, value: impl Into<AttributeValue>) -> Self {
        let mut attribute = Self {
            name: Some(name.to_owned()),
            ..Self::default()
        };
        let kind = match value.into() {
            AttributeValue::Float(value) => {
                attribute.f = Some(value);
                AttributeType::Float
            }
            AttributeValue::Int(value) => {
                attribute.i = Some(value);
                AttributeType::Int
            }
            AttributeValue::Text(value) => {
                attribute.s = Some(Bytes::from(value));
                AttributeType::String
            }
            AttributeValue::Tensor(value) => {
                attribute.t = Some(*value);
                AttributeType::Tensor
            }
            AttributeValue::Floats(values) => {
                attribute.floats = values;
                AttributeType::Floats
            }
            AttributeValue::Ints(values) => {
                attribute.ints = values;
                AttributeType::Ints
            }
            AttributeValue::Texts(values) => {
                attribute.strings = values;
                AttributeType::Strings
            }
        };
        attribute.r#type = Some(kind as i32);
        attribute
    }
}

impl TensorProto {
    /// Returns the value of an entry of `external_data`.
    #[must_use]
    pub fn external_entry(&self, key: &str) -> Option<&str> {
        let entry = self.external_data.iter().find(|entry| entry.key() == key)?;
        Some(entry.value())
    }

    /// Returns the number of elements by the extents, or `None` if one is negative or the product
    /// overflows.
    #[must_use]
    pub fn element_count(&self) -> Option<usize> {
        self.dims.iter().try_fold(1usize, |count, &dim| {
            count.checked_mul(usize::try_from(dim).ok()?)
        })
    }
}

impl StringStringEntryProto {
    /// Creates an entry.
    #[must_use]
    pub fn new(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            key: Some(key.into()),
            value: Some(value.into()),
        }
    }
}

impl ValueInfoProto {
    /// Creates the declaration of a tensor; `dims` is `None` if the rank is unknown.
    #[must_use]
    pub fn new_tensor(
        name: impl Into<String>,
        elem_type: i32,
        dims: Option<Vec<Dimension>>,
    ) -> Self {
        let tensor = type_proto::Tensor {
            elem_type: Some(elem_type),
            shape: dims.map(|dim| TensorShapeProto { dim }),
        };
        Self {
            name: Some(name.into()),
            r#type: Some(TypeProto {
                value: Some(type_proto::Value::TensorType(tensor)),
                denotation: None,
            }),
            ..Self::default()
        }
    }

    /// Returns the element type and extents, if the value is a tensor.
    #[must_use]
    pub fn tensor_type(&self) -> Option<&type_proto::Tensor> {
        match self.r#type.as_ref()?.value.as_ref()? {
            type_proto::Value::TensorType(tensor) => Some(tensor),
            _ => None,
        }
    }
}

impl Dimension {
    /// Names that exporters write for an open extent, instead of a symbol that means the same
    /// extent everywhere. Paddle writes `?`.
    const OPEN: &[&str] = &["-1", "None", "unk", "unknown", "Unknown"];

    /// Returns the symbol of an extent that is known only by name; `None` if the extent is open or
    /// a number.
    #[must_use]
    pub fn symbol_name(&self) -> Option<&str> {
        let Some(DimensionValue::DimParam(name)) = &self.value else {
            return None;
        };
        let is_name = name.chars().any(char::is_alphanumeric) || name.contains('_');
        (is_name && !Self::OPEN.contains(&name.as_str())).then_some(name)
    }

    /// Creates a known extent.
    #[must_use]
    pub fn new_fixed(extent: i64) -> Self {
        Self {
            value: Some(DimensionValue::DimValue(extent)),
            denotation: None,
        }
    }

    /// Creates an extent that is known only by name.
    #[must_use]
    pub fn new_symbol(name: impl Into<String>) -> Self {
        Self {
            value: Some(DimensionValue::DimParam(name.into())),
            denotation: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_of_an_extent_are_no_symbols() {
        for open in ["?", "", "*", "-1", "None", "unknown"] {
            assert_eq!(Dimension::new_symbol(open).symbol_name(), None, "{open:?}");
        }
        for name in ["batch", "N", "unk__12", "2*height", "_"] {
            assert_eq!(Dimension::new_symbol(name).symbol_name(), Some(name));
        }
        assert_eq!(Dimension::new_fixed(3).symbol_name(), None);
    }
}
