//! Tests chat templates: the texts must equal those of Hugging Face's tools byte for byte, and
//! templates without an end are stopped.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value as Json;

use super::*;

/// What Hugging Face's tools make of templates (`llm/tests/reference/templates.py`).
#[derive(Deserialize)]
struct Reference {
    marks: BTreeMap<String, String>,
    now: u64,
    tools: Vec<Json>,
    documents: Vec<Json>,
    families: Vec<Family>,
}

#[derive(Deserialize)]
struct Family {
    name: String,
    template: String,
    values: Map<String, Json>,
    has_tools: bool,
    has_documents: bool,
    talks: Vec<Talk>,
}

/// A conversation, and its text unless the template fails.
#[derive(Deserialize)]
struct Talk {
    messages: Vec<Json>,
    text: Option<String>,
}

fn reference() -> Reference {
    serde_json::from_str(include_str!("../../tests/reference/templates.json")).unwrap()
}

fn owned(value: &Json) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn message(given: &Json) -> Message {
    let calls = given["tool_calls"].as_array().into_iter().flatten();
    let calls = calls.map(|call| ToolCall {
        id: owned(&call["id"]).unwrap(),
        name: owned(&call["function"]["name"]).unwrap(),
        arguments: call["function"]["arguments"].as_object().unwrap().clone(),
    });
    Message {
        role: owned(&given["role"]).unwrap(),
        content: owned(&given["content"]).unwrap(),
        name: owned(&given["name"]),
        reasoning: owned(&given["reasoning_content"]),
        calls: calls.collect(),
        call_id: owned(&given["tool_call_id"]),
    }
}

fn tool(given: &Json) -> Tool {
    let function = &given["function"];
    Tool {
        name: owned(&function["name"]).unwrap(),
        description: owned(&function["description"]),
        parameters: function["parameters"].clone(),
    }
}

#[test]
fn conversations_are_written_byte_for_byte_as_hugging_faces_tools_write_them() {
    let reference = reference();
    let tools: Vec<Tool> = reference.tools.iter().map(tool).collect();
    let mut wrong = Vec::new();
    let mut count = 0;
    for family in &reference.families {
        for talk in &family.talks {
            count += 1;
            let template = ChatTemplate {
                source: family.template.clone(),
                tool_source: None,
                special_tokens: reference.marks.clone(),
            };
            let messages: Vec<Message> = talk.messages.iter().map(message).collect();
            let conversation = Conversation {
                messages: &messages,
                tools: if family.has_tools { &tools } else { &[] },
                documents: if family.has_documents {
                    &reference.documents
                } else {
                    &[]
                },
                values: Some(&family.values),
                now: reference.now,
            };
            let source = source::adapt_source(&template.source);
            let text = template.render_source(&source, &conversation);
            if text.as_ref().ok() != talk.text.as_ref() {
                wrong.push(format!(
                    "{}:\n  ours   {text:?}\n  theirs {:?}\n",
                    family.name, talk.text
                ));
            }
        }
    }
    assert!(count > 150, "{count}");
    assert!(
        wrong.is_empty(),
        "{} of {count}:\n{}",
        wrong.len(),
        wrong.concat()
    );
}

fn rendered(source: &str, messages: &[(&str, &str)]) -> Result<String, ChatError> {
    let message = |(role, content): &(&str, &str)| Message {
        role: (*role).to_owned(),
        content: (*content).to_owned(),
        ..Message::default()
    };
    let template = ChatTemplate {
        source: source.to_owned(),
        ..ChatTemplate::default()
    };
    let messages: Vec<_> = messages.iter().map(message).collect();
    template.render(&Conversation {
        messages: &messages,
        ..Conversation::default()
    })
}

#[test]
fn a_template_refuses_and_does_not_run_for_ever() {
    let refusing = "{{ raise_exception('roles must alternate') }}";
    let error = rendered(refusing, &[]).unwrap_err().to_string();
    assert!(error.contains("roles must alternate"), "{error}");
}

