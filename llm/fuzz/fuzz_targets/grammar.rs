//! Any way through texts of a schema: a token that is allowed is taken, until a text is over.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use serde_json::json;
use souk_llm::grammar::{Grammar, Vocabulary};
use souk_llm::tokens::Tokenizer;

/// Steps of a text at most: each goes through the vocabulary.
const STEPS_MAX: usize = 64;

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let json = include_bytes!("../../models/glossary/tokenizer.json");
    Tokenizer::read(json).expect("it is the one that comes with souk")
});

static GRAMMARS: LazyLock<Vec<Grammar>> = LazyLock::new(|| {
    let vocabulary = Vocabulary::new(&TOKENIZER, &[0]).expect("its tokens have bytes");
    let schemas = [
        json!({ "type": "object", "required": ["a"], "properties": {
            "a": { "type": "string", "maxLength": 5 }, "b": { "type": "boolean" } } }),
        json!({ "type": "array", "items": { "type": "number" }, "maxItems": 4 }),
        json!({ "type": "integer", "minimum": -20, "maximum": 300, "multipleOf": 5 }),
        json!({ "enum": ["ж\n", 7, null] }),
        json!({ "type": "string", "format": "date-time" }),
        json!({ "type": "string", "pattern": "^(ab|c)*[x-z]?$" }),
        json!({ "anyOf": [{ "type": "object" }, { "type": "null" }] }),
    ];
    let made = |schema| vocabulary.compile_schema(schema).expect("it is within bounds");
    let mut grammars: Vec<Grammar> = schemas.iter().map(made).collect();
    grammars.push(vocabulary.or_after(made(&schemas[0]), "[CALL]", None));
    grammars
});

fuzz_target!(|bytes: &[u8]| {
    let Some((first, choices)) = bytes.split_first() else {
        return;
    };
    let mut matcher = GRAMMARS[*first as usize % GRAMMARS.len()].matcher();
    let tokens = TOKENIZER.token_spellings().expect("they have bytes").len() as u32;
    for choice in choices.iter().take(STEPS_MAX) {
        if matcher.is_over() {
            return;
        }
        let Ok(allowed) = matcher.allowed_tokens() else {
            return;
        };
        let fits: Vec<u32> = (0..tokens).filter(|token| allowed.contains(*token)).collect();
        assert!(allowed.may_end() || !fits.is_empty(), "a text goes on or ends");
        // What ends a text is none of it.
        let Some(token) = fits.iter().cycle().nth(*choice as usize).filter(|it| **it != 0) else {
            return;
        };
        matcher.push(*token).expect("it is allowed");
    }
});
