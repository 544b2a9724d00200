//! Converts the tokeniser of a GGUF file to an equivalent `tokenizer.json`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};

use super::super::ModelError;
use super::require_text;
use crate::gguf::{Gguf, Value};

/// How a tokeniser with a byte-level vocabulary splits a text into pieces, within which it merges.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PreTokenizer {
    /// As GPT-2.
    Gpt2,
    /// As GPT-2 does, and each digit is a piece.
    Digits,
    /// Words, then numbers in groups of three digits.
    Llama3,
    /// Words, then digit by digit.
    Qwen2,
    /// Words by case with their contractions, then numbers in groups of three digits.
    O200k,
    /// Words by case, then digit by digit.
    Tekken,
}

/// For each name of a split in files: the split, and whether a word that is a whole token skips
/// merging. The files of these also get a begin mark unless they say otherwise. As in llama.cpp,
/// several names mean one split.
const PRE_TOKENIZERS: [(&str, PreTokenizer, bool); 21] = [
    ("default", PreTokenizer::Gpt2, false),
    ("gpt-2", PreTokenizer::Gpt2, false),
    ("phi-2", PreTokenizer::Gpt2, false),
    ("olmo", PreTokenizer::Gpt2, false),
    ("mpt", PreTokenizer::Gpt2, false),
    ("smollm", PreTokenizer::Digits, false),
    ("starcoder", PreTokenizer::Digits, false),
    ("refact", PreTokenizer::Digits, false),
    ("command-r", PreTokenizer::Digits, false),
    ("llama-bpe", PreTokenizer::Llama3, true),
    ("llama3", PreTokenizer::Llama3, true),
    ("llama-v3", PreTokenizer::Llama3, true),
    ("falcon3", PreTokenizer::Llama3, true),
    ("dbrx", PreTokenizer::Llama3, false),
    ("smaug-bpe", PreTokenizer::Llama3, false),
    ("qwen2", PreTokenizer::Qwen2, false),
    ("deepseek-r1-qwen", PreTokenizer::Qwen2, false),
    ("megrez", PreTokenizer::Qwen2, false),
    ("gpt-4o", PreTokenizer::O200k, false),
    ("tekken", PreTokenizer::Tekken, true),
    ("pixtral", PreTokenizer::Llama3, true),
];

/// Patterns of English contractions, other words, other characters, and spaces.
const CONTRACTIONS: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const WORDS: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+";
const OTHER_CHARACTERS: &str = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Patterns of the prefix of a word, letters except lower case, and letters except upper case.
const WORD_PREFIX: &str = r"[^\r\n\p{L}\p{N}]?";
const NOT_LOWERCASE: &str = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]";
const NOT_UPPERCASE: &str = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]";
const OTHERS_AFTER_CASED_WORDS: &str = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Patterns of numbers in groups of at most three digits, and digit by digit.
const THREE_DIGITS: &str = r"\p{N}{1,3}";
const DIGIT: &str = r"\p{N}";

impl PreTokenizer {
    /// Returns the pre-tokeniser.
    fn to_json(self) -> Json {
        let split = |pattern: String| {
            json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
                    "invert": false},
                byte_level_json(false)]})
        };
        match self {
            Self::Gpt2 => byte_level_json(true),
            Self::Digits => {
                let digits = json!({"type": "Digits", "individual_digits": true});
                json!({"type": "Sequence", "pretokenizers": [digits, byte_level_json(true)]})
            }
            Self::Llama3 => split(format!(
                "{CONTRACTIONS}|{WORDS}|{THREE_DIGITS}|{OTHER_CHARACTERS}"
            )),
            Self::Qwen2 => split(format!("{CONTRACTIONS}|{WORDS}|{DIGIT}|{OTHER_CHARACTERS}")),
            Self::O200k => {
                let words = words_by_case(&format!("{CONTRACTIONS}?"));
                split(format!("{words}|{THREE_DIGITS}|{OTHERS_AFTER_CASED_WORDS}"))
            }
            Self::Tekken => {
                let words = words_by_case("");
                split(format!("{words}|{DIGIT}|{OTHERS_AFTER_CASED_WORDS}"))
            }
        }
    }
}

/// Returns the patterns of words that end in lower case, and of words that begin in upper case.
fn words_by_case(ending: &str) -> String {
    format!(
        "{WORD_PREFIX}{NOT_LOWERCASE}*{NOT_UPPERCASE}+{ending}|\
         {WORD_PREFIX}{NOT_LOWERCASE}+{NOT_UPPERCASE}*{ending}"
    )
}

fn byte_level_json(with_regex: bool) -> Json {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": with_regex})
}

/// The character that stands for a space in vocabularies of pieces.
const SPACE: &str = "\u{2581}";

/// Maximum bytes of a token: twice those of the longest known one.
const WORD_BYTES_MAX: usize = 1024;

/// Numbers of token kinds in files.
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

