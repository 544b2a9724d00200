//! Tests texts that must match a grammar (JSON of a schema), whose tokens are drawn from
//! pseudo-random logits that do not follow the grammar.

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::*;
use crate::grammar::{GrammarError, Vocabulary};
use crate::tokens::{Marks, Tokenizer};

/// The token that ends the texts of the model that comes with souk.
const END: u32 = 0;

/// A tokeniser with what ends its texts, and its tokens as grammars read them.
struct Words {
    tokenizer: Tokenizer,
    ends: Vec<u32>,
    vocabulary: Vocabulary,
}

impl Words {
    fn new(tokenizer: Tokenizer, ends: Vec<u32>) -> Self {
        let vocabulary = Vocabulary::new(&tokenizer, &ends).unwrap();
        Self {
            tokenizer,
            ends,
            vocabulary,
        }
    }
}

/// Those of the model that comes with souk.
static BUNDLED: LazyLock<Words> = LazyLock::new(|| Words::new(bundled(), vec![END]));

fn bundled() -> Tokenizer {
    Tokenizer::read(include_bytes!("../../../models/glossary/tokenizer.json")).unwrap()
}

/// A tokeniser beside the references that Python's tools made.
fn reference(json: &str) -> Tokenizer {
    let reference: Value = serde_json::from_str(json).unwrap();
    Tokenizer::read(reference["tokenizer"].to_string().as_bytes()).unwrap()
}

fn mixed(word: u64) -> u64 {
    let word = (word ^ (word >> 31)).wrapping_mul(0x7fb5_d329_728e_a185);
    let word = (word ^ (word >> 27)).wrapping_mul(0x81da_def4_bc2d_d44d);
    word ^ (word >> 33)
}

/// A session whose logits are made of the token before them, and lean to some.
struct Noise {
    seed: u64,
    tokens: usize,
    likelier: Vec<u32>,
}

impl Noise {
    /// Over a vocabulary, leaning to what closes texts, strings, objects and lists.
    fn new(tokenizer: &Tokenizer, tokens: usize, seed: u64) -> Self {
        let closing = ["\"", "}", "]", "\",", "\":"];
        let mut likelier: Vec<u32> = closing.iter().filter_map(|it| tokenizer.id(it)).collect();
        likelier.push(END);
        Self {
            seed,
            tokens,
            likelier,
        }
    }

    fn logit(&self, before: i64, token: u32) -> f32 {
        let mixed = mixed(mixed(self.seed ^ before.cast_unsigned()) ^ u64::from(token));
        let noise = (mixed >> 40) as f32 / (1u32 << 24) as f32;
        let lean = if self.likelier.contains(&token) {
            5.0
        } else {
            0.0
        };
        4.0 * noise + lean
    }

    fn said(&self, inputs: &BTreeMap<String, Tensor>) -> Outcome {
        let integers = |name: &str| inputs[name].to_vec::<i64>().unwrap();
        let (tokens, rows) = (integers(TOKENS), integers(ROWS));
        let logits = rows.iter().flat_map(|&row| {
            let before = tokens[row as usize];
            (0..self.tokens as u32).map(move |token| self.logit(before, token))
        });
        of_logits(inputs, &logits.collect::<Vec<f32>>(), self.tokens)
    }
}

impl Session for Noise {
    fn step_all(&mut self, steps: &[SequenceStep]) -> Vec<Result<Outcome, RunError>> {
        let each = steps.iter().map(|step| self.said(&step.inputs));
        each.map(Ok).collect()
    }

    fn export_states(&self, _: u32) -> Result<BTreeMap<String, Tensor>, RunError> {
        Ok(BTreeMap::new())
    }
}

/// What is asked of a text beside its grammar.
#[derive(Clone, Debug)]
struct Wish {
    seed: u64,
    sampling: Sampling,
    tokens_max: usize,
    drafts_max: usize,
}

impl Wish {
    fn of_seed(seed: u64) -> Self {
        Self {
            seed,
            sampling: Sampling {
                temperature: 1.0,
                seed,
                ..Sampling::default()
            },
            tokens_max: 200,
            drafts_max: 0,
        }
    }

