//! souk: node.
