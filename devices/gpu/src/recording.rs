//! Records the work of one run before the device gets it: arrays on the device, the stream of
//! kernels, and the node that is being recorded. GPU programs and the operators use it.

mod conversions;
mod epilogue;
mod matrix;
mod step;
mod stream;

pub(crate) use conversions::{narrow_array, narrow_by, widen_array};
pub(crate) use epilogue::{ElementFunction, Epilogue, FusedFunction};
pub(crate) use matrix::{Matrix, Scales};
pub(crate) use step::{Step, Value, tensor_from_words, to_word, upload_all, upload_tensor};
pub(crate) use stream::{Array, Groups, Stream};
