//! Models made of a hash, written as people's files, opened, and run on this machine's
//! processor and its GPU.

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
