//! Any bytes as a safetensors file: what is read is written and read again as the same.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use souk_memory::safetensors;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(tensors) = safetensors::read(&Bytes::copy_from_slice(bytes))
        && let Ok(written) = safetensors::write(&tensors)
    {
        assert_eq!(safetensors::read(&written.into()).ok(), Some(tensors));
    }
});
