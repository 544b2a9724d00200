//! ONNX models as Rust types: the messages, and the few questions everyone asks of them.
//!
//! The graph language of souk is ONNX, so these types are shared by every backend and by the
//! planner. [`decode`] tells a file that is no ONNX model from one that is cut short; attribute and
//! name accessors spare callers the protobuf's layers of options.

mod access;
mod constant;
pub mod custom;
mod decode;
pub mod graph;
mod placement;
mod proto;
pub mod ranks;
pub mod sample;
pub mod schema;
mod split;
pub mod states;
pub mod subgraph;
mod tensor;
pub mod types;
pub mod work;

pub use constant::constant;
pub use decode::{DecodeError, decode, encode};
pub use proto::*;
pub use split::{Split, SplitError, split_file};
pub use tensor::{TensorDataError, location, raw_bytes, tensor_from_proto, tensor_to_proto};
