//! Language models: read from people's files, built as ONNX decoders, run token by token.
//!
//! [`model::LanguageModel`] opens a folder as Hugging Face's tools leave it, or a GGUF file;
//! [`decoder`] builds of it an ONNX model with states that every device of souk runs, or refuses by
//! name. [`generation`] steps a session of such a program: what it is a session of, a device of
//! this machine or a lease's, it does not know.

#![forbid(unsafe_code)]

pub mod answer;
pub mod bundled;
pub mod chat;
pub mod config;
pub mod decoder;
pub mod embedding;
pub mod generation;
pub mod gguf;
pub mod grammar;
pub mod model;
pub mod stopping;
pub mod tokens;
pub mod tools;
mod weights;

pub use souk_onnx::sampling;
