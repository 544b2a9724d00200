//! Tests that answers are separated into thoughts, text and tool calls, however they are cut into
//! pieces.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn tools() -> Vec<Tool> {
    let tool = |name: &str| Tool {
        name: name.to_owned(),
        description: None,
        parameters: json!({ "type": "object" }),
    };
    vec![tool("f"), tool("g")]
}

/// What is read of an answer: thoughts, text, and calls.
fn read<'a>(
    form: AnswerForm,
    prompt: &str,
    calls: Option<CallForm>,
    pieces: impl IntoIterator<Item = &'a str>,
) -> (String, String, Vec<String>) {
    let tools = tools();
    let mut reader = AnswerReader::new(form, prompt, calls.map(|form| (form, &tools[..])));
    let mut all = AnswerPiece::default();
    let mut add = |piece: AnswerPiece| {
        all.thought.push_str(&piece.thought);
        all.text.push_str(&piece.text);
    };
    for piece in pieces {
        add(reader.push(piece));
    }
    let (rest, calls) = reader.finish(|at| format!("call_{at}"));
    add(rest);
    let calls = calls.iter().map(|call| {
        let arguments = Value::Object(call.arguments.clone());
        format!("{}{}{}", call.id, call.name, arguments)
    });
    (all.thought, all.text, calls.collect())
}

fn thought(prompt: &str, text: &str) -> (String, String) {
    let (thought, text, _) = read(AnswerForm::Thoughts, prompt, None, [text]);
    (thought, text)
}

#[test]
fn thoughts_are_told_apart_from_what_is_said() {
    let cases = [
        ("", "<think>\nIt is.\n</think>\n\nYes.", ("It is.", "Yes.")),
        ("<think>\n", "It is.\n</think>\nYes.", ("It is.", "Yes.")),
        ("<think>\n\n</think>\n\n", "Yes.", ("", "Yes.")),
        (
            "",
            "Yes, <think> is a mark.",
            ("", "Yes, <think> is a mark."),
        ),
        ("", "<think>cut", ("cut", "")),
        ("", "<thin", ("", "<thin")),
        ("", "<think></think>", ("", "")),
    ];
    for (prompt, text, (said, told)) in cases {
        assert_eq!(
            thought(prompt, text),
            (said.to_owned(), told.to_owned()),
            "{text}"
        );
    }
}

#[test]
fn parts_in_channels_are_thoughts_text_and_calls() {
    let channels = |text: &str| read(AnswerForm::Channels, "", Some(CallForm::Channels), [text]);
    let said = "<|channel|>analysis<|message|>It is.<|end|><|start|>assistant<|channel|>final\
        <|message|>Yes.";
    let expected = ("It is.".to_owned(), "Yes.".to_owned(), Vec::new());
    assert_eq!(channels(said), expected);
    let called = "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant<|channel|>\
        commentary to=functions.f <|constrain|>json<|message|>{\"a\": \"<|x\"}<|call|>";
    let call = "call_0f{\"a\":\"<|x\"}".to_owned();
    assert_eq!(
        channels(called),
        ("I look.".to_owned(), String::new(), vec![call])
    );
    let header_first = "<|start|>assistant to=functions.g<|channel|>commentary json<|message|>{}";
    assert_eq!(channels(header_first).2, ["call_0g{}"]);
    let unknown = "<|channel|>commentary to=functions.h<|message|>{\"a\": 1}";
    assert_eq!(channels(unknown).1, "{\"a\": 1}");
    assert_eq!(channels("Just text.").1, "Just text.");
}

#[test]
fn calls_come_after_thoughts() {
    let text = "<think>I look.</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n\
        </tool_call>";
    let read = read(AnswerForm::Thoughts, "", Some(CallForm::Marked), [text]);
    assert_eq!(
        read,
        (
            "I look.".to_owned(),
            String::new(),
            vec!["call_0f{}".to_owned()]
        )
    );
}

#[test]
fn the_form_of_an_answer_is_the_templates() {
    assert_eq!(
        AnswerForm::from_template("<|channel|> </think>"),
        AnswerForm::Channels
    );
    assert_eq!(
        AnswerForm::from_template("split('</think>')"),
        AnswerForm::Thoughts
    );
    assert_eq!(
        AnswerForm::from_template("{{ messages }}"),
        AnswerForm::Plain
    );
}

proptest! {
    #[test]
    fn pieces_say_what_the_whole_says(
        parts in prop::collection::vec(prop::sample::select(vec![
            "<think>", "</think>", "<|channel|>", "analysis", "final", "<|message|>", "<|end|>",
            "<|call|>", "<|start|>assistant", "commentary to=functions.f", "{}", "{\"a\": 1}",
            "<", "|", " ", "\n", "é", "text", "[TOOL_CALLS]", "[ARGS]", "f",
            "[{\"name\": \"f\", \"arguments\": {}}]",
        ]), 0..12),
        is_channels in any::<bool>(), size in 1usize..9,
    ) {
        let (form, calls) = match is_channels {
            true => (AnswerForm::Channels, CallForm::Channels),
            false => (AnswerForm::Thoughts, CallForm::Listed),
        };
        let whole = parts.concat();
        let letters: Vec<char> = whole.chars().collect();
        let pieces: Vec<String> = letters.chunks(size).map(|it| it.iter().collect()).collect();
        let told = read(form, "", Some(calls), pieces.iter().map(String::as_str));
        prop_assert_eq!(told, read(form, "", Some(calls), [whole.as_str()]));
    }
}
