//! Tests that a stream of tokens makes the same text as the decoder makes of all tokens at once,
//! and that the reader of tokenisers refuses files on which its library would panic.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::stream::RUN_BYTES_MAX;
use super::*;

/// Builds a tokeniser whose vocabulary has pieces and a token for each byte, as Llama 2 has it.
fn build_piece_tokenizer() -> Tokenizer {
    let mut vocabulary = serde_json::Map::new();
    let bytes = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>"));
    let words = ["▁Hi", "x", "▁a", "é", "▁"].map(str::to_owned);
    let marks = ["<unk>", "<s>", "</s>"].map(str::to_owned);
    for word in marks.into_iter().chain(bytes).chain(words) {
        vocabulary.insert(word, json!(vocabulary.len()));
    }
    let mark = |id: usize, word: &str| {
        json!({ "id": id, "content": word, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true })
    };
    let decoders = [
        json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
        json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }),
    ];
    let model = json!({ "type": "BPE", "dropout": null, "unk_token": "<unk>",
        "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
        "byte_fallback": true, "ignore_merges": false, "vocab": vocabulary, "merges": [] });
    read(
        json!({ "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [mark(0, "<unk>"), mark(1, "<s>"), mark(2, "</s>")],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": { "type": "Sequence", "decoders": decoders }, "model": model }),
    )
}