    /// A text of a schema, its tokens, and how it was generated.
    fn written(
        &self,
        words: &Words,
        schema: &Value,
    ) -> Result<(String, Vec<u32>, GenerationOutcome), GenerationError> {
        let tokenizer = &words.tokenizer;
        let grammar = words.vocabulary.compile_schema(schema).unwrap();
        // Models have logits of more tokens than their tokenisers.
        let width = tokenizer.token_spellings().unwrap().len() + 9;
        let session = Noise::new(tokenizer, width, self.seed);
        let mut sequence = Sequence::new(Box::new(session), 4096);
        let request = Request {
            prompt: &tokenizer.encode("lease", Marks::Own).unwrap(),
            sampling: &self.sampling,
            ends: &words.ends,
            grammar: Some(&grammar),
            tokens_max: self.tokens_max,
            drafts_max: self.drafts_max,
            likeliest: None,
            is_wanted: &|| true,
        };
        let (mut stream, mut tokens, mut text) = (tokenizer.stream(), Vec::new(), String::new());
        let generated = generate(&mut sequence, &request, |token| {
            text.push_str(&stream.push(token.id).unwrap());
            tokens.push(token.id);
            ControlFlow::Continue(())
        })?;
        text.push_str(&stream.finish().unwrap());
        Ok((text, tokens, generated))
    }
}

/// Schemas, and the more that texts have in them the later they come.
fn schemas() -> Vec<Value> {
    vec![
        json!({ "enum": ["Mietvertrag für \"alle\"", "ж\n", 7, null, true] }),
        json!({ "type": "integer", "minimum": -20, "maximum": 300 }),
        json!({ "type": "array", "items": { "type": "number" }, "minItems": 1, "maxItems": 4 }),
        json!({ "type": "string", "minLength": 2, "maxLength": 9 }),
        json!({
            "type": "object", "required": ["ж\"", "price"], "additionalProperties": false,
            "properties": {
                "price": { "type": "number" },
                "ж\"": { "type": "string", "maxLength": 20 },
                "kind": { "enum": ["cpu", "gpu"] },
                "is_sold": { "type": "boolean" },
            },
        }),
        json!({
            "type": "object", "required": ["leases"], "additionalProperties": false,
            "properties": { "leases": {
                "type": "array", "maxItems": 3, "items": { "$ref": "#/$defs/lease" },
            } },
            "$defs": { "lease": {
                "type": "object", "required": ["id", "of"], "additionalProperties": false,
                "properties": {
                    "id": { "type": "integer" },
                    "of": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
                },
            } },
        }),
        json!({ "type": "object" }),
    ]
}

/// Whether JSON fulfils a schema of those above: said again, and simply.
fn fulfils(schema: &Value, root: &Value, value: &Value) -> bool {
    let number = |name: &str| schema[name].as_f64();
    if let Some(name) = schema["$ref"].as_str() {
        return fulfils(root.pointer(&name[1..]).unwrap(), root, value);
    }
    if let Some(any) = schema["anyOf"].as_array() {
        return any.iter().any(|one| fulfils(one, root, value));
    }
    if let Some(any) = schema["enum"].as_array() {
        return any.contains(value);
    }
    let within = |size: f64, [least, most]: [&str; 2]| {
        number(least).is_none_or(|it| size >= it) && number(most).is_none_or(|it| size <= it)
    };
    match (schema["type"].as_str().unwrap(), value) {
        ("null", Value::Null) | ("boolean", Value::Bool(_)) => true,
        ("number", Value::Number(it)) => within(it.as_f64().unwrap(), ["minimum", "maximum"]),
        ("integer", Value::Number(it)) => {
            let it = it.as_f64().unwrap();
            it.fract() == 0.0 && within(it, ["minimum", "maximum"])
        }
        ("string", Value::String(it)) => {
            within(it.chars().count() as f64, ["minLength", "maxLength"])
        }
        ("array", Value::Array(items)) => {
            let each = items.iter().all(|it| fulfils(&schema["items"], root, it));
            each && within(items.len() as f64, ["minItems", "maxItems"])
        }
        ("object", Value::Object(fields)) => {
            let required = schema["required"].as_array().into_iter().flatten();
            let has_all = { required }.all(|name| fields.contains_key(name.as_str().unwrap()));
            let known = |(name, it): (&String, &Value)| match schema["properties"].get(name) {
                Some(schema) => fulfils(schema, root, it),
                None => schema["additionalProperties"] != json!(false),
            };
            has_all && fields.iter().all(known)
        }
        _ => false,
    }
}

