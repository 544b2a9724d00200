//! Tests the descriptions of tools in templates, and the reader of tool calls.

use proptest::prelude::*;

use super::*;
use crate::chat::{ChatError, ChatTemplate, Conversation, Message};

/// The form of Hermes and Qwen 2.5, shortened.
const MARKED: &str = "{%- if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}\n\
    {%- endfor %} answer in <tool_call></tool_call>\n{% endif %}{% for message in messages %}\
    <|{{ message.role }}|>{{ message.content }}{% for call in message.tool_calls %}\
    <tool_call>\n{\"name\": \"{{ call.function.name }}\", \"arguments\": \
    {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}{% endfor %}";

/// The form of Llama 3.1, shortened.
const BARE: &str = "{%- if tools is defined and tools is not none %}Respond in the format \
    {\"name\": function name, \"parameters\": its arguments}.\n\
    {% for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}{% endif %}";

fn template(source: &str) -> ChatTemplate {
    ChatTemplate {
        source: source.to_owned(),
        ..ChatTemplate::default()
    }
}

fn rendered(source: &str, messages: &[Message], tools: &[Tool]) -> Result<String, ChatError> {
    template(source).render(&Conversation {
        messages,
        tools,
        ..Conversation::default()
    })
}

fn weather() -> Tool {
    Tool {
        name: "weather".to_owned(),
        description: Some("What it is like in a <city>".to_owned()),
        parameters: json!({
            "type": "object", "properties": { "city": { "type": "string" } },
            "required": ["city"],
        }),
    }
}

fn time() -> Tool {
    Tool {
        name: "time".to_owned(),
        description: None,
        parameters: json!({ "type": "object" }),
    }
}

fn message(role: &str, content: &str) -> Message {
    Message {
        role: role.to_owned(),
        content: content.to_owned(),
        ..Message::default()
    }
}

#[test]
fn a_template_is_told_of_tools_and_calls_as_hugging_faces_tools_tell_it() {
    let call = ToolCall {
        id: "call_0".to_owned(),
        name: "weather".to_owned(),
        arguments: Map::from_iter([("city".to_owned(), json!("Köln"))]),
    };
    let asking = Message {
        calls: vec![call],
        ..message("assistant", "")
    };
    let told = Message {
        call_id: Some("call_0".to_owned()),
        ..message("tool", "rain")
    };
    let messages = [message("user", "Köln?"), asking, told];
    let text = rendered(MARKED, &messages, &[weather()]).unwrap();
    assert_eq!(
        text,
        "<|system|>{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \
         \"What it is like in a <city>\", \"parameters\": {\"type\": \"object\", \"properties\": \
         {\"city\": {\"type\": \"string\"}}, \"required\": [\"city\"]}}} answer in \
         <tool_call></tool_call>\n<|user|>Köln?<|assistant|><tool_call>\n{\"name\": \"weather\", \
         \"arguments\": {\"city\": \"Köln\"}}\n</tool_call><|tool|>rain"
    );
    let text = rendered(BARE, &messages, &[time()]).unwrap();
    assert!(
        text.ends_with(
            "{\n    \"type\": \"function\",\n    \"function\": {\n        \
        \"name\": \"time\",\n        \"parameters\": {\n            \"type\": \"object\"\n        \
        }\n    }\n}"
        ),
        "{text}"
    );
}

#[test]
fn a_template_that_knows_no_tools_is_refused_where_there_are_some() {
    let plain = "{% for message in messages %}{{ message.content }}{% endfor %}";
    let messages = [message("user", "hello")];
    assert_eq!(rendered(plain, &messages, &[]).unwrap(), "hello");
    let error = rendered(plain, &messages, &[time()]).unwrap_err();
    assert!(matches!(error, ChatError::Tools), "{error}");
}

#[test]
fn the_form_of_calls_is_the_templates() {
    assert_eq!(CallForm::from_template(MARKED), Some(CallForm::Marked));
    assert_eq!(CallForm::from_template(BARE), Some(CallForm::Bare));
    assert_eq!(
        CallForm::from_template("{{ messages }} [TOOL_CALLS]"),
        Some(CallForm::Listed)
    );
    assert_eq!(
        CallForm::from_template("<|start|><|channel|>"),
        Some(CallForm::Channels)
    );
    assert_eq!(CallForm::from_template("{{ messages }}"), None);
}

/// What is told of a text that comes in pieces: text, then names and arguments of calls.
fn read<'a>(form: CallForm, pieces: impl IntoIterator<Item = &'a str>) -> (String, Vec<String>) {
    let mut reader = CallReader::new(form, &[weather(), time()]);
    let mut text: String = pieces.into_iter().map(|piece| reader.push(piece)).collect();
    let calls = match reader.finish(|at| format!("call_{at}")) {
        Ok(calls) => calls,
        Err(rest) => {
            text.push_str(&rest);
            Vec::new()
        }
    };
    let calls = calls.iter().enumerate().map(|(at, call)| {
        assert_eq!(call.id, format!("call_{at}"));
        format!("{}{}", call.name, Value::Object(call.arguments.clone()))
    });
    (text, calls.collect())
}

