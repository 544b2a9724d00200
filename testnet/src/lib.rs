//! souk: testnet.