/// A text is JSON, and fulfils its schema as far as its numbers are those of 64 bits: JSON's may
/// have more digits than that.
fn assert_fulfils(schema: &Value, text: &str) {
    let told = serde_json::from_str::<IgnoredAny>(text);
    assert!(told.is_ok(), "{text:?}: {told:?}");
    if let Ok(value) = serde_json::from_str(text) {
        assert!(fulfils(schema, schema, &value), "{schema} {text}");
    }
}

/// Ways to draw tokens.
fn sampling() -> impl Strategy<Value = Sampling> {
    let numbers = (0.0..1.5, 0usize..40, 0.3..=1.0, 0.0..0.2, 0.8..1.3);
    (numbers, any::<u64>()).prop_map(|(numbers, seed)| Sampling {
        temperature: if numbers.0 < 0.3 { 0.0 } else { numbers.0 },
        top_k: numbers.1,
        top_p: numbers.2,
        min_p: numbers.3,
        repetition: numbers.4,
        frequency: 0.2,
        presence: 0.1,
        bias: BTreeMap::from([(5, 7.0), (94, 9.0), (96, -3.0)]),
        seed,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_text_that_ends_by_itself_fulfils_its_schema(
        seed in any::<u64>(), sampling in sampling(), at in 0usize..7,
    ) {
        let schema = &schemas()[at];
        let wish = Wish { sampling, ..Wish::of_seed(seed) };
        let (text, _, generated) = wish.written(&BUNDLED, schema).unwrap();
        if generated.ending != Ending::Length {
            assert_fulfils(schema, &text);
        }
    }

    #[test]
    fn drafts_change_no_text_of_a_grammar(seed in any::<u64>(), at in 0usize..7) {
        let schema = &schemas()[at];
        let wish = Wish { tokens_max: 120, ..Wish::of_seed(seed) };
        let without = wish.written(&BUNDLED, schema).unwrap();
        let drafting = Wish { drafts_max: 8, ..wish };
        let with = drafting.written(&BUNDLED, schema).unwrap();
        prop_assert_eq!((with.1, with.2.ending), (without.1, without.2.ending));
    }
}

#[test]
fn most_texts_end_by_themselves_and_drafts_are_right_and_wrong() {
    let (mut drafted, mut accepted) = (0, 0);
    for (at, schema) in schemas().iter().enumerate() {
        let written = (0..12).map(|seed| {
            let wish = Wish {
                drafts_max: 8,
                ..Wish::of_seed(seed)
            };
            wish.written(&BUNDLED, schema).unwrap()
        });
        let written: Vec<_> = written.collect();
        let ended = written.iter().filter(|it| it.2.ending != Ending::Length);
        assert!(ended.count() >= 6, "schema {at}: {written:?}");
        let texts: BTreeSet<&str> = written.iter().map(|it| it.0.as_str()).collect();
        assert!(texts.len() > 2, "schema {at}: {texts:?}");
        drafted += written.iter().map(|it| it.2.drafted).sum::<usize>();
        accepted += written.iter().map(|it| it.2.accepted).sum::<usize>();
    }
    assert!(
        0 < accepted && accepted < drafted,
        "{accepted} of {drafted}"
    );
}

#[test]
fn a_text_that_is_whole_ends_though_the_model_has_no_token_for_that() {
    let schema = json!({ "type": "object", "additionalProperties": false,
        "properties": { "kind": { "enum": ["cpu", "gpu"] } }, "required": ["kind"] });
    let endless = Words::new(bundled(), Vec::new());
    let (text, _, generated) = Wish::of_seed(3).written(&endless, &schema).unwrap();
    assert_eq!(generated.ending, Ending::Grammar, "{text}");
    assert_fulfils(&schema, &text);
}

#[test]
fn a_text_that_is_cut_off_says_so() {
    let wish = Wish {
        tokens_max: 5,
        ..Wish::of_seed(1)
    };
    let (text, tokens, generated) = wish.written(&BUNDLED, &schemas()[4]).unwrap();
    assert_eq!((tokens.len(), generated.ending), (5, Ending::Length));
    assert!(serde_json::from_str::<Value>(&text).is_err(), "{text}");
}

#[test]
fn pieces_with_bytes_of_their_own_write_json_too() {
    let json = include_str!("../../../tests/reference/tokeniser-pieces.json");
    let words = Words::new(reference(json), vec![2]);
    for seed in 0..6 {
        let wish = Wish::of_seed(seed);
        for schema in schemas() {
            let (text, _, generated) = wish.written(&words, &schema).unwrap();
            if generated.ending != Ending::Length {
                assert_fulfils(&schema, &text);
            }
        }
    }
}

/// A tokeniser of a few words alone.
fn of_words(words: &[&str]) -> Tokenizer {
    let vocabulary = words
        .iter()
        .zip(0..)
        .map(|(word, id)| (word.to_string(), id));
    let vocabulary: BTreeMap<String, u32> = vocabulary.collect();
    let json = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
        "pre_tokenizer": null, "decoder": { "type": "Fuse" },
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "lease" },
    });
    Tokenizer::read(json.to_string().as_bytes()).unwrap()
}

