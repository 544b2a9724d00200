//! ONNX models as Rust types, and what can be done with a model without a device: decode it,
//! rewrite it as standard operators ([`expansion`]), infer the ranks and types of its values, find
//! its states, and count its work.
//!
//! ONNX is souk's graph language, so all backends and the planner share these types.
//! [`decode_model`] distinguishes a file that is not an ONNX model from a truncated one; accessors
//! for attributes and names spare you the protobuf's nested options. A model can come from a
//! stranger, so decoding will refuse one that exceeds a limit ([`budget`]).
//!
//! ```
//! let file = std::fs::read("../../testnet/models/digits/digits.onnx")?;
//! let model = souk_onnx::decode_model(file.into())?;
//! assert_eq!(model.opset(""), Some(17));
//! let graph = model.graph.ok_or("a model has a graph")?;
//! let products = graph.node.iter().filter(|node| node.op_type() == "Gemm");
//! assert_eq!(products.count(), 2);
//!
//! assert!(souk_onnx::decode_model("no model".into()).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod access;
pub mod budget;
mod constant;
pub mod custom;
mod decode;
pub mod expansion;
pub mod graph;
pub mod liveness;
mod placement;
mod proto;
pub mod ranks;
pub mod routing;
pub mod sample;
pub mod sampling;
pub mod schema;
mod split;
pub mod states;
pub mod subgraph;
mod tensor;
pub mod types;
pub mod work;

pub use access::CLASSICAL_DOMAIN;
pub use constant::constant_value;
pub use decode::{DecodeError, decode_model, encode_attribute, encode_model};
pub use proto::*;
pub use split::{Split, SplitError, split_file};
pub use tensor::{
    TensorDataError, external_location, raw_bytes, tensor_from_proto, tensor_to_proto,
};
