//! Converts a subgraph to the form that ONNX Runtime loads, and opens a session of the library for
//! it. The weights are either inside the model, or the library reads them from souk's memory, so
//! that loading need not copy them.

use std::collections::BTreeMap;
use std::ptr::{self, NonNull};

use bytes::Bytes;
use ort::AsPointer;
use ort::memory::{Allocator, MemoryInfo};
use ort::session::Session;
use ort::session::builder::SessionBuilder;
use ort::value::DynValue;
use souk_memory::{ContentId, Tensor};
use souk_onnx as onnx;
use souk_onnx::TensorProto;
use souk_onnx::subgraph::{CompileError, Subgraph, weight_id};

use super::elements::to_element;

/// A model and its external weights.
pub(super) struct LoadedModel {
    /// The encoded ONNX model.
    pub model: Bytes,
    /// Tensors by the initializers' names. They must live as long as the session that reads them.
    pub beside: Vec<(String, Tensor)>,
}

impl LoadedModel {
    /// Converts a subgraph, with all its weights inside the model.
    pub fn with_embedded_weights(subgraph: &Subgraph) -> Result<Self, CompileError> {
        Self::new(subgraph, |_| false)
    }

    /// Converts a subgraph, and leaves aligned weights at their present address.
    pub fn with_external_weights(subgraph: &Subgraph) -> Result<Self, CompileError> {
        Self::new(subgraph, is_aligned)
    }

    fn new(subgraph: &Subgraph, stays: fn(&Tensor) -> bool) -> Result<Self, CompileError> {
        let mut model = subgraph.decode_model()?;
        let mut beside = Vec::new();
        let graph = model.graph.iter_mut();
        for initializer in graph.flat_map(|graph| &mut graph.initializer) {
            let Some(location) = onnx::external_location(initializer).map(str::to_owned) else {
                continue;
            };
            let values = find_weight(&location, initializer.name(), &subgraph.weights)?;
            let within = TensorProto {
                data_location: None,
                external_data: Vec::new(),
                raw_data: Some(values),
                ..initializer.clone()
            };
            match onnx::tensor_from_proto(&within) {
                Ok(tensor) if stays(&tensor) => {
                    beside.push((initializer.name().to_owned(), tensor));
                }
                _ => *initializer = within,
            }
        }
        Ok(Self {
            model: onnx::encode_model(&model),
            beside,
        })
    }
}

fn find_weight(
    location: &str,
    name: &str,
    weights: &BTreeMap<ContentId, Bytes>,
) -> Result<Bytes, CompileError> {
    let name = name.to_owned();
    let Some(id) = weight_id(location) else {
        let location = location.to_owned();
        return Err(CompileError::WeightPlace { name, location });
    };
    let found = weights.get(&id).cloned();
    found.ok_or(CompileError::WeightMissing { name, id })
}

/// Returns whether the library can read the elements at their present address.
fn is_aligned(tensor: &Tensor) -> bool {
    let width = tensor.dtype().byte_width();
    let address = tensor.bytes().as_ptr().addr();
    to_element(tensor.dtype()).is_some() && width.is_some_and(|width| address.is_multiple_of(width))
}

/// A session and the weights that it reads.
pub(super) struct OpenSession {
    // The session must be dropped before the weights that it reads.
    pub session: Session,
    _beside: Vec<(String, Tensor)>,
}

impl OpenSession {
    /// Opens a session for a model. If the library refuses it, returns the model with the library's
    /// message.
    #[expect(unsafe_code, reason = "the session borrows what is kept beside it")]
    pub fn new(
        loaded: LoadedModel,
        builder: impl FnOnce() -> Result<SessionBuilder, String>,
    ) -> Result<Self, (LoadedModel, String)> {
        let session = || {
            let mut builder = builder()?;
            for (name, tensor) in &loaded.beside {
                // SAFETY: nothing writes to tensors, and these are dropped after the session.
                let value = unsafe { borrow_tensor(tensor) }?;
                let with = builder.with_external_initializer(name, value);
                builder = with.map_err(|error| error.to_string())?;
            }
            let session = builder.commit_from_memory(&loaded.model);
            session.map_err(|error| error.to_string())
        };
        match session() {
            Ok(session) => Ok(Self {
                session,
                _beside: loaded.beside,
            }),
            Err(said) => Err((loaded, said)),
        }
    }
}

/// Wraps a tensor for the library, which reads it at its present address.
///
/// # Safety
/// The tensor's bytes must stay at their address while the value, or a session that uses it, lives;
/// neither must write to them.
#[expect(
    unsafe_code,
    reason = "ort borrows only what is of a type known when it is built"
)]
pub(super) unsafe fn borrow_tensor(tensor: &Tensor) -> Result<DynValue, String> {
    let element = to_element(tensor.dtype()).ok_or_else(|| format!("no {}", tensor.dtype()))?;
    let memory = MemoryInfo::default();
    let dims: Vec<i64> = tensor.dims().iter().map(|&size| size as i64).collect();
    let bytes = tensor.bytes();
    let mut made = ptr::null_mut();
    // SAFETY: all pointers are valid until the call returns. The one to the bytes, whose length is
    // passed too, is valid for longer, as the caller guarantees.
    let status = unsafe {
        (ort::api().CreateTensorWithDataAsOrtValue)(
            memory.ptr(),
            bytes.as_ptr().cast_mut().cast(),
            bytes.len(),
            dims.as_ptr(),
            dims.len(),
            element.into(),
            &raw mut made,
        )
    };
    // SAFETY: the status comes from the library, and is returned to it once.
    unsafe { ort::Error::result_from_status(status) }.map_err(|error| error.to_string())?;
    let made = NonNull::new(made).ok_or("no tensor was made")?;
    // SAFETY: the call above created the tensor, and nothing else refers to it.
    Ok(unsafe { DynValue::from_ptr(made, Some(&Allocator::default())) })
}
