//! Tests that only answers get labels, and that invalid lines of examples are refused with their
//! number.

use std::path::Path;

use super::*;
use crate::model::{Card, LanguageModel};
use crate::tokens::Tokenizer;

fn bundled() -> LanguageModel {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/models/glossary");
    LanguageModel::open(Path::new(folder)).unwrap()
}

fn read(model: &LanguageModel, card: &Card, lines: &str) -> Result<Vec<Example>, ExampleError> {
    let reader = ExampleReader {
        card,
        tokenizer: &model.tokenizer,
        tokens_max: 64,
        now: 0,
    };
    reader.read_lines(lines)
}

/// The text of the tokens that are answers or are not.
fn text(model: &LanguageModel, example: &Example, is_answer: bool) -> String {
    let tokens = example.tokens.iter().zip(&example.is_answer);
    let chosen = tokens.filter(|(_, it)| **it == is_answer);
    let bytes = chosen.map(|(token, _)| model.tokenizer.bytes_of(*token).unwrap());
    String::from_utf8(bytes.flatten().collect()).unwrap()
}

#[test]
fn only_answers_count() {
    let model = bundled();
    let cases = [
        (
            r#"{"prompt": "A lease is", "completion": " paid time.", "id": 7}"#,
            "A lease is",
            " paid time.",
        ),
        (r#"{"text": "A lease is paid."}"#, "", "A lease is paid."),
    ];
    for (line, given, answered) in cases {
        let example = &read(&model, &model.card, line).unwrap()[0];
        assert_eq!(text(&model, example, false), given);
        // The mark that ends texts follows, which has no bytes of its own or those of its name.
        assert!(text(&model, example, true).starts_with(answered), "{line}");
        assert_eq!(example.tokens.last(), model.card.ends.first());
        assert_eq!(example.is_answer.last(), Some(&true));
    }
}

#[test]
fn an_end_that_the_tokeniser_adds_counts_too() {
    let model = bundled();
    let end = model.card.ends[0];
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/models/glossary");
    let path = Path::new(folder).join("tokenizer.json");
    let mut file: serde_json::Value =
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let added = file["added_tokens"].as_array().unwrap().iter();
    let mark = added.filter(|token| token["id"] == end);
    let mark = mark.map(|token| token["content"].clone()).next().unwrap();
    let special = serde_json::json!({ "id": mark, "ids": [end], "tokens": [mark] });
    file["post_processor"] = serde_json::json!({
        "type": "TemplateProcessing",
        "single": [
            { "Sequence": { "id": "A", "type_id": 0 } },
            { "SpecialToken": { "id": mark, "type_id": 0 } },
        ],
        "pair": [],
        "special_tokens": { mark.as_str().unwrap(): special },
    });
    let tokenizer = Tokenizer::read(file.to_string().as_bytes()).unwrap();
    let reader = ExampleReader {
        card: &model.card,
        tokenizer: &tokenizer,
        tokens_max: 64,
        now: 0,
    };
    let line = r#"{"prompt": "A lease is", "completion": " paid time."}"#;
    let example = &reader.read_lines(line).unwrap()[0];
    let ends = example.tokens.iter().filter(|token| **token == end);
    assert_eq!((ends.count(), example.is_answer.last()), (1, Some(&true)));
}

#[test]
fn each_answer_of_a_conversation_counts_with_the_mark_after_it() {
    let model = bundled();
    let line = r#"{"messages": [{"role": "user", "content": "What?"},
        {"role": "assistant", "content": "This."}, {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "That."}]}"#;
    let example = &read(&model, &model.card, &line.replace('\n', " ")).unwrap()[0];
    let end = model.card.ends[0];
    let counted = example.tokens.iter().zip(&example.is_answer);
    let ends = counted.filter(|(token, is_answer)| **token == end && **is_answer);
    assert_eq!(ends.count(), 2);
    let answered = text(&model, example, true);
    assert!(
        answered.contains("This.") && answered.contains("That."),
        "{answered}"
    );
    let given = text(&model, example, false);
    assert!(given.contains("What?") && given.contains("Why?"), "{given}");
    assert!(!given.contains("This."), "{given}");
}

#[test]
fn rows_are_filled_at_their_end_and_labels_are_the_next_tokens() {
    let example = |tokens: &[u32], answers: &[bool]| Example {
        tokens: tokens.to_vec(),
        is_answer: answers.to_vec(),
    };
    let examples = [
        example(&[5, 6, 7, 8], &[false, false, true, true]),
        example(&[9, 4], &[true, true]),
    ];
    let rows = ExampleRows::from_examples(&examples).unwrap();
    assert_eq!(rows.tokens.to_vec::<i64>().unwrap(), [5, 6, 7, 9, 0, 0]);
    let expected = [IGNORED, 7, 8, 4, IGNORED, IGNORED];
    assert_eq!(rows.labels.to_vec::<i64>().unwrap(), expected);
    assert_eq!((rows.token_count, rows.answer_count), (4, 3));
}

#[test]
fn a_line_that_is_no_example_is_refused_with_its_number() {
    let model = bundled();
    let good = r#"{"text": "A lease."}"#;
    let long = format!(r#"{{"text": "{}"}}"#, "lease ".repeat(100));
    let cases = [
        ("nothing", "line 2 is no JSON object"),
        ("[1]", "line 2 is no JSON object"),
        (
            r#"["a", null, null, null, null]"#,
            "line 2 is no JSON object",
        ),
        (r#"{"text": "a", "prompt": "b"}"#, "line 2 has not just one"),
        (r#"{"id": 1}"#, "line 2 has not just one"),
        (r#"{"prompt": "a"}"#, "line 2 does not have both"),
        (
            r#"{"text": "a", "tools": []}"#,
            "line 2 has tools, which training",
        ),
        (
            r#"{"messages": [{"role": "user", "content": "a"}]}"#,
            "line 2 has no token to answer",
        ),
        (
            r#"{"messages": [{"role": "user", "content": "a", "tool_calls": []}]}"#,
            "line 2 is no JSON object: unknown field `tool_calls`",
        ),
        (&long, "line 2 has "),
    ];
    for (line, expected) in cases {
        let error = read(&model, &model.card, &format!("{good}\n{line}\n"));
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    assert!(matches!(
        read(&model, &model.card, "\n \n"),
        Err(ExampleError::Empty)
    ));
    let mute = Card {
        template: None,
        ..model.card.clone()
    };
    let messages = r#"{"messages": [{"role": "assistant", "content": "a"}]}"#;
    let error = read(&model, &mute, messages).unwrap_err();
    assert!(
        matches!(error, ExampleError::NoTemplate { line: 1 }),
        "{error}"
    );
    let narrow = Card {
        vocabulary: 10,
        ..model.card.clone()
    };
    let error = read(&model, &narrow, good).unwrap_err();
    assert!(
        matches!(error, ExampleError::Vocabulary { vocabulary: 10, .. }),
        "{error}"
    );
}