/// Each is stopped before it takes a tenth of a second or some tens of megabytes.
#[test]
fn a_template_that_grows_without_bound_is_stopped() {
    let endless = [
        "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
        "{% set n = namespace(x='xxxxxxxx') %}{% for a in range(64) %}{% set n.x = n.x ~ n.x %}\
         {% endfor %}{{ n.x | length }}",
        "{{ 'x' * 1000000000 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ 'x' | indent(1000000000, true) }}",
        "{{ [[[[1]]]] | tojson(indent=1000000000) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ range(1000000000) | list | length }}",
        "{% for a in range(9999) %}{{ range(99999) | list | tojson | length }}{% endfor %}",
        "{% set n = namespace(x=[]) %}{% for a in range(90000) %}{% set n.x = [n.x] %}{% endfor %}\
         {{ n.x | tojson }}",
        "{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxx'.replace('x', 'yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy' * 99999) \
         .replace('y', 'z' * 99999) }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{% set n = namespace(x=[1]) %}{% for a in range(64) %}{% set n.x = n.x + n.x %}\
         {% endfor %}{{ n.x | length }}",
        "{% set n = namespace(x=[]) %}{% for a in range(64) %}{% set n.x = n.x + [1] * 99999999 %}\
         {% endfor %}{{ n.x | length }}",
        "{% set in = [1] %}{% for a in range(64) %}{% set in = in + in %}{% endfor %}\
         {{ in | length }}",
        "{{ ([range(99999) | list] * 9999) | sum(start=[]) | length }}",
        "{% set n = namespace(x=[1]) %}{% for a in range(64) %}{% set n.x = n.x | chain(n.x) %}\
         {% endfor %}{{ n.x | length }}",
    ];
    for source in endless {
        let began = Instant::now();
        assert!(rendered(source, &[]).is_err(), "{source}");
        assert!(began.elapsed() < Duration::from_secs(5), "{source}");
    }
    let long = "x".repeat(SOURCE_BYTES_MAX + 1);
    assert!(matches!(rendered(&long, &[]), Err(ChatError::Size(_))));
}

#[test]
fn lists_are_joined_as_far_as_conversations_go() {
    let grown = "{% set n = namespace(x=[]) %}{% for a in range(500) %}{% set n.x = n.x + [a] %}\
                 {% endfor %}{{ n.x | length }} {{ (n.x + [1, 2])[-1] }} {{ ([1] + [2]) | sum }}";
    assert_eq!(rendered(grown, &[]).unwrap(), "500 2 3");
    let marked = "{%- set a = 'x' -%} {{- a + a -}} {{ 1 + 2 }}";
    assert_eq!(rendered(marked, &[]).unwrap(), "xx3");
}

/// A source as long as may be, whose reading takes a square of it or a call for each letter.
#[test]
fn a_template_is_read_in_a_moment_whatever_it_holds() {
    let repeated = |piece: &str| piece.repeat(SOURCE_BYTES_MAX / piece.len());
    let alone = [
        "{{a}}",
        "{{(",
        "{{ (",
        "{{'%s' % (",
        "{{ a+(",
        "{% raw %}",
        "{% raw %}{% endraw",
        "{# ",
        "{{   ",
        "{{ '",
    ];
    let in_one_block = alone.map(|piece| "{{".to_owned() + &repeated(&piece[2..]));
    let nested = [
        ("''%(", ").!"),
        ("''%[", "]|!"),
        ("''%{", "}"),
        ("''%(", ")"),
        ("''%a(", ")'"),
        ("(''%", ")"),
    ];
    let nested = nested.map(|(open, close)| {
        let depth = (SOURCE_BYTES_MAX - "{{}}".len()) / (open.len() + close.len());
        format!("{{{{{}{}}}}}", open.repeat(depth), close.repeat(depth))
    });
    let sources = alone.map(repeated).into_iter();
    for source in sources.chain(in_one_block).chain(nested) {
        let began = Instant::now();
        let _ = source::adapt_source(&source);
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "{}",
            &source[..20]
        );
    }
}

#[test]
fn raw_text_ends_at_its_tag_and_not_at_a_word() {
    let raw =
        "{% raw %}endraw {{ 'a' % b }}{% generation %}{% endraws %}{%- endraw -%} {{ '%d' % 1 }}";
    let text = "endraw {{ 'a' % b }}{% generation %}{% endraws %}1";
    assert_eq!(rendered(raw, &[]).unwrap(), text);
}

#[test]
fn with_tools_the_template_for_tools_is_taken() {
    let template = ChatTemplate {
        source: "plain".to_owned(),
        tool_source: Some("{{ 'tools' if tools else 'none' }}".to_owned()),
        special_tokens: BTreeMap::new(),
    };
    let tool = Tool {
        name: "f".to_owned(),
        description: None,
        parameters: Json::Null,
    };
    let with = |tools| {
        let conversation = Conversation {
            tools,
            ..Conversation::default()
        };
        template.render(&conversation).unwrap()
    };
    assert_eq!(
        (with(&[tool]), with(&[])),
        ("tools".to_owned(), "plain".to_owned())
    );
}

#[test]
fn dates_are_those_of_the_calendar() {
    let cases = [
        (0, "1970-01-01 Thu 001"),
        (951_782_400, "2000-02-29 Tue 060"),
        (4_107_542_400, "2100-03-01 Mon 060"),
        (1_735_689_599, "2024-12-31 Tue 366"),
    ];
    for (seconds, date) in cases {
        assert_eq!(clock::format_time(seconds, "%Y-%m-%d %a %j").unwrap(), date);
    }
    assert!(clock::format_time(0, "%Q").is_err());
    assert!(clock::format_time(0, "%").is_err());
    assert!(clock::format_time(u64::MAX, "%Y").is_ok());
}