#[test]
fn a_text_that_no_token_goes_on_with_is_an_error_by_name() {
    let words = Words::new(of_words(&["end", "lease", "\"", "a"]), vec![END]);
    let written = Wish::of_seed(1).written(&words, &json!({ "const": "ab" }));
    let error = written.unwrap_err();
    assert!(
        matches!(error, GenerationError::Match(MatchError::DeadEnd)),
        "{error}"
    );
}

#[test]
fn what_no_grammar_has_is_refused_with_the_reason() {
    let refused = |schema: Value| match BUNDLED.vocabulary.compile_schema(&schema) {
        Err(GrammarError::Schema { reason }) => reason,
        other => panic!("{schema} is {:?}", other.map(|_| "made").err()),
    };
    for (schema, reason) in [
        (json!({ "type": "objekt" }), "objekt"),
        (
            json!({ "type": "array", "uniqueItems": true }),
            "uniqueItems",
        ),
        (json!({ "$ref": "https://example.org/a" }), "example.org"),
        (json!({ "$ref": "#/$defs/none" }), "none"),
        (json!({ "type": "string", "pattern": "(?=a)b" }), "(?=a)b"),
        (
            json!({ "allOf": [{ "type": "null" }, { "type": "string" }] }),
            "nsatisfiable",
        ),
        (json!("text"), "object"),
    ] {
        let told = refused(schema);
        assert!(told.contains(reason), "{told}");
        assert!(!told.contains('\n'), "{told}");
    }
    let depends = Tokenizer::read(
        json!({
            "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
            "pre_tokenizer": null, "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
            "model": { "type": "WordLevel", "vocab": { "a": 0 }, "unk_token": "a" },
        })
        .to_string()
        .as_bytes(),
    );
    let told = Vocabulary::new(&depends.unwrap(), &[])
        .err()
        .unwrap()
        .to_string();
    assert!(told.contains("WordPiece"), "{told}");
}

/// Each took seconds and gigabytes, or would take more than that.
#[test]
fn a_schema_beyond_bounds_is_refused_by_name() {
    let pattern = |at: usize| json!({ "pattern": format!("^.*[a-f]{{{at}}}.*x.{{{at}}}$") });
    let nested = (0..100).fold(json!({}), |within, _| json!({ "items": within }));
    let inner = (0..30).fold(pattern(0), |within, at| {
        let mut outer = pattern(at);
        outer["allOf"] = json!([within]);
        outer
    });
    let wide = |count: usize| {
        let names = (0..count).map(|at| (format!("p{at}"), json!({ "type": "string" })));
        json!({ "type": "object", "properties": names.collect::<serde_json::Map<_, _>>() })
    };
    let counted = |count: usize| {
        let mut schema = wide(count);
        schema["minProperties"] = json!(1);
        schema["additionalProperties"] = json!(false);
        schema
    };
    let refused = [
        (
            json!({ "allOf": (0..40).map(pattern).collect::<Vec<_>>() }),
            "of 40 patterns",
        ),
        (
            json!({ "type": "integer", "multipleOf": 999_983 }),
            "multipleOf",
        ),
        (
            json!({ "type": "number", "multipleOf": 0.000_003_7 }),
            "multipleOf",
        ),
        (inner, "patterns"),
        (
            json!({ "allOf": [{ "multipleOf": 1999 }, { "multipleOf": 1997 }] }),
            "states",
        ),
        (nested, "deeper"),
        (wide(30_000), "bytes"),
        (wide(1_000), "properties"),
        (counted(200), "properties"),
        (json!({ "enum": vec![0; 30_000] }), "values"),
    ];
    for (schema, reason) in refused {
        let began = Instant::now();
        let Err(GrammarError::Schema { reason: told }) = BUNDLED.vocabulary.compile_schema(&schema)
        else {
            panic!("{schema} is made");
        };
        assert!(told.contains(reason), "{told}");
        // A tenth of a second, of a build that is not optimised and has no core to itself.
        assert!(began.elapsed() < Duration::from_secs(2), "{told}");
    }
    assert!(BUNDLED.vocabulary.compile_schema(&wide(500)).is_ok());
    assert!(BUNDLED.vocabulary.compile_schema(&counted(40)).is_ok());
    let prices = json!({ "type": "number", "multipleOf": 0.05, "minimum": 0, "maximum": 100 });
    assert!(BUNDLED.vocabulary.compile_schema(&prices).is_ok());
}

