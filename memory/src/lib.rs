//! souk: memory.