/// The vocabulary of a file: for each token id its word and its kind, and the ids of the marks.
struct FileVocabulary<'a> {
    tokens: Vec<&'a str>,
    kinds: Vec<u64>,
    begin: Option<usize>,
    /// The mark appended to a text.
    end: Option<usize>,
}

/// Returns the content of an equivalent `tokenizer.json`.
pub(super) fn tokenizer_json(file: &Gguf) -> Result<Json, ModelError> {
    let vocabulary = FileVocabulary::read(file)?;
    match require_text(file, "tokenizer.ggml.model")? {
        "gpt2" => byte_level_tokenizer(file, &vocabulary),
        "llama" => piece_tokenizer(file, &vocabulary),
        other => Err(unknown_value("tokenizer.ggml.model", other)),
    }
}

fn unknown_value(key: &'static str, value: &str) -> ModelError {
    let value = value.to_owned();
    ModelError::GgufTokenizer { key, value }
}

fn require_texts<'a>(file: &'a Gguf, key: &str) -> Result<Vec<&'a str>, ModelError> {
    let lacks = || ModelError::GgufLacks(key.to_owned());
    let values = file.metadata_array(key).ok_or_else(lacks)?;
    let text = |value: &'a Value| match value {
        Value::Text(text) => Some(text.as_str()),
        _ => None,
    };
    values
        .iter()
        .map(text)
        .collect::<Option<_>>()
        .ok_or_else(lacks)
}

impl<'a> FileVocabulary<'a> {
    fn read(file: &'a Gguf) -> Result<Self, ModelError> {
        let tokens = require_texts(file, "tokenizer.ggml.tokens")?;
        if let Some(word) = tokens.iter().find(|word| word.len() > WORD_BYTES_MAX) {
            let value = format!("a token of {} bytes", word.len());
            return Err(unknown_value("tokenizer.ggml.tokens", &value));
        }
        let kinds = file
            .metadata_array("tokenizer.ggml.token_type")
            .unwrap_or_default();
        let kind = |value: &Value| match value {
            Value::Unsigned(kind) => *kind,
            _ => 0,
        };
        let word = |key: &str| {
            let id = file
                .metadata_integer(key)
                .and_then(|id| usize::try_from(id).ok());
            id.filter(|id| *id < tokens.len())
        };
        Ok(Self {
            kinds: kinds.iter().map(kind).collect(),
            begin: word("tokenizer.ggml.bos_token_id"),
            end: word("tokenizer.ggml.eos_token_id"),
            tokens,
        })
    }

