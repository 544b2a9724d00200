//! Any bytes as `tokenizer.json`: what it reads it also writes and streams.
#![no_main]

use libfuzzer_sys::fuzz_target;
use souk_llm::tokens::{Marks, Tokenizer};

fuzz_target!(|bytes: &[u8]| {
    let Ok(tokenizer) = Tokenizer::read(bytes) else {
        return;
    };
    let _ = tokenizer.token_spellings();
    if let Ok(tokens) = tokenizer.encode("Köln 7 \u{1f642}", Marks::Added) {
        let mut stream = tokenizer.stream();
        for token in tokens {
            let _ = stream.push(token);
        }
        let _ = stream.finish();
    }
});
