//! Any JSON as a schema: a grammar whose first tokens are told, or a refusal.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use souk_llm::grammar::Vocabulary;
use souk_llm::tokens::Tokenizer;

static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| {
    let json = include_bytes!("../../models/glossary/tokenizer.json");
    let tokenizer = Tokenizer::read(json).expect("it is the one that comes with souk");
    Vocabulary::new(&tokenizer, &[0]).expect("its tokens have bytes")
});

fuzz_target!(|bytes: &[u8]| {
    let Ok(schema) = serde_json::from_slice(bytes) else {
        return;
    };
    if let Ok(grammar) = VOCABULARY.compile_schema(&schema) {
        let _ = grammar.matcher().allowed_tokens();
    }
});
