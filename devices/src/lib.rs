//! souk: devices.