    fn ids_by_word(&self) -> BTreeMap<&'a str, usize> {
        let each = self.tokens.iter().enumerate();
        each.map(|(id, word)| (*word, id)).collect()
    }

    /// Returns the tokens that merging never makes.
    fn added_tokens(&self) -> Vec<Json> {
        let each = self.tokens.iter().enumerate();
        let added = each.filter_map(|(id, word)| {
            let kind = self.kinds.get(id).copied().unwrap_or(0);
            (kind == CONTROL || kind == USER_DEFINED).then(|| {
                json!({"id": id, "content": word, "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false, "special": kind == CONTROL})
            })
        });
        added.collect()
    }

    /// Returns a post-processor that adds marks around a text, if the file asks for it.
    fn post_processor(&self, file: &Gguf, otherwise: bool) -> Json {
        let wanted = |key: &str, otherwise: bool| match file.metadata.get(key) {
            Some(Value::Bool(wanted)) => *wanted,
            _ => otherwise,
        };
        let begins = wanted("tokenizer.ggml.add_bos_token", otherwise);
        let ends = wanted("tokenizer.ggml.add_eos_token", false);
        let (begin, end) = (self.begin.filter(|_| begins), self.end.filter(|_| ends));
        if begin.is_none() && end.is_none() {
            return Json::Null;
        }
        let mark = |id: usize| json!({"SpecialToken": {"id": self.tokens[id], "type_id": 0}});
        let text = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
        let framed = |texts: Vec<Json>| {
            let marks = (begin.map(mark), end.map(mark));
            let all = marks.0.into_iter().chain(texts).chain(marks.1);
            all.collect::<Vec<_>>()
        };
        let special = [begin, end].into_iter().flatten().map(|id| {
            let word = self.tokens[id];
            let token = json!({"id": word, "ids": [id], "tokens": [word]});
            (word.to_owned(), token)
        });
        json!({"type": "TemplateProcessing", "single": framed(vec![text("A")]),
            "pair": framed(vec![text("A"), text("B")]),
            "special_tokens": special.collect::<serde_json::Map<_, _>>()})
    }

    fn assemble_tokenizer(&self, file: &Gguf, begins: bool, parts: [Json; 3], model: Json) -> Json {
        let [normalizer, pre_tokenizer, decoder] = parts;
        json!({"version": "1.0", "truncation": null, "padding": null,
            "added_tokens": self.added_tokens(), "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": self.post_processor(file, begins),
            "decoder": decoder, "model": model})
    }
}

/// Returns the `tokenizer.json` of a byte-level vocabulary, whose merges are in the file.
fn byte_level_tokenizer(file: &Gguf, vocabulary: &FileVocabulary<'_>) -> Result<Json, ModelError> {
    let name = file
        .metadata_text("tokenizer.ggml.pre")
        .unwrap_or("default");
    let known = PRE_TOKENIZERS.iter().find(|(known, ..)| *known == name);
    let (_, cut, ignores_merges) =
        *known.ok_or_else(|| unknown_value("tokenizer.ggml.pre", name))?;
    let normalizer = match cut {
        PreTokenizer::Qwen2 => json!({"type": "NFC"}),
        _ => Json::Null,
    };
    let merges = require_texts(file, "tokenizer.ggml.merges")?;
    let model = json!({"type": "BPE", "dropout": null, "unk_token": null,
        "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
        "byte_fallback": false, "ignore_merges": ignores_merges, "vocab": vocabulary.ids_by_word(),
        "merges": merges});
    Ok(vocabulary.assemble_tokenizer(
        file,
        ignores_merges,
        [normalizer, cut.to_json(), byte_level_json(true)],
        model,
    ))
}

/// Returns the `tokenizer.json` of a vocabulary of pieces with scores; its merges follow from the
/// scores, the highest first.
fn piece_tokenizer(file: &Gguf, vocabulary: &FileVocabulary<'_>) -> Result<Json, ModelError> {
    let lacks = || ModelError::GgufLacks("tokenizer.ggml.scores".to_owned());
    let scores = file
        .metadata_array("tokenizer.ggml.scores")
        .ok_or_else(lacks)?;
    let score = |value: &Value| match value {
        Value::Float(score) => Some(*score),
        _ => None,
    };
    let scores: Vec<f64> = scores
        .iter()
        .map(score)
        .collect::<Option<_>>()
        .ok_or_else(lacks)?;
    let ids = vocabulary.ids_by_word();
    let unknown = vocabulary.kinds.iter().position(|kind| *kind == UNKNOWN);
    let unknown = unknown.and_then(|id| vocabulary.tokens.get(id));
    let model = json!({"type": "BPE", "dropout": null, "unk_token": unknown,
        "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
        "byte_fallback": true, "ignore_merges": false, "vocab": ids,
        "merges": merge_pairs(vocabulary, &ids, &scores)});
    let prefixed = !matches!(
        file.metadata.get("tokenizer.ggml.add_space_prefix"),
        Some(Value::Bool(false))
    );
    let replace = |from: &str, to: &str| {
        let from = json!({"String": from});
        json!({"type": "Replace", "pattern": from, "content": to})
    };
    let mut normalizers = vec![replace(" ", SPACE)];
    let mut decoders = vec![
        replace(SPACE, " "),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefixed {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let normalizer = json!({"type": "Sequence", "normalizers": normalizers});
    let decoder = json!({"type": "Sequence", "decoders": decoders});
    Ok(vocabulary.assemble_tokenizer(file, true, [normalizer, Json::Null, decoder], model))
}

/// Returns all pairs of pieces that form a piece, in merge order.
fn merge_pairs(
    vocabulary: &FileVocabulary<'_>,
    ids: &BTreeMap<&str, usize>,
    scores: &[f64],
) -> Vec<[String; 2]> {
    let special: BTreeSet<usize> = [CONTROL, USER_DEFINED]
        .into_iter()
        .flat_map(|kind| {
            let kinds = vocabulary.kinds.iter().enumerate();
            kinds.filter(move |(_, it)| **it == kind).map(|(id, _)| id)
        })
        .collect();
    let mut found = Vec::new();
    for (id, word) in vocabulary.tokens.iter().enumerate() {
        if special.contains(&id) {
            continue;
        }
        let score = scores.get(id).copied().unwrap_or(f64::NEG_INFINITY);
        let mut own: Vec<(usize, usize)> = word
            .char_indices()
            .skip(1)
            .filter_map(|(at, _)| Some((*ids.get(&word[..at])?, *ids.get(&word[at..])?)))
            .collect();
        own.sort_unstable();
        found.extend(own.into_iter().map(|pair| (score, pair)));
    }
    let length = |id: usize| vocabulary.tokens[id].chars().count();
    let order =
        |(score, (left, right)): &(f64, (usize, usize))| (*score, length(*left), length(*right));
    found.sort_by(|a, b| {
        let (a, b) = (order(a), order(b));
        b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)).then(b.2.cmp(&a.2))
    });
    let names = |(_, (left, right)): (f64, (usize, usize))| {
        [
            vocabulary.tokens[left].to_owned(),
            vocabulary.tokens[right].to_owned(),
        ]
    };
    found.into_iter().map(names).collect()
}
