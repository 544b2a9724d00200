//! The work recorded for one run: arrays, the stream of kernels, and a node under recording.

mod conversions;
mod matrix;
mod step;
mod stream;
mod tail;

pub(crate) use conversions::{narrow, narrow_by, widen};
pub(crate) use matrix::{Matrix, Scales};
pub(crate) use step::{Step, Value, tensor, upload, upload_all, word};
pub(crate) use stream::{Array, Groups, Stream};
pub(crate) use tail::{FusedFunction, Tail, Then};
