//! What tests of a node's messages share; no crate has it but for its tests.
//!
//! A test tries damaged frames on the decoder of each message that a stranger can send:
//!
//! ```
//! use souk_node_testing::fuzzed;
//!
//! // The seed decides which damage is done; no decoder may panic or take much memory.
//! fuzzed::try_messages(1, &[None, Some(7_u32)]);
//! ```

#![forbid(unsafe_code)]

pub mod fuzzed;
