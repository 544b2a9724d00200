//! Any bytes as a GGUF file: its metadata and places, or a refusal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use souk_llm::gguf::Gguf;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(file) = Gguf::read(&bytes.to_vec().into()) {
        let _ = (file.part_count(), file.tensor_names().count());
        let _ = file.join_parts(Vec::new());
    }
});
