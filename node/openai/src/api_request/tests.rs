//! Tests which fields of OpenAI's requests the server reads, ignores and refuses: sampling,
//! prompts, messages, schemas and tools.

use super::*;
use souk_texts::new_message;

fn with(more: Value) -> Map<String, Value> {
    let mut body = json!({
        "model": "m", "messages": [{ "role": "user", "content": "hello" }],
    });
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body.as_object().unwrap().clone()
}

/// The field that a request is refused for.
fn refused(more: Value) -> String {
    let refusal = ApiRequest::from_chat(with(more)).unwrap_err();
    refusal.to_object()["error"]["param"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn what_a_question_says_of_its_answer_is_read() {
    let request = ApiRequest::from_chat(with(json!({
        "temperature": 0.5, "top_p": 0.9, "seed": 4, "presence_penalty": 1,
        "frequency_penalty": -0.5, "logit_bias": { "7": -100 }, "stop": "x", "stream": true,
        "stream_options": { "include_usage": true }, "max_completion_tokens": 9, "max_tokens": 8,
    })));
    let request = request.unwrap();
    let expected = Sampling {
        temperature: 0.5,
        top_p: 0.9,
        seed: 4,
        presence: 1.0,
        frequency: -0.5,
        bias: BTreeMap::from([(7, -100.0)]),
        ..Sampling::default()
    };
    assert_eq!(request.sampling, expected);
    assert_eq!(
        (request.tokens_max, request.stops),
        (Some(9), vec!["x".to_owned()])
    );
    assert!(request.is_streamed && request.has_usage);
    let messages = Input::Messages(vec![new_message("user", "hello")]);
    assert_eq!(request.inputs, [messages]);
}

#[test]
fn what_would_change_the_answer_and_cannot_is_refused_by_name() {
    let cases = [
        ("tools", json!("weather")),
        ("tools[0]", json!([{ "type": "function" }])),
        (
            "tools[0]",
            json!([{ "type": "custom", "custom": { "name": "f" } }]),
        ),
        (
            "tools[0].function.name",
            json!([{ "type": "function", "function": { "name": "a b" } }]),
        ),
        ("tool_choice", json!("required")),
        ("tool_choice", json!("any")),
        ("functions", json!([{ "name": "f" }])),
        ("response_format", json!({ "type": "grammar" })),
        ("response_format", json!({ "type": "json_schema" })),
        ("logprobs", json!(2)),
        ("top_logprobs", json!(3)),
        ("n", json!(0)),
        ("n", json!(33)),
        ("audio", json!({ "voice": "alloy" })),
        ("modalities", json!(["text", "audio"])),
        ("reasoning_effort", json!(3)),
        ("chat_template_kwargs", json!("thinking")),
        ("documents", json!("a text")),
        ("store", json!(true)),
        ("temperature", json!("warm")),
        ("temperature", json!(-1)),
        ("top_p", json!(2)),
        ("max_tokens", json!(0)),
        ("logit_bias", json!({ "word": 1 })),
        ("stop", json!(["a", "b", "c", "d", "e"])),
        ("messages", json!([])),
        ("messages[0]", json!(["hello"])),
        (
            "messages[0].role",
            json!([{ "role": "function", "content": "x" }]),
        ),
        (
            "messages[0].tool_call_id",
            json!([{ "role": "tool", "content": "x" }]),
        ),
        (
            "messages[0].tool_calls[0]",
            json!([{ "role": "assistant", "tool_calls": [{ "id": "a" }] }]),
        ),
        (
            "messages[0].tool_calls[0].function.arguments",
            json!([{ "role": "assistant", "tool_calls": [{
                "id": "a", "type": "function", "function": { "name": "f", "arguments": "{" },
            }] }]),
        ),
        ("messages[0].content", json!([{ "role": "user" }])),
        (
            "messages[0].name",
            json!([{ "role": "user", "content": "x", "name": 7 }]),
        ),
        (
            "messages[0].content[0]",
            json!([{ "role": "user", "content": [{ "type": "image_url" }] }]),
        ),
    ];
    for (param, value) in cases {
        let field = param.split('[').next().unwrap();
        assert_eq!(refused(json!({ field: value })), param);
    }
}

#[test]
fn what_changes_no_answer_is_let_by() {
    let request = ApiRequest::from_chat(with(json!({
        "user": "u", "metadata": { "a": "b" }, "store": false, "n": 1, "tools": null,
        "response_format": { "type": "text" }, "logprobs": false, "service_tier": "auto",
        "messages": [
            { "role": "developer", "content": "be kind" },
            { "role": "user", "content": [
                { "type": "text", "text": "hel" }, { "type": "text", "text": "lo" },
            ]},
            { "role": "assistant", "content": "yes", "refusal": null },
        ],
    })));
    let expected = [
        ("system", "be kind"),
        ("user", "hello"),
        ("assistant", "yes"),
    ];
    let expected = expected.map(|(role, content)| new_message(role, content));
    assert_eq!(request.unwrap().inputs, [Input::Messages(expected.into())]);
}

#[test]
fn texts_are_completed_or_their_tokens() {
    let asked = |prompt: Value| {
        let body = json!({ "model": "m", "prompt": prompt });
        let request = ApiRequest::from_completion(body.as_object().unwrap().clone());
        request.map(|request| (request.inputs, request.tokens_max))
    };
    let text = |text: &str| Input::Text(text.to_owned());
    assert_eq!(asked(json!("a")).unwrap(), (vec![text("a")], Some(16)));
    let several = [
        (json!(["a", "b"]), vec![text("a"), text("b")]),
        (json!([1, 2]), vec![Input::Tokens(vec![1, 2])]),
        (
            json!([[1], [2]]),
            vec![Input::Tokens(vec![1]), Input::Tokens(vec![2])],
        ),
    ];
    for (prompt, inputs) in several {
        assert_eq!(asked(prompt).unwrap().0, inputs);
    }
    for prompt in [json!([]), json!(7), json!([[-1]]), json!(vec!["a"; 33])] {
        assert!(asked(prompt).is_err());
    }
}

#[test]
fn several_answers_are_asked_for_and_a_prompt_is_echoed() {
    let asked = |more: Value| {
        let mut body = json!({ "model": "m", "prompt": ["a", "b"] });
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        ApiRequest::from_completion(body.as_object().unwrap().clone())
    };
    let request = asked(json!({ "n": 3, "best_of": 3, "echo": true, "max_tokens": 0 }));
    let request = request.unwrap();
    assert_eq!((request.choices, request.is_echoed), (3, true));
    for refused in [
        json!({ "n": 17 }),
        json!({ "n": 2, "best_of": 3 }),
        json!({ "max_tokens": 0 }),
        json!({ "echo": true, "logprobs": 1, "stream": true }),
    ] {
        assert!(asked(refused).is_err());
    }
}

#[test]
fn what_a_template_is_given_more_is_read() {
    let request = ApiRequest::from_chat(with(json!({
        "chat_template_kwargs": { "enable_thinking": false }, "reasoning_effort": "high",
        "documents": [{ "text": "a" }], "n": 2,
    })));
    let request = request.unwrap();
    let values = json!({ "enable_thinking": false, "reasoning_effort": "high" });
    assert_eq!(Value::Object(request.template_values), values);
    assert_eq!((request.documents.len(), request.choices), (1, 2));
}

#[test]
fn messages_have_names_thoughts_and_calls_without_arguments() {
    let call = |arguments: Value| {
        json!({ "role": "assistant", "reasoning_content": "hm", "tool_calls": [{
            "id": "a", "type": "function", "function": { "name": "f", "arguments": arguments },
        }] })
    };
    for arguments in [json!(""), json!(" "), json!(null), json!("{}"), json!({})] {
        let request = ApiRequest::from_chat(with(json!({ "messages": [
            { "role": "user", "content": "hello", "name": "ada" },
            call(arguments),
            { "role": "tool", "tool_call_id": "a", "content": "two", "name": "f" },
        ] })));
        let [Input::Messages(messages)] = &request.unwrap().inputs[..] else {
            panic!("they are messages");
        };
        let names = messages.iter().map(|it| it.name.as_deref());
        assert_eq!(names.collect::<Vec<_>>(), [Some("ada"), None, Some("f")]);
        assert_eq!(messages[1].reasoning.as_deref(), Some("hm"));
        assert!(messages[1].calls[0].arguments.is_empty());
    }
}

#[test]
fn an_answer_is_json_of_a_schema_where_it_is_asked_for() {
    let form = |format: Value| {
        let request = ApiRequest::from_chat(with(json!({ "response_format": format })));
        request.unwrap().form
    };
    let schema = json!({ "type": "array" });
    let named = json!({ "name": "list", "strict": true, "schema": schema });
    let asked = json!({ "type": "json_schema", "json_schema": named });
    assert_eq!(form(asked), Some(TextForm::Schema(schema)));
    assert_eq!(
        form(json!({ "type": "json_object" })),
        Some(TextForm::Object)
    );
    assert_eq!(form(json!({ "type": "text" })), None);
}

#[test]
fn tools_are_read_and_which_of_them_has_to_be_called() {
    let asked = |choice: Value| {
        let named = |name: &str| {
            let parameters = json!({ "type": "object" });
            let function = json!({ "name": name, "parameters": parameters, "strict": true });
            json!({ "type": "function", "function": function })
        };
        let tools = json!([named("f"), named("g")]);
        let mut body = with(json!({ "tools": tools, "parallel_tool_calls": false }));
        body.insert("tool_choice".to_owned(), choice);
        ApiRequest::from_chat(body).map(|request| request.tools)
    };
    let forced = |choice: Value| {
        let wanted = asked(choice).unwrap().unwrap();
        assert_eq!((wanted.tools.len(), wanted.is_parallel), (2, false));
        let names = wanted.forced.into_iter().map(|tool| tool.name);
        names.collect::<Vec<_>>()
    };
    assert!(forced(json!("auto")).is_empty());
    assert!(forced(Value::Null).is_empty());
    assert_eq!(forced(json!("required")), ["f", "g"]);
    let named = |name: &str| json!({ "type": "function", "function": { "name": name } });
    assert_eq!(forced(named("g")), ["g"]);
    assert_eq!(asked(json!("none")).unwrap(), None);
    assert!(asked(named("h")).is_err());
}

#[test]
fn calls_and_their_answers_are_messages() {
    let request = ApiRequest::from_chat(with(json!({ "messages": [
        { "role": "user", "content": "hello" },
        { "role": "assistant", "content": null, "refusal": null, "tool_calls": [{
            "id": "a", "type": "function", "function": { "name": "f", "arguments": "{\"x\": 1}" },
        }] },
        { "role": "tool", "tool_call_id": "a", "content": "two" },
    ] })));
    let inputs = request.unwrap().inputs;
    let [Input::Messages(messages)] = &inputs[..] else {
        panic!("they are messages");
    };
    let call = &messages[1].calls[0];
    assert_eq!((call.id.as_str(), call.name.as_str()), ("a", "f"));
    assert_eq!(Value::Object(call.arguments.clone()), json!({ "x": 1 }));
    assert_eq!(messages[1].content, "");
    assert_eq!(messages[2].call_id.as_deref(), Some("a"));
}
