//! Any bytes as a file of NumPy: what is read is written and read again as the same.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use souk_memory::npy;

fuzz_target!(|bytes: &[u8]| {
    let file = Bytes::copy_from_slice(bytes);
    let _ = npy::read_texts(&file);
    if let Ok(tensor) = npy::read(&file)
        && let Ok(written) = npy::write(&tensor)
    {
        assert_eq!(npy::read(&written.into()), Ok(tensor));
    }
});
