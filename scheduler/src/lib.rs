//! souk: scheduler.
