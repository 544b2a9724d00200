//! Tests how a request becomes completions: unknown tokens, several answers with their seeds, and
//! the limits on reasoning.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::*;
use crate::embeddings::EmbeddingApiRequest;
use souk_texts as texts;

/// The model that comes with souk, whose tokeniser knows two tokens that it does not.
fn text_model() -> TextModel {
    let (_, mut text_model) = texts::open_model(Path::new("bundled"), None).unwrap();
    text_model.card.vocabulary -= 2;
    text_model
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn completion(more: Value) -> Result<Vec<(CompletionRequest, Choice)>, Refusal> {
    let mut body = object(json!({ "model": "m", "prompt": "lease" }));
    body.extend(object(more));
    let request = ApiRequest::from_completion(body).unwrap();
    prepare_completions(&text_model(), &request, None, None)
}

/// The field that a refusal names.
fn field<T>(result: Result<T, Refusal>) -> String {
    let refusal = result.err().expect("it is refused").to_object();
    assert_eq!(refusal["error"]["type"], "invalid_request_error");
    refusal["error"]["param"].as_str().unwrap().to_owned()
}

#[test]
fn tokens_that_the_model_does_not_know_are_refused_by_the_field_that_has_them() {
    let text_model = text_model();
    let unknown = text_model.card.vocabulary;
    let word = text_model.tokenizer.bytes_of(unknown as u32).unwrap();
    let word = String::from_utf8(word).unwrap();
    assert_eq!(field(completion(json!({ "prompt": [unknown] }))), "prompt");
    assert_eq!(
        field(completion(json!({ "prompt": [[1], [u32::MAX]] }))),
        "prompt"
    );
    assert_eq!(field(completion(json!({ "prompt": word }))), "prompt");
    let bias = Map::from_iter([(unknown.to_string(), json!(1))]);
    assert_eq!(
        field(completion(json!({ "logit_bias": bias }))),
        "logit_bias"
    );
    assert!(completion(json!({ "prompt": [unknown - 1] })).is_ok());
    let chat = json!({ "model": "m", "messages": [{ "role": "user", "content": word }] });
    let request = ApiRequest::from_chat(object(chat)).unwrap();
    assert_eq!(
        field(prepare_completions(&text_model, &request, None, None)),
        "messages"
    );
    for input in [json!([unknown]), json!(word), json!(["a", word])] {
        let request = EmbeddingApiRequest::read(object(json!({ "model": "m", "input": input })));
        assert_eq!(field(request.unwrap().to_request(&text_model)), "input");
    }
}

#[test]
fn each_answer_is_a_completion_with_a_seed_of_its_own() {
    let asked = json!({ "prompt": ["lease", "bid"], "n": 2, "seed": 7, "echo": true });
    let completions = completion(asked).unwrap();
    let seeds: Vec<u64> = completions
        .iter()
        .map(|(completion, _)| completion.sampling.seed)
        .collect();
    assert_eq!(seeds, [7, 8, 7, 8]);
    let first: Vec<bool> = completions
        .iter()
        .map(|(_, choice)| choice.is_first())
        .collect();
    assert_eq!(first, [true, false, true, false]);
    assert_eq!(completions[0].0.prompt, completions[1].0.prompt);
    assert_ne!(completions[0].0.prompt, completions[2].0.prompt);
    let scored = completion(json!({ "echo": true, "logprobs": 0 })).unwrap();
    assert_eq!(scored[0].0.prompt_logprobs, PromptLogprobs::Wanted);
}

#[test]
fn how_much_a_model_thinks_is_refused_where_its_template_does_not_know_it() {
    let text_model = text_model();
    let chat = json!({
        "model": "m", "reasoning_effort": "low",
        "messages": [{ "role": "user", "content": "lease" }],
    });
    let request = ApiRequest::from_chat(object(chat)).unwrap();
    assert_eq!(
        field(prepare_completions(&text_model, &request, None, None)),
        "reasoning_effort"
    );
}
