//! Contains helpers for tests of what nodes say to each other and to inference engines. No crate
//! that people install uses it, except as a dev-dependency.
//!
//! A test tries damaged frames on the decoder of each message that a stranger can send:
//!
//! ```
//! use souk_node_testing::fuzzed;
//!
//! // The seed decides which damage is done; no decoder may panic or take much memory.
//! fuzzed::fuzz_decoder(1, &[None, Some(7_u32)]);
//! ```

#![forbid(unsafe_code)]

pub mod fake_engine;
pub mod fuzzed;
