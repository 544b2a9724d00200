//! Tests language models end to end: writes small models, whose weights come from a hash, as
//! folders and GGUF files, opens them, and runs them on this machine's processor and GPU.

#![expect(clippy::unwrap_used, reason = "a test that fails stops at once")]

mod common;
mod cuts;
mod decoders;
mod embeddings;
mod experts;
mod gguf_files;
mod gguf_writer;
mod gpus;
mod k_quants;
mod tokenisers;
mod training;