#[test]
fn a_format_that_is_not_known_is_a_remark_and_a_known_one_is_held() {
    let made = |format: &str| {
        let schema = json!({ "type": "string", "format": format });
        let grammar = BUNDLED.vocabulary.compile_schema(&schema).unwrap();
        let mut matcher = grammar.matcher();
        let quote = BUNDLED.tokenizer.id("\"").unwrap();
        matcher.push(quote).unwrap();
        let letter = BUNDLED.tokenizer.id("z").unwrap();
        matcher.allowed_tokens().unwrap().contains(letter)
    };
    for format in [
        "password",
        "binary",
        "path",
        "regex",
        "uri-reference",
        "unknown",
    ] {
        assert!(made(format), "{format}");
    }
    assert!(!made("date"));
    let named = json!({ "type": "object", "required": ["format"], "properties": {
        "format": { "const": { "format": "password" } },
        "const": { "type": "string", "format": "password" },
    } });
    assert!(BUNDLED.vocabulary.compile_schema(&named).is_ok());
}

#[test]
fn a_text_that_begins_with_a_mark_is_not_held_to_its_grammar() {
    let words = &BUNDLED;
    let schema = json!({ "type": "object", "additionalProperties": false });
    let mark = "[CALL]";
    let follow = |text: &str| {
        let grammar = words.vocabulary.compile_schema(&schema).unwrap();
        let mut matcher = words.vocabulary.or_after(grammar, mark, None).matcher();
        for letter in text.chars() {
            let token = words.tokenizer.id(&letter.to_string()).unwrap();
            if matcher.is_over() || !matcher.allowed_tokens().unwrap().contains(token) {
                return None;
            }
            matcher.push(token).unwrap();
        }
        Some((
            matcher.is_over() || matcher.allowed_tokens().unwrap().may_end(),
            matcher.is_over(),
        ))
    };
    assert_eq!(follow("{}"), Some((true, true)));
    assert_eq!(follow("[CALL]"), Some((true, false)));
    assert_eq!(follow("[CALL]any"), Some((true, false)));
    assert_eq!(follow("[CA"), Some((false, false)));
    for text in ["[CAx", "x", "{x", "{}x"] {
        assert_eq!(follow(text), None, "{text}");
    }
}

/// A tokeniser of each kind, with what its tokens are spelled as.
static SPELLED: LazyLock<[(Tokenizer, Vec<Vec<u8>>); 4]> = LazyLock::new(|| {
    let tokenizers = [
        bundled(),
        reference(include_str!(
            "../../../tests/reference/tokeniser-byte-level.json"
        )),
        reference(include_str!(
            "../../../tests/reference/tokeniser-pieces.json"
        )),
        reference(include_str!(
            "../../../tests/reference/tokeniser-unigram.json"
        )),
    ];
    tokenizers.map(|tokenizer| {
        let spellings = tokenizer.token_spellings().unwrap();
        (tokenizer, spellings)
    })
});

proptest! {
    /// What a token is spelled as is what it adds to a text.
    #[test]
    fn texts_are_the_spellings_of_their_tokens(
        seed in any::<u64>(), length in 1usize..24, which in 0usize..4,
    ) {
        let (tokenizer, spellings) = &SPELLED[which];
        let mut stream = tokenizer.stream();
        let (mut text, mut bytes) = (String::new(), Vec::new());
        for at in 0..length as u64 {
            let token = (mixed(seed ^ mixed(at)) % spellings.len() as u64) as u32;
            // Bytes that are no text stay unsaid: they are left out.
            if let Ok(spelled) = std::str::from_utf8(&spellings[token as usize]) {
                bytes.extend(spelled.as_bytes());
                text.push_str(&stream.push(token).unwrap());
            }
        }
        text.push_str(&stream.finish().unwrap());
        let spelled = String::from_utf8(bytes).unwrap();
        prop_assert_eq!(text.trim_start(), spelled.trim_start());
    }
}
