//! Finds the parameters of a model, lays them out in one vector, and writes trained ones back.
//!
//! ONNX does not say which constants of a model are trained. Here a parameter is any initialiser
//! that is f32, has at least one dimension, is not frozen by name, and affects the loss.

use std::collections::BTreeMap;

use bytes::Bytes;
use souk_memory::{DType, Tensor};
use souk_onnx::{
    Dimension, ModelProto, ValueInfoProto, decode_model, encode_model, tensor_from_proto,
    tensor_to_proto,
};

use super::GradientError;

/// The most elements that all parameters can have together: a vector of 1 GiB.
pub const ELEMENTS_MAX: usize = 1 << 28;

/// Selects which of the possible parameters are trained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All but those whose names begin with one of these.
    AllBut(Vec<String>),
    /// Only those whose names begin with one of these.
    Only(Vec<String>),
}

/// One trained initialiser, as a part of the vector of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Name of the initialiser.
    pub name: String,
    /// Extents of the initialiser.
    pub dims: Vec<usize>,
    /// Its first element in the vector.
    pub start: usize,
}

impl Parameter {
    /// Returns the number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}

/// The trained initialisers of a model, in the order of the vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters(Vec<Parameter>);

/// An initialiser that can be trained, with its value.
pub(super) struct Candidate {
    pub name: String,
    pub value: Tensor,
}

impl Selection {
    /// Returns the beginnings of names that the selection has.
    #[must_use]
    pub fn prefixes(&self) -> &[String] {
        match self {
            Self::AllBut(prefixes) | Self::Only(prefixes) => prefixes,
        }
    }

    fn has_name(&self, name: &str) -> bool {
        let is_named = self
            .prefixes()
            .iter()
            .any(|it| name.starts_with(it.as_str()));
        match self {
            Self::AllBut(_) => !is_named,
            Self::Only(_) => is_named,
        }
    }
}

impl Parameters {
    /// Lays candidates out in one vector, and returns it with their values.
    ///
    /// # Errors
    /// [`GradientError::TooLarge`].
    pub(super) fn pack(candidates: &[Candidate]) -> Result<(Parameters, Tensor), GradientError> {
        let mut start = 0;
        let mut parameters = Vec::with_capacity(candidates.len());
        let mut values = Vec::new();
        for Candidate { name, value } in candidates {
            let dims = value.dims().to_vec();
            parameters.push(Parameter {
                name: name.clone(),
                dims,
                start,
            });
            let elements = value.shape().element_count();
            start = start.saturating_add(elements);
            if start > ELEMENTS_MAX {
                return Err(GradientError::TooLarge {
                    found: start,
                    limit: ELEMENTS_MAX,
                });
            }
            let floats = value.to_vec::<f32>();
            values.extend(floats.expect("a candidate is f32"));
        }
        let vector = Tensor::from_vec([values.len()], values);
        let vector = vector.expect("the vector has the length of its values");
        Ok((Parameters(parameters), vector))
    }

    /// Returns them in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Parameter> {
        self.0.iter()
    }

    /// Returns how many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of their elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.0.iter().map(Parameter::elements).sum()
    }

    /// Returns the parts of a vector as tensors, by the names of the initialisers.
    ///
    /// # Panics
    /// If the vector is not one of these parameters.
    #[must_use]
    pub fn split_vector(&self, vector: &Tensor) -> BTreeMap<String, Tensor> {
        let values = vector.to_vec::<f32>().expect("parameters are f32");
        assert_eq!(
            values.len(),
            self.elements(),
            "a vector of these parameters"
        );
        let part = |parameter: &Parameter| {
            let part = &values[parameter.start..parameter.start + parameter.elements()];
            let tensor = Tensor::from_vec(parameter.dims.clone(), part.to_vec());
            let tensor = tensor.expect("a part has the elements of its parameter");
            (parameter.name.clone(), tensor)
        };
        self.0.iter().map(part).collect()
    }

    /// Returns the model with the values of a vector in its initialisers, and otherwise unchanged.
    ///
    /// # Errors
    /// [`GradientError::Decode`] if the bytes are no model.
    ///
    /// # Panics
    /// If the vector is not one of these parameters.
    pub fn write_to_model(&self, model: Bytes, vector: &Tensor) -> Result<Bytes, GradientError> {
        let mut model = decode_model(model)?;
        let tensors = self.split_vector(vector);
        let graph = model.graph.get_or_insert_default();
        for initialiser in &mut graph.initializer {
            let name = initialiser.name().to_owned();
            let Some(tensor) = tensors.get(&name) else {
                continue;
            };
            let doc = initialiser.doc_string.take();
            *initialiser = tensor_to_proto(name, tensor);
            initialiser.doc_string = doc;
        }
        Ok(encode_model(&model))
    }
}

/// Makes inputs of those initialisers of a model that can be trained, and returns them. So the
/// import folds none of them into other constants.
///
/// # Errors
/// [`GradientError`] if one is not readable, or a prefix names none.
pub(super) fn take_candidates(
    model: &mut ModelProto,
    selection: &Selection,
) -> Result<Vec<Candidate>, GradientError> {
    let Some(graph) = &mut model.graph else {
        return Ok(Vec::new());
    };
    let names = || graph.initializer.iter().map(|it| it.name());
    if let Some(prefix) = selection
        .prefixes()
        .iter()
        .find(|prefix| !names().any(|name| name.starts_with(prefix.as_str())))
    {
        let prefix = prefix.clone();
        return Err(GradientError::UnknownPrefix { prefix });
    }
    let mut candidates = Vec::new();
    let mut kept = Vec::new();
    for initialiser in std::mem::take(&mut graph.initializer) {
        let name = initialiser.name().to_owned();
        let is_float = initialiser.data_type() == DType::F32.onnx_code();
        let is_frozen = !selection.has_name(&name);
        let is_empty = initialiser.element_count() == Some(0);
        if !is_float || initialiser.dims.is_empty() || is_frozen || is_empty {
            kept.push(initialiser);
            continue;
        }
        let value = tensor_from_proto(&initialiser).map_err(|cause| GradientError::Weight {
            name: name.clone(),
            cause,
        })?;
        if !graph.input.iter().any(|input| input.name() == name) {
            let dims = initialiser.dims.iter().copied().map(Dimension::new_fixed);
            let declared = ValueInfoProto::new_tensor(
                name.clone(),
                DType::F32.onnx_code(),
                Some(dims.collect()),
            );
            graph.input.push(declared);
        }
        candidates.push(Candidate { name, value });
    }
    graph.initializer = kept;
    Ok(candidates)
}
