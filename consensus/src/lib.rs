//! souk: consensus.
