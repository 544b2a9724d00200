//! Tensors, content ids, tensor files and the content-addressed store.
//!
//! Content (for example a tensor or a model) is a sequence of bytes named by its BLAKE3 hash, so
//! souk need not send, store or compute anything twice, and can detect every change. [`holdings`]
//! records which places have a copy and finds the fastest route for a new one over [`paths`];
//! [`space`] moves the bytes. This crate does not know devices, money or the network.
//!
//! ```
//! use souk_memory::{ContentId, Store, Tensor};
//!
//! let store = Store::in_memory(1 << 20);
//! let tensor = Tensor::from_vec([2, 2], vec![1f32, 2.0, 3.0, 4.0])?;
//! let id = store.put_tensor(&tensor)?;
//! assert_eq!(id, ContentId::for_content(&tensor.to_blob()));
//!
//! let found = store.get_tensor(&id)?.ok_or("it was put there")?;
//! assert_eq!(found.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
//! assert!(store.put_as(id, "another content".into()).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod allowance;
mod arrival;
mod content_id;
mod dtype;
mod element;
pub mod holdings;
pub mod location;
pub mod npy;
mod outline;
pub mod paths;
pub mod prefetch_predictor;
mod room;
pub mod safetensors;
mod shape;
pub mod space;
mod store;
mod tensor;
pub mod transfers;

pub use arrival::{Arrival, CheckedFrame, CorruptFrame, Frame, VerifiedContent};
pub use content_id::{ContentId, ContentIdError};
pub use dtype::{DType, DTypeError};
pub use element::{Bf16, Element, F16};
pub use outline::{FRAME_BYTES, FrameHash, Outline, OutlineError};
pub use shape::{RANK_MAX, Shape, ShapeError};
pub use store::{
    FolderError, HeldContent, Store, StoreConfig, StoreConfigError, StoreError, StoreUse,
    StoredContent,
};
pub use tensor::{Tensor, TensorError};
