//! Tests tokenisers: for 10,000 strings each must return the same tokens as Python's library
//! `tokenizers`.

use serde::Deserialize;
use serde_json::Value;
use souk_llm::model::LanguageModel;
use souk_llm::tokens::{Marks, Tokenizer};

use super::common::mixed;
use super::gguf_writer::Writer;

/// Strings that each is tried with.
const STRINGS: u64 = 10_000;

/// What strings are put together from, as in `reference/tokenisers.py`.
const PIECES: [&str; 47] = [
    "the",
    " market",
    "provider",
    "Lease",
    "'s",
    "'LL",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "1",
    "23",
    "4567",
    "3.14",
    "e",
    "é",
    "e\u{301}",
    "ñ",
    "ß",
    "你好",
    "世界",
    "日本",
    "한국",
    "مرحبا",
    "שלום",
    "🙂",
    "👩\u{200d}🚀",
    "\u{a0}",
    "\u{2003}",
    "\u{200b}",
    ",",
    ".",
    "!?",
    "...",
    "->",
    "::",
    "{}",
    "<s>",
    "</s>",
    "_",
    "CamelCase",
    "snake_case",
    "0x7f",
    "%",
    "—",
    "\u{2581}",
];
/// The last of them, which no source shows.
const UNSHOWN: [&str; 2] = ["\0", "\u{7f}"];

/// A vocabulary and what Python made with it.
#[derive(Deserialize)]
struct Case {
    tokenizer: Value,
    digest: String,
}

impl Case {
    fn read(name: &str) -> Self {
        let path = format!(
            "{}/tests/reference/tokeniser-{name}.json",
            env!("CARGO_MANIFEST_DIR")
        );
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }
}

fn string(number: u64) -> String {
    let pieces = [&PIECES[..], &UNSHOWN[..]].concat();
    let piece = |at: u64| pieces[(mixed(number * 64 + at + 1) % pieces.len() as u64) as usize];
    (0..mixed(number) % 12).map(piece).collect()
}

fn digest(tokenizer: &Tokenizer) -> String {
    let mut seed = 0xcbf2_9ce4_8422_2325u64;
    for number in 0..STRINGS {
        let mut ids = tokenizer.encode(&string(number), Marks::Added).unwrap();
        ids.push(u32::MAX);
        for byte in ids.into_iter().flat_map(u32::to_le_bytes) {
            seed = (seed ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    format!("{seed:016x}")
}

#[test]
fn ten_thousand_strings_are_the_tokens_that_python_makes() {
    for name in ["byte-level", "pieces", "unigram"] {
        let case = Case::read(name);
        let tokenizer = Tokenizer::read(case.tokenizer.to_string().as_bytes()).unwrap();
        assert_eq!(digest(&tokenizer), case.digest, "{name}");
    }
}

/// The words of a vocabulary in their order.
fn words(tokenizer: &Value) -> Vec<String> {
    let vocabulary = tokenizer["model"]["vocab"].as_object().unwrap();
    let mut words: Vec<(u64, String)> = vocabulary
        .iter()
        .map(|(word, id)| (id.as_u64().unwrap(), word.clone()))
        .collect();
    words.sort();
    words.into_iter().map(|(_, word)| word).collect()
}

/// A GGUF file with no more than a vocabulary and the least of a model.
fn opened(mut writer: Writer) -> Tokenizer {
    writer.text("general.architecture", "llama");
    for key in [
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "context_length",
    ] {
        writer.number(&format!("llama.{key}"), 2);
    }
    writer.number("llama.attention.head_count", 1);
    writer.float("llama.attention.layer_norm_rms_epsilon", 1e-5);
    writer.number("tokenizer.ggml.bos_token_id", 0);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, writer.finish()).unwrap();
    LanguageModel::open(&path).unwrap().tokenizer
}

#[test]
fn a_vocabulary_of_bytes_is_the_same_from_a_gguf_file() {
    let case = Case::read("byte-level");
    let mut writer = Writer::default();
    writer.text("tokenizer.ggml.model", "gpt2");
    writer.text("tokenizer.ggml.pre", "llama-bpe");
    let words = words(&case.tokenizer);
    writer.texts("tokenizer.ggml.tokens", &words);
    let kind = |at: usize| if at < 2 { 3 } else { 1 };
    writer.numbers(
        "tokenizer.ggml.token_type",
        &(0..words.len()).map(kind).collect::<Vec<_>>(),
    );
    let merges = case.tokenizer["model"]["merges"].as_array().unwrap();
    let merge = |pair: &Value| {
        format!(
            "{} {}",
            pair[0].as_str().unwrap(),
            pair[1].as_str().unwrap()
        )
    };
    writer.texts(
        "tokenizer.ggml.merges",
        &merges.iter().map(merge).collect::<Vec<_>>(),
    );
    assert_eq!(digest(&opened(writer)), case.digest);
}

#[test]
fn a_way_of_cutting_that_is_not_known_is_refused_by_name() {
    let mut writer = Writer::default();
    writer.text("general.architecture", "llama");
    writer.text("tokenizer.ggml.model", "gpt2");
    writer.text("tokenizer.ggml.pre", "deepseek-v3");
    writer.texts("tokenizer.ggml.tokens", &["a".to_owned()]);
    for key in [
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "context_length",
    ] {
        writer.number(&format!("llama.{key}"), 2);
    }
    writer.number("llama.attention.head_count", 1);
    writer.float("llama.attention.layer_norm_rms_epsilon", 1e-5);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, writer.finish()).unwrap();
    let refused = LanguageModel::open(&path).err().unwrap().to_string();
    assert_eq!(refused, "tokenizer.ggml.pre = deepseek-v3 is not known");
}
