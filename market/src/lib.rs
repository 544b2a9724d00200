//! souk: market.
