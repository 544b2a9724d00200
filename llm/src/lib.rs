//! Language models: reads them from public file formats, builds them as ONNX decoders, and runs
//! them token by token. The crate also has chat templates, tool calls, grammars, adapters (LoRA),
//! training data, and the scoring of answers.
//!
//! [`model::LanguageModel`] opens a folder in the layout of Hugging Face's tools, or a GGUF file;
//! [`decoder`] turns it into an ONNX model with states that every souk device runs, or names the
//! unsupported feature. [`generation`] steps a session of such a program and does not know whether
//! a device of this machine or a lease runs it.

#![forbid(unsafe_code)]

pub mod adapter;
pub mod answer;
pub mod answer_scoring;
pub mod bundled_model;
pub mod chat;
pub mod config;
pub mod decoder;
pub mod embedding;
pub mod generation;
pub mod gguf;
pub mod grammar;
pub mod model;
pub mod stop_strings;
pub mod tokens;
pub mod tools;
pub mod training;
mod weights;

pub use souk_onnx::sampling;