fn marked(text: &str) -> (String, Vec<String>) {
    read(CallForm::Marked, [text])
}

#[test]
fn calls_between_marks_are_read_and_what_is_none_is_text() {
    let rain = "{\"name\": \"weather\", \"arguments\": {\"city\": \"a</tool_call>\"}}";
    let one = r#"weather{"city":"a</tool_call>"}"#.to_owned();
    let both = format!(
        "I look.\n<tool_call>\n{rain}\n</tool_call>\n<tool_call>{{\"name\": \"time\"}}</tool_call> "
    );
    assert_eq!(
        marked(&both),
        ("I look.".to_owned(), vec![one.clone(), "time{}".to_owned()])
    );
    // The token that ends a text stands for the last mark.
    let open = format!("<tool_call>\n{rain}\n");
    assert_eq!(marked(&open), (String::new(), vec![one]));
    for text in [
        "no call <tool",
        "cut <tool_call>\n{\"name\": \"weather\", \"argu",
        "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"time\"}</tool_call> and so on",
        "<tool_call></tool_call>",
        " ",
    ] {
        assert_eq!(marked(text), (text.to_owned(), Vec::new()));
    }
}

#[test]
fn a_bare_call_is_the_whole_answer() {
    let bare = |text| read(CallForm::Bare, [text]);
    let call = "\n{\"name\": \"weather\", \"parameters\": {\"city\": \"Köln\"}}";
    assert_eq!(
        bare(call),
        (String::new(), vec![r#"weather{"city":"Köln"}"#.to_owned()])
    );
    for text in [
        "{\"name\": \"Ada\", \"age\": 7}",
        "Such a call: {\"name\": \"time\", \"parameters\": {}}",
        "{",
    ] {
        assert_eq!(bare(text), (text.to_owned(), Vec::new()));
    }
}

#[test]
fn calls_after_a_mark_are_a_list_or_names_with_arguments() {
    let listed = |text| read(CallForm::Listed, [text]);
    let both = vec!["weather{\"city\":\"a\"}".to_owned(), "time{}".to_owned()];
    for text in [
        "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"a\"}, \"id\": \"x\"}, \
         {\"name\": \"time\", \"arguments\": {}}]",
        "[TOOL_CALLS]weather[ARGS]{\"city\": \"a\"}[TOOL_CALLS]time[CALL_ID]abc[ARGS]{}",
        "[TOOL_CALLS]weather{\"city\": \"a\"}[TOOL_CALLS]time{}",
    ] {
        assert_eq!(listed(text), (String::new(), both.clone()), "{text}");
    }
    for text in [
        "[TOOL_CALLS]",
        "[TOOL_CALLS]unknown[ARGS]{}",
        "[TOOL_CALLS] [{\"name\": 1}]",
    ] {
        assert_eq!(listed(text), (text.to_owned(), Vec::new()), "{text}");
    }
    assert_eq!(CallForm::Listed.id(u64::MAX).len(), 9);
}

#[test]
fn a_schema_of_calls_is_that_of_each_and_its_references_hold() {
    let mut tool = weather();
    tool.parameters = json!({
        "type": "object", "properties": { "of": { "$ref": "#/$defs/city" } },
        "$defs": { "city": { "type": "string" } },
    });
    let schema = CallForm::Bare.call_schema(&[time(), tool]);
    let moved = "#/anyOf/1/properties/parameters/$defs/city";
    let call = &schema["anyOf"][1]["properties"];
    assert_eq!(call["parameters"]["properties"]["of"]["$ref"], moved);
    assert_eq!(
        schema.pointer(&moved[1..]),
        Some(&json!({ "type": "string" }))
    );
    assert_eq!(call["name"], json!({ "const": "weather" }));
}

proptest! {
    #[test]
    fn pieces_say_what_the_whole_says(
        parts in prop::collection::vec(prop::sample::select(vec![
            "<tool_call>", "</tool_call>", "<tool", "_call>", "\n", " ", "é", "{",
            "{\"name\": \"time\"}", "{\"name\": \"weather\", \"arguments\": {\"city\": \"x\"}}",
        ]), 0..9),
        is_bare in any::<bool>(), size in 1usize..7,
    ) {
        let form = if is_bare { CallForm::Bare } else { CallForm::Marked };
        let whole = parts.concat();
        let letters: Vec<char> = whole.chars().collect();
        let pieces: Vec<String> = letters.chunks(size).map(|it| it.iter().collect()).collect();
        let told = read(form, pieces.iter().map(String::as_str));
        prop_assert_eq!(&told, &read(form, [whole.as_str()]));
        if told.1.is_empty() {
            prop_assert_eq!(told.0, whole);
        }
    }
}
