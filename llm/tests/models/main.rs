//! Models made of a hash, written as people's files, opened, and run on this machine's processor.

#![expect(clippy::unwrap_used, reason = "a test that fails stops at once")]

mod common;
mod cuts;
mod decoders;
mod gguf_files;
mod gguf_writer;
mod k_quants;
mod tokenisers;