/// Builds a tokeniser whose vocabulary has a letter for each byte and two words.
fn build_byte_tokenizer(decoder: Value) -> Tokenizer {
    let letters = (0..=u8::MAX).map(|byte| {
        let unseen = |it: &u8| !matches!(it, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let number = match unseen(&byte) {
            true => 0x100 + (0..byte).filter(unseen).count() as u32,
            false => u32::from(byte),
        };
        char::from_u32(number).unwrap().to_string()
    });
    let words = letters.chain(["ĠHi".to_owned(), "你".to_owned()]);
    let words = words.enumerate().map(|(id, word)| (word, json!(id)));
    let vocabulary: serde_json::Map<_, _> = words.collect();
    let model = json!({ "type": "BPE", "dropout": null, "unk_token": null,
        "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
        "byte_fallback": false, "ignore_merges": false, "vocab": vocabulary, "merges": [] });
    read(
        json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": decoder, "model": model }),
    )
}

fn read(json: Value) -> Tokenizer {
    Tokenizer::read(json.to_string().as_bytes()).unwrap()
}

/// Returns the whole text that a stream makes of tokens.
fn stream_text(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
    let mut stream = tokenizer.stream();
    let pieces = tokens.iter().map(|token| stream.push(*token).unwrap());
    let mut text: String = pieces.collect();
    text.push_str(&stream.finish().unwrap());
    text
}

fn decode_whole(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
    tokenizer.0.decode(tokens, true).unwrap()
}

fn token_ids(tokenizer: &Tokenizer, words: &[&str]) -> Vec<u32> {
    words.iter().map(|it| tokenizer.id(it).unwrap()).collect()
}

#[test]
fn bytes_that_make_no_character_become_replacements_and_the_text_goes_on() {
    let tokenizer = build_piece_tokenizer();
    let cases: [(&[&str], &str); 6] = [
        (&["<0x73>", "<0xBD>", "▁Hi"], "\u{fffd}\u{fffd} Hi"),
        (&["▁Hi", "<0xE4>", "<0xBD>", "<0xA0>", "x"], "Hi你x"),
        (&["▁Hi", "<0xE4>", "<0xBD>"], "Hi\u{fffd}\u{fffd}"),
        (&["<0x20>", "▁Hi"], " Hi"),
        (&["▁", "▁Hi", "<s>", "x"], " Hix"),
        (&["<0xE4>", "</s>", "<0xBD>", "<0xA0>"], "你"),
    ];
    for (words, text) in cases {
        let tokens = token_ids(&tokenizer, words);
        assert_eq!(stream_text(&tokenizer, &tokens), text, "{words:?}");
        assert_eq!(decode_whole(&tokenizer, &tokens), text, "{words:?}");
    }
}

#[test]
fn a_long_run_of_bytes_is_told_as_it_comes() {
    let tokenizer = build_piece_tokenizer();
    let mut stream = tokenizer.stream();
    let written = "你好".repeat(40);
    let mut text = String::new();
    for (at, byte) in written.bytes().enumerate() {
        let token = tokenizer.id(&format!("<0x{byte:02X}>")).unwrap();
        text.push_str(&stream.push(token).unwrap());
        assert!(
            at + 1 - text.len() < RUN_BYTES_MAX,
            "the stream returned {} of {} bytes",
            text.len(),
            at + 1
        );
    }
    assert_eq!(text + &stream.finish().unwrap(), written);
}

/// Builds a tokeniser whose stream must decode each token with its neighbours.
fn build_neighbour_tokenizer() -> Tokenizer {
    let letters = json!({ "type": "ByteLevel", "add_prefix_space": true,
        "trim_offsets": true, "use_regex": true });
    let decoders = [letters, json!({ "type": "Fuse" })];
    build_byte_tokenizer(json!({ "type": "Sequence", "decoders": decoders }))
}

#[test]
fn a_stream_holds_few_tokens_of_what_is_no_text() {
    let tokenizer = build_neighbour_tokenizer();
    let mut stream = tokenizer.stream();
    let mut letters = 0;
    for count in 1..=4 * RUN_BYTES_MAX {
        letters += stream.push(0xff).unwrap().chars().count();
        assert!(count - letters < RUN_BYTES_MAX, "{letters} of {count}");
    }
    letters += stream.finish().unwrap().chars().count();
    assert_eq!(letters, 4 * RUN_BYTES_MAX);
}

#[test]
fn a_character_across_the_end_of_a_full_window_is_whole() {
    let tokenizer = build_neighbour_tokenizer();
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<u32>>();
    for before in RUN_BYTES_MAX - 8..=2 * RUN_BYTES_MAX {
        for wrong in [&[0xff][..], &[0xe4, 0xbd], &[0xf0, 0x9f, 0x98]] {
            let begun: Vec<u32> = wrong.iter().copied().cycle().take(before).collect();
            let tokens = [begun, bytes("你😀"), vec![0xf0, 0x9f], bytes("é")].concat();
            let text = decode_whole(&tokenizer, &tokens);
            assert_eq!(
                stream_text(&tokenizer, &tokens),
                text,
                "{wrong:?} to {before}"
            );
        }
    }
}

#[test]
fn marks_are_told_where_they_are_asked_for() {
    let tokenizer = build_piece_tokenizer();
    let mut stream = tokenizer.stream_with(&["</s>", "no mark"]);
    let tokens = token_ids(&tokenizer, &["<s>", "▁Hi", "</s>"]);
    let text: String = tokens.iter().map(|it| stream.push(*it).unwrap()).collect();
    assert_eq!(text, "Hi</s>");
}

#[test]
fn texts_are_neither_cut_nor_filled_up() {
    let mut json: Value =
        serde_json::from_str(&build_piece_tokenizer().to_json().unwrap()).unwrap();
    json["truncation"] = json!({ "direction": "Right", "max_length": 2,
        "strategy": "LongestFirst", "stride": 0 });
    json["padding"] = json!({ "strategy": { "Fixed": 1_000_000_000 }, "direction": "Right",
        "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>" });
    let tokens = read(json).encode("xxxxx", Marks::Own).unwrap();
    assert_eq!(tokens.len(), 5);
}

#[test]
fn a_vocabulary_beyond_bounds_is_refused_by_name() {
    let mut json: Value =
        serde_json::from_str(&build_piece_tokenizer().to_json().unwrap()).unwrap();
    json["model"]["vocab"]["far"] = json!(4_000_000_000u32);
    let error = Tokenizer::read(json.to_string().as_bytes()).unwrap_err();
    assert!(error.to_string().contains("the id 4000000000"), "{error}");
}

#[test]
fn a_token_alone_has_the_bytes_that_it_adds_to_a_text() {
    let tokenizer = build_piece_tokenizer();
    for (word, bytes) in [("▁Hi", &b" Hi"[..]), ("<0xE4>", &[0xe4]), ("<s>", b"<s>")] {
        let token = tokenizer.id(word).unwrap();
        assert_eq!(tokenizer.bytes_of(token).unwrap(), bytes);
    }
}

proptest! {
    /// At most 59 tokens, because the stream would cut a run of 64 bytes.
    #[test]
    fn pieces_say_what_the_decoder_makes_of_all(
        tokens in prop::collection::vec(prop_oneof![0u32..264, 190u32..203, 258u32..264], 0..60),
    ) {
        let tokenizer = build_piece_tokenizer();
        prop_assert_eq!(stream_text(&tokenizer, &tokens), decode_whole(&tokenizer, &tokens));
    }

    #[test]
    fn letters_of_bytes_say_what_the_decoder_makes_of_all(
        tokens in prop::collection::vec(prop_oneof![0u32..260, 0xe0u32..0xf8, 0x80u32..0xa0], 0..40),
    ) {
        let decoder = json!({ "type": "ByteLevel", "add_prefix_space": true,
            "trim_offsets": true, "use_regex": true });
        let tokenizer = build_byte_tokenizer(decoder);
        prop_assert_eq!(stream_text(&tokenizer, &tokens), decode_whole(&tokenizer, &tokens));
    }

    #[test]
    fn words_that_depend_on_their_neighbours_break_no_stream(
        tokens in prop::collection::vec(0u32..258, 0..40),
    ) {
        for decoder in [
            Value::Null,
            json!({ "type": "BPEDecoder", "suffix": "</w>" }),
            json!({ "type": "WordPiece", "prefix": "##", "cleanup": true }),
        ] {
            stream_text(&build_byte_tokenizer(decoder), &tokens);
        }
    }
}

/// The library that reads tokenisers would panic on each of these files.
#[test]
fn a_file_that_the_library_takes_for_granted_is_refused() {
    let file = |normalizer: &str, decoder: &str| {
        format!(
            r#"{{"version": "1.0", "added_tokens": [], "normalizer": {normalizer}, "decoder":
            {decoder}, "model": {{"type": "WordLevel", "vocab": {{"a": 0}}, "unk_token": "a"}}}}"#
        )
    };
    let deep = "[".repeat(200) + &"]".repeat(200);
    let refused = [
        file("null", r#"{"type": "Fuse", !"}"#),
        file("null", &format!(r#"{{"type": "Fuse", "x": {deep}}}"#)),
        file(r#"{"type": "Precompiled"}"#, "null"),
        file(
            r#"{"type": "Precompiled", "precompiled_charsmap": "AAAA"}"#,
            "null",
        ),
        file(
            r#"{"type": "Sequence", "normalizers": [
                {"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAA="}]}"#,
            "null",
        ),
    ];
    for file in refused {
        let read = Tokenizer::read(file.as_bytes());
        assert!(matches!(read, Err(TokenError::File(_))), "{file}");
    }
    assert!(Tokenizer::read(file("null", r#"{"type": "Fuse"}"#).as_bytes()).is_ok());
}
